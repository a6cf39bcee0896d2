"""`bursar share`."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer

from bursar.cli.api_command import ApiCall, Output
from bursar.cli.output import Format, render_table

app = typer.Typer(add_completion=False, rich_markup_mode=None)

COLUMNS: Final = (
    *("path", "weight", "current_share_ppm", "entitled_share_ppm", "gpus_in_use"),
    *("running_jobs", "waiting_jobs", "usage_micros"),
)
TABLE_COLUMNS: Final = ("name", *COLUMNS[1:])
ROOT: Final = 2  # depth of an org's root account below its tier


@app.command()
def share(
    pool: Annotated[str, typer.Argument(metavar="POOL")] = "main", output: Output = Format.TABLE
) -> None:
    """Show current and entitled shares of a pool. Tenants see their own."""
    ApiCall(output).get(f"/v1/pools/{pool}/explain", COLUMNS, rows=_rows, text=_tree)


def _rows(body: Any) -> list[dict[str, Any]]:
    return [{**share, "gpus_in_use": _gpus(share["used_milli_gpus"])} for share in body["shares"]]


def _tree(body: Any) -> str:
    """Render the shares as a tree of names."""
    rows = [{**share, "name": _name(share["path"], body["names"])} for share in _rows(body)]
    return render_table(TABLE_COLUMNS, [row for row in rows if row["name"]])


def _name(path: str, names: Mapping[str, str]) -> str:
    """The indented name of a share; empty for a root account, which duplicates its org."""
    *above, id = path.split(".")
    if len(above) == ROOT:
        return ""
    return "  " * (len(above) - (len(above) > ROOT)) + names.get(id, id)


def _gpus(milli: dict[str, int]) -> str:
    return ", ".join(f"{count / 1_000:g} {gpu_type}" for gpu_type, count in milli.items())
