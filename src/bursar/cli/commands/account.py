"""`bursar account`."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final

import typer

from bursar.cli.api_command import (
    ApiCall,
    Key,
    NewId,
    Org,
    Output,
    add_list_command,
    add_show_command,
    id_parser,
    make_group,
)
from bursar.cli.output import Format, make_printable, render_card

app = make_group("Manage the account tree of an org.")
LIST_COLUMNS: Final = ("id", "name", "parent_id", "time_zone")
COLUMNS: Final = (*LIST_COLUMNS, "org_id")


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    parent: Annotated[
        str,
        typer.Option("--parent", metavar="ID", parser=id_parser, help="Id of the parent account."),
    ],
    time_zone: Annotated[
        str | None, typer.Option(help="Time zone of its days and months. Default: its parent's.")
    ] = None,
    id: NewId = None,
    output: Output = Format.TABLE,
    key: Key = None,
) -> None:
    """Create an account."""
    body = {"name": name, "parent_id": parent, "time_zone": time_zone, "id": id}
    ApiCall(output, key).post("/v1/accounts", body, COLUMNS)


add_list_command(
    app, "/v1/accounts", "List the accounts of an org, ordered by id.", LIST_COLUMNS, COLUMNS
)


add_show_command(app, "/v1/accounts", "Show an account.", COLUMNS)


@app.command()
def tree(org: Org = None, output: Output = Format.TABLE) -> None:
    """Show all accounts of an org as a tree."""
    params = {"org_id": org}
    ApiCall(output).get_page("/v1/accounts", COLUMNS, params, 1_000, None, True, text=draw_tree)


def draw_tree(body: Mapping[str, Any]) -> str:
    """Draw the account tree, siblings ordered by name."""
    ids = {account["id"] for account in body["items"]}
    children: dict[str | None, list[Mapping[str, Any]]] = {}
    for account in sorted(body["items"], key=lambda account: (account["name"], account["id"])):
        parent = account["parent_id"] if account["parent_id"] in ids else None  # not visible
        children.setdefault(parent, []).append(account)
    lines = list(_draw_branches(children, None, ""))
    return render_card(lines) if lines else "none"


def _draw_branches(
    children_of: Mapping[str | None, list[Mapping[str, Any]]], parent: str | None, indent: str
) -> Iterator[tuple[str, str]]:
    children = children_of.get(parent, [])
    for position, account in enumerate(children, 1):
        is_last = position == len(children)
        mark = "" if parent is None else "└─ " if is_last else "├─ "
        yield f"{indent}{mark}{make_printable(account['name'])}", account["id"]
        deeper = "" if parent is None else "   " if is_last else "│  "
        yield from _draw_branches(children_of, account["id"], indent + deeper)
