"""Writes the changes of a pool's transaction, with one statement for each table."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, NamedTuple

from bursar.core.dispatch.state import Lease, PoolTransaction
from bursar.core.ids import NodeId, PoolId
from bursar.store.jobs.outbox import message_text
from bursar.store.pools.events import ADD, End, rows_of
from bursar.store.pools.loader import Changed, Memory, SlotName
from bursar.store.pools.policy_and_quotas import save_terms
from bursar.store.pools.rows import (
    INSERTS,
    UPDATE_HEARD,
    UPDATES,
    heard_values,
    job_values,
    lease_differs,
    lease_values,
    new_job_values,
    new_lease_values,
    new_part_values,
    node_values,
    part_values,
)
from bursar.store.sql.arrays import Values
from bursar.store.sql.bulk_write import BulkWriter
from bursar.store.sql.codec import text_of
from bursar.store.sql.connection import Connection
from bursar.store.sql.fragments import match_keys

VERSIONS_KEPT: Final = 1_000  # versions whose changes can be caught up with
TIDY: Final = 100  # versions between two looks for older ones

MOVE_ON: Final = """
    update pools
       set now = %s, fence = %s, version = %s, epoch = %s, leader = %s, leads_until = %s,
           audit_events = %s, digest = %s, leader_due_at = %s
     where pool_id = %s
"""
NOTE: Final = "insert into pool_changes (pool_id, version, body) values (%s, %s, %s::json)"
TIDY_UP: Final = "delete from pool_changes where pool_id = %s and version <= %s"
DROP_NODES: Final = f"""
    delete from nodes t
     using unnest(%s::text[], %s::text[]) as u(pool_id, node_id)
     where {match_keys("pool_id", "node_id")}
"""
TELL: Final = """
    insert into pool_outbox (pool_id, org_id, job_id, n, body, written_at)
    select u.pool_id, u.org_id, u.job_id, u.n, u.body::json, u.at
      from unnest(%s::text[], %s::text[], %s::text[], %s::bigint[], %s::text[], %s::bigint[])
           as u(pool_id, org_id, job_id, n, body, at)
"""
ACKNOWLEDGE: Final = f"""
    update pool_outbox t set acked_at = coalesce(t.acked_at, greatest(t.written_at, u.at))
      from unnest(%s::text[], %s::text[], %s::text[], %s::bigint[], %s::bigint[])
           as u(pool_id, org_id, job_id, n, at)
     where {match_keys("pool_id", "org_id", "job_id", "n")}
"""
TAKE_SLOTS: Final = """
    insert into lease_slots (pool_id, fence, node_id, gpu, slot)
    select * from unnest(%s::text[], %s::bigint[], %s::text[], %s::int[], %s::int[])
               as u(pool_id, fence, node_id, gpu, slot)
"""
FREE_SLOTS: Final = f"""
    update lease_slots t set freed_at = u.at
      from unnest(%s::text[], %s::bigint[], %s::text[], %s::int[], %s::int[], %s::bigint[])
           as u(pool_id, fence, node_id, gpu, slot, at)
     where {match_keys("pool_id", "fence", "node_id", "gpu", "slot")}
"""


class Saved(NamedTuple):
    """The statements that were sent."""

    saving: BulkWriter
    version: int
    slots: dict[int, tuple[SlotName, ...]]  # of new leases
    digest: str


def save(connection: Connection, pool: PoolId, memory: Memory, work: PoolTransaction) -> Saved:
    """Send the changes of a transaction; the caller waits for the answers and checks them."""
    saving = BulkWriter(connection)
    nodes = (*work.machines_new, *work.machines_gone)
    terms = tuple(work.quotas.new), work.policy_new is not None, tuple(work.usage_new)
    changed = Changed(tuple(work.jobs_new), tuple(work.leases_new), nodes, *terms)
    version, slots = memory.version, {}
    if any(changed):
        version += 1
        save_terms(saving, pool, work)
        _save_nodes(saving, pool, work)
        _save_jobs(saving, pool, work)
        _save_leases(saving, pool, work)
        slots = _save_slots(saving, pool, memory, work)
        connection.execute(NOTE, [pool, version, text_of(changed)])
        if version % TIDY == 0:
            connection.execute(TIDY_UP, [pool, version - VERSIONS_KEPT])
    _save_envelopes(saving, pool, work)
    events, end = rows_of(
        pool, work.audit_new, End(work.pool.audit_events, memory.digest), work.now
    )
    saving.write_rows("events", ADD, events)
    if any(changed) or events or work.acknowledged or _leads_otherwise(work):
        leading = work.epoch, work.leader, work.leads_until
        values = work.now, work.fence, version, *leading, *end, work.leader_due_at
        connection.execute(MOVE_ON, [*values, pool])
    return Saved(saving, version, slots, end.digest)


def _leads_otherwise(work: PoolTransaction) -> bool:
    """Whether the leader's term, or the need for a leader, has changed."""
    return (work.leads_until, work.leader_due_at) != (
        work.pool.leads_until,
        work.pool.leader_due_at,
    )


def apply_saved(memory: Memory, work: PoolTransaction, saved: Saved) -> None:
    """Apply the written changes to memory."""
    work.commit()
    memory.version, memory.digest = saved.version, saved.digest
    memory.slots.update(saved.slots)
    for fence, lease in work.leases_new.items():
        if not lease.is_live:
            memory.slots.pop(fence, None)


def _of(pool: PoolId, rows: Iterable[Values]) -> list[Values]:
    return [(pool, *row) for row in rows]


