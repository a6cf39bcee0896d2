"""Quotas of GPUs and running jobs, divided among pools (B4).

The problem. A quota belongs to an org, running jobs belong to pools, and no transaction touches
both (D4). So the org divides a quota: each pool gets a slice, and starts no jobs beyond it. Slices
change with demand. At every moment, even if messages are lost or late, all pools together must stay
within the quota.

    quota 8        east has 6, uses 5             west has 2, wants 4
    lower first    new slice of east: 5 (n=4)     until east confirms n=4, it may use 6
    then raise     east confirms n=4, uses 5      new slice of west: 3 (n=7)

For each pool the org stores a *bound*: the most that the pool may be using. Lowering a slice leaves
the bound unchanged until the pool confirms the slice and reports its usage. From then on the pool
starts nothing above its slice, so the bound is the larger of slice and usage, and falls as jobs
end. A slice is raised only as far as all bounds together stay within the quota. Slices are
numbered. A pool accepts a slice that is newer than its own, and its reports contain the number it
has. So slices and reports may be lost, repeated, late or out of order.

The total of GPUs, the GPUs of each type and the jobs are divided independently. A pool keeps what
it uses. What is free goes to the pools that want it, one pool after the other, because a gang
cannot start on half of what it needs. The first pool changes with time, so that none waits forever.
What no pool wants stays where it is.

Alternatives that were rejected. One counter per org, updated at each start: every start would wait
for a transaction of the org. Slices that expire: all clocks would have to agree, and a pool that is
cut off would lose what its jobs are using.
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
    """The name under which GPUs of a type are counted."""
    return f"{GPUS}.{gpu_type}"


def amounts_of_job(milli: int, types: Iterable[str]) -> dict[str, int]:
    """What a job counts, in thousandths of a GPU and in jobs."""
    return {GPUS: milli, JOBS: 1, **{type_key(gpu_type): milli for gpu_type in types}}


@value
class Slice:
    """A pool's part of a quota, and the scope of jobs that it counts."""

    org: str
    quota: str
    n: int = 0  # of what the org has written for this pool; 0 before that
    account: str | None = None  # with all below it; any if there is none
    user: str | None = None  # or any
    granted: Amounts = ()  # of what is not in it, as much as it likes
    limits: Amounts = ()  # of the whole quota

    @property
    def key(self) -> QuotaKey:
        """The org and the quota."""
        return self.org, self.quota

    @property
    def scope(self) -> tuple[str | None, str | None]:
        """The account and user whose jobs count."""
        return self.account, self.user

    @property
    def share(self) -> Share:
        """The slice as a limit of the scheduler."""
        granted = dict(self.granted)
        gpus = {ANY_TYPE if name == GPUS else name.removeprefix(f"{GPUS}."): most
                for name, most in self.granted if name != JOBS}  # fmt: skip
        return Share(ceiling=tuple(sorted(gpus.items())), jobs_max=granted.get(JOBS))

    def counts(self, ask: Enqueue) -> bool:
        """Whether it counts a job of its org."""
        return self.account in (None, *ask.shares) and self.user in (None, ask.user)

    def is_exceeded_by(self, used: Mapping[str, int], milli: int, gpu_type: str) -> bool:
        """Whether one more job would exceed the slice, given what is used."""
        more = amounts_of_job(milli, (gpu_type,))
        return any(
            used.get(name, 0) + more[name] > most * unit_of(name)
            for name, most in self.granted
            if name in more
        )


def unit_of(name: str) -> int:
    """The unit in which something is counted."""
    return 1 if name == JOBS else MILLI


NOTHING: Final = Share(
    ceiling=((ANY_TYPE, 0),), jobs_max=0
)  # of a quota whose slice is not here yet


@value
class SliceReport:
    """A pool's report on a quota: the slice it has, and what it uses and wants."""

    n: int = 0  # of the slice that it knows
    used: Amounts = ()
    wanted: Amounts = ()  # what waits for it and what is used, together


@value
class PoolSlice:
    """The slice that an org has given to a pool, and the bound of what the pool may be using."""

    pool: str
    slice: Slice
    bounds: Amounts = ()  # unknown for what is not in it


@value
class RunningQuota:
    """A quota of GPUs or running jobs; a deleted one has no limits."""

    org: str
    id: str
    account: str | None = None
    user: str | None = None
    limits: Amounts = ()


def first_slice(quota: RunningQuota, pool: str) -> PoolSlice:
    """The slice of a pool before the org has written one: nothing is granted."""
    return PoolSlice(pool=pool, slice=Slice(org=quota.org, quota=quota.id))


def rebalance(
    quota: RunningQuota,
    parts: Sequence[PoolSlice],
    reports: Mapping[str, SliceReport],
    now: Instant,
) -> tuple[PoolSlice, ...]:
    """Divide a quota among its pools again, by their reports."""
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
    """Update the bounds of a pool from its report.

    A report about a slice with another scope counts other jobs, and is ignored.
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
    """Divides one quota: computes the new slices from the current ones."""

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
        """Lower slices at once, and raise others as far as the bounds allow."""
        for pool, target in self._targets(name, limit).items():
            now = self._was[pool].get(name, 0)
            if target > now:
                target = max(now, min(target, self._room(name, limit, pool)))
                bound = self._bounds[pool].get(name)
                if bound is not None:
                    self._bounds[pool][name] = max(bound, target)
            self._granted[pool][name] = target

    def _room(self, name: str, limit: int, pool: str) -> int:
        """How much a pool may have so that the bounds stay within the quota."""
        others = [self._bounds[other].get(name) for other in self._turns if other != pool]
        known = [bound for bound in others if bound is not None]
        return limit - sum(known) if len(known) == len(others) else 0

    def _targets(self, name: str, limit: int) -> dict[str, int]:
        """What each pool should have: what it uses, then what it wants, then what it had."""
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
        """The new slice of a pool, with a new number if anything has changed."""
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
