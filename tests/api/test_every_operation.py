"""Every operation once, over HTTP, as a caller meets it: what is sent, and what comes back."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from bursar.store.ledger.writer import freeze
from tests.support.api_service import EMPTY, RANDOM_ID, TENANT, Caller, Process, Tenant, refused
from tests.support.databases import connected

HOUR_MS = 3_600_000
H100 = {"gpu_type": "H100", "gpu_count": 1}


def in_days(days: float) -> str:
    """An instant some days from now, as it is told."""
    then = datetime.now(UTC).replace(microsecond=0) + timedelta(days=days)
    return then.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


# The org, its tree, its people


def test_org_is_created_with_its_root_account(operator: Caller) -> None:
    """What an operator gets back is enough to go on with (B2)."""
    answer = operator.post("/orgs", {"name": "Fürst & Söhne", "time_zone": "Europe/Berlin"})

    assert 201 == answer.status_code
    org = answer.json()
    assert {"id", "account_id", "name"} == set(org)
    root = operator.get(f"/accounts/{org['account_id']}").json()
    assert {
        "id": org["account_id"],
        "org_id": org["id"],
        "parent_id": None,
        "name": "Fürst & Söhne",
        "time_zone": "Europe/Berlin",
    } == root
    assert org == operator.get(f"/orgs/{org['id']}").json()


def test_orgs_are_listed_page_by_page(operator: Caller) -> None:
    """Each org is on one page, in the order of ids."""
    made = {operator.made("/orgs", {"name": "one of many"})["id"] for _ in range(3)}
    seen: list[str] = []
    after: str | None = ""
    while after is not None:
        page = operator.get(f"/orgs?limit=2&after={after}").json()
        assert len(page["items"]) <= 2
        seen += [org["id"] for org in page["items"]]
        after = page["next"]

    assert sorted(set(seen)) == seen
    assert made <= set(seen)


def test_accounts_form_a_tree(tenant: Tenant) -> None:
    """An account is put below another and inherits its zone (B2)."""
    team = tenant.caller.made(
        "/accounts", {"parent_id": tenant.account, "name": "team", "time_zone": "Asia/Tokyo"}
    )
    project = tenant.caller.made("/accounts", {"parent_id": team["id"], "name": "project"})

    assert (tenant.account, "Asia/Tokyo") == (team["parent_id"], team["time_zone"])
    assert (team["id"], "Asia/Tokyo") == (project["parent_id"], project["time_zone"])
    assert project == tenant.caller.get(f"/accounts/{project['id']}").json()
    listed = tenant.caller.get("/accounts").json()["items"]
    assert {tenant.account, team["id"], project["id"]} == {one["id"] for one in listed}


def test_users_are_added_and_listed(tenant: Tenant) -> None:
    """An org has one user from the beginning: who spends for those that name none."""
    before = [one["id"] for one in tenant.caller.get("/users").json()["items"]]
    ann = tenant.caller.made("/users", {})

    assert 1 == len(before)
    assert tenant.id == ann["org_id"]
    after = {one["id"] for one in tenant.caller.get("/users").json()["items"]}
    assert {*before, ann["id"]} == after


# Credits


def test_paid_grant_can_be_spent_at_once(tenant: Tenant) -> None:
    """What is bought can be spent (L2)."""
    grant = tenant.grant(500, external_ref="pay_1", source="card")

    assert (tenant.account, "paid", 500) == (
        grant["account_id"],
        grant["kind"],
        grant["amount_micros"],
    )
    assert ("pay_1", "card", None) == (grant["external_ref"], grant["source"], grant["expires_at"])
    found = tenant.caller.get(f"/grants/{grant['id']}").json()
    assert {**EMPTY, "available_micros": 500} == found.pop("owned")
    assert grant == found
    again = {"account_id": tenant.account, "amount_micros": 500, "kind": "paid"}
    twice = refused(
        tenant.caller.post("/grants", {**again, "external_ref": "pay_1"}),
        409,
        "external_ref_exists",
    )
    assert grant["id"] == twice["figures"]["grant_id"]


def test_promotion_has_an_expiry_a_rank_and_a_policy(tenant: Tenant) -> None:
    """Terms come back as they were sent (L2, L9)."""
    policy = {"gpu_types": ["A100", "H100"], "max_share_ppm": 500_000, "refundable": False}
    expires_at = in_days(30)
    grant = tenant.grant(80, kind="promo", expires_at=expires_at, priority=-5, policy=policy)

    assert ("promo", expires_at, -5) == (grant["kind"], grant["expires_at"], grant["priority"])
    assert policy == {name: grant["policy"][name] for name in policy}


def test_a_recurring_grant_is_issued_at_once_and_can_be_stopped(tenant: Tenant) -> None:
    """The answer is the recurrence; its first grant is in the balance (L20)."""
    ask = {"recurring": {"every": "month", "roll_over_max_micros": 10}}
    recurrence = tenant.grant(100, kind="grant", **ask)

    assert ("month", 10) == (recurrence["every"], recurrence["roll_over_max_micros"])
    assert recurrence["next_at"] is not None
    assert 100 == tenant.balance()["spendable_micros"]
    (first,) = tenant.caller.get(f"/grants?account_id={tenant.account}").json()["items"]
    assert recurrence["id"] == first["recurrence_id"]
    stopped = tenant.caller.made(f"/recurrences/{recurrence['id']}/stop", None)
    assert {"id": recurrence["id"]} == stopped


def test_a_grant_is_extended_revoked_and_voided(tenant: Tenant) -> None:
    """The three changes that an issuer can make to a grant (L11)."""
    longer = tenant.grant(10, expires_at=in_days(1))
    later = in_days(2)
    told = tenant.caller.made(f"/grants/{longer['id']}/extend", {"expires_at": later})
    assert {"grant_id": longer["id"], "expires_at": later} == told
    for_ever = tenant.caller.made(f"/grants/{longer['id']}/extend", {"expires_at": None})
    assert {"grant_id": longer["id"], "expires_at": None} == for_ever

    back = tenant.grant(20)
    told = tenant.caller.made(f"/grants/{back['id']}/revoke", {})
    assert {"grant_id": back["id"], "revoked_micros": 20, "voided": False} == told

    never = tenant.grant(30)
    told = tenant.caller.made(f"/grants/{never['id']}/void", None)
    assert {"grant_id": never["id"], "revoked_micros": 30, "voided": True} == told
    assert {**EMPTY, "available_micros": 10, "revoked_micros": 50} == tenant.balance()["owned"]


def test_grants_are_listed_page_by_page_as_they_were_issued(tenant: Tenant) -> None:
    """`next` leads to the next page; no grant is on two pages."""
    issued = [tenant.grant(amount)["id"] for amount in (3, 2, 1)]
    first = tenant.caller.get(f"/grants?account_id={tenant.account}&limit=2").json()
    rest = tenant.caller.get(
        f"/grants?account_id={tenant.account}&limit=2&after={first['next']}"
    ).json()

    assert issued == [one["id"] for one in (*first["items"], *rest["items"])]
    assert rest["next"] is None


def test_credits_are_transferred_to_another_account(tenant: Tenant) -> None:
    """A transfer makes a grant of its own, whose parent is the first (L11)."""
    team = tenant.account_below()
    grant = tenant.grant(100)
    ask = {"grant_id": grant["id"], "account_id": team, "amount_micros": 40}
    moved = tenant.caller.made("/transfers", ask)

    assert (team, 40, grant["id"]) == (
        moved["account_id"],
        moved["amount_micros"],
        moved["parent_id"],
    )
    assert {**EMPTY, "available_micros": 60, "moved_micros": 40} == tenant.balance()["owned"]
    assert 100 == tenant.balance(team)["spendable_micros"]


# Holds


def test_hold_reserves_credits(tenant: Tenant) -> None:
    """Reserve, then look at it (L5)."""
    grant = tenant.grant(100)
    answer = tenant.caller.post(
        "/holds",
        {"account_id": tenant.account, "amount_micros": 30, "ttl_seconds": 600, "context": H100},
    )

    assert 201 == answer.status_code
    hold = answer.json()
    assert ("open", 30, 0) == (hold["state"], hold["open_micros"], hold["charged_micros"])
    assert H100 == {name: hold["context"][name] for name in H100}
    assert [(grant["id"], 30, 30)] == [
        (draw["grant_id"], draw["drawn_micros"], draw["open_micros"]) for draw in hold["draws"]
    ]
    assert hold == tenant.caller.get(f"/holds/{hold['id']}").json()
    assert [hold] == tenant.caller.get("/holds").json()["items"]
    assert {**EMPTY, "available_micros": 70, "held_micros": 30} == tenant.balance()["owned"]


def test_hold_without_enough_credits_is_refused_whole(tenant: Tenant) -> None:
    """402 with the figures; nothing is held (L5)."""
    tenant.grant(100)
    answer = tenant.caller.post("/holds", {"account_id": tenant.account, "amount_micros": 101})

    told = refused(answer, 402, "insufficient_credits")
    assert {"requested_micros": 101, "spendable_micros": 100, "missing_micros": 1}.items() <= told[
        "figures"
    ].items()
    assert {**EMPTY, "available_micros": 100} == tenant.balance()["owned"]


def test_a_hold_is_charged_by_amounts_and_settled_with_a_total(tenant: Tenant) -> None:
    """A total raises what was charged, and the rest goes back (L6)."""
    grant = tenant.grant(100)
    hold = tenant.hold(50)["id"]
    charge = tenant.caller.made(f"/holds/{hold}/charge", {"amount_micros": 20})

    assert (hold, 20, False) == (charge["hold_id"], charge["amount_micros"], charge["late"])
    assert (30, 20) == (charge["hold_open_micros"], charge["hold_charged_micros"])
    assert [{"grant_id": grant["id"], "amount_micros": 20}] == charge["spent"]
    settled = tenant.caller.made(f"/holds/{hold}/settle", {"total_micros": 35})
    assert ("closed", 0, 35, 15) == (
        settled["state"],
        settled["open_micros"],
        settled["charged_micros"],
        settled["refunded_micros"],
    )
    assert 15 == settled["charge"]["amount_micros"]
    assert {**EMPTY, "available_micros": 65, "spent_micros": 35} == tenant.balance()["owned"]


def test_a_total_never_lowers_what_was_charged(tenant: Tenant) -> None:
    """To give something back takes a reversal, not a smaller total (L6)."""
    tenant.grant(100)
    hold = tenant.hold(50)["id"]
    tenant.caller.made(f"/holds/{hold}/charge", {"amount_micros": 20})
    settled = tenant.caller.made(f"/holds/{hold}/settle", {"total_micros": 5})

    assert (20, 30, None) == (
        settled["charged_micros"],
        settled["refunded_micros"],
        settled["charge"],
    )
    assert 20 == tenant.balance()["used_micros"]
    refused(tenant.caller.post(f"/holds/{hold}/settle", {}), 409, "hold_closed")


def test_run_time_is_charged_at_the_price_of_the_hold(tenant: Tenant) -> None:
    """Readings are totals: the same one again charges nothing more (M2, B1)."""
    rates = [{"gpu_type": "H100", "micros_per_gpu_hour": 3_600}]
    version = tenant.caller.made("/prices", {"rates": rates})
    assert [3_600] == [rate["micros_per_gpu_hour"] for rate in version["rates"]]
    listed = tenant.caller.get("/prices").json()["items"]
    assert [version] == [one for one in listed if one["org_id"] is not None]
    tenant.grant(10_000)
    ask = {"account_id": tenant.account, "run_ms_max": HOUR_MS, "context": H100}

    quote = tenant.caller.made("/quotes", {**ask, "likely_run_ms": HOUR_MS // 2})
    assert (3_600, 1_800, 10_000, []) == (
        quote["held_micros"],
        quote["likely_micros"],
        quote["spendable_micros"],
        quote["problems"],
    )
    hold = tenant.caller.made("/holds", ask)
    assert 3_600 == hold["open_micros"]
    assert [version["id"]] == [rate["price_version"] for rate in hold["rates"]]
    path = f"/holds/{hold['id']}"
    reading = tenant.caller.made(f"{path}/charge", {"run_ms_total": 2_000})
    assert (2, 2_000) == (reading["amount_micros"], reading["run_ms_total"])
    again = tenant.caller.made(f"{path}/charge", {"run_ms_total": 2_000})
    assert 0 == again["amount_micros"]
    settled = tenant.caller.made(f"{path}/settle", {"run_ms_total": 5_000})
    assert (5, 3) == (settled["charged_micros"], settled["charge"]["amount_micros"])


def test_org_without_prices_pays_the_deployments_prices(
    tenant: Tenant, other_service: Process
) -> None:
    """An operator sets it for all; what an org has set for itself goes first (B1)."""
    kinds = ("D100", "D200")  # nobody else asks for these: the book is that of every test's org
    rates = [{"gpu_type": kind, "micros_per_gpu_hour": 7_200} for kind in kinds]
    everybodys = tenant.operator.made("/prices", {"rates": rates})
    own = tenant.caller.made("/prices", {"rates": [{**rates[1], "micros_per_gpu_hour": 3_600}]})
    tenant.grant(100_000)

    assert (None, tenant.id) == (everybodys["org_id"], own["org_id"])
    for caller in (tenant.caller, tenant.at(other_service)):
        for kind, amount, version in zip(kinds, (7_200, 3_600), (everybodys, own), strict=True):
            context = {"gpu_type": kind, "gpu_count": 1}
            ask = {"account_id": tenant.account, "run_ms_max": HOUR_MS, "context": context}
            quote, hold = caller.made("/quotes", ask), caller.made("/holds", ask)
            assert amount == quote["held_micros"] == hold["open_micros"]
            assert [version["id"]] == [rate["price_version"] for rate in hold["rates"]]
    listed = tenant.caller.get("/prices").json()["items"]
    assert [everybodys, own] == [
        one for one in listed if one["id"] in (everybodys["id"], own["id"])
    ]
    assert everybodys in tenant.operator.get("/prices").json()["items"]
    assert own not in tenant.operator.get("/prices").json()["items"]


def test_scheduled_price_keeps_the_rates_that_change_before_it_takes_effect(
    tenant: Tenant,
) -> None:
    """A version that keeps other rates keeps those in force when it takes effect (B1)."""

    def set_price(effective_at: str | None = None, **rates: int) -> Any:
        return tenant.caller.made(
            "/prices",
            {
                "rates": [
                    {"gpu_type": name, "micros_per_gpu_hour": rate} for name, rate in rates.items()
                ],
                "keep_others": True,
                "effective_at": effective_at,
            },
        )

    def list_rates() -> dict[str, dict[str, int]]:
        return {version["id"]: _rates(version) for version in listed()}

    def listed() -> list[Any]:
        items = tenant.caller.get("/prices").json()["items"]
        return [version for version in items if version["org_id"] == tenant.id]

    first = set_price(A100=1, H100=1)
    scheduled = set_price("2200-01-01T00:00:00Z", A100=2)
    assert {"A100": 2, "H100": 1} == _rates(scheduled)
    today = set_price(H100=5)

    assert {
        first["id"]: {"A100": 1, "H100": 1},
        today["id"]: {"A100": 1, "H100": 5},
        scheduled["id"]: {"A100": 2, "H100": 5},
    } == list_rates()


def _rates(version: Any) -> dict[str, int]:
    return {rate["gpu_type"]: rate["micros_per_gpu_hour"] for rate in version["rates"]}


def test_only_operators_set_the_deployments_prices(tenant: Tenant) -> None:
    """Whatever org a tenant names, or names not (B1, N1)."""
    body = {"rates": [{"gpu_type": "D300", "micros_per_gpu_hour": 1}]}
    nobody = "00000000-0000-0000-0000-000000000000"

    assert tenant.id == tenant.caller.made("/prices", body)["org_id"]
    refused(tenant.caller.post("/prices", {**body, "org_id": nobody}), 404, "org_unknown")


def test_a_hold_is_extended_refunded_and_released(tenant: Tenant) -> None:
    """Its amount grows, shrinks, and is given back (L6)."""
    tenant.grant(100)
    hold = tenant.hold(10, ttl_seconds=600)
    path, until = f"/holds/{hold['id']}", in_days(1)

    more = tenant.caller.made(f"{path}/extend", {"amount_micros": 15, "expires_at": until})
    assert (25, until) == (more["open_micros"], more["expires_at"])
    less = tenant.caller.made(f"{path}/refund", {"amount_micros": 5})
    assert (20, 5) == (less["open_micros"], less["refunded_micros"])
    none = tenant.caller.made(f"{path}/release", None)
    assert ("closed", 0, 20) == (none["state"], none["open_micros"], none["refunded_micros"])
    assert {**EMPTY, "available_micros": 100} == tenant.balance()["owned"]


def test_a_charge_is_reversed_in_part(tenant: Tenant) -> None:
    """What comes back, comes back to the grant that paid (L11)."""
    grant = tenant.grant(100)
    hold = tenant.hold(50)["id"]
    charge = tenant.caller.made(f"/holds/{hold}/charge", {"amount_micros": 30})
    told = tenant.caller.made(f"/charges/{charge['id']}/reverse", {"amount_micros": 10})

    assert (charge["id"], 10, 0) == (
        told["charge_id"],
        told["amount_micros"],
        told["forgiven_micros"],
    )
    assert [{"grant_id": grant["id"], "amount_micros": 10}] == told["returned"]
    assert ([], []) == (told["lapsed"], told["issued"])
    rest = tenant.caller.made(f"/charges/{charge['id']}/reverse", {})
    assert 20 == rest["amount_micros"]


def test_late_usage_is_charged_as_of_its_time(tenant: Tenant) -> None:
    """A closed hold can still be charged for what it did while it was open (L12)."""
    tenant.grant(100)
    hold = tenant.hold(50)
    tenant.caller.made(f"/holds/{hold['id']}/settle", {"total_micros": 10})
    ask = {"amount_micros": 7, "effective_at": hold["opened_at"]}
    late = tenant.caller.made(f"/holds/{hold['id']}/charge", ask)

    assert (7, True, hold["opened_at"]) == (
        late["amount_micros"],
        late["late"],
        late["effective_at"],
    )
    assert 17 == tenant.balance()["used_micros"]


def test_debt_is_booked_blocks_holds_and_is_absorbed(tenant: Tenant) -> None:
    """Nothing is held while something is owed (L13)."""
    debt = tenant.caller.made("/debts", {"account_id": tenant.account, "amount_micros": 30})
    assert 30 == debt["owed_micros"]
    assert debt == tenant.caller.get(f"/debts/{debt['id']}").json()
    assert [debt] == tenant.caller.get("/debts").json()["items"]
    assert 30 == tenant.balance()["debt_micros"]
    refused(
        tenant.caller.post("/holds", {"account_id": tenant.account, "amount_micros": 1}),
        402,
        "debt_outstanding",
    )
    told = tenant.caller.made(f"/debts/{debt['id']}/absorb", {"amount_micros": 10})
    assert {"debt_id": debt["id"], "absorbed_micros": 10} == told
    told = tenant.caller.made(f"/debts/{debt['id']}/absorb", {})
    assert 20 == told["absorbed_micros"]
    assert 0 == tenant.balance()["debt_micros"]


# Limits


def test_budget_is_set_enforced_changed_and_deleted(tenant: Tenant) -> None:
    """A hard budget refuses with its own figures (B3)."""
    tenant.grant(100)
    ask = {"account_id": tenant.account, "every": "month", "limit_micros": 20}
    budget = tenant.caller.made("/budgets", ask)

    assert ("month", 20, True) == (budget["every"], budget["limit_micros"], budget["hard"])
    assert budget == tenant.caller.get(f"/budgets/{budget['id']}").json()
    assert [budget] == tenant.caller.get("/budgets").json()["items"]
    hold = {"account_id": tenant.account, "amount_micros": 21}
    told = refused(tenant.caller.post("/holds", hold), 402, "budget_exceeded")
    assert budget["id"] == told["figures"]["budget_id"]
    assert 20 == tenant.balance()["spendable_micros"]
    raised = tenant.caller.made("/budgets", {**ask, "id": budget["id"], "limit_micros": 21})
    assert {**budget, "limit_micros": 21} == raised
    assert 201 == tenant.caller.post("/holds", hold).status_code
    path = f"/budgets/{budget['id']}"
    softened = tenant.caller.ask("PATCH", path, {"hard": False})
    assert (200, {**raised, "hard": False}) == (softened.status_code, softened.json())
    lowered = tenant.caller.ask("PATCH", path, {"limit_micros": 1, "thresholds_ppm": []})
    assert {**softened.json(), "limit_micros": 1, "thresholds_ppm": []} == lowered.json()
    refused(tenant.caller.ask("PATCH", path, {}), 422, "invalid_request")
    refused(tenant.caller.ask("PATCH", path, {"every": "day"}), 422, "invalid_request")
    dropped = tenant.caller.delete(f"/budgets/{budget['id']}")
    assert (200, {"id": budget["id"]}) == (dropped.status_code, dropped.json())
    assert [] == tenant.caller.get("/budgets").json()["items"]


def test_a_tier_brings_its_budgets(tenant: Tenant) -> None:
    """Setting a tier is the issuer's to do (B3)."""
    told = tenant.caller.made("/tiers", {"org_id": tenant.id, "tier": "free"})

    assert {"org_id": tenant.id, "tier": "free"} == told
    budgets = tenant.caller.get("/budgets").json()["items"]
    assert {"free"} == {budget["tier"] for budget in budgets}


