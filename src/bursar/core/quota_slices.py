"""Quotas of GPUs and jobs at once, divided among pools (B4).

The problem. A quota is its org's, what runs is the pools', and no transaction touches both (D4). So
an org divides a quota: each pool has a slice of it, and starts nothing beyond. Where more is wanted
in one pool than in another the slices change, and never, at no moment and whatever is lost or comes
late, may all pools together have more than the quota.

    quota 8        east may have 6, uses 5        west may have 2, wants 4
    lower first    east is told 5 (n=4)           until it says that it knows, 6 are east's
    then raise     east: I know n=4, 5 are used   west is told 3 (n=7)

What the org knows of a pool is a *bound*: the most that it can have. A slice that is lowered leaves
its bound where it was until the pool says that it knows, and how much it uses: it starts nothing
above its slice from then on, so the bound is the larger of the two, and falls as jobs end. A slice
is raised only as far as all bounds together stay within the quota. What the org writes is numbered,
and a pool takes what is newer than what it knows; what a pool says names the number that it knows.
So either may be lost, repeated, late or out of order.

Of GPUs in all, of each type and of jobs, each is divided by itself. What is used stays; what is
free goes to the pools that want it, first to the pool whose turn it is, all that it wants: two
halves of what a gang needs would start no gang. Turns change with time, so that no pool waits for
ever. What no pool wants stays where it is.

Roads not taken. One counter of the org, taken from at each start: every start would wait for
another world's transaction. Leases of parts that run out: clocks would have to agree, and a pool
that is cut off would lose what its jobs are using.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from bursar.core.instant import SECOND, Instant
from bursar.core.messages import Enqueue
from bursar.core.scheduling.model.nodes import MILLI
from bursar.core.scheduling.model.policy import ANY_TYPE, Share
from bursar.core.value import replace, value

GPUS: Final = "gpus"  # of all types together
JOBS: Final = "jobs"
TURN_SPAN: Final = 10 * SECOND  # how long what is free goes to the same pool first

Amounts: TypeAlias = tuple[tuple[str, int], ...]  # by what is counted, sorted
QuotaKey: TypeAlias = tuple[str, str]  # an org, and a quota of it


def type_key(gpu_type: str) -> str:
    """What GPUs of a type are counted as."""
    return f"{GPUS}.{gpu_type}"


def amounts_of_job(milli: int, types: Iterable[str]) -> dict[str, int]:
    """What a job counts, in thousandths of a GPU and in jobs."""
    return {GPUS: milli, JOBS: 1, **{type_key(gpu_type): milli for gpu_type in types}}


@value
class Slice:
    """What a pool may have at once of a quota; whose jobs it counts."""

    org: str
    quota: str
    n: int = 0  # of what the org has written for this pool; 0 before that
    account: str | None = None  # with all below it; any if there is none
    user: str | None = None  # or any
    granted: Amounts = ()  # of what is not in it, as much as it likes
    limits: Amounts = ()  # of the whole quota

    @property
    def key(self) -> QuotaKey:
        """What it is found by."""
        return self.org, self.quota

    @property
    def scope(self) -> tuple[str | None, str | None]:
        """Whose jobs are counted."""
        return self.account, self.user

    @property
    def share(self) -> Share:
        """What a scheduler is told of it."""
        granted = dict(self.granted)
        gpus = {ANY_TYPE if name == GPUS else name.removeprefix(f"{GPUS}."): most
                for name, most in self.granted if name != JOBS}  # fmt: skip
        return Share(ceiling=tuple(sorted(gpus.items())), jobs_max=granted.get(JOBS))

    def counts(self, ask: Enqueue) -> bool:
        """Whether it counts a job of its org."""
        return self.account in (None, *ask.shares) and self.user in (None, ask.user)

    def is_exceeded_by(self, used: Mapping[str, int], milli: int, gpu_type: str) -> bool:
        """Whether a job more would be too much, besides what is used."""
        more = amounts_of_job(milli, (gpu_type,))
        return any(
            used.get(name, 0) + more[name] > most * unit_of(name)
            for name, most in self.granted
            if name in more
        )


def unit_of(name: str) -> int:
    """How finely something is counted."""
    return 1 if name == JOBS else MILLI


NOTHING: Final = Share(
    ceiling=((ANY_TYPE, 0),), jobs_max=0
)  # of a quota whose slice is not here yet


@value
class SliceReport:
    """What a pool knows of a quota, and what it has and wants of it."""

    n: int = 0  # of the slice that it knows
    used: Amounts = ()
    wanted: Amounts = ()  # what waits for it and what is used, together


@value
class PoolSlice:
    """What an org has given a pool, and the most that the pool can have."""

    pool: str
    slice: Slice
    bounds: Amounts = ()  # unknown for what is not in it


@value
class RunningQuota:
    """A quota of GPUs or jobs at once; one that was dropped limits nothing."""

    org: str
    id: str
    account: str | None = None
    user: str | None = None
    limits: Amounts = ()


def first_slice(quota: RunningQuota, pool: str) -> PoolSlice:
    """The slice of a pool before the org has written one: nothing is granted or known."""
    return PoolSlice(pool=pool, slice=Slice(org=quota.org, quota=quota.id))


def rebalance(
    quota: RunningQuota,
    parts: Sequence[PoolSlice],
    reports: Mapping[str, SliceReport],
    now: Instant,
) -> tuple[PoolSlice, ...]:
    """Divide a quota anew among its pools, by their reports."""
    names = sorted(part.pool for part in parts)
    turn = now // TURN_SPAN % max(len(names), 1)
    division = _Division(
        {part.pool: _apply_report(quota, part, reports.get(part.pool)) for part in parts},
        reports,
        (*names[turn:], *names[:turn]),
    )
    for name, limit in quota.limits:
        division.divide(name, limit)
    return tuple(division.new_slice(quota, part) for part in parts)


def _apply_report(quota: RunningQuota, part: PoolSlice, report: SliceReport | None) -> PoolSlice:
    """Update the bounds of a pool by its report.

    A report about a slice with another scope counts other jobs, and proves nothing.
    """
    if part.slice.scope != (quota.account, quota.user):
        return replace(part, slice=replace(part.slice, granted=()), bounds=())
    if report is None or report.n != part.slice.n:
        return part
    used, bounds = dict(report.used), dict(part.bounds)
    for name, most in part.slice.granted:
        can = max(most, used.get(name, 0))
        bounds[name] = min(bounds.get(name, can), can)
    return replace(part, bounds=tuple(sorted(bounds.items())))


class _Division:
    """Divides one quota: from the present slices to the new ones."""

    def __init__(
        self,
        parts: Mapping[str, PoolSlice],
        reports: Mapping[str, SliceReport],
        turns: Sequence[str],
    ) -> None:
        self._parts = parts
        self._turns = turns  # pools, the one whose turn it is first
        self._used = {pool: dict(report.used) for pool, report in reports.items()}
        self._wanted = {pool: dict(report.wanted) for pool, report in reports.items()}
        self._was = {pool: dict(part.slice.granted) for pool, part in parts.items()}
        self._granted: dict[str, dict[str, int]] = {pool: {} for pool in parts}
        self._bounds = {pool: dict(part.bounds) for pool, part in parts.items()}

    def divide(self, name: str, limit: int) -> None:
        """Lower at once what shall be less, and raise what the others surely leave."""
        for pool, target in self._targets(name, limit).items():
            now = self._was[pool].get(name, 0)
            if target > now:
                target = max(now, min(target, self._room(name, limit, pool)))
                bound = self._bounds[pool].get(name)
                if bound is not None:
                    self._bounds[pool][name] = max(bound, target)
            self._granted[pool][name] = target

    def _room(self, name: str, limit: int, pool: str) -> int:
        """How much a pool may have with certainty."""
        others = [self._bounds[other].get(name) for other in self._turns if other != pool]
        known = [bound for bound in others if bound is not None]
        return limit - sum(known) if len(known) == len(others) else 0

    def _targets(self, name: str, limit: int) -> dict[str, int]:
        """What each pool should have: what it uses, what it wants, what it has in vain."""
        targets = dict.fromkeys(self._turns, 0)
        for having in (self._used, self._wanted, self._was):
            for pool in self._turns:
                more = having.get(pool, {}).get(name, 0) - targets[pool]
                more_granted = min(max(more, 0), limit)
                targets[pool] += more_granted
                limit -= more_granted
        if limit and targets:
            targets[min(targets)] += limit
        return targets

    def new_slice(self, quota: RunningQuota, before: PoolSlice) -> PoolSlice:
        """The new slice of a pool; it gets a new number if anything changes."""
        pool, old = before.pool, before.slice
        granted = tuple(sorted(self._granted[pool].items()))
        new = replace(
            old, account=quota.account, user=quota.user, granted=granted, limits=quota.limits
        )
        if new != old or not old.n:
            new = replace(new, n=old.n + 1)
        limited = dict(quota.limits)
        bounds = ((name, most) for name, most in self._bounds[pool].items() if name in limited)
        return PoolSlice(pool=pool, slice=new, bounds=tuple(sorted(bounds)))
