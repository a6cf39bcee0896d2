"""`bursar share`."""

from typing import Annotated, Any, Final

import typer

from bursar.cli.calling import Call, Output
from bursar.cli.output import Format, named

app = typer.Typer(add_completion=False, rich_markup_mode=None)

COLUMNS: Final = (
    *("of", "weight", "part_ppm", "entitled_ppm", "gpus", "jobs", "waiting", "usage_micros"),
)


@app.command()
def share(
    pool: Annotated[str, typer.Argument(metavar="POOL")] = "main", output: Output = Format.TABLE
) -> None:
    """Who has which part of a pool, and is entitled to which; tenants see their own."""
    Call(output).get(f"/v1/pools/{pool}/explain", COLUMNS, rows=_rows)


def _rows(body: Any) -> list[dict[str, Any]]:
    return [
        {**one, "of": named(one["of"], body["names"]), "gpus": _gpus(one["milli_gpus"])}
        for one in body["shares"]
    ]


def _gpus(milli: dict[str, int]) -> str:
    return ", ".join(f"{count / 1_000:g} {kind}" for kind, count in milli.items())
