"""The course of a job in a simulation, from its arrival to its end."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from bursar.core.instant import Instant
from bursar.core.money import PPM, Micros
from bursar.core.scheduling.model.jobs import Job
from bursar.core.value import replace
from bursar.sim.work import Work


class Fate(StrEnum):
    """How far a job has got."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDING = "ending"  # its attempt has ended, which is not reported yet
    DONE = "done"
    CUT = "cut"  # it ran longer than it said, and was stopped
    UNPAID = "unpaid"  # there were not enough credits
    UNFIT = "unfit"  # no node, or not enough of them, could ever hold it
    TURNED = "turned"  # it was not let in


OPEN: Final = (Fate.WAITING, Fate.RUNNING, Fate.ENDING)
AWAY: Final = (Fate.UNPAID, Fate.UNFIT, Fate.TURNED)


@dataclass(slots=True)
class JobRun:
    """A job in the simulation. Work is measured on a GPU of speed 1."""

    work: Work
    job: Job  # as it is told to the scheduler
    restart_cost: int
    fate: Fate = Fate.WAITING
    tries: int = 0  # how often it asked to be let in
    kept_work: int = 0  # microseconds of work that are safe
    kept_run: int = 0  # microseconds that this work took
    attempt: int = 0
    gpu_type: str = ""
    speed: int = PPM  # of the attempt's GPUs, in millionths
    drift: int = 0  # of the attempt's clock, in millionths
    started_at: Instant = 0  # of the attempt that runs
    over_at: Instant = 0  # true end of the attempt, reported or not
    first_started_at: Instant | None = None
    ended_at: Instant | None = None
    promised_at: Instant | None = None  # the earliest date it was given for its next start
    dates: int = 0  # attempts for which it was given one
    late: int = 0  # microseconds after its date that it started, at most
    preemptions: int = 0
    failures: int = 0  # attempts that a node took with it
    lost: int = 0  # microseconds that were run in vain
    overhead: int = 0  # microseconds that were spent on beginning anew
    attained: Micros = 0
    wanted_before: int = 0  # what all had wanted when it arrived: see `engine`
    wanted_after: int = 0

    @property
    def total(self) -> int:
        """Microseconds of work on GPUs of speed 1, within the job's limit."""
        return min(self.work.runs, self.work.run_max)

    @property
    def lead(self) -> int:
        """Microseconds of the current attempt before it does any work."""
        return self.restart_cost if self.attempt > 1 else 0

    def begin(self, gpu_type: str, speed: int, now: Instant) -> Instant:
        """Start an attempt; return when it ends if not interrupted, at its limit at the latest."""
        self.fate, self.gpu_type, self.speed, self.started_at = Fate.RUNNING, gpu_type, speed, now
        self.attempt += 1
        if self.first_started_at is None:
            self.first_started_at = now
        if self.promised_at is not None:
            self.late = max(self.late, now - self.promised_at)
            self.promised_at = None
        left = -(-(self.work.runs - self.kept_work) * PPM // speed)
        return now + self.lead + min(left, self.work.run_max - self.kept_run)

    def promise(self, at: Instant) -> None:
        """Record that the scheduler promised a start by then."""
        self.dates += self.promised_at is None
        self.promised_at = at if self.promised_at is None else min(at, self.promised_at)

    def measured(self, span: int) -> int:
        """A span, by the clock of the node that runs the attempt."""
        return span + span * self.drift // PPM

    def finish(self, now: Instant) -> int:
        """Record that the last attempt has ended; return the microseconds of work that it did."""
        run = self._run()
        self._keep(run)
        self.kept_work = min(self.kept_work, self.work.runs)
        self.ended_at = now
        self.fate = Fate.DONE if self.kept_work == self.work.runs else Fate.CUT
        return run

    def time_to_stop(self, grace: int) -> int:
        """Microseconds from a stop request to the end, at most the grace.

        A job with checkpoints makes one and stops. A job without them stops at once.
        """
        return min(self.work.checkpoint_cost, grace) if self.work.checkpoint_every else 0

    def interrupt(self, *, grace: int | None) -> int:
        """End an attempt early; return the microseconds of it that are kept.

        If the grace is long enough, a job with checkpoints makes one more, and loses only the time
        for it. Otherwise, or without a warning, everything since the last checkpoint is lost. A job
        without checkpoints loses the whole attempt.
        """
        work, run = self.work, self._run()
        kept_run = 0
        if work.checkpoint_every:
            kept_run = run - run % work.checkpoint_every
            if grace is not None and grace >= work.checkpoint_cost:
                kept_run = max(kept_run, run - work.checkpoint_cost)
        self.lost += run - kept_run
        self._keep(kept_run)
        self.attained += self.job.price_of(self.gpu_type, kept_run)
        self.fate = Fate.WAITING
        return kept_run

    def again(self, now: Instant) -> Job:
        """The job for its next attempt."""
        work = self.work
        estimate = None
        if work.estimate is not None:
            estimate = max(work.estimate - self.kept_work, 1) + self.restart_cost
        self.job = replace(
            self.job,
            run_max=work.run_max - self.kept_run + self.restart_cost,
            estimate=estimate,
            preemptions=self.preemptions,
            stopped_at=now,
            attained=self.attained,
        )
        return self.job

    def _run(self) -> int:
        """Microseconds that the attempt worked; the rest is overhead."""
        whole = self.over_at - self.started_at
        run = max(whole - self.lead, 0)
        self.overhead += whole - run
        return run

    def _keep(self, run: int) -> None:
        self.kept_work += run * self.speed // PPM
        self.kept_run += run
