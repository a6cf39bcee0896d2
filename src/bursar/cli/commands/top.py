"""`bursar top`."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from bursar.cli.api_command import Call, Limit, Org, Output, noun
from bursar.cli.output import Format, note
from bursar.cli.ranges import local_text

app = noun("Who has, used or burns the most.")
COLUMNS: Final = ("rank", "id", "value_micros", "org_id")


JOBS: Final = ("rank", "id", "state", "spent_micros", "held_micros", "micros_per_hour", "user_id")


class Cost(StrEnum):
    """What to compare jobs by."""

    SPENT = "spent"
    HELD = "held"
    BURN = "burn"


class By(StrEnum):
    """What to compare."""

    AVAILABLE = "available"
    USED = "used"
    DAY = "day"
    WEEK = "week"


class Spent(StrEnum):
    """What to compare where nothing is owned."""

    USED = "used"
    DAY = "day"
    WEEK = "week"


@app.command()
def accounts(
    by: Annotated[By, typer.Option(help="Available, used in all, or in the last day or week.")] = (
        By.USED
    ),
    org: Org = None,
    limit: Limit = 10,
    output: Output = Format.TABLE,
) -> None:
    """Accounts, of one org or (for operators) of all."""
    _top("accounts", by.value, org, limit, output)


@app.command()
def users(
    by: Annotated[Spent, typer.Option(help="Used in all, or in the last day or week.")] = (
        Spent.USED
    ),
    org: Org = None,
    limit: Limit = 10,
    output: Output = Format.TABLE,
) -> None:
    """Users, of one org or (for operators) of all."""
    _top("users", by.value, org, limit, output)


@app.command()
def jobs(
    by: Annotated[
        Cost, typer.Option(help="Spent so far, held, or burnt in an hour while it runs.")
    ] = Cost.SPENT,
    org: Org = None,
    limit: Limit = 10,
    output: Output = Format.TABLE,
) -> None:
    """Jobs of an org that are not over, as they are now."""
    params = {"by": by.value, "org_id": org, "limit": limit}
    Call(output).get("/v1/top/jobs", JOBS, params, rows=_ranked)


def _top(subject: str, by: str, org: str | None, limit: int, output: Format) -> None:
    params = {"by": by, "org_id": org, "limit": limit}
    body = Call(output).get(f"/v1/top/{subject}", COLUMNS, params, rows=_ranked)
    if output is Format.TABLE:
        note(fresh(body["as_of"]))


def fresh(as_of: str) -> str:
    """How old a list is."""
    if as_of.startswith("1970-"):  # the beginning of time: no sweep was there yet
        return "nothing was counted yet; the next sweep does"
    return f"as of {local_text(as_of)}"


def _ranked(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [{"rank": rank, **one} for rank, one in enumerate(body["items"], 1)]
