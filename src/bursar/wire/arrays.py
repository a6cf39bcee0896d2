"""Arrays of jobs over HTTP: one request for many similar jobs, and the states of its elements."""

from typing import Annotated, Final

from pydantic import Field

from bursar.wire.fields import WireModel

ELEMENTS_MAX: Final = 10_000
AT_ONCE_MAX: Final = 1_000


class Array(WireModel):
    """Run a job many times, each time with another BURSAR_ARRAY_INDEX, from 0 on."""

    count: Annotated[int, Field(ge=1, le=ELEMENTS_MAX, description="how many times")]
    at_once: Annotated[
        int | None,
        Field(
            ge=1,
            le=AT_ONCE_MAX,
            description=f"Elements that wait or run at a time. Default: {AT_ONCE_MAX:,}.",
        ),
    ] = None

    @property
    def elements_at_once(self) -> int:
        """Maximum number of elements in the pool at a time."""
        return min(self.count, self.at_once or AT_ONCE_MAX)


class JobArray(WireModel):
    """The number of elements of an array, and how many are in each state."""

    count: int
    at_once: int
    not_submitted: int
    queued: int
    running: int
    stopping: int
    out_of_credits: int
    succeeded: int
    failed: int
    cancelled: int
    expired: int
