"""`bursar cancel`."""

import typer

from bursar.cli.api_command import ApiCall, Id, Key, Output
from bursar.cli.output import Format, print_note

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def cancel(id: Id, output: Output = Format.TABLE, key: Key = None) -> None:
    """Cancel a job. A running job gets time to write a checkpoint before it is stopped."""
    response = ApiCall(output, key).post(f"/v1/jobs/{id}/cancel", {}, ("id", "cancelling"))
    if not response["cancelling"] and output is Format.TABLE:
        print_note("the job had already finished")
