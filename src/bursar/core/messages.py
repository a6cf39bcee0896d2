"""Messages between orgs and pools about a job (D4).

Messages are numbered per job and direction, and each is handled once, in this order. An org reports
what is to run and what it has credits for. A pool reports what ran and for how long. Amounts are
differences, run times are totals.
"""

from enum import StrEnum
from typing import TypeAlias

from bursar.core.ids import AccountId, UserId
from bursar.core.instant import NEVER, Instant
from bursar.core.money import AMOUNT_MAX, Micros
from bursar.core.scheduling.model.jobs import CLASS_MAX, Shape
from bursar.core.validation import check_int, check_text, check_texts
from bursar.core.value import value


class EndClass(StrEnum):
    """Who is responsible for the end of an attempt, and so for lost work (M3)."""

    USER = "user"  # it succeeded, failed, or was cancelled
    PLATFORM = "platform"  # a machine or an agent failed
    PREEMPTION = "preemption"  # another job needed its GPUs
    LIMIT = "limit"  # its time or its credits were used up


class Cause(StrEnum):
    """Why a job changed from one state to another."""

    PLACED = "placed"
    STARTED = "started"  # its node sent the first reading
    STOP_REQUESTED = "stop_requested"
    FINISHED = "finished"
    FAILED = "failed"  # its process failed
    CANCELLED = "cancelled"  # by its org
    PREEMPTED = "preempted"  # for a job of another org
    MADE_ROOM = "made_room"  # preempted for a job of its own org
    LOST = "lost"  # its node was silent for too long, or has no such process any more
    GIVEN_UP = "given_up"  # preempted or lost more often than it may be requeued
    TIME_UP = "time_up"  # its maximum run time is used
    OUT_OF_CREDITS = "out_of_credits"
    TOPPED_UP = "topped_up"
    HOLD_ENDED = "hold_ended"  # while it waited
    MOVED = "moved"  # to another pool
    CACHED = "cached"  # it was given the result of another job, and did not run


@value
class Program:
    """What a node runs, and its limits."""

    command: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    memory_mib: int = 0  # the maximum on each node; 0 for no limit
    checkpoint_every_ms: int = 0  # the interval between checkpoints; 0 if it makes none

    def __post_init__(self) -> None:
        check_int("memory_mib", self.memory_mib, 0, AMOUNT_MAX)
        check_int("checkpoint_every_ms", self.checkpoint_every_ms, 0, AMOUNT_MAX)


@value
class JobSpec:
    """What a job needs and runs: everything that its pool needs except for credits."""

    shape: Shape
    program: Program = Program()
    priority_class: int = 0
    preemptible: bool = True
    estimate_ms: int | None = None  # the expected run time, if it was stated
    requeues: int = 0  # how often it may start again after a preemption or a loss

    def __post_init__(self) -> None:
        check_int("priority_class", self.priority_class, 0, CLASS_MAX)
        check_int("requeues", self.requeues, 0, AMOUNT_MAX)
        if self.estimate_ms is not None:
            check_int("estimate_ms", self.estimate_ms, 0, AMOUNT_MAX)


@value
class Enqueue:
    """Add a job to the queue: what it needs, its owner, and its credits."""

    account: AccountId
    user: UserId
    shares: tuple[AccountId, ...]  # the account and all above it
    tier: str
    rates: tuple[tuple[str, Micros], ...]  # acceptable GPU type → micro-credits per GPU-hour
    run_ms: int  # maximum run and stop grace together, over all attempts
    hold_micros: Micros  # what is set aside for it
    hold_until: Instant  # and until when
    spec: JobSpec
    quotas: tuple[str, ...] = ()  # of GPUs or jobs at once that counted it at its submission

    def __post_init__(self) -> None:
        check_text("account", self.account)
        check_text("user", self.user)
        check_texts("shares", self.shares)
        check_text("tier", self.tier)
        check_texts("quotas", self.quotas)
        for gpu_type, rate in self.rates:
            check_text("gpu_type", gpu_type)
            check_int("rate", rate, 0, AMOUNT_MAX)
        check_int("run_ms", self.run_ms, 0, AMOUNT_MAX)
        check_int("hold_micros", self.hold_micros, 0, AMOUNT_MAX)
        check_int("hold_until", self.hold_until, 0, NEVER)

    @property
    def milli_gpus(self) -> int:
        """The total, in thousandths of a GPU."""
        return self.spec.shape.milli_gpus


