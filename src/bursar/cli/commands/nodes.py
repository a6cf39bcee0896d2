"""`bursar nodes`."""

from typing import Annotated, Any, Final

import typer

from bursar.cli.api_command import Call, Output, connected
from bursar.cli.output import NOTHING, Format, table
from bursar.cli.ranges import duration_told

app = typer.Typer(add_completion=False, rich_markup_mode=None)

COLUMNS: Final = (
    *(
        "id",
        "state",
        "gpu_type",
        "gpus",
        "free_gpus",
        "leases",
        "last_report_ms_ago",
        "region",
        "rack",
    ),
    *("labels", "quarantine_ms_left"),
)
SHOWN: Final = (
    *("id", "state", "gpu_type", "gpus", "free_gpus", "leases", "heard", "region", "rack"),
    *("labels", "quarantine"),
)


@app.command()
def nodes(
    pool: Annotated[str, typer.Argument(metavar="POOL")] = "main",
    drain: Annotated[
        str | None, typer.Option(metavar="NODE", help="Drain this node: start no more jobs on it.")
    ] = None,
    ready: Annotated[
        str | None,
        typer.Option(metavar="NODE", help="Return this node to service, also from quarantine."),
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Show the nodes of a pool and their use. For operators."""
    call = Call(output)
    for node, state in ((drain, "draining"), (ready, "ready")):
        if node is not None:
            with connected() as client:
                client.post(f"/v1/pools/{pool}/nodes/{node}/state", {"state": state}, key=call.key)
    call.get(f"/v1/pools/{pool}/nodes", COLUMNS, rows=_rows, text=_table)


def _rows(body: Any) -> list[dict[str, Any]]:
    return [{**one, "free_gpus": f"{one['free_milli_gpus'] / 1_000:g}"} for one in body["nodes"]]


def _table(body: Any) -> str:
    """Render the nodes for people, with units."""
    return table(SHOWN, [{**one, **_spans(one)} for one in _rows(body)])


def _spans(node: Any) -> dict[str, str]:
    ago, left = node["last_report_ms_ago"], node["quarantine_ms_left"]
    heard = "never" if ago is None else f"{duration_told(ago // 1_000)} ago"
    return {"heard": heard, "quarantine": duration_told(-(-left // 1_000)) if left else NOTHING}
