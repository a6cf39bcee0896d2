"""A pool of a world that fails, kept in a database as well: each transaction twice."""

from collections import Counter
from typing import cast

from bursar.core.dispatch import pool as rules
from bursar.core.dispatch.state import JobKey, Lease, Pool, PoolJob, PoolTransaction, Row
from bursar.core.ids import NodeId
from bursar.core.instant import Instant
from bursar.core.messages import ToOrg
from bursar.sim.faults.checker import InvariantChecker
from bursar.sim.faults.profile import FaultProfile
from bursar.sim.faults.simulated_pool import SimulatedPool
from bursar.sim.faults.world import FaultWorld
from bursar.store.jobs.outbox import from_pool
from bursar.store.pools import loader, writer
from bursar.store.pools.loader import Changed, Memory, create_pool, enter_pool, lock_pool, locked
from bursar.store.pools.rows import PoolRow
from bursar.store.sql.connection import Connection
from tests.support.dispatch_pool import Trial


class Twin:
    """What a process knows of the pool that forgets what is over, as a process of a pool does."""

    def __init__(self, connection: Connection, name: str) -> None:
        self.connection = connection
        self.name = name
        self.memory = Memory(version=0)
        self.written = 0  # transactions
        create_pool(connection, name)

    def register(self, known: Pool) -> None:
        """Take in the machines of a pool."""
        work = PoolTransaction(Pool(), known.now)
        for machine in known.machines.values():
            rules.register_node(work, machine.node)
        self.write(work)

    def write(self, told: PoolTransaction) -> None:
        """Write what another transaction is about to write."""
        with self.connection.transaction():
            row = locked(lock_pool(self.connection, self.name), self.name)
            assert row.version == self.memory.version
            self._bring(told)
            work = _as(told, PoolTransaction(self.memory.pool, told.now))
            with self.connection.pipeline():
                saved = writer.save(self.connection, self.name, self.memory, work)
            saved.saving.check()
        writer.apply_saved(self.memory, work, saved)
        self.memory.pool.outbox.clear()
        self.memory.pool.forget_ended()
        self.memory.pool.forget_finished()
        self.written += 1

    def _bring(self, told: PoolTransaction) -> None:
        pool = self.memory.pool
        jobs = tuple(key for key in told.jobs_new if key not in pool.jobs)
        leases = tuple(fence for fence in told.leases_new if fence not in pool.leases)
        loader.load(self.connection, self.name, self.memory, Changed(jobs=jobs))
        loader.load_leases(self.connection, self.name, self.memory, leases)

    def row(self) -> PoolRow:
        """The pool's own row."""
        with self.connection.transaction():
            return locked(lock_pool(self.connection, self.name), self.name)

    def afresh(self) -> Memory:
        """What a new process reads."""
        with self.connection.transaction():
            enter_pool(self.connection, self.name)
            return loader.load_all(self.connection, self.name, self.memory.version)

    def caught_up(self, stale: Memory) -> bool:
        """Let a process catch up; False if it is too far behind."""
        with self.connection.transaction():
            enter_pool(self.connection, self.name)
            found = loader.catch_up(self.connection, self.name, stale, self.memory.version)
            return found is not None

    def bring_all(self, memory: Memory, pool: Pool) -> None:
        """Bring in everything that another pool knows, over or not."""
        with self.connection.transaction():
            enter_pool(self.connection, self.name)
            loader.load(self.connection, self.name, memory, Changed(jobs=tuple(pool.jobs)))
            loader.load_leases(self.connection, self.name, memory, tuple(pool.leases))

    def outbox(self) -> dict[tuple[JobKey, int], ToOrg]:
        """The messages that nobody has acknowledged."""
        with self.connection.transaction():
            enter_pool(self.connection, self.name)
            envelopes = from_pool(self.connection, self.name, None, 100_000)
        messages = {((one.org, one.job), one.n): one.message for one in envelopes}
        return cast(dict[tuple[JobKey, int], ToOrg], messages)


def _as(told: PoolTransaction, work: PoolTransaction) -> PoolTransaction:
    """The same transaction on another memory."""
    work.fence = told.fence
    work.epoch, work.leader, work.leads_until = told.epoch, told.leader, told.leads_until
    for rows in (told.jobs_new, told.leases_new, told.machines_new):
        for row in cast(dict[object, Row], rows).values():
            work.put(row)
    work.messages_new.update(told.messages_new)
    for key, n in told.acknowledged:  # and all before it, which are acknowledged one by one here
        while (key, n) in told.pool.outbox or (key, n) in told.messages_new:
            work.acknowledge(key, n)
            n -= 1
    return work


class TwinWatch(InvariantChecker):
    """Looks on, and lets the twin write what the world's pool does."""

    def __init__(self, world: FaultWorld, twin: Twin) -> None:
        super().__init__(world)
        self._twin = twin

    def note_transaction(self, pool: SimulatedPool, work: PoolTransaction) -> None:
        super().note_transaction(pool, work)
        self._twin.write(work)


class TwinWork(PoolTransaction):
    """A transaction that is kept twice."""

    def __init__(self, pool: Pool, now: Instant, twin: Twin) -> None:
        super().__init__(pool, now)
        self._twin = twin

    def commit(self) -> None:
        self._twin.write(self)
        super().commit()


class TwinTrial(Trial):
    """A pool of two nodes to try things on, kept twice."""

    def __init__(self, connection: Connection, name: str, slots: int = 1) -> None:
        self.twin = Twin(connection, name)
        super().__init__(slots)

    def work(self) -> PoolTransaction:
        if not self.twin.memory.version:
            self.twin.register(self.pool)
        return TwinWork(self.pool, self.now, self.twin)


def twins(
    seed: int, connection: Connection, profile: FaultProfile | None = None
) -> tuple[FaultWorld, Twin]:
    """The world of a seed, and its twin."""
    world = FaultWorld(seed, profile)
    twin = Twin(connection, f"twin-{seed}")
    twin.register(world.pool)
    world.checker = TwinWatch(world, twin)
    return world, twin


# Whether two know the same


def by_name(pool: Pool) -> dict[tuple[str, str], PoolJob]:
    return {key: job for key, job in sorted(pool.jobs.items()) if not job.is_finished}


def leases(pool: Pool) -> list[Lease]:
    return [pool.leases[fence] for fence in pool.live]


def on_nodes(pool: Pool) -> dict[NodeId, list[int]]:
    return {node: list(there) for node, there in sorted(pool.on_node.items()) if there}


def check_slots(memory: Memory) -> None:
    """Each live lease has as many slots of each GPU as it was given, and none has another's."""
    taken = Counter(slot for slots in memory.slots.values() for slot in slots)
    assert all(many == 1 for many in taken.values())
    assert set(memory.pool.live) == memory.slots.keys()
    for lease in leases(memory.pool):
        given = Counter((node, gpu) for node, gpu, _ in memory.slots[lease.fence])
        pieces = [part.piece for part in lease.parts]
        assert {(one.node, gpu): one.slots for one in pieces for gpu in one.gpus} == given


def check_same(known: Pool, memory: Memory) -> None:
    """What lives is the same, in the same order."""
    pool = memory.pool
    assert by_name(known) == by_name(pool)
    assert leases(known) == leases(pool)
    assert known.machines == pool.machines
    assert on_nodes(known) == on_nodes(pool)
    assert list(known.hold_ends) == list(pool.hold_ends)
    check_slots(memory)
