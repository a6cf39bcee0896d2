"""Planned starts count for ceilings before they happen.

A job that starts now may leave all GPUs of the planned starts free and still use up a ceiling that
these need. Then their GPUs would be free, but the ceiling would not let them start.
"""

from collections.abc import Iterator
from typing import NamedTuple

from bursar.core.ids import JobId
from bursar.core.scheduling.decisions import PlannedStart
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.jobs import Job
from bursar.core.scheduling.order.share_group import ShareGroup


class _CeilingClaim(NamedTuple):
    """A planned start that will count for a ceiling."""

    job: JobId
    planned: PlannedStart
    milli_gpus: int
    dated: bool  # whether its start was promised


class CeilingClaims:
    """The planned starts of a round, by the groups whose ceilings will count them."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._claims_by_group: dict[int, list[_CeilingClaim]] = {}

    def add(self, job: Job, planned: PlannedStart, *, dated: bool) -> None:
        """Count a planned start for all ceilings of its job."""
        claim = _CeilingClaim(job.id, planned, job.shape.milli_gpus, dated)
        for group in self._groups(job):
            if group.ceiling or group.jobs_max is not None:
                self._claims_by_group.setdefault(id(group), []).append(claim)

    def find_crowded(
        self, job: Job, gpu_type: str, *, dated: bool = False
    ) -> tuple[ShareGroup, list[JobId]] | None:
        """A ceiling that a job would use up although planned starts need it, and these jobs.

        Inside an org the job conflicts however soon it ends. At the ceiling of a tier, which
        several orgs share, it conflicts only if it may still run at the planned start. With
        `dated`, only planned starts with a promised date count.
        """
        if not self._claims_by_group:
            return None
        until = self._cluster.now + job.run_max
        for group in self._groups(job):
            if (claims := self._claims_by_group.get(id(group))) is None:
                continue
            has_several_orgs = len(group.path) < 2 and not group.is_limit
            conflicting = [
                claim
                for claim in claims
                if claim.job != job.id
                and (claim.dated or not dated)
                and (claim.planned.at < until or not has_several_orgs)
            ]
            total = sum(claim.milli_gpus for claim in conflicting)
            same_type = sum(
                claim.milli_gpus for claim in conflicting if claim.planned.gpu_type == gpu_type
            )
            if conflicting and group.exceeds_with(
                job, gpu_type, total, same_type, len(conflicting)
            ):
                return group, [claim.job for claim in conflicting]
        return None

    def _groups(self, job: Job) -> Iterator[ShareGroup]:
        """The groups that count a job: from its user up, and limits outside the tree."""
        tree = self._cluster.tree
        yield from tree.groups.user_group(job.path).lineage()
        yield from tree.groups.limits_of(job)
