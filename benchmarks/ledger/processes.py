"""Callers in several processes, each with a ledger of its own, on one database.

Nobody tells the processes which orgs are theirs: each asks for all of them, as the callers of a
service do that runs more than once. The rows' locks decide, and books that another process has
moved on are read again.
"""

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Final, NamedTuple

from benchmarks.ledger.callers import Peak, Works, peak
from bursar.service.database import Database, OrgId
from bursar.service.ledger.ledger import Ledger

if TYPE_CHECKING:
    from multiprocessing.synchronize import Barrier

TO_MEET_S: Final = 60.0  # that processes wait for each other, before all give up


class Share(NamedTuple):
    """What the callers of one process do: for so long to get warm, then for so long to count."""

    url: str
    name: str  # with which the keys begin
    orgs: Sequence[OrgId]
    projects: int  # of each org
    callers: int
    warm_s: float
    seconds: float


def peaks(shares: Sequence[Share]) -> list[tuple[Peak, Peak]]:
    """What each process has come to while getting warm, and then, all of them at once."""
    context = multiprocessing.get_context("spawn")  # not forked: there are threads here
    together = context.Barrier(len(shares))
    with ProcessPoolExecutor(len(shares), context, _begin, (together,)) as pool:
        return list(pool.map(_work, shares))


def at_once(found: Sequence[Peak]) -> Peak:
    """The peaks of callers that have worked at the same time, as one."""
    return Peak(
        commands=sum(one.commands for one in found),
        seconds=max(one.seconds for one in found),
        failed=sum(one.failed for one in found),
    )


# In a process of its own

_meeting: list["Barrier"] = []  # one, where the others are met


def _begin(together: "Barrier") -> None:
    _meeting.append(together)


def _work(share: Share) -> tuple[Peak, Peak]:
    """Get warm, wait until all others are, and be counted."""
    [together] = _meeting
    with Ledger(Database(share.url, None).connect) as ledger:
        works = Works(f"{share.name}-warm", share.orgs, share.projects)
        warm = peak(ledger, works, share.callers, share.warm_s)
        works = Works(share.name, share.orgs, share.projects)
        together.wait(TO_MEET_S)
        return warm, peak(ledger, works, share.callers, share.seconds)
