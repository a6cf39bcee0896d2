"""`bursar prio`."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer

from bursar.cli.api_command import Call, Output
from bursar.cli.output import Format, table

app = typer.Typer(add_completion=False, rich_markup_mode=None)

COLUMNS: Final = ("number", "job", "of", "group", "priority_class", "queued_at")


@app.command()
def prio(
    pool: Annotated[str, typer.Argument(metavar="POOL")] = "main",
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Maximum number of jobs.")] = 50,
    output: Output = Format.TABLE,
) -> None:
    """Show the queue of a pool in scheduling order. Tenants do not see other tenants' job ids."""
    path = f"/v1/pools/{pool}/explain"
    Call(output).get(path, COLUMNS, params={"limit": limit}, rows=_rows, text=_order)


def _rows(body: Any) -> list[dict[str, Any]]:
    return list(body["standing"])


def _order(body: Any) -> str:
    """Render the queue with account names instead of ids."""
    rows = [
        {**one, "job": one["job"].rpartition("/")[2], "of": _whose(one["of"], body["names"])}
        for one in _rows(body)
    ]
    return table(COLUMNS, rows)


def _whose(path: str, names: Mapping[str, str]) -> str:
    """A path down to the account. An org and its root account have one name, shown once."""
    parts = [names.get(one, one) for one in path.split(".") if not one.startswith("user ")]
    return " / ".join(dict.fromkeys(parts))
