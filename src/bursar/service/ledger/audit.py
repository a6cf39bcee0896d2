"""Checks whole ledgers: whether stored rows agree, and whether they follow from the events.

`verify` runs the checks of `bursar.store.verify` and replays each pool's latest decisions
(`bursar.service.pools.replay`). `rebuild` derives each org's books from its events and compares
them row by row; `repair` rewrites the rows that differ.
"""

from collections.abc import Callable, Iterator
from typing import Final

from bursar.core.ids import OrgId
from bursar.core.instant import Instant
from bursar.service.ledger.rebuild import Difference, RebuiltOrg, rebuild, rebuild_org
from bursar.service.ledger.repair import RepairedOrg, repair
from bursar.service.pools.replay import replay
from bursar.store.pools.loader import pools_now
from bursar.store.sql.connection import SNAPSHOT, Connection, money_time
from bursar.store.verify.ledger import CHECKS as LEDGER_CHECKS
from bursar.store.verify.ledger import PLANNER_SETTINGS, STRAY_ORGS, Check, Contradiction, problems
from bursar.store.verify.org_pool_agreement import SEAM_CHECKS
from bursar.store.verify.pools import POOL_CHECKS
from bursar.store.verify.summaries import STRAY_SUMMARIES, SUMMARY_CHECKS

CHECKS: Final = (*LEDGER_CHECKS, *SEAM_CHECKS, *SUMMARY_CHECKS, *POOL_CHECKS)
DECIDED_AGAIN: Final = "scheduling decisions follow from their recorded inputs"
ORG_IDS: Final = "select org_id, number from orgs order by org_id"

__all__ = [
    "CHECKS",
    "Contradiction",
    "Difference",
    "RebuiltOrg",
    "RepairedOrg",
    "orgs_of",
    "rebuild",
    "rebuild_org",
    "repair",
    "verify",
]

OnCheck = Callable[[Check, int], None]  # a check, and how many problems it found


def verify(
    connection: Connection,
    on_check: OnCheck | None = None,
    clock: Callable[[Connection], Instant] = money_time,
) -> tuple[Contradiction, ...]:
    """Every contradiction in the tables, in one snapshot; on a connection without limits."""
    contradictions: list[Contradiction] = []
    with connection.transaction():
        connection.execute(SNAPSHOT)
        connection.execute(PLANNER_SETTINGS)
        now = clock(connection)
        for check in CHECKS:
            here = list(problems(connection, check, [now] if check.timed else ()))
            contradictions += here
            if on_check is not None:
                on_check(check, len(here))
        contradictions += _replay_decisions(connection)
    return tuple(contradictions)


def _replay_decisions(connection: Connection) -> Iterator[Contradiction]:
    """Replay the last window of each pool's audit stream."""
    for pool in pools_now(connection):
        difference = replay(connection, pool.id, last_only=True).difference
        if difference is not None:
            what = f"{pool.id}: {difference}"
            yield Contradiction(check=DECIDED_AGAIN, org="", what=what, stored=None, expected=None)


def orgs_of(connection: Connection) -> dict[OrgId, int]:
    """All orgs and their numbers of events, including orgs of which only other rows exist."""
    strays = {org: 0 for sql in (STRAY_ORGS, STRAY_SUMMARIES) for (org,) in connection.execute(sql)}
    return {**strays, **dict(connection.execute(ORG_IDS).fetchall())}
