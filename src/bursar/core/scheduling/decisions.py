"""What a plan says: decisions, each with its reason, and why others wait."""

from typing import NamedTuple, TypeAlias

from bursar.core.ids import JobId
from bursar.core.instant import Instant
from bursar.core.money import Micros
from bursar.core.scheduling.model.jobs import StartReason, TasksByNode
from bursar.core.scheduling.model.nodes import Piece
from bursar.core.value import value


@value
class Start:
    """A job gets its GPUs now."""

    job: JobId
    gpu_type: str
    pieces: tuple[Piece, ...]
    why: StartReason


@value
class Preempt:
    """A running job is asked to make room for another."""

    job: JobId
    wanted_by: JobId
    right: str  # by which rule: see `rights.Right`
    lost: Micros  # work that no checkpoint keeps
    stops_at: Instant


@value
class EarmarkGpus:
    """GPUs, free ones and those of victims, are kept for a job that starts when all are free."""

    job: JobId
    gpu_type: str
    pieces: tuple[Piece, ...]
    victims: tuple[JobId, ...]


@value
class Promise:
    """A job that has waited too long gets a date by which it starts."""

    job: JobId
    at: Instant
    since: Instant  # when it was first given one; those given later come later
    nodes: TasksByNode  # where


Decision: TypeAlias = Start | Preempt | EarmarkGpus | Promise


class PlannedStart(NamedTuple):
    """A blocked job's future place."""

    at: Instant
    gpu_type: str
    nodes: TasksByNode


@value
class Wait:
    """Why a job that was looked at does not start, and when it can at the latest."""

    job: JobId
    reason: str  # a stable word: capacity, crowded, ceiling, never_fits
    figures: tuple[tuple[str, int | str], ...]
    planned: PlannedStart | None = None


@value
class Plan:
    """All decisions of a round, in the order in which they are to be carried out."""

    at: Instant
    decisions: tuple[Decision, ...]
    waits: tuple[Wait, ...]
    complete: bool  # False if a budget of steps ended before everything was looked at
    steps: int
