"""What a pool knows of one attempt of a job."""

from typing import Final, NamedTuple

from bursar.store.outbox import PoolId
from bursar.store.pools.loading import enter_pool
from bursar.store.reading import Connection

ATTEMPT: Final = """
    select max(p.run_ms), min(p.saved_ms)
      from leases l
      join lease_parts p on p.pool_id = l.pool_id and p.fence = l.fence
     where l.pool_id = %s and l.org_id = %s and l.job_id = %s and l.attempt = %s and l.attempt >= 1
     group by l.pool_id, l.fence
"""


class Ran(NamedTuple):
    """How far an attempt has got."""

    run_ms: int  # in all
    saved_ms: int  # of it, up to its last checkpoint


def attempt_of(
    connection: Connection, pool: PoolId, org: str, job: str, attempt: int
) -> Ran | None:
    """An attempt as its pool knows it; None if there was none of that number."""
    with connection.transaction():
        enter_pool(connection, pool)
        row = connection.execute(ATTEMPT, [pool, org, job, attempt]).fetchone()
    return None if row is None else Ran(*row)
