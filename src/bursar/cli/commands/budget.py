"""`bursar budget`."""

from enum import StrEnum
from typing import Annotated, Final

import typer

from bursar.cli.api_command import (
    Amount,
    ApiCall,
    Id,
    Key,
    Output,
    UsageError,
    add_list_command,
    add_show_command,
    duration_parser,
    id_parser,
    make_group,
    share_parser,
)
from bursar.cli.output import Format

app = make_group("Limit the credits spent per period.")

LIST_COLUMNS: Final = (
    "id",
    "limit_micros",
    "every",
    "hard",
    "account_id",
    "user_id",
    "each_user",
    "deleted",
)
COLUMNS: Final = (*LIST_COLUMNS, "rolling_seconds", "time_zone", "thresholds_ppm", "tier")


class BudgetPeriod(StrEnum):
    """The period of a budget."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"
    ROLLING = "rolling"
    LIFETIME = "lifetime"


@app.command("set")
def set_(
    limit: Amount,
    every: Annotated[BudgetPeriod, typer.Option(help="Period of the budget.")],
    account: Annotated[
        str | None,
        typer.Option(
            metavar="ID", parser=id_parser, help="Limit this account and the accounts below it."
        ),
    ] = None,
    user: Annotated[
        str | None, typer.Option(metavar="ID", parser=id_parser, help="Limit this user.")
    ] = None,
    each_user: Annotated[
        bool, typer.Option("--each-user", help="Limit each user below the account separately.")
    ] = False,
    window: Annotated[
        int | None,
        typer.Option(
            metavar="DURATION",
            parser=duration_parser,
            help="With --every rolling: length of the window.",
        ),
    ] = None,
    hard: Annotated[
        bool, typer.Option("--hard/--soft", help="Refuse requests above the limit, or only notify.")
    ] = True,
    threshold: Annotated[
        list[int] | None,
        typer.Option(
            metavar="SHARE",
            parser=share_parser,
            help="Notify when this share is used: 80%. Repeatable.",
        ),
    ] = None,
    id: Annotated[
        str | None,
        typer.Option(metavar="ID", parser=id_parser, help="Id of an existing budget to change."),
    ] = None,
    output: Output = Format.TABLE,
    key: Key = None,
) -> None:
    """Create a budget, or change an existing one (--id): limit, hardness and thresholds."""
    if (every is BudgetPeriod.ROLLING) != (window is not None):
        raise UsageError("--every rolling and --window go together")
    if account is None and user is None:
        raise UsageError("add --account, --user or both")
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
    ApiCall(output, key).post("/v1/budgets", body, COLUMNS)


add_list_command(app, "/v1/budgets", "List the budgets of an org.", LIST_COLUMNS, COLUMNS)


add_show_command(app, "/v1/budgets", "Show a budget.", COLUMNS)


@app.command()
def delete(id: Id, output: Output = Format.TABLE, key: Key = None) -> None:
    """Delete a budget."""
    ApiCall(output, key).delete(f"/v1/budgets/{id}", ("id",))
