"""`bursar correct`."""

import time
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from bursar.cli.api_command import Call, Id, Key, Output, connected
from bursar.cli.job_progress import step_told
from bursar.cli.output import Format, note
from bursar.client import Client

app = typer.Typer(add_completion=False, rich_markup_mode=None)
SHOWN: Final = ("id", "attempt", "end_class")
WAIT_S: Final = 5.0  # for what its pool tells; that takes milliseconds
PAUSE_S: Final = 0.1


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
    attempt: Annotated[
        int | None,
        typer.Option(min=1, help="The attempt whose end it is; the last if not given."),
    ] = None,
    reason: Annotated[str | None, typer.Option(help="Why; the org's events keep it.")] = None,
    output: Output = Format.TABLE,
    key: Key = None,
) -> None:
    """Say who answers for the end of an attempt of a job that is over; for operators.

    If it was the platform, or a preemption, what was lost since the last checkpoint is given back;
    if it was the user, or a limit, it is charged.
    """
    with connected() as client:
        job: Any = client.get(f"/v1/jobs/{id}", {}).body
        number = attempt or max(job["attempt"], 1)
        body = {"attempt": number, "end_class": end_class.value, "reason": reason}
        Call(output, key).post(f"/v1/jobs/{id}/correct", body, SHOWN)
        if output is Format.TABLE:
            step = _step(client, id, job["steps"])
            note(step or f"its pool tells what moves by it: bursar watch {id}")


def _step(client: Client, id: str, seen: int) -> str | None:
    """The step that follows, as soon as its pool has told what moves; None if that takes long."""
    ends_at = time.monotonic() + WAIT_S
    while time.monotonic() < ends_at:
        told: Any = client.get(f"/v1/jobs/{id}/events", {"after": seen}).body
        for step in told["items"]:
            if step["why"] == "corrected":
                return step_told(step)
        time.sleep(PAUSE_S)
    return None
