"""Statements, reports and exports over HTTP: JSON, CSV, and FOCUS 1.2 (O3)."""

import csv
import io
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from urllib.parse import quote

import httpx2
import pytest

from bursar.wire import focus
from bursar.wire.tables import Cell, csv_text
from tests.support.api_service import EMPTY, Tenant, new_tenant, refused
from tests.support.api_service import Caller as HttpCaller

PARTS = tuple(EMPTY)
FAR = "from=2020-01-01T00:00:00Z&to=2020-12-31T00:00:00Z"


def rows_of(answer: httpx2.Response) -> list[dict[str, str]]:
    """The rows of an answer in CSV."""
    assert 200 == answer.status_code, answer.text
    assert "text/csv; charset=utf-8" == answer.headers["content-type"]
    return list(csv.DictReader(io.StringIO(answer.text, newline="")))


def told(answer: httpx2.Response) -> Any:
    """What an answer says."""
    assert 200 == answer.status_code, answer.text
    return answer.json()


@pytest.fixture
def busy(tenant: Tenant) -> Tenant:
    """An org with two teams, in which credits were issued, held, spent, reversed and revoked."""
    caller = tenant.caller
    tenant.grant(1_000_000_000)
    promo = tenant.grant(5_000, kind="promo", policy={"job_kinds": ["nothing"]})
    price = {"org_id": tenant.id, "rates": [{"gpu_type": "H100", "micros_per_gpu_hour": 2_500_000}]}
    caller.made("/prices", price)
    for name in ("=cmd()", "research"):
        account = tenant.account_below(name=name)
        amount = caller.made("/holds", {"account_id": account, "amount_micros": 900})
        charge = caller.made(f"/holds/{amount['id']}/charge", {"amount_micros": 400})
        caller.made(f"/charges/{charge['id']}/reverse", {"amount_micros": 100})
        ask = {
            "account_id": account,
            "run_ms_max": 7_200_000,
            "context": {"gpu_type": "H100", "gpu_count": 2, "region": "eu", "job_id": "+1"},
        }
        run = caller.made("/holds", ask)
        caller.made(f"/holds/{run['id']}/settle", {"run_ms_total": 3_600})
    caller.made(f"/grants/{promo['id']}/revoke", None)
    return tenant


def test_statement_leads_from_the_opening_to_the_closing_balance(busy: Tenant) -> None:
    """Opening, lines and closing, and the closing is the balance (O3, L8)."""
    path = f"/accounts/{busy.account}/statement"
    page = told(busy.caller.get(f"{path}?limit=1000"))

    assert EMPTY == page["opening"]
    assert {part: busy.balance()["owned"][part] for part in PARTS} == page["closing"]
    parts = dict(page["opening"])
    for line in page["items"]:
        parts[f"{line['to_compartment']}_micros"] += line["amount_micros"]
        if line["from_compartment"] is not None:
            parts[f"{line['from_compartment']}_micros"] -= line["amount_micros"]
    assert page["closing"] == parts
    assert None is page["next"]
    assert busy.account == page["account_id"]
    assert page["from"] < page["items"][0]["at"] < page["to"]
    assert ["GrantIssued", "GrantIssued", "HoldOpened"] == [
        line["kind"] for line in page["items"][:3]
    ]
    charged = next(line for line in page["items"] if line["charge_id"] is not None)
    assert charged["hold_id"] is not None
    assert charged["user_id"] is not None
    assert charged["actor_id"] is not None
    assert "+1" in {line["job_id"] for line in page["items"]}


def test_each_page_of_a_statement_opens_where_the_last_one_closed(busy: Tenant) -> None:
    """Each opens as the one before closed, and none has a line of another (O3)."""
    path = f"/accounts/{busy.account}/statement"
    whole = told(busy.caller.get(f"{path}?limit=1000"))
    period = f"from={whole['from']}&to={whole['to']}"
    lines: list[Any] = []
    opening, after = whole["opening"], ""
    while True:
        page = told(busy.caller.get(f"{path}?{period}&limit=3&after={after}"))
        assert opening == page["opening"]
        assert (whole["opening"], whole["closing"]) == (
            *(page["period_opening"], page["period_closing"]),
        ), "a page says what the whole period comes to"
        lines += page["items"]
        opening, after = page["closing"], page["next"]
        if after is None:
            break
        assert 3 == len(page["items"])
    assert whole["items"] == lines
    assert whole["closing"] == opening


