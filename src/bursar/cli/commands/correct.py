"""`bursar correct`."""

from enum import StrEnum
from typing import Annotated

import typer

from bursar.cli.calling import Call, Id, Key, Output
from bursar.cli.output import Format, note

app = typer.Typer(add_completion=False, rich_markup_mode=None)
SHOWN = ("id", "attempt", "end_class")


class EndClass(StrEnum):
    """Who can answer for an end."""

    USER = "user"
    PLATFORM = "platform"
    PREEMPTION = "preemption"
    LIMIT = "limit"


@app.command()
def correct(
    id: Id,
    end_class: Annotated[EndClass, typer.Argument(metavar="CLASS", help=", ".join(EndClass))],
    attempt: Annotated[int, typer.Option(min=1, help="The attempt whose end it is.")] = 1,
    reason: Annotated[str | None, typer.Option(help="Why; the org's events keep it.")] = None,
    output: Output = Format.TABLE,
    key: Key = None,
) -> None:
    """Say who answers for the end of an attempt of a job that is over; for operators.

    If it was the platform, or a preemption, what was lost since the last checkpoint is given back;
    if it was the user, or a limit, it is charged.
    """
    body = {"attempt": attempt, "end_class": end_class.value, "reason": reason}
    Call(output, key).post(f"/v1/jobs/{id}/correct", body, SHOWN)
    if output is Format.TABLE:
        note(f"its pool tells what moves by it; the step `corrected`: bursar watch {id}")
