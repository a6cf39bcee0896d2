"""`bursar usage`."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer

from bursar.cli.api_command import ApiCall, Org, Output, Range
from bursar.cli.output import Format, format_value, render_card, render_table

app = typer.Typer(add_completion=False, rich_markup_mode=None)

COLUMNS: Final = {
    "account": ("account_id", "account_name"),
    "user": ("user_id",),
    "gpu_type": ("gpu_type",),
    "kind": ("kind",),
    "day": ("day",),
    "job": ("job_id",),
}
FIGURES: Final = ("charged_micros", "used_micros", "gpu_ms")
TEAM: Final = "team"  # an account directly below the root, with its subtree


@app.command()
def usage(
    span: Range = "this month",
    by: Annotated[
        str,
        typer.Option(
            metavar="NAME,…",
            help=f"Group by: {TEAM}, {', '.join(COLUMNS)}.",
        ),
    ] = "account",
    level: Annotated[
        int | None,
        typer.Option(min=0, help="Add accounts below this tree level to their ancestor at it."),
    ] = None,
    org: Org = None,
    output: Output = Format.TABLE,
) -> None:
    """Show usage and charges of a period."""
    call = ApiCall(output)
    names = [name.strip() for name in by.split(",")]
    if TEAM in names:
        names = ["account" if name == TEAM else name for name in names]
        level = 1 if level is None else level
    unknown = [name for name in names if name not in COLUMNS]
    if unknown or len(set(names)) < len(names):
        known = ", ".join((TEAM, *COLUMNS))
        raise typer.BadParameter(f"choose from {known}, each once", param_hint="--by")
    columns = (*(column for name in names for column in COLUMNS[name]), *FIGURES)
    params = {**call.parse_range(span), "org_id": org, "by": ",".join(names), "level": level}
    call.get("/v1/usage", columns, params, text=lambda body: render_usage(body, columns))


def render_usage(body: Mapping[str, Any], columns: tuple[str, ...]) -> str:
    """Render the period, the rows and the total."""
    period = render_card([(name, format_value(name, body[name])) for name in ("from", "to")])
    total = {columns[0]: "total", **body["total"]}
    rows = [*body["items"], total] if body["items"] else []
    return f"{period}\n\n{render_table(columns, rows)}"
