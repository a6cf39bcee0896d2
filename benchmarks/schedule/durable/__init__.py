"""The loads through the database, with nodes that run nothing.

    deployment    orgs with credits, ledger, relay, a pool and its leader
    nodes         its nodes, which answer as agents do
    measurements  the loads and their figures
    idle          how long a job waits in an empty pool: in process, and over HTTP

After each load every job has ended once and `verify` reports nothing; otherwise the load has
failed, whatever its speed.
"""

import gc
import json as json_text
from collections.abc import Callable, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from benchmarks.environment import Log, log_to_stderr, open_server
from benchmarks.results import Load, is_clean, loads_as_object
from benchmarks.schedule.durable import idle, measurements
from benchmarks.schedule.durable.deployment import LoadTimeout
from benchmarks.schedule.sizes import FULL, QUICK, QUICK_TITLE, ScheduleSizes
from benchmarks.table import print_loads
from bursar.service.database import Database

__all__ = ["LOADS", "LoadTimeout", "as_object", "main", "measure", "print_table"]

LOADS: Final = MappingProxyType[str, Callable[[Database, ScheduleSizes, Log], Load]](
    {
        "kueue-baseline": measurements.measure_kueue_baseline,
        "kueue-large": measurements.measure_kueue_large,
        "kai-fill": measurements.measure_kai_fill,
        "volcano-4": measurements.measure_volcano,
        "slurm-throughput": measurements.measure_slurm_throughput,
        "idle": idle.measure_in_process,
        "idle-http": idle.measure_over_http,
    }
)


LEGEND: Final = (
    "measured: elapsed time, submitters and nodes in the same process; a job runs when its org has"
    " recorded the start, and is settled with its last charge; peers' figures were published, from"
    " their machines; to peer: Bursar's figure as a multiple of the peer's"
)


def measure(server: Database, sizes: ScheduleSizes, only: Sequence[str], log: Log) -> list[Load]:
    """Run these loads, one after another."""
    loads = []
    for name in only:
        gc.collect()  # garbage of the load before costs this load no time
        loads.append(LOADS[name](server, sizes, log))
    return loads


def main(
    *, quick: bool = False, json: bool = False, only: Sequence[str] = (), state: Path | None = None
) -> bool:
    """Measure, and print a table or JSON; return whether no load has problems."""
    with open_server(state) as server:
        loads = measure(server, QUICK if quick else FULL, only or list(LOADS), log_to_stderr)
    if json:
        print(json_text.dumps(as_object(loads, quick=quick)))
    else:
        print_table(loads, quick=quick)
    return is_clean(loads)


def as_object(loads: Sequence[Load], *, quick: bool) -> dict[str, Any]:
    """Return the loads as plain JSON."""
    return loads_as_object("schedule-durable", loads, quick=quick)


def print_table(loads: Sequence[Load], *, quick: bool) -> None:
    """Print the loads as a table."""
    title = "schedule benchmark, --durable" + (QUICK_TITLE if quick else "")
    print_loads(title, loads, [LEGEND], without=[">wall"])
