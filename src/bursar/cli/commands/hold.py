"""`bursar hold`."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer

from bursar.cli.api_command import (
    Account,
    Amount,
    ApiCall,
    Id,
    Key,
    NewId,
    Output,
    UsageError,
    add_list_command,
    add_show_command,
    amount_parser,
    drop_none,
    duration_parser,
    id_parser,
    make_group,
)
from bursar.cli.output import Format, column_label, format_value, render_card
from bursar.cli.problems import exit_code, format_problem
from bursar.cli.ranges import TIMES

app = make_group("Reserve credits, charge usage, settle and release.")

LIST_COLUMNS: Final = (
    "id",
    "state",
    "account_id",
    "open_micros",
    "charged_micros",
    "opened_at",
    "expires_at",
)
COLUMNS: Final = (
    "id",
    "account_id",
    "user_id",
    "state",
    "open_micros",
    "charged_micros",
    "owed_micros",
    "absorbed_micros",
    "opened_at",
    "expires_at",
    "closed_at",
    "context",
    "rates",
    "draws",
)
CHANGE_COLUMNS: Final = (
    "hold_id",
    "state",
    "open_micros",
    "charged_micros",
    "refunded_micros",
)
CHARGE_COLUMNS: Final = (
    "id",
    "hold_id",
    "amount_micros",
    "owed_micros",
    "absorbed_micros",
    "effective_at",
    "attempt",
    "run_ms_total",
    "late",
    "budgets_exceeded",
    "hold_open_micros",
    "hold_charged_micros",
)
QUOTE_COLUMNS: Final = (
    "held_micros",
    "likely_micros",
    "spendable_micros",
    "rates",
    "dropped_gpu_types",
)

HeldAmount = Annotated[
    int | None,
    typer.Argument(
        metavar="AMOUNT",
        parser=amount_parser,
        help="Credits to hold. Alternative: --run with GPUs.",
    ),
]
Run = Annotated[
    int | None,
    typer.Option(
        metavar="DURATION",
        parser=duration_parser,
        help="Hold the maximum cost of running this long.",
    ),
]
Likely = Annotated[
    int | None,
    typer.Option(metavar="DURATION", parser=duration_parser, help="Expected run time."),
]
User = Annotated[
    str | None,
    typer.Option(metavar="ID", parser=id_parser, help="User who spends. Default: the key's user."),
]
GpuType = Annotated[str | None, typer.Option(help="GPU type, such as H100.")]
GpuCount = Annotated[int | None, typer.Option(min=0, help="Number of GPUs. Default: 1.")]
Region = Annotated[str | None, typer.Option(help="Region of the job.")]
JobKind = Annotated[str | None, typer.Option(help="Kind of job.")]
Class = Annotated[str | None, typer.Option("--class", help="Priority class of the job.")]
Job = Annotated[str | None, typer.Option(help="Id of the job.")]
RunTotal = Annotated[
    int | None,
    typer.Option(
        metavar="DURATION",
        parser=duration_parser,
        help="Total run time of the attempt so far, instead of an amount.",
    ),
]
Attempt = Annotated[int | None, typer.Option(min=1, help="Number of the attempt. Default: 1.")]


def _in_ms(seconds: int | None) -> int | None:
    return None if seconds is None else seconds * 1_000


def build_context(
    gpu_type: str | None,
    gpu_count: int | None,
    region: str | None,
    job_kind: str | None,
    priority_class: str | None,
    job: str | None,
) -> dict[str, Any] | None:
    """Build the context of a hold. A GPU type without a count means one GPU."""
    context = {
        "gpu_type": gpu_type,
        "gpu_count": 1 if gpu_type is not None and gpu_count is None else gpu_count,
        "region": region,
        "job_kind": job_kind,
        "priority_class": priority_class,
        "job_id": job,
    }
    return drop_none(context) or None


def build_request(
    account: str,
    amount: int | None,
    run: int | None,
    user: str | None,
    ttl: int | None,
    context: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Build the request body of a hold or a quote."""
    has_gpus = context is not None and context.get("gpu_type") and context.get("gpu_count")
    if (amount is None) == (run is None) or (run is not None and not has_gpus):
        raise UsageError("give an AMOUNT, or --run with --gpu-type and --gpu-count")
    return {
        "account_id": account,
        "amount_micros": amount,
        "run_ms_max": _in_ms(run),
        "user_id": user,
        "ttl_seconds": ttl,
        "context": context,
    }


def print_quote(call: ApiCall, body: Mapping[str, Any], likely: int | None) -> None:
    """Print a quote; exit with the status that the hold would have."""
    request = {**body, "likely_run_ms": _in_ms(likely)}
    quote = call.post("/v1/quotes", request, (*QUOTE_COLUMNS, "problems"), text=render_quote)
    forbidden = quote["problems"]
    if forbidden:
        raise typer.Exit(exit_code(forbidden[0]["code"], forbidden[0]["status"]))


