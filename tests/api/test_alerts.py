"""Alerts over HTTP: raised once, told to those who want to know (B6)."""

from datetime import UTC, datetime, timedelta
from typing import Any

from tests.support.api_service import Process, Tenant, new_key, new_tenant, refused
from tests.support.patience import eventually
from tests.support.webhook_orgs import World
from tests.support.webhook_receiver import Receiver


def alerts(tenant: Tenant) -> list[Any]:
    """All alerts of an org, page by page."""
    found: list[Any] = []
    after: str | None = "0"
    while after is not None:
        page = tenant.caller.get(f"/alerts?limit=2&after={after}").json()
        found += page["items"]
        after = page["next"]
    return found


def raised(tenant: Tenant, count: int) -> list[Any]:
    """So many alerts; they must be raised in time, and there are no more."""
    eventually(lambda: len(alerts(tenant)) >= count, f"{count} alerts")
    found = alerts(tenant)
    assert count == len(found), found
    return found


def settled(tenant: Tenant) -> None:
    """Everything that has happened so far was looked at: a later alert is there."""
    before = len(alerts(tenant))
    tenant.grant(1, expires_at=in_days(1), account_id=tenant.account_below(name="marker"))
    eventually(lambda: len(alerts(tenant)) > before, "a later alert")


def in_days(days: float) -> str:
    """An instant so many days ahead."""
    return (datetime.now(UTC) + timedelta(days=days)).isoformat()


def test_expiring_credits_raise_one_alert(world: World, there: Receiver) -> None:
    """Those that are available and expire within a week; by webhook, with the same id."""
    made = world.tenant.caller.made("/webhooks", {"url": there.url})
    near = world.tenant.grant(7_000_000, expires_at=in_days(3))["id"]
    world.tenant.grant(1_000_000, expires_at=in_days(30))
    world.tenant.grant(1_000_000)

    [alert] = raised(world.tenant, 1)
    told = there.wait(1)[0].verified(made["secret"])
    assert "alert.credits_expiring" == alert["type"] == told["type"]
    assert alert == told["data"]
    assert ("raised", None, None) == (alert["state"], alert["resolved_at"], alert["rule_id"])
    assert world.tenant.account == alert["account_id"]
    assert near == alert["figures"]["grant_id"]
    assert 7_000_000 == alert["figures"]["available_micros"]
    settled(world.tenant)
    assert 2 == len(alerts(world.tenant))


def test_rule_warns_earlier_of_expiring_credits(world: World) -> None:
    """Of the account it names and those below; also of what was issued before the rule."""
    team = world.tenant.account_below(name="team")
    below = world.tenant.account_below(team, "project")
    grants = [
        world.tenant.grant(5, expires_at=in_days(days), account_id=account)["id"]
        for days, account in ((20, below), (40, below), (20, world.tenant.account))
    ]
    ask = {"kind": "credits_expiring", "account_id": team, "days": 30}
    rule = world.tenant.caller.made("/alerts/rules", ask)

    [alert] = raised(world.tenant, 1)
    assert (rule["id"], grants[0]) == (alert["rule_id"], alert["figures"]["grant_id"])
    later = world.tenant.grant(5, expires_at=in_days(25), account_id=team)["id"]
    assert later == raised(world.tenant, 2)[1]["figures"]["grant_id"]


def test_debt_and_absorbed_usage_raise_one_alert_per_hold(world: World, there: Receiver) -> None:
    """However often its meter is read; nothing needs to be set for it."""
    world.tenant.caller.made("/webhooks", {"url": there.url, "events": ["alert.debt"]})
    world.tenant.grant(1_000_000)
    hold = world.tenant.hold(1_000_000)["id"]
    for total in (3_000_000, 4_000_000, 300_000_000, 301_000_000):
        charge = {"amount_micros": total}
        world.tenant.caller.made(f"/holds/{hold}/charge", charge)

    debt, absorbed = raised(world.tenant, 2)
    assert ["alert.debt", "alert.usage_absorbed"] == [debt["type"], absorbed["type"]]
    assert {hold} == {one["figures"]["hold_id"] for one in (debt, absorbed)}
    assert {world.tenant.account} == {one["account_id"] for one in (debt, absorbed)}
    assert [debt["id"]] == [one.data["id"] for one in there.wait(1)]
    settled(world.tenant)
    assert 3 == len(alerts(world.tenant))


