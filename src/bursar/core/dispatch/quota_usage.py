"""Counts how much of their orgs' quotas the jobs of a pool use and wait for (B4).

A job counts in every slice of its org that covers its account or user. It also counts in the quotas
listed in its `Enqueue` message, even if the pool has no slice of them yet. The limit is then zero:
a pool starts no job under a quota before it has received its slice.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from bursar.core.messages import Enqueue
from bursar.core.quota_slices import Amounts, QuotaKey, Slice, SliceReport, amounts_of_job, unit_of


class LiveJob(NamedTuple):
    """A job that has GPUs, with the data of its lease."""

    fence: int
    org: str
    request: Enqueue
    gpu_type: str


LiveJobs: TypeAlias = Callable[[], Iterable[LiveJob]]


class QuotaTally(NamedTuple):
    """What is in use and what waits, in thousandths of a GPU and in jobs."""

    used: Counter[str]
    waiting: Counter[str]


class Entry(NamedTuple):
    """The amounts that a job counts, and the quotas that count them."""

    keys: tuple[QuotaKey, ...]
    amounts: dict[str, int]


@dataclass(slots=True)
class QuotaUsage:
    """The slices of a pool, and what counts against each."""

    slices: dict[str, dict[str, Slice]] = field(default_factory=dict)  # by org and quota
    tallies: dict[QuotaKey, QuotaTally] = field(default_factory=dict)
    _live: dict[int, Entry] = field(default_factory=dict)  # by fence
    _waiting: dict[tuple[str, str], Entry] = field(default_factory=dict)  # by org and job

    def slice(self, key: QuotaKey) -> Slice | None:
        """The pool's slice of a quota; None if it has none."""
        return self.slices.get(key[0], {}).get(key[1])

    def keys(self, org: str, ask: Enqueue) -> tuple[QuotaKey, ...]:
        """The quotas that count a job, sorted."""
        known = self.slices.get(org, {})
        if not known and not ask.quotas:
            return ()
        quotas = {quota for quota, quota_slice in known.items() if quota_slice.counts(ask)}
        quotas |= {quota for quota in ask.quotas if quota not in known}
        return tuple((org, quota) for quota in sorted(quotas))

    def put(self, new: Slice) -> bool:
        """Store a slice; return whether it counts other jobs than before."""
        old = self.slice(new.key)
        self.slices.setdefault(new.org, {})[new.quota] = new
        return old is None or old.scope != new.scope

    def set_waiting(self, job: tuple[str, str], ask: Enqueue | None) -> None:
        """Record that a job waits, or, with None, that it does not any more."""
        if (old := self._waiting.pop(job, None)) is not None:
            self._add(old, -1, live=False)
        if ask is not None and (keys := self.keys(job[0], ask)):
            shape = ask.spec.shape
            new = self._waiting[job] = Entry(keys, amounts_of_job(shape.milli_gpus, shape.types))
            self._add(new, 1, live=False)

    def add_live(self, fence: int, org: str, ask: Enqueue, gpu_type: str) -> None:
        """Record that a job has GPUs."""
        if fence not in self._live and (keys := self.keys(org, ask)):
            new = self._live[fence] = Entry(keys, amounts_of_job(ask.milli_gpus, (gpu_type,)))
            self._add(new, 1, live=True)

    def remove_live(self, fence: int) -> None:
        """Record that a lease has ended."""
        if (old := self._live.pop(fence, None)) is not None:
            self._add(old, -1, live=True)

    def used(self, key: QuotaKey) -> Counter[str]:
        """What counts against a quota and is in use."""
        tally = self.tallies.get(key)
        return Counter() if tally is None else tally.used

    def report_of(self, org: str) -> dict[str, SliceReport]:
        """The state of an org's quotas in this pool: slice number, used and wanted amounts."""
        known = dict.fromkeys(quota for of, quota in self.tallies if of == org)
        known |= dict.fromkeys(self.slices.get(org, {}))
        return {quota: self._report((org, quota)) for quota in sorted(known)}

    def orgs_to_divide(self) -> list[str]:
        """The orgs whose quotas should be divided again: a slice is too small, or exceeded."""
        orgs = {key[0] for key in self.tallies if self._needs_division(key)}
        return sorted(orgs)

    def recounted(self, leases: Iterable[LiveJob]) -> "QuotaUsage":
        """The same slices with the live jobs counted again, and no waiting jobs yet."""
        usage = QuotaUsage(slices=self.slices)
        for live_job in leases:
            usage.add_live(*live_job)
        return usage

    def _add(self, entry: Entry, way: int, *, live: bool) -> None:
        for key in entry.keys:
            tally = self.tallies.get(key)
            if tally is None:
                tally = self.tallies[key] = QuotaTally(Counter(), Counter())
            counter = tally.used if live else tally.waiting
            for name, amount in entry.amounts.items():
                counter[name] += way * amount

    def _report(self, key: QuotaKey) -> SliceReport:
        known = self.slice(key)
        used = self.used(key)
        return SliceReport(
            n=0 if known is None else known.n,
            used=_rounded(used),
            wanted=_rounded(used + self._waiting_of(key)),
        )

    def _waiting_of(self, key: QuotaKey) -> Counter[str]:
        tally = self.tallies.get(key)
        return Counter() if tally is None else tally.waiting

    def _needs_division(self, key: QuotaKey) -> bool:
        known, seen = self.slice(key), self._report(key)
        wanted, used = dict(seen.wanted), dict(seen.used)
        if known is None:
            return bool(wanted)
        limits = dict(known.limits)
        return any(
            used.get(name, 0) > most or (wanted.get(name, 0) > most and most < limits[name])
            for name, most in known.granted
        )