def test_quote_lists_every_problem(tenant: Tenant) -> None:
    """Not only the first reason; and nothing happens (M1)."""
    tenant.caller.made("/debts", {"account_id": tenant.account, "amount_micros": 1})
    before = tenant.changes()
    quote = tenant.caller.made("/quotes", {"account_id": tenant.account, "amount_micros": 5})

    codes = {one["code"] for one in quote["problems"]}
    assert {"debt_outstanding", "insufficient_credits"} == codes
    assert before == tenant.changes()


# Looking


def test_balance_has_all_fields(tenant: Tenant) -> None:
    """The shape that callers build on (L8)."""
    paid = tenant.grant(100)
    promo = tenant.grant(40, kind="promo", expires_at=in_days(0.5))
    tenant.hold(10)
    answer = tenant.caller.get(f"/accounts/{tenant.account}/balance")
    balance = answer.json()

    assert {
        "account_id",
        "at",
        "known_at",
        "owned",
        "spendable_micros",
        "used_micros",
        "debt_micros",
        "by_kind",
        "grants",
        "has_more_grants",
        "expiring",
        "burn",
        "stream",
        "event",
    } == set(balance)
    assert {**EMPTY, "available_micros": 130, "held_micros": 10} == balance["owned"]
    assert 130 == balance["spendable_micros"]
    assert (0, 0) == (balance["used_micros"], balance["debt_micros"])
    kept = {"available_micros": 30, "held_micros": 10}
    assert {**EMPTY, **kept} == balance["by_kind"]["promo"]
    assert {**EMPTY, "available_micros": 100} == balance["by_kind"]["paid"]
    assert [paid["id"], promo["id"]] == [one["id"] for one in balance["grants"]]
    assert (30, 30) == (
        balance["expiring"]["within_24h_micros"],
        balance["expiring"]["within_30d_micros"],
    )
    assert [(promo["id"], 30)] == [
        (one["grant_id"], one["amount_micros"]) for one in balance["expiring"]["timeline"]
    ]
    assert 0 == balance["burn"]["micros_per_day"]
    assert f"{balance['stream']}:{balance['event']}" == answer.headers["bursar-event"]


