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
    "most_micros",
    "spendable_micros",
    "spendable_after_micros",
    "micros_per_hour",
    "rates",
    "dropped_gpu_types",
    "cache",
    "pool",
    "pool_why",
    "forbidden",
)
# A type begins with a letter, as an agent names it: 2H100 means nothing.
_TYPE: Final = r" *[A-Za-wyz][^,]*"
_GPUS: Final = re.compile(rf"(?:(\d{{1,6}})(?:\.(\d{{1,3}}))?x)?({_TYPE}(?:,{_TYPE})*)", re.ASCII)
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def gpus_of(text: str) -> dict[str, Any]:
    """What `2xH100,A100` means: two GPUs, the first type that can be had; `0.25xH100` is a part."""
    found = _GPUS.fullmatch(text)
    if found is None:
        raise typer.BadParameter(
            f"{text[:40]!r} is no GPUs: write 2xH100, 8xH100,A100 or 0.25xH100"
        )
    count, part, names = found.groups()
    types = [name.strip() for name in names.split(",")]
    if part is None:
        return {"types": types, "count": int(count or 1)}
    milli = int(count) * 1_000 + int(part.ljust(3, "0"))
    if not 1 <= milli <= 1_000:
        raise typer.BadParameter(f"{text[:40]!r}: a part of a GPU is from 0.001 to 1")
    return {"types": types, "fraction_milli": milli}


def pairs(texts: list[str] | None, what: str) -> dict[str, str] | None:
    """What `name=value` given several times means."""
    found: dict[str, str] = {}
    for text in texts or []:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise typer.BadParameter(f"{text[:40]!r}: write {what} as NAME=VALUE")
        found[name] = value
    return found or None


def variables(texts: list[str] | None) -> dict[str, str] | None:
    """The environment of a job; a name alone has the value that it has here."""
    here = [text if "=" in text else f"{text}={_here(text)}" for text in texts or []]
    found = pairs(here, "--env")
    for name in found or {}:
        if not _VARIABLE.fullmatch(name):
            raise typer.BadParameter(f"{name[:40]!r}: a variable has letters, digits and _ alone")
    return found


def _here(name: str) -> str:
    if name not in os.environ:
        raise typer.BadParameter(f"there is no variable {name[:40]!r} here; write NAME=VALUE")
    return os.environ[name]


@app.command(no_args_is_help=True)
def submit(
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND", help="What to run, after two dashes.")
    ],
    account: Annotated[
        str,
        typer.Option(metavar="ID", parser=uuid, envvar=ACCOUNT_VARIABLE, help="Whose credits."),
    ],
    gpus: Annotated[
        dict[str, Any],
        typer.Option(metavar="GPUS", parser=gpus_of, help="2xH100, 8xH100,A100, or 0.25xH100."),
    ],
    max_run: Annotated[
        int, typer.Option(metavar="DURATION", parser=seconds, help="It is ended after so long.")
    ],
    likely: Annotated[
        int | None,
        typer.Option(metavar="DURATION", parser=seconds, help="How long it will likely run."),
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(min=1, help="Spread its GPUs over so many nodes.")
    ] = None,
    within: Annotated[
        str | None, typer.Option(help="How close: node, island, rack or pool.")
    ] = None,
    gpu_memory: Annotated[int | None, typer.Option(min=1, help="GiB that each GPU has.")] = None,
    memory: Annotated[int | None, typer.Option(min=1, help="MiB of memory on each node.")] = None,
    user: Annotated[
        str | None,
        typer.Option(metavar="ID", parser=uuid, help="Who spends; the key's if not given."),
    ] = None,
    priority_class: Annotated[
        int | None, typer.Option("--class", min=0, help="The higher, the more urgent.")
    ] = None,
    keep: Annotated[
        bool, typer.Option("--not-preemptible", help="It never makes room for others.")
    ] = False,
    checkpoint: Annotated[
        int | None,
        typer.Option(metavar="DURATION", parser=seconds, help="It makes a checkpoint so often."),
    ] = None,
    requeues: Annotated[
        int | None, typer.Option(min=0, help="How often it may start again.")
    ] = None,
    region: Annotated[list[str] | None, typer.Option(help="Where it may run.")] = None,
    label: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="To find it by.")
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME[=VALUE]", help="A variable; alone, with its value here."),
    ] = None,
    max_cost: Annotated[
        int | None, typer.Option(metavar="AMOUNT", parser=micros, help="It may cost no more.")
    ] = None,
    rolling: Annotated[
        bool, typer.Option("--rolling", help="Hold a quarter of an hour, and more as it runs.")
    ] = False,
    array: Annotated[
        int | None,
        typer.Option(min=1, help="Run it so many times, each with its own BURSAR_ARRAY_INDEX."),
    ] = None,
    at_once: Annotated[
        int | None, typer.Option(min=1, help="So many of an array at a time.")
    ] = None,
    cache: Annotated[
        int | None,
        typer.Option(
            metavar="DURATION",
            parser=seconds,
            help="Take the result of a job like it, if it is not older; 0s: of one under way.",
        ),
    ] = None,
    cache_key: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Another key, another result: a version of its data."),
    ] = None,
    pool: Annotated[str | None, typer.Option(help="Where it is queued.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what it would cost and what forbids it.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Watch it to its end.")] = False,
    id: NewId = None,
    output: Output = Format.TABLE,
    key: Key = None,
) -> None:
    """Run a command on GPUs: shows what it costs, asks, reserves the credits, queues it."""
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
        note(f"follow it with: bursar watch {made['id']}")


