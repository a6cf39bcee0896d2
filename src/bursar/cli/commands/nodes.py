"""`bursar nodes`."""

from typing import Annotated, Any, Final

import typer

from bursar.cli.calling import Call, Output, connected
from bursar.cli.output import Format

app = typer.Typer(add_completion=False, rich_markup_mode=None)

COLUMNS: Final = (
    *("id", "state", "gpu_type", "gpus", "free_gpus", "leases", "heard_ms_ago", "region", "rack"),
    *("labels", "quarantine_ms_left"),
)


@app.command()
def nodes(
    pool: Annotated[str, typer.Argument(metavar="POOL")] = "main",
    drain: Annotated[
        str | None, typer.Option(metavar="NODE", help="Let nothing more start on it.")
    ] = None,
    ready: Annotated[
        str | None,
        typer.Option(metavar="NODE", help="Let jobs start on it again, whatever was wrong there."),
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """The nodes of a pool, and what is taken of them; for operators."""
    call = Call(output)
    for node, state in ((drain, "draining"), (ready, "ready")):
        if node is not None:
            with connected() as client:
                client.post(f"/v1/pools/{pool}/nodes/{node}/state", {"state": state}, key=call.key)
    call.get(f"/v1/pools/{pool}/nodes", COLUMNS, rows=_rows)


def _rows(body: Any) -> list[dict[str, Any]]:
    return [{**one, "free_gpus": f"{one['free_milli_gpus'] / 1_000:g}"} for one in body["nodes"]]
