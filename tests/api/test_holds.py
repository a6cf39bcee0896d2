"""How long credits can be set aside over HTTP (L10)."""

from datetime import UTC, datetime, timedelta

from tests.support.api_service import Tenant, refused

DAY_S = 24 * 3_600


def test_naming_a_job_does_not_make_a_hold_last_longer(tenant: Tenant) -> None:
    """Only the hold that is created with a job lasts longer than a day (L10)."""
    tenant.grant(100)
    ask = {
        "account_id": tenant.account,
        "amount_micros": 10,
        "context": {"job_id": "invented"},
    }

    refused(tenant.caller.post("/holds", {**ask, "ttl_seconds": DAY_S + 1}), 422, "hold_too_long")
    hold = tenant.caller.made("/holds", ask)

    until = datetime.fromisoformat(hold["expires_at"])
    assert until <= datetime.now(UTC) + timedelta(seconds=DAY_S)
    later = {"expires_at": (until + timedelta(seconds=1)).isoformat().replace("+00:00", "Z")}
    refused(tenant.caller.post(f"/holds/{hold['id']}/extend", later), 422, "hold_too_long")
