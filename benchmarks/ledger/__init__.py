"""How fast the ledger on PostgreSQL is, compared with what the same server does without it.

Each load has a database of its own, on a temporary server unless one is configured. Its figures
are compared with yardsticks of the same run: on a shared machine no other comparison holds. A load
ends with `ledger verify`; if the books do not add up, the load has failed, whatever its speed.
"""

import json as json_text
from collections.abc import Callable, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from benchmarks.environment import Log, log_to_stderr, open_server
from benchmarks.ledger import yardsticks
from benchmarks.ledger.accounts import measure_accounts
from benchmarks.ledger.callers import measure_caller_cost
from benchmarks.ledger.grants import measure_grants
from benchmarks.ledger.http import measure_http
from benchmarks.ledger.readings import measure_meter
from benchmarks.ledger.rebuild import measure_rebuild
from benchmarks.ledger.sizes import FULL, QUICK, LedgerSizes
from benchmarks.ledger.throughput import CALLERS, measure_hot, measure_spread
from benchmarks.results import Load, is_clean, loads_as_object
from benchmarks.table import print_loads
from bursar.service.database import Database
from bursar.service.gc_pause import settle

Run = Callable[[Database, LedgerSizes, dict[str, float], Log], Load]

LOADS: Final = MappingProxyType[str, Run](
    {
        "L-spread": measure_spread,
        "L-hot": measure_hot,
        "L-meter": measure_meter,
        "L-grants": measure_grants,
        "L-accounts": measure_accounts,
        "L-rebuild": measure_rebuild,
        "L-http": measure_http,
    }
)
YARDSTICKS: Final = MappingProxyType({"L-spread": ("T(8)", "T(64)", "P"), "L-hot": ("P-hot",)})


class LedgerResults(NamedTuple):
    """The results of one run."""

    loads: list[Load]
    yardsticks: dict[str, float]  # transactions per second
    caller_cost_s: float  # processor time that a command costs its caller

    def as_object(self, *, quick: bool) -> dict[str, Any]:
        """Return the results as plain JSON."""
        yardstick_objects = {
            name: {"what": yardsticks.WHAT[name], "transactions_per_second": round(rate, 1)}
            for name, rate in self.yardsticks.items()
        }
        return loads_as_object(
            "ledger",
            self.loads,
            quick=quick,
            yardsticks=yardstick_objects,
            generator_cpu_us_per_command=round(self.caller_cost_s * 1e6, 2),
        )

    def print(self) -> None:
        """Print the results as a table."""
        legend = [
            f"{name}: {yardsticks.WHAT[name]}: {rate:,.0f} transactions/s"
            for name, rate in self.yardsticks.items()
        ]
        legend.append(
            f"callers use {self.caller_cost_s * 1e6:.1f} µs of processor time per command:"
            f" {self.caller_cost_s * 10_000:.1%} of one core at 10,000 commands/s"
        )
        hidden = (">wall", "peer", ">to peer")
        print_loads("ledger benchmark", self.loads, legend, without=hidden)


def measure(server: Database, sizes: LedgerSizes, only: Sequence[str], log: Log) -> LedgerResults:
    """Run the yardsticks that these loads need, then the loads."""
    names = [name for load in only for name in YARDSTICKS.get(load, ())]
    rates = yardsticks.measure_yardsticks(server, sizes, names, log)
    log("cost of the callers")
    caller_cost_s = measure_caller_cost(CALLERS, sizes.warm_s)
    loads = [LOADS[name](server, sizes, rates, log) for name in only]
    return LedgerResults(loads, rates, caller_cost_s)


def main(
    *,
    quick: bool = False,
    json: bool = False,
    only: Sequence[str] = (),
    state: Path | None = None,
    sizes: LedgerSizes | None = None,
) -> bool:
    """Measure, and print a table or JSON; return whether the books add up after every load."""
    settle()  # as every process that serves
    with open_server(state) as server:
        results = measure(
            server, sizes or (QUICK if quick else FULL), only or list(LOADS), log_to_stderr
        )
    if json:
        print(json_text.dumps(results.as_object(quick=quick)))
    else:
        results.print()
    return is_clean(results.loads)
