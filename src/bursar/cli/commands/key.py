"""`bursar key`."""

from enum import StrEnum
from typing import Annotated, Final

import typer

from bursar.cli.api_command import (
    ApiCall,
    Id,
    Key,
    NewId,
    Org,
    Output,
    UsageError,
    add_list_command,
    duration_parser,
    id_parser,
    make_group,
)
from bursar.cli.output import Format, print_note

app = make_group("Manage API keys.")
LIST_COLUMNS: Final = ("id", "name", "scopes", "account_id", "user_id", "expires_at")
COLUMNS: Final = (*LIST_COLUMNS, "org_id")
CREATED_COLUMNS: Final = ("key", *COLUMNS)


class KeyScope(StrEnum):
    """A permission of a key."""

    READ = "read"
    SPEND = "spend"
    MANAGE = "manage"
    ISSUE = "issue"
    OPERATOR = "operator"
    WORK = "work"


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    scope: Annotated[
        list[KeyScope] | None, typer.Option(help="Permission of the key. Repeatable.")
    ] = None,
    node: Annotated[
        str | None,
        typer.Option(
            metavar="POOL/NODE", help="Limit the key to the agent of this node. For operators."
        ),
    ] = None,
    account: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            parser=id_parser,
            help="Limit the key to this account and the accounts below it.",
        ),
    ] = None,
    user: Annotated[
        str | None,
        typer.Option(metavar="ID", parser=id_parser, help="User who spends with this key."),
    ] = None,
    expires_in: Annotated[
        int | None,
        typer.Option(
            metavar="DURATION", parser=duration_parser, help="Expire after this time: 90d."
        ),
    ] = None,
    expires_at: Annotated[
        str | None, typer.Option(metavar="TIME", help="Expire at this time.")
    ] = None,
    id: NewId = None,
    output: Output = Format.TABLE,
    key: Key = None,
) -> None:
    """Create a key. Its secret is shown only once."""
    if not scope and node is None:
        raise UsageError("add --scope or --node")
    call = ApiCall(output, key)
    body = {
        "name": name,
        "scopes": [granted.value for granted in scope or [KeyScope.WORK]],
        "node": node,
        "account_id": account,
        "user_id": user,
        "expires_at": call.parse_time_or_duration(
            expires_at, expires_in, "--expires-at and --expires-in"
        ),
        "id": id,
    }
    call.post("/v1/keys", body, CREATED_COLUMNS)
    print_note("save the key now; it is not shown again")


add_list_command(
    app,
    "/v1/keys",
    "List the keys of an org, or the operators' keys. Secrets are never shown.",
    LIST_COLUMNS,
    COLUMNS,
)


@app.command()
def rotate(
    id: Id,
    overlap: Annotated[
        int | None,
        typer.Option(
            metavar="DURATION",
            parser=duration_parser,
            help="Time for which the old secret stays valid.",
        ),
    ] = None,
    org: Org = None,
    output: Output = Format.TABLE,
    key: Key = None,
) -> None:
    """Replace a key's secret. The old secret stays valid for the overlap."""
    body = {"overlap_seconds": overlap}
    ApiCall(output, key).post(
        f"/v1/keys/{id}/rotate", body, CREATED_COLUMNS, params={"org_id": org}
    )
    print_note("save the key now; it is not shown again")


@app.command()
def revoke(id: Id, org: Org = None, output: Output = Format.TABLE, key: Key = None) -> None:
    """Revoke a key immediately."""
    ApiCall(output, key).delete(f"/v1/keys/{id}", ("id", "org_id"), {"org_id": org})
