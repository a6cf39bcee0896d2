"""`bursar nodes`."""

from typing import Annotated, Any, Final

import typer

from bursar.cli.api_command import ApiCall, Output, connect
from bursar.cli.output import NO_VALUE, Format, render_table
from bursar.cli.ranges import format_duration

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
TABLE_COLUMNS: Final = (
    *("id", "state", "gpu_type", "gpus", "free_gpus", "leases", "last_report", "region", "rack"),
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
    reset: Annotated[
        str | None,
        typer.Option(
            metavar="NODE",
            help="Accept reports of this node again, after its disk was replaced or its key was"
            " misused. It must have no jobs.",
        ),
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Show the nodes of a pool and their use. For operators."""
    call = ApiCall(output)
    if reset is not None:
        with connect() as client:
            client.post(f"/v1/pools/{pool}/nodes/{reset}/reset", {}, key=call.key)
    for node, state in ((drain, "draining"), (ready, "ready")):
        if node is not None:
            with connect() as client:
                client.post(f"/v1/pools/{pool}/nodes/{node}/state", {"state": state}, key=call.key)
    call.get_all(f"/v1/pools/{pool}/nodes", COLUMNS, rows=_build_rows, text=_render_nodes)


def _build_rows(body: Any) -> list[dict[str, Any]]:
    return [{**node, "free_gpus": f"{node['free_milli_gpus'] / 1_000:g}"} for node in body["items"]]


def _render_nodes(body: Any) -> str:
    """Render the nodes for people, with units."""
    return render_table(
        TABLE_COLUMNS, [{**node, **_format_durations(node)} for node in _build_rows(body)]
    )


def _format_durations(node: Any) -> dict[str, str]:
    report_ms_ago, quarantine_ms = node["last_report_ms_ago"], node["quarantine_ms_left"]
    last_report = (
        "never" if report_ms_ago is None else f"{format_duration(report_ms_ago // 1_000)} ago"
    )
    quarantine = format_duration(-(-quarantine_ms // 1_000)) if quarantine_ms else NO_VALUE
    return {"last_report": last_report, "quarantine": quarantine}
