"""`bursar org`."""

from typing import Annotated, Final

import typer

from bursar.cli.api_command import (
    After,
    All,
    ApiCall,
    Key,
    Limit,
    NewId,
    Output,
    add_show_command,
    make_group,
)
from bursar.cli.output import Format

app = make_group("Manage orgs (tenants).")
COLUMNS: Final = ("id", "name", "account_id")


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    time_zone: Annotated[
        str, typer.Option(help="Time zone of its days and months, such as Europe/Berlin.")
    ] = "UTC",
    tier: Annotated[str | None, typer.Option(help="Tier, which sets its default budgets.")] = None,
    id: NewId = None,
    output: Output = Format.TABLE,
    key: Key = None,
) -> None:
    """Create an org and its root account."""
    body = {"name": name, "time_zone": time_zone, "tier": tier, "id": id}
    ApiCall(output, key).post("/v1/orgs", body, COLUMNS)


@app.command("list")
def list_(
    limit: Limit = 100, after: After = None, all: All = False, output: Output = Format.TABLE
) -> None:
    """List all orgs. For operators."""
    ApiCall(output).get_page("/v1/orgs", COLUMNS, {}, limit, after, all)


add_show_command(app, "/v1/orgs", "Show an org.", COLUMNS)
