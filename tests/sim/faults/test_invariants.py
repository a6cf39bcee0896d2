"""Every promise can be broken: each check is shown a world in which its promise is, and says so.

A check that cannot fail shows nothing. The worlds are real ones, in the middle of things or at
their end; then one thing in them is put wrong.
"""

from collections.abc import Callable
from typing import Any

import pytest

from bursar.core.dispatch.job_lifecycle import JobState
from bursar.core.dispatch.state import Exit, Lease, PoolJob
from bursar.core.ids import GrantId, HoldId, JobId
from bursar.core.instant import SECOND
from bursar.core.jobs.rows import ArrayProgress, OrgJob, Receipt
from bursar.core.ledger.values import Grant, Hold
from bursar.core.messages import Cause
from bursar.core.refusal import Code, InvariantBroken
from bursar.core.value import replace
from bursar.sim.faults import invariants
from bursar.sim.faults.node_host import HostedProcess, NodeHost
from bursar.sim.faults.org import POOL, SimulatedOrg
from bursar.sim.faults.profile import START, FaultProfile
from bursar.sim.faults.simulated_pool import SimulatedPool
from bursar.sim.faults.world import FaultWorld

CALM = FaultProfile(jobs=9, faults_every=10_000 * SECOND, node_ppm=0)
TWO_POOLS = FaultProfile(pools=2, nodes=2, jobs=9, faults_every=10_000 * SECOND, node_ppm=0)
SEED = 77  # after half a minute jobs wait, start, run and are over


def busy() -> FaultWorld:
    """A world in the middle of things."""
    world = FaultWorld(SEED, CALM)
    while world.at < START + 30 * SECOND:
        world.step()
    return world


def settled() -> FaultWorld:
    """A world in which all is over."""
    world = FaultWorld(SEED, CALM)
    world.run()
    return world


def wrong(value: Any, **fields: Any) -> None:
    """Put a value wrong where it is, past all that it checks itself."""
    for name, what in fields.items():
        object.__setattr__(value, name, what)


# What is put wrong


def _org(world: FaultWorld) -> SimulatedOrg:
    return world.orgs["o2"]


def _pool(world: FaultWorld) -> SimulatedPool:
    return world.pools[POOL]


def _grant(world: FaultWorld) -> Grant:
    grant = _org(world).books.grants.get(GrantId("first"))
    assert grant is not None
    return grant


def _hold(world: FaultWorld, job: str = "j3") -> Hold:
    hold = _org(world).books.holds.get(HoldId(job))
    assert hold is not None
    return hold


def _job(world: FaultWorld, state: JobState = JobState.RUNNING) -> PoolJob:
    return next(job for job in world.pool.jobs.values() if job.state is state)


def _lease(world: FaultWorld) -> Lease:
    return next(iter(world.pool.leases.values()))


def _task(world: FaultWorld) -> tuple[NodeHost, HostedProcess]:
    return next((host, one) for host in world.hosts.values() for one in host.tasks.values())


def _mint(world: FaultWorld) -> None:
    wrong(_grant(world), available=_grant(world).available + 1)


def _issue_unseen(world: FaultWorld) -> None:
    wrong(_org(world).books.header, issued=_org(world).books.header.issued + 1)


def _hold_more(world: FaultWorld) -> None:
    grant = _grant(world)
    wrong(grant, available=grant.available - 1, held=grant.held + 1)


def _close_hold(world: FaultWorld) -> None:
    wrong(_hold(world), closed_at=0)


def _hold_less(world: FaultWorld) -> None:
    for job in world.pool.jobs.values():
        wrong(job, hold_micros=job.hold_micros - 1)


def _charge_unproven(world: FaultWorld) -> None:
    [(_, meter)] = _hold(world).meters
    wrong(meter, run_ms=meter.run_ms + 60_000)


