"""Requests a job back from its pool, so that it can wait in another pool.

The rules are in `core.jobs.relocation`. The pool answers with a message (`pool_messages`).
"""

from collections.abc import Callable
from typing import TypeAlias

from bursar.core.ids import JobId, OrgId, PoolId
from bursar.core.instant import Instant
from bursar.core.jobs.relocation import request_move
from bursar.core.jobs.transaction import JobTransaction
from bursar.store.jobs.transaction import StoredJobs, save_jobs
from bursar.store.ledger.loader import lock_orgs, locked
from bursar.store.sql.connection import Connection

Clock: TypeAlias = Callable[[Connection], Instant]


def ask_to_leave(
    connection: Connection, clock: Clock, org: OrgId, job: JobId, move: tuple[PoolId, PoolId, str]
) -> bool:
    """Request a job back from its pool; False if it cannot be moved (any more).

    `move` is the pool where the job waits, the pool it is to go to, and the reason.
    """
    source, target, why = move
    with connection.transaction(), connection.pipeline():
        row = locked(lock_orgs(connection, [org])).get(org)
        if row is None or row.frozen is not None:
            return False
        jobs = JobTransaction(StoredJobs(connection, org))
        if not request_move(jobs, job, source, target, why, clock(connection)):
            return False
        save_jobs(connection, {org: jobs})
        return True
