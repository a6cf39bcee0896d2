"""Jobs that have waited too long: those with a date, and the oldest of each other user."""

from itertools import islice
from typing import Final

from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.jobs import Job

OLDEST_CANDIDATES: Final = 16  # jobs of one user that are checked for one that can start


def jobs_with_date(cluster: Cluster) -> list[Job]:
    """Jobs that were promised a date, the first promise first."""
    return [cluster.waiting[job_id] for _, job_id in cluster.waiting_index.with_date]


def overdue_jobs(cluster: Cluster) -> list[list[Job]]:
    """For each user without a date: its oldest jobs that have waited too long and pass no ceiling.

    The first of a user's jobs that can start or get a date does. The result has at most
    `PoolPolicy.looks` users.
    """
    tree, now = cluster.tree, cluster.now
    dated_users = {job.path for job in jobs_with_date(cluster)}
    jobs_by_user: list[list[Job]] = []
    for at, path in tree.queues.aged_users:
        if at > now or len(jobs_by_user) == cluster.policy.looks:
            break
        if path in dated_users:
            continue
        oldest = islice(tree.groups.user_group(path).oldest, OLDEST_CANDIDATES)
        late = [cluster.waiting[job] for aged_at, job in oldest if aged_at <= now]
        first = {first.id: first for job in late for first in (_earliest(cluster, job), job)}
        if open_jobs := [job for job in first.values() if cluster.open_types(job)]:
            jobs_by_user.append(open_jobs)
    return jobs_by_user


def _earliest(cluster: Cluster, job: Job) -> Job:
    """The earliest overdue job of the same user, class and size: it could preempt the others."""
    return next(cluster.overtaken.earlier_overdue(job), job)