def test_statement_has_bursar_event_and_etag(busy: Tenant) -> None:
    """Bursar-Event and ETag, as all answers to questions have them (N4)."""
    for path in (
        f"/accounts/{busy.account}/statement?{FAR}",
        f"/accounts/{busy.account}/statement?{FAR}&format=csv",
        f"/usage?{FAR}",
        f"/exports/focus?{FAR}",
    ):
        answer = busy.caller.get(path)
        assert 200 == answer.status_code, answer.text
        assert f"{busy.id}:{busy.number()}" == answer.headers["bursar-event"]
        again = busy.caller.get(path, If_None_Match=answer.headers["etag"])
        assert (304, b"") == (again.status_code, again.content)
        ahead = busy.caller.get(path, Bursar_Event=f"{busy.id}:{10**9}")
        refused(ahead, 409, "behind")


def test_csv_has_the_lines_of_the_statement(busy: Tenant) -> None:
    """By Accept or by name; what a spreadsheet would run has an apostrophe before it (O3, K33)."""
    path = f"/accounts/{busy.account}/statement"
    page = told(busy.caller.get(f"{path}?limit=1000"))
    period = f"from={page['from']}&to={page['to']}"
    named = busy.caller.get(f"{path}?{period}&limit=1000&format=csv")
    asked = busy.caller.get(f"{path}?{period}&limit=1000", Accept="text/csv")
    both = busy.caller.get(f"{path}?{period}", Accept="application/json, text/csv;q=0.5")

    assert named.content == asked.content
    assert "Accept" == asked.headers["vary"]
    assert "application/json" == both.headers["content-type"]
    want = [
        {name: "" if value is None else str(value) for name, value in line.items()}
        for line in page["items"]
    ]
    assert list(want[0]) == asked.text.split("\r\n")[0].split(",")
    found = rows_of(asked)
    assert {"", "'+1"} == {row["job_id"] for row in found}
    assert want == [{**row, "job_id": row["job_id"].removeprefix("'")} for row in found]
    part = busy.caller.get(f"{path}?{period}&limit=2&format=csv")
    assert told(busy.caller.get(f"{path}?{period}&limit=2"))["next"] == part.headers["bursar-next"]


def test_usage_matches_the_balances_of_accounts(busy: Tenant) -> None:
    """By team it is what their balances say, and in all what the root's says (O3, L8)."""
    report = told(busy.caller.get("/usage?by=account&level=1"))

    assert {"=cmd()", "research"} == {row["account_name"] for row in report["items"]}
    for row in report["items"]:
        assert busy.balance(row["account_id"])["used_micros"] == row["used_micros"]
        assert 2 * 3_600 == row["gpu_ms"]
    used = busy.balance()["used_micros"]
    assert {"charged_micros": used, "used_micros": used, "gpu_ms": 4 * 3_600} == report["total"]
    assert ["account"] == report["by"]
    assert 2 * (5_000 + 300) == used
    whole = told(busy.caller.get("/usage?by=account&level=0"))
    assert [busy.account] == [row["account_id"] for row in whole["items"]]
    by_type = told(busy.caller.get("/usage?by=gpu_type,kind"))
    assert [(None, "paid", 600, None), ("H100", "paid", 10_000, None)] == [
        (row["gpu_type"], row["kind"], row["used_micros"], row["gpu_ms"])
        for row in by_type["items"]
    ]


