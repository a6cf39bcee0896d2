"""Credits in several regions that cannot always reach each other, ordered by vector clocks.

The problem. Regions add and use the same credits while the network between them is cut. There is
no common time, only what each had seen. Later they exchange what they know and must agree on
every balance, whatever the order and the number of their exchanges.

    eu = CausalLedger("eu", ["eu", "us"])
    us = CausalLedger("us", ["eu", "us"])
    start = eu.next_clock()
    eu.add(100, at=start, expires=VectorClock({"eu": 50}))
    us.merge(eu)
    mine = eu.use(80, at=eu.next_clock())         # the two regions do not see each other:
    theirs = us.use(80, at=us.next_clock())       # each believes that it has the credits
    eu.merge(us), us.merge(eu)
    eu.status(mine), eu.status(theirs)            # ('accepted', 'rejected'), and the same in us

A replica is a set of events, named (region, number), and merging is the union of sets: doing it
twice, or in another order, changes nothing. What the events mean is their fold in one order:
by the sum of their clock's counts, then packs before uses, then by region and number. If one
clock is before another, its sum is smaller, so the order extends causality; and it is the same
wherever the events are known.

A pack serves a use if it was added at or before the use's clock and the pack's end is not at or
before it: what is concurrent with the end is still valid. A use takes from the packs that end
first, in the same sense: by the sum of `expires`, then by the pack's place in the order. A use
that its packs do not cover in full is rejected and takes nothing. News can change a verdict, both
ways. It is final once every region is known to have passed the use: then all events still
unknown come after it in the order, because clocks of a region never go back.

Alternatives. If a region rejected a use for good by its own knowledge, regions would disagree for
ever. If concurrent uses were ordered by wall clock, a clock that is fast would win.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass
from threading import Lock
from typing import Literal, NamedTuple

from bursar.core.clocks import VectorClock
from bursar.library._checks import bad_amount

Status = Literal["accepted", "rejected"]


class EventId(NamedTuple):
    """The name of an event: the region that made it and a number that counts there from 1."""

    region: str
    number: int


_Key = tuple[int, int, str, int]  # place in the order: sum of clock, pack or use, region, number


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    """One pack (it has an end) or one use (it has none)."""

    id: EventId
    amount: int
    at: VectorClock
    expires: VectorClock | None

    @property
    def key(self) -> _Key:
        return (self.at.total, int(self.expires is None), self.id.region, self.id.number)


class _Fold:
    """What a sequence of events, taken in order, comes to."""

    __slots__ = ("packs", "verdicts")

    def __init__(self) -> None:
        self.packs: list[tuple[int, _Key, _Event, list[int]]] = []  # in spend order; last: rest
        self.verdicts: dict[EventId, Status] = {}

    def apply(self, event: _Event) -> None:
        """Take in the next event of the order."""
        if event.expires is not None:
            insort(self.packs, (event.expires.total, event.key, event, [event.amount]))
            return
        serving = self.serving(event.at)
        if sum(rest[0] for rest in serving) < event.amount:
            self.verdicts[event.id] = "rejected"
            return
        self.verdicts[event.id] = "accepted"
        missing = event.amount
        for rest in serving:
            taken = min(missing, rest[0])
            rest[0] -= taken
            missing -= taken
        self.packs = [pack for pack in self.packs if pack[3][0]]

    def serving(self, at: VectorClock) -> list[list[int]]:
        """What is left in each pack that serves a use at that clock, in spend order."""
        return [
            rest
            for _, _, pack, rest in self.packs
            if pack.at <= at and not (pack.expires is not None and pack.expires <= at)
        ]


class CausalLedger:
    """One region's replica of credits shared by several regions; safe to share by threads.

    Every region has one writer. The clocks of its own events never go back: each `at` must be
    the region's last one or after it. An event that comes after all known ones costs as much as
    there are packs with something left; one that comes before some costs a new fold of all.
    """

    def __init__(self, region: str, regions: Iterable[str]) -> None:
        self.regions = tuple(sorted(set(regions)))
        for name in (region, *self.regions):
            if type(name) is not str:
                raise TypeError(f"a region must be a str, not {type(name).__name__}")
        if region not in self.regions:
            raise ValueError(f"{region} is not among the regions {', '.join(self.regions)}")
        self.region = region
        self._lock = Lock()
        self._events: dict[EventId, _Event] = {}
        self._order: list[tuple[_Key, EventId]] = []
        self._passed = dict.fromkeys(self.regions, VectorClock())  # each region's last known clock
        self._count = 0  # events of this region
        self._fold: _Fold | None = _Fold()  # of all events; None when it has to be made again

    def next_clock(self) -> VectorClock:
        """A clock for an event of this region that comes after everything known here."""
        with self._lock:
            clock = VectorClock()
            for passed in self._passed.values():
                clock = clock.join(passed)
            return clock.tick(self.region)

    def add(self, amount: int, at: VectorClock, expires: VectorClock) -> EventId:
        """Add credits at a clock; they serve uses from there on, unless `expires` is passed."""
        self._check(amount, at)
        self._check_clock("expires", expires)
        return self._make(amount, at, expires)

    def use(self, amount: int, at: VectorClock) -> EventId:
        """Use credits at a clock, all of `amount` or none; `status` tells which, as known now."""
        self._check(amount, at)
        return self._make(amount, at, None)

    def balance(self, at: VectorClock) -> int:
        """The most that a use made here at that clock would get, by what is known now."""
        self._check_clock("at", at)
        with self._lock:
            fold = self._fold_before((at.total, 1, self.region, self._count + 1))
            return sum(rest[0] for rest in fold.serving(at))

    def status(self, use: EventId) -> Status:
        """Whether a use is covered, by what is known now; LookupError if it is not known."""
        with self._lock:
            self._known_use(use)
            return self._whole_fold().verdicts[use]

    def is_final(self, use: EventId) -> bool:
        """Whether every region has passed the use, so that its status can never change again."""
        with self._lock:
            at = self._known_use(use).at
            return all(at < passed for passed in self._passed.values())

    def advance(self, at: VectorClock) -> None:
        """Promise that no event of this region comes before `at`: others may then be final."""
        self._check_clock("at", at)
        with self._lock:
            self._pass(at)

    def merge(self, other: "CausalLedger") -> None:
        """Add all events of another replica, which does not change."""
        if not isinstance(other, CausalLedger):
            raise TypeError(f"other must be a CausalLedger, not {type(other).__name__}")
        if other.regions != self.regions:
            raise ValueError(f"other has the regions {', '.join(other.regions)}")
        with other._lock:  # never both locks at once: two that merge into each other would wait
            events, passed = dict(other._events), dict(other._passed)
        with self._lock:
            for id, event in events.items():
                if self._events.get(id, event) != event:
                    raise ValueError(f"two different events are called {id.region} {id.number}")
            new = [event for id, event in events.items() if id not in self._events]
            for event in sorted(new, key=lambda event: event.key):
                self._learn(event)
            for region, clock in passed.items():
                self._passed[region] = self._passed[region].join(clock)

    def _check(self, amount: int, at: VectorClock) -> None:
        if type(amount) is not int or amount < 1:
            raise bad_amount("amount", amount)
        self._check_clock("at", at)

    def _check_clock(self, name: str, clock: VectorClock) -> None:
        if type(clock) is not VectorClock:
            raise TypeError(f"{name} must be a VectorClock, not {type(clock).__name__}")
        for region in clock:
            if region not in self._passed:
                raise ValueError(f"{name} names the unknown region {region}")

    # The methods below are called with the lock held.

    def _make(self, amount: int, at: VectorClock, expires: VectorClock | None) -> EventId:
        with self._lock:
            self._pass(at)
            id = EventId(self.region, self._count + 1)
            self._learn(_Event(id=id, amount=amount, at=at, expires=expires))
            return id

    def _pass(self, at: VectorClock) -> None:
        last = self._passed[self.region]
        if not last <= at:
            raise ValueError(f"at {at} is not at or after {last}, the last clock of this region")
        self._passed[self.region] = at

    def _learn(self, event: _Event) -> None:
        """Take an event in; fold it at once if it comes last."""
        place = (event.key, event.id)
        self._events[event.id] = event
        if event.id.region == self.region:
            self._count = max(self._count, event.id.number)
        if self._order and place < self._order[-1]:
            insort(self._order, place)
            self._fold = None
            return
        self._order.append(place)
        if self._fold is not None:
            self._fold.apply(event)

    def _whole_fold(self) -> _Fold:
        if self._fold is None:
            self._fold = self._folded(len(self._order))
        return self._fold

    def _fold_before(self, key: _Key) -> _Fold:
        """The fold of the events that come before a place in the order."""
        place = bisect_left(self._order, (key,))
        return self._whole_fold() if place == len(self._order) else self._folded(place)

    def _folded(self, count: int) -> _Fold:
        fold = _Fold()
        for _, id in self._order[:count]:
            fold.apply(self._events[id])
        return fold

    def _known_use(self, use: EventId) -> _Event:
        event = self._events.get(use)
        if event is None or event.expires is not None:
            raise LookupError(f"no use {use!r} is known here")
        return event
