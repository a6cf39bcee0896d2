"""The quotas of an org that apply to a user in an account (`core.jobs.quotas`)."""

from bursar.core.ids import OrgId
from bursar.core.jobs.quotas import Quota
from bursar.store.jobs.quota_slices import quotas_for
from bursar.store.sql.connection import Connection

__all__ = ["Quota", "quotas_of"]


def quotas_of(connection: Connection, org: OrgId, account: str, user: str) -> tuple[Quota, ...]:
    """The quotas that apply to a user in an account, as stored now."""
    return tuple(
        Quota(id, body.get("account_id"), body.get("user_id"), body)
        for id, body in quotas_for(connection, org, account, user)
    )
