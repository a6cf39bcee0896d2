"""How fast the ledger on PostgreSQL is, beside what its server does without it.

Each load has a database of its own, on a server of its own unless one is named. A load is told
from the same run's yardsticks: on a shared machine nothing else can be compared. It ends with
`ledger verify`, and a load whose books do not add up has failed, however fast it was.
"""

import json as json_text
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from os import environ
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from benchmarks.ledger import report, yardsticks
from benchmarks.ledger.accounts import measure_accounts
from benchmarks.ledger.callers import cost_of_asking
from benchmarks.ledger.figures import Load
from benchmarks.ledger.grants import measure_grants
from benchmarks.ledger.http import measure_http
from benchmarks.ledger.readings import measure_meter
from benchmarks.ledger.rebuild import measure_rebuild
from benchmarks.ledger.sizes import FULL, QUICK, Sizes
from benchmarks.ledger.throughput import CALLERS, measure_hot, measure_spread
from benchmarks.ledger.yardsticks import Say
from bursar.service.database import URL_VARIABLE, Database, open_database, temporary_server

Run = Callable[[Database, Sizes, dict[str, float], Say], Load]

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
NEEDED: Final = MappingProxyType(
    {"L-spread": ("T(8)", "T(64)", "P"), "L-hot": ("P-hot",)}  # yardsticks
)


class Measured(NamedTuple):
    """All that one run has found."""

    loads: list[Load]
    yardsticks: dict[str, float]  # transactions a second
    asking_s: float  # processor time of the callers, for one command

    @property
    def clean(self) -> bool:
        """Whether the books added up after every load."""
        return all(not load.problems for load in self.loads)


def measure(server: Database, sizes: Sizes, only: Sequence[str], say: Say) -> Measured:
    """Run the yardsticks that these loads need, then the loads."""
    wanted = [name for load in only for name in NEEDED.get(load, ())]
    found = yardsticks.measured(server, sizes, wanted, say)
    say("what asking costs")
    asking_s = cost_of_asking(CALLERS, sizes.warm_s)
    return Measured([LOADS[name](server, sizes, found, say) for name in only], found, asking_s)


def main(
    *,
    quick: bool = False,
    json: bool = False,
    only: Sequence[str] = (),
    state: Path | None = None,
    sizes: Sizes | None = None,
) -> bool:
    """Measure, and print a table or one object; whether the books added up after every load."""
    with _server(state) as server:
        told = measure(server, sizes or (QUICK if quick else FULL), only or list(LOADS), _say)
    if json:
        print(json_text.dumps(report.as_object(*told, quick=quick)))
    else:
        report.print_table(*told)
    return told.clean


@contextmanager
def _server(state: Path | None) -> Iterator[Database]:
    """The server that was named, or one that is gone afterwards."""
    if state is None and not environ.get(URL_VARIABLE):
        with temporary_server() as database:
            yield database
    else:
        with open_database(state) as database:
            yield database


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