def _charge_nobody(world: FaultWorld) -> None:
    [(_, meter)] = _hold(world).meters
    wrong(_hold(world), meters=((9, meter),))


def _drop_event(world: FaultWorld) -> None:
    _org(world).events.pop()


def _turn_back(world: FaultWorld) -> None:
    invariants.numbers_have_no_gap(world, _org(world))
    wrong(_org(world).books.header, now=0)


def _object(world: FaultWorld) -> None:
    receipt = Receipt("pool", JobId("j3"), 9, world.at, Code.HOLD_CLOSED.value)
    _org(world).objections.append(receipt)


def _lose_job(world: FaultWorld) -> None:
    del _org(world).jobs[JobId("j3")]


def _make_up_message(world: FaultWorld) -> None:
    known: OrgJob = _org(world).jobs[JobId("j3")]
    wrong(known, received=known.received + 9)


def _throw_away_message(world: FaultWorld) -> None:
    known: OrgJob = _org(world).jobs[JobId("j3")]
    wrong(known, sent=known.sent + 1)
    _org(world).addressed[known.id].append(POOL)


def _lose_number(world: FaultWorld) -> None:
    known: OrgJob = _org(world).jobs[JobId("j3")]
    wrong(known, sent=known.sent + 1)


def _two_lead(world: FaultWorld) -> None:
    for job in _org(world).jobs.values():
        wrong(job, digest="digest", leads=True)


def _send_a_follower(world: FaultWorld) -> None:
    wrong(_org(world).jobs[JobId("j3")], follows=True)


def _miscount_elements(world: FaultWorld) -> None:
    org = _org(world)
    template = org.enqueued[JobId("j3")]
    array = ArrayProgress(id=JobId("j3"), elements=3, at_once=1, template=template, begun=1, live=1)
    org.arrays[array.id] = array


Spoil = Callable[[FaultWorld], None]
ORGS: list[tuple[str, Spoil]] = [
    ("IL1: a grant does not add up", _mint),
    ("IL2: credits from nowhere", _issue_unseen),
    ("IL5", _hold_more),
    ("IL11", _close_hold),
    ("IS9: the two sides", _hold_less),
    ("IL12: charged more", _charge_unproven),
    ("IL12: an attempt without", _charge_nobody),
    ("IL19: a gap", _drop_event),
    ("IL19: time or numbers", _turn_back),
    ("IL14", _object),
    ("IM7", _lose_job),
    ("IA7: a message from nowhere", _make_up_message),
    ("IA7: a message was thrown away", _throw_away_message),
    ("IA7: a gap", _lose_number),
    ("IM9: two of identical jobs lead", _two_lead),
    ("IM9: a follower is in a pool", _send_a_follower),
    ("IM10: an array has miscounted", _miscount_elements),
]


@pytest.mark.parametrize(("told", "spoil"), ORGS, ids=[one[0] for one in ORGS])
def test_wrong_org_is_reported(told: str, spoil: Spoil) -> None:
    check = invariants.OF_ORGS[told.partition(":")[0].replace("IL2", "IL1")]
    world = busy()
    check(world, _org(world))
    spoil(world)

    with pytest.raises(InvariantBroken, match=told):
        check(world, _org(world))


def _jump_state(before: PoolJob) -> PoolJob:
    return replace(before, state=JobState.OUT_OF_CREDITS, fence=None)


def _skip_attempt(before: PoolJob) -> PoolJob:
    return replace(before, attempt=before.attempt + 2)


def _overuse(before: PoolJob) -> PoolJob:
    return replace(before, used=before.hold_micros + 1)


def _of_nobody(before: PoolJob) -> PoolJob:
    return replace(before, job=JobId("nobody's"))


JOBS: list[tuple[str, JobState, Callable[[PoolJob], PoolJob]]] = [
    ("IM6: no such step", JobState.SUCCEEDED, _jump_state),
    ("IS2: attempts are not numbered", JobState.RUNNING, _skip_attempt),
    ("IS9: used more", JobState.RUNNING, _overuse),
    ("IS9: a job without a hold", JobState.QUEUED, _of_nobody),
]


