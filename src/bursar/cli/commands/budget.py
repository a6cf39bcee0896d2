"""`bursar budget`."""

from contextlib import suppress
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
    drop_none,
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
    if every is not None and (every is BudgetPeriod.ROLLING) != (window is not None):
        raise UsageError("--every rolling and --window go together")
    changeable = {"limit_micros": limit, "hard": hard, "thresholds_ppm": threshold or None}
    call = ApiCall(output, key)
    if id is not None and every is None:
        if account or user or each_user or window:
            raise UsageError("the target and the period of a budget cannot change: delete it first")
        _change_budget(call, id, drop_none(changeable))
        return
    if account is None and user is None:
        raise UsageError("add --account, --user or both")
    if limit is None or every is None:
        raise UsageError("a new budget needs AMOUNT and --every")
    body = {
        "account_id": account,
        "user_id": user,
        "each_user": each_user,
        "every": every.value,
        "rolling_seconds": window,
        **changeable,
        "id": id,
    }
    call.post("/v1/budgets", body, COLUMNS)


def _change_budget(call: ApiCall, id: str, changes: dict[str, Any]) -> None:
    """Send the changes alone: the service keeps what they do not name."""
    if not changes:
        raise UsageError("name what to change: AMOUNT, --hard, --soft or --threshold")
    path = f"/v1/budgets/{id}"
    before: dict[str, Any] = {}
    with connect() as client, suppress(Problem):  # the key may change budgets but not read them
        before = client.get(path).body
    after = call.patch(path, changes, COLUMNS)
    for name in changes if before else ():
        if before[name] != after[name]:
            old, new = (format_value(name, budget[name]) for budget in (before, after))
            print_note(f"changed: {column_label(name)} {old} → {new}")


add_list_command(app, "/v1/budgets", "List the budgets of an org.", LIST_COLUMNS, COLUMNS)


add_show_command(app, "/v1/budgets", "Show a budget.", COLUMNS)


@app.command()
def delete(id: Id, output: Output = Format.TABLE, key: Key = None) -> None:
    """Delete a budget."""
    ApiCall(output, key).delete(f"/v1/budgets/{id}", ("id",))
