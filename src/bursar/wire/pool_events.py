"""Responses of the audit stream of a pool."""

from typing import Annotated, Literal

from pydantic import Field

from bursar.wire.fields import Time, WireModel


class PoolEventResponse(WireModel):
    """The input and the decisions of a leader in one round, or the state it started with."""

    stream: Annotated[str, Field(description="the pool")]
    number: int
    at: Time
    recorded_at: Time
    epoch: Annotated[int, Field(description="of the leader")]
    kind: Literal["snapshot", "part", "round"]
    text: Annotated[
        str,
        Field(
            description="The event as it was recorded: JSON in the scheduler's own terms (times in"
            " microseconds), byte for byte as the digest covers it."
        ),
    ]
    digest: Annotated[str, Field(description="of the text and the digest before it")]
