"""Corrections of ends over HTTP: what an operator says, and what it came to."""

from typing import Annotated, Self

from pydantic import Field

from bursar.core.ledger.events import ChargeBooked, WorkGivenBack
from bursar.core.messages import EndClass
from bursar.core.money import AMOUNT_MAX
from bursar.wire.answers import Answer, Happened
from bursar.wire.shapes import Micros, Shape


class EndCorrection(Shape):
    """Who answers for the end of an attempt."""

    attempt: Annotated[int, Field(ge=1, le=AMOUNT_MAX)]
    end_class: Annotated[
        EndClass,
        Field(
            strict=False,
            description="`platform`, `preemption`: what was lost since the last checkpoint is given"
            " back; `user`, `limit`: it is charged",
        ),
    ]


class EndCorrected(Answer):
    """What a correction has changed; nothing if it was so already."""

    id: str
    attempt: int
    end_class: EndClass
    given_back_micros: Micros
    charged_micros: Micros

    @classmethod
    def of(cls, job: str, ask: EndCorrection, happened: Happened) -> Self:
        """What happened, told as what it came to."""
        return cls.model_construct(
            id=job,
            attempt=ask.attempt,
            end_class=ask.end_class,
            given_back_micros=sum(e.amount for e in happened if isinstance(e, WorkGivenBack)),
            charged_micros=sum(e.amount for e in happened if isinstance(e, ChargeBooked)),
        )
