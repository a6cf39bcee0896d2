"""What the steps of one planning pass share: the cluster, the claims on it, the decisions."""

from bursar.core.ids import JobId
from bursar.core.scheduling.decisions import Decision, PlannedStart, Start, Wait
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.jobs import Job, Path, QueueKey, Shape, StartReason
from bursar.core.scheduling.model.nodes import MILLI
from bursar.core.scheduling.order.ceiling_claims import CeilingClaims
from bursar.core.scheduling.placement.backfill import NodeClaims
from bursar.core.scheduling.placement.search import choose_pieces, find_placement
from bursar.core.scheduling.preemption.step_budget import StepBudget
from bursar.core.scheduling.preemption.victims import PreemptionSearch


class PassContext:
    """The state of one pass. A decision is carried out on the cluster as soon as it is made."""

    def __init__(self, cluster: Cluster, steps: StepBudget) -> None:
        self.cluster = cluster
        self.policy = cluster.policy
        self.decisions: list[Decision] = []
        self.waits: dict[JobId, Wait] = {}
        self.complete = True  # False once a budget kept a job from being looked at
        self.claims = NodeClaims(cluster)  # of all planned starts
        self.promises = NodeClaims(cluster)  # of those with a promised date
        self.ceiling_claims = CeilingClaims(cluster)
        self.preemption = PreemptionSearch(cluster, self.promises, steps)
        self.looks_left = cluster.policy.looks  # at blocked jobs
        self.planned_users: set[Path] = set()  # users that have a planned start
        self.kept_dates: dict[JobId, PlannedStart] = {}  # dates that are not improved in this pass
        self._closed: set[tuple[Path, QueueKey]] = set()
        self._free_for: dict[tuple[Shape, tuple[str, ...]], int] = {}  # since the last decision

    def close(self, job: Job) -> None:
        """Look at no further job of this user and kind: it would wait for the same reason."""
        self._closed.add((job.path, job.queue_key))

    def is_open(self, job: Job) -> bool:
        """Whether jobs of this user and kind are still to be looked at."""
        return (job.path, job.queue_key) not in self._closed

    def start_if_fits(self, job: Job, types: tuple[str, ...], why: StartReason) -> bool:
        """Start a job if it fits now and delays no planned start."""
        until = self.cluster.now + job.run_max
        types = tuple(t for t in types if not self.crowds(job, t))
        placement = find_placement(self.cluster, self.claims, job.shape, types, until)
        if placement is None:
            return False
        pieces = choose_pieces(self.cluster, job.shape, placement)
        self.decide(Start(job=job.id, gpu_type=placement.gpu_type, pieces=pieces, why=why))
        return True

    def crowds(self, job: Job, gpu_type: str, *, dated: bool = False) -> bool:
        """Whether a job would use up a ceiling that a planned start needs as well.

        With `dated`, only planned starts with a promised date count.
        """
        return self.ceiling_claims.find_crowded(job, gpu_type, dated=dated) is not None

    def claim(self, job: Job, planned: PlannedStart, *, dated: bool) -> None:
        """Keep other jobs out of the way of a planned start: its nodes and its ceilings."""
        self.claims.add(job, planned)
        self.ceiling_claims.add(job, planned, dated=dated)

    def hold_date(self, job: Job, planned: PlannedStart) -> None:
        """Claim the nodes of a promised start."""
        self.claims.add(job, planned)
        self.promises.add(job, planned)

    def release_date(self, job: Job) -> None:
        """Give up the nodes of a job's promised start, if it has one."""
        self.claims.release(job)
        self.promises.release(job)

    def wait(
        self, job: Job, types: tuple[str, ...], reason: str, planned: PlannedStart | None = None
    ) -> None:
        """Record why a job waits."""
        free = self._free_for.get((job.shape, types))
        if free is None:
            free = self.cluster.nodes.count_free_for(job.shape, types)
            self._free_for[job.shape, types] = free
        figures = ("needs", gpu_figure(job.shape.milli_gpus)), ("free", free)
        self.waits[job.id] = Wait(job=job.id, reason=reason, figures=figures, planned=planned)

    def decide(self, decision: Decision) -> None:
        """Make a decision, and carry it out on the cluster."""
        self.decisions.append(decision)
        self._free_for.clear()
        self.cluster.apply(decision)


def gpu_figure(milli: int) -> int | str:
    """A number of GPUs, with a fraction if it has one."""
    whole, part = divmod(milli, MILLI)
    return f"{whole}.{part:03}".rstrip("0") if part else whole