def test_past_balance_is_as_of_an_instant_and_as_known_then(tenant: Tenant) -> None:
    """The past as it was, and as it was believed to be (L12)."""
    early = tenant.grant(100)["issued_at"]
    tenant.grant(50)
    path = f"/accounts/{tenant.account}/balance"

    then = tenant.caller.get(f"{path}?at={early}").json()
    assert ({**EMPTY, "available_micros": 100}, early) == (then["owned"], then["at"])
    known = tenant.caller.get(f"{path}?known_at={early}").json()
    assert ({**EMPTY, "available_micros": 100}, early) == (known["owned"], known["known_at"])
    hold = f"/holds/{tenant.hold(80)['id']}"
    tenant.caller.made(f"{hold}/settle", {})
    closed_at = tenant.caller.get(hold).json()["closed_at"]
    tenant.caller.made(f"{hold}/charge", {"amount_micros": 9, "effective_at": closed_at})
    as_of = tenant.caller.get(f"{path}?at={closed_at}").json()
    believed = tenant.caller.get(f"{path}?at={closed_at}&known_at={closed_at}").json()
    assert (9, 0) == (as_of["owned"]["spent_micros"], believed["owned"]["spent_micros"])


def test_spendable_credits_depend_on_the_context(tenant: Tenant) -> None:
    """A grant for one type of GPU does not count for another (L8, L9)."""
    tenant.grant(100, policy={"gpu_types": ["A100"]})
    path = f"/accounts/{tenant.account}/balance"

    for asked, want in (
        ("gpu_type=A100", 100),
        ("gpu_type=H100,gpu_count=8", 0),
        ('{"gpu_type":"A100"}', 100),
    ):
        answer = tenant.caller.get(f"{path}?for={asked}")
        assert want == answer.json()["spendable_micros"], asked
    for asked, why in (
        ("gpu=H100", "for: 'gpu' is none of gpu_type, "),
        ("region=", "for: region: "),
        ("gpu_count=x", "for: write it as "),
    ):
        said = refused(tenant.caller.get(f"{path}?for={asked}"), 422, "invalid_request")
        assert said["detail"].startswith(why)


