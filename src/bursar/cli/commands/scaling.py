"""`bursar scaling`."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from bursar.cli.api_command import After, All, ApiCall, Limit, Output, UsageError
from bursar.cli.output import Format

app = typer.Typer(add_completion=False, rich_markup_mode=None)

COLUMNS: Final = (
    *("name", "gpu_type", "gpus", "price_micros_per_hour", "delay_seconds", "nodes_max"),
    *("region", "labels"),
)
ORDER_COLUMNS: Final = (
    *(
        "node",
        "offer",
        "state",
        "late",
        "removal_reason",
        "ordered_at",
        "ready_by",
        "arrived_at",
        "returned_at",
    ),
    *("cost_micros", "last_error"),
)


@app.command()
def scaling(
    pool: Annotated[str, typer.Argument(metavar="POOL")] = "main",
    set_: Annotated[
        str | None,
        typer.Option(
            "--set",
            metavar="FILE",
            help="Replace the configuration with this JSON; - reads standard input.",
        ),
    ] = None,
    orders: Annotated[
        bool, typer.Option("--orders", help="Show node orders and their cost.")
    ] = False,
    limit: Limit = 100,
    after: After = None,
    all: All = False,
    output: Output = Format.TABLE,
) -> None:
    """Show or set which nodes a pool can order. For operators.

    --set reads the format that -o json prints.
    """
    call = ApiCall(output)
    if orders:
        call.get_page(f"/v1/pools/{pool}/orders", ORDER_COLUMNS, {}, limit, after, all)
    elif set_ is not None:
        call.put(f"/v1/pools/{pool}/scaling", _load_configuration(set_), COLUMNS, rows=_offers)
    else:
        call.get(f"/v1/pools/{pool}/scaling", COLUMNS, rows=_offers)


def _load_configuration(file: str) -> dict[str, Any]:
    try:
        configuration = json.loads(sys.stdin.read() if file == "-" else Path(file).read_text())
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{file}: {error}", param_hint="--set") from None
    if not isinstance(configuration, dict):
        raise UsageError(f'{file} is not a JSON object: write {{"offers": [...]}}')
    configuration.pop("has_provisioner", None)  # reported by the service, not configurable
    return configuration


def _offers(body: Any) -> list[dict[str, Any]]:
    offers: list[dict[str, Any]] = body["offers"]
    return offers
