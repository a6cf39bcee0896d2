"""`bursar job`."""

from typing import Annotated, Any, Final

import typer

from bursar.cli.api_command import ApiCall, Id, Output
from bursar.cli.jobs import JOB_COLUMNS, make_renderer
from bursar.cli.output import Format, render_table

app = typer.Typer(add_completion=False, rich_markup_mode=None)

RESULT_COLUMNS: Final = ("job_id", "state", "ended_at", "exit_code", "cached_from", "manifest")
OUTPUT_COLUMNS: Final = ("name", "type", "inline", "uri", "sha256")


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
        ApiCall(output).get(f"/v1/jobs/{id}/result", RESULT_COLUMNS, text=_render_result)
    else:
        ApiCall(output).get(f"/v1/jobs/{id}", JOB_COLUMNS, text=make_renderer(JOB_COLUMNS))


def _render_result(body: Any) -> str:
    """Render a result and the outputs of its manifest."""
    summary, outputs = make_renderer(RESULT_COLUMNS[:-1])(body), body["manifest"]
    if not outputs:
        return f"{summary}\n\nno outputs"
    columns = [column for column in OUTPUT_COLUMNS if any(column in each for each in outputs)]
    return f"{summary}\n\n{render_table(columns, outputs)}"
