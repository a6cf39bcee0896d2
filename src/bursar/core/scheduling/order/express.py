"""Brief jobs that can still start in time, before all longer ones.

A request that is over in minutes keeps others waiting for little, and late it is worth little. So,
while it can still start in time (`Policy.express`), it does not wait for its turn among jobs of
hours: it comes right after those that have waited too long. Among such jobs the order is that of
the share tree.

That must be no way around shares. Whoever sends nothing but brief jobs, thousands of them, comes
first only while each place of its path below the tier runs no more than its part of what runs
there, and what it runs counts as usage like everything else. Floors go first: while a place that is
owed GPUs waits, its siblings that are not owed any take their turn; unless all that waits there is
brief and late, and would only make others late. And nobody rides along: a job comes first for
itself, and not while its org has one of a higher class waiting.
"""

from collections.abc import Callable, Iterator

from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.jobs import Job
from bursar.core.scheduling.order.share_group import FAIR_SHARE, ShareGroup


def express_jobs(cluster: Cluster, is_wanted: Callable[[Job], bool]) -> Iterator[Job]:
    """The first such job of each user, in turn; those alone that are wanted."""
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
    """The first such job of a user, unless its org has a higher class waiting."""
    for key in user.queue_heads:
        job = cluster.waiting[key[-1]]
        if cluster.policy.is_express(job, cluster.now) and is_wanted(job):
            if cluster.tree.queues.highest_waiting_class(job.path[:2]) == job.priority_class:
                yield job
            return
