"""Rewrites the rows that differ from the rebuilt books, and no others (L1).

For one org in one transaction, under its lock, with the rights of the tables' owner: the service
cannot delete rows. Events and requests are never changed. An org whose events cannot be applied is
left as it is.

Summaries of the sweeper (top lists, progress, snapshots) are not rewritten: if any of them is
wrong, all of the org's are deleted, and the next sweep makes them again.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import psycopg

from bursar.core.ids import OrgId
from bursar.core.refusal import InvariantBroken, fail_invariant
from bursar.service.gc_pause import gc_paused
from bursar.service.ledger.rebuild import Difference, OrgReplay, RebuiltOrg, in_snapshot, spread
from bursar.store.database import connect
from bursar.store.ledger.loader import LOCK_ORGS
from bursar.store.ledger.mappings import TABLE_MAPPINGS
from bursar.store.ledger.mappings.holds import DRAWS
from bursar.store.ledger.writer import FORFEITS, INSERTS, POSTINGS, UPDATES, create_org
from bursar.store.sql.arrays import column_arrays
from bursar.store.sql.connection import Connection
from bursar.store.sql.fragments import array_parameters
from bursar.store.verify.ledger import Contradiction, problems
from bursar.store.verify.summaries import CHECKS_OF_ONE, SUMMARIES

THAW: Final = "update orgs set frozen = null where org_id = %s"


def delete_sql(table: str, key: Mapping[str, str]) -> str:
    """A statement that deletes rows whose keys are given as one array for each column."""
    with_org = {"org_id": "text", **key}
    matches = " and ".join(f"t.{name} = k.{name}" for name in with_org)
    return f"""
        delete from {table} t
         using unnest({array_parameters(with_org)}) as k({", ".join(with_org)})
         where {matches}
    """


_KEYS: Final[Mapping[str, Mapping[str, str]]] = {
    **{
        mapping.table: {name: mapping.columns[name] for name in mapping.key}
        for mapping in TABLE_MAPPINGS
    },
    "draws": {name: DRAWS[name] for name in ("hold_id", "grant_id")},
    "postings": {name: POSTINGS[name] for name in ("number", "place")},
    "forfeits": {name: FORFEITS[name] for name in ("grant_id", "at", "number")},
}
DELETES: Final[Mapping[str, str]] = {table: delete_sql(table, key) for table, key in _KEYS.items()}

# In this order: `sweeps` first, as a sweep does, so that one that is under way is waited for, and
# one that comes later fails. A sweep that found only a part gone would add to what is left.
FORGET: Final[Mapping[str, str]] = {
    table: f"delete from {table} where org_id = %s" for table in SUMMARIES
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairedOrg:
    """The differences of one org, and what was repaired."""

    org: OrgId
    events: int
    repaired: tuple[Difference, ...] = ()
    remaining: tuple[Difference, ...] = ()  # differences that could not be repaired
    dropped_summaries: tuple[
        Contradiction, ...
    ] = ()  # why all that sweeps have kept was thrown away, if it was
    frozen: str | None = None  # why the org took no commands when it was looked at
    thawed: bool = False  # whether it takes commands again


def repair(url: str, orgs: Mapping[OrgId, int], workers: int = 2) -> Iterator[RepairedOrg]:
    """Rebuild each org's books from its events and rewrite the rows that differ."""
    yield from spread(repair_some, url, orgs, workers)


def repair_some(url: str, orgs: Iterable[OrgId]) -> list[RepairedOrg]:
    """Check some orgs, and repair those that need it."""
    with connect(url, timeouts=None) as connection:
        return [_check_and_repair(connection, org) for org in orgs]


def _check_and_repair(connection: Connection, org: OrgId) -> RepairedOrg:
    """Check an org without a lock, since most need no repair; repair it if necessary."""
    result = in_snapshot(connection, org)
    if result.frozen is None and not result.differences and not _wrong_summaries(connection, org):
        return _untouched(result)
    try:
        with connection.transaction(), gc_paused():
            return repair_org(connection, org)
    except (psycopg.IntegrityError, InvariantBroken) as error:
        return _untouched(result, f"the org cannot be repaired: {error}")


def _untouched(result: RebuiltOrg, why: str | None = None) -> RepairedOrg:
    """The result for an org that was not changed, with the reason if there is one."""
    left = result.differences
    if why is not None:
        left += (Difference(org=result.org, table="events", key=(), wrong=why),)
    return RepairedOrg(org=result.org, events=result.events, remaining=left, frozen=result.frozen)


def repair_org(connection: Connection, org: OrgId) -> RepairedOrg:
    """Rewrite the rows of an org that differ, and unfreeze it; in a transaction.

    Books that contradict themselves are not written: then the events are wrong.
    """
    is_there = bool(connection.execute(LOCK_ORGS, [[org]]).fetchall())
    replay = OrgReplay(connection, org)
    result = replay.run()
    remaining = tuple(
        difference for difference in result.differences if not difference.is_repairable
    )
    if any(difference.table != "requests" for difference in remaining):
        return _untouched(result)
    repairable = tuple(difference for difference in result.differences if difference.is_repairable)
    if repairable:
        _repair_rows(replay, repairable, is_there=is_there)
    if result.frozen is not None:
        connection.execute(THAW, [org])
    return RepairedOrg(
        org=org,
        events=result.events,
        repaired=repairable,
        remaining=remaining,
        dropped_summaries=_drop_wrong_summaries(connection, org),
        frozen=result.frozen,
        thawed=result.frozen is not None,
    )


def _drop_wrong_summaries(connection: Connection, org: OrgId) -> tuple[Contradiction, ...]:
    """Delete all summaries of an org if any is wrong; return the contradictions.

    Call this after the rows that they are made from were repaired.
    """
    wrong = _wrong_summaries(connection, org)
    if wrong:
        for sql in FORGET.values():
            connection.execute(sql.encode(), [org])
    return wrong


def _wrong_summaries(connection: Connection, org: OrgId) -> tuple[Contradiction, ...]:
    return tuple(
        problem for check in CHECKS_OF_ONE for problem in problems(connection, check, [org])
    )


def _repair_rows(replay: OrgReplay, differences: Iterable[Difference], *, is_there: bool) -> None:
    """Write the rows that differ, and compare again."""
    connection, org = replay.connection, replay.org
    if replay.exists:
        if not is_there:
            create_org(connection, org)
        replay.move_clock()
    rows = [difference for difference in differences if difference.table == "postings"]
    rows += replay.differing()  # the clock has moved since they were found
    _write(connection, org, rows)
    for difference in replay.differing():
        fail_invariant("a repaired row still differs", row=str(difference))


def _write(connection: Connection, org: OrgId, rows: Iterable[Difference]) -> None:
    by_table: dict[str, list[Difference]] = defaultdict(list)
    for difference in rows:
        by_table[difference.table].append(difference)
    for table, differences in by_table.items():
        new = [
            (org, *difference.rebuilt)
            for difference in differences
            if difference.rebuilt is not None
        ]
        if table == "orgs":
            connection.execute(UPDATES[table], column_arrays(new, 0))
            continue
        # An empty lane that is stored is no difference, but it is in the way of a full one.
        keys = [(org, *difference.key) for difference in differences]
        connection.execute(DELETES[table].encode(), column_arrays(keys, 0))
        if new:
            connection.execute(INSERTS[table], column_arrays(new, 0))
