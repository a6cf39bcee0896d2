"""A cluster from the point of view of one waiting job, and the blockers found there."""

from collections.abc import Collection
from typing import Final

from bursar.core.ids import JobId
from bursar.core.instant import Instant
from bursar.core.scheduling.decisions import Plan, PlannedStart
from bursar.core.scheduling.explain.phrases import Figures
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.jobs import Job
from bursar.core.scheduling.order.ceiling_claims import CeilingClaims
from bursar.core.scheduling.order.share_group import ShareGroup
from bursar.core.scheduling.placement.backfill import NodeClaims
from bursar.core.scheduling.preemption.shortfall import Shortfall, find_shortfall
from bursar.core.value import value

NAMES_MAX: Final = 5  # jobs that a blocker names


@value
class Blocker:
    """One reason why a job does not start: a stable code, and figures with units in their names."""

    code: str
    figures: Figures = ()


class WaitingView:
    """A cluster after a plan was carried out, and the claims of other jobs that bind one job."""

    def __init__(
        self,
        cluster: Cluster,
        job: Job,
        plan: Plan,
        payable_types: Collection[str] | None = None,
    ) -> None:
        self.cluster = cluster
        self.job = job
        self.payable_types = payable_types  # that its org can pay for; None if all
        self.now = cluster.now
        self.until = cluster.now + job.run_max
        self.no_claims = NodeClaims(cluster)  # empty
        self.claims = NodeClaims(cluster)
        self.promises = NodeClaims(cluster)  # the claims of promised starts
        self._shortfalls: dict[str, Shortfall | None] = {}
        self.claimants: list[tuple[Instant, JobId, PlannedStart]] = []
        self._ceiling_claims = CeilingClaims(cluster)
        is_ahead = True  # planned starts of later jobs bind this one only if they are promised
        for wait in plan.waits:
            is_ahead = is_ahead and wait.job != job.id
            other = cluster.waiting.get(wait.job)
            if wait.job == job.id or other is None or wait.planned is None:
                continue
            if is_ahead or other.promised_at is not None:
                self._add_claim(other, wait.planned)

    def _add_claim(self, other: Job, planned: PlannedStart) -> None:
        """Add the planned start of another job."""
        promised = other.promised_at is not None
        self.claims.add(other, planned)
        if promised:
            self.promises.add(other, planned)
        self._ceiling_claims.add(other, planned, dated=promised)
        self.claimants.append((planned.at, other.id, planned))

    @property
    def types(self) -> tuple[str, ...]:
        """The types on which the job exceeds no ceiling."""
        return self.cluster.open_types(self.job)

    def find_ceiling_claim(
        self, job: Job, gpu_type: str, *, promised: bool = False
    ) -> tuple[ShareGroup, list[JobId]] | None:
        """A group whose ceiling would not suffice for planned starts beside this job, and the jobs
        with these starts. With `promised`, only promised starts count.
        """
        return self._ceiling_claims.find_crowded(job, gpu_type, dated=promised)

    def shortfall(self, gpu_type: str) -> Shortfall | None:
        """What the job lacks on a type whichever jobs are preempted; computed once."""
        if gpu_type not in self._shortfalls:
            self._shortfalls[gpu_type] = find_shortfall(self.cluster, self.job, gpu_type)
        return self._shortfalls[gpu_type]


def list_names(ids: list[JobId]) -> str:
    """The first ids, and how many more there are."""
    more = f" and {len(ids) - NAMES_MAX} more" if len(ids) > NAMES_MAX else ""
    return ", ".join(ids[:NAMES_MAX]) + more
