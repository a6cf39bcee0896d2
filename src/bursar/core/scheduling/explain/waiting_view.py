"""A cluster as one waiting job finds it, and the form in which it is told what it found."""

from typing import Final

from bursar.core.ids import JobId
from bursar.core.instant import Instant
from bursar.core.scheduling.decisions import Plan, PlannedStart
from bursar.core.scheduling.explain.phrases import Figures
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.jobs import Job
from bursar.core.scheduling.order.ceiling_claims import CeilingClaims
from bursar.core.scheduling.order.share import ShareGroup
from bursar.core.scheduling.placement.backfill import NodeClaims
from bursar.core.scheduling.preemption.shortfall import Shortfall, find_shortfall
from bursar.core.value import value

NAMES_MAX: Final = 5  # jobs or places that a blocker names


@value
class Blocker:
    """One reason why a job does not start: a stable word and its figures, units in their names."""

    reason: str
    figures: Figures = ()


class WaitingView:
    """A cluster as one job finds it once a plan is carried out: what others have a claim on."""

    def __init__(self, cluster: Cluster, job: Job, plan: Plan) -> None:
        self.cluster = cluster
        self.job = job
        self.now = cluster.now
        self.until = cluster.now + job.run_max
        self.no_claims = NodeClaims(cluster)  # as if nobody had a claim
        self.claims = NodeClaims(cluster)
        self.promises = NodeClaims(cluster)  # those of them that were promised
        self._lacks: dict[str, Shortfall | None] = {}
        self.claimants: list[tuple[Instant, JobId, PlannedStart]] = []
        self._coming = CeilingClaims(cluster)
        first = True  # whoever was looked at before this job; later ones count if they have a date
        for wait in plan.waits:
            first = first and wait.job != job.id
            other = cluster.waiting.get(wait.job)
            if wait.job == job.id or other is None or wait.planned is None:
                continue
            if first or other.promised_at is not None:
                self._count(other, wait.planned)

    def _count(self, other: Job, reserved: PlannedStart) -> None:
        """Note that another has a future place."""
        dated = other.promised_at is not None
        self.claims.add(other, reserved)
        if dated:
            self.promises.add(other, reserved)
        self._coming.add(other, reserved, dated=dated)
        self.claimants.append((reserved.at, other.id, reserved))

    @property
    def types(self) -> tuple[str, ...]:
        """The types on which the job passes no ceiling."""
        return self.cluster.open_types(self.job)

    def crowded(
        self, job: Job, gpu_type: str, *, dated: bool = False
    ) -> tuple[ShareGroup, list[JobId]] | None:
        """A ceiling that a job would use up for others with a future place, and who they are."""
        return self._coming.find_crowded(job, gpu_type, dated=dated)

    def shortfall(self, gpu_type: str) -> Shortfall | None:
        """What the job lacks whoever makes room; worked out once."""
        if gpu_type not in self._lacks:
            self._lacks[gpu_type] = find_shortfall(self.cluster, self.job, gpu_type)
        return self._lacks[gpu_type]


def list_names(ids: list[JobId]) -> str:
    """The first few of them, and how many more."""
    more = f" and {len(ids) - NAMES_MAX} more" if len(ids) > NAMES_MAX else ""
    return ", ".join(ids[:NAMES_MAX]) + more
