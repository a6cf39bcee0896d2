"""Who comes first below a ceiling: future places count there before they are taken.

A job that starts now may leave every GPU that others have a future place on, and still use up a
ceiling that they need as well: then they would have their GPUs and no right to them.
"""

from collections.abc import Iterator
from typing import NamedTuple

from bursar.core.ids import JobId
from bursar.core.scheduling.decisions import PlannedStart
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.jobs import Job
from bursar.core.scheduling.order.share_group import ShareGroup


class _CeilingClaim(NamedTuple):
    """A job that has a future place."""

    job: JobId
    planned: PlannedStart
    milli_gpus: int
    dated: bool  # whether its place was promised


class CeilingClaims:
    """All that have a future place, by the ceilings below which they will count."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._claims_by_group: dict[int, list[_CeilingClaim]] = {}

    def add(self, job: Job, planned: PlannedStart, *, dated: bool) -> None:
        """A job has a future place."""
        claim = _CeilingClaim(job.id, planned, job.shape.milli_gpus, dated)
        for group in self._groups(job):
            if group.ceiling or group.jobs_max is not None:
                self._claims_by_group.setdefault(id(group), []).append(claim)

    def find_crowded(
        self, job: Job, gpu_type: str, *, dated: bool = False
    ) -> tuple[ShareGroup, list[JobId]] | None:
        """A ceiling that a job would use up and that some with a future place need as well.

        Inside an org however soon it ends, because at a ceiling the others would lose their place;
        what strangers of one tier share is theirs again if it ends in time. With `dated`, only
        those count who have a date.
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
        """Where a job counts: its own places from the user up, and limits outside the tree."""
        tree = self._cluster.tree
        yield from tree.groups.user_group(job.path).lineage()
        yield from tree.groups.limits_of(job)
