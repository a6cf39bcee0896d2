"""`bursar pools`."""

from typing import Annotated, Any, Final

import typer

from bursar.cli.calling import Call, Output, connected
from bursar.cli.output import Format

app = typer.Typer(add_completion=False, rich_markup_mode=None)

COLUMNS: Final = ("pool", "gpu_type", "gpus", "free_gpus", "nodes", "queued", "running")


@app.command()
def pools(
    add: Annotated[
        str | None, typer.Option(metavar="NAME", help="Begin a pool of this name first.")
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """What pools have, and what waits for it."""
    call = Call(output)
    if add is not None:
        with connected() as client:
            client.post("/v1/pools", {"id": add}, key=call.key)
    call.get("/v1/pools", COLUMNS, rows=_rows)


def _rows(body: Any) -> list[dict[str, Any]]:
    """A line for each type of each pool; one without nodes has a line, too."""
    nothing: list[dict[str, Any]] = [{"gpu_type": None, "gpus": 0, "free_milli_gpus": 0}]
    return [
        {
            **one,
            "pool": one["id"],
            "gpu_type": kind["gpu_type"],
            "gpus": kind["gpus"],
            "free_gpus": f"{kind['free_milli_gpus'] / 1_000:g}",
        }
        for one in body["pools"]
        for kind in one["types"] or nothing
    ]
