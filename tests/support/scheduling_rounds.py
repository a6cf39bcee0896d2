"""A small made-up pool that lives through many rounds, driven by the plans alone.

Jobs run as long as they say, whoever is asked to stop does so when its grace is over and waits
again, and every change is told to the cluster as its owner would.
"""

from dataclasses import dataclass, field
from heapq import heappop, heappush

from bursar.core.ids import JobId
from bursar.core.instant import Instant
from bursar.core.scheduling.decisions import Plan, Preempt, Start
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.jobs import Job, RunningJob
from bursar.core.scheduling.plan import make_plan
from bursar.core.value import replace
from tests.support.scheduling_cases import Case


@dataclass
class Rounds:
    """A pool, and what happens in it; a job runs for its estimate, or else for its limit."""

    cluster: Cluster
    started: dict[JobId, list[Instant]] = field(default_factory=dict)
    preempted: list[tuple[Instant, JobId, JobId]] = field(default_factory=list)  # who, for whom
    done: dict[JobId, Instant] = field(default_factory=dict)
    _events: list[tuple[Instant, int, str, JobId]] = field(default_factory=list)
    _arrivals: dict[JobId, Job] = field(default_factory=dict)
    _count: int = 0

    @classmethod
    def of(cls, case: Case) -> "Rounds":
        """The pool of a case; what runs there already ends when its limit says."""
        rounds = cls(case.cluster())
        for job_id, running in sorted(rounds.cluster.running.items()):
            rounds._at(running.ends_by, "end", job_id)
        return rounds

    def arrive(self, at: Instant, job: Job) -> None:
        """Let a job be submitted at an instant."""
        self._arrivals[job.id] = replace(job, queued_at=at)
        self._at(at, "arrive", job.id)

    def run_until(self, end: Instant, every: int = 0) -> None:
        """Plan whenever something happened, and every so often besides."""
        if every:
            for at in range(self.cluster.now, end, every):
                self._at(at, "look", JobId(""))
        self.plan()
        while self._events and self._events[0][0] <= end:
            at = self._events[0][0]
            self.cluster.advance_to(at)
            while self._events and self._events[0][0] == at:
                _, _, what, job_id = heappop(self._events)
                self._happen(what, job_id)
            self.plan()

    def plan(self) -> Plan:
        """A round, carried out."""
        plan = make_plan(self.cluster, self.cluster.now)
        for decision in plan.decisions:
            self.cluster.apply(decision)
            if isinstance(decision, Start):
                self.started.setdefault(decision.job, []).append(plan.at)
                job = self.cluster.running[decision.job].job
                self._at(plan.at + _runs(job), "end", decision.job)
            elif isinstance(decision, Preempt):
                self.preempted.append((plan.at, decision.job, decision.wanted_by))
                self._at(decision.stops_at, "stop", decision.job)
        return plan

    def _at(self, at: Instant, what: str, job_id: JobId) -> None:
        self._count += 1
        heappush(self._events, (at, self._count, what, job_id))

    def _happen(self, what: str, job_id: JobId) -> None:
        if what == "arrive":
            self.cluster.enqueue(self._arrivals[job_id])
        elif (running := self.cluster.running.get(job_id)) is None:
            return  # a round besides, or an attempt that was over before
        elif what == "stop":
            self.cluster.remove_running(job_id)
            job = running.job
            self.cluster.enqueue(replace(job, preemptions=job.preemptions + 1))
        elif running.stops_at is None and self._is_over(running):
            self.cluster.remove_running(job_id)
            self.done[job_id] = self.cluster.now

    def _is_over(self, running: RunningJob) -> bool:
        """Whether the attempt that runs is the one that was to end now."""
        return running.started_at + _runs(running.job) <= self.cluster.now


def _runs(job: Job) -> int:
    """How long a job really runs."""
    return job.run_max if job.estimate is None else min(job.run_max, job.estimate)
