"""The loads again, through the database, with nodes that run nothing.

    world      a deployment: orgs with credits, ledger, post, a pool and its leader
    nodes      its nodes, which answer as agents do
    measuring  the loads, and what they come to
    idle       how long a job waits where nothing else does: in process, and over HTTP

After each load every job has ended once, and `verify` finds nothing; otherwise it has failed,
however fast it was.
"""

import gc
import json as json_text
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from os import environ
from pathlib import Path
from types import MappingProxyType
from typing import Final

from benchmarks.schedule import report
from benchmarks.schedule.core import Say
from benchmarks.schedule.durable import idle, measurements
from benchmarks.schedule.durable.deployment import Late
from benchmarks.schedule.figures import Load
from benchmarks.schedule.sizes import FULL, SMALL, Sizes
from bursar.service.database import URL_VARIABLE, Database, open_database, temporary_server

__all__ = ["LOADS", "Late", "main", "measure"]

LOADS: Final = MappingProxyType[str, Callable[[Database, Sizes, Say], Load]](
    {
        "kueue-baseline": measurements.kueue_baseline,
        "kueue-large": measurements.kueue_large,
        "kai-fill": measurements.kai_fill,
        "volcano-4": measurements.volcano,
        "slurm-throughput": measurements.slurm_throughput,
        "idle": idle.in_process,
        "idle-http": idle.over_http,
    }
)


def measure(server: Database, sizes: Sizes, only: Sequence[str], say: Say) -> list[Load]:
    """Run these loads, one after another."""
    loads = []
    for name in only:
        gc.collect()  # what the load before left behind is not this one's
        loads.append(LOADS[name](server, sizes, say))
    return loads


def main(
    *, quick: bool = False, json: bool = False, only: Sequence[str] = (), state: Path | None = None
) -> bool:
    """Measure, and print a table or one object; whether every load came out right."""
    with _server(state) as server:
        loads = measure(server, SMALL if quick else FULL, only or list(LOADS), _say)
    if json:
        print(json_text.dumps(report.as_object(loads, small=quick, durable=True)))
    else:
        report.print_table(loads, small=quick, durable=True)
    return all(not load.problems for load in loads)


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
