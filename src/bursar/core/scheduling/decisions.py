"""What a plan contains: decisions, each with its reason, and why other jobs wait."""

from typing import NamedTuple, TypeAlias

from bursar.core.ids import JobId
from bursar.core.instant import Instant
from bursar.core.money import Micros
from bursar.core.scheduling.model.jobs import StartReason, TasksByNode
from bursar.core.scheduling.model.nodes import Piece
from bursar.core.value import value


@value
class Start:
    """A job starts now on these GPUs."""

    job: JobId
    gpu_type: str
    pieces: tuple[Piece, ...]
    why: StartReason


@value
class Preempt:
    """A running job stops to make room for another."""

    job: JobId
    wanted_by: JobId
    right: str  # see `preemption.rights.Right`
    lost: Micros  # work since the last checkpoint
    stops_at: Instant


@value
class EarmarkGpus:
    """Free GPUs, and those of the victims, are held for a job that starts when all are free."""

    job: JobId
    gpu_type: str
    pieces: tuple[Piece, ...]
    victims: tuple[JobId, ...]


@value
class Promise:
    """A job that has waited too long gets a date by which it starts."""

    job: JobId
    at: Instant
    since: Instant  # when it first got a date; dates are kept in this order
    nodes: TasksByNode  # where it starts


Decision: TypeAlias = Start | Preempt | EarmarkGpus | Promise


class PlannedStart(NamedTuple):
    """When and where a blocked job can start at the latest."""

    at: Instant
    gpu_type: str
    nodes: TasksByNode


@value
class Wait:
    """Why a job does not start in this round, and when it can at the latest."""

    job: JobId
    reason: str  # a stable code: capacity, crowded, ceiling, never_fits
    figures: tuple[tuple[str, int | str], ...]
    planned: PlannedStart | None = None


@value
class Plan:
    """All decisions of a round, in the order in which they are carried out."""

    at: Instant
    decisions: tuple[Decision, ...]
    waits: tuple[Wait, ...]
    complete: bool  # False if a budget ended before every job was looked at
    steps: int
