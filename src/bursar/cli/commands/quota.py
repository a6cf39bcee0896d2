"""`bursar quota`."""

import re
from collections.abc import Sequence
from typing import Annotated, Final

import typer

from bursar.cli.api_command import (
    ApiCall,
    Id,
    Key,
    Org,
    Output,
    UsageError,
    add_list_command,
    id_parser,
    make_group,
)
from bursar.cli.output import Format

app = make_group("Limit GPUs and jobs in use at the same time.")
COLUMNS: Final = (
    "id",
    "account_id",
    "user_id",
    "gpus_max",
    "gpus_max_by_type",
    "jobs_running_max",
    "jobs_queued_max",
    "submissions_per_minute_max",
)


@app.command("set")
def set_(
    account: Annotated[
        str | None,
        typer.Option(
            metavar="ID", parser=id_parser, help="Limit this account and the accounts below it."
        ),
    ] = None,
    user: Annotated[
        str | None, typer.Option(metavar="ID", parser=id_parser, help="Limit this user.")
    ] = None,
    gpus: Annotated[
        int | None, typer.Option(min=0, help="Maximum GPUs in use, of any type.")
    ] = None,
    gpu: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TYPE=COUNT", help="Maximum GPUs of one type, such as H100=8. Repeatable."
        ),
    ] = None,
    jobs_running: Annotated[int | None, typer.Option(min=0, help="Maximum running jobs.")] = None,
    jobs_queued: Annotated[int | None, typer.Option(min=0, help="Maximum queued jobs.")] = None,
    submissions_per_minute: Annotated[
        int | None, typer.Option(min=0, help="Maximum submissions per minute.")
    ] = None,
    id: Annotated[
        str | None,
        typer.Option(metavar="ID", parser=id_parser, help="Id of an existing quota to replace."),
    ] = None,
    output: Output = Format.TABLE,
    key: Key = None,
) -> None:
    """Create a quota for an account, a user or both, or replace an existing one (--id)."""
    if account is None and user is None:
        raise UsageError("add --account, --user or both")
    body = {
        "account_id": account,
        "user_id": user,
        "gpus_max": gpus,
        "gpus_max_by_type": _parse_limits(gpu) if gpu else None,
        "jobs_running_max": jobs_running,
        "jobs_queued_max": jobs_queued,
        "submissions_per_minute_max": submissions_per_minute,
    }
    call = ApiCall(output, key)
    if id is None:
        call.post("/v1/quotas", body, COLUMNS)
    else:
        call.put(f"/v1/quotas/{id}", body, COLUMNS)


def _parse_limits(texts: Sequence[str]) -> dict[str, int]:
    limits: dict[str, int] = {}
    for text in texts:
        match = re.fullmatch(r"(.+)=(\d{1,9})", text, re.ASCII)
        if match is None:
            raise typer.BadParameter(f"{text[:40]!r}: write H100=8", param_hint="--gpu")
        limits[match[1]] = int(match[2])
    return limits


add_list_command(app, "/v1/quotas", "List the quotas of an org.", COLUMNS)


@app.command()
def show(id: Id, org: Org = None, output: Output = Format.TABLE) -> None:
    """Show a quota."""
    ApiCall(output).get(f"/v1/quotas/{id}", COLUMNS, {"org_id": org})


@app.command()
def delete(id: Id, org: Org = None, output: Output = Format.TABLE, key: Key = None) -> None:
    """Delete a quota."""
    ApiCall(output, key).delete(f"/v1/quotas/{id}", ("id",), {"org_id": org})
