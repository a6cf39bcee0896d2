"""Quotas at submission: how many jobs may wait, how many may come in a minute (B4, S8).

Jobs are counted under the org's lock, together with those that the same transaction has submitted
before: so no quota is passed, however many requests come at once. What a quota says is read a
moment before. GPUs at once are counted by the pool; a job that alone needs more would wait for
ever, and is refused here.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from bursar.core.ids import AccountId
from bursar.core.instant import MINUTE, Instant
from bursar.core.jobs.transaction import JobTransaction
from bursar.core.ledger.books import Books, require
from bursar.core.ledger.commands import Reserve
from bursar.core.ledger.values import MILLI_GPUS_MAX
from bursar.core.messages import JobSpec
from bursar.core.refusal import Code, Refusal

MILLI: Final = 1_000
_AT_ONCE: Final = ("gpus_max", "jobs_running_max")


class Quota(NamedTuple):
    """What an account with all below it, a user, or the pair may have."""

    id: str
    account: str | None
    user: str | None
    limits: Mapping[str, Any]

    def is_for(self, path: Sequence[str], user: str) -> bool:
        """Whether it counts what a user does for the first account of a path."""
        return self.account in (None, *path) and self.user in (None, user)

    def gpus_of(self, gpu_type: str) -> int:
        """How many GPUs of a type it allows at once."""
        most: int = self.limits.get("gpus_max_by_type", {}).get(gpu_type, MILLI_GPUS_MAX)
        return most

    @property
    def limits_running_jobs(self) -> bool:
        """Whether the pool has to count it: GPUs or jobs at once."""
        limits = self.limits
        return bool(limits.get("gpus_max_by_type")) or any(name in limits for name in _AT_ONCE)


def counting_in_pool(quotas: Iterable[Quota], path: Sequence[str], user: str) -> tuple[str, ...]:
    """The quotas of GPUs and jobs at once that count a job: its pool starts it within these."""
    return tuple(
        quota.id for quota in quotas if quota.limits_running_jobs and quota.is_for(path, user)
    )


class QuotaCheck(NamedTuple):
    """Counts jobs against quotas, with what the same transaction has submitted."""

    jobs: JobTransaction
    books: Books
    now: Instant

    def first_exceeded(
        self, quotas: Iterable[Quota], reserve: Reserve, spec: JobSpec
    ) -> Refusal | None:
        """The first quota that a submission would exceed."""
        known = self.books.accounts.get(reserve.account)
        path = self.books.path(reserve.account) if known else ()
        types = spec.shape.types
        for quota in quotas:
            if quota.is_for(path, reserve.user):
                enough = tuple(
                    kind for kind in types if quota.gpus_of(kind) * MILLI >= spec.shape.milli_gpus
                )
                if not enough:  # it could never start on any of them
                    return _never(quota, types, spec)
                types = enough
                refusal = self._exceeded(quota, spec, reserve.lots or 1)
                if refusal is not None:
                    return refusal
        return None

    def _exceeded(self, quota: Quota, spec: JobSpec, jobs: int) -> Refusal | None:
        """A refusal if a submission of so many jobs exceeds a quota."""
        limits = quota.limits
        gpus = limits.get("gpus_max")
        if gpus is not None and spec.shape.milli_gpus > gpus * MILLI:
            return _over(quota, "gpus_max", gpus, -(-spec.shape.milli_gpus // MILLI))
        if limits.get("jobs_running_max") == 0:
            return _over(quota, "jobs_running_max", 0, 1)
        most = limits.get("jobs_queued_max")
        if most is not None and (count := self._waiting(quota, most)) + jobs > most:
            return _over(quota, "jobs_queued_max", most, count)
        most = limits.get("submissions_per_minute_max")
        if most is not None and (count := self._latest(quota, most)) >= most:
            return _over(quota, "submissions_per_minute_max", most, count)
        return None

    def _waiting(self, quota: Quota, most: int) -> int:
        count = self.jobs.reads.count_waiting(self._account(quota), quota.user, most)
        return count + sum(1 if job is None else job for job in self._submitted_here(quota))

    def _latest(self, quota: Quota, most: int) -> int:
        since = self.now - MINUTE
        count = self.jobs.reads.count_latest(self._account(quota), quota.user, since, most)
        return count + sum(1 for _ in self._submitted_here(quota))

    def _account(self, quota: Quota) -> str | None:
        """The account whose jobs are counted; all jobs are the root's: no tree is walked for it."""
        if quota.account is None:
            return None
        account = require(self.books.accounts, AccountId(quota.account))
        return None if account.parent is None else quota.account

    def _submitted_here(self, quota: Quota) -> Iterable[int | None]:
        """The submissions of this transaction that a quota counts: how many elements each has."""
        return (
            job.elements
            for job in self.jobs.new_jobs()
            if job.array is None and quota.is_for(self.books.path(job.account), job.user)
        )


def _never(quota: Quota, types: Sequence[str], spec: JobSpec) -> Refusal:
    """A job needs more GPUs than a quota has of any of these types."""
    most, gpu_type = max((quota.gpus_of(kind), kind) for kind in types)
    return _over(quota, f"gpus_max_by_type.{gpu_type}", most, -(-spec.shape.milli_gpus // MILLI))


def _over(quota: Quota, name: str, limit: int, count: int) -> Refusal:
    figures = {"quota_id": quota.id, "limit_name": name, "limit_count": limit, "found_count": count}
    return Refusal(Code.QUOTA_EXCEEDED, figures)
