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
WAIT_S: Final = 5.0  # for the pool's reply, which usually takes milliseconds
PAUSE_S: Final = 0.1


class EndClass(StrEnum):
    """The party that is responsible for the end of an attempt."""

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
    with connected() as client:
        job: Any = client.get(f"/v1/jobs/{id}", {}).body
        number = attempt or max(job["attempt"], 1)
        body = {"attempt": number, "end_class": end_class.value, "reason": reason}
        Call(output, key).post(f"/v1/jobs/{id}/correct", body, SHOWN)
        if output is Format.TABLE:
            step = _step(client, id, job["steps"])
            note(step or f"the pool will report the new charge: bursar watch {id}")


def _step(client: Client, id: str, seen: int) -> str | None:
    """Wait for the pool to report the correction; None on timeout."""
    ends_at = time.monotonic() + WAIT_S
    while time.monotonic() < ends_at:
        told: Any = client.get(f"/v1/jobs/{id}/events", {"after": seen}).body
        for step in told["items"]:
            if step["why"] == "corrected":
                return step_told(step)
        time.sleep(PAUSE_S)
    return None
