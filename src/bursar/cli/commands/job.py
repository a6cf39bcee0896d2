"""`bursar job`."""

from typing import Annotated, Any, Final

import typer

from bursar.cli.api_command import Call, Id, Output
from bursar.cli.jobs import WHOLE, shown_with
from bursar.cli.output import Format, table

app = typer.Typer(add_completion=False, rich_markup_mode=None)

RESULT: Final = ("job_id", "state", "ended_at", "exit_code", "cached_from", "manifest")
OUTPUTS: Final = ("name", "type", "inline", "uri", "sha256")


@app.command()
def job(
    id: Id,
    result: Annotated[
        bool,
        typer.Option(
            "--result", help="Show the result and its outputs, once the job has finished."
        ),
    ] = False,
    output: Output = Format.TABLE,
) -> None:
    """Show a job's state and cost."""
    if result:
        Call(output).get(f"/v1/jobs/{id}/result", RESULT, text=_left)
    else:
        Call(output).get(f"/v1/jobs/{id}", WHOLE, text=shown_with(WHOLE))


def _left(body: Any) -> str:
    """Render a result and the outputs of its manifest."""
    ended, outputs = shown_with(RESULT[:-1])(body), body["manifest"]
    if not outputs:
        return f"{ended}\n\nno outputs"
    shown = [one for one in OUTPUTS if any(one in each for each in outputs)]
    return f"{ended}\n\n{table(shown, outputs)}"
