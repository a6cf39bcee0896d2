"""`bursar jobs`."""

from enum import StrEnum
from typing import Annotated

import typer

from bursar.cli.api_command import After, All, Call, Limit, Misused, Org, Output, uuid
from bursar.cli.jobs import ELEMENTS, LISTED, WHOLE
from bursar.cli.output import Format

app = typer.Typer(add_completion=False, rich_markup_mode=None)


class State(StrEnum):
    """How far a job has got."""

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
    alive: Annotated[bool, typer.Option("--alive", help="Only those that are not over.")] = False,
    state: Annotated[State | None, typer.Option(help="Only those in this state.")] = None,
    account: Annotated[
        str | None, typer.Option(metavar="ID", parser=uuid, help="Only those of an account.")
    ] = None,
    user: Annotated[
        str | None, typer.Option(metavar="ID", parser=uuid, help="Only those of a user.")
    ] = None,
    label: Annotated[
        str | None, typer.Option(metavar="NAME[=VALUE]", help="Only those with this label.")
    ] = None,
    array: Annotated[
        str | None,
        typer.Option(metavar="ID", parser=uuid, help="Only the elements of an array, by number."),
    ] = None,
    org: Org = None,
    limit: Limit = 100,
    after: After = None,
    all: All = False,
    output: Output = Format.TABLE,
) -> None:
    """Jobs, the newest first; those of an array are shown with it alone."""
    params = {
        "alive": "true" if alive else None,
        "state": None if state is None else state.value,
        "account_id": account,
        "user_id": user,
        "label": label,
        "org_id": org,
    }
    if array is not None:
        if [name for name, value in params.items() if value and name not in ("state", "org_id")]:
            raise Misused("--array goes with --state alone")
        columns = ELEMENTS if output is Format.TABLE else WHOLE
        path = f"/v1/jobs/{array}/elements"
        Call(output).page(path, columns, {"state": params["state"]}, limit, after, all)
        return
    columns = LISTED if output is Format.TABLE else WHOLE
    Call(output).page("/v1/jobs", columns, params, limit, after, all)
