"""Reads the rows of a pool for a transaction: its own row, changed rows, or all live ones.

A query is sent by `ask_…` and its answer read by another function, so that a pipeline can send many
queries together.

Other threads may read the memory meanwhile. So loaders get its lock (`door`), and change the memory
under it, all at once: readers do not wait for the database.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import chain
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from psycopg import errors

from bursar.core.dispatch.state import JobKey, Lease, Pool, PoolJob, PoolNode
from bursar.core.ids import NodeId, PoolId
from bursar.core.instant import Instant
from bursar.core.quota_slices import QuotaKey
from bursar.core.scheduling.model.jobs import Path
from bursar.store.pools import policy_and_quotas
from bursar.store.pools.rows import (
    BY_KEY,
    LEASES,
    NODES,
    PARTS,
    QUEUE,
    PoolRow,
    Row,
    job_of,
    lease_of,
    machine_of,
    selected,
)
from bursar.store.sql.arrays import array_literal, column_arrays
from bursar.store.sql.codec import value_of
from bursar.store.sql.connection import Connection, SentStatement
from bursar.store.sql.fragments import lookup

ENTER_POOL: Final = """
    -- For this transaction only: the service's rights, and the pool it works for (D9).
    select set_config('role', 'bursar_service', true), set_config('bursar.pools', %s, true)
"""
LOCK_POOL: Final = """
    -- Always before any other table of the pool; nothing is joined to it.
    select now, fence, version, epoch, leader, leads_until, audit_events, digest, leader_due_at
      from pools
     where pool_id = %s
       for update
"""
ADD_POOL: Final = """
    insert into pools (pool_id, now, fence, version, epoch, leader, leads_until)
    values (%s, 0, 0, 0, 0, '', 0)
"""
POOLS: Final = "select pool_id, version, leader_due_at from pools order by pool_id"
# Nothing is in memory yet: all nodes, the jobs that are not over, the leases that live.
EVERYTHING: Final = MappingProxyType(
    {
        "nodes": f"""
            select {selected(NODES)} from nodes t where t.pool_id = %s order by t.node_id
        """,
        "queue": f"""
            select {selected(QUEUE)}
              from queue t
             where t.pool_id = %s
               and t.state in ('queued', 'starting', 'running', 'stopping', 'out_of_credits')
             order by t.org_id, t.job_id
        """,
        "leases": f"""
            select {selected(LEASES)}
              from leases t
             where t.pool_id = %s and t.ended_at is null
             order by t.fence
        """,
        "lease_parts": f"""
            select {selected(PARTS)}
              from leases l
             cross join lateral (
                   select * from lease_parts t
                    where t.pool_id = l.pool_id and t.fence = l.fence offset 0) as t
             where l.pool_id = %s and l.ended_at is null
        """,
        "lease_slots": """
            select t.fence, t.node_id, t.gpu, t.slot
              from leases l
             cross join lateral (
                   select * from lease_slots t
                    where t.pool_id = l.pool_id and t.fence = l.fence offset 0) as t
             where l.pool_id = %s and l.ended_at is null
        """,
    }
)
SLOTS_OF: Final = f"""
    select t.fence, t.node_id, t.gpu, t.slot
      from {lookup({"pool_id": "text", "fence": "bigint"}, "lease_slots")}
"""
OF_ATTEMPTS: Final = """
    select t.fence
      from unnest(%s::text[], %s::text[], %s::text[], %s::bigint[])
           as u(pool_id, org_id, job_id, attempt)
     cross join lateral (
           select l.fence from leases l
            where l.pool_id = u.pool_id and l.org_id = u.org_id and l.job_id = u.job_id
              and l.attempt = u.attempt and l.attempt >= 1 offset 0) as t
"""
TAKE_TIME: Final = """
    -- Who reads all of a large pool says nothing for longer than a transaction of a pool may.
    select set_config('idle_in_transaction_session_timeout', '60000', true)
"""
CHANGES: Final = """
    select version, body::text
      from pool_changes
     where pool_id = %s and version > %s
     order by version
