"""`bursar balance`."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer

from bursar.cli.amounts import format_credits
from bursar.cli.api_command import Account, ApiCall, Output, id_parser
from bursar.cli.output import Format, column_label, format_value, render_card, render_table
from bursar.cli.ranges import TIMES

app = typer.Typer(add_completion=False, rich_markup_mode=None)

PARTS: Final = ("available", "held", "spent", "lapsed", "revoked", "moved")
COLUMNS: Final = (
    "account_id",
    "at",
    "known_at",
    "spendable_micros",
    *(f"owned.{part}_micros" for part in PARTS),
    "used_micros",
    "debt_micros",
    "burn.micros_per_day",
    "burn.runs_out_at",
    "expiring.within_24h_micros",
    "expiring.within_7d_micros",
    "expiring.within_30d_micros",
)


@app.command()
def balance(
    account: Account,
    at: Annotated[
        str | None, typer.Option(metavar="TIME", help=f"Balance at this time: {TIMES}.")
    ] = None,
    known_at: Annotated[
        str | None, typer.Option(metavar="TIME", help="Balance as recorded at this time.")
    ] = None,
    spendable_for: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="NAME=VALUE,…",
            help="Show what can be spent on this: gpu_type=H100,gpu_count=8,region=eu.",
        ),
    ] = None,
    user: Annotated[
        str | None,
        typer.Option(metavar="ID", parser=id_parser, help="User whose budgets also apply."),
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Show what an account owns, can spend, has used and owes, now or at a time in the past."""
    call = ApiCall(output)
    params = {
        "at": call.parse_time(at),
        "known_at": call.parse_time(known_at),
        "for": spendable_for,
        "user_id": user,
    }
    if (at or known_at) and (spendable_for or user):
        raise typer.BadParameter(
            "spendable credits in the past are not recorded; remove --for and --user"
        )
    call.get(f"/v1/accounts/{account}/balance", COLUMNS, params, text=render_balance)


def render_balance(body: Mapping[str, Any]) -> str:
    """Render a balance with a table of its kinds of credits."""
    owned = {part: body["owned"][f"{part}_micros"] for part in PARTS}
    lines = [
        *_format_fields(body, "account_id", "at", "known_at", "spendable_micros"),
        *(
            (part, format_credits(amount))
            for part, amount in owned.items()
            if amount or part in PARTS[:3]
        ),
        *_format_fields(body, "used_micros", "debt_micros"),
    ]
    if body["burn"] is not None:
        per_day, ends = body["burn"]["micros_per_day"], body["burn"]["runs_out_at"]
        until = f", runs out {format_value('runs_out_at', ends)}" if per_day else ""
        lines.append(("burn", f"{format_credits(per_day)} per day{until}"))
    if body["expiring"] is not None:
        lines.append(("expiring", _format_expiring(body["expiring"])))
    kinds = [
        {"kind": kind, **parts} for kind, parts in body["by_kind"].items() if any(parts.values())
    ]
    columns = ("kind", *(f"{part}_micros" for part in PARTS))
    below = f"\n\n{render_table(columns, kinds)}" if kinds else ""
    return render_card(lines) + below


def _format_fields(body: Mapping[str, Any], *paths: str) -> list[tuple[str, str]]:
    return [
        (column_label(path), format_value(path, body[path]))
        for path in paths
        if body[path] is not None
    ]


def _format_expiring(soon: Mapping[str, Any]) -> str:
    spans = {
        "24 h": "within_24h_micros",
        "7 days": "within_7d_micros",
        "30 days": "within_30d_micros",
    }
    return ", ".join(f"{format_credits(soon[name])} in {span}" for span, name in spans.items())
