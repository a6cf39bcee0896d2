"""`bursar why`."""

from typing import Any, Final

import typer

from bursar.cli.calling import Call, Id, Output
from bursar.cli.output import Format

app = typer.Typer(add_completion=False, rich_markup_mode=None)

COLUMNS: Final = ("job_id", "state", "number", "earliest_at", "latest_at", "start", "told")


@app.command()
def why(id: Id, output: Output = Format.TABLE) -> None:
    """Why a job waits, who has what it needs, and when it is likely to start."""
    Call(output).get(f"/v1/jobs/{id}/why", COLUMNS, text=_lines)


def _lines(body: Any) -> str:
    return "\n".join([f"{body['job_id']} is {body['state']}", *body["told"]])
