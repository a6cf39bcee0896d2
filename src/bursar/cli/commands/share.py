"""`bursar share`."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer

from bursar.cli.api_command import Call, Output
from bursar.cli.output import Format, table

app = typer.Typer(add_completion=False, rich_markup_mode=None)

COLUMNS: Final = (
    *("of", "weight", "part_ppm", "entitled_ppm", "gpus", "jobs", "waiting", "usage_micros"),
)
ROOT: Final = 2  # depth of an org's root account below its tier


@app.command()
def share(
    pool: Annotated[str, typer.Argument(metavar="POOL")] = "main", output: Output = Format.TABLE
) -> None:
    """Show current and entitled shares of a pool. Tenants see their own."""
    Call(output).get(f"/v1/pools/{pool}/explain", COLUMNS, rows=_rows, text=_tree)


def _rows(body: Any) -> list[dict[str, Any]]:
    return [{**one, "gpus": _gpus(one["milli_gpus"])} for one in body["shares"]]


def _tree(body: Any) -> str:
    """Render the shares as a tree of names."""
    rows = [{**one, "of": _place(one["of"], body["names"])} for one in _rows(body)]
    return table(COLUMNS, [one for one in rows if one["of"]])


def _place(path: str, names: Mapping[str, str]) -> str:
    """A node's indented name; empty for a root account, which duplicates its org."""
    *above, own = path.split(".")
    if len(above) == ROOT:
        return ""
    return "  " * (len(above) - (len(above) > ROOT)) + names.get(own, own)


def _gpus(milli: dict[str, int]) -> str:
    return ", ".join(f"{count / 1_000:g} {kind}" for kind, count in milli.items())
