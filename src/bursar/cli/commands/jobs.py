"""`bursar jobs`."""

from enum import StrEnum
from typing import Annotated

import typer

from bursar.cli.api_command import After, All, ApiCall, Limit, Org, Output, UsageError, id_parser
from bursar.cli.jobs import ELEMENT_COLUMNS, JOB_COLUMNS, LIST_COLUMNS
from bursar.cli.output import Format

app = typer.Typer(add_completion=False, rich_markup_mode=None)


class JobStateFilter(StrEnum):
    """A job's state."""

    QUEUED = "queued"
    RUNNING = "running"
    STOPPING = "stopping"
    OUT_OF_CREDITS = "out_of_credits"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


@app.command()
def jobs(
    unfinished: Annotated[bool, typer.Option("--unfinished", help="Only unfinished jobs.")] = False,
    state: Annotated[JobStateFilter | None, typer.Option(help="Only jobs in this state.")] = None,
    account: Annotated[
        str | None, typer.Option(metavar="ID", parser=id_parser, help="Only jobs of this account.")
    ] = None,
    user: Annotated[
        str | None, typer.Option(metavar="ID", parser=id_parser, help="Only jobs of this user.")
    ] = None,
    label: Annotated[
        str | None, typer.Option(metavar="NAME[=VALUE]", help="Only jobs with this label.")
    ] = None,
    array: Annotated[
        str | None,
        typer.Option(metavar="ID", parser=id_parser, help="The elements of this array, by index."),
    ] = None,
    org: Org = None,
    limit: Limit = 100,
    after: After = None,
    all: All = False,
    output: Output = Format.TABLE,
) -> None:
    """List jobs, newest first. Use --array to list the elements of an array."""
    params = {
        "unfinished": "true" if unfinished else None,
        "state": None if state is None else state.value,
        "account_id": account,
        "user_id": user,
        "label": label,
        "org_id": org,
    }
    if array is not None:
        if [name for name, value in params.items() if value and name not in ("state", "org_id")]:
            raise UsageError("--array can only be combined with --state")
        columns = ELEMENT_COLUMNS if output is Format.TABLE else JOB_COLUMNS
        path = f"/v1/jobs/{array}/elements"
        ApiCall(output).get_page(path, columns, {"state": params["state"]}, limit, after, all)
        return
    columns = LIST_COLUMNS if output is Format.TABLE else JOB_COLUMNS
    ApiCall(output).get_page("/v1/jobs", columns, params, limit, after, all)
