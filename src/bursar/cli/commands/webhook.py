"""`bursar webhook`."""

from enum import StrEnum
from typing import Annotated, Final

import typer

from bursar.cli.api_command import (
    After,
    All,
    Call,
    Id,
    Key,
    Limit,
    NewId,
    Org,
    Output,
    lists,
    noun,
    seconds,
    uuid,
)
from bursar.cli.output import Format, note

app = noun("Be told what happens.")
COLUMNS: Final = ("id", "url", "events", "account_id")
MADE: Final = (*COLUMNS, "secret")
DELIVERIES: Final = (
    "number",
    "status",
    "attempts",
    "response_code",
    "error",
    "last_at",
    "next_at",
    "message_id",
)


class Status(StrEnum):
    """What became of a delivery."""

    PENDING = "pending"
    DELIVERED = "delivered"
    GIVEN_UP = "given_up"


@app.command()
def create(
    url: Annotated[str, typer.Argument(metavar="URL", help="Where to tell it.")],
    event: Annotated[
        list[str] | None,
        typer.Option(help="Only this kind of event; may be given several times."),
    ] = None,
    account: Annotated[
        str | None,
        typer.Option(metavar="ID", parser=uuid, help="Only of this account and all below."),
    ] = None,
    org: Org = None,
    id: NewId = None,
    output: Output = Format.TABLE,
    key: Key = None,
) -> None:
    """Be told what happens from now on; the secret that signs is shown this once."""
    body = {"url": url, "events": event or None, "account_id": account, "org_id": org, "id": id}
    Call(output, key).post("/v1/webhooks", body, MADE)
    note("keep the secret now: it is not shown again")


lists(app, "/v1/webhooks", "The webhooks of an org; never their secrets.", COLUMNS)


@app.command()
def show(id: Id, org: Org = None, output: Output = Format.TABLE) -> None:
    """A webhook; never its secret."""
    Call(output).get(f"/v1/webhooks/{id}", COLUMNS, {"org_id": org})


@app.command()
def delete(id: Id, org: Org = None, output: Output = Format.TABLE, key: Key = None) -> None:
    """Tell a webhook nothing more."""
    Call(output, key).delete(f"/v1/webhooks/{id}", ("id",), {"org_id": org})


@app.command()
def rotate(
    id: Id,
    overlap: Annotated[
        int | None,
        typer.Option(metavar="DURATION", parser=seconds, help="The old secret signs so long yet."),
    ] = None,
    org: Org = None,
    output: Output = Format.TABLE,
    key: Key = None,
) -> None:
    """Give a webhook another secret; the old one signs a while longer."""
    columns = ("id", "secret", "overlap_seconds")
    body = {"overlap_seconds": overlap}
    Call(output, key).post(f"/v1/webhooks/{id}/rotate", body, columns, params={"org_id": org})
    note("keep the secret now: it is not shown again")


@app.command()
def deliveries(
    id: Id,
    status: Annotated[Status | None, typer.Option(help="Only those.")] = None,
    org: Org = None,
    limit: Limit = 100,
    after: After = None,
    all: All = False,
    output: Output = Format.TABLE,
) -> None:
    """What a webhook was told, and what came of it."""
    params = {"org_id": org, "status": None if status is None else status.value}
    Call(output).page(f"/v1/webhooks/{id}/deliveries", DELIVERIES, params, limit, after, all)


@app.command()
def resend(
    id: Id,
    number: Annotated[
        int, typer.Argument(metavar="NUMBER", min=1, help="Of the event, as deliveries lists it.")
    ],
    org: Org = None,
    output: Output = Format.TABLE,
    key: Key = None,
) -> None:
    """Deliver something again, under the same id."""
    path = f"/v1/webhooks/{id}/deliveries/{number}/resend"
    columns = ("webhook_id", "number", "message_id")
    Call(output, key).post(path, {}, columns, params={"org_id": org})
