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
from bursar.core.scheduling.order.share import ShareGroup


class _CeilingClaim(NamedTuple):
    """A job that has a future place."""

    job: JobId
    reserved: PlannedStart
    milli_gpus: int
    dated: bool  # whether its place was promised


class CeilingClaims:
    """All that have a future place, by the ceilings below which they will count."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._claims_by_group: dict[int, list[_CeilingClaim]] = {}

    def add(self, job: Job, reserved: PlannedStart, *, dated: bool) -> None:
        """A job has a future place."""
        one = _CeilingClaim(job.id, reserved, job.shape.milli_gpus, dated)
        for place in self._groups(job):
            if place.ceiling or place.jobs_max is not None:
                self._claims_by_group.setdefault(id(place), []).append(one)

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
        for place in self._groups(job):
            if (below := self._claims_by_group.get(id(place))) is None:
                continue
            strangers = len(place.path) < 2 and not place.is_limit
            coming = [
                one
                for one in below
                if one.job != job.id
                and (one.dated or not dated)
                and (one.reserved.at < until or not strangers)
            ]
            total = sum(one.milli_gpus for one in coming)
            same = sum(one.milli_gpus for one in coming if one.reserved.gpu_type == gpu_type)
            if coming and place.exceeds_with(job, gpu_type, total, same, len(coming)):
                return place, [one.job for one in coming]
        return None

    def _groups(self, job: Job) -> Iterator[ShareGroup]:
        """Where a job counts: its own places from the user up, and limits outside the tree."""
        tree = self._cluster.tree
        yield from tree.user_group(job.path).lineage()
        yield from tree.limits_of(job)
