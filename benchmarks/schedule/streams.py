"""Jobs that arrive, run and end in virtual time: a round at every event.

A victim stops at once, and starts from the beginning at its next turn.
"""

from heapq import heapify, heappop, heappush
from typing import NamedTuple, Protocol

from benchmarks.schedule.checker import MeasuredPool, find_starts, find_victims
from benchmarks.schedule.loads import T0
from benchmarks.schedule.naive import NaivePlanner
from bursar.core.ids import JobId
from bursar.core.instant import SECOND, Instant
from bursar.core.scheduling.model.jobs import Job
from bursar.core.value import replace

ENDS, ARRIVES = range(2)  # order of events at one instant

Arrivals = list[tuple[Instant, Job, int]]  # time, job, run time


class RoundResult(NamedTuple):
    """The result of a round."""

    started: list[JobId]
    stopped: list[JobId]  # victims; they wait again


class Scheduler(Protocol):
    """Decides which jobs start."""

    def queue(self, job: Job) -> None:
        """A job waits."""

    def end(self, job_id: JobId) -> None:
        """A job has ended."""

    def round(self, now: Instant) -> RoundResult:
        """Decide."""


class BursarScheduler:
    """The planner of the service on a measured pool."""

    def __init__(self, pool: MeasuredPool) -> None:
        self._pool = pool

    def queue(self, job: Job) -> None:
        """A job waits."""
        self._pool.cluster.enqueue(job)

    def end(self, job_id: JobId) -> None:
        """A job has ended."""
        self._pool.end(job_id)

    def round(self, now: Instant) -> RoundResult:
        """Decide, and requeue the victims."""
        self._pool.cluster.advance_to(now)
        plan = self._pool.round(now)
        stopped = [victim.job for victim in find_victims(plan)]
        for job_id in stopped:
            job = self._pool.cluster.running[job_id].job
            self._pool.end(job_id)
            self.queue(replace(job, preemptions=job.preemptions + 1))
        return RoundResult([start.job for start in find_starts(plan)], stopped)


class NaiveScheduler:
    """The naive planner."""

    def __init__(self, naive: NaivePlanner) -> None:
        self._naive = naive

    def queue(self, job: Job) -> None:
        """A job waits."""
        self._naive.waiting.append(job)

    def end(self, job_id: JobId) -> None:
        """A job has ended."""
        self._naive.end(job_id)

    def round(self, now: Instant) -> RoundResult:
        """Decide; the naive planner has no victims."""
        return RoundResult([job.id for job in self._naive.round()], [])


class StreamOutcome(NamedTuple):
    """How the jobs of a load ran."""

    ended: int
    stopped: int  # preemptions
    makespan_s: float  # until the last job ended
    waits_s: dict[int, float]  # mean time until the first start, by class


def run_streams(scheduler: Scheduler, arrivals: Arrivals) -> StreamOutcome:
    """Let all jobs arrive, run and end; time advances when no event is left at an instant."""
    jobs = {job.id: (job, runs) for _, job, runs in arrivals}
    events = [(at, ARRIVES, job.id) for at, job, _ in arrivals]
    heapify(events)
    ends: dict[JobId, Instant] = {}  # of running jobs
    begun: dict[JobId, Instant] = {}
    now, ended, stopped = T0, 0, 0
    while events:
        now = events[0][0]
        while events and events[0][0] == now:
            _, kind, job_id = heappop(events)
            if kind == ARRIVES:
                scheduler.queue(jobs[job_id][0])
            elif ends.get(job_id) == now:  # else it was preempted
                scheduler.end(job_id)
                del ends[job_id]
                ended += 1
        more = True
        while more:
            result = scheduler.round(now)
            for job_id in result.started:
                begun.setdefault(job_id, now)
                ends[job_id] = now + jobs[job_id][1]
                heappush(events, (ends[job_id], ENDS, job_id))
            for job_id in result.stopped:
                del ends[job_id]
            stopped += len(result.stopped)
            more = bool(result.stopped)  # the preemptors wait for these GPUs
    return StreamOutcome(ended, stopped, (now - T0) / SECOND, _mean_waits(jobs, begun))


def _mean_waits(
    jobs: dict[JobId, tuple[Job, int]], begun: dict[JobId, Instant]
) -> dict[int, float]:
    spans: dict[int, list[int]] = {}
    for job_id, at in begun.items():
        job = jobs[job_id][0]
        spans.setdefault(job.priority_class, []).append(at - job.queued_at)
    return {priority: sum(waits) / len(waits) / SECOND for priority, waits in sorted(spans.items())}
