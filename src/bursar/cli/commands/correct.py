"""`bursar correct`."""

import time
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from bursar.cli.api_command import ApiCall, Id, Key, Output, connect
from bursar.cli.job_progress import format_step
from bursar.cli.output import Format, print_note
from bursar.client import Client

app = typer.Typer(add_completion=False, rich_markup_mode=None)
COLUMNS: Final = ("id", "attempt", "end_class")
WAIT_S: Final = 5.0  # for the pool's reply, which usually takes milliseconds
PAUSE_S: Final = 0.1


class CorrectedEndClass(StrEnum):
    """The party that is responsible for the end of an attempt."""

    USER = "user"
    PLATFORM = "platform"
    PREEMPTION = "preemption"
    LIMIT = "limit"


@app.command()
def correct(
    id: Id,
    end_class: Annotated[
        CorrectedEndClass, typer.Argument(metavar="CLASS", help=", ".join(CorrectedEndClass))
    ],
    attempt: Annotated[
        int | None,
        typer.Option(min=1, help="Number of the attempt. Default: the last."),
    ] = None,
    reason: Annotated[
        str | None, typer.Option(help="Reason, recorded in the org's events.")
    ] = None,
    output: Output = Format.TABLE,
    key: Key = None,
) -> None:
    """Change who is responsible for the end of a finished job's attempt. For operators.

    `platform` and `preemption` refund the work since the last checkpoint; `user` and `limit`
    charge it.
    """
    with connect() as client:
        job: Any = client.get(f"/v1/jobs/{id}", {}).body
        number = attempt or max(job["attempt"], 1)
        body = {"attempt": number, "end_class": end_class.value, "reason": reason}
        ApiCall(output, key).post(f"/v1/jobs/{id}/correct", body, COLUMNS)
        if output is Format.TABLE:
            step = _wait_for_step(client, id, job["steps"])
            print_note(step or f"the pool will report the new charge: bursar watch {id}")


def _wait_for_step(client: Client, id: str, steps_before: int) -> str | None:
    """Wait for the pool to report the correction; None on timeout."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        page: Any = client.get(f"/v1/jobs/{id}/events", {"after": steps_before}).body
        for step in page["items"]:
            if step["why"] == "corrected":
                return format_step(step)
        time.sleep(PAUSE_S)
    return None
