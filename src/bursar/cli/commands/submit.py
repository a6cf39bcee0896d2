"""`bursar submit`."""

import os
import re
import sys
from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer

from bursar.cli.amounts import told
from bursar.cli.api_command import (
    Call,
    Key,
    Misused,
    NewId,
    Output,
    connected,
    given,
    micros,
    seconds,
    uuid,
)
from bursar.cli.jobs import followed, gpus_told, shown_with
from bursar.cli.output import Format, card, cell, note
from bursar.cli.problems import exit_code, told_briefly
from bursar.cli.ranges import duration_told

app = typer.Typer(add_completion=False, rich_markup_mode=None)

ACCOUNT_VARIABLE: Final = "BURSAR_ACCOUNT"
SUBMITTED: Final = (
    "id",
    "state",
    "follows",
    "cached_from",
    "held_micros",
    "hold_expires_at",
    "rates",
    "dropped_gpu_types",
)
QUOTED: Final = (
    "held_micros",
    "likely_micros",
    "max_micros",
    "spendable_micros",
    "spendable_after_micros",
    "micros_per_hour",
    "rates",
    "dropped_gpu_types",
    "cache",
    "pool",
    "pool_reason",
    "problems",
)
# A type begins with a letter, so that 2H100 is an error.
_TYPE: Final = r" *[A-Za-wyz][^,]*"
_GPUS: Final = re.compile(rf"(?:(\d{{1,6}})(?:\.(\d{{1,3}}))?x)?({_TYPE}(?:,{_TYPE})*)", re.ASCII)
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def gpus_of(text: str) -> dict[str, Any]:
    """Parse `2xH100,A100` (two GPUs, first available type) or `0.25xH100` (a part of one)."""
    found = _GPUS.fullmatch(text)
    if found is None:
        raise typer.BadParameter(
            f"{text[:40]!r} is not a GPU request: write 2xH100, 8xH100,A100 or 0.25xH100"
        )
    count, part, names = found.groups()
    types = [name.strip() for name in names.split(",")]
    if part is None:
        return {"types": types, "count": int(count or 1)}
    milli = int(count) * 1_000 + int(part.ljust(3, "0"))
    if not 1 <= milli <= 1_000:
        raise typer.BadParameter(f"{text[:40]!r}: a GPU fraction ranges from 0.001 to 1")
    return {"types": types, "fraction_milli": milli}


def pairs(texts: list[str] | None, what: str) -> dict[str, str] | None:
    """Parse a repeated `NAME=VALUE` option."""
    found: dict[str, str] = {}
    for text in texts or []:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise typer.BadParameter(f"{text[:40]!r}: write {what} as NAME=VALUE")
        found[name] = value
    return found or None


def variables(texts: list[str] | None) -> dict[str, str] | None:
    """Parse a job's environment. A name without a value takes it from this environment."""
    here = [text if "=" in text else f"{text}={_here(text)}" for text in texts or []]
    found = pairs(here, "--env")
    for name in found or {}:
        if not _VARIABLE.fullmatch(name):
            raise typer.BadParameter(
                f"{name[:40]!r}: variable names contain only letters, digits and _"
            )
    return found


def _here(name: str) -> str:
    if name not in os.environ:
        raise typer.BadParameter(f"variable {name[:40]!r} is not set here; write NAME=VALUE")
    return os.environ[name]


