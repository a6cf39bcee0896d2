"""`bursar price`."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from bursar.cli.amounts import micros_of
from bursar.cli.api_command import Call, Key, Misused, NewId, Org, Output, given, noun
from bursar.cli.output import Format, note
from bursar.cli.ranges import TIMES

app = noun("Manage prices per GPU-hour.")
COLUMNS: Final = (
    "effective_at",
    "gpu_type",
    "micros_per_gpu_hour",
    "region",
    "tier",
    "priority_class",
    "book",
    "id",
)


@app.command("set")
def set_(
    rates: Annotated[
        list[str] | None,
        typer.Argument(metavar="TYPE=AMOUNT...", help="Credits per GPU-hour, such as H100=2.5."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Rates in JSON, as in POST /v1/prices; - reads standard input."
        ),
    ] = None,
    region: Annotated[str | None, typer.Option(help="Only in this region.")] = None,
    tier: Annotated[str | None, typer.Option(help="Only for orgs of this tier.")] = None,
    priority_class: Annotated[
        str | None, typer.Option("--class", help="Only for this priority class.")
    ] = None,
    effective_at: Annotated[
        str | None, typer.Option(metavar="TIME", help=f"Effective from this time on: {TIMES}.")
    ] = None,
    cache_hit_ppm: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=1_000_000,
            help="Price of a cached result, in millionths of its run's cost.",
        ),
    ] = None,
    org: Org = None,
    id: NewId = None,
    output: Output = Format.TABLE,
    key: Key = None,
) -> None:
    """Add a price version to an org. It contains all rates that apply from then on.

    Without an org, operators set the deployment's prices, which apply to orgs without their own.
    """
    only = given({"region": region, "tier": tier, "priority_class": priority_class})
    found = [*(_rate(text) | only for text in rates or ()), *_rates_in(file)]
    if not found:
        raise Misused("give TYPE=AMOUNT, such as H100=2.5, or --file")
    call = Call(output, key)
    body = {
        "org_id": org,
        "rates": found,
        "effective_at": call.time(effective_at),
        "cache_hit_ppm": cache_hit_ppm,
        "id": id,
    }
    set_to = call.post("/v1/prices", body, COLUMNS, rows=lambda version: lines_of([version]))
    if set_to["org_id"] is None:
        note("these are the deployment's prices, which apply to orgs without their own")


@app.command("list")
def list_(org: Org = None, output: Output = Format.TABLE) -> None:
    """List the prices of an org and of the deployment, by effective time."""
    Call(output).get(
        "/v1/prices", COLUMNS, {"org_id": org}, rows=lambda body: lines_of(body["items"])
    )


def lines_of(versions: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """One row for each rate of each version."""
    return [
        {
            "id": version["id"],
            "book": "deployment" if version["org_id"] is None else "org",
            "effective_at": version["effective_at"],
            **rate,
        }
        for version in versions
        for rate in version["rates"]
    ]


def _rate(text: str) -> dict[str, Any]:
    gpu_type, equals, amount = text.partition("=")
    try:
        if not equals or not gpu_type:
            raise ValueError(f"{text[:40]!r}: write H100=2.5")
        return {"gpu_type": gpu_type, "micros_per_gpu_hour": micros_of(amount)}
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _rates_in(file: Path | None) -> list[dict[str, Any]]:
    """Read rates from a file: a list, or an object with a field `rates`."""
    if file is None:
        return []
    try:
        found = json.loads(sys.stdin.read() if str(file) == "-" else file.read_text())
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{file}: {error}", param_hint="--file") from None
    rates = found.get("rates") if isinstance(found, dict) else found
    if not isinstance(rates, list):
        raise typer.BadParameter(f"{file}: no list of rates found", param_hint="--file")
    return rates