@value
class Withdraw:
    """Cancel the job; a running attempt is stopped."""


@value
class Leave:
    """Return the job to its org if it has no attempt: it is to wait in another pool."""


@value
class HoldGrew:
    """The hold has more credits or lasts longer."""

    added: Micros
    until: Instant

    def __post_init__(self) -> None:
        check_int("added", self.added, 0, AMOUNT_MAX)
        check_int("until", self.until, 0, NEVER)


@value
class Correct:
    """An operator corrected the end class of an attempt of a finished job."""

    attempt: int
    end_class: EndClass

    def __post_init__(self) -> None:
        check_int("attempt", self.attempt, 1, AMOUNT_MAX)


@value
class Started:
    """An attempt has started."""

    attempt: int
    gpu_type: str
    started_at: Instant  # by the pool's clock
    run_ms: int  # what it may run at most, stop grace included

    def __post_init__(self) -> None:
        check_int("attempt", self.attempt, 1, AMOUNT_MAX)
        check_text("gpu_type", self.gpu_type)
        check_int("started_at", self.started_at, 0, NEVER)
        check_int("run_ms", self.run_ms, 0, AMOUNT_MAX)


@value
class RanSoFar:
    """The newest reading of an attempt."""

    attempt: int
    run_ms: int

    def __post_init__(self) -> None:
        check_int("attempt", self.attempt, 1, AMOUNT_MAX)
        check_int("run_ms", self.run_ms, 0, AMOUNT_MAX)


@value
class Ended:
    """An attempt has ended: its last reading, and what is refunded."""

    attempt: int
    end_class: EndClass
    run_ms: int
    kept_ms: int | None  # where the work that was not lost ends; None if none is given back
    job_finished: bool  # whether the job has finished too, or waits for another attempt
    why: Cause
    exit_code: int | None = None  # of its first process that ended badly, else 0; if it is known
    result: str | None = None  # what it has left, as JSON

    def __post_init__(self) -> None:
        check_int("attempt", self.attempt, 1, AMOUNT_MAX)
        check_int("run_ms", self.run_ms, 0, AMOUNT_MAX)
        if self.kept_ms is not None:
            check_int("kept_ms", self.kept_ms, 0, self.run_ms)


@value
class Corrected:
    """The end class of an attempt was corrected: how much of its run time is paid now."""

    attempt: int
    end_class: EndClass
    run_ms: int
    kept_ms: int | None  # where the work that was not lost ends; None if all of it is paid
    job_finished: bool  # whether the job ended with it

    def __post_init__(self) -> None:
        check_int("attempt", self.attempt, 1, AMOUNT_MAX)
        check_int("run_ms", self.run_ms, 0, AMOUNT_MAX)
        if self.kept_ms is not None:
            check_int("kept_ms", self.kept_ms, 0, self.run_ms)

    @property
    def paid_ms(self) -> int:
        """How much run time is paid."""
        return self.run_ms if self.kept_ms is None else self.kept_ms


@value
class Dropped:
    """The job left the queue without a running attempt, and will not run."""

    end_class: EndClass
    why: Cause


@value
class Left:
    """The job had no attempt and was returned: this pool will not run it."""


ToPool: TypeAlias = Enqueue | Withdraw | Leave | HoldGrew | Correct
ToOrg: TypeAlias = Started | RanSoFar | Ended | Corrected | Dropped | Left
Message: TypeAlias = ToPool | ToOrg
