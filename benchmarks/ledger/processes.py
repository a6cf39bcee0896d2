"""Callers in several processes, each with a ledger of its own, on one database.

No process owns an org: each sends commands for all of them, as callers of several API processes
do. Row locks order the writers, and books that another process has changed are read again.
"""

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Final, NamedTuple

from benchmarks.ledger.callers import Peak, UnitSource, measure_peak
from bursar.service.database import Database, OrgId
from bursar.service.gc_pause import settle
from bursar.service.ledger.ledger import Ledger

if TYPE_CHECKING:
    from multiprocessing.synchronize import Barrier

BARRIER_TIMEOUT_S: Final = 60.0  # for all processes to be warm


class CallerShare(NamedTuple):
    """The work of one process: callers, a warm-up, then the measured seconds."""

    url: str
    name: str  # with which the keys begin
    orgs: Sequence[OrgId]
    projects: int  # of each org
    callers: int
    warm_s: float
    seconds: float


def measure_peaks(shares: Sequence[CallerShare]) -> list[tuple[Peak, Peak]]:
    """Run all shares at once; the peaks of each process in the warm-up and after it."""
    context = multiprocessing.get_context("spawn")  # not forked: there are threads here
    barrier = context.Barrier(len(shares))
    with ProcessPoolExecutor(len(shares), context, _store_barrier, (barrier,)) as pool:
        return list(pool.map(_measure_share, shares))


def combine_peaks(peaks: Sequence[Peak]) -> Peak:
    """Combine the peaks of callers that ran at the same time."""
    return Peak(
        commands=sum(peak.commands for peak in peaks),
        seconds=max(peak.seconds for peak in peaks),
        failed=sum(peak.failed for peak in peaks),
    )


# In a process of its own

_barriers: list["Barrier"] = []  # holds the barrier of this process


def _store_barrier(barrier: "Barrier") -> None:
    _barriers.append(barrier)


def _measure_share(share: CallerShare) -> tuple[Peak, Peak]:
    """Warm up, wait for the other processes, and measure."""
    settle()
    [barrier] = _barriers
    with Ledger(Database(share.url, None).connect) as ledger:
        units = UnitSource(f"{share.name}-warm", share.orgs, share.projects)
        warm = measure_peak(ledger, units, share.callers, share.warm_s)
        units = UnitSource(share.name, share.orgs, share.projects)
        barrier.wait(BARRIER_TIMEOUT_S)
        return warm, measure_peak(ledger, units, share.callers, share.seconds)