def test_events_are_in_order_and_name_the_key(tenant: Tenant) -> None:
    """The audit trail, page by page (O1)."""
    tenant.grant(100)
    tenant.hold(10)
    events = tenant.events()

    assert list(range(1, len(events) + 1)) == [event["number"] for event in events]
    assert ["GrantIssued", "HoldOpened"] == [event["kind"] for event in events[-2:]]
    assert 1 == len({event["actor_id"] for event in events[-2:]} - {None})
    assert {tenant.id} == {event["stream"] for event in events}
    page = tenant.caller.get("/events?limit=1&after=1").json()
    assert ([2], "2") == ([event["number"] for event in page["items"]], page["next"])


def test_top_list_has_the_highest_usage_first(tenant: Tenant) -> None:
    """The list is as of the last sweep and has its time (L15)."""
    tenant.grant(100)
    hold = tenant.hold(10)["id"]
    tenant.caller.made(f"/holds/{hold}/settle", {"total_micros": 10})
    for subject, by in (("accounts", "used"), ("accounts", "available"), ("users", "day")):
        told = tenant.caller.get(f"/top/{subject}?by={by}")
        assert 200 == told.status_code, told.text
        assert {"items", "next", "as_of"} == set(told.json())
    refused(tenant.caller.get("/top/users?by=available"), 422, "invalid_request")
    assert 200 == tenant.operator.get("/top/accounts").status_code