def _save_nodes(saving: BulkWriter, pool: PoolId, work: PoolTransaction) -> None:
    known = work.pool.machines
    new, other, heard = [], [], []
    for name, machine in work.machines_new.items():
        if name not in known:
            new.append(node_values(machine))
        elif known[name].node is not machine.node or known[name].trouble is not machine.trouble:
            other.append(node_values(machine))
        else:
            heard.append(heard_values(machine))
    saving.write_rows("new nodes", INSERTS["nodes"], _of(pool, new))
    saving.write_rows("nodes", UPDATES["nodes"], _of(pool, other))
    saving.write_rows("nodes that were heard of", UPDATE_HEARD, _of(pool, heard))
    saving.write_rows(
        "nodes that are gone", DROP_NODES, _of(pool, ((n,) for n in work.machines_gone))
    )


def _save_jobs(saving: BulkWriter, pool: PoolId, work: PoolTransaction) -> None:
    known = work.pool.jobs
    new = [new_job_values(job) for key, job in work.jobs_new.items() if key not in known]
    old = [(*key, *job_values(job)) for key, job in work.jobs_new.items() if key in known]
    saving.write_rows("jobs that have come", INSERTS["queue"], _of(pool, new))
    saving.write_rows("jobs", UPDATES["queue"], _of(pool, old))


def _save_leases(saving: BulkWriter, pool: PoolId, work: PoolTransaction) -> None:
    known = work.pool.leases
    new_leases = [lease for fence, lease in work.leases_new.items() if fence not in known]
    changed = [(known[fence], new) for fence, new in work.leases_new.items() if fence in known]
    parts = (
        new_part_values(lease, place) for lease in new_leases for place in range(len(lease.parts))
    )
    differ = ((new.fence, *lease_values(new)) for old, new in changed if lease_differs(old, new))
    saving.write_rows("new leases", INSERTS["leases"], _of(pool, map(new_lease_values, new_leases)))
    saving.write_rows("new parts", INSERTS["lease_parts"], _of(pool, parts))
    saving.write_rows("leases", UPDATES["leases"], _of(pool, differ))
    saving.write_rows("parts", UPDATES["lease_parts"], _of(pool, _changed_parts(changed)))


def _changed_parts(changed: Iterable[tuple[Lease, Lease]]) -> Iterator[Values]:
    """The changed parts; if run time has changed, also the part that lasts longest, to store it."""
    for old, new in changed:
        # What has changed is another value; one that is equal all the same does no harm.
        both = zip(old.parts, new.parts, strict=True)
        parts = [part for before, part in both if part is not before]
        if new.run_ms > old.run_ms and len(parts) < len(new.parts):
            longest = max(new.parts, key=lambda part: part.until)
            if all(part.until < longest.until for part in parts):
                parts.append(longest)
        for part in parts:
            yield new.fence, part.piece.node, *part_values(new, part)


def _save_slots(
    saving: BulkWriter, pool: PoolId, memory: Memory, work: PoolTransaction
) -> dict[int, tuple[SlotName, ...]]:
    """Free the slots of leases that have ended, and take those of new ones."""
    live = memory.slots
    ended = [
        fence for fence, lease in work.leases_new.items() if not lease.is_live and fence in live
    ]
    freed = ((fence, *slot, work.now) for fence in ended for slot in live[fence])
    saving.write_rows("slots that are free", FREE_SLOTS, _of(pool, freed))
    taken = _Taken(memory, work, frozenset(ended))
    chosen = {
        fence: tuple(taken.chosen(lease))
        for fence, lease in work.leases_new.items()
        if fence not in work.pool.leases
    }
    new = ((fence, *slot) for fence, slots in chosen.items() for slot in slots)
    saving.write_rows("slots", TAKE_SLOTS, _of(pool, new))
    return chosen


class _Taken:
    """The slots that are in use on each node that was read."""

    def __init__(self, memory: Memory, work: PoolTransaction, ended: frozenset[int]) -> None:
        self._memory = memory
        self._work = work
        self._ended = ended
        self._slots: dict[NodeId, set[SlotName]] = {}

    def chosen(self, lease: Lease) -> Iterator[SlotName]:
        """The first free slots of each GPU of a lease; a unique index checks them."""
        for part in lease.parts:
            piece = part.piece
            taken = self._on(piece.node)
            machine = self._work.machine(piece.node)
            assert machine is not None
            for gpu in piece.gpus:
                names = ((piece.node, gpu, number) for number in range(machine.node.slots))
                free = [*islice((name for name in names if name not in taken), piece.slots)]
                taken.update(free)
                yield from free

    def _on(self, node: NodeId) -> set[SlotName]:
        """The slots of the earlier leases on a node that are not ending."""
        taken = self._slots.get(node)
        if taken is None:
            fences = self._work.pool.on_node.get(node, {}).keys() - self._ended
            taken = {name for fence in fences for name in self._memory.slots[fence]}
            self._slots[node] = taken
        return taken


def _save_envelopes(saving: BulkWriter, pool: PoolId, work: PoolTransaction) -> None:
    messages = (
        (*key, n, message_text(message), work.now)
        for (key, n), message in work.messages_new.items()
    )
    acked = ((*key, n, work.now) for key, n in dict.fromkeys(work.acknowledged))
    saving.write_rows("messages", TELL, _of(pool, messages))
    saving.write_rows("acknowledged messages", ACKNOWLEDGE, _of(pool, acked))
