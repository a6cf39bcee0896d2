"""How fast the scheduler decides, on the loads that others publish figures of.

Each load is decided in memory by the planner of the service, and in the same run by a naive one:
seconds of a shared machine cannot be compared with those of another day, ratios can. Who has which
GPU is counted on the side, and a load that gave one away twice, or left a job out, has failed,
however fast it was.
"""

import gc
import json as json_text
import sys
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Final

from benchmarks.schedule import core, report
from benchmarks.schedule.core import Say
from benchmarks.schedule.figures import Load
from benchmarks.schedule.sizes import FULL, SMALL, Sizes

LOADS: Final = MappingProxyType[str, Callable[[Sizes, Say], Load]](
    {
        "kueue-baseline": core.kueue_baseline,
        "kueue-large": core.kueue_large,
        "kai-fill": core.kai_fill,
        "kai-reclaim": core.kai_reclaim,
        "kai-negative": core.kai_negative,
        "volcano-4": core.volcano,
        "armada-steady": core.armada_steady,
        "slurm-throughput": core.slurm_throughput,
        "deep-queue": core.deep_queue,
    }
)


def measure(sizes: Sizes, only: Sequence[str], say: Say) -> list[Load]:
    """Run these loads, one after another."""
    loads = []
    for name in only:
        gc.collect()  # what the load before left behind is not this one's
        loads.append(LOADS[name](sizes, say))
    return loads


def main(*, small: bool = False, json: bool = False, only: Sequence[str] = ()) -> bool:
    """Measure, and print a table or one object; whether every load was decided rightly."""
    loads = measure(SMALL if small else FULL, only or list(LOADS), _say)
    if json:
        print(json_text.dumps(report.as_object(loads, small=small)))
    else:
        report.print_table(loads, small=small)
    return all(not load.problems for load in loads)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
