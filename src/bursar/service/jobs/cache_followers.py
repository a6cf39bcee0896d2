"""Ends jobs that follow an identical job, and repairs groups without a leader (S13).

`core.jobs.result_cache` has the rules. When a leader ends, the relay ends a page of its followers
at once; one process at a time ends all others. Pages are small, so that other requests of the org
run between two pages.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from bursar.core.ids import JobId, OrgId
from bursar.core.instant import MINUTE
from bursar.core.jobs.result_cache import KEY, RepairGroup, end_follower
from bursar.core.jobs.rows import OrgJob
from bursar.core.ledger.commands import Lapse
from bursar.core.messages import Dropped, Ended
from bursar.service.jobs.job_worker import JobRounds, JobWorker, is_accepted
from bursar.service.ledger.batch import CommandRequest
from bursar.store.jobs.outbox import Envelope
from bursar.store.jobs.result_cache import (
    FIRST,
    Flight,
    FoundFollower,
    at_a_loss,
    due,
    due_alike,
    has_lost_leader,
)
from bursar.store.jobs.rows import enter

WORKER: Final = "result cache"
PAGE_SIZE: Final = 100  # followers that are read and ended together


class Followers(JobRounds):
    """Ends followers and repairs groups, on a connection and a ledger."""

    def of(self, flights: Iterable[Flight]) -> int:
        """End a page of followers of each of these groups; return how many have changed."""
        count = 0
        for flight in sorted(set(flights)):
            with self._connection.transaction():
                enter(self._connection, [flight[0]])
                lost = has_lost_leader(self._connection, flight)
                followers = due_alike(self._connection, flight, PAGE_SIZE)
            count += self._repair([(flight, False)] if lost else []) + self._end(followers)
        return count

    def round(self, goes_on: Callable[[], bool] = lambda: True) -> int:
        """End all followers that are due; return how many have changed."""
        count = 0
        last: Flight = ("", "")
        while goes_on() and (page := at_a_loss(self._connection, last, PAGE_SIZE)):
            last, _ = page[-1]
            count += self._repair(page)
        after = FIRST
        while goes_on() and (followers := due(self._connection, after, PAGE_SIZE)):
            after = followers[-1].place
            count += self._end(followers)
        return count

    def _repair(self, flights: Sequence[tuple[Flight, bool]]) -> int:
        """Make a follower the leader of each group without one; expire followers without a hold.

        Searching large groups for the latter is slow. So this was done before, without a lock, and
        is repeated under the lock only in groups that have such followers.
        """
        if not flights:
            return 0
        now = self._clock(self._connection)
        repairs = [RepairGroup(digest, unheld) for (_, digest), unheld in flights]
        asks = [
            CommandRequest(org, f"{KEY}/{digest}/{now}", Lapse(most=1), repair)
            for ((org, digest), _), repair in zip(flights, repairs, strict=True)
        ]
        answers = self._ledger(asks)
        return sum(
            repair.count
            for repair, answer in zip(repairs, answers, strict=True)
            if is_accepted(answer)
        )

    def _end(self, followers: Sequence[FoundFollower]) -> int:
        """End followers; return how many the ledger accepted."""
        if not followers:
            return 0
        when = str(self._clock(self._connection) // MINUTE)
        asks = [CommandRequest(each.org, *end_follower(each.follower, when)) for each in followers]
        return sum(map(is_accepted, self._ledger(asks)))


def flights_of(
    envelopes: Iterable[Envelope], jobs: dict[tuple[OrgId, JobId], OrgJob]
) -> set[Flight]:
    """The groups whose leaders ended, or wait again, by these messages."""
    return {
        (envelope.org, job.digest)
        for envelope in envelopes
        if isinstance(envelope.message, Ended | Dropped)
        and (job := jobs.get((envelope.org, envelope.job))) is not None
        and job.digest is not None
    }


class FollowerWorker(JobWorker):
    """Ends followers while this process holds the lease."""

    lease_name = WORKER
    rounds_class = Followers
    default_interval_s = 1.0
