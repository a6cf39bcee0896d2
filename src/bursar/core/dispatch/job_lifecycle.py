"""A job's life: every state it can be in, and every way from one to the next, in one table.

    queued ── placed ──▶ starting ── started ──▶ running ── asked ──▶ stopping
      ▲                     └──────────────────────┴──────────────────────┤ the attempt ends:
      ├── preempted, lost ◀───────────────────────────────────────────────┤
      └── topped up ── out of credits ◀───────────────────────────────────┤
                         succeeded, failed, cancelled, expired ◀──────────┘

A job that has not begun may be moved: then it is over in this pool, and waits in another.
A job that waits may come to wait for credits when usage of an earlier attempt becomes known late.
Nothing leads out of the last five: an end is accepted once. Attempts are numbered from 1; each
step from `queued` to `starting` is the next.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from bursar.core.messages import EndClass, Why
from bursar.core.refusal import fail_invariant


class State(StrEnum):
    """How far a job has got."""

    QUEUED = "queued"  # waits for GPUs
    STARTING = "starting"  # has a lease; nobody has reported its process yet
    RUNNING = "running"
    STOPPING = "stopping"  # was asked to make a checkpoint and to end
    OUT_OF_CREDITS = "out_of_credits"  # waits for more credits
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"  # its longest run, or its hold, was over
    MOVED = "moved"  # it waits in another pool: over in this one


WAITING: Final = frozenset({State.QUEUED, State.OUT_OF_CREDITS})
LIVE: Final = frozenset({State.STARTING, State.RUNNING, State.STOPPING})  # has a lease
OVER: Final = frozenset(
    {State.SUCCEEDED, State.FAILED, State.CANCELLED, State.EXPIRED, State.MOVED}
)

# What ends an attempt, from whichever of the live states.
_ENDS: Final[Mapping[Why, State]] = {
    Why.FINISHED: State.SUCCEEDED,
    Why.FAILED: State.FAILED,
    Why.CANCELLED: State.CANCELLED,
    Why.PREEMPTED: State.QUEUED,
    Why.MADE_ROOM: State.QUEUED,
    Why.LOST: State.QUEUED,
    Why.GIVEN_UP: State.FAILED,
    Why.TIME_UP: State.EXPIRED,
    Why.OUT_OF_CREDITS: State.OUT_OF_CREDITS,
}
# What ends a wait without an attempt.
_DROPS: Final[Mapping[Why, State]] = {
    Why.CANCELLED: State.CANCELLED,
    Why.HOLD_ENDED: State.EXPIRED,
    Why.MOVED: State.MOVED,
}
TABLE: Final[Mapping[tuple[State, Why], State]] = MappingProxyType(
    {
        (State.QUEUED, Why.PLACED): State.STARTING,
        (State.STARTING, Why.STARTED): State.RUNNING,
        (State.STARTING, Why.ASKED): State.STOPPING,
        (State.RUNNING, Why.ASKED): State.STOPPING,
        (State.QUEUED, Why.OUT_OF_CREDITS): State.OUT_OF_CREDITS,  # by usage that came late
        (State.OUT_OF_CREDITS, Why.TOPPED_UP): State.QUEUED,
        (State.QUEUED, Why.CACHED): State.SUCCEEDED,  # in no pool: the org itself says so
        **{(live, why): to for live in sorted(LIVE) for why, to in _ENDS.items()},
        **{(waiting, why): to for waiting in sorted(WAITING) for why, to in _DROPS.items()},
    }
)
CLASSES: Final[Mapping[Why, EndClass]] = MappingProxyType(
    {
        Why.FINISHED: EndClass.USER,
        Why.FAILED: EndClass.USER,
        Why.CANCELLED: EndClass.USER,
        Why.PREEMPTED: EndClass.PREEMPTION,
        Why.MADE_ROOM: EndClass.PREEMPTION,
        Why.LOST: EndClass.PLATFORM,
        Why.TIME_UP: EndClass.LIMIT,
        Why.OUT_OF_CREDITS: EndClass.LIMIT,
        Why.HOLD_ENDED: EndClass.LIMIT,
    }
)

CORRECTED: Final = "corrected"  # an operator has said who answers for an attempt's end
# The words that an org has for a job's steps; that a job was given a lease it does not hear.
STEPS: Final = (
    "submitted",
    "follows",
    "took_over",
    CORRECTED,
    *(why.value for why in Why if why is not Why.PLACED),
)


def after(state: State, why: Why) -> State:
    """The state that a job comes to; a step that is not in the table is a bug (IM6)."""
    to = TABLE.get((state, why))
    if to is None:
        fail_invariant("a job cannot take this step", state=state, why=why)
    return to
