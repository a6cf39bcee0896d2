"""Messages between orgs and pools about a job (D4).

Messages are numbered for each job and direction and handled in that order, each once. An org says
what may run and what it has credits for; a pool says what ran and for how long. Amounts are
changes, run times are totals.
"""

from enum import StrEnum
from typing import TypeAlias

from bursar.core.ids import AccountId, UserId
from bursar.core.instant import NEVER, Instant
from bursar.core.money import AMOUNT_MAX, Micros
from bursar.core.scheduling.model.jobs import CLASS_MAX, Shape
from bursar.core.validation import check_int, check_optional_text, check_text, check_texts
from bursar.core.value import value


class EndClass(StrEnum):
    """Why an attempt ended: who answers for the work that was lost (M3)."""

    USER = "user"  # it finished, failed by itself, or was withdrawn
    PLATFORM = "platform"  # a machine or a worker failed
    PREEMPTION = "preemption"  # its place was needed by another
    LIMIT = "limit"  # its time or its hold was used up


class Cause(StrEnum):
    """Why a job went from one state of its life to another."""

    PLACED = "placed"
    STARTED = "started"  # its first reading came
    STOP_REQUESTED = "stop_requested"
    FINISHED = "finished"
    FAILED = "failed"  # by itself
    CANCELLED = "cancelled"  # its org has withdrawn it
    PREEMPTED = "preempted"  # its place was needed by a job of another org
    MADE_ROOM = "made_room"  # or by one of its own
    LOST = "lost"  # its node was silent for too long, or had lost it
    GIVEN_UP = "given_up"  # preempted or lost once too often
    TIME_UP = "time_up"  # it has run as long as it may
    OUT_OF_CREDITS = "out_of_credits"
    TOPPED_UP = "topped_up"
    HOLD_ENDED = "hold_ended"  # while it waited
    MOVED = "moved"  # to another pool
    CACHED = "cached"  # it was given the result of another job, and did not run


@value
class Program:
    """What a node runs, and what it lets it have."""

    command: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    memory_mib: int = 0  # at most so much on each node; 0 for no bound
    checkpoint_every_ms: int = 0  # it makes a checkpoint so often; 0 if it makes none

    def __post_init__(self) -> None:
        check_int("memory_mib", self.memory_mib, 0, AMOUNT_MAX)
        check_int("checkpoint_every_ms", self.checkpoint_every_ms, 0, AMOUNT_MAX)


@value
class JobSpec:
    """What a job needs and runs: all that its pool is sent besides its credits."""

    shape: Shape
    program: Program = Program()
    priority_class: int = 0
    preemptible: bool = True
    estimate_ms: int | None = None  # how long it says that it runs, if it says so
    requeues: int = 0  # how often it may start again after an end that was not its own

    def __post_init__(self) -> None:
        check_int("priority_class", self.priority_class, 0, CLASS_MAX)
        check_int("requeues", self.requeues, 0, AMOUNT_MAX)
        if self.estimate_ms is not None:
            check_int("estimate_ms", self.estimate_ms, 0, AMOUNT_MAX)


@value
class Enqueue:
    """Run this: what it needs, on whose behalf, and how far its credits reach."""

    account: AccountId
    user: UserId
    shares: tuple[AccountId, ...]  # the account and all above it
    tier: str | None
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
        check_optional_text("tier", self.tier)
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
    """Do not run it any more; a running attempt is to be stopped."""


@value
class Leave:
    """Give it back, if no attempt of it has begun: it shall wait in another pool."""


@value
class HoldGrew:
    """More is set aside for it, or for longer."""

    added: Micros
    until: Instant

    def __post_init__(self) -> None:
        check_int("added", self.added, 0, AMOUNT_MAX)
        check_int("until", self.until, 0, NEVER)


@value
class Correct:
    """An operator says who answers for the end of an attempt; the job is over."""

    attempt: int
    end_class: EndClass

    def __post_init__(self) -> None:
        check_int("attempt", self.attempt, 1, AMOUNT_MAX)


@value
class Started:
    """An attempt has begun to run."""

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
    """An attempt is over: its last reading, and what of it is given back."""

    attempt: int
    end_class: EndClass
    run_ms: int
    kept_ms: int | None  # where the work that was not lost ends; None if none is given back
    job_finished: bool  # whether the job is over as well, or waits for another attempt
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
    """The cause of an attempt's end was corrected: what of the attempt is paid from now on."""

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
    """The job left the queue while no attempt was running, and will not run any more."""

    end_class: EndClass
    why: Cause


@value
class Left:
    """The job was given back before it had begun: this pool will not run it."""


ToPool: TypeAlias = Enqueue | Withdraw | Leave | HoldGrew | Correct
ToOrg: TypeAlias = Started | RanSoFar | Ended | Corrected | Dropped | Left
Message: TypeAlias = ToPool | ToOrg
