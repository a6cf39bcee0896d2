"""`bursar watch`."""

import typer

from bursar.cli.api_command import Id, Output, connect
from bursar.cli.jobs import follow_job
from bursar.cli.output import Format

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def watch(id: Id, output: Output = Format.TABLE) -> None:
    """Follow a job until it finishes. Exits with 1 unless it succeeded. Ctrl-C stops watching."""
    with connect() as client:
        raise typer.Exit(follow_job(client, id, output))
