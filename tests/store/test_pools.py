"""What a pool keeps in the database is what it reads from there, whatever has happened to it."""

import pytest

from bursar.core.dispatch.attempt_end import STOP_GRACE
from bursar.core.dispatch.state import Exit, Lease
from bursar.core.ids import JobId
from bursar.core.instant import SECOND
from bursar.core.leases import Denied
from bursar.core.messages import Withdraw
from bursar.core.scheduling.model.nodes import Piece
from bursar.core.value import replace
from bursar.sim.faults.world import FaultWorld
from bursar.store.pools import writer
from bursar.store.pools.loader import Memory, PoolUnknown, lock_pool, locked
from bursar.store.sql.connection import Connection
from bursar.store.verify.org_pool_agreement import SEAM_CHECKS
from tests.support.dispatch_pool import GANG, GANG_SPEC, HALF, JOB, N1, N2, asking, ran
from tests.support.pool_twin import Twin, TwinTrial, check_same, twins

EVERY = 50  # transactions between two looks
SEEDS = (6, 20)  # gangs of which a node falls silent, late readings, lost work
CHECKED = 2 * STOP_GRACE  # beyond all terms


def check_all(world: FaultWorld, twin: Twin, stale: Memory) -> None:
    """A new process, one that catches up, and one that is asked about what is over."""
    known, row = world.pool, twin.row()
    assert (known.fence, known.epoch) == (row.fence, row.epoch)
    assert (known.leader, known.leads_until) == (row.leader, row.leads_until)
    assert row.now <= known.now < row.now + CHECKED
    assert known.outbox == twin.outbox()
    check_same(known, twin.memory)
    assert twin.caught_up(stale)
    check_same(known, stale)
    fresh = twin.afresh()
    check_same(known, fresh)
    twin.bring_all(fresh, known)
    assert known.jobs == fresh.pool.jobs
    assert known.leases == fresh.pool.leases
    check_same(known, fresh)


@pytest.mark.parametrize("seed", SEEDS)
def test_stored_rows_are_read_back_equal(connection: Connection, seed: int) -> None:
    """Every row of every transaction in worlds with faults, without a violated constraint (D9).

    A process that was away catches up with what was written meanwhile, and has the same rows.
    """
    world, twin = twins(seed, connection)
    stale, seen = twin.afresh(), 0
    while not (world.steps % 8 == 0 and world.is_settled):
        world.step()
        if twin.written >= seen + EVERY:
            check_all(world, twin, stale)
            seen = twin.written
    check_all(world, twin, stale)

    assert seen > 2 * EVERY
    ended = world.pool.leases.values()
    assert any(len(lease.parts) > 1 for lease in ended)
    assert any(lease.kept_ms is not None for lease in ended)


def test_memory_that_is_too_many_versions_behind_is_loaded_afresh(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changes are known for a while; then everything has to be read."""
    monkeypatch.setattr(writer, "VERSIONS_KEPT", 20)
    monkeypatch.setattr(writer, "TIDY", 10)
    world, twin = twins(1, connection)
    behind, before = twin.afresh(), twin.afresh()
    while twin.memory.version < 75:
        world.step()
        if before.version < 55 <= twin.memory.version:
            before = twin.afresh()

    assert before.version >= 55
    assert twin.caught_up(before)
    check_same(world.pool, before)
    assert not twin.caught_up(behind)
    assert 1 == behind.version
    [(kept,)] = connection.execute(
        "select min(version) from pool_changes where pool_id = %s", [twin.name]
    )
    assert 51 == kept


def test_run_time_is_kept_with_a_part_that_has_lasted_so_long(connection: Connection) -> None:
    """A node of a gang is silent, the other goes on: the first part's row proves no more than it
    has lasted, the lease has run as long as the other says (M4)."""
    trial = TwinTrial(connection, "gang")
    trial.report(node=N1)
    trial.report(node=N2)
    trial.post(asking(spec=GANG_SPEC, hold_micros=10**6), 1)
    trial.place(GANG)
    trial.pass_by(5 * SECOND)
    trial.report(ran(5_000), node=N1)
    for run_ms in range(5_000, 40_000, 5_000):
        trial.report(ran(run_ms), node=N2)
        trial.pass_by(5 * SECOND)
    trial.expire()

    assert Exit.GONE is trial.lease().parts[0].exit
    assert 35_000 == trial.lease().run_ms
    check_same(trial.pool, trial.twin.afresh())


def test_parts_of_a_gpu_are_slots(connection: Connection) -> None:
    """Halves of a GPU of four slots have two each, and whoever comes next has those that are free
    (S6)."""
    trial = TwinTrial(connection, "parts", slots=4)
    trial.report()
    jobs = [("acme", JobId(name)) for name in ("one", "two", "three")]
    for key in jobs:
        trial.post(asking(spec=HALF), 1, key)
    half = (Piece(N1, (0,), 2),)
    placed = [trial.place(half, key=key) for key in jobs]

    assert Denied.SLOT_TAKEN is placed[2]
    assert {1: (0, 1), 2: (2, 3)} == slots_of(trial)
    trial.report(ran(0, 1, exit=Exit.DONE), ran(0, 2))
    trial.place(half, key=jobs[2])
    assert {2: (2, 3), 3: (0, 1)} == slots_of(trial)
    check_same(trial.pool, trial.twin.afresh())


def test_slots_that_are_a_part_are_what_was_asked_for(connection: Connection) -> None:
    """Two thirds of each of two GPUs are twice 0.666, and `verify` counts as much (S1)."""
    trial = TwinTrial(connection, "thirds", slots=3)
    trial.report()
    thirds = replace(HALF, shape=replace(HALF.shape, tasks=2, milli=666))
    trial.post(asking(spec=thirds), 1)
    assert isinstance(trial.place((Piece(N1, (0, 1), 2),)), Lease)
    [check] = [one for one in SEAM_CHECKS if one.name.startswith("a lease has the slots")]

    told = connection.execute(check.sql).fetchall()
    assert [] == [row for row in told if "thirds" in row[1]]


def slots_of(trial: TwinTrial) -> dict[int, tuple[int, ...]]:
    slots = trial.twin.memory.slots
    return {fence: tuple(slot for _, _, slot in found) for fence, found in slots.items()}


def test_a_message_may_be_acknowledged_twice_at_once(connection: Connection) -> None:
    """Two who deliver may both have delivered it."""
    trial = TwinTrial(connection, "twice")
    trial.report()
    trial.post(asking(), 1)
    trial.post(Withdraw(), 2)
    assert 1 == len(trial.twin.outbox())
    work = trial.work()
    work.acknowledge(JOB, 1)
    work.acknowledge(JOB, 1)
    work.commit()

    assert {} == trial.twin.outbox()


def test_a_pool_that_is_not_there_cannot_be_locked(connection: Connection) -> None:
    """Nor is one made by asking."""
    with connection.transaction(), pytest.raises(PoolUnknown):
        locked(lock_pool(connection, "nowhere"), "nowhere")
