"""`bursar statement`."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import typer

from bursar.cli.amounts import format_credits
from bursar.cli.api_command import Account, After, All, ApiCall, Limit, Output, Range
from bursar.cli.output import Format, format_value, render_card, render_grid, render_table

app = typer.Typer(add_completion=False, rich_markup_mode=None)

TABLE_COLUMNS: Final = (
    "at",
    "kind",
    "grant_id",
    "grant_kind",
    "from_compartment",
    "to_compartment",
    "amount_micros",
)
COLUMNS: Final = (
    *TABLE_COLUMNS,
    "effective_at",
    "event",
    "hold_id",
    "charge_id",
    "user_id",
    "job_id",
    "actor_id",
    "cached_from",
)


@app.command()
def statement(
    account: Account,
    span: Range = "this month",
    limit: Limit = 100,
    after: After = None,
    all: All = False,
    output: Output = Format.TABLE,
) -> None:
    """Show an account's opening balance, postings and closing balance of a period."""
    call = ApiCall(output)
    path = f"/v1/accounts/{account}/statement"
    call.get_page(
        path,
        COLUMNS,
        call.parse_range(span),
        limit,
        after,
        all,
        rows=lambda body: list(body["items"]),
        text=render_statement,
        join=join_statement_pages,
    )


def join_statement_pages(pages: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Join the pages of a statement."""
    lines = [line for page in pages for line in page["items"]]
    return {**pages[-1], "opening": pages[0]["opening"], "items": lines}


def render_statement(body: Mapping[str, Any]) -> str:
    """Render the period, the postings, and the opening and closing balances of the period.

    If the postings are only a part of it, their own opening and closing are shown as well.
    """
    period = render_card([(name, format_value(name, body[name])) for name in ("from", "to")])
    parts = list(body["opening"])
    ends = {"opening": body["period_opening"], "closing": body["period_closing"]}
    if (body["opening"], body["closing"]) != (body["period_opening"], body["period_closing"]):
        ends = {
            "opening": body["period_opening"],
            "opening of the lines shown": body["opening"],
            "closing of the lines shown": body["closing"],
            "closing": body["period_closing"],
        }
    balances = render_grid(
        ["", *(part.removesuffix("_micros").upper() for part in parts)],
        [[name, *(format_credits(end[part]) for part in parts)] for name, end in ends.items()],
        [False, *(True for _ in parts)],
    )
    return "\n\n".join([period, render_table(TABLE_COLUMNS, body["items"]), balances])