def test_unknown_ids_are_refused_with_the_code_of_their_kind(tenant: Tenant) -> None:
    """Each kind of object has its own code."""
    for table in ("account", "hold", "grant", "budget", "debt"):
        refused(tenant.caller.get(f"/{table}s/{RANDOM_ID}"), 404, f"{table}_unknown")
    for path in (
        f"/accounts/{RANDOM_ID}/balance",
        f"/accounts/{RANDOM_ID}/balance?at=2026-01-01T00:00:00Z",
        f"/grants?account_id={RANDOM_ID}",
    ):
        refused(tenant.caller.get(path), 404, "account_unknown")


def test_unchanged_response_is_not_sent_again(tenant: Tenant) -> None:
    """ETags: 304 until something changes."""
    path = f"/grants?account_id={tenant.account}"
    first = tenant.caller.get(path)
    again = tenant.caller.get(path, if_none_match=first.headers["etag"])
    assert (304, b"") == (again.status_code, again.content)
    tenant.grant(1)
    changed = tenant.caller.get(path, if_none_match=first.headers["etag"])
    assert 200 == changed.status_code


def test_read_is_at_least_as_new_as_the_event_the_client_names(
    tenant: Tenant, other_service: Process
) -> None:
    """Other processes have what one has answered; an event of the future is refused (N2)."""
    answer = tenant.caller.post(
        "/grants", {"account_id": tenant.account, "amount_micros": 5, "kind": "paid"}
    )
    seen = answer.headers["bursar-event"]
    elsewhere = tenant.at(other_service)
    path = f"/accounts/{tenant.account}/balance"

    assert 5 == elsewhere.get(path, bursar_event=seen).json()["spendable_micros"]
    ahead = f"{tenant.id}:{int(seen.split(':')[1]) + 1}"
    refused(elsewhere.get(path, bursar_event=ahead), 409, "behind")
    refused(elsewhere.get(path, bursar_event="yesterday"), 422, "invalid_request")