@app.command(no_args_is_help=True)
def submit(
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND", help="Command to run, after two dashes.")
    ],
    account: Annotated[
        str,
        typer.Option(metavar="ID", parser=uuid, envvar=ACCOUNT_VARIABLE, help="Account that pays."),
    ],
    gpus: Annotated[
        dict[str, Any],
        typer.Option(
            metavar="GPUS", parser=gpus_of, help="GPUs, such as 2xH100, 8xH100,A100 or 0.25xH100."
        ),
    ],
    max_run: Annotated[
        int, typer.Option(metavar="DURATION", parser=seconds, help="Maximum run time.")
    ],
    likely: Annotated[
        int | None,
        typer.Option(
            metavar="DURATION", parser=seconds, help="Expected run time; lets the job start sooner."
        ),
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(min=1, help="Number of nodes to spread the GPUs over.")
    ] = None,
    within: Annotated[
        str | None, typer.Option(help="Required proximity: node, island, rack or pool.")
    ] = None,
    gpu_memory: Annotated[
        int | None, typer.Option(min=1, help="Minimum memory of each GPU, in GiB.")
    ] = None,
    memory: Annotated[int | None, typer.Option(min=1, help="Memory on each node, in MiB.")] = None,
    user: Annotated[
        str | None,
        typer.Option(metavar="ID", parser=uuid, help="User who spends. Default: the key's user."),
    ] = None,
    priority_class: Annotated[
        int | None, typer.Option("--class", min=0, help="Priority class; higher is more urgent.")
    ] = None,
    keep: Annotated[
        bool, typer.Option("--not-preemptible", help="Never preempt this job.")
    ] = False,
    checkpoint: Annotated[
        int | None,
        typer.Option(
            metavar="DURATION", parser=seconds, help="Interval between the job's checkpoints."
        ),
    ] = None,
    requeues: Annotated[int | None, typer.Option(min=0, help="Maximum number of restarts.")] = None,
    region: Annotated[list[str] | None, typer.Option(help="Allowed region. Repeatable.")] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Label to find the job by. Repeatable."),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[=VALUE]", help="Environment variable. Default value: from this shell."
        ),
    ] = None,
    max_cost: Annotated[
        int | None, typer.Option(metavar="AMOUNT", parser=micros, help="Maximum cost.")
    ] = None,
    rolling: Annotated[
        bool, typer.Option("--rolling", help="Hold credits for 15 minutes at a time while it runs.")
    ] = False,
    array: Annotated[
        int | None,
        typer.Option(min=1, help="Number of runs, each with its own BURSAR_ARRAY_INDEX."),
    ] = None,
    at_once: Annotated[
        int | None, typer.Option(min=1, help="With --array: maximum runs at the same time.")
    ] = None,
    cache: Annotated[
        int | None,
        typer.Option(
            metavar="DURATION",
            parser=seconds,
            help="Reuse an identical job's result up to this age; 0s: only of unfinished jobs.",
        ),
    ] = None,
    cache_key: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help="With --cache: part of the cache key, such as a data version."
        ),
    ] = None,
    pool: Annotated[str | None, typer.Option(help="Pool. Default: chosen by the service.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the cost and any refusal; submit nothing.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow the job until it finishes.")
    ] = False,
    id: NewId = None,
    output: Output = Format.TABLE,
    key: Key = None,
) -> None:
    """Run a command on GPUs. Shows the cost, asks for confirmation, and submits the job."""
    if nodes is not None or within is not None:
        gpus = {**gpus, "topology": given({"nodes": nodes, "within": within})}
    if gpu_memory is not None:
        gpus = {**gpus, "memory_gib_min": gpu_memory}
    body = given(
        {
            "account_id": account,
            "user_id": user,
            "command": command,
            "gpus": gpus,
            "max_run_seconds": max_run,
            "likely_run_seconds": likely,
            "priority_class": priority_class,
            "preemptible": False if keep else None,
            "checkpoint": None if checkpoint is None else {"interval_seconds": checkpoint},
            "requeues_max": requeues,
            "memory_mib": memory,
            "regions": region or None,
            "labels": pairs(label, "--label"),
            "env": variables(env),
            "max_cost_micros": max_cost,
            "hold": "rolling" if rolling else None,
            "array": _array(array, at_once),
            "cache": _cached(cache, cache_key),
            "pool": pool,
            "id": id,
        }
    )
    call = Call(output, key)
    if dry_run:
        _quoted(call, body)
        return
    if not yes:
        _confirm(call, body)
    made = call.post("/v1/jobs", body, SUBMITTED, text=shown_with(SUBMITTED))
    if follow:
        with connected() as client:
            raise typer.Exit(followed(client, made["id"], output))
    if output is Format.TABLE:
        note(f"to follow the job: bursar watch {made['id']}")


def _array(count: int | None, at_once: int | None) -> dict[str, Any] | None:
    """The array part of the request."""
    if count is None:
        if at_once is not None:
            raise Misused("--at-once requires --array")
        return None
    return given({"count": count, "at_once": at_once})


