"""`bursar cancel`."""

import typer

from bursar.cli.api_command import Call, Id, Key, Output
from bursar.cli.output import Format, note

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def cancel(id: Id, output: Output = Format.TABLE, key: Key = None) -> None:
    """Let a job run no more; a running one is asked to make a checkpoint and to end."""
    told = Call(output, key).post(f"/v1/jobs/{id}/cancel", {}, ("id", "cancelling"))
    if not told["cancelling"] and output is Format.TABLE:
        note("it was over already")
