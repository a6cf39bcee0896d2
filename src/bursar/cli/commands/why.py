"""`bursar why`."""

import re
from typing import Any, Final

import typer

from bursar.cli.api_command import ApiCall, Id, Output
from bursar.cli.output import Format, make_printable
from bursar.cli.ranges import format_local

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_INSTANT: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z", re.ASCII)
COLUMNS: Final = (
    *("job_id", "state", "position", "earliest_at", "latest_at", "start_basis", "lines"),
)


@app.command()
def why(id: Id, output: Output = Format.TABLE) -> None:
    """Explain why a job waits, what blocks it, and when it can start."""
    ApiCall(output).get(f"/v1/jobs/{id}/why", COLUMNS, text=_lines)


def _lines(body: Any) -> str:
    lines = (_INSTANT.sub(lambda match: format_local(match[0]), line) for line in body["lines"])
    return "\n".join([f"{body['job_id']} is {body['state']}.", *map(make_printable, lines)])
