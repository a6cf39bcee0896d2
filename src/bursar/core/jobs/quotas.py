"""Quotas that are checked at submission: waiting jobs, and submissions per minute (B4, S8).

Jobs are counted under the org's lock, including changes by earlier commands of the same
transaction. So concurrent requests cannot exceed a quota. The limits themselves are read shortly
before. The pool checks the quotas of GPUs and running jobs. A job that alone needs more than such a
quota would wait forever, and is refused here.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from bursar.core.dispatch.job_lifecycle import WAITING
from bursar.core.ids import AccountId
from bursar.core.instant import MINUTE, Instant
from bursar.core.jobs.rows import ArrayProgress, OrgJob
from bursar.core.jobs.transaction import JobTransaction
from bursar.core.ledger.books import Books, require
from bursar.core.ledger.commands import Reserve
from bursar.core.ledger.values import MILLI_GPUS_MAX
from bursar.core.messages import JobSpec
from bursar.core.refusal import Code, Refusal

MILLI: Final = 1_000
_AT_ONCE: Final = ("gpus_max", "jobs_running_max")


class Quota(NamedTuple):
    """The limits of an account with all below it, of a user, or of a user in an account."""

    id: str
    account: str | None
    user: str | None
    limits: Mapping[str, Any]

    def is_for(self, path: Sequence[str], user: str) -> bool:
        """Whether it applies to a user in the first account of a path."""
        return self.account in (None, *path) and self.user in (None, user)

    def gpus_of(self, gpu_type: str) -> int:
        """How many GPUs of a type it allows at the same time."""
        most: int = self.limits.get("gpus_max_by_type", {}).get(gpu_type, MILLI_GPUS_MAX)
        return most

    @property
    def limits_running_jobs(self) -> bool:
        """Whether the pool must check it: it limits GPUs or running jobs."""
        limits = self.limits
        return bool(limits.get("gpus_max_by_type")) or any(name in limits for name in _AT_ONCE)


def counting_in_pool(quotas: Iterable[Quota], path: Sequence[str], user: str) -> tuple[str, ...]:
    """The quotas of GPUs and running jobs that apply to a job; its pool checks them."""
    return tuple(
        quota.id for quota in quotas if quota.limits_running_jobs and quota.is_for(path, user)
    )


class QuotaCheck(NamedTuple):
    """Checks a submission against quotas, including the changes of the transaction."""

    jobs: JobTransaction
    books: Books
    now: Instant

    def first_exceeded(
        self, quotas: Iterable[Quota], reserve: Reserve, spec: JobSpec
    ) -> Refusal | None:
        """The refusal by the first quota that a submission would exceed."""
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
                refusal = self._exceeded(quota, spec, reserve.element_count or 1)
                if refusal is not None:
                    return refusal
        return None

    def _exceeded(self, quota: Quota, spec: JobSpec, jobs: int) -> Refusal | None:
        """The refusal if a submission of this many jobs exceeds a quota."""
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
        """How many jobs wait; counting stored jobs may stop at the limit."""
        change = self._change_of_waiting(quota)
        bound = most + max(-change, 0)
        return self.jobs.reads.count_waiting(self._account(quota), quota.user, bound) + change

    def _latest(self, quota: Quota, most: int) -> int:
        since = self.now - MINUTE
        count = self.jobs.reads.count_latest(self._account(quota), quota.user, since, most)
        return count + sum(
            1 for job in self.jobs.new_jobs() if job.array is None and self._counts(quota, job)
        )

    def _account(self, quota: Quota) -> str | None:
        """The account whose jobs count; None for the root, which has all jobs of the org."""
        if quota.account is None:
            return None
        account = require(self.books.accounts, AccountId(quota.account))
        return None if account.parent is None else quota.account

    def _change_of_waiting(self, quota: Quota) -> int:
        """How many more jobs wait than are stored, by this transaction's changes.

        Elements that were not added to the pool yet count as waiting.
        """
        jobs = self.jobs
        change = 0
        for id, job in jobs.jobs.items():
            more = _waits(job) - (0 if id in jobs.added else _waits(jobs.reads.job(id)))
            if more and self._counts(quota, job):
                change += more
        for id, array in jobs.arrays.items():
            stored = None if id in jobs.arrays_added else jobs.reads.array(id)
            more = _to_begin(array) - _to_begin(stored)
            if more and self._counts(quota, jobs.job(id)):
                change += more
        return change

    def _counts(self, quota: Quota, job: OrgJob) -> bool:
        return quota.is_for(self.books.path(job.account), job.user)


def _waits(job: OrgJob | None) -> int:
    """1 if a job waits. An array does not wait itself: its elements do."""
    return int(job is not None and job.elements is None and job.state in WAITING)


def _to_begin(array: ArrayProgress | None) -> int:
    """How many elements of an array are still to be added."""
    return 0 if array is None or array.closed else array.elements - array.begun


def _never(quota: Quota, types: Sequence[str], spec: JobSpec) -> Refusal:
    """The refusal if a job needs more GPUs than a quota allows, for each acceptable type."""
    most, gpu_type = max((quota.gpus_of(kind), kind) for kind in types)
    return _over(quota, f"gpus_max_by_type.{gpu_type}", most, -(-spec.shape.milli_gpus // MILLI))


def _over(quota: Quota, name: str, limit: int, count: int) -> Refusal:
    figures = {"quota_id": quota.id, "limit_name": name, "limit_count": limit, "found_count": count}
    return Refusal(Code.QUOTA_EXCEEDED, figures)
