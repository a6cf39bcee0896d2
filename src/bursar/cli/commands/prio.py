"""`bursar prio`."""

from typing import Annotated, Any, Final

import typer

from bursar.cli.calling import Call, Output
from bursar.cli.output import Format, named

app = typer.Typer(add_completion=False, rich_markup_mode=None)

COLUMNS: Final = ("number", "job", "of", "group", "priority_class", "queued_at")


@app.command()
def prio(
    pool: Annotated[str, typer.Argument(metavar="POOL")] = "main",
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Jobs that are listed.")] = 50,
    output: Output = Format.TABLE,
) -> None:
    """Who comes next in a pool, the first first; others' jobs are not named to tenants."""
    Call(output).get(f"/v1/pools/{pool}/explain", COLUMNS, params={"limit": limit}, rows=_rows)


def _rows(body: Any) -> list[dict[str, Any]]:
    return [{**one, "of": named(one["of"], body["names"])} for one in body["standing"]]