@pytest.mark.parametrize(("told", "state", "spoil"), JOBS, ids=[one[0] for one in JOBS])
def test_wrong_job_is_reported(
    told: str, state: JobState, spoil: Callable[[PoolJob], PoolJob]
) -> None:
    check = invariants.OF_JOBS[told.partition(":")[0]]
    world = busy()
    before = _job(world, state)
    check(world, _pool(world), before, before)

    with pytest.raises(InvariantBroken, match=told):
        check(world, _pool(world), before, spoil(before))


def test_job_with_two_leases_is_reported() -> None:
    world = busy()
    job = _job(world)
    lease = world.pool.leases[job.fence or 0]
    world.pool.leases[99] = replace(lease, fence=99)
    world.pool.live[99] = None

    with pytest.raises(InvariantBroken, match="IS2: not one lease"):
        invariants.attempts_are_numbered(world, _pool(world), job, job)


def _without_part(lease: Lease) -> Lease:
    return replace(lease, parts=lease.parts[1:])


def _elsewhere(lease: Lease) -> Lease:
    piece = lease.parts[0].piece._replace(gpus=(7,))
    return replace(lease, parts=(replace(lease.parts[0], piece=piece), *lease.parts[1:]))


def _longer(lease: Lease) -> Lease:
    return replace(lease, parts=tuple(replace(one, until=one.until + 1) for one in lease.parts))


def _finished(lease: Lease) -> Lease:
    return replace(lease, parts=tuple(replace(one, exit=Exit.DONE) for one in lease.parts))


def _ended_again(lease: Lease) -> Lease:
    return replace(lease, ended_at=(lease.ended_at or 0) + 1)


def _for_ever(lease: Lease) -> Lease:
    until = lease.leased_at + 1_000 * SECOND
    return replace(lease, parts=tuple(replace(one, until=until) for one in lease.parts))


# What is told, whether the lease is a new one, whether it has run out, and what is wrong with it.
LEASES: list[tuple[str, bool, bool, Callable[[Lease], Lease]]] = [
    ("IS4", True, False, lambda lease: lease),
    ("IS8: half a gang", True, False, _without_part),
    ("IS8: a lease has moved", False, False, _elsewhere),
    ("IM1: a reading went back", False, False, lambda lease: replace(lease, run_ms=0)),
    ("IM1: longer than its lease", False, False, lambda lease: replace(lease, run_ms=10**9)),
    ("IM2: renewed after its end", False, True, _longer),
    ("IM2: a late result counts", False, True, _finished),
    ("IS9: a lease outlives", False, False, _for_ever),
    ("IS9: runs without credits", False, False, lambda lease: replace(lease, run_ms_max=10**9)),
]


@pytest.mark.parametrize(("told", "new", "late", "spoil"), LEASES, ids=[one[0] for one in LEASES])
def test_wrong_lease_is_reported(
    told: str, new: bool, late: bool, spoil: Callable[[Lease], Lease]
) -> None:
    check = invariants.OF_LEASES[told.partition(":")[0]]
    world = busy()
    before = world.pool.leases[_job(world).fence or 0]
    check(world, _pool(world), before, before)
    if late:
        world.pool.now = max(part.until for part in before.parts)

    with pytest.raises(InvariantBroken, match=told):
        check(world, _pool(world), None if new else before, spoil(before))


def test_attempt_that_ends_twice_is_reported() -> None:
    world = settled()
    before = _lease(world)

    with pytest.raises(InvariantBroken, match="IM3: an attempt has ended twice"):
        invariants.stale_fences_change_nothing(world, _pool(world), before, _ended_again(before))


