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
ROOT: Final = 2  # how far below its tier an org's root account is


@app.command()
def share(
    pool: Annotated[str, typer.Argument(metavar="POOL")] = "main", output: Output = Format.TABLE
) -> None:
    """Who has which part of a pool, and is entitled to which; tenants see their own."""
    Call(output).get(f"/v1/pools/{pool}/explain", COLUMNS, rows=_rows, text=_tree)


def _rows(body: Any) -> list[dict[str, Any]]:
    return [{**one, "gpus": _gpus(one["milli_gpus"])} for one in body["shares"]]


def _tree(body: Any) -> str:
    """The tree of shares, each place by its own name below the one that it is of."""
    rows = [{**one, "of": _place(one["of"], body["names"])} for one in _rows(body)]
    return table(COLUMNS, [one for one in rows if one["of"]])


def _place(path: str, names: Mapping[str, str]) -> str:
    """A place, indented; nothing for an org's root account, which has all that its org has."""
    *above, own = path.split(".")
    if len(above) == ROOT:
        return ""
    return "  " * (len(above) - (len(above) > ROOT)) + names.get(own, own)


def _gpus(milli: dict[str, int]) -> str:
    return ", ".join(f"{count / 1_000:g} {kind}" for kind, count in milli.items())
