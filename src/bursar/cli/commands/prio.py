"""`bursar prio`."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer

from bursar.cli.api_command import ApiCall, Output
from bursar.cli.output import Format, render_table

app = typer.Typer(add_completion=False, rich_markup_mode=None)

COLUMNS: Final = ("position", "job", "path", "group", "priority_class", "queued_at")
TABLE_COLUMNS: Final = ("position", "job", "account", "group", "priority_class", "queued_at")


@app.command()
def prio(
    pool: Annotated[str, typer.Argument(metavar="POOL")] = "main",
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Maximum number of jobs.")] = 50,
    output: Output = Format.TABLE,
) -> None:
    """Show the queue of a pool in scheduling order. Tenants do not see other tenants' job ids."""
    path = f"/v1/pools/{pool}/explain"
    ApiCall(output).get(path, COLUMNS, params={"limit": limit}, rows=_rows, text=_order)


def _rows(body: Any) -> list[dict[str, Any]]:
    return list(body["queue"])


def _order(body: Any) -> str:
    """Render the queue with account names instead of ids."""
    rows = [
        {
            **entry,
            "job": entry["job"].rpartition("/")[2],
            "account": account_name(entry["path"], body["names"]),
            "group": entry["group"].replace("_", " "),
        }
        for entry in _rows(body)
    ]
    return render_table(TABLE_COLUMNS, rows)


def account_name(path: str, names: Mapping[str, str]) -> str:
    """A path down to the account. An org and its root account have one name, shown once."""
    parts = [names.get(id, id) for id in path.split(".") if not id.startswith("user ")]
    return " / ".join(dict.fromkeys(parts))
