"""The states of a job and all transitions between them, in one table.

    queued ── placed ──▶ starting ── started ──▶ running ── stop requested ──▶ stopping
      ▲                     └──────────────────────┴──────────────────────────────┤ attempt ends:
      ├── preempted, lost ◀───────────────────────────────────────────────────────┤
      └── topped up ── out of credits ◀───────────────────────────────────────────┤
                         succeeded, failed, cancelled, expired ◀──────────────────┘

A job without an attempt can be moved: then it is finished in this pool and waits in another. A
queued job runs out of credits if late usage of an earlier attempt is reported. No transition leaves
the finished states: an end is accepted once. Attempts are numbered from 1; each transition from
`queued` to `starting` begins the next one.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from bursar.core.messages import Cause, EndClass
from bursar.core.refusal import fail_invariant


class JobState(StrEnum):
    """The state of a job."""

    QUEUED = "queued"  # waits for GPUs
    STARTING = "starting"  # has a lease; its node has not reported the process yet
    RUNNING = "running"
    STOPPING = "stopping"  # was asked to make a checkpoint and to end
    OUT_OF_CREDITS = "out_of_credits"  # waits for more credits
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"  # its maximum run time was used, or its hold ended
    MOVED = "moved"  # it waits in another pool


WAITING: Final = frozenset({JobState.QUEUED, JobState.OUT_OF_CREDITS})
LIVE: Final = frozenset({JobState.STARTING, JobState.RUNNING, JobState.STOPPING})  # has a lease
FINISHED: Final = frozenset(
    {JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED, JobState.MOVED}
)

# What ends an attempt, from whichever of the live states.
_ENDS: Final[Mapping[Cause, JobState]] = {
    Cause.FINISHED: JobState.SUCCEEDED,
    Cause.FAILED: JobState.FAILED,
    Cause.CANCELLED: JobState.CANCELLED,
    Cause.PREEMPTED: JobState.QUEUED,
    Cause.MADE_ROOM: JobState.QUEUED,
    Cause.LOST: JobState.QUEUED,
    Cause.GIVEN_UP: JobState.FAILED,
    Cause.TIME_UP: JobState.EXPIRED,
    Cause.OUT_OF_CREDITS: JobState.OUT_OF_CREDITS,
}
# What ends a wait without an attempt.
_DROPS: Final[Mapping[Cause, JobState]] = {
    Cause.CANCELLED: JobState.CANCELLED,
    Cause.HOLD_ENDED: JobState.EXPIRED,
    Cause.MOVED: JobState.MOVED,
}
TRANSITIONS: Final[Mapping[tuple[JobState, Cause], JobState]] = MappingProxyType(
    {
        (JobState.QUEUED, Cause.PLACED): JobState.STARTING,
        (JobState.STARTING, Cause.STARTED): JobState.RUNNING,
        (JobState.STARTING, Cause.STOP_REQUESTED): JobState.STOPPING,
        (JobState.RUNNING, Cause.STOP_REQUESTED): JobState.STOPPING,
        (JobState.QUEUED, Cause.OUT_OF_CREDITS): JobState.OUT_OF_CREDITS,  # by usage that came late
        (JobState.OUT_OF_CREDITS, Cause.TOPPED_UP): JobState.QUEUED,
        (JobState.QUEUED, Cause.CACHED): JobState.SUCCEEDED,  # on the org's side; it is in no pool
        **{(live, why): to for live in sorted(LIVE) for why, to in _ENDS.items()},
        **{(waiting, why): to for waiting in sorted(WAITING) for why, to in _DROPS.items()},
    }
)
END_CLASSES: Final[Mapping[Cause, EndClass]] = MappingProxyType(
    {
        Cause.FINISHED: EndClass.USER,
        Cause.FAILED: EndClass.USER,
        Cause.CANCELLED: EndClass.USER,
        Cause.PREEMPTED: EndClass.PREEMPTION,
        Cause.MADE_ROOM: EndClass.PREEMPTION,
        Cause.LOST: EndClass.PLATFORM,
        Cause.TIME_UP: EndClass.LIMIT,
        Cause.OUT_OF_CREDITS: EndClass.LIMIT,
        Cause.HOLD_ENDED: EndClass.LIMIT,
    }
)

CORRECTED: Final = "corrected"  # an operator corrected the end class of an attempt
# The steps of a job in the org's events. Pools do not report that a job was placed.
STEPS: Final = (
    "submitted",
    "follows",
    "took_over",
    CORRECTED,
    *(why.value for why in Cause if why is not Cause.PLACED),
)


def next_state(state: JobState, why: Cause) -> JobState:
    """The state after a step; a step that is not in the table is a bug (IM6)."""
    to = TRANSITIONS.get((state, why))
    if to is None:
        fail_invariant("a job cannot take this step", state=state, why=why)
    return to