def test_csv_has_the_rows_of_usage(busy: Tenant) -> None:
    """The same rows, and names that are no formulas (O3, K33)."""
    path = "/usage?by=account,user,gpu_type,day,job"
    items = told(busy.caller.get(path))["items"]

    found = rows_of(busy.caller.get(f"{path}&format=csv"))

    assert {"'=cmd()", "research"} == {row["account_name"] for row in found}
    assert [
        "account_id",
        "account_name",
        "user_id",
        "gpu_type",
        "day",
        "job_id",
        "charged_micros",
        "used_micros",
        "gpu_ms",
    ] == list(found[0])
    assert [str(row["used_micros"]) for row in items] == [row["used_micros"] for row in found]


# FOCUS

Check = Callable[[str], bool]


def _text(value: str) -> bool:
    return value != ""


def _number(value: str) -> bool:
    return re.fullmatch(r"-?\d+(\.\d+)?", value) is not None


def _time(value: str) -> bool:
    return re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", value) is not None


def _one_of(*allowed: str) -> Check:
    return lambda value: value in allowed


def _or_nothing(check: Check) -> Check:
    return lambda value: value == "" or check(value)


# The 21 columns that FOCUS 1.2 wants in every dataset, with their types and whether they may lack.
MANDATORY: dict[str, Check] = {
    "BilledCost": _number,
    "BillingAccountId": _text,
    "BillingAccountName": _text,
    "BillingCurrency": lambda value: re.fullmatch("[A-Z]{3}", value) is not None,
    "BillingPeriodEnd": _time,
    "BillingPeriodStart": _time,
    "ChargeCategory": _one_of("Usage", "Purchase", "Tax", "Credit", "Adjustment"),
    "ChargeClass": _one_of("", "Correction"),
    "ChargeDescription": _text,
    "ChargePeriodEnd": _time,
    "ChargePeriodStart": _time,
    "ContractedCost": _number,
    "EffectiveCost": _number,
    "InvoiceIssuerName": _text,
    "ListCost": _number,
    "PricingQuantity": _or_nothing(_number),
    "PricingUnit": _or_nothing(_text),
    "ProviderName": _text,
    "PublisherName": _text,
    "ServiceCategory": _one_of("Compute"),
    "ServiceName": _text,
}
# Those that depend on what a provider has: for us prices in a virtual currency, SKUs, regions.
CONDITIONAL: dict[str, Check] = {
    "ChargeFrequency": _one_of("One-Time", "Recurring", "Usage-Based"),
    "ConsumedQuantity": _or_nothing(_number),
    "ConsumedUnit": _or_nothing(_text),
    "ContractedUnitPrice": _or_nothing(_number),
    "ListUnitPrice": _or_nothing(_number),
    "PricingCategory": _one_of("", "Standard"),
    "PricingCurrency": _one_of("Credits"),
    "PricingCurrencyContractedUnitPrice": _or_nothing(_number),
    "PricingCurrencyEffectiveCost": _number,
    "PricingCurrencyListUnitPrice": _or_nothing(_number),
    "RegionId": _or_nothing(_text),
    "RegionName": _or_nothing(_text),
    "ServiceSubcategory": _one_of("Other (Compute)"),
    "SkuId": _or_nothing(_text),
    "SkuMeter": _or_nothing(_text),
    "SkuPriceId": _or_nothing(_text),
    "SubAccountId": _text,
    "SubAccountName": _text,
}
# Of usage that is no correction these must be there.
PRICED = (
    *("PricingQuantity", "PricingUnit", "PricingCategory", "SkuId", "SkuPriceId", "SkuMeter"),
    *("ListUnitPrice", "ContractedUnitPrice", "ConsumedQuantity", "ConsumedUnit"),
    *("PricingCurrencyListUnitPrice", "PricingCurrencyContractedUnitPrice"),
)


def test_export_has_the_columns_of_focus() -> None:
    """All that are wanted, by name, ours behind them and marked as ours (O3)."""
    names = list(focus.COLUMNS)
    own = [name for name in names if name.startswith("x_")]
    theirs = names[: len(names) - len(own)]

    assert {*MANDATORY, *CONDITIONAL} <= set(theirs)
    assert sorted(theirs) == theirs
    assert sorted(own) == own == names[len(theirs) :]
    assert all(re.fullmatch(r"[A-Z][A-Za-z]+", name) for name in theirs)


