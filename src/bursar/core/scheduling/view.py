"""A cluster as one waiting job finds it, and the form in which it is told what it found."""

from typing import Final

from bursar.core.ids import JobId
from bursar.core.instant import Instant
from bursar.core.scheduling.backfill import Claims
from bursar.core.scheduling.cluster import Cluster
from bursar.core.scheduling.decisions import Plan, Reserved
from bursar.core.scheduling.jobs import Job
from bursar.core.scheduling.lacking import Lack, lacking
from bursar.core.scheduling.share import Place
from bursar.core.scheduling.wording import Figures
from bursar.core.value import value

NAMED: Final = 5  # jobs or places that a blocker names


@value
class Blocker:
    """One reason why a job does not start: a stable word and its figures, units in their names."""

    reason: str
    figures: Figures = ()


class View:
    """A cluster as one job finds it once a plan is carried out: what others have a claim on."""

    def __init__(self, cluster: Cluster, job: Job, plan: Plan) -> None:
        self.cluster = cluster
        self.job = job
        self.now = cluster.now
        self.until = cluster.now + job.run_max
        self.nothing = Claims(cluster)  # as if nobody had a claim
        self.claims = Claims(cluster)
        self._lacks: dict[str, Lack | None] = {}
        self.claimants: list[tuple[Instant, JobId, Reserved]] = []
        for wait in plan.waits:
            if wait.job == job.id:
                break
            if wait.reserved is not None and (other := cluster.waiting.get(wait.job)):
                self.claims.reserve(other, wait.reserved)
                self.claimants.append((wait.reserved.at, wait.job, wait.reserved))

    @property
    def types(self) -> tuple[str, ...]:
        """The types on which the job passes no ceiling."""
        over = self.cluster.tree.over
        return tuple(t for t in self.job.shape.types if over(self.job, t) is None)

    def crowded(self, job: Job, gpu_type: str) -> tuple[Place, list[JobId]] | None:
        """A ceiling that a job would use up for others with a future place, and who they are."""
        tree, waiting = self.cluster.tree, self.cluster.waiting
        for place in (*tree.user(job.path).above(), *tree.limits(job)):
            coming = [
                (reserved.gpu_type, waiting[other])
                for _, other, reserved in self.claimants
                if place in (*tree.user(waiting[other].path).above(), *tree.limits(waiting[other]))
            ]
            total = sum(other.shape.milli_gpus for _, other in coming)
            same = sum(other.shape.milli_gpus for of, other in coming if of == gpu_type)
            if coming and place.over_with(job, gpu_type, total, same, len(coming)):
                return place, [other.id for _, other in coming]
        return None

    def lack(self, gpu_type: str) -> Lack | None:
        """What the job lacks whoever makes room; worked out once."""
        if gpu_type not in self._lacks:
            self._lacks[gpu_type] = lacking(self.cluster, self.job, gpu_type)
        return self._lacks[gpu_type]


def names(ids: list[JobId]) -> str:
    """The first few of them, and how many more."""
    more = f" and {len(ids) - NAMED} more" if len(ids) > NAMED else ""
    return ", ".join(ids[:NAMED]) + more
