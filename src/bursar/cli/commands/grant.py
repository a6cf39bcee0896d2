"""`bursar grant`."""

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from bursar.cli.api_command import (
    Account,
    After,
    All,
    Amount,
    Call,
    Id,
    Key,
    Limit,
    Misused,
    NewId,
    Output,
    micros,
    noun,
    seconds,
    share,
    shows,
)
from bursar.cli.output import Format
from bursar.cli.ranges import TIMES

app = noun("Credits that were issued.")

TERMS: Final = (
    "id",
    "account_id",
    "kind",
    "amount_micros",
    "priority",
    "issued_at",
    "starts_at",
    "expires_at",
    "policy",
    "source",
    "external_ref",
    "parent_id",
    "recurrence_id",
)
RECURRENCE: Final = (
    "id",
    "account_id",
    "kind",
    "amount_micros",
    "every",
    "roll_over_max_micros",
    "next_at",
)
LISTED: Final = (
    "id",
    "kind",
    "amount_micros",
    "owned.available_micros",
    "owned.held_micros",
    "owned.spent_micros",
    "expires_at",
)
NOW: Final = (
    *TERMS,
    *(
        f"owned.{part}_micros"
        for part in ("available", "held", "spent", "lapsed", "revoked", "moved")
    ),
)
TAKEN: Final = ("grant_id", "revoked_micros", "voided")
LISTS: Final = ("gpu_types", "regions", "account_ids", "job_kinds", "priority_classes")


class Kind(StrEnum):
    """What the credits are."""

    PAID = "paid"
    GRANT = "grant"
    PROMO = "promo"


class Every(StrEnum):
    """How often they are issued."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"


ExpiresIn = Annotated[
    int | None,
    typer.Option(metavar="DURATION", parser=seconds, help="They expire after so long: 90d, 36h."),
]
ExpiresAt = Annotated[str | None, typer.Option(metavar="TIME", help=f"They expire then: {TIMES}.")]


@app.command()
def create(
    account: Account,
    amount: Amount,
    kind: Annotated[Kind, typer.Option(help="What the credits are.")],
    expires_in: ExpiresIn = None,
    expires_at: ExpiresAt = None,
    starts_at: Annotated[
        str | None, typer.Option(metavar="TIME", help="Spendable from then on.")
    ] = None,
    priority: Annotated[int | None, typer.Option(help="Lower is spent first.")] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUES",
            help="What they may be spent on, such as gpu_types=H100,A100, regions=eu,"
            " max_share=50% or refundable=no; may be given several times. Or all in JSON.",
        ),
    ] = None,
    every: Annotated[Every | None, typer.Option(help="Issue them again every period.")] = None,
    roll_over: Annotated[
        int | None,
        typer.Option(
            metavar="AMOUNT", parser=micros, help="With --every: most that is kept for the next."
        ),
    ] = None,
    ref: Annotated[
        str | None, typer.Option(help="Name of the payment; it is issued for only once.")
    ] = None,
    source: Annotated[str | None, typer.Option(help="Where they come from, in a word.")] = None,
    id: NewId = None,
    output: Output = Format.TABLE,
    key: Key = None,
) -> None:
    """Issue credits, once or again and again."""
    if roll_over is not None and every is None:
        raise Misused("--roll-over goes with --every")
    call = Call(output, key)
    recurring = None if every is None else {"every": every.value}
    if recurring is not None and roll_over is not None:
        recurring |= {"roll_over_max_micros": roll_over}  # type: ignore[dict-item]
    body = {
        "account_id": account,
        "amount_micros": amount,
        "kind": kind.value,
        "starts_at": call.time(starts_at),
        "expires_at": call.either(expires_at, expires_in, "--expires-at and --expires-in"),
        "priority": priority,
        "policy": policy_of(policy) if policy else None,
        "external_ref": ref,
        "source": source,
        "recurring": recurring,
        "id": id,
    }
    call.post("/v1/grants", body, TERMS if every is None else RECURRENCE)


def policy_of(given: Sequence[str]) -> dict[str, Any]:
    """A policy from `name=value,value` pairs, or from JSON."""
    found: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        try:
            if text.startswith("{"):
                found |= json.loads(text)
            elif not equals:
                raise ValueError("write NAME=VALUES")
            else:
                found |= _part(name.strip(), value.strip())
        except ValueError as error:
            raise typer.BadParameter(f"{text[:40]!r}: {error}", param_hint="--policy") from None
    return found


def _part(name: str, value: str) -> Mapping[str, Any]:
    if name in LISTS:
        return {name: [one.strip() for one in value.split(",") if one.strip()]}
    if name in ("max_share", "max_share_ppm"):
        return {"max_share_ppm": share(value)}
    if name == "refundable" and value in ("yes", "no", "true", "false"):
        return {name: value in ("yes", "true")}
    known = ", ".join((*LISTS, "max_share", "refundable (yes or no)"))
    raise ValueError(f"a policy has {known}")


@app.command("list")
def list_(
    account: Account,
    limit: Limit = 100,
    after: After = None,
    all: All = False,
    output: Output = Format.TABLE,
) -> None:
    """The grants an account was issued, the oldest first."""
    columns = LISTED if output is Format.TABLE else NOW
    Call(output).page("/v1/grants", columns, {"account_id": account}, limit, after, all)


shows(app, "/v1/grants", "A grant, and what is in it now.", NOW)


@app.command()
def revoke(id: Id, output: Output = Format.TABLE, key: Key = None) -> None:
    """Take back what is available of a grant."""
    Call(output, key).post(f"/v1/grants/{id}/revoke", {}, TAKEN)


@app.command()
def void(id: Id, output: Output = Format.TABLE, key: Key = None) -> None:
    """Undo a grant as never issued; only if nothing of it was used."""
    Call(output, key).post(f"/v1/grants/{id}/void", {}, TAKEN)


@app.command()
def extend(
    id: Id,
    expires_in: ExpiresIn = None,
    expires_at: ExpiresAt = None,
    never: Annotated[bool, typer.Option("--never", help="They expire no more.")] = False,
    output: Output = Format.TABLE,
    key: Key = None,
) -> None:
    """Let a grant expire later."""
    call = Call(output, key)
    until = call.either(expires_at, expires_in, "--expires-at and --expires-in")
    if never == (until is not None):
        raise Misused("say until when: with --expires-at, --expires-in or --never")
    # Here null is a value of its own: it says that there is no end.
    call.post_whole(f"/v1/grants/{id}/extend", {"expires_at": until}, ("grant_id", "expires_at"))
