"""The rows of an org's jobs: immutable values, one class for each table."""

from typing import NamedTuple

from bursar.core.dispatch.job_lifecycle import JobState
from bursar.core.ids import AccountId, JobId, UserId
from bursar.core.instant import Instant
from bursar.core.messages import EndClass, Enqueue, ToPool
from bursar.core.money import Micros
from bursar.core.value import value

SUBMITTED = "submitted"  # the first step of every job


@value
class OrgJob:
    """A job of an org.

    `request`, `labels` and `result` are only written: loaded rows do not have them.
    """

    id: JobId
    account: AccountId
    user: UserId
    pool: str
    submitted_at: Instant
    state: JobState = JobState.QUEUED
    why: str = SUBMITTED  # its last step
    attempt: int = 0
    sent: int = 0  # messages to its pool
    received: int = 0  # messages of its pool that were handled
    withdrawn: bool = False  # its org has cancelled it
    steps: int = 0  # rows of its history
    gpu_type: str | None = None  # of its last attempt
    started_at: Instant | None = None  # of its last attempt
    ended_at: Instant | None = None
    end_class: EndClass | None = None
    exit_code: int | None = None
    result: str | None = None  # JSON, set by the message that brings it
    request: str | None = None  # JSON
    labels: str = "{}"  # JSON
    run_ms: int | None = None  # longest run and stop grace
    max_cost: Micros | None = None  # the most that may be held for it in total
    rolling: bool = False  # its hold is topped up while it runs
    correcting: bool = False  # its pool has not answered a correction yet
    # Shared results
    digest: str | None = None  # of all that decides its result; None if it shares nothing
    hit_ppm: int | None = None  # what it pays for a result, as a part of the cost of the run
    leads: bool = False  # it shares its result, runs or will run, and has not ended
    follows: bool = False  # it waits for the result of another job, and is in no pool
    source: JobId | None = None  # the job that it came to follow, or that had a result
    hit: bool = False  # a result was there when it was submitted
    cached_from: JobId | None = None  # the job whose result it was given
    unsent: Enqueue | None = None  # of a follower: what its pool is sent if it has to run
    # Arrays
    array: JobId | None = None  # of an element
    place: int | None = None  # of an element: its number, from 0
    elements: int | None = None  # of an array: how many it has

    @property
    def is_finished(self) -> bool:
        """Whether it is in a final state."""
        return self.ended_at is not None


@value
class ArrayProgress:
    """The progress of an array: a row in addition to the array's `OrgJob`."""

    id: JobId
    elements: int
    at_once: int  # the maximum of elements in the pool at a time
    template: Enqueue  # the message for an element, without its number
    begun: int = 0
    live: int = 0  # begun and not finished
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    expired: int = 0
    closed: bool = False  # no more elements are added
    done: bool = False  # all elements have finished, and so has the array


class Route(NamedTuple):
    """A pool that a job was sent to."""

    n: int
    pool: str
    at: Instant
    arrived_at: Instant | None  # None while the former pool has not given the job back
    why: str


class JobFigures(NamedTuple):
    """What a job has spent and what its hold still has."""

    spent: Micros = 0
    held: Micros = 0


class Outgoing(NamedTuple):
    """A message to a job's pool."""

    job: JobId
    n: int
    pool: str
    message: ToPool
    at: Instant


class Receipt(NamedTuple):
    """A pool's message that was handled, and the ledger's refusal, if there was one."""

    pool: str
    job: JobId
    n: int
    at: Instant
    refusal: str | None


class StepRow(NamedTuple):
    """A step in the history of a job."""

    job: JobId
    n: int
    at: Instant
    state: JobState
    why: str
    attempt: int
    gpu_type: str | None
    exit_code: int | None
    spent: Micros
    held: Micros
    other: JobId | None  # the job that it follows, or whose result it was given
    end_class: EndClass | None  # of a correction


class RouteRow(NamedTuple):
    """A route of a job."""

    job: JobId
    route: Route