def _cached(max_age_s: int | None, key: str | None) -> dict[str, Any] | None:
    """The cache part of the request."""
    if max_age_s is None:
        if key is not None:
            raise Misused("--cache-key requires --cache")
        return None
    return given({"max_age_seconds": max_age_s, "key": key})


def _quoted(call: Call, body: Mapping[str, Any]) -> None:
    """Print a quote; exit with the status that the submission would have."""
    ask = {**body, "dry_run": True}
    quote = call.post("/v1/jobs", ask, QUOTED, text=lambda quote: told_to_people(quote, body))
    _exit_if_forbidden(quote)


def _confirm(call: Call, body: Mapping[str, Any]) -> None:
    """Show the cost and ask for confirmation."""
    if call.form is not Format.TABLE or not sys.stdin.isatty():
        raise Misused("no terminal to ask for confirmation: add --yes")
    with connected() as client:
        quote = client.post("/v1/jobs", {**body, "dry_run": True}).body
    print(told_to_people(quote, body), file=sys.stderr)
    _exit_if_forbidden(quote)
    if not typer.confirm("Submit this job?", err=True):
        raise typer.Exit(0)


def _exit_if_forbidden(quote: Mapping[str, Any]) -> None:
    if quote["problems"]:
        first = quote["problems"][0]
        raise typer.Exit(exit_code(first["code"], first["status"]))


def cache_told(cache: Mapping[str, Any]) -> str:
    """Describe what the result cache would do for a job."""
    if cache["outcome"] == "hit":
        price = told(cache["price_micros"]) if cache["price_micros"] else "free"
        return f"reuses the result of job {cache['job_id']}; price: {price}"
    if cache["outcome"] == "follow":
        return f"waits for job {cache['job_id']} and reuses its result"
    return "no identical job: it would run"


def told_to_people(quote: Mapping[str, Any], body: Mapping[str, Any]) -> str:
    """Render a quote, with the verdict first."""
    lines = [("verdict", "refused" if quote["problems"] else "accepted")]
    lines += [("because", told_briefly(problem)) for problem in quote["problems"]]
    lines += [
        ("gpus", gpus_told(body["gpus"], [rate["gpu_type"] for rate in quote["rates"]])),
        *([("runs", str(body["array"]["count"]))] if "array" in body else []),
        ("rate", f"{told(quote['micros_per_hour'])} per hour"),
        ("max run time", duration_told(body["max_run_seconds"])),
        ("max cost", told(quote["max_micros"])),
    ]
    if quote["likely_micros"] not in (0, quote["held_micros"]):
        lines.append(("expected cost", told(quote["likely_micros"])))
    lines += [
        ("held", told(quote["held_micros"])),
        ("spendable", told(quote["spendable_micros"])),
        ("spendable after", told(quote["spendable_after_micros"])),
    ]
    if quote["dropped_gpu_types"]:
        lines.append(("dropped", cell("dropped_gpu_types", quote["dropped_gpu_types"])))
    if quote["cache"] is not None:
        lines.append(("cache", cache_told(quote["cache"])))
    return card([*lines, *_where(quote)])


def _where(quote: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The chosen pool, the reason, and the estimated start.

    The start is the scheduler's range. The router's estimate ignores preemption, so it is shown
    only if there is no range.
    """
    if quote["pool"] is None or (quote["cache"] or {}).get("outcome") == "hit":
        return []
    why, wait_s, first = quote["pool_reason"], quote["expected_wait_seconds"], quote["earliest_at"]
    if first is not None and wait_s != 0:
        why = (why or "").partition(": in about")[0]
    lines = [("pool", f"{quote['pool']} ({why})" if why else quote["pool"])]
    if wait_s == 0:
        return [*lines, ("starts", "now")]
    last = quote["latest_at"]
    if first is not None:
        when = cell("earliest_at", first)
        lines.append(("starts", when if first == last else f"{when} or later"))
    elif wait_s is not None:
        lines.append(("starts", f"in about {duration_told(wait_s)}"))
    if last is not None and last != first:
        lines.append(("starts by", cell("latest_at", last)))
    return lines
