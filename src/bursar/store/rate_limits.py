"""How much of their rate limits callers have used, shared by all processes."""

from typing import Final

from bursar.core.ids import OrgId
from bursar.core.instant import SECOND
from bursar.store.sql.connection import Connection, restrict_to_orgs

SLACK: Final = 5 * SECOND  # that the clocks of two processes may differ

TAKE: Final = """
    -- An instant that no sound clock could have written counts as an allowance for this call alone.
    insert into rates as t (org_id, subject, full_at)
    values (%(org)s, %(subject)s, %(now)s::bigint + %(cost)s::bigint)
    on conflict (org_id, subject) do update
       set full_at = case when t.full_at > %(now)s + %(most)s + %(slack)s then %(now)s + %(most)s
                          else greatest(t.full_at, %(now)s) + %(cost)s end
     where t.full_at > %(now)s + %(most)s + %(slack)s
        or greatest(t.full_at, %(now)s) + %(cost)s <= %(now)s + %(most)s
    returning full_at
"""
FULL_AT: Final = "select full_at from rates where org_id = %s and subject = %s"


def take(
    connection: Connection, org: OrgId, subject: str, now: int, cost: int, most: int
) -> tuple[bool, int]:
    """Take from an allowance if enough is left: whether, and when the allowance is full again.

    Times in microseconds: `cost` is how long the taken part needs to refill, `most` how long the
    whole allowance needs. A row that was written while a clock was ahead is replaced.
    """
    with connection.transaction():
        restrict_to_orgs(connection, [org])
        parameters = {
            "org": org,
            "subject": subject,
            "now": now,
            "cost": cost,
            "most": most,
            "slack": SLACK,
        }
        taken = connection.execute(TAKE, parameters).fetchone()
        if taken is not None:
            return True, taken[0]
        [(full_at,)] = connection.execute(FULL_AT, [org, subject]).fetchall()
        return False, full_at
