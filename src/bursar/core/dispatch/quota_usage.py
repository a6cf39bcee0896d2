"""What a pool's jobs have and want of their orgs' quotas, kept up row by row (B4).

A job counts in every slice of its org that is about its account or user, and in those quotas that
it names: what it named at its submission and the pool knows no slice of, it may have nothing of. So
a pool that has not heard of a quota yet starts nothing that the quota counts.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from bursar.core.messages import Enqueue
from bursar.core.quota_slices import Amounts, QuotaKey, Slice, SliceReport, amounts_of_job, unit_of


class LiveJob(NamedTuple):
    """A job that has GPUs, and the lease by which it has them."""

    fence: int
    org: str
    request: Enqueue
    gpu_type: str


LiveJobs: TypeAlias = Callable[[], Iterable[LiveJob]]


class QuotaTally(NamedTuple):
    """What lives and what waits, in thousandths of a GPU and in jobs."""

    used: Counter[str]
    waiting: Counter[str]


class Entry(NamedTuple):
    """What a row counts, and where."""

    keys: tuple[QuotaKey, ...]
    amounts: dict[str, int]


@dataclass(slots=True)
class QuotaUsage:
    """The slices of a pool, and what is counted in each."""

    slices: dict[str, dict[str, Slice]] = field(default_factory=dict)  # by org and quota
    tallies: dict[QuotaKey, QuotaTally] = field(default_factory=dict)
    _live: dict[int, Entry] = field(default_factory=dict)  # by fence
    _waiting: dict[tuple[str, str], Entry] = field(default_factory=dict)  # by org and job

    def slice(self, key: QuotaKey) -> Slice | None:
        """A slice that the pool knows."""
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
        """Know a slice; whether it counts other jobs than before."""
        old = self.slice(new.key)
        self.slices.setdefault(new.org, {})[new.quota] = new
        return old is None or old.scope != new.scope

    def set_waiting(self, job: tuple[str, str], ask: Enqueue | None) -> None:
        """A job waits, or (None) waits no more."""
        if (old := self._waiting.pop(job, None)) is not None:
            self._add(old, -1, live=False)
        if ask is not None and (keys := self.keys(job[0], ask)):
            shape = ask.spec.shape
            new = self._waiting[job] = Entry(keys, amounts_of_job(shape.milli_gpus, shape.types))
            self._add(new, 1, live=False)

    def add_live(self, fence: int, org: str, ask: Enqueue, gpu_type: str) -> None:
        """A job has GPUs."""
        if fence not in self._live and (keys := self.keys(org, ask)):
            new = self._live[fence] = Entry(keys, amounts_of_job(ask.milli_gpus, (gpu_type,)))
            self._add(new, 1, live=True)

    def remove_live(self, fence: int) -> None:
        """A lease has ended."""
        if (old := self._live.pop(fence, None)) is not None:
            self._add(old, -1, live=True)

    def used(self, key: QuotaKey) -> Counter[str]:
        """What lives and is counted by a quota."""
        tally = self.tallies.get(key)
        return Counter() if tally is None else tally.used

    def report_of(self, org: str) -> dict[str, SliceReport]:
        """What the pool knows of an org's quotas, has and wants of them."""
        known = dict.fromkeys(quota for of, quota in self.tallies if of == org)
        known |= dict.fromkeys(self.slices.get(org, {}))
        return {quota: self._report((org, quota)) for quota in sorted(known)}

    def orgs_to_divide(self) -> list[str]:
        """The orgs whose quotas should be divided anew: more is wanted, or there is too much."""
        orgs = {key[0] for key in self.tallies if self._needs_division(key)}
        return sorted(orgs)

    def recounted(self, leases: Iterable[LiveJob]) -> "QuotaUsage":
        """The same slices with what has GPUs counted anew, and nothing that waits yet."""
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
    """In whole GPUs, rounded up, and jobs."""
    return tuple(
        (name, -(-amount // unit_of(name))) for name, amount in sorted(counter.items()) if amount
    )


class QuotaClaims:
    """What one transaction changes of what is counted, and whether there is room for more."""

    def __init__(self, counted: QuotaUsage) -> None:
        self._usage = counted
        self.new: dict[QuotaKey, Slice] = {}  # slices that are newer than those the pool knows
        self._more: dict[QuotaKey, Counter[str]] = {}

    def put_slice(self, quota_slice: Slice) -> None:
        """Know a slice; one that is no newer than what is known is left alone."""
        known = self.new.get(quota_slice.key) or self._usage.slice(quota_slice.key)
        if known is None or known.n < quota_slice.n:
            self.new[quota_slice.key] = quota_slice

    def count(self, org: str, ask: Enqueue, gpu_type: str, way: int) -> None:
        """A job has GPUs (1), or has them no more (-1)."""
        for key in self._usage.keys(org, ask):
            more = self._more.setdefault(key, Counter())
            for name, amount in amounts_of_job(ask.milli_gpus, (gpu_type,)).items():
                more[name] += way * amount

    def exceeds(self, org: str, ask: Enqueue, gpu_type: str, lives: LiveJobs) -> bool:
        """Whether a job is too much for a quota; `lives` are all that have GPUs."""
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
        """The slices of an org once this transaction is kept, and nothing counted yet."""
        new = {quota: quota_slice for (of, quota), quota_slice in self.new.items() if of == org}
        return QuotaUsage(slices={org: {**self._usage.slices.get(org, {}), **new}})

    def _used(self, key: QuotaKey) -> Counter[str]:
        used = Counter(self._usage.used(key))
        used.update(self._more.get(key, {}))
        return used