@pytest.mark.parametrize("every", ["day", "hour"])
def test_export_has_the_types_that_focus_requires(busy: Tenant, every: str) -> None:
    """Names, order, types, and what may lack where (O3)."""
    answer = busy.caller.get(f"/exports/focus?every={every}")
    found = rows_of(answer)

    assert list(focus.COLUMNS) == answer.text.split("\r\n")[0].split(",")
    for row in found:
        wrong = [
            (name, row[name])
            for name, check in (MANDATORY | CONDITIONAL).items()
            if not check(row[name])
        ]
        assert [] == wrong
        is_usage = row["ChargeCategory"] == "Usage"
        assert is_usage or row["ChargeCategory"] in ("Credit", "Adjustment")
        assert {is_usage} == {row[name] != "" for name in PRICED}
        if is_usage:
            product = Decimal(row["PricingQuantity"]) * Decimal(row["ListUnitPrice"])
            assert Decimal(row["ListCost"]) == round(product, 6)
        else:
            assert row["BilledCost"] == row["ListCost"] == row["ContractedCost"]
        assert row["ChargePeriodStart"] < row["ChargePeriodEnd"]
        assert row["BillingPeriodStart"] <= row["ChargePeriodStart"] < row["BillingPeriodEnd"]
        assert (row["x_Adjustment"] != "") == (row["ChargeCategory"] == "Adjustment")


def test_costs_add_up_to_the_charges(busy: Tenant) -> None:
    """Usage is never netted; with what came back it is `used`; all of it is what is gone (O3)."""
    found = rows_of(busy.caller.get("/exports/focus"))

    def cost(category: str, adjustment: str = "") -> Decimal:
        return sum(
            (
                Decimal(row["EffectiveCost"])
                for row in found
                if (row["ChargeCategory"], row["x_Adjustment"]) == (category, adjustment)
            ),
            Decimal(0),
        )

    used = Decimal(busy.balance()["used_micros"]) / 1_000_000
    assert Decimal("0.0108") == cost("Usage")
    assert Decimal("-0.0002") == cost("Adjustment", "reversal")
    assert used == cost("Usage") + cost("Adjustment", "reversal")
    assert Decimal("-1000.005") == cost("Credit")
    assert Decimal("0.005") == cost("Adjustment", "revoked")
    owned = busy.balance()["owned"]
    left = Decimal(owned["available_micros"] + owned["held_micros"]) / 1_000_000
    assert -left == sum(Decimal(row["EffectiveCost"]) for row in found)
    assert {"'=cmd()", "research", "Acme"} == {row["SubAccountName"] for row in found}
    metered = [row for row in found if row["SkuId"] == "H100"]
    assert {("2.500000", "GPU-Hours", Decimal("0.002"), "eu")} == {
        (
            row["ListUnitPrice"],
            row["PricingUnit"],
            Decimal(row["ConsumedQuantity"]),
            row["RegionId"],
        )
        for row in metered
    }
    priced = rows_of(busy.caller.get("/exports/focus?currency=EUR"))
    assert {"XXX"} == {row["BillingCurrency"] for row in found}
    assert {"EUR"} == {row["BillingCurrency"] for row in priced}


def test_an_empty_period_has_columns_and_no_rows(busy: Tenant) -> None:
    """The export has a header and no rows (O3)."""
    assert [] == rows_of(busy.caller.get(f"/exports/focus?{FAR}"))
    assert [] == told(busy.caller.get(f"/usage?{FAR}"))["items"]
    page = told(busy.caller.get(f"/accounts/{busy.account}/statement?{FAR}"))
    assert ([], EMPTY, EMPTY) == (page["items"], page["opening"], page["closing"])


# Who may ask for what


