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
    ApiCall,
    Id,
    Key,
    Limit,
    NewId,
    Output,
    UsageError,
    add_show_command,
    amount_parser,
    duration_parser,
    make_group,
    parse_share,
)
from bursar.cli.output import Format
from bursar.cli.ranges import TIMES

app = make_group("Issue credits and manage grants.")

ISSUED_COLUMNS: Final = (
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
RECURRENCE_COLUMNS: Final = (
    "id",
    "account_id",
    "kind",
    "amount_micros",
    "every",
    "roll_over_max_micros",
    "next_at",
)
LIST_COLUMNS: Final = (
    "id",
    "kind",
    "amount_micros",
    "owned.available_micros",
    "owned.held_micros",
    "owned.spent_micros",
    "expires_at",
)
COLUMNS: Final = (
    *ISSUED_COLUMNS,
    *(
        f"owned.{part}_micros"
        for part in ("available", "held", "spent", "lapsed", "revoked", "moved")
    ),
)
REVOKED_COLUMNS: Final = ("grant_id", "revoked_micros", "voided")
LIST_FIELDS: Final = ("gpu_types", "regions", "account_ids", "job_kinds", "priority_classes")


class Kind(StrEnum):
    """The kind of credits."""

    PAID = "paid"
    GRANT = "grant"
    PROMO = "promo"


class GrantPeriod(StrEnum):
    """How often a recurring grant is issued."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"


ExpiresIn = Annotated[
    int | None,
    typer.Option(
        metavar="DURATION", parser=duration_parser, help="Expire after this time: 90d, 36h."
    ),
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
    every: Annotated[
        GrantPeriod | None, typer.Option(help="Issue the grant again every period.")
    ] = None,
    roll_over: Annotated[
        int | None,
        typer.Option(
            metavar="AMOUNT", parser=amount_parser, help="With --every: maximum carried over."
        ),
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
        raise UsageError("--roll-over requires --every")
    call = ApiCall(output, key)
    recurring = None if every is None else {"every": every.value}
    if recurring is not None and roll_over is not None:
        recurring |= {"roll_over_max_micros": roll_over}  # type: ignore[dict-item]
    body = {
        "account_id": account,
        "amount_micros": amount,
        "kind": kind.value,
        "starts_at": call.parse_time(starts_at),
        "expires_at": call.parse_time_or_duration(
            expires_at, expires_in, "--expires-at and --expires-in"
        ),
        "priority": priority,
        "policy": parse_grant_policy(policy) if policy else None,
        "external_ref": ref,
        "source": source,
        "recurring": recurring,
        "id": id,
    }
    call.post("/v1/grants", body, ISSUED_COLUMNS if every is None else RECURRENCE_COLUMNS)


def parse_grant_policy(texts: Sequence[str]) -> dict[str, Any]:
    """Parse a policy from `name=value,value` pairs or JSON."""
    policy: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        try:
            if text.startswith("{"):
                policy |= json.loads(text)
            elif not equals:
                raise ValueError("write NAME=VALUES")
            else:
                policy |= _parse_field(name.strip(), value.strip())
        except ValueError as error:
            raise typer.BadParameter(f"{text[:40]!r}: {error}", param_hint="--policy") from None
    return policy


def _parse_field(name: str, value: str) -> Mapping[str, Any]:
    if name in LIST_FIELDS:
        return {name: [item.strip() for item in value.split(",") if item.strip()]}
    if name in ("max_share", "max_share_ppm"):
        return {"max_share_ppm": parse_share(value)}
    if name == "refundable" and value in ("yes", "no", "true", "false"):
        return {name: value in ("yes", "true")}
    known = ", ".join((*LIST_FIELDS, "max_share", "refundable (yes or no)"))
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
    columns = LIST_COLUMNS if output is Format.TABLE else COLUMNS
    ApiCall(output).get_page("/v1/grants", columns, {"account_id": account}, limit, after, all)


add_show_command(app, "/v1/grants", "Show a grant and its current balance.", COLUMNS)


@app.command()
def revoke(id: Id, output: Output = Format.TABLE, key: Key = None) -> None:
    """Revoke the available credits of a grant."""
    ApiCall(output, key).post(f"/v1/grants/{id}/revoke", {}, REVOKED_COLUMNS)


@app.command()
def void(id: Id, output: Output = Format.TABLE, key: Key = None) -> None:
    """Void a grant that was not used, as if it had never been issued."""
    ApiCall(output, key).post(f"/v1/grants/{id}/void", {}, REVOKED_COLUMNS)


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
    call = ApiCall(output, key)
    until = call.parse_time_or_duration(expires_at, expires_in, "--expires-at and --expires-in")
    if never == (until is not None):
        raise UsageError("add --expires-at, --expires-in or --never")
    # A null means that the grant never expires.
    call.post_with_nulls(
        f"/v1/grants/{id}/extend", {"expires_at": until}, ("grant_id", "expires_at")
    )
