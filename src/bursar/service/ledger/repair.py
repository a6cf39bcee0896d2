"""Writing anew what does not follow from the events: the rows that differ, and no others (L1).

For one org in one transaction, under its lock, with the rights of the tables' owner: the service
itself may delete nothing. Events and requests are never touched. An org whose events cannot be
followed is left as it is.

What the sweeper keeps of an org (standings, how far it has come, snapshots) is not written here: if
any of it is wrong all of it is thrown away, and the next sweep makes it anew.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import psycopg

from bursar.core.ids import OrgId
from bursar.core.refusal import InvariantBroken, fail_invariant
from bursar.service.gc_pause import gc_paused
from bursar.service.ledger.rebuild import Difference, Rebuilt, Replay, in_snapshot, spread
from bursar.store.database import connect
from bursar.store.ledger.loader import LOCK_ORGS
from bursar.store.ledger.mappings import TABLE_MAPPINGS
from bursar.store.ledger.mappings.holds import DRAWS
from bursar.store.ledger.writer import FORFEITS, INSERTS, POSTINGS, UPDATES, create_org
from bursar.store.sql.arrays import column_arrays
from bursar.store.sql.connection import Connection
from bursar.store.sql.fragments import array_parameters
from bursar.store.verify.ledger import Problem, problems
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
class Repaired:
    """What was found of one org, and what was done about it."""

    org: OrgId
    events: int
    mended: tuple[Difference, ...] = ()
    left: tuple[Difference, ...] = ()  # what was found and could not be mended
    forgotten: tuple[Problem, ...] = ()  # why all that sweeps have kept was thrown away, if it was
    frozen: str | None = None  # why the org took no commands when it was looked at
    thawed: bool = False  # whether it takes commands again


def repair(url: str, orgs: Mapping[OrgId, int], workers: int = 2) -> Iterator[Repaired]:
    """Each org's books from its events; what differs from them is written anew."""
    yield from spread(repair_some, url, orgs, workers)


def repair_some(url: str, orgs: Iterable[OrgId]) -> list[Repaired]:
    """Look at some orgs, and repair those that need it."""
    with connect(url, timeouts=None) as connection:
        return [_looked_at(connection, org) for org in orgs]


def _looked_at(connection: Connection, org: OrgId) -> Repaired:
    """Look at an org without being in anybody's way, as most need nothing; then repair it."""
    found = in_snapshot(connection, org)
    if found.frozen is None and not found.differences and not _wrong_summaries(connection, org):
        return _untouched(found)
    try:
        with connection.transaction(), gc_paused():
            return repair_one(connection, org)
    except (psycopg.IntegrityError, InvariantBroken) as error:
        return _untouched(found, f"it cannot be repaired: {error}")


def _untouched(found: Rebuilt, why: str | None = None) -> Repaired:
    """An org as it was found, with what kept it from being repaired."""
    left = found.differences
    if why is not None:
        left += (Difference(org=found.org, table="events", key=(), wrong=why),)
    return Repaired(org=found.org, events=found.events, left=left, frozen=found.frozen)


def repair_one(connection: Connection, org: OrgId) -> Repaired:
    """Write anew what differs in one org, and let it take commands again; in a transaction.

    Books that contradict themselves are not written: then it is the events that are wrong.
    """
    is_there = bool(connection.execute(LOCK_ORGS, [[org]]).fetchall())
    replay = Replay(connection, org)
    found = replay.rebuilt()
    left = tuple(one for one in found.differences if not one.can_be_mended)
    if any(one.table != "requests" for one in left):
        return _untouched(found)
    mended = tuple(one for one in found.differences if one.can_be_mended)
    if mended:
        _mend(replay, mended, is_there=is_there)
    if found.frozen is not None:
        connection.execute(THAW, [org])
    return Repaired(
        org=org,
        events=found.events,
        mended=mended,
        left=left,
        forgotten=_forget_wrong(connection, org),
        frozen=found.frozen,
        thawed=found.frozen is not None,
    )


def _forget_wrong(connection: Connection, org: OrgId) -> tuple[Problem, ...]:
    """Throw away what sweeps have kept of an org if any of it is wrong; what that was.

    To be asked once the rows it is made of are sound.
    """
    wrong = _wrong_summaries(connection, org)
    if wrong:
        for sql in FORGET.values():
            connection.execute(sql.encode(), [org])
    return wrong


def _wrong_summaries(connection: Connection, org: OrgId) -> tuple[Problem, ...]:
    return tuple(one for check in CHECKS_OF_ONE for one in problems(connection, check, [org]))


def _mend(replay: Replay, found: Iterable[Difference], *, is_there: bool) -> None:
    """Write what differs, and look again."""
    connection, org = replay.connection, replay.org
    if replay.exists:
        if not is_there:
            create_org(connection, org)
        replay.move_clock()
    rows = [one for one in found if one.table == "postings"]
    rows += replay.differing()  # the clock has moved since they were found
    _write(connection, org, rows)
    for one in replay.differing():
        fail_invariant("what was written is not what was meant", row=str(one))


def _write(connection: Connection, org: OrgId, rows: Iterable[Difference]) -> None:
    by_table: dict[str, list[Difference]] = defaultdict(list)
    for one in rows:
        by_table[one.table].append(one)
    for table, found in by_table.items():
        new = [(org, *one.rebuilt) for one in found if one.rebuilt is not None]
        if table == "orgs":
            connection.execute(UPDATES[table], column_arrays(new, 0))
            continue
        # An empty lane that is stored is no difference, but it is in the way of a full one.
        keys = [(org, *one.key) for one in found]
        connection.execute(DELETES[table].encode(), column_arrays(keys, 0))
        if new:
            connection.execute(INSERTS[table], column_arrays(new, 0))
