"""`bursar price`."""

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from bursar.cli.amounts import format_credits, parse_amount
from bursar.cli.api_command import (
    ApiCall,
    Key,
    NewId,
    Org,
    Output,
    UsageError,
    connect,
    drop_none,
    make_group,
)
from bursar.cli.output import Format, make_printable, print_note
from bursar.cli.ranges import TIMES
from bursar.client import Problem

app = make_group("Manage prices per GPU-hour.")
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
    replace: Annotated[
        bool, typer.Option("--replace", help="Remove all rates that are not named.")
    ] = False,
    org: Org = None,
    id: NewId = None,
    output: Output = Format.TABLE,
    key: Key = None,
) -> None:
    """Set prices of an org. Prices that are not named stay as they are.

    Without an org, operators set the deployment's prices, which apply to orgs without their own.
    """
    conditions = drop_none({"region": region, "tier": tier, "priority_class": priority_class})
    all_rates = [*(_parse_rate(text) | conditions for text in rates or ()), *_load_rates(file)]
    if not all_rates:
        raise UsageError("give TYPE=AMOUNT, such as H100=2.5, or --file")
    call = ApiCall(output, key)
    body = {
        "org_id": org,
        "rates": all_rates,
        "effective_at": call.parse_time(effective_at),
        "cache_hit_ppm": cache_hit_ppm,
        "keep_others": not replace,
        "id": id,
    }
    version = call.post("/v1/prices", body, COLUMNS, rows=lambda version: build_rows([version]))
    for line in describe_changes(_load_version_before(version), version):
        print_note(line)
    if version["org_id"] is None:
        print_note("these are the deployment's prices, which apply to orgs without their own")


def _load_version_before(version: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The version of the same book that a new version follows."""
    with connect() as client, suppress(Problem):  # the key may set prices but not read them
        versions = client.get("/v1/prices", {"org_id": version["org_id"]}).body["items"]
        book = [other for other in versions if other["org_id"] == version["org_id"]]
        place = next((n for n, other in enumerate(book) if other["id"] == version["id"]), 0)
        return book[place - 1] if place else None
    return None


def describe_changes(before: Mapping[str, Any] | None, after: Mapping[str, Any]) -> list[str]:
    """Describe the rates that a new version changes, adds and removes."""
    if before is None:
        return []
    old, new = ({_name_rate(rate): rate for rate in it["rates"]} for it in (before, after))
    prices = [
        {name: format_credits(rate["micros_per_gpu_hour"]) for name, rate in rates.items()}
        for rates in (old, new)
    ]
    return [
        *(
            f"changed: {name} {prices[0][name]} → {prices[1][name]}"
            for name in new
            if name in old and old[name] != new[name]
        ),
        *(f"added: {name} {prices[1][name]}" for name in new if name not in old),
        *(f"removed: {name} {prices[0][name]}" for name in old if name not in new),
    ]


def _name_rate(rate: Mapping[str, Any]) -> str:
    parts = (rate["gpu_type"], rate["region"], rate["tier"], rate["priority_class"])
    return make_printable(", ".join(part for part in parts if part is not None))


@app.command("list")
def list_(org: Org = None, output: Output = Format.TABLE) -> None:
    """List the prices of an org and of the deployment, by effective time."""
    ApiCall(output).get(
        "/v1/prices", COLUMNS, {"org_id": org}, rows=lambda body: build_rows(body["items"])
    )


def build_rows(versions: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
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


def _parse_rate(text: str) -> dict[str, Any]:
    gpu_type, equals, amount = text.partition("=")
    try:
        if not equals or not gpu_type:
            raise ValueError(f"{text[:40]!r}: write H100=2.5")
        return {"gpu_type": gpu_type, "micros_per_gpu_hour": parse_amount(amount)}
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _load_rates(file: Path | None) -> list[dict[str, Any]]:
    """Read rates from a file: a list, or an object with a field `rates`."""
    if file is None:
        return []
    try:
        content = json.loads(sys.stdin.read() if str(file) == "-" else file.read_text())
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{file}: {error}", param_hint="--file") from None
    rates = content.get("rates") if isinstance(content, dict) else content
    if not isinstance(rates, list):
        raise typer.BadParameter(f"{file}: no list of rates found", param_hint="--file")
    return rates
