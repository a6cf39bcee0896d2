"""Jobs that would outlast all others: see `backlog` for why they come first."""

from collections.abc import Iterator
from itertools import islice
from typing import Final

from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.jobs import Job
from bursar.core.scheduling.order.share_group import ShareGroup

OUTLASTING_CANDIDATES: Final = 16  # a user's longest jobs that are checked


def outlasts_all(cluster: Cluster, job: Job, ran: int = 0) -> bool:
    """Whether a job with an estimate lasts longer than the pool has other work.

    `ran` is how long it has run already, in microseconds.
    """
    remaining = job.expected_run - ran
    if not (cluster.policy.orders_by_work and job.estimate is not None and remaining > 0):
        return False
    return cluster.backlog.is_outlasted_by(job, remaining, cluster.now, cluster.nodes.gpus)


def outlasting_jobs(cluster: Cluster, user: ShareGroup) -> Iterator[Job]:
    """A user's jobs of its highest class that would outlast all others, the longest first."""
    first = user.queue_heads.first()
    for negative_class, _, job_id in islice(user.longest, OUTLASTING_CANDIDATES):
        job = cluster.waiting[job_id]
        if first is None or negative_class != first[0] or not outlasts_all(cluster, job):
            return
        yield job
