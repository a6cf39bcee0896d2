"""The ceilings that a waiting job would pass, and how much must leave them."""

from collections.abc import Iterable

from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.jobs import Job, RunningJob
from bursar.core.scheduling.model.policy import ANY_TYPE
from bursar.core.scheduling.order.share_group import JOBS, ShareGroup


class CeilingExcess:
    """By how much a job would pass the ceilings of its groups and limits, on one GPU type."""

    def __init__(self, cluster: Cluster, job: Job, gpu_type: str) -> None:
        groups = cluster.tree.groups
        milli = job.shape.milli_gpus
        self.excesses: list[tuple[ShareGroup, str, int]] = [
            (group, of, excess)
            for group in (*groups.user_group(job.path).lineage(), *groups.limits_of(job))
            for of, excess in group.exceeded_ceilings(milli, gpu_type)
        ]

    def is_cleared_by(self, leaving: Iterable[RunningJob]) -> bool:
        """Whether the job passes no ceiling once these jobs have left."""
        jobs = list(leaving) if self.excesses else []
        return all(
            excess
            <= sum(
                1 if of == JOBS else running.job.shape.milli_gpus
                for running in jobs
                if of in (JOBS, ANY_TYPE, running.gpu_type) and _counts(group, running.job)
            )
            for group, of, excess in self.excesses
        )


def _counts(group: ShareGroup, job: Job) -> bool:
    """Whether a group of the tree, or a limit outside it, counts a job."""
    if group.is_limit:
        return group.name in job.limit_names
    return job.path[: len(group.path)] == group.path