def test_traceparent_is_returned(tenant: Tenant) -> None:
    """An invalid header is not returned."""
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    assert trace == tenant.caller.get("/holds", traceparent=trace).headers["traceparent"]
    assert "traceparent" not in tenant.caller.get("/holds", traceparent="x").headers


# Many at once


def test_operations_of_a_batch_succeed_or_fail_alone(tenant: Tenant) -> None:
    """One that fails, fails alone; the same batch again is replayed line by line (L7)."""
    issue = {"account_id": tenant.account, "amount_micros": 100, "kind": "paid"}
    tenant.grant(50)
    ask = {
        "operations": [
            {"operation": "grants.create", "body": issue, "idempotency_key": "mine"},
            {"operation": "holds.release", "id": RANDOM_ID},
            {"operation": "holds.create", "body": {"account_id": tenant.account}},
            {"operation": "holds.create", "body": {**issue, "amount_micros": 5}},
            {"operation": "users.create"},
        ]
    }
    first = tenant.caller.post("/batch", ask, "whole")

    results = first.json()["results"]
    assert [201, 404, 422, 422, 201] == [one["status"] for one in results]
    again = tenant.caller.post("/batch", ask, "whole").json()["results"]
    assert [one["body"] for one in results] == [one["body"] for one in again]
    assert [True, True, False, False, True] == [one["replayed"] for one in again]
    assert 150 == tenant.balance()["spendable_micros"]


