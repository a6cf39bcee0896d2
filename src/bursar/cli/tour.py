"""A guided tour of the ledger, made of real calls."""

from rich.console import Console
from rich.table import Table

from bursar.core.instant import HOUR, MINUTE, whole_ms
from bursar.core.money import CREDIT, usage_price


def play() -> None:
    """Show how a running job is charged from readings that only grow."""
    rate, milli_gpus = 7 * CREDIT, 3_000
    table = Table(title="Three GPUs at 7 credits an hour, metered at odd moments")
    for heading in ("run time so far", "price so far", "charge"):
        table.add_column(heading, justify="right")

    charged = 0
    for run in (7 * MINUTE, 25 * MINUTE, 25 * MINUTE, HOUR):
        price = usage_price(rate, milli_gpus, whole_ms(run))
        table.add_row(f"{run // MINUTE} min", _credits(price), _credits(price - charged))
        charged = price

    console = Console()
    console.print(table)
    console.print(f"Charged in all {_credits(charged)}: three GPU-hours, to the micro-credit.")


def _credits(micros: int) -> str:
    return f"{micros // CREDIT}.{micros % CREDIT:06d}"
