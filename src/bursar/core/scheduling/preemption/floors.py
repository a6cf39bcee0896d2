"""The right `floor`: which groups of a job are below their floor, and whose floors protect victims.

A group below its floor reclaims GPUs from jobs outside it, in the tiers that its own tier may
preempt. A victim's groups keep their own floors. A floor protects GPUs up to the floor, not a whole
job that straddles it: see `LeavingJobs`.
"""

from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.jobs import Job, Path
from bursar.core.scheduling.model.policy import ANY_TYPE
from bursar.core.scheduling.order.share_group import ShareGroup


class FloorClaims:
    """The floors on a waiting job's path, and those on the paths of possible victims."""

    def __init__(self, cluster: Cluster, job: Job, gpu_type: str) -> None:
        self._groups = cluster.tree.groups
        self.lineage = list(self._groups.user_group(job.path).lineage())  # the user first
        self._own_ids = set(map(id, self.lineage))
        self._tiers = {job.path[0], *cluster.policy.preempted_tiers(job.path[0])}
        self.below_floor = self._groups_below_floor(job.shape.milli_gpus, gpu_type)
        self._protected: dict[Path, list[ShareGroup]] = {}

    def paths_below_floor(self) -> tuple[Path, ...]:
        """The groups of the job that reclaim GPUs."""
        return tuple(group.path for group in self.below_floor)

    def can_reclaim_from(self, victim: Job) -> bool:
        """Whether a group of the job can get its floor back from a victim."""
        if victim.path[0] not in self._tiers:
            return False
        return any(victim.path[: len(group.path)] != group.path for group in self.below_floor)

    def protected_groups(self, victim: Job) -> list[ShareGroup]:
        """The groups of a victim that have a floor and do not contain the waiting job."""
        groups = self._protected.get(victim.path)
        if groups is None:
            lineage = self._groups.user_group(victim.path).lineage()
            groups = [g for g in lineage if g.floor and id(g) not in self._own_ids]
            self._protected[victim.path] = groups
        return groups

    def borrower(self, victim: Job) -> ShareGroup:
        """The highest group of a victim that does not contain the waiting job."""
        lineage = self._groups.user_group(victim.path).lineage()
        return [group for group in lineage if id(group) not in self._own_ids][-1]

    def _groups_below_floor(self, milli: int, gpu_type: str) -> list[ShareGroup]:
        """The groups of the job that stay within their floor even with it."""
        return [
            group
            for group in self.lineage
            for of, floor in group.floor.items()
            if milli and of in (ANY_TYPE, gpu_type) and group.used.get(of, 0) + milli <= floor
        ]
