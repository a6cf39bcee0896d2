"""What jobs have printed, as it is read."""

from typing import Annotated

from pydantic import Field

from bursar.wire.fields import Time, WireModel


class LogPart(WireModel):
    """A part of what a process has printed."""

    attempt: int
    node: str
    offset: Annotated[int, Field(description="bytes printed before it")]
    at: Annotated[Time, Field(description="when it was received")]
    text: str


class LogsResponse(WireModel):
    """Parts of a job's logs, by attempt and node; `next` asks for what follows, now or later."""

    data: list[LogPart]
    next: Annotated[str, Field(description="say it as `after`")]
    complete: Annotated[bool, Field(description="whether nothing will follow")]
    progress_ppm: Annotated[
        int | None, Field(description="how far its last attempt says that it is, in millionths")
    ] = None
