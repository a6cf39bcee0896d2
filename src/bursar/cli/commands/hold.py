"""`bursar hold`."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer

from bursar.cli.api_command import (
    Account,
    Amount,
    Call,
    Id,
    Key,
    Misused,
    NewId,
    Output,
    given,
    lists,
    micros,
    noun,
    seconds,
    shows,
    uuid,
)
from bursar.cli.output import Format, card, cell, label
from bursar.cli.problems import exit_code, told_briefly
from bursar.cli.ranges import TIMES

app = noun("Reserve credits, charge usage, settle and release.")

LISTED: Final = (
    "id",
    "state",
    "account_id",
    "open_micros",
    "charged_micros",
    "opened_at",
    "expires_at",
)
WHOLE: Final = (
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
CHANGED: Final = (
    "hold_id",
    "state",
    "open_micros",
    "charged_micros",
    "refunded_micros",
)
CHARGE: Final = (
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
QUOTED: Final = ("held_micros", "likely_micros", "spendable_micros", "rates", "dropped_gpu_types")

HeldAmount = Annotated[
    int | None,
    typer.Argument(
        metavar="AMOUNT", parser=micros, help="Credits to hold. Alternative: --run with GPUs."
    ),
]
Run = Annotated[
    int | None,
    typer.Option(
        metavar="DURATION", parser=seconds, help="Hold the maximum cost of running this long."
    ),
]
Likely = Annotated[
    int | None,
    typer.Option(metavar="DURATION", parser=seconds, help="Expected run time."),
]
User = Annotated[
    str | None,
    typer.Option(metavar="ID", parser=uuid, help="User who spends. Default: the key's user."),
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
        parser=seconds,
        help="Total run time of the attempt so far, instead of an amount.",
    ),
]
Attempt = Annotated[int | None, typer.Option(min=1, help="Number of the attempt. Default: 1.")]


def _ms(seconds: int | None) -> int | None:
    return None if seconds is None else seconds * 1_000


def context_of(
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
    return given(context) or None


def asked(
    account: str,
    amount: int | None,
    run: int | None,
    user: str | None,
    ttl: int | None,
    context: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Build the request body of a hold or a quote."""
    gpus = context is not None and context.get("gpu_type") and context.get("gpu_count")
    if (amount is None) == (run is None) or (run is not None and not gpus):
        raise Misused("give an AMOUNT, or --run with --gpu-type and --gpu-count")
    return {
        "account_id": account,
        "amount_micros": amount,
        "run_ms_max": _ms(run),
        "user_id": user,
        "ttl_seconds": ttl,
        "context": context,
    }


def quoted(call: Call, body: Mapping[str, Any], likely: int | None) -> None:
    """Print a quote; exit with the status that the hold would have."""
    ask = {**body, "likely_run_ms": _ms(likely)}
    told = call.post("/v1/quotes", ask, (*QUOTED, "problems"), text=told_to_people)
    forbidden = told["problems"]
    if forbidden:
        raise typer.Exit(exit_code(forbidden[0]["code"], forbidden[0]["status"]))


def told_to_people(body: Mapping[str, Any]) -> str:
    """Render a quote, with the verdict first."""
    verdict = [("verdict", "refused" if body["problems"] else "accepted")]
    because = [("because", told_briefly(problem)) for problem in body["problems"]]
    parts = [(label(path), cell(path, body[path])) for path in QUOTED if body[path] != []]
    return card([*verdict, *because, *parts])


@app.command("open")
def open_(
    account: Account,
    amount: HeldAmount = None,
    run: Run = None,
    ttl: Annotated[
        int | None,
        typer.Option(
            metavar="DURATION", parser=seconds, help="Release the hold after this time: 1h, 30m."
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
    call = Call(output, key)
    context = context_of(gpu_type, gpu_count, region, job_kind, priority_class, job)
    body = asked(account, amount, run, user, ttl, context)
    if dry_run:
        quoted(call, body, None)
    else:
        call.post("/v1/holds", {**body, "id": id}, WHOLE)


shows(app, "/v1/holds", "Show a hold.", WHOLE)


lists(app, "/v1/holds", "List the holds of an org.", LISTED, WHOLE)


@app.command()
def charge(
    id: Id,
    amount: Annotated[
        int | None, typer.Argument(metavar="AMOUNT", parser=micros, help="Credits used.")
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
        raise Misused("give an AMOUNT or --run-total")
    call = Call(output, key)
    body = {
        "amount_micros": amount,
        "run_ms_total": _ms(run_total),
        "attempt": attempt,
        "effective_at": call.time(effective_at),
    }
    call.post(f"/v1/holds/{id}/charge", body, CHARGE)


@app.command()
def settle(
    id: Id,
    total: Annotated[
        int | None,
        typer.Argument(
            metavar="TOTAL", parser=micros, help="Total credits used. Default: what was charged."
        ),
    ] = None,
    run_total: RunTotal = None,
    attempt: Attempt = None,
    output: Output = Format.TABLE,
    key: Key = None,
) -> None:
    """Charge the final usage, refund the rest and close the hold."""
    body = {"total_micros": total, "run_ms_total": _ms(run_total), "attempt": attempt}
    columns = (*CHANGED, "charge.id", "charge.amount_micros")
    Call(output, key).post(f"/v1/holds/{id}/settle", body, columns)


@app.command()
def release(id: Id, output: Output = Format.TABLE, key: Key = None) -> None:
    """Refund everything that is not charged and close the hold."""
    Call(output, key).post(f"/v1/holds/{id}/release", {}, CHANGED)


@app.command()
def refund(id: Id, amount: Amount, output: Output = Format.TABLE, key: Key = None) -> None:
    """Refund a part of the hold, which stays open."""
    Call(output, key).post(f"/v1/holds/{id}/refund", {"amount_micros": amount}, CHANGED)


@app.command()
def extend(
    id: Id,
    add: Annotated[
        int | None, typer.Option(metavar="AMOUNT", parser=micros, help="Credits to add.")
    ] = None,
    ttl: Annotated[
        int | None,
        typer.Option(metavar="DURATION", parser=seconds, help="Expire after this time, from now."),
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help=f"Expire at this time: {TIMES}.")
    ] = None,
    output: Output = Format.TABLE,
    key: Key = None,
) -> None:
    """Add credits to a hold, extend its expiry, or both."""
    call = Call(output, key)
    expires_at = call.either(until, ttl, "--until and --ttl")
    if add is None and expires_at is None:
        raise Misused("add --add, --ttl or --until")
    body = {"amount_micros": add, "expires_at": expires_at}
    call.post(f"/v1/holds/{id}/extend", body, (*CHANGED, "expires_at"))
