"""`bursar cancel`."""

import typer

from bursar.cli.api_command import Call, Id, Key, Output
from bursar.cli.output import Format, note

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def cancel(id: Id, output: Output = Format.TABLE, key: Key = None) -> None:
    """Cancel a job. A running job gets time to write a checkpoint before it is stopped."""
    told = Call(output, key).post(f"/v1/jobs/{id}/cancel", {}, ("id", "cancelling"))
    if not told["cancelling"] and output is Format.TABLE:
        note("the job had already finished")
