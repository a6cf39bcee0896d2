"""`bursar top`."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from bursar.cli.api_command import Call, Limit, Org, Output, noun
from bursar.cli.output import Format, note
from bursar.cli.ranges import local_text

app = noun("Rank accounts, users and jobs by credits.")
COLUMNS: Final = ("rank", "id", "value_micros", "org_id")


JOBS: Final = ("rank", "id", "state", "spent_micros", "held_micros", "micros_per_hour", "user_id")


class Cost(StrEnum):
    """What jobs are ranked by."""

    SPENT = "spent"
    HELD = "held"
    BURN = "burn"


class By(StrEnum):
    """What accounts are ranked by."""

    AVAILABLE = "available"
    USED = "used"
    DAY = "day"
    WEEK = "week"


class Spent(StrEnum):
    """What users are ranked by."""

    USED = "used"
    DAY = "day"
    WEEK = "week"


@app.command()
def accounts(
    by: Annotated[
        By, typer.Option(help="Rank by available credits, or by use in total, per day or per week.")
    ] = (By.USED),
    org: Org = None,
    limit: Limit = 10,
    output: Output = Format.TABLE,
) -> None:
    """Rank the accounts of an org or, for operators, of all orgs."""
    _top("accounts", by.value, org, limit, output)


@app.command()
def users(
    by: Annotated[
        Spent, typer.Option(help="Rank by use in total, in the last day or in the last week.")
    ] = (Spent.USED),
    org: Org = None,
    limit: Limit = 10,
    output: Output = Format.TABLE,
) -> None:
    """Rank the users of an org or, for operators, of all orgs."""
    _top("users", by.value, org, limit, output)


@app.command()
def jobs(
    by: Annotated[
        Cost, typer.Option(help="Rank by credits spent, held, or burned per hour.")
    ] = Cost.SPENT,
    org: Org = None,
    limit: Limit = 10,
    output: Output = Format.TABLE,
) -> None:
    """Rank the unfinished jobs of an org."""
    params = {"by": by.value, "org_id": org, "limit": limit}
    Call(output).get("/v1/top/jobs", JOBS, params, rows=_ranked)


def _top(subject: str, by: str, org: str | None, limit: int, output: Format) -> None:
    params = {"by": by, "org_id": org, "limit": limit}
    body = Call(output).get(f"/v1/top/{subject}", COLUMNS, params, rows=_ranked)
    if output is Format.TABLE:
        note(fresh(body["as_of"]))


def fresh(as_of: str) -> str:
    """The age of a list."""
    if as_of.startswith("1970-"):  # the epoch: no sweep has run yet
        return "not counted yet; the next sweep does this"
    return f"as of {local_text(as_of)}"


def _ranked(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [{"rank": rank, **one} for rank, one in enumerate(body["items"], 1)]
