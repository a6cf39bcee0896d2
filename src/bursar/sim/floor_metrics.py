"""Measures whether floors were kept: how long a tier had less although a job could have used it.

A tier is below its floor while a waiting job of the tier would stay within the floor if it ran. A
larger job has no right to start by the floor. The measure uses the starts, ends and waits of jobs,
not the scheduler's own figures.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from bursar.core.instant import Instant
from bursar.core.scheduling.model.policy import WHOLE_PPM
from bursar.core.value import value
from bursar.sim.engine import Engine
from bursar.sim.timeline import waits

_THERE, _ENDS, _STARTS, _QUEUES = range(4)  # of what happens at once, in this order
_Change = tuple[Instant, int, str, int, int]  # when, what, whose tier, milli-GPUs, one more or less
MILLI: Final = 1_000


@value
class Floor:
    """How well a tier's floor was kept."""

    gpus: float  # that it is, of all of the fleet
    below: int  # microseconds in all
    longest: int  # microseconds at a stretch


def floors(engine: Engine) -> dict[str, Floor]:
    """How well each tier's floor was kept, by name."""
    parts = {tier.name: tier.floor_ppm for tier in engine.world.policy.tiers if tier.floor_ppm}
    watches = {name: _FloorMeter(part) for name, part in parts.items()}
    there, before = 0, engine.world.begins_at
    for at, what, tier, milli, more in sorted(_changes(engine)):
        if at > before:
            for watch in watches.values():
                watch.look(before, there)
            before = at
        if what == _THERE:
            there += milli * more
        elif tier in watches:
            watches[tier].change(what, milli, more)
    gpus = engine.world.fleet.gpus
    return {name: watch.result(engine.now, gpus) for name, watch in watches.items()}


class _FloorMeter:
    """Measures one tier over time."""

    def __init__(self, part: int) -> None:
        self._part = part
        self._used = 0
        self._waiting: Counter[int] = Counter()  # jobs by milli-GPUs
        self._since: Instant | None = None  # it is below its floor
        self._spans: list[int] = []

    def change(self, what: int, milli: int, more: int) -> None:
        """Record that a job of the tier starts, ends, or begins or ends to wait."""
        if what == _QUEUES:
            self._waiting[milli] += more
            if not self._waiting[milli]:
                del self._waiting[milli]
        else:
            self._used += milli * more

    def look(self, at: Instant, there: int) -> None:
        """Evaluate the state from an instant on, after all changes at that instant."""
        floor = there * self._part // WHOLE_PPM // MILLI * MILLI
        below = bool(self._waiting) and self._used + min(self._waiting) <= floor
        if below and self._since is None:
            self._since = at
        elif not below and self._since is not None:
            self._spans.append(at - self._since)
            self._since = None

    def result(self, now: Instant, gpus: int) -> Floor:
        """The result at the end."""
        spans = [*self._spans, *([now - self._since] if self._since is not None else [])]
        floor = float(gpus * self._part // WHOLE_PPM)
        return Floor(gpus=floor, below=sum(spans), longest=max(spans, default=0))


def _changes(engine: Engine) -> Iterator[_Change]:
    """All changes of used, wanted and total GPUs."""
    for stay in engine.nodes.stays:
        milli = engine.nodes.gpus[stay.node] * MILLI
        yield stay.since, _THERE, "", milli, 1
        yield stay.until, _THERE, "", milli, -1
    for stretch in engine.stretches:
        work = engine.lives[stretch.job].work
        yield stretch.since, _STARTS, work.tier, work.milli_gpus, 1
        yield stretch.until, _ENDS, work.tier, work.milli_gpus, -1
    for work, since, until in waits(engine):
        yield since, _QUEUES, work.tier, work.milli_gpus, 1
        yield until, _QUEUES, work.tier, work.milli_gpus, -1
