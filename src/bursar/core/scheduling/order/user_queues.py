"""The queues of all users: which of a user's jobs is next, and when its oldest has waited too long.

A user has one queue for each kind of job (`Job.queue_key`), because jobs of one kind start or wait
for the same reasons. A queue is in the order of the policy (`PoolPolicy.order_key`).
"""

from typing import Any

from bursar.core.ids import JobId
from bursar.core.instant import Instant
from bursar.core.scheduling.model.jobs import Job, Path
from bursar.core.scheduling.model.policy import PoolPolicy
from bursar.core.scheduling.order.share_group import ShareGroup
from bursar.core.sorted_set import SortedSet


class UserQueues:
    """Maintains the queues of the users' groups, and two orders over all of them."""

    def __init__(self, policy: PoolPolicy) -> None:
        self._policy = policy
        # When the oldest job of each user has waited too long.
        self.aged_users: SortedSet[tuple[Instant, Path]] = SortedSet()
        # By org: waiting jobs, the highest class first (as a negative number).
        self.waiting_classes: dict[Path, SortedSet[tuple[int, JobId]]] = {}

    def add(self, user: ShareGroup, job: Job, now: Instant) -> None:
        """Put a job into its user's queue."""
        queue = user.queues.get(job.queue_key)
        if queue is None:
            queue = user.queues[job.queue_key] = SortedSet()
        head = queue.first()
        queue.add(self._policy.order_key(job, now))
        _replace_head(user, head, queue.first())
        classes = self.waiting_classes.setdefault(job.path[:2], SortedSet())
        classes.add((-job.priority_class, job.id))
        oldest = user.oldest.first()
        user.oldest.add((self._policy.aged_at(job), job.id))
        if job.estimate is not None:
            user.longest.add(_length_key(job))
        self._replace_oldest(user, oldest)

    def remove(self, user: ShareGroup, job: Job, now: Instant) -> None:
        """Take a job out of its user's queue."""
        queue = user.queues[job.queue_key]
        head = queue.first()
        queue.discard(self._policy.order_key(job, now))
        _replace_head(user, head, queue.first())
        if not queue:
            del user.queues[job.queue_key]
        classes = self.waiting_classes[job.path[:2]]
        classes.discard((-job.priority_class, job.id))
        if not classes:
            del self.waiting_classes[job.path[:2]]
        oldest = user.oldest.first()
        user.oldest.discard((self._policy.aged_at(job), job.id))
        user.longest.discard(_length_key(job))
        self._replace_oldest(user, oldest)

    def highest_waiting_class(self, org: Path) -> int | None:
        """The highest class of an org's waiting jobs; None if none waits."""
        classes = self.waiting_classes.get(org)
        first = classes.first() if classes is not None else None
        return None if first is None else -first[0]

    def most_urgent_job(self, org: Path) -> JobId:
        """The waiting job of the highest class of an org that has one."""
        return next(iter(self.waiting_classes[org]))[1]

    def _replace_oldest(self, user: ShareGroup, before: tuple[Instant, JobId] | None) -> None:
        """Update `aged_users` if another job of the user is the oldest now."""
        after = user.oldest.first()
        if before != after:
            if before is not None:
                self.aged_users.discard((before[0], user.path))
            if after is not None:
                self.aged_users.add((after[0], user.path))


def _replace_head(user: ShareGroup, before: Any, after: Any) -> None:
    """Update the heads of a user's queues if another job comes first in one of them."""
    if before != after:
        if before is not None:
            user.queue_heads.discard(before)
        if after is not None:
            user.queue_heads.add(after)


def _length_key(job: Job) -> tuple[int, int, JobId]:
    """Orders a user's jobs by class, then the longest first."""
    return -job.priority_class, -job.expected_run, job.id
