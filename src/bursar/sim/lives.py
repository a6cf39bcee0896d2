"""What becomes of a job in a made-up world, from its arrival to its end."""

from dataclasses import dataclass, field
from enum import StrEnum

from bursar.core.instant import Instant
from bursar.core.money import Micros
from bursar.core.scheduling.jobs import Job
from bursar.core.value import altered
from bursar.sim.work import Work


class Fate(StrEnum):
    """How far a job has got."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    CUT = "cut"  # it ran longer than it said, and was stopped
    UNPAID = "unpaid"  # there were not enough credits
    UNFIT = "unfit"  # no node, or not enough of them, could ever hold it


@dataclass(slots=True)
class Life:
    """A job as the world knows it."""

    work: Work
    job: Job  # as it is told to the scheduler
    restart_cost: int
    fate: Fate = Fate.WAITING
    kept: int = 0  # microseconds of work that are safe
    attempt: int = 0
    gpu_type: str = ""
    started_at: Instant = 0  # of the attempt that runs
    first_started_at: Instant | None = None
    ended_at: Instant | None = None
    preemptions: int = 0
    failures: int = 0  # attempts that a node took with it
    lost: int = 0  # microseconds of work that were done in vain
    overhead: int = 0  # microseconds that were spent on beginning anew
    attained: Micros = 0
    wanted_before: int = field(default=0)  # what all had wanted when it arrived: see `engine`
    wanted_after: int = field(default=0)

    @property
    def total(self) -> int:
        """Microseconds of work it does in all: it is stopped at the bound that it gave."""
        return min(self.work.runs, self.work.run_max)

    @property
    def lead(self) -> int:
        """Microseconds before the attempt that runs does any work."""
        return self.restart_cost if self.attempt > 1 else 0

    def begin(self, gpu_type: str, now: Instant) -> Instant:
        """An attempt starts; when it ends, if nothing comes between."""
        self.fate, self.gpu_type, self.started_at = Fate.RUNNING, gpu_type, now
        self.attempt += 1
        if self.first_started_at is None:
            self.first_started_at = now
        return now + self.lead + self.total - self.kept

    def worked(self, now: Instant) -> int:
        """Microseconds of work that the attempt has done."""
        return max(now - self.started_at - self.lead, 0)

    def finish(self, now: Instant) -> int:
        """It is over; the microseconds of work that its last attempt did."""
        worked = self.worked(now)
        self.overhead += now - self.started_at - worked
        self.kept += worked
        self.ended_at = now
        self.fate = Fate.DONE if self.work.runs <= self.work.run_max else Fate.CUT
        return worked

    def interrupt(self, now: Instant, *, grace: int) -> int:
        """The attempt ends too early; the microseconds of its work that are kept.

        With a grace long enough a job that makes checkpoints makes one more, and loses the making;
        otherwise everything since the last is lost. One that makes none loses all of the attempt.
        """
        work, worked = self.work, self.worked(now)
        kept = 0
        if work.checkpoint_every:
            kept = worked - worked % work.checkpoint_every
            if grace and grace >= work.checkpoint_cost:
                kept = max(kept, worked - work.checkpoint_cost)
        self.overhead += now - self.started_at - worked
        self.lost += worked - kept
        self.kept += kept
        self.attained += self.job.price_of(self.gpu_type, kept)
        self.fate = Fate.WAITING
        return kept

    def again(self) -> Job:
        """The job as it waits for its next attempt."""
        work = self.work
        estimate = None
        if work.estimate is not None:
            estimate = max(work.estimate - self.kept, 1) + self.restart_cost
        self.job = altered(
            self.job,
            run_max=work.run_max - self.kept + self.restart_cost,
            estimate=estimate,
            preemptions=self.preemptions,
            attained=self.attained,
        )
        return self.job