@pytest.mark.parametrize(
    ("query", "parameter"),
    [
        ("from=2026-01-02T00:00:00Z&to=2026-01-01T00:00:00Z", "from"),
        ("from=2999-01-01T00:00:00Z", "from"),
        ("from=yesterday", "from"),
        ("to=2026-02-30T00:00:00Z", "to"),
        ("to=1970-01-01T00:00:00Z", "to"),
        ("from=2024-01-01T00:00:00Z&to=2025-01-02T00:00:00Z", "to"),
    ],
)
def test_invalid_period_is_refused_with_its_parameter(
    tenant: Tenant, query: str, parameter: str
) -> None:
    """The problem points at the parameter (N1, O3)."""
    for path in (f"/accounts/{tenant.account}/statement", "/usage", "/exports/focus"):
        problem = refused(tenant.caller.get(f"{path}?{query}"), 422, "invalid_request")
        assert [f"query/{parameter}"] == [error["pointer"] for error in problem["errors"]]


@pytest.mark.parametrize(
    ("path", "parameter"),
    [
        ("/usage?by=colour", "by"),
        ("/usage?by=user,user", "by"),
        ("/usage?by=", "by"),
        ("/usage?by=user&level=1", "level"),
        ("/usage?level=-1", "level"),
        ("/usage?format=xml", "format"),
        ("/exports/focus?every=week", "every"),
        ("/exports/focus?currency=eur", "currency"),
        ("/accounts/{account}/statement?after=x", "after"),
        ("/accounts/{account}/statement?after=1.99999999999", "after"),
        ("/accounts/{account}/statement?limit=0", "limit"),
    ],
)
def test_invalid_parameters_are_refused_by_name(tenant: Tenant, path: str, parameter: str) -> None:
    """The same for all other parameters."""
    answer = tenant.caller.get(path.format(account=tenant.account))
    problem = refused(answer, 422, "invalid_request")
    assert [f"query/{parameter}"] == [error["pointer"] for error in problem["errors"]]


def test_statements_and_usage_of_other_orgs_are_not_visible(
    tenant: Tenant, operator: HttpCaller
) -> None:
    """A tenant neither another's statement nor its usage; a team's key its own alone (N2)."""
    team, other = tenant.account_below(), tenant.account_below()
    of_team = tenant.with_key(["read"], team)
    blind = tenant.with_key(["spend"])

    assert 200 == of_team.get(f"/accounts/{team}/statement").status_code
    refused(of_team.get(f"/accounts/{other}/statement"), 404, "account_unknown")
    refused(of_team.get(f"/accounts/{tenant.account}/statement"), 404, "account_unknown")
    for path in ("/usage", "/exports/focus"):
        refused(of_team.get(path), 403, "forbidden")
        refused(blind.get(path), 403, "forbidden")
        refused(operator.get(path), 422, "invalid_request")
        assert 200 == operator.get(f"{path}?org_id={tenant.id}").status_code
    refused(blind.get(f"/accounts/{team}/statement"), 403, "forbidden")
    assert 200 == operator.get(f"/accounts/{team}/statement").status_code
    with new_tenant(operator) as stranger:
        refused(stranger.caller.get(f"/accounts/{team}/statement"), 404, "account_unknown")
        for path in ("/usage", "/exports/focus"):
            refused(stranger.caller.get(f"{path}?org_id={tenant.id}"), 404, "org_unknown")


def test_a_time_may_have_an_offset(tenant: Tenant) -> None:
    """With its plus escaped or not."""
    start, end = "2026-01-01T00:00:00+02:00", "2026-01-02T00:00:00+02:00"
    path = f"/accounts/{tenant.account}/statement"

    escaped = told(tenant.caller.get(f"{path}?from={quote(start)}&to={quote(end)}"))
    plain = told(tenant.caller.get(f"{path}?from={start}&to={end}"))

    assert "2025-12-31T22:00:00.000000Z" == escaped["from"] == plain["from"]


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", "\t=1", "\r=1", "\n=1", "\uff1d1"])
def test_texts_in_csv_are_not_formulas(text: str) -> None:
    """And numbers stay numbers, texts in quotes texts (K33)."""
    rows: list[list[Cell]] = [["a,b", text, -5, Decimal("-0.000001"), None, 'say "x"']]

    told = csv_text(rows)

    [found] = csv.reader(io.StringIO(told, newline=""))
    assert ["a,b", f"'{text}", "-5", "-0.000001", "", 'say "x"'] == found
