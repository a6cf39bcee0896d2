"""`bursar submit`."""

import os
import re
import sys
from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer

from bursar.cli.amounts import format_credits
from bursar.cli.api_command import (
    ApiCall,
    Key,
    NewId,
    Output,
    UsageError,
    amount_parser,
    connect,
    drop_none,
    duration_parser,
    id_parser,
)
from bursar.cli.jobs import follow_job, format_gpus, make_renderer
from bursar.cli.output import Format, format_value, print_note, render_card
from bursar.cli.problems import exit_code, format_problem
from bursar.cli.ranges import format_duration

app = typer.Typer(add_completion=False, rich_markup_mode=None)

ACCOUNT_VARIABLE: Final = "BURSAR_ACCOUNT"
SUBMITTED_COLUMNS: Final = (
    "id",
    "state",
    "follows",
    "cached_from",
    "held_micros",
    "hold_expires_at",
    "rates",
    "dropped_gpu_types",
)
QUOTE_COLUMNS: Final = (
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


def parse_gpus(text: str) -> dict[str, Any]:
    """Parse `2xH100,A100` (two GPUs, first available type) or `0.25xH100` (a part of one)."""
    match = _GPUS.fullmatch(text)
    if match is None:
        raise typer.BadParameter(
            f"{text[:40]!r} is not a GPU request: write 2xH100, 8xH100,A100 or 0.25xH100"
        )
    count, part, names = match.groups()
    types = [name.strip() for name in names.split(",")]
    if part is None:
        return {"types": types, "count": int(count or 1)}
    milli = int(count) * 1_000 + int(part.ljust(3, "0"))
    if not 1 <= milli <= 1_000:
        raise typer.BadParameter(f"{text[:40]!r}: a GPU fraction ranges from 0.001 to 1")
    return {"types": types, "fraction_milli": milli}


def parse_pairs(texts: list[str] | None, what: str) -> dict[str, str] | None:
    """Parse a repeated `NAME=VALUE` option."""
    values: dict[str, str] = {}
    for text in texts or []:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise typer.BadParameter(f"{text[:40]!r}: write {what} as NAME=VALUE")
        values[name] = value
    return values or None


def parse_variables(texts: list[str] | None) -> dict[str, str] | None:
    """Parse a job's environment. A name without a value takes it from this environment."""
    complete = [text if "=" in text else f"{text}={_read_variable(text)}" for text in texts or []]
    values = parse_pairs(complete, "--env")
    for name in values or {}:
        if not _VARIABLE.fullmatch(name):
            raise typer.BadParameter(
                f"{name[:40]!r}: variable names contain only letters, digits and _"
            )
    return values


def _read_variable(name: str) -> str:
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
        typer.Option(
            metavar="ID", parser=id_parser, envvar=ACCOUNT_VARIABLE, help="Account that pays."
        ),
    ],
    gpus: Annotated[
        dict[str, Any],
        typer.Option(
            metavar="GPUS",
            parser=parse_gpus,
            help="GPUs, such as 2xH100, 8xH100,A100 or 0.25xH100.",
        ),
    ],
    max_run: Annotated[
        int, typer.Option(metavar="DURATION", parser=duration_parser, help="Maximum run time.")
    ],
    likely: Annotated[
        int | None,
        typer.Option(
            metavar="DURATION",
            parser=duration_parser,
            help="Expected run time; lets the job start sooner.",
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
        typer.Option(
            metavar="ID", parser=id_parser, help="User who spends. Default: the key's user."
        ),
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
            metavar="DURATION",
            parser=duration_parser,
            help="Interval between the job's checkpoints.",
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
        int | None, typer.Option(metavar="AMOUNT", parser=amount_parser, help="Maximum cost.")
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
            parser=duration_parser,
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
        gpus = {**gpus, "topology": drop_none({"nodes": nodes, "within": within})}
    if gpu_memory is not None:
        gpus = {**gpus, "memory_gib_min": gpu_memory}
    body = drop_none(
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
            "labels": parse_pairs(label, "--label"),
            "env": parse_variables(env),
            "max_cost_micros": max_cost,
            "hold": "rolling" if rolling else None,
            "array": _build_array(array, at_once),
            "cache": _build_cache(cache, cache_key),
            "pool": pool,
            "id": id,
        }
    )
    call = ApiCall(output, key)
    if dry_run:
        _print_quote(call, body)
        return
    if not yes:
        _confirm(call, body)
    job = call.post("/v1/jobs", body, SUBMITTED_COLUMNS, text=make_renderer(SUBMITTED_COLUMNS))
    if follow:
        with connect() as client:
            raise typer.Exit(follow_job(client, job["id"], output))
    if output is Format.TABLE:
        print_note(f"to follow the job: bursar watch {job['id']}")


def _build_array(count: int | None, at_once: int | None) -> dict[str, Any] | None:
    """The array part of the request."""
    if count is None:
        if at_once is not None:
            raise UsageError("--at-once requires --array")
        return None
    return drop_none({"count": count, "at_once": at_once})


def _build_cache(max_age_s: int | None, key: str | None) -> dict[str, Any] | None:
    """The cache part of the request."""
    if max_age_s is None:
        if key is not None:
            raise UsageError("--cache-key requires --cache")
        return None
    return drop_none({"max_age_seconds": max_age_s, "key": key})


def _print_quote(call: ApiCall, body: Mapping[str, Any]) -> None:
    """Print a quote; exit with the status that the submission would have."""
    request = {**body, "dry_run": True}
    quote = call.post(
        "/v1/jobs", request, QUOTE_COLUMNS, text=lambda quote: render_quote(quote, body)
    )
    _exit_if_forbidden(quote)


def _confirm(call: ApiCall, body: Mapping[str, Any]) -> None:
    """Show the cost and ask for confirmation."""
    if call.form is not Format.TABLE or not sys.stdin.isatty():
        raise UsageError("no terminal to ask for confirmation: add --yes")
    with connect() as client:
        quote = client.post("/v1/jobs", {**body, "dry_run": True}).body
    print(render_quote(quote, body), file=sys.stderr)
    _exit_if_forbidden(quote)
    if not typer.confirm("Submit this job?", err=True):
        raise typer.Exit(0)


def _exit_if_forbidden(quote: Mapping[str, Any]) -> None:
    if quote["problems"]:
        first = quote["problems"][0]
        raise typer.Exit(exit_code(first["code"], first["status"]))


def format_cache(cache: Mapping[str, Any]) -> str:
    """Describe what the result cache would do for a job."""
    if cache["outcome"] == "hit":
        price = format_credits(cache["price_micros"]) if cache["price_micros"] else "free"
        return f"reuses the result of job {cache['job_id']}; price: {price}"
    if cache["outcome"] == "follow":
        return f"waits for job {cache['job_id']} and reuses its result"
    return "no identical job: it would run"


def render_quote(quote: Mapping[str, Any], body: Mapping[str, Any]) -> str:
    """Render a quote, with the verdict first."""
    lines = [("verdict", "refused" if quote["problems"] else "accepted")]
    lines += [("because", format_problem(problem)) for problem in quote["problems"]]
    lines += [
        ("gpus", format_gpus(body["gpus"], [rate["gpu_type"] for rate in quote["rates"]])),
        *([("runs", str(body["array"]["count"]))] if "array" in body else []),
        ("rate", f"{format_credits(quote['micros_per_hour'])} per hour"),
        ("max run time", format_duration(body["max_run_seconds"])),
        ("max cost", format_credits(quote["max_micros"])),
    ]
    if quote["likely_micros"] not in (0, quote["held_micros"]):
        lines.append(("expected cost", format_credits(quote["likely_micros"])))
    lines += [
        ("held", format_credits(quote["held_micros"])),
        ("spendable", format_credits(quote["spendable_micros"])),
        ("spendable after", format_credits(quote["spendable_after_micros"])),
    ]
    if quote["dropped_gpu_types"]:
        lines.append(("dropped", format_value("dropped_gpu_types", quote["dropped_gpu_types"])))
    if quote["cache"] is not None:
        lines.append(("cache", format_cache(quote["cache"])))
    return render_card([*lines, *_format_start(quote)])


def _format_start(quote: Mapping[str, Any]) -> list[tuple[str, str]]:
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
        when = format_value("earliest_at", first)
        lines.append(("starts", when if first == last else f"{when} or later"))
    elif wait_s is not None:
        lines.append(("starts", f"in about {format_duration(wait_s)}"))
    if last is not None and last != first:
        lines.append(("starts by", format_value("latest_at", last)))
    return lines
