"""Responses of the logs of jobs."""

from typing import Annotated

from pydantic import Field

from bursar.wire.fields import Time, WireModel


class LogPart(WireModel):
    """A part of the output of a process."""

    attempt: int
    node: str
    offset: Annotated[int, Field(description="The bytes printed before it.")]
    at: Annotated[Time, Field(description="When it was received.")]
    text: str


class LogsResponse(WireModel):
    """Parts of a job's log, by attempt and node."""

    items: list[LogPart]
    next: Annotated[
        str | None, Field(description="Send it as `after` to read on; null after the last part.")
    ]
    finished: Annotated[
        bool, Field(description="Whether the job has finished. Its last output may still follow.")
    ]
    complete: Annotated[bool, Field(description="Whether nothing will follow.")]
    progress_ppm: Annotated[
        int | None, Field(description="The progress that the last attempt reports, in millionths.")
    ] = None
