"""`bursar job`."""

import typer

from bursar.cli.calling import Call, Id, Output
from bursar.cli.jobs import WHOLE, shown_with
from bursar.cli.output import Format

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def job(id: Id, output: Output = Format.TABLE) -> None:
    """A job: how far it has got, what it has spent."""
    Call(output).get(f"/v1/jobs/{id}", WHOLE, text=shown_with(WHOLE))
