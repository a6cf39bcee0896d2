"""How fast the scheduler decides, on the loads of other schedulers' published benchmarks.

Each load is decided in memory by the planner of the service, and in the same run by a naive one:
seconds on a shared machine are not comparable between days, ratios are. A checker of its own
counts which job has which GPU. A load in which a GPU is given away twice or a job is left out has
failed, whatever its speed.
"""

import gc
import json as json_text
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any, Final

from benchmarks.environment import Log, log_to_stderr
from benchmarks.results import Load, is_clean, loads_as_object
from benchmarks.schedule import core
from benchmarks.schedule.sizes import FULL, QUICK, QUICK_TITLE, ScheduleSizes
from benchmarks.table import print_loads

LOADS: Final = MappingProxyType[str, Callable[[ScheduleSizes, Log], Load]](
    {
        "kueue-baseline": core.measure_kueue_baseline,
        "kueue-large": core.measure_kueue_large,
        "kai-fill": core.measure_kai_fill,
        "kai-reclaim": core.measure_kai_reclaim,
        "kai-negative": core.measure_kai_negative,
        "volcano-4": core.measure_volcano,
        "armada-steady": core.measure_armada_steady,
        "slurm-throughput": core.measure_slurm_throughput,
        "deep-queue": core.measure_deep_queue,
    }
)


NAIVE: Final = "first fit: sort the queue, try all nodes for each job"
LEGEND: Final = (
    "measured: processor time, except virtual time; naive: first fit in the same run, which does"
    " less; peers' figures were published, from their machines, with their stores"
)


def measure(sizes: ScheduleSizes, only: Sequence[str], log: Log) -> list[Load]:
    """Run these loads, one after another."""
    loads = []
    for name in only:
        gc.collect()  # garbage of the load before costs this load no time
        loads.append(LOADS[name](sizes, log))
    return loads


def main(*, quick: bool = False, json: bool = False, only: Sequence[str] = ()) -> bool:
    """Measure, and print a table or JSON; return whether every load was decided correctly."""
    loads = measure(QUICK if quick else FULL, only or list(LOADS), log_to_stderr)
    if json:
        print(json_text.dumps(as_object(loads, quick=quick)))
    else:
        print_table(loads, quick=quick)
    return is_clean(loads)


def as_object(loads: Sequence[Load], *, quick: bool) -> dict[str, Any]:
    """Return the loads as plain JSON."""
    return loads_as_object("schedule-core", loads, quick=quick, yardsticks={"naive": NAIVE})


def print_table(loads: Sequence[Load], *, quick: bool) -> None:
    """Print the loads as a table."""
    title = "schedule benchmark, --core" + (QUICK_TITLE if quick else "")
    print_loads(title, loads, [LEGEND], without=[">to peer"])