def test_lease_on_a_silent_node_is_reported() -> None:
    world = busy()
    lease = world.pool.leases[_job(world).fence or 0]
    invariants.silent_nodes_get_nothing(world, _pool(world), None, lease)
    wrong(world.pool.machines[lease.parts[0].piece.node], reported_at=None)

    with pytest.raises(InvariantBroken, match="IS15"):
        invariants.silent_nodes_get_nothing(world, _pool(world), None, lease)


def test_withdrawn_job_that_is_started_is_reported() -> None:
    world = busy()
    lease = world.pool.leases[_job(world).fence or 0]
    invariants.what_is_withdrawn_gets_nothing(world, _pool(world), None, lease)
    wrong(world.pool.jobs[lease.key], withdrawn=True)

    with pytest.raises(InvariantBroken, match="IM6: a withdrawn"):
        invariants.what_is_withdrawn_gets_nothing(world, _pool(world), None, lease)


def _lease_twice(world: FaultWorld) -> None:
    lease = world.pool.leases[_job(world).fence or 0]
    world.pool.leases[99] = replace(lease, fence=99)
    world.pool.live[99] = None


def _lead_anew(world: FaultWorld) -> None:
    world.checker.epochs[POOL] = world.pool.epoch + 1


def _suspect(world: FaultWorld) -> None:
    wrong(next(iter(world.pool.machines.values())), wrong_clock=True)


def _run_beside(world: FaultWorld) -> None:
    host, task = _task(world)
    host.tasks[99] = task


def _run_elsewhere(world: FaultWorld) -> None:
    host, task = _task(world)
    other = next(one for one in world.hosts.values() if one is not host)
    run = HostedProcess.__new__(HostedProcess)
    for name, what in vars(task).items():
        setattr(run, name, what)
    run.fence = 99
    other.tasks[99] = run


def _end_lease(world: FaultWorld) -> None:
    host, task = _task(world)
    part = world.pool.leases[task.fence].part_on(host.id)
    wrong(part, exit=Exit.GONE)


def _sleep(world: FaultWorld) -> None:
    _, task = _task(world)
    task.outlived_at = world.at - SECOND


POOLS: list[tuple[str, str, Spoil]] = [
    ("IS1: a GPU in two leases", "IS1", _lease_twice),
    ("IS4: an epoch", "IS4", _lead_anew),
    ("IS7: a sound clock", "IS7", _suspect),
]
PROCESSES: list[tuple[str, str, Spoil]] = [
    ("IS1: two on one GPU", "IS1", _run_beside),
    ("IS2: a job runs twice", "IS2", _run_elsewhere),
    ("IS7: a process without a lease", "IS7", _end_lease),
    ("IS7: a guard has slept", "IS7, thawed", _sleep),
]


@pytest.mark.parametrize(("message", "name", "spoil"), POOLS, ids=[case[0] for case in POOLS])
def test_a_wrong_pool_is_reported(message: str, name: str, spoil: Spoil) -> None:
    check, world = invariants.OF_THE_POOL[name], busy()
    check(world, _pool(world))
    spoil(world)

    with pytest.raises(InvariantBroken, match=message):
        check(world, _pool(world))


@pytest.mark.parametrize(
    ("message", "name", "spoil"), PROCESSES, ids=[case[0] for case in PROCESSES]
)
def test_a_wrong_process_is_reported(message: str, name: str, spoil: Spoil) -> None:
    check, world = invariants.OF_PROCESSES[name], busy()
    check(world)
    spoil(world)

    with pytest.raises(InvariantBroken, match=message):
        check(world)


# Moves between two pools


def moved() -> tuple[FaultWorld, SimulatedOrg, JobId]:
    """A world of two pools in which a job has just moved to the second, its org, and the job."""
    world = FaultWorld(SEED, TWO_POOLS)
    while not world.counts["jobs moved"]:
        world.step()
    while True:
        for key, row in world.pool.jobs.items():
            if row.state is JobState.MOVED and key in world.pools["pool2"].rows.jobs:
                return world, world.orgs[row.org], row.job
        world.step()


