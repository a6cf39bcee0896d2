"""`bursar webhook`."""

from enum import StrEnum
from typing import Annotated, Final

import typer

from bursar.cli.api_command import (
    After,
    All,
    ApiCall,
    Id,
    Key,
    Limit,
    NewId,
    Org,
    Output,
    add_list_command,
    duration_parser,
    id_parser,
    make_group,
)
from bursar.cli.output import Format, print_note

app = make_group("Send events to a URL.")
COLUMNS: Final = ("id", "url", "events", "account_id")
CREATED_COLUMNS: Final = (*COLUMNS, "secret")
DELIVERY_COLUMNS: Final = (
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
    """The status of a delivery."""

    PENDING = "pending"
    DELIVERED = "delivered"
    GIVEN_UP = "given_up"


@app.command()
def create(
    url: Annotated[str, typer.Argument(metavar="URL", help="URL that receives the events.")],
    event: Annotated[
        list[str] | None,
        typer.Option(help="Only this kind of event. Repeatable."),
    ] = None,
    account: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            parser=id_parser,
            help="Only events of this account and the accounts below it.",
        ),
    ] = None,
    org: Org = None,
    id: NewId = None,
    output: Output = Format.TABLE,
    key: Key = None,
) -> None:
    """Create a webhook. The secret that signs its messages is shown only once."""
    body = {"url": url, "events": event or None, "account_id": account, "org_id": org, "id": id}
    ApiCall(output, key).post("/v1/webhooks", body, CREATED_COLUMNS)
    print_note("save the secret now; it is not shown again")


add_list_command(
    app, "/v1/webhooks", "List the webhooks of an org. Secrets are never shown.", COLUMNS
)


@app.command()
def show(id: Id, org: Org = None, output: Output = Format.TABLE) -> None:
    """Show a webhook, without its secret."""
    ApiCall(output).get(f"/v1/webhooks/{id}", COLUMNS, {"org_id": org})


@app.command()
def delete(id: Id, org: Org = None, output: Output = Format.TABLE, key: Key = None) -> None:
    """Delete a webhook."""
    ApiCall(output, key).delete(f"/v1/webhooks/{id}", ("id",), {"org_id": org})


@app.command()
def rotate(
    id: Id,
    overlap: Annotated[
        int | None,
        typer.Option(
            metavar="DURATION",
            parser=duration_parser,
            help="Time for which the old secret still signs.",
        ),
    ] = None,
    org: Org = None,
    output: Output = Format.TABLE,
    key: Key = None,
) -> None:
    """Replace a webhook's secret. The old secret also signs during the overlap."""
    columns = ("id", "secret", "overlap_seconds")
    body = {"overlap_seconds": overlap}
    ApiCall(output, key).post(f"/v1/webhooks/{id}/rotate", body, columns, params={"org_id": org})
    print_note("save the secret now; it is not shown again")


@app.command()
def deliveries(
    id: Id,
    status: Annotated[Status | None, typer.Option(help="Only deliveries with this status.")] = None,
    org: Org = None,
    limit: Limit = 100,
    after: After = None,
    all: All = False,
    output: Output = Format.TABLE,
) -> None:
    """List the deliveries of a webhook and their status."""
    params = {"org_id": org, "status": None if status is None else status.value}
    ApiCall(output).get_page(
        f"/v1/webhooks/{id}/deliveries", DELIVERY_COLUMNS, params, limit, after, all
    )


@app.command()
def resend(
    id: Id,
    number: Annotated[
        int,
        typer.Argument(
            metavar="NUMBER", min=1, help="Number of the event, as `deliveries` shows it."
        ),
    ],
    org: Org = None,
    output: Output = Format.TABLE,
    key: Key = None,
) -> None:
    """Deliver an event again, with the same message id."""
    path = f"/v1/webhooks/{id}/deliveries/{number}/resend"
    columns = ("webhook_id", "number", "message_id")
    ApiCall(output, key).post(path, {}, columns, params={"org_id": org})
