"""Jobs that arrive, run and end in virtual time: a round whenever something happens.

Whoever is asked to make room stops at once, and begins anew when its turn comes again.
"""

from heapq import heapify, heappop, heappush
from typing import NamedTuple, Protocol

from benchmarks.schedule.checker import Pool, starts_of, victims_of
from benchmarks.schedule.loads import T0
from benchmarks.schedule.naive import Naive
from bursar.core.ids import JobId
from bursar.core.instant import SECOND, Instant
from bursar.core.scheduling.model.jobs import Job
from bursar.core.value import replace

ENDS, ARRIVES = range(2)  # what comes first of all that happens at one instant

Arriving = list[tuple[Instant, Job, int]]  # when, what, and how long it runs


class Decided(NamedTuple):
    """What a round has come to."""

    started: list[JobId]
    stopped: list[JobId]  # they have left already, and wait again


class Scheduler(Protocol):
    """Whoever decides what starts."""

    def queue(self, job: Job) -> None:
        """A job waits."""

    def end(self, job_id: JobId) -> None:
        """A job has ended."""

    def round(self, now: Instant) -> Decided:
        """Decide."""


class Ours:
    """The planner on a pool under watch."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def queue(self, job: Job) -> None:
        """A job waits."""
        self._pool.cluster.enqueue(job)

    def end(self, job_id: JobId) -> None:
        """A job has ended."""
        self._pool.end(job_id)

    def round(self, now: Instant) -> Decided:
        """Decide, and let those leave who are asked to."""
        self._pool.cluster.advance_to(now)
        plan = self._pool.round(now)
        stopped = [victim.job for victim in victims_of(plan)]
        for job_id in stopped:
            job = self._pool.cluster.running[job_id].job
            self._pool.end(job_id)
            self.queue(replace(job, preemptions=job.preemptions + 1))
        return Decided([start.job for start in starts_of(plan)], stopped)


class Theirs:
    """The yardstick."""

    def __init__(self, naive: Naive) -> None:
        self._naive = naive

    def queue(self, job: Job) -> None:
        """A job waits."""
        self._naive.waiting.append(job)

    def end(self, job_id: JobId) -> None:
        """A job has ended."""
        self._naive.end(job_id)

    def round(self, now: Instant) -> Decided:
        """Decide; it asks nobody to leave."""
        return Decided([job.id for job in self._naive.round()], [])


class Went(NamedTuple):
    """How the jobs of a load went."""

    ended: int
    stopped: int  # times that one had to make room
    makespan_s: float  # until the last one ended
    waits_s: dict[int, float]  # mean time until the first start, by class


def drive(scheduler: Scheduler, arriving: Arriving) -> Went:
    """Let all jobs arrive, run and end; time goes on when nothing more happens at an instant."""
    jobs = {job.id: (job, runs) for _, job, runs in arriving}
    events = [(at, ARRIVES, job.id) for at, job, _ in arriving]
    heapify(events)
    ends: dict[JobId, Instant] = {}  # of what runs
    begun: dict[JobId, Instant] = {}
    now, ended, stopped = T0, 0, 0
    while events:
        now = events[0][0]
        while events and events[0][0] == now:
            _, kind, job_id = heappop(events)
            if kind == ARRIVES:
                scheduler.queue(jobs[job_id][0])
            elif ends.get(job_id) == now:  # else it made room in between
                scheduler.end(job_id)
                del ends[job_id]
                ended += 1
        more = True
        while more:
            decided = scheduler.round(now)
            for job_id in decided.started:
                begun.setdefault(job_id, now)
                ends[job_id] = now + jobs[job_id][1]
                heappush(events, (ends[job_id], ENDS, job_id))
            for job_id in decided.stopped:
                del ends[job_id]
            stopped += len(decided.stopped)
            more = bool(decided.stopped)  # somebody waits for what they have left
    return Went(ended, stopped, (now - T0) / SECOND, _waits(jobs, begun))


def _waits(jobs: dict[JobId, tuple[Job, int]], begun: dict[JobId, Instant]) -> dict[int, float]:
    spans: dict[int, list[int]] = {}
    for job_id, at in begun.items():
        job = jobs[job_id][0]
        spans.setdefault(job.priority_class, []).append(at - job.queued_at)
    return {one: sum(all_of) / len(all_of) / SECOND for one, all_of in sorted(spans.items())}