def test_a_job_in_two_pools_is_reported() -> None:
    """S10: a job waits in one pool at a time, and in the pool that its org names."""
    world, org, name = moved()
    pool = world.pools["pool2"]
    job = pool.rows.jobs[org.id, name]
    invariants.waits_in_one_pool(world, pool, job, job)
    wrong(org.jobs[name], pool=POOL)
    with pytest.raises(InvariantBroken, match="IS16: a job waits in another pool"):
        invariants.waits_in_one_pool(world, pool, job, job)

    wrong(world.pool.jobs[org.id, name], state=JobState.QUEUED)
    with pytest.raises(InvariantBroken, match="IS16: a job waits in two pools"):
        invariants.waits_in_one_pool(world, pool, job, job)


def test_a_job_that_is_not_where_its_routes_lead_is_reported() -> None:
    world, org, name = moved()
    invariants.moves_follow_routes(world, org)
    first, second = org.routed[name]
    org.routed[name] = [first, second._replace(pool=first.pool)]
    with pytest.raises(InvariantBroken, match="IS16: sent to a pool twice"):
        invariants.moves_follow_routes(world, org)

    org.routed[name] = [first, second]
    org.cancelled_in[name] = POOL
    with pytest.raises(InvariantBroken, match="IS16: a cancelled job was sent on"):
        invariants.moves_follow_routes(world, org)

    org.routed[name] = [first, second._replace(arrived_at=None)]
    with pytest.raises(InvariantBroken, match="IS16: a job is not where its routes say"):
        invariants.moves_follow_routes(world, org)


def test_a_message_to_another_pool_is_reported() -> None:
    world, org, name = moved()
    invariants.messages_in_order(world, org)
    org.addressed[name][-1] = POOL

    with pytest.raises(InvariantBroken, match="IA7: a message from nowhere"):
        invariants.messages_in_order(world, org)


def test_attempts_in_two_pools_are_reported() -> None:
    world = FaultWorld(SEED, TWO_POOLS)
    world.run()
    pool = world.pools["pool2"]
    lease = next(iter(pool.rows.leases.values()))
    invariants.attempts_stay_in_a_pool(world, pool, None, lease)
    world.pool.leases[99] = replace(lease, fence=99)

    with pytest.raises(InvariantBroken, match="IS2: attempts in two pools"):
        invariants.attempts_stay_in_a_pool(world, pool, None, lease)


def test_a_job_that_is_lost_between_two_pools_is_reported() -> None:
    world, org, name = moved()
    world.run()
    invariants.no_move_is_left(world)
    del world.pools["pool2"].rows.jobs[org.id, name]

    with pytest.raises(InvariantBroken, match="IS16: a job was lost on its way"):
        invariants.no_move_is_left(world)


def _keep_hold(world: FaultWorld) -> None:
    wrong(_hold(world), closed_at=None)


def _keep_credits(world: FaultWorld) -> None:
    wrong(_grant(world), held=1)


def _prove_more(world: FaultWorld) -> None:
    lease = _lease(world)
    wrong(lease, run_ms=lease.run_ms + 1)


def _forget_charge(world: FaultWorld) -> None:
    wrong(_hold(world, _lease(world).job), meters=())


def _unsettle(world: FaultWorld) -> None:
    hold = _hold(world, _lease(world).job)
    meters = ((attempt, replace(one, settled=False)) for attempt, one in hold.meters)
    wrong(hold, meters=tuple(meters))


def _fail(world: FaultWorld) -> None:
    wrong(_lease(world), why=Cause.FAILED)


def _call_it_lost(world: FaultWorld) -> None:
    lease = _lease(world)
    wrong(lease, why=Cause.LOST, corrected=None)
    for part in lease.parts:
        wrong(part, saved_ms=0)


