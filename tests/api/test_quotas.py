"""Quotas over HTTP: created, changed with If-Match, deleted (B4)."""

from tests.support.api_service import RANDOM_ID, Tenant, refused


def test_quota_is_stored_as_it_was_set(tenant: Tenant) -> None:
    """Made, looked at, listed."""
    ask = {"account_id": tenant.account, "gpus_max": 8, "gpus_max_by_type": {"H100": 4}}

    made = tenant.caller.made("/quotas", ask)

    assert ask == {name: made[name] for name in ask}
    assert made == tenant.caller.get(f"/quotas/{made['id']}").json()
    assert [made] == tenant.caller.get("/quotas").json()["items"]


def test_quota_is_changed_only_from_its_latest_version(tenant: Tenant) -> None:
    """If-Match with the ETag; another's change in between is not overwritten."""
    made = tenant.caller.made("/quotas", {"account_id": tenant.account, "gpus_max": 8})
    path = f"/quotas/{made['id']}"
    seen = tenant.caller.get(path).headers["etag"]
    more = {"account_id": tenant.account, "gpus_max": 9}

    first = tenant.caller.ask("PUT", path, more, if_match=seen)
    second = tenant.caller.ask("PUT", path, {**more, "gpus_max": 1}, if_match=seen)

    assert 200 == first.status_code, first.text
    refused(second, 412, "changed_since")
    assert 9 == tenant.caller.get(path).json()["gpus_max"]
    assert 304 == tenant.caller.get(path, if_none_match=first.headers["etag"]).status_code


def test_deleted_quota_is_not_found(tenant: Tenant) -> None:
    """And its id is not used again."""
    made = tenant.caller.made("/quotas", {"account_id": tenant.account, "gpus_max": 8})

    assert 200 == tenant.caller.delete(f"/quotas/{made['id']}").status_code

    refused(tenant.caller.get(f"/quotas/{made['id']}"), 404, "not_found")
    again = {"account_id": tenant.account, "gpus_max": 8, "id": made["id"]}
    refused(tenant.caller.post("/quotas", again), 409, "already_exists")


def test_quota_needs_a_known_subject_and_a_limit(tenant: Tenant) -> None:
    """Of one's own org."""
    refused(tenant.caller.post("/quotas", {"gpus_max": 8}), 422, "invalid_request")
    nothing = {"account_id": tenant.account}
    refused(tenant.caller.post("/quotas", nothing), 422, "invalid_request")
    nobody = {"account_id": RANDOM_ID, "gpus_max": 8}
    refused(tenant.caller.post("/quotas", nobody), 404, "account_unknown")
    stranger = {"user_id": RANDOM_ID, "gpus_max": 8}
    refused(tenant.caller.post("/quotas", stranger), 404, "user_unknown")


def test_retry_gets_the_same_response_after_the_quota_moved_to_another_account(
    tenant: Tenant,
) -> None:
    """A retry is replayed, even if the key cannot reach the quota any more (L7)."""
    mine, theirs = tenant.account_below(name="mine"), tenant.account_below(name="theirs")
    path = f"/quotas/{tenant.caller.made('/quotas', {'account_id': mine, 'gpus_max': 8})['id']}"
    key = tenant.with_key(["manage"], account=mine)
    ask = {"account_id": mine, "gpus_max": 4}
    first = key.ask("PUT", path, ask, "change")
    other = tenant.caller.ask("PUT", path, {"account_id": theirs, "gpus_max": 9})

    again = key.ask("PUT", path, ask, "change")

    assert [200, 200] == [one.status_code for one in (first, other)]
    assert (first.content, first.headers["etag"]) == (again.content, again.headers["etag"])
    assert "true" == again.headers["idempotent-replayed"]
    refused(key.ask("PUT", path, {**ask, "gpus_max": 5}, "change"), 422, "key_reused")
    refused(key.ask("PUT", path, ask), 404, "not_found")


def test_quota_of_another_account_cannot_be_replaced(tenant: Tenant) -> None:
    """A key for one team cannot change a quota of another team by naming its own account."""
    mine, theirs = tenant.account_below(name="mine"), tenant.account_below(name="theirs")
    quota = tenant.caller.made("/quotas", {"account_id": theirs, "gpus_max": 8})
    key = tenant.with_key(["manage"], account=mine)

    taken = key.ask("PUT", f"/quotas/{quota['id']}", {"account_id": mine, "gpus_max": 0})

    refused(taken, 404, "not_found")
    assert 8 == tenant.caller.get(f"/quotas/{quota['id']}").json()["gpus_max"]
