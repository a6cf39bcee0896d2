"""Who has waited too long: jobs that have a date, and of each other user its oldest."""

from itertools import islice
from typing import Final

from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.jobs import Job

OLDEST_CANDIDATES: Final = 16  # jobs of one user that are looked at for one that can start


def jobs_with_date(cluster: Cluster) -> list[Job]:
    """Jobs that were promised a date, in the order in which they were."""
    return [cluster.waiting[job_id] for _, job_id in cluster.waiting_index.with_date]


def overdue_jobs(cluster: Cluster) -> list[list[Job]]:
    """Of each user that has no date, the oldest jobs that wait too long and pass no ceiling.

    The first of them that can start or get a date does. At most as many users as a plan has looks.
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
        late = [job for aged_at, job in oldest if aged_at <= now]
        open_jobs = [
            job for job in map(cluster.waiting.__getitem__, late) if cluster.open_types(job)
        ]
        if open_jobs:
            jobs_by_user.append(open_jobs)
    return jobs_by_user
