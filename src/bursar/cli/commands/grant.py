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

app = noun("Issue credits and manage grants.")

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
    """The kind of credits."""

    PAID = "paid"
    GRANT = "grant"
    PROMO = "promo"


class Every(StrEnum):
    """How often a recurring grant is issued."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"


ExpiresIn = Annotated[
    int | None,
    typer.Option(metavar="DURATION", parser=seconds, help="Expire after this time: 90d, 36h."),
]
ExpiresAt = Annotated[
    str | None, typer.Option(metavar="TIME", help=f"Expire at this time: {TIMES}.")
]


@app.command()
def create(
    account: Account,
    amount: Amount,
    kind: Annotated[Kind, typer.Option(help="Kind of credits.")],
    expires_in: ExpiresIn = None,
    expires_at: ExpiresAt = None,
    starts_at: Annotated[
        str | None, typer.Option(metavar="TIME", help="Spendable from this time on.")
    ] = None,
    priority: Annotated[int | None, typer.Option(help="Lower values are spent first.")] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUES",
            help="Restrict what the credits pay for: gpu_types=H100,A100, regions=eu,"
            " max_share=50%, refundable=no, or a JSON object. Repeatable.",
        ),
    ] = None,
    every: Annotated[Every | None, typer.Option(help="Issue the grant again every period.")] = None,
    roll_over: Annotated[
        int | None,
        typer.Option(metavar="AMOUNT", parser=micros, help="With --every: maximum carried over."),
    ] = None,
    ref: Annotated[
        str | None, typer.Option(help="Payment reference. A reference can be used once.")
    ] = None,
    source: Annotated[str | None, typer.Option(help="Source of the credits.")] = None,
    id: NewId = None,
    output: Output = Format.TABLE,
    key: Key = None,
) -> None:
    """Issue credits, once or every period."""
    if roll_over is not None and every is None:
        raise Misused("--roll-over requires --every")
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
    """Parse a policy from `name=value,value` pairs or JSON."""
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
    raise ValueError(f"a policy may contain {known}")


@app.command("list")
def list_(
    account: Account,
    limit: Limit = 100,
    after: After = None,
    all: All = False,
    output: Output = Format.TABLE,
) -> None:
    """List the grants of an account, oldest first."""
    columns = LISTED if output is Format.TABLE else NOW
    Call(output).page("/v1/grants", columns, {"account_id": account}, limit, after, all)


shows(app, "/v1/grants", "Show a grant and its current balance.", NOW)


@app.command()
def revoke(id: Id, output: Output = Format.TABLE, key: Key = None) -> None:
    """Revoke the available credits of a grant."""
    Call(output, key).post(f"/v1/grants/{id}/revoke", {}, TAKEN)


@app.command()
def void(id: Id, output: Output = Format.TABLE, key: Key = None) -> None:
    """Void a grant that was not used, as if it had never been issued."""
    Call(output, key).post(f"/v1/grants/{id}/void", {}, TAKEN)


@app.command()
def extend(
    id: Id,
    expires_in: ExpiresIn = None,
    expires_at: ExpiresAt = None,
    never: Annotated[bool, typer.Option("--never", help="Remove the expiry.")] = False,
    output: Output = Format.TABLE,
    key: Key = None,
) -> None:
    """Extend the expiry of a grant."""
    call = Call(output, key)
    until = call.either(expires_at, expires_in, "--expires-at and --expires-in")
    if never == (until is not None):
        raise Misused("add --expires-at, --expires-in or --never")
    # A null means that the grant never expires.
    call.post_whole(f"/v1/grants/{id}/extend", {"expires_at": until}, ("grant_id", "expires_at"))