def render_quote(body: Mapping[str, Any]) -> str:
    """Render a quote, with the verdict first."""
    verdict = [("verdict", "refused" if body["problems"] else "accepted")]
    because = [("because", format_problem(problem)) for problem in body["problems"]]
    parts = [
        (column_label(path), format_value(path, body[path]))
        for path in QUOTE_COLUMNS
        if body[path] != []
    ]
    return render_card([*verdict, *because, *parts])


@app.command("open")
def open_(
    account: Account,
    amount: HeldAmount = None,
    run: Run = None,
    ttl: Annotated[
        int | None,
        typer.Option(
            metavar="DURATION",
            parser=duration_parser,
            help="Release the hold after this time: 1h, 30m.",
        ),
    ] = None,
    user: User = None,
    gpu_type: GpuType = None,
    gpu_count: GpuCount = None,
    region: Region = None,
    job_kind: JobKind = None,
    priority_class: Class = None,
    job: Job = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the cost and any refusal; change nothing.")
    ] = False,
    id: NewId = None,
    output: Output = Format.TABLE,
    key: Key = None,
) -> None:
    """Reserve credits before the work starts, in full or not at all."""
    call = ApiCall(output, key)
    context = build_context(gpu_type, gpu_count, region, job_kind, priority_class, job)
    body = build_request(account, amount, run, user, ttl, context)
    if dry_run:
        print_quote(call, body, None)
    else:
        call.post("/v1/holds", {**body, "id": id}, COLUMNS)


add_show_command(app, "/v1/holds", "Show a hold.", COLUMNS)


add_list_command(app, "/v1/holds", "List the holds of an org.", LIST_COLUMNS, COLUMNS)


@app.command()
def charge(
    id: Id,
    amount: Annotated[
        int | None, typer.Argument(metavar="AMOUNT", parser=amount_parser, help="Credits used.")
    ] = None,
    run_total: RunTotal = None,
    attempt: Attempt = None,
    effective_at: Annotated[
        str | None,
        typer.Option(metavar="TIME", help=f"Time of the usage, if reported late: {TIMES}."),
    ] = None,
    output: Output = Format.TABLE,
    key: Key = None,
) -> None:
    """Charge usage: an amount, or the total run time so far."""
    if (amount is None) == (run_total is None):
        raise UsageError("give an AMOUNT or --run-total")
    call = ApiCall(output, key)
    body = {
        "amount_micros": amount,
        "run_ms_total": _in_ms(run_total),
        "attempt": attempt,
        "effective_at": call.parse_time(effective_at),
    }
    call.post(f"/v1/holds/{id}/charge", body, CHARGE_COLUMNS)


@app.command()
def settle(
    id: Id,
    total: Annotated[
        int | None,
        typer.Argument(
            metavar="TOTAL",
            parser=amount_parser,
            help="Total credits used. Default: what was charged.",
        ),
    ] = None,
    run_total: RunTotal = None,
    attempt: Attempt = None,
    output: Output = Format.TABLE,
    key: Key = None,
) -> None:
    """Charge the final usage, refund the rest and close the hold."""
    body = {"total_micros": total, "run_ms_total": _in_ms(run_total), "attempt": attempt}
    columns = (*CHANGE_COLUMNS, "charge.id", "charge.amount_micros")
    ApiCall(output, key).post(f"/v1/holds/{id}/settle", body, columns)


@app.command()
def release(id: Id, output: Output = Format.TABLE, key: Key = None) -> None:
    """Refund everything that is not charged and close the hold."""
    ApiCall(output, key).post(f"/v1/holds/{id}/release", {}, CHANGE_COLUMNS)


@app.command()
def refund(id: Id, amount: Amount, output: Output = Format.TABLE, key: Key = None) -> None:
    """Refund a part of the hold, which stays open."""
    ApiCall(output, key).post(f"/v1/holds/{id}/refund", {"amount_micros": amount}, CHANGE_COLUMNS)


@app.command()
def extend(
    id: Id,
    add: Annotated[
        int | None, typer.Option(metavar="AMOUNT", parser=amount_parser, help="Credits to add.")
    ] = None,
    ttl: Annotated[
        int | None,
        typer.Option(
            metavar="DURATION", parser=duration_parser, help="Expire after this time, from now."
        ),
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help=f"Expire at this time: {TIMES}.")
    ] = None,
    output: Output = Format.TABLE,
    key: Key = None,
) -> None:
    """Add credits to a hold, extend its expiry, or both."""
    call = ApiCall(output, key)
    expires_at = call.parse_time_or_duration(until, ttl, "--until and --ttl")
    if add is None and expires_at is None:
        raise UsageError("add --add, --ttl or --until")
    body = {"amount_micros": add, "expires_at": expires_at}
    call.post(f"/v1/holds/{id}/extend", body, (*CHANGE_COLUMNS, "expires_at"))