"""


class PoolUnknown(KeyError):
    """The pool does not exist."""


SlotName: TypeAlias = tuple[NodeId, int, int]  # node, GPU, slot
Attempt: TypeAlias = tuple[JobKey, int]  # whose, the how-manyth


@dataclass(slots=True)
class Memory:
    """A pool in the memory of a process: its live rows as of a version, and the slots of leases."""

    pool: Pool = field(default_factory=Pool)
    version: int = -1
    slots: dict[int, tuple[SlotName, ...]] = field(default_factory=dict)  # of live leases
    digest: str = ""  # of the last event of its stream


Door: TypeAlias = AbstractContextManager[object]
OPEN: Final[Door] = nullcontext()  # no other thread reads


class Changed(NamedTuple):
    """The rows that transactions have written."""

    jobs: tuple[JobKey, ...] = ()
    leases: tuple[int, ...] = ()
    nodes: tuple[NodeId, ...] = ()
    slices: tuple[QuotaKey, ...] = ()
    policy: bool = False
    usage: tuple[Path, ...] = ()


class _Read(NamedTuple):
    """Rows that have been read."""

    wanted: Changed
    terms: policy_and_quotas.Terms
    sent: Mapping[str, SentStatement]


def create_pool(connection: Connection, pool: PoolId) -> None:
    """Create an empty pool."""
    connection.execute(ADD_POOL, [pool])


def add_pool(connection: Connection, pool: PoolId) -> bool:
    """Create a pool; False if one with that name exists."""
    try:
        create_pool(connection, pool)
    except errors.UniqueViolation:
        return False
    return True


class PoolStatus(NamedTuple):
    """A pool's version, and from when on it needs a leader."""

    id: PoolId
    version: int
    leader_due_at: Instant


def pools_now(connection: Connection) -> list[PoolStatus]:
    """The status of all pools."""
    return [PoolStatus(*row) for row in connection.execute(POOLS).fetchall()]


def enter_pool(connection: Connection, pool: PoolId) -> None:
    """Restrict the transaction to a pool, without a lock, for reading."""
    connection.execute(ENTER_POOL, [array_literal([pool])])


def lock_pool(connection: Connection, pool: PoolId) -> SentStatement:
    """Restrict the transaction to a pool, and lock it; `locked` reads the answer."""
    enter_pool(connection, pool)
    return connection.execute(LOCK_POOL, [pool])


def locked(sent: SentStatement, pool: PoolId) -> PoolRow:
    """The row of the pool that is now locked."""
    row = sent.fetchone()
    if row is None:
        raise PoolUnknown(pool)
    return PoolRow(*row)


def load_all(connection: Connection, pool: PoolId, version: int) -> Memory:
    """All live rows of a pool."""
    with connection.pipeline():
        connection.execute(TAKE_TIME)
        terms = policy_and_quotas.ask_all(connection, pool)
        sent = {name: connection.execute(sql, [pool]) for name, sql in EVERYTHING.items()}
    memory = Memory(version=version)
    policy_and_quotas.take(memory.pool, terms)
    _take(memory, sent)
    memory.pool.changed_jobs.extend(memory.pool.jobs)
    return memory


def catch_up(
    connection: Connection, pool: PoolId, memory: Memory, version: int, door: Door = OPEN
) -> frozenset[NodeId] | None:
    """Read what other processes have written since; None if that is not recorded any more.

    Returns the nodes that have new leases from others, or leases that are to end.
    """
    rows = connection.execute(CHANGES, [pool, memory.version]).fetchall()
    if [number for number, _ in rows] != list(range(memory.version + 1, version + 1)):
        return None
    changed = [value_of(Changed, body) for _, body in rows]
    jobs = dict.fromkeys(key for change in changed for key in change.jobs)
    known = {fence: memory.pool.leases.get(fence) for change in changed for fence in change.leases}
    changed_rows = _read(
        connection,
        pool,
        Changed(
            tuple(jobs),
            tuple(known),
            tuple(dict.fromkeys(node for change in changed for node in change.nodes)),
            tuple(dict.fromkeys(key for change in changed for key in change.slices)),
            any(change.policy for change in changed),
            tuple(dict.fromkeys(path for change in changed for path in change.usage)),
        ),
    )
    with door:
        _bring_in(memory, changed_rows)
        memory.pool.changed_jobs.extend(jobs)
        memory.version = version
    return _with_news(memory.pool, known)


