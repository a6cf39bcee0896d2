"""`bursar account`."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final

import typer

from bursar.cli.api_command import Call, Key, NewId, Org, Output, lists, noun, shows, uuid
from bursar.cli.output import Format, card, printable

app = noun("Manage the account tree of an org.")
LISTED: Final = ("id", "name", "parent_id", "time_zone")
COLUMNS: Final = (*LISTED, "org_id")


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    parent: Annotated[
        str, typer.Option("--parent", metavar="ID", parser=uuid, help="Id of the parent account.")
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
    Call(output, key).post("/v1/accounts", body, COLUMNS)


lists(app, "/v1/accounts", "List the accounts of an org, ordered by id.", LISTED, COLUMNS)


shows(app, "/v1/accounts", "Show an account.", COLUMNS)


@app.command()
def tree(org: Org = None, output: Output = Format.TABLE) -> None:
    """Show all accounts of an org as a tree."""
    params = {"org_id": org}
    Call(output).page("/v1/accounts", COLUMNS, params, 1_000, None, True, text=drawn)


def drawn(body: Mapping[str, Any]) -> str:
    """Draw the account tree, siblings ordered by name."""
    below: dict[str | None, list[Mapping[str, Any]]] = {}
    for one in sorted(body["items"], key=lambda one: (one["name"], one["id"])):
        below.setdefault(one["parent_id"], []).append(one)
    lines = list(_branches(below, None, ""))
    return card(lines) if lines else "none"


def _branches(
    below: Mapping[str | None, list[Mapping[str, Any]]], parent: str | None, indent: str
) -> Iterator[tuple[str, str]]:
    children = below.get(parent, [])
    for place, one in enumerate(children, 1):
        last = place == len(children)
        mark = "" if parent is None else "└─ " if last else "├─ "
        yield f"{indent}{mark}{printable(one['name'])}", one["id"]
        deeper = "" if parent is None else "   " if last else "│  "
        yield from _branches(below, one["id"], indent + deeper)