def _array(count: int | None, at_once: int | None) -> dict[str, Any] | None:
    """How often a job is run, if more than once."""
    if count is None:
        if at_once is not None:
            raise Misused("--at-once goes with --array: say how many there are in all")
        return None
    return given({"count": count, "at_once": at_once})


def _cached(max_age_s: int | None, key: str | None) -> dict[str, Any] | None:
    """How a job shares its result, if it does."""
    if max_age_s is None:
        if key is not None:
            raise Misused("--cache-key goes with --cache: say how old a result may be")
        return None
    return given({"max_age_seconds": max_age_s, "key": key})


def _quoted(call: Call, body: Mapping[str, Any]) -> None:
    """Print a quote, and exit as the submission would."""
    ask = {**body, "dry_run": True}
    quote = call.post("/v1/jobs", ask, QUOTED, text=lambda quote: told_to_people(quote, body))
    _exit_if_forbidden(quote)


def _confirm(call: Call, body: Mapping[str, Any]) -> None:
    """Show what it costs, and go on only if that is wanted."""
    if call.form is not Format.TABLE or not sys.stdin.isatty():
        raise Misused("nobody is there to be asked: say --yes")
    with connected() as client:
        quote = client.post("/v1/jobs", {**body, "dry_run": True}).body
    print(told_to_people(quote, body), file=sys.stderr)
    _exit_if_forbidden(quote)
    if not typer.confirm("Submit it?", err=True):
        raise typer.Exit(0)


def _exit_if_forbidden(quote: Mapping[str, Any]) -> None:
    if quote["forbidden"]:
        first = quote["forbidden"][0]
        raise typer.Exit(exit_code(first["code"], first["status"]))


def cache_told(cache: Mapping[str, Any]) -> str:
    """What the cache would do for a job, in words."""
    if cache["outcome"] == "hit":
        price = told(cache["price_micros"]) if cache["price_micros"] else "nothing"
        return f"it would be given the result of job {cache['job_id']}, for {price}"
    if cache["outcome"] == "follow":
        return f"it would follow job {cache['job_id']}, and be given its result"
    return "nothing like it is there: it would run"


def told_to_people(quote: Mapping[str, Any], body: Mapping[str, Any]) -> str:
    """A quote, with the verdict first."""
    lines = [("verdict", "refused" if quote["forbidden"] else "it can be submitted")]
    lines += [("because", told_briefly(problem)) for problem in quote["forbidden"]]
    lines += [
        ("gpus", gpus_told(body["gpus"], [rate["gpu_type"] for rate in quote["rates"]])),
        *([("times", str(body["array"]["count"]))] if "array" in body else []),
        ("rate", f"{told(quote['micros_per_hour'])} an hour"),
        ("runs at most", duration_told(body["max_run_seconds"])),
        ("costs at most", told(quote["most_micros"])),
    ]
    if quote["likely_micros"] not in (0, quote["held_micros"]):
        lines.append(("likely", told(quote["likely_micros"])))
    lines += [
        ("held", told(quote["held_micros"])),
        ("spendable", told(quote["spendable_micros"])),
        ("left after that", told(quote["spendable_after_micros"])),
    ]
    if quote["dropped_gpu_types"]:
        lines.append(("dropped", cell("dropped_gpu_types", quote["dropped_gpu_types"])))
    if quote["cache"] is not None:
        lines.append(("cache", cache_told(quote["cache"])))
    return card([*lines, *_where(quote)])


def _where(quote: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The pool that was chosen, why, and when it would start there.

    The scheduler's range is shown, not the router's estimate, which knows less: a pool is chosen
    by it, but not whom the job may ask to make room.
    """
    if quote["pool"] is None or (quote["cache"] or {}).get("outcome") == "hit":
        return []
    why, wait_s, first = quote["pool_why"], quote["expected_wait_seconds"], quote["earliest_at"]
    if first is not None and wait_s != 0:
        why = (why or "").partition(": in about")[0]
    lines = [("pool", f"{quote['pool']} ({why})" if why else quote["pool"])]
    if wait_s == 0:
        return [*lines, ("starts", "at once")]
    last = quote["latest_at"]
    if first is not None:
        when = cell("earliest_at", first)
        lines.append(("starts", when if first == last else f"{when} at the earliest"))
    elif wait_s is not None:
        lines.append(("starts", f"in about {duration_told(wait_s)}"))
    if last is not None and last != first:
        lines.append(("at the latest", cell("latest_at", last)))
    return lines
