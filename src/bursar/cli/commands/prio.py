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
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Jobs that are listed.")] = 50,
    output: Output = Format.TABLE,
) -> None:
    """Who comes next in a pool, the first first; others' jobs are not named to tenants."""
    path = f"/v1/pools/{pool}/explain"
    Call(output).get(path, COLUMNS, params={"limit": limit}, rows=_rows, text=_order)


def _rows(body: Any) -> list[dict[str, Any]]:
    return list(body["standing"])


def _order(body: Any) -> str:
    """The same with names: a job by its own id, whose it is by what accounts are called."""
    rows = [
        {**one, "job": one["job"].rpartition("/")[2], "of": _whose(one["of"], body["names"])}
        for one in _rows(body)
    ]
    return table(COLUMNS, rows)


def _whose(path: str, names: Mapping[str, str]) -> str:
    """A path down to the account; an org and its root account are called alike, and once."""
    parts = [names.get(one, one) for one in path.split(".") if not one.startswith("user ")]
    return " / ".join(dict.fromkeys(parts))
