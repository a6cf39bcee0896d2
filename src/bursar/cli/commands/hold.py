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

app = noun("Reserve credits, charge usage, settle, release.")

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
    "budgets_over",
    "hold_open_micros",
    "hold_charged_micros",
)
QUOTED: Final = ("held_micros", "likely_micros", "spendable_micros", "rates", "dropped_gpu_types")

HeldAmount = Annotated[
    int | None,
    typer.Argument(
        metavar="AMOUNT", parser=micros, help="Credits to hold; or say --run and GPUs instead."
    ),
]
Run = Annotated[
    int | None,
    typer.Option(metavar="DURATION", parser=seconds, help="Hold what running so long can cost."),
]
Likely = Annotated[
    int | None,
    typer.Option(metavar="DURATION", parser=seconds, help="How long it will likely run."),
]
User = Annotated[
    str | None, typer.Option(metavar="ID", parser=uuid, help="Who spends; the key's if not given.")
]
GpuType = Annotated[str | None, typer.Option(help="Such as H100.")]
GpuCount = Annotated[int | None, typer.Option(min=0, help="How many GPUs.")]
Region = Annotated[str | None, typer.Option(help="Where it runs.")]
JobKind = Annotated[str | None, typer.Option(help="What kind of job it is for.")]
Class = Annotated[str | None, typer.Option("--class", help="Priority class of the job.")]
Job = Annotated[str | None, typer.Option(help="Which job it is for.")]
RunTotal = Annotated[
    int | None,
    typer.Option(
        metavar="DURATION", parser=seconds, help="Run time of the attempt so far, instead."
    ),
]
Attempt = Annotated[int | None, typer.Option(min=1, help="Which attempt; the first if not given.")]


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
    """What a hold is for, as it is sent; a GPU type without a count means one GPU."""
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
    """The body that asks for a hold, or for a quote of one."""
    gpus = context is not None and context.get("gpu_type") and context.get("gpu_count")
    if (amount is None) == (run is None) or (run is not None and not gpus):
        raise Misused("say an AMOUNT, or --run with --gpu-type and --gpu-count")
    return {
        "account_id": account,
        "amount_micros": amount,
        "run_ms_max": _ms(run),
        "user_id": user,
        "ttl_seconds": ttl,
        "context": context,
    }


def quoted(call: Call, body: Mapping[str, Any], likely: int | None) -> None:
    """Print a quote, and exit as the hold itself would."""
    ask = {**body, "likely_run_ms": _ms(likely)}
    told = call.post("/v1/quotes", ask, (*QUOTED, "forbidden"), text=told_to_people)
    forbidden = told["forbidden"]
    if forbidden:
        raise typer.Exit(exit_code(forbidden[0]["code"], forbidden[0]["status"]))


def told_to_people(body: Mapping[str, Any]) -> str:
    """A quote, with the verdict first."""
    verdict = [("verdict", "refused" if body["forbidden"] else "it can be held")]
    because = [("because", told_briefly(problem)) for problem in body["forbidden"]]
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
            metavar="DURATION", parser=seconds, help="It is released after so long: 1h, 30m."
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
        bool, typer.Option("--dry-run", help="Only say what it would cost and what forbids it.")
    ] = False,
    id: NewId = None,
    output: Output = Format.TABLE,
    key: Key = None,
) -> None:
    """Reserve credits before the work starts: all of it or nothing."""
    call = Call(output, key)
    context = context_of(gpu_type, gpu_count, region, job_kind, priority_class, job)
    body = asked(account, amount, run, user, ttl, context)
    if dry_run:
        quoted(call, body, None)
    else:
        call.post("/v1/holds", {**body, "id": id}, WHOLE)


shows(app, "/v1/holds", "A hold as it is.", WHOLE)


lists(app, "/v1/holds", "The holds of an org.", LISTED, WHOLE)


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
        typer.Option(metavar="TIME", help=f"When it was used, if known late: {TIMES}."),
    ] = None,
    output: Output = Format.TABLE,
    key: Key = None,
) -> None:
    """Charge usage: an amount, or the run time so far."""
    if (amount is None) == (run_total is None):
        raise Misused("say an AMOUNT, or --run-total")
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
        typer.Argument(metavar="TOTAL", parser=micros, help="Credits used in all; else no more."),
    ] = None,
    run_total: RunTotal = None,
    attempt: Attempt = None,
    output: Output = Format.TABLE,
    key: Key = None,
) -> None:
    """Charge the last of it, refund the rest, close."""
    body = {"total_micros": total, "run_ms_total": _ms(run_total), "attempt": attempt}
    columns = (*CHANGED, "charge.id", "charge.amount_micros")
    Call(output, key).post(f"/v1/holds/{id}/settle", body, columns)


@app.command()
def release(id: Id, output: Output = Format.TABLE, key: Key = None) -> None:
    """Refund all that is open and close."""
    Call(output, key).post(f"/v1/holds/{id}/release", {}, CHANGED)


@app.command()
def refund(id: Id, amount: Amount, output: Output = Format.TABLE, key: Key = None) -> None:
    """Return a part of what is open; the hold stays open."""
    Call(output, key).post(f"/v1/holds/{id}/refund", {"amount_micros": amount}, CHANGED)


@app.command()
def extend(
    id: Id,
    add: Annotated[
        int | None, typer.Option(metavar="AMOUNT", parser=micros, help="Hold so much more.")
    ] = None,
    ttl: Annotated[
        int | None,
        typer.Option(metavar="DURATION", parser=seconds, help="It ends so long from now."),
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help=f"It ends then: {TIMES}.")
    ] = None,
    output: Output = Format.TABLE,
    key: Key = None,
) -> None:
    """Hold more, last longer, or both."""
    call = Call(output, key)
    expires_at = call.either(until, ttl, "--until and --ttl")
    if add is None and expires_at is None:
        raise Misused("say --add, --ttl or --until: how much more, or how much longer")
    body = {"amount_micros": add, "expires_at": expires_at}
    call.post(f"/v1/holds/{id}/extend", body, (*CHANGED, "expires_at"))