def _run_never(world: FaultWorld) -> None:
    _pool(world).tasks.clear()


def _forget_event(world: FaultWorld) -> None:
    _org(world).events.pop()


def _miscount(world: FaultWorld) -> None:
    books = _org(world).books
    wrong(books.header, issued=books.header.issued + 1)


def _owe(world: FaultWorld) -> None:
    org = _org(world)
    corrected = {one.job for one in world.pool.leases.values() if one.corrected is not None}
    name = next(name for name, _ in org.books.holds.items() if JobId(name) not in corrected)
    wrong(_hold(world, name), owed=1)


ENDS: list[tuple[str, str, Spoil]] = [
    ("IM4: a hold was left", "IM4", _keep_hold),
    ("IM4: credits were left", "IM4", _keep_credits),
    ("IM5: the two sides differ", "IM5", _prove_more),
    ("IM3: an attempt was never charged", "IM5", _forget_charge),
    ("IM3: an attempt was not settled", "IM5", _unsettle),
    ("IM3: a loss was taken for a failure", "IM3", _fail),
    ("IM8", "IM8", _call_it_lost),
    ("IM1: more than it ran", "IM1", _run_never),
    ("IL4: rebuilt books differ", "IL4", _forget_event),
    ("IL4", "IL4", _miscount),
    ("IL14: ran into debt", "IL14", _owe),
]


@pytest.mark.parametrize(("told", "name", "spoil"), ENDS, ids=[one[0] for one in ENDS])
def test_wrong_end_is_reported(told: str, name: str, spoil: Spoil) -> None:
    world = settled()
    invariants.AT_THE_END[name](world)
    spoil(world)

    with pytest.raises(InvariantBroken, match=told):
        invariants.AT_THE_END[name](world)


def test_late_settlement_is_reported() -> None:
    world = busy()
    with pytest.raises(InvariantBroken, match=r"IV3.*j3"):
        world.checker.check_settled()

    settled().checker.check_settled()


def test_write_of_a_former_leader_is_reported() -> None:
    world = busy()
    world.checker.note_decision(world.pool.epoch - 1)
    work = world._begin_transaction(_pool(world))
    assert work is not None

    with pytest.raises(InvariantBroken, match="IS5"):
        world.checker.note_transaction(_pool(world), work)


def test_process_that_starts_twice_or_out_of_order_is_reported() -> None:
    world = busy()
    host, task = _task(world)
    with pytest.raises(InvariantBroken, match="IS3"):
        world.checker.note_start(host, task)

    task.fence = 0
    with pytest.raises(InvariantBroken, match="IS6"):
        world.checker.note_start(host, task)


def test_different_answer_to_the_same_key_is_reported() -> None:
    world = settled()
    [call, *_] = [one for one in world.clients._calls if one.plan is not None]
    world.clients.receive_reply("reply", (call, call.answer))

    with pytest.raises(InvariantBroken, match="IL16"):
        world.clients.receive_reply("reply", (call, "another"))


def test_every_check_is_shown_to_fail() -> None:
    """A new promise comes with a world that breaks it."""
    moves = "IS16"  # tests of its own
    ours = {told.partition(":")[0].replace("IL2", "IL1") for told, *_ in ORGS}
    assert invariants.OF_ORGS.keys() == ours | {moves}
    assert invariants.OF_JOBS.keys() == {told.partition(":")[0] for told, *_ in JOBS} | {moves}
    beside = {"IS2", "IS15", "IM6"}  # tests of their own
    assert invariants.OF_LEASES.keys() == beside | {case[0].partition(":")[0] for case in LEASES}
    assert invariants.OF_THE_POOL.keys() == {name for _, name, _ in POOLS}
    assert invariants.OF_PROCESSES.keys() == {name for _, name, _ in PROCESSES}
    assert invariants.AT_THE_END.keys() == {name for _, name, _ in ENDS} | {moves}
