"""`bursar top`."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from bursar.cli.api_command import ApiCall, Limit, Org, Output, make_group
from bursar.cli.output import Format, print_note
from bursar.cli.ranges import format_local

app = make_group("Rank accounts, users and jobs by credits.")
COLUMNS: Final = ("rank", "id", "value_micros", "org_id")


JOB_COLUMNS: Final = (
    "rank",
    "id",
    "state",
    "spent_micros",
    "held_micros",
    "micros_per_hour",
    "user_id",
)


class JobRanking(StrEnum):
    """What jobs are ranked by."""

    SPENT = "spent"
    HELD = "held"
    BURN = "burn"


class AccountRanking(StrEnum):
    """What accounts are ranked by."""

    AVAILABLE = "available"
    USED = "used"
    DAY = "day"
    WEEK = "week"


class UserRanking(StrEnum):
    """What users are ranked by."""

    USED = "used"
    DAY = "day"
    WEEK = "week"


@app.command()
def accounts(
    by: Annotated[
        AccountRanking,
        typer.Option(help="Rank by available credits, or by use in total, per day or per week."),
    ] = (AccountRanking.USED),
    org: Org = None,
    limit: Limit = 10,
    output: Output = Format.TABLE,
) -> None:
    """Rank the accounts of an org or, for operators, of all orgs."""
    _print_ranking("accounts", by.value, org, limit, output)


@app.command()
def users(
    by: Annotated[
        UserRanking, typer.Option(help="Rank by use in total, in the last day or in the last week.")
    ] = (UserRanking.USED),
    org: Org = None,
    limit: Limit = 10,
    output: Output = Format.TABLE,
) -> None:
    """Rank the users of an org or, for operators, of all orgs."""
    _print_ranking("users", by.value, org, limit, output)


@app.command()
def jobs(
    by: Annotated[
        JobRanking, typer.Option(help="Rank by credits spent, held, or burned per hour.")
    ] = JobRanking.SPENT,
    org: Org = None,
    limit: Limit = 10,
    output: Output = Format.TABLE,
) -> None:
    """Rank the unfinished jobs of an org."""
    params = {"by": by.value, "org_id": org, "limit": limit}
    ApiCall(output).get("/v1/top/jobs", JOB_COLUMNS, params, rows=_add_ranks)


def _print_ranking(subject: str, by: str, org: str | None, limit: int, output: Format) -> None:
    params = {"by": by, "org_id": org, "limit": limit}
    body = ApiCall(output).get(f"/v1/top/{subject}", COLUMNS, params, rows=_add_ranks)
    if output is Format.TABLE:
        print_note(format_age(body["as_of"]))


def format_age(as_of: str) -> str:
    """The age of a list."""
    if as_of.startswith("1970-"):  # the epoch: no sweep has run yet
        return "not counted yet; the next sweep does this"
    return f"as of {format_local(as_of)}"


def _add_ranks(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [{"rank": rank, **row} for rank, row in enumerate(body["items"], 1)]
