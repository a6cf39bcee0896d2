"""Express jobs: short jobs that can still start in time come before all longer ones.

A job that ends within minutes delays others little, and is worth little if it starts late. So while
it can still start in time (`PoolPolicy.is_express`), it does not wait for its turn among jobs of
hours: it comes right after the jobs that have waited too long. Among express jobs the order is that
of the share tree.

Shares still hold. A user who sends thousands of express jobs comes first only while each group on
its path, below the tier, runs no more than its part, and express jobs count as usage like all
others. Floors go first: while a group below its floor has jobs waiting, its siblings wait for their
turn, unless all of that group's waiting jobs were express and are late. A job comes first only for
itself, and not while a job of a higher class waits in its org.
"""

from collections.abc import Callable, Iterator

from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.jobs import Job
from bursar.core.scheduling.order.share_group import FAIR_SHARE, ShareGroup


def express_jobs(cluster: Cluster, is_wanted: Callable[[Job], bool]) -> Iterator[Job]:
    """The first wanted express job of each user, in the order of the share tree."""
    return _jobs_below(cluster, cluster.tree.groups.root, is_wanted)


def _jobs_below(
    cluster: Cluster, group: ShareGroup, is_wanted: Callable[[Job], bool]
) -> Iterator[Job]:
    if not group.express_jobs:
        return
    if group.queues:
        yield from _first_of_user(cluster, group, is_wanted)
    last_rank = FAIR_SHARE
    for rank, _, name in group.order:
        if rank > last_rank:
            break
        child = group.children[name]
        if rank < last_rank and not child.has_only_late_jobs():
            last_rank = rank
        if group.parent is None or child.is_within_share():
            yield from _jobs_below(cluster, child, is_wanted)


def _first_of_user(
    cluster: Cluster, user: ShareGroup, is_wanted: Callable[[Job], bool]
) -> Iterator[Job]:
    """The first wanted express job of a user, unless a higher class waits in its org."""
    for key in user.queue_heads:
        job = cluster.waiting[key[-1]]
        if cluster.policy.is_express(job, cluster.now) and is_wanted(job):
            if cluster.tree.queues.highest_waiting_class(job.path[:2]) == job.priority_class:
                yield job
            return
