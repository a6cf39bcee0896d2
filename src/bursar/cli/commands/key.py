"""`bursar key`."""

from enum import StrEnum
from typing import Annotated, Final

import typer

from bursar.cli.api_command import (
    Call,
    Id,
    Key,
    Misused,
    NewId,
    Org,
    Output,
    lists,
    noun,
    seconds,
    uuid,
)
from bursar.cli.output import Format, note

app = noun("Keys to the HTTP interface.")
LISTED: Final = ("id", "name", "scopes", "account_id", "user_id", "expires_at")
COLUMNS: Final = (*LISTED, "org_id")
MADE: Final = ("key", *COLUMNS)


class Scope(StrEnum):
    """What a key may do."""

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
        list[Scope] | None, typer.Option(help="What it may do; may be given several times.")
    ] = None,
    node: Annotated[
        str | None,
        typer.Option(
            metavar="POOL/NODE", help="For the agent of this node and nothing else; for operators."
        ),
    ] = None,
    account: Annotated[
        str | None,
        typer.Option(metavar="ID", parser=uuid, help="It works for this account and all below."),
    ] = None,
    user: Annotated[
        str | None, typer.Option(metavar="ID", parser=uuid, help="Who spends with it.")
    ] = None,
    expires_in: Annotated[
        int | None,
        typer.Option(metavar="DURATION", parser=seconds, help="It counts for so long: 90d."),
    ] = None,
    expires_at: Annotated[
        str | None, typer.Option(metavar="TIME", help="It counts until then.")
    ] = None,
    id: NewId = None,
    output: Output = Format.TABLE,
    key: Key = None,
) -> None:
    """Make a key; it is shown this once."""
    if not scope and node is None:
        raise Misused("say what it may do with --scope, or for which node it is with --node")
    call = Call(output, key)
    body = {
        "name": name,
        "scopes": [one.value for one in scope or [Scope.WORK]],
        "node": node,
        "account_id": account,
        "user_id": user,
        "expires_at": call.either(expires_at, expires_in, "--expires-at and --expires-in"),
        "id": id,
    }
    call.post("/v1/keys", body, MADE)
    note("keep the key now: it is not shown again")


lists(
    app,
    "/v1/keys",
    "The keys of an org, or without one the operators' own; never their secrets.",
    LISTED,
    COLUMNS,
)


@app.command()
def rotate(
    id: Id,
    overlap: Annotated[
        int | None,
        typer.Option(metavar="DURATION", parser=seconds, help="The old secret counts so long yet."),
    ] = None,
    org: Org = None,
    output: Output = Format.TABLE,
    key: Key = None,
) -> None:
    """Give a key a new secret; the old one counts a while longer."""
    body = {"overlap_seconds": overlap}
    Call(output, key).post(f"/v1/keys/{id}/rotate", body, MADE, params={"org_id": org})
    note("keep the key now: it is not shown again")


@app.command()
def revoke(id: Id, org: Org = None, output: Output = Format.TABLE, key: Key = None) -> None:
    """Revoke a key, at once."""
    Call(output, key).delete(f"/v1/keys/{id}", ("id", "org_id"), {"org_id": org})