def _rounded(counter: Counter[str]) -> Amounts:
    """Whole GPUs, rounded up, and jobs."""
    return tuple(
        (name, -(-amount // unit_of(name))) for name, amount in sorted(counter.items()) if amount
    )


class QuotaClaims:
    """The changes of one transaction to the counted amounts, and whether there is room for more."""

    def __init__(self, counted: QuotaUsage) -> None:
        self._usage = counted
        self.new: dict[QuotaKey, Slice] = {}  # slices that are newer than those the pool knows
        self._more: dict[QuotaKey, Counter[str]] = {}

    def put_slice(self, quota_slice: Slice) -> None:
        """Store a slice; one that is not newer than the known one is ignored."""
        known = self.new.get(quota_slice.key) or self._usage.slice(quota_slice.key)
        if known is None or known.n < quota_slice.n:
            self.new[quota_slice.key] = quota_slice

    def count(self, org: str, ask: Enqueue, gpu_type: str, way: int) -> None:
        """Record that a job gets GPUs (1) or returns them (-1)."""
        for key in self._usage.keys(org, ask):
            more = self._more.setdefault(key, Counter())
            for name, amount in amounts_of_job(ask.milli_gpus, (gpu_type,)).items():
                more[name] += way * amount

    def exceeds(self, org: str, ask: Enqueue, gpu_type: str, lives: LiveJobs) -> bool:
        """Whether a job would exceed a quota; `lives` yields all jobs that have GPUs."""
        known = self._usage_after(org) if self.new else self._usage
        for key in known.keys(org, ask):
            quota_slice = known.slice(key)
            if quota_slice is None:
                return True
            used = known.recounted(lives()).used(key) if self.new else self._used(key)
            if quota_slice.is_exceeded_by(used, ask.milli_gpus, gpu_type):
                return True
        return False

    def _usage_after(self, org: str) -> QuotaUsage:
        """The slices of an org after this transaction, with nothing counted yet."""
        new = {quota: quota_slice for (of, quota), quota_slice in self.new.items() if of == org}
        return QuotaUsage(slices={org: {**self._usage.slices.get(org, {}), **new}})

    def _used(self, key: QuotaKey) -> Counter[str]:
        used = Counter(self._usage.used(key))
        used.update(self._more.get(key, {}))
        return used
