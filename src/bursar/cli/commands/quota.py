"""`bursar quota`."""

import re
from collections.abc import Sequence
from typing import Annotated, Final

import typer

from bursar.cli.api_command import Call, Id, Key, Misused, Org, Output, lists, noun, uuid
from bursar.cli.output import Format

app = noun("Limits on GPUs and jobs at once.")
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
        str | None, typer.Option(metavar="ID", parser=uuid, help="This account and all below it.")
    ] = None,
    user: Annotated[str | None, typer.Option(metavar="ID", parser=uuid, help="This user.")] = None,
    gpus: Annotated[int | None, typer.Option(min=0, help="GPUs at once, of any type.")] = None,
    gpu: Annotated[
        list[str] | None,
        typer.Option(metavar="TYPE=COUNT", help="GPUs of a type at once, such as H100=8."),
    ] = None,
    jobs_running: Annotated[int | None, typer.Option(min=0, help="Jobs that run at once.")] = None,
    jobs_queued: Annotated[int | None, typer.Option(min=0, help="Jobs that wait at once.")] = None,
    submissions_per_minute: Annotated[
        int | None, typer.Option(min=0, help="Jobs handed in per minute.")
    ] = None,
    id: Annotated[
        str | None, typer.Option(metavar="ID", parser=uuid, help="The quota to change.")
    ] = None,
    output: Output = Format.TABLE,
    key: Key = None,
) -> None:
    """Set a quota of an account, a user or the pair, or put another in its place (--id)."""
    if account is None and user is None:
        raise Misused("say whose quota it is: with --account, --user or both")
    body = {
        "account_id": account,
        "user_id": user,
        "gpus_max": gpus,
        "gpus_max_by_type": _by_type(gpu) if gpu else None,
        "jobs_running_max": jobs_running,
        "jobs_queued_max": jobs_queued,
        "submissions_per_minute_max": submissions_per_minute,
    }
    call = Call(output, key)
    if id is None:
        call.post("/v1/quotas", body, COLUMNS)
    else:
        call.put(f"/v1/quotas/{id}", body, COLUMNS)


def _by_type(given: Sequence[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for text in given:
        matched = re.fullmatch(r"(.+)=(\d{1,9})", text, re.ASCII)
        if matched is None:
            raise typer.BadParameter(f"{text[:40]!r}: write it as H100=8", param_hint="--gpu")
        found[matched[1]] = int(matched[2])
    return found


lists(app, "/v1/quotas", "The quotas of an org.", COLUMNS)


@app.command()
def show(id: Id, org: Org = None, output: Output = Format.TABLE) -> None:
    """A quota."""
    Call(output).get(f"/v1/quotas/{id}", COLUMNS, {"org_id": org})


@app.command()
def drop(id: Id, org: Org = None, output: Output = Format.TABLE, key: Key = None) -> None:
    """Limit no more."""
    Call(output, key).delete(f"/v1/quotas/{id}", ("id",), {"org_id": org})