def test_budget_thresholds_raise_alerts(world: World) -> None:
    """Each once in its period."""
    world.tenant.grant(10_000_000)
    ask = {
        "account_id": world.tenant.account,
        "every": "month",
        "limit_micros": 1_000_000,
        "hard": False,
        "thresholds_ppm": [500_000, 1_000_000],
    }
    budget = world.tenant.caller.made("/budgets", ask)["id"]
    hold = world.tenant.hold(5_000_000)["id"]
    for amount in (600_000, 100_000, 600_000, 100_000):
        world.tenant.caller.made(f"/holds/{hold}/charge", {"amount_micros": amount})

    found = raised(world.tenant, 2)
    assert ["alert.budget_threshold"] * 2 == [one["type"] for one in found]
    assert [1, 2] == [one["figures"]["thresholds_crossed"] for one in found]
    assert {budget} == {one["figures"]["budget_id"] for one in found}
    assert {world.tenant.account} == {one["account_id"] for one in found}


def test_low_balance_raises_a_new_alert_only_after_recovery(world: World, there: Receiver) -> None:
    """Raised, resolved, raised: two alerts, told three times."""
    made = world.tenant.caller.made(
        "/webhooks", {"url": there.url, "events": ["alert.low_balance"]}
    )
    ask = {"kind": "low_balance", "account_id": world.tenant.account, "below_micros": 100}
    rule = world.tenant.caller.made("/alerts/rules", ask)
    [first] = raised(world.tenant, 1)
    assert ("alert.low_balance", rule["id"]) == (first["type"], first["rule_id"])
    assert {"spendable_micros": 0, "below_micros": 100} == first["figures"]
    world.tenant.grant(50)  # still low

    settled_at = world.tenant.grant(200)["id"]
    eventually(lambda: "resolved" == alerts(world.tenant)[-1]["state"], "resolved")
    [over] = alerts(world.tenant)
    assert (first["id"], first["raised_at"]) == (over["id"], over["raised_at"])
    assert over["resolved_at"] > over["raised_at"]

    hold = world.tenant.hold(240)["id"]
    again = raised(world.tenant, 2)[-1]
    assert first["id"] != again["id"]
    assert "raised" == again["state"]
    got = [one.verified(made["secret"])["data"] for one in there.wait(3)]
    assert [first, over, again] == got
    assert settled_at
    assert hold


def test_short_runway_raises_an_alert(world: World) -> None:
    """When what can be spent lasts for fewer days, at the rate of the last week."""
    world.tenant.grant(2_000)
    for days in (365, 1):
        ask = {"kind": "runway_short", "account_id": world.tenant.account, "days": days}
        world.tenant.caller.made("/alerts/rules", ask)
    hold = world.tenant.hold(1_000)["id"]
    world.tenant.caller.made(f"/holds/{hold}/charge", {"amount_micros": 500})

    [alert] = raised(world.tenant, 1)
    assert "alert.runway_short" == alert["type"]
    assert 365 == alert["figures"]["days"]
    assert alert["figures"]["runs_out_at"] > alert["raised_at"]


def test_rules_are_created_once_listed_and_deleted(tenant: Tenant, service: Process) -> None:
    """By one's own key alone, and only those that make sense."""
    key = new_key()
    ask = {"kind": "low_balance", "account_id": tenant.account, "below_micros": 5}
    first, again = (tenant.caller.post("/alerts/rules", ask, key) for _ in range(2))
    assert 201 == first.status_code
    assert first.content == again.content
    assert [first.json()] == tenant.caller.get("/alerts/rules").json()["items"]
    for wrong in (
        {"kind": "low_balance", "account_id": tenant.account},
        {"kind": "low_balance", "below_micros": 5},
        {"kind": "runway_short", "account_id": tenant.account, "below_micros": 5},
        {"kind": "credits_expiring", "days": 0},
        {"kind": "debt"},
        {**ask, "days": 3},
    ):
        refused(tenant.caller.post("/alerts/rules", wrong), 422, "invalid_request")
    refused(tenant.with_key(["read"]).post("/alerts/rules", ask), 403, "forbidden")
    with new_tenant(tenant.operator, "Other") as other:
        refused(other.caller.post("/alerts/rules", ask), 404, "account_unknown")
        path = f"/alerts/rules/{first.json()['id']}"
        refused(other.caller.delete(path), 404, "not_found")
        assert [] == other.caller.get("/alerts").json()["items"]
        refused(other.caller.get(f"/alerts?org_id={tenant.id}"), 404, "org_unknown")

    assert 200 == tenant.caller.delete(path).status_code
    assert [] == tenant.caller.get("/alerts/rules").json()["items"]