def _with_news(pool: Pool, known: Mapping[int, Lease | None]) -> frozenset[NodeId]:
    """The nodes of leases that are new, or are to end, compared with what was known."""
    leases = [(was, pool.leases[fence]) for fence, was in known.items() if fence in pool.leases]
    return frozenset(
        part.piece.node
        for was, lease in leases
        if lease.is_live and (was is None or was.stop_reason != lease.stop_reason)
        for part in lease.parts
    )


def load(
    connection: Connection, pool: PoolId, memory: Memory, wanted: Changed, door: Door = OPEN
) -> None:
    """Read rows by key, live or not."""
    rows = _read(connection, pool, wanted)
    with door:
        _bring_in(memory, rows)


def _read(connection: Connection, pool: PoolId, wanted: Changed) -> _Read:
    fences = [array_literal([pool] * len(wanted.leases)), array_literal(wanted.leases)]
    with connection.pipeline():
        terms = policy_and_quotas.ask_some(
            connection, pool, wanted.slices, wanted.usage, policy=wanted.policy
        )
        sent = {
            "nodes": connection.execute(
                BY_KEY["nodes"], column_arrays([(pool, node) for node in wanted.nodes], 2)
            ),
            "queue": connection.execute(
                BY_KEY["queue"], column_arrays([(pool, *key) for key in wanted.jobs], 3)
            ),
            "leases": connection.execute(BY_KEY["leases"], fences),
            "lease_parts": connection.execute(BY_KEY["lease_parts"], fences),
            "lease_slots": connection.execute(SLOTS_OF, fences),
        }
    return _Read(wanted, terms, sent)


def _bring_in(memory: Memory, rows: _Read) -> None:
    policy_and_quotas.take(memory.pool, rows.terms)
    gone = memory.pool.machines.keys() & set(rows.wanted.nodes) - _take(memory, rows.sent)
    for node in sorted(gone):
        memory.pool.remove_node(node)


def fences_of(connection: Connection, pool: PoolId, attempts: Iterable[Attempt]) -> list[int]:
    """The leases of attempts, live or not."""
    rows = [(pool, *key, attempt) for key, attempt in attempts]
    sent = connection.execute(OF_ATTEMPTS, column_arrays(rows, 4))
    return [fence for (fence,) in sent.fetchall()]


def load_leases(
    connection: Connection,
    pool: PoolId,
    memory: Memory,
    fences: Iterable[int],
    door: Door = OPEN,
) -> None:
    """Read ended leases and their jobs."""
    load(connection, pool, memory, Changed(leases=tuple(fences)), door)
    known = memory.pool.leases
    jobs = [known[fence].key for fence in fences if fence in known]
    missing = dict.fromkeys(key for key in jobs if key not in memory.pool.jobs)
    if missing:
        load(connection, pool, memory, Changed(jobs=tuple(missing)), door)


def _take(memory: Memory, sent: Mapping[str, SentStatement]) -> set[NodeId]:
    """Put rows into memory; return the nodes among them."""
    pool = memory.pool
    machines = list(_machines(sent["nodes"]))
    for row in chain[PoolNode | PoolJob](machines, _jobs(sent["queue"])):
        pool.put(row)
    slots: dict[int, list[SlotName]] = defaultdict(list)
    for fence, *slot in sent["lease_slots"].fetchall():
        slots[fence].append((slot[0], slot[1], slot[2]))
    for lease in _leases(sent["leases"], sent["lease_parts"]):
        pool.put(lease)
        if lease.is_live:
            memory.slots[lease.fence] = tuple(slots[lease.fence])
        else:
            memory.slots.pop(lease.fence, None)
    return {machine.id for machine in machines}


def _machines(sent: SentStatement) -> Iterator[PoolNode]:
    return map(machine_of, sent.fetchall())


def _jobs(sent: SentStatement) -> Iterator[PoolJob]:
    return map(job_of, sent.fetchall())


def _leases(sent: SentStatement, sent_parts: SentStatement) -> Iterator[Lease]:
    parts: dict[int, list[Row]] = defaultdict(list)
    by_place = sorted(sent_parts.fetchall(), key=lambda part_row: (part_row[0], part_row[2]))
    for row in by_place:
        parts[row[0]].append(row)
    for row in sorted(sent.fetchall()):
        yield lease_of(row, parts[row[0]])
