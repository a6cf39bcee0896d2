"""`bursar budget`."""

from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from bursar.cli.api_command import (
    ApiCall,
    Id,
    Key,
    Output,
    UsageError,
    add_list_command,
    add_show_command,
    amount_parser,
    connect,
    duration_parser,
    id_parser,
    make_group,
    share_parser,
)
from bursar.cli.output import Format, column_label, format_value, print_note
from bursar.client import Problem

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
CHANGEABLE: Final = ("limit_micros", "hard", "thresholds_ppm")
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
    limit: Annotated[
        int | None,
        typer.Argument(
            metavar="AMOUNT",
            parser=amount_parser,
            help="Credits per period, such as 12.5. Optional with --id.",
        ),
    ] = None,
    every: Annotated[BudgetPeriod | None, typer.Option(help="Period of the budget.")] = None,
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
        bool | None,
        typer.Option(
            "--hard/--soft",
            help="Refuse requests above the limit, or only notify. Default of a new budget: hard.",
            show_default=False,
        ),
    ] = None,
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
        typer.Option(
            metavar="ID",
            parser=id_parser,
            help="Id of an existing budget to change. What is not named stays as it is.",
        ),
    ] = None,
    output: Output = Format.TABLE,
    key: Key = None,
) -> None:
    """Create a budget, or change an existing one (--id): limit, hardness and thresholds."""
    before = _load_budget(id)
    every_name = every.value if every is not None else before.get("every")
    if every is not None and (every is BudgetPeriod.ROLLING) != (window is not None):
        raise UsageError("--every rolling and --window go together")
    if not before and account is None and user is None:
        raise UsageError("add --account, --user or both")
    if not before and (limit is None or every is None):
        raise UsageError("a new budget needs AMOUNT and --every")
    body = {
        "account_id": account or before.get("account_id"),
        "user_id": user or before.get("user_id"),
        "each_user": each_user or before.get("each_user", False),
        "every": every_name,
        "rolling_seconds": window or before.get("rolling_seconds"),
        "limit_micros": before.get("limit_micros") if limit is None else limit,
        "hard": hard,
        "thresholds_ppm": threshold or None,
        "id": id,
    }
    after = ApiCall(output, key).post("/v1/budgets", body, COLUMNS)
    for name in CHANGEABLE if before else ():
        if before[name] != after[name]:
            old, new = (format_value(name, budget[name]) for budget in (before, after))
            print_note(f"changed: {column_label(name)} {old} → {new}")


def _load_budget(id: str | None) -> dict[str, Any]:
    """The budget of an id; empty if there is none, since a new budget may bring its own id."""
    if id is None:
        return {}
    with connect() as client:
        try:
            budget: dict[str, Any] = client.get(f"/v1/budgets/{id}").body
        except Problem as problem:
            if problem.status == 404:
                return {}
            raise
    return budget


add_list_command(app, "/v1/budgets", "List the budgets of an org.", LIST_COLUMNS, COLUMNS)


add_show_command(app, "/v1/budgets", "Show a budget.", COLUMNS)


@app.command()
def delete(id: Id, output: Output = Format.TABLE, key: Key = None) -> None:
    """Delete a budget."""
    ApiCall(output, key).delete(f"/v1/budgets/{id}", ("id",))
