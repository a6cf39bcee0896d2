"""`bursar budget`."""

from enum import StrEnum
from typing import Annotated, Final

import typer

from bursar.cli.api_command import (
    Amount,
    Call,
    Id,
    Key,
    Misused,
    Output,
    lists,
    noun,
    seconds,
    shares,
    shows,
    uuid,
)
from bursar.cli.output import Format

app = noun("Limits on credits per period.")

LISTED: Final = (
    "id",
    "limit_micros",
    "every",
    "hard",
    "account_id",
    "user_id",
    "each_user",
    "dropped",
)
WHOLE: Final = (*LISTED, "rolling_seconds", "time_zone", "thresholds_ppm", "tier")


class Every(StrEnum):
    """How long a period is."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"
    ROLLING = "rolling"
    LIFETIME = "lifetime"


@app.command("set")
def set_(
    limit: Amount,
    every: Annotated[Every, typer.Option(help="How long a period is.")],
    account: Annotated[
        str | None,
        typer.Option(metavar="ID", parser=uuid, help="What this account and all below spend."),
    ] = None,
    user: Annotated[
        str | None, typer.Option(metavar="ID", parser=uuid, help="What this user spends.")
    ] = None,
    each_user: Annotated[
        bool, typer.Option("--each-user", help="What each user spends below the account.")
    ] = False,
    window: Annotated[
        int | None,
        typer.Option(metavar="DURATION", parser=seconds, help="With --every rolling: how long."),
    ] = None,
    hard: Annotated[
        bool, typer.Option("--hard/--soft", help="Refuse what goes beyond, or only tell.")
    ] = True,
    threshold: Annotated[
        list[int] | None,
        typer.Option(metavar="SHARE", parser=shares, help="Tell when so much is used: 80%."),
    ] = None,
    id: Annotated[
        str | None, typer.Option(metavar="ID", parser=uuid, help="The budget to change.")
    ] = None,
    output: Output = Format.TABLE,
    key: Key = None,
) -> None:
    """Set a budget, or change limit, hardness and thresholds of one (--id)."""
    if (every is Every.ROLLING) != (window is not None):
        raise Misused("--every rolling and --window go together")
    if account is None and user is None:
        raise Misused("say whose budget it is: with --account, --user or both")
    body = {
        "account_id": account,
        "user_id": user,
        "each_user": each_user,
        "every": every.value,
        "rolling_seconds": window,
        "limit_micros": limit,
        "hard": hard,
        "thresholds_ppm": threshold or None,
        "id": id,
    }
    Call(output, key).post("/v1/budgets", body, WHOLE)


lists(app, "/v1/budgets", "The budgets of an org.", LISTED, WHOLE)


shows(app, "/v1/budgets", "A budget.", WHOLE)


@app.command()
def drop(id: Id, output: Output = Format.TABLE, key: Key = None) -> None:
    """Let a budget limit no more."""
    Call(output, key).delete(f"/v1/budgets/{id}", ("id",))
