"""Quotas at submission: how many jobs may wait, how many may come in a minute (B4, S8).

They are counted under the org's lock, together with what the same transaction has submitted before:
so none is passed, however many ask at once. What a quota says is read a moment before. GPUs at once
are counted by the pool; a job that alone needs more would wait for ever, and is refused here.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from bursar.core.ids import AccountId, OrgId
from bursar.core.instant import MINUTE, Instant
from bursar.core.ledger.books import Books, require
from bursar.core.ledger.commands import Reserve
from bursar.core.ledger.values import MILLI_GPUS_MAX
from bursar.core.messages import Spec
from bursar.core.refusal import Code, Refusal
from bursar.store.jobs.arrays import count_to_come
from bursar.store.jobs.quota_slices import limits_of, quotas_for
from bursar.store.jobs.rows import Counting, Noted, count_latest, count_waiting
from bursar.store.sql.connection import Connection

MILLI = 1_000


class Quota(NamedTuple):
    """What an account with all below it, a user, or the pair may have."""

    id: str
    account: str | None
    user: str | None
    limits: dict[str, Any]

    def is_for(self, path: Sequence[str], user: str) -> bool:
        """Whether it counts what a user does for the first account of a path."""
        return self.account in (None, *path) and self.user in (None, user)

    def gpus_of(self, gpu_type: str) -> int:
        """How many GPUs of a type it lets have at once."""
        most: int = self.limits.get("gpus_max_by_type", {}).get(gpu_type, MILLI_GPUS_MAX)
        return most


def quotas_of(connection: Connection, org: OrgId, account: str, user: str) -> tuple[Quota, ...]:
    """The quotas that count what a user does for an account, as they are now."""
    return tuple(
        Quota(id, body.get("account_id"), body.get("user_id"), body)
        for id, body in quotas_for(connection, org, account, user)
    )


def counting(quotas: Iterable[Quota], path: Sequence[str], user: str) -> tuple[str, ...]:
    """The quotas of GPUs and jobs at once that count a job: its pool starts it within these."""
    return tuple(one.id for one in quotas if limits_of(one.limits) and one.is_for(path, user))


class Room(NamedTuple):
    """What is counted, and where."""

    connection: Connection
    org: OrgId
    books: Books
    noted: Sequence[Noted]  # of this transaction, and not written yet
    now: Instant

    def lacking(self, quotas: Iterable[Quota], ask: Reserve, spec: Spec) -> Refusal | None:
        """The first quota that a job would pass."""
        path = self.books.path(ask.account) if self.books.accounts.get(ask.account) else ()
        types = spec.shape.types
        for quota in quotas:
            if quota.is_for(path, ask.user):
                left = tuple(
                    one for one in types if quota.gpus_of(one) * MILLI >= spec.shape.milli_gpus
                )
                if not left:  # on none of them it could ever start
                    return _never(quota, types, spec)
                types = left
                refusal = self._passed(quota, spec, ask.lots or 1)
                if refusal is not None:
                    return refusal
        return None

    def _passed(self, quota: Quota, spec: Spec, jobs: int) -> Refusal | None:
        """That a quota is passed by so many jobs that are one submission."""
        limits = quota.limits
        gpus = limits.get("gpus_max")
        if gpus is not None and spec.shape.milli_gpus > gpus * MILLI:
            return _over(quota, "gpus_max", gpus, -(-spec.shape.milli_gpus // MILLI))
        if limits.get("jobs_running_max") == 0:
            return _over(quota, "jobs_running_max", 0, 1)
        most = limits.get("jobs_queued_max")
        if most is not None and (found := self._waiting(quota, most)) + jobs > most:
            return _over(quota, "jobs_queued_max", most, found)
        most = limits.get("submissions_per_minute_max")
        if most is not None and (found := self._latest(quota, most)) >= most:
            return _over(quota, "submissions_per_minute_max", most, found)
        return None

    def _waiting(self, quota: Quota, most: int) -> int:
        of = Counting(self._account(quota), quota.user, -1, most)
        to_come = count_to_come(self.connection, self.org, of.account, of.user)
        found = count_waiting(self.connection, self.org, of) + to_come
        return found + self._here(quota, self._arrays())

    def _latest(self, quota: Quota, most: int) -> int:
        of = Counting(self._account(quota), quota.user, self.now - MINUTE, most)
        return count_latest(self.connection, self.org, of) + self._here(quota, {})

    def _account(self, quota: Quota) -> str | None:
        """The account whose jobs are counted; all jobs are the root's: no tree is walked for it."""
        if quota.account is None:
            return None
        found = require(self.books.accounts, AccountId(quota.account))
        return None if found.parent is None else quota.account

    def _arrays(self) -> dict[tuple[OrgId, str], int]:
        """How many elements each array has that this very transaction has submitted."""
        return {one.values[:2]: one.values[2] for one in self.noted if one.statement == "array"}

    def _here(self, quota: Quota, elements: Mapping[tuple[OrgId, str], int]) -> int:
        """Jobs that this very transaction has submitted; an array for as many as is said."""
        own = (
            one.values
            for one in self.noted
            if one.statement == "submit" and one.values[0] == self.org
        )
        return sum(
            elements.get((org, job), 1)
            for org, job, account, user, *_ in own
            if quota.is_for(self.books.path(AccountId(account)), user)
        )


def _never(quota: Quota, types: Sequence[str], spec: Spec) -> Refusal:
    """That a job needs more GPUs than a quota has of any of these types."""
    most, gpu_type = max((quota.gpus_of(one), one) for one in types)
    return _over(quota, f"gpus_max_by_type.{gpu_type}", most, -(-spec.shape.milli_gpus // MILLI))


def _over(quota: Quota, name: str, limit: int, found: int) -> Refusal:
    figures = {"quota_id": quota.id, "limit_name": name, "limit_count": limit, "found_count": found}
    return Refusal(Code.QUOTA_EXCEEDED, figures)