@pytest.mark.parametrize("long", [250, 253, 254, 255])
def test_batch_accepts_idempotency_keys_of_every_valid_length(tenant: Tenant, long: int) -> None:
    """Its lines' keys are made of it, and are the same each time (L7)."""
    key = f"{long}-".ljust(long, "k")
    lines = [{"operation": "users.create"} for _ in range(11)]

    first, again = (
        tenant.caller.post("/batch", {"operations": lines}, key).json()["results"] for _ in range(2)
    )

    assert {201} == {one["status"] for one in first}
    assert 11 == len({one["body"]["id"] for one in first})
    assert {True} == {one["replayed"] for one in again}
    assert [one["body"] for one in first] == [one["body"] for one in again]


def test_refused_line_of_a_batch_has_retry_after(tenant: Tenant, service: Process) -> None:
    """As a call by itself does."""
    with connected(service.database_url) as connection:
        freeze(connection, tenant.id, "for a test")

    alone = tenant.caller.post("/users", {})
    lines = [{"operation": "users.create"}, {"operation": "users.create", "id": RANDOM_ID}]
    waits, senseless = tenant.caller.post("/batch", {"operations": lines}).json()["results"]

    assert "60" == alone.headers["retry-after"]
    assert (alone.status_code, alone.json()) == (waits["status"], waits["body"])
    assert (60, None) == (waits["retry_after_seconds"], senseless["retry_after_seconds"])


