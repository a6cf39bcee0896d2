"""`bursar statement`."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import typer

from bursar.cli.amounts import told
from bursar.cli.api_command import Account, After, All, Call, Limit, Output, Range
from bursar.cli.output import Format, card, cell, grid, table

app = typer.Typer(add_completion=False, rich_markup_mode=None)

LISTED: Final = (
    "at",
    "kind",
    "grant_id",
    "grant_kind",
    "from_compartment",
    "to_compartment",
    "amount_micros",
)
LINES: Final = (
    *LISTED,
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
    call = Call(output)
    path = f"/v1/accounts/{account}/statement"
    call.page(
        path,
        LINES,
        call.span(span),
        limit,
        after,
        all,
        rows=lambda body: list(body["lines"]),
        text=told_to_people,
        join=joined,
    )


def joined(pages: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Join the pages of a statement."""
    lines = [line for page in pages for line in page["lines"]]
    return {**pages[-1], "opening": pages[0]["opening"], "lines": lines}


def told_to_people(body: Mapping[str, Any]) -> str:
    """Render the period, the postings, and the opening and closing balances."""
    period = card([(name, cell(name, body[name])) for name in ("from", "to")])
    parts = list(body["opening"])
    ends = grid(
        ["", *(part.removesuffix("_micros").upper() for part in parts)],
        [[end, *(told(body[end][part]) for part in parts)] for end in ("opening", "closing")],
        [False, *(True for _ in parts)],
    )
    return "\n\n".join([period, table(LISTED, body["lines"]), ends])
