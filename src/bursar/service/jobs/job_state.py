"""How far a job has got, as far as its org can know: by what its pool has told (`dispatch.life`).

An org hears of starts and ends only. That a job has its GPUs and has not started, it does not know:
to its org such a job is queued. That it is stopping it knows of jobs that it has withdrawn itself.
"""

from typing import NamedTuple

from bursar.core.dispatch import job_lifecycle
from bursar.core.dispatch.job_lifecycle import State
from bursar.core.instant import Instant
from bursar.core.messages import Corrected, Dropped, EndClass, Ended, Message, Started, Why


class Stand(NamedTuple):
    """What is new about a job after a message; None leaves it as it was."""

    attempt: int = 0
    state: str | None = None
    why: str | None = None
    ended_at: Instant | None = None
    end_class: str | None = None
    started_at: Instant | None = None
    gpu_type: str | None = None
    exit_code: int | None = None
    result: str | None = None


def stand_after(message: Message, at: Instant) -> Stand:
    """How a job stands after a message of its pool that was handled at an instant."""
    match message:
        case Started():
            return Stand(
                message.attempt,
                State.RUNNING.value,
                Why.STARTED.value,
                started_at=message.at,
                gpu_type=message.gpu_type,
            )
        case Ended():
            state, why = _after_attempt(message)
            return Stand(
                message.attempt,
                state.value,
                why.value,
                at if message.over else None,
                message.end_class.value if message.over else None,
                exit_code=message.exit_code,
                result=message.result if message.over else None,
            )
        case Corrected():
            end_class = message.end_class.value if message.over else None
            return Stand(message.attempt, end_class=end_class)
        case Dropped(end_class=end_class):
            state = State.CANCELLED if end_class is EndClass.USER else State.EXPIRED
            return Stand(0, state.value, message.why.value, at, end_class.value)
        case _:
            return Stand()


def _after_attempt(end: Ended) -> tuple[State, Why]:
    """The state after an attempt; who is over although it might have gone on was given up."""
    if end.over and end.why in (Why.PREEMPTED, Why.MADE_ROOM, Why.LOST):
        return job_lifecycle.after(State.RUNNING, Why.GIVEN_UP), Why.GIVEN_UP
    if end.over and end.why is Why.OUT_OF_CREDITS:
        return State.EXPIRED, end.why
    return job_lifecycle.after(State.RUNNING, end.why), end.why