# Keys


def test_key_is_created_listed_and_revoked(tenant: Tenant) -> None:
    """Its secret is returned only to its creator (N4)."""
    ask = {"name": "ci", "scopes": ["spend", "read"], "expires_at": in_days(1)}
    key = tenant.caller.made("/keys", ask)

    assert key["key"].startswith("bsr_")
    assert (tenant.id, "ci", ["read", "spend"]) == (key["org_id"], key["name"], key["scopes"])
    assert (tenant.account, ask["expires_at"]) == (key["account_id"], key["expires_at"])
    listed = {one["id"]: one for one in tenant.caller.get("/keys").json()["items"]}
    assert {**key, "key": None} == listed[key["id"]]
    assert 200 == tenant.caller.delete(f"/keys/{key['id']}").status_code
    listed = {one["id"]: one for one in tenant.caller.get("/keys").json()["items"]}
    assert key["id"] not in listed


def test_operator_creates_keys_for_operators_and_tenants(tenant: Tenant) -> None:
    """A tenant's key is for an account; an operator's for none."""
    operator = tenant.operator
    other = operator.made("/keys", {"name": "op", "scopes": ["operator"]})
    tenants = operator.made("/keys", {"name": "t", "scopes": TENANT, "account_id": tenant.account})

    assert other["account_id"] is None
    assert tenant.id == tenants["org_id"]
    refused(operator.post("/keys", {"name": "?", "scopes": TENANT}), 422, "invalid_request")
