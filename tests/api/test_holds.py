"""How long credits can be set aside over HTTP, and how much run time can be charged (L10, L13)."""

from datetime import UTC, datetime, timedelta

from tests.support.api_service import Tenant, refused

DAY_S = 24 * 3_600
HOUR_MS = 3_600_000


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


def test_asserted_run_time_is_refused_beyond_the_age_of_the_hold(tenant: Tenant) -> None:
    """By charge, by settle and in a batch; what is refused costs nothing (L13)."""
    rates = [{"gpu_type": "H100", "micros_per_gpu_hour": 3_000_000}]
    tenant.caller.made("/prices", {"rates": rates})
    tenant.grant(100_000_000)
    run = {"run_ms_max": 24 * HOUR_MS, "context": {"gpu_type": "H100", "gpu_count": 1}}
    hold = tenant.caller.made("/holds", {"account_id": tenant.account, **run})
    path, ahead = f"/holds/{hold['id']}", {"run_ms_total": 24 * HOUR_MS}

    for step in ("charge", "settle"):
        answer = tenant.caller.post(f"{path}/{step}", ahead)
        figures = refused(answer, 422, "exceeds_hold_age")["figures"]
        assert 24 * HOUR_MS == figures["run_ms"]
        assert 5_000 <= figures["max_ms"] < HOUR_MS
    line = {"operation": "holds.charge", "id": hold["id"], "body": ahead}
    [result] = tenant.caller.made("/batch", {"operations": [line]})["results"]
    assert (422, "exceeds_hold_age") == (result["status"], result["body"]["code"])
    seen = tenant.caller.get(path).json()
    assert ("open", 0) == (seen["state"], seen["charged_micros"])
    tenant.caller.made(f"{path}/settle", {"run_ms_total": 1_000})
