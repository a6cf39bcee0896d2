"""The invariants, which must hold after every step and at the end: one function for each.

Ids: IL is the ledger, IM metering and jobs, IS scheduler and leases, IA the outbox, IV that
everything settles. After a step that touched an org, the pool or a process, all checks of that kind
run. A violation raises `InvariantBroken` with the id.

The checks use the true state: the processes that really run, by the true time of the world.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from bursar.core.dispatch.agent import KILL_SPAN
from bursar.core.dispatch.job_lifecycle import FINISHED, LIVE, TRANSITIONS, JobState
from bursar.core.dispatch.state import Exit, JobKey, Lease, PoolJob
from bursar.core.ids import HoldId, JobId, NodeId
from bursar.core.instant import MILLISECOND
from bursar.core.leases import LEASE_TTL
from bursar.core.ledger.books import COMPARTMENTS
from bursar.core.ledger.events import Closing, HoldClosed
from bursar.core.ledger.journal import rebuild
from bursar.core.ledger.verify import find_problems
from bursar.core.messages import Cause, EndClass
from bursar.core.metering import Meter
from bursar.core.money import usage_price
from bursar.core.refusal import fail_invariant, invariant
from bursar.core.scheduling.model.nodes import MILLI
from bursar.sim.faults.clients import PRICES
from bursar.sim.faults.node_host import HostedProcess, NodeHost
from bursar.sim.faults.org import SimulatedOrg
from bursar.sim.faults.simulated_pool import SimulatedPool

if TYPE_CHECKING:
    from bursar.sim.faults.checker import InvariantChecker
    from bursar.sim.faults.world import FaultWorld

Check = Callable[["FaultWorld"], None]
PoolCheck = Callable[["FaultWorld", SimulatedPool], None]


# Ledger


def conservation(world: "FaultWorld", org: SimulatedOrg) -> None:
    """IL1, IL2: compartments add up to what was issued; only issue events create."""
    issued = 0
    for name, grant in org.books.grants.items():
        parts = [getattr(grant, part.value) for part in COMPARTMENTS]
        right = sum(parts) == grant.terms.amount and min(parts) >= 0
        invariant(right, "IL1: a grant does not add up", org=org.id, grant=name, parts=parts)
        issued += grant.terms.amount
    invariant(issued == org.books.header.issued, "IL2: credits from nowhere", org=org.id)


def holds_are_draws(world: "FaultWorld", org: SimulatedOrg) -> None:
    """IL3, IL5: held and spent credits of grants are the sums of the draws of holds."""
    held = spent = 0
    for _, grant in org.books.grants.items():
        held, spent = held + grant.held, spent + grant.spent
    open_, paid = 0, 0
    for _, hold in org.books.holds.items():
        open_ += hold.open
        paid += sum(draw.charged - draw.undone for draw in hold.draws)
    paid += sum(
        draw.charged - draw.undone for _, debt in org.books.debts.items() for draw in debt.draws
    )
    figures = {"held": held, "open": open_, "spent": spent, "paid": paid}
    invariant((held, spent) == (open_, paid), "IL5: draws do not add up", org=org.id, **figures)


def charges_follow_readings(world: "FaultWorld", org: SimulatedOrg) -> None:
    """IL12, IM3: an attempt has paid the price of a reading that its pool accepted."""
    for name, hold in org.books.holds.items():
        for attempt, meter in hold.meters:
            lease = _lease_of(world, (org.id, JobId(name)), attempt)
            invariant(lease is not None, "IL12: an attempt without a lease", hold=name)
            assert lease is not None
            charged = usage_price(meter.rate, meter.milli_gpus, meter.run_ms)
            right = meter.run_ms <= lease.run_ms and meter.charged == charged
            invariant(right, "IL12: charged more than was proven", hold=name, meter=meter)


def holds_stay(world: "FaultWorld", org: SimulatedOrg) -> None:
    """IL11: a hold stays open until its job has finished, or it expires."""
    for name, job in org.jobs.items():
        hold = org.books.holds.get(HoldId(name))
        assert hold is not None
        stays = hold.closed_at is None or hold.closed_at >= hold.expires_at
        invariant(stays or job.is_finished, "IL11: a hold was taken away", hold=name)


def both_know_what_is_held(world: "FaultWorld", org: SimulatedOrg) -> None:
    """IS9: when no message is on its way, pool and org agree on the hold of a job.

    The pool counts with neither less nor more than the job can need. Work that could not be
    refunded because the hold had expired is refused by the ledger, and left out here.
    """
    objected = {receipt.job for receipt in org.objections}
    for name, known in org.jobs.items():
        rows = world.pools[known.pool].rows
        job = rows.jobs.get((org.id, name))
        hold = org.books.holds.get(HoldId(name))
        assert hold is not None
        if job is None or hold.closed_at is not None or name in objected:
            continue
        if (known.sent, known.received) == (job.received, job.sent):
            reported_ms = 0 if job.fence is None else rows.leases[job.fence].reported_ms
            [(_, rate)] = job.request.rates
            reported, need = (
                usage_price(rate, job.request.milli_gpus, ms)
                for ms in (reported_ms, job.remaining_ms)
            )
            left = job.hold_micros - job.used - reported
            right = min(left, need - reported) <= hold.open <= left
            invariant(right, "IS9: the two sides hold different amounts", job=job, open=hold.open)


def numbers_have_no_gap(world: "FaultWorld", org: SimulatedOrg) -> None:
    """IL19: events are numbered without a gap, and recorded time never goes back."""
    header = org.books.header
    count, at = world.checker.journal_marks.get(org.id, (0, 0))
    invariant(header.number == len(org.events), "IL19: a gap in the events", org=org.id)
    right = header.number >= count and header.now >= at
    invariant(right, "IL19: time or numbers run backwards", org=org.id)
    world.checker.journal_marks[org.id] = header.number, header.now


def nothing_is_objected(world: "FaultWorld", org: SimulatedOrg) -> None:
    """IL14, IM5: the ledger refuses nothing that a pool reports."""
    for receipt in org.objections:
        fail_invariant("IL14: usage was refused", org=org.id, receipt=receipt)


def accepted_jobs_are_there(world: "FaultWorld", org: SimulatedOrg) -> None:
    """IM7: a job whose submission was confirmed is never lost."""
    for owner, job in world.clients.accepted:
        invariant(owner != org.id or job in org.jobs, "IM7: a job was lost", job=job)


def messages_in_order(world: "FaultWorld", org: SimulatedOrg) -> None:
    """IA7: a handled message was sent to this pool; an unhandled one is stored."""
    for name, job in org.jobs.items():
        received: dict[str, int] = {}
        for pool in world.pools.values():
            row = pool.rows.jobs.get((org.id, name))
            if row is not None:
                received[pool.name] = row.received
                right = row.received <= job.sent and org.pool_of(name, row.received) == pool.name
                invariant(right, "IA7: a message from nowhere", job=name, pool=pool.name)
        sender = world.pools[job.pool].rows.jobs.get((org.id, name))
        right = job.received <= (0 if sender is None else sender.sent)
        invariant(right, "IA7: a message from nowhere", job=name)
        for n, target in enumerate(org.addressed.get(name, ()), start=1):
            right = n <= received.get(target, 0) or (name, n) in org.outbox
            invariant(right, "IA7: a message was thrown away", job=name, n=n)
        invariant(len(org.addressed.get(name, ())) == job.sent, "IA7: a gap", job=name)


def one_of_identical_jobs_leads(world: "FaultWorld", org: SimulatedOrg) -> None:
    """IM9: at most one of identical jobs leads; a follower has a hold and is in no pool."""
    leaders = Counter(job.digest for job in org.jobs.values() if job.leads)
    right = max(leaders.values(), default=0) <= 1
    invariant(right, "IM9: two of identical jobs lead", org=org.id, leaders=leaders)
    for name, job in org.jobs.items():
        right = not job.follows or (job.sent == 0 and not _rows_of(world, (org.id, name)))
        invariant(right, "IM9: a follower is in a pool", job=name)


def arrays_count_their_elements(world: "FaultWorld", org: SimulatedOrg) -> None:
    """IM10: an array's count of live elements is right, and within its limit."""
    for name, array in org.arrays.items():
        elements = [job for job in org.jobs.values() if job.array == name]
        live = sum(not job.is_finished for job in elements)
        right = (array.begun, array.live) == (len(elements), live) and live <= array.at_once
        invariant(right, "IM10: an array has miscounted", array=name, begun=array.begun, live=live)


def moves_follow_routes(world: "FaultWorld", org: SimulatedOrg) -> None:
    """IS16: a job is in the pool of its last completed route, and was sent to each pool once.

    A cancelled job stays in the pool that was asked to stop it.
    """
    for name, routes in org.routed.items():
        pools = [route.pool for route in routes]
        invariant(len(set(pools)) == len(pools), "IS16: sent to a pool twice", job=name)
        arrived = [route.pool for route in routes if route.arrived_at is not None]
        right = arrived[-1] == org.jobs[name].pool and len(pools) - len(arrived) <= 1
        invariant(right, "IS16: a job is not where its routes say", job=name, routes=routes)
        right = org.cancelled_in.get(name, arrived[-1]) == arrived[-1]
        invariant(right, "IS16: a cancelled job was sent on", job=name, routes=routes)


def _rows_of(world: "FaultWorld", key: JobKey) -> dict[str, PoolJob]:
    """A job's row in each pool that has one."""
    rows = {name: pool.rows.jobs.get(key) for name, pool in world.pools.items()}
    return {name: row for name, row in rows.items() if row is not None}


def _leases_of(world: "FaultWorld", key: JobKey) -> list[tuple[str, Lease]]:
    """The leases of a job, and their pools."""
    return [
        (name, lease)
        for name, pool in world.pools.items()
        for lease in pool.rows.leases.values()
        if lease.key == key
    ]


def _lease_of(world: "FaultWorld", key: JobKey, attempt: int) -> Lease | None:
    leases = world.pools[world.orgs[key[0]].jobs[key[1]].pool].rows.leases.values()
    return next((lease for lease in leases if lease.key == key and lease.attempt == attempt), None)


# Jobs of the pool, as they were and as they are


def _reachable() -> frozenset[tuple[JobState | None, JobState]]:
    """The states that a job can reach from a state in one transaction."""
    steps = {(source, target) for (source, _), target in TRANSITIONS.items()}
    for _ in range(2):
        steps |= {(a, d) for a, b in steps for c, d in steps if b == c and b not in FINISHED}
    return frozenset({*steps, *((state, state) for state in JobState)})


REACHABLE: Final = _reachable()


def life_follows_the_table(
    world: "FaultWorld", pool: SimulatedPool, before: PoolJob | None, job: PoolJob
) -> None:
    """IM6: each change of state is in the table; a finished job stays finished."""
    source = JobState.QUEUED if before is None else before.state
    right = (source, job.state) in REACHABLE and (source not in FINISHED or source is job.state)
    invariant(right, "IM6: no such step", job=job.job, before=source, now=job.state)


def attempts_are_numbered(
    world: "FaultWorld", pool: SimulatedPool, before: PoolJob | None, job: PoolJob
) -> None:
    """IS2: attempts follow each other; a job has one lease or none."""
    last = 0 if before is None else before.attempt
    invariant(job.attempt - last in (0, 1), "IS2: attempts are not numbered", job=job.job)
    rows = pool.rows
    live = [fence for fence in rows.live if rows.leases[fence].key == job.key]
    want = [job.fence] if rows.jobs[job.key].state in LIVE else []
    if job is rows.jobs[job.key]:
        invariant(live == want, "IS2: not one lease", job=job.job, live=live, fence=job.fence)


def _is_corrected(world: "FaultWorld", job: PoolJob) -> bool:
    return any(lease.corrected is not None for _, lease in _leases_of(world, job.key))


def waits_in_one_pool(
    world: "FaultWorld", pool: SimulatedPool, before: PoolJob | None, job: PoolJob
) -> None:
    """IS16: an unfinished job is in exactly one pool, the one that its org names."""
    if pool.rows.jobs[job.key].is_finished:
        return
    rows = _rows_of(world, job.key)
    open_in = [name for name, row in rows.items() if not row.is_finished]
    invariant(open_in == [pool.name], "IS16: a job waits in two pools", job=job.key, pools=open_in)
    known = world.orgs[job.org].jobs[job.job]
    invariant(known.pool == pool.name, "IS16: a job waits in another pool", job=job.key)


def credits_cover_what_runs(
    world: "FaultWorld", pool: SimulatedPool, before: PoolJob | None, job: PoolJob
) -> None:
    """IS9: what a job has used was held for it, by its org as well.

    After a correction charged lost work, run time of another attempt may still be reported (L13).
    """
    right = job.used <= job.hold_micros or (job.is_finished and _is_corrected(world, job))
    invariant(right, "IS9: used more than it has", job=job.job)
    hold = world.orgs[job.org].books.holds.get(HoldId(job.job))
    invariant(hold is not None, "IS9: a job without a hold", job=job.job)


# Leases, as they were and as they are


def fences_grow(
    world: "FaultWorld", pool: SimulatedPool, before: Lease | None, lease: Lease
) -> None:
    """IS4: each new lease has a larger fence than all before it."""
    if before is None:
        fences = world.checker.fences
        invariant(lease.fence > fences[pool.name], "IS4: a fence was used before", lease=lease)
        fences[pool.name] = lease.fence


def attempts_stay_in_a_pool(
    world: "FaultWorld", pool: SimulatedPool, before: Lease | None, lease: Lease
) -> None:
    """IS2: all attempts of a job are in one pool."""
    if before is None:
        others = [name for name, _ in _leases_of(world, lease.key) if name != pool.name]
        invariant(not others, "IS2: attempts in two pools", lease=lease, others=others)


def gangs_are_whole(
    world: "FaultWorld", pool: SimulatedPool, before: Lease | None, lease: Lease
) -> None:
    """IS8: a lease has all GPUs that its job needs, and keeps them."""
    if before is None:
        pieces = [part.piece for part in lease.parts]
        slots = world.profile.slots
        has = sum(len(piece.gpus) * (piece.slots * MILLI // slots) for piece in pieces)
        want = pool.rows.jobs[lease.key].request.milli_gpus
        invariant(has == want, "IS8: half a gang, or more than was paid for", lease=lease)
    else:
        pieces, earlier = ([part.piece for part in row.parts] for row in (lease, before))
        invariant(pieces == earlier, "IS8: a lease has moved", lease=lease)


def silent_nodes_get_nothing(
    world: "FaultWorld", pool: SimulatedPool, before: Lease | None, lease: Lease
) -> None:
    """IS15: new leases are only on nodes that have reported recently."""
    if before is None:
        for part in lease.parts:
            heard_at = pool.rows.machines[part.piece.node].reported_at
            right = heard_at is not None and lease.leased_at < heard_at + LEASE_TTL
            invariant(right, "IS15: leased on a silent node", node=part.piece.node)


def what_is_withdrawn_gets_nothing(
    world: "FaultWorld", pool: SimulatedPool, before: Lease | None, lease: Lease
) -> None:
    """IM6: a cancelled job does not start any more."""
    withdrawn = before is None and pool.rows.jobs[lease.key].withdrawn
    invariant(not withdrawn, "IM6: a withdrawn job was started", lease=lease)


def readings_grow(
    world: "FaultWorld", pool: SimulatedPool, before: Lease | None, lease: Lease
) -> None:
    """IM1: proven run time never decreases, and is at most the time of the lease."""
    if before is not None:
        invariant(lease.run_ms >= before.run_ms, "IM1: a reading went back", lease=lease)
        last = max(part.until for part in lease.parts)
        most = (min(pool.rows.now, last) - lease.leased_at) // MILLISECOND
        invariant(lease.run_ms <= max(most, 0), "IM1: longer than its lease", lease=lease)


def stale_fences_change_nothing(
    world: "FaultWorld", pool: SimulatedPool, before: Lease | None, lease: Lease
) -> None:
    """IM2, IM3: a lease that has ended or expired is not extended, and ends once."""
    if before is None:
        return
    if before.ended_at is not None:
        end, earlier = ((row.ended_at, row.why, row.parts) for row in (lease, before))
        invariant(end == earlier, "IM3: an attempt has ended twice", lease=lease)
        same = lease.kept_ms == before.kept_ms or lease.corrected is not None
        invariant(same, "IM3: another part of its work is kept", lease=lease)
    now = pool.rows.now
    for part, old in zip(lease.parts, before.parts, strict=True):
        right = part.until <= old.until or (old.exit is None and now < old.until)
        invariant(right, "IM2: renewed after its end", lease=lease)
        is_reported = part.exit is not old.exit and part.exit is not Exit.GONE
        invariant(not is_reported or now < old.until, "IM2: a late result counts", lease=lease)


def holds_outlive_leases(
    world: "FaultWorld", pool: SimulatedPool, before: Lease | None, lease: Lease
) -> None:
    """IS9: no lease lasts longer than its job's hold, or than its credits."""
    if not lease.is_live:
        return
    job = pool.rows.jobs[lease.key]
    rate = dict(job.request.rates)[lease.gpu_type]
    price = usage_price(rate, job.request.milli_gpus, lease.run_ms_max)
    right = all(part.until <= max(job.hold_until, lease.leased_at) for part in lease.parts)
    invariant(right, "IS9: a lease outlives its hold", lease=lease)
    right = job.used + price <= job.hold_micros or lease.run_ms == lease.run_ms_max
    invariant(right, "IS9: runs without credits", lease=lease)


# The pool as a whole


def slots_are_leased_once(world: "FaultWorld", pool: SimulatedPool) -> None:
    """IS1: no part of a GPU is in two live leases."""
    taken: Counter[tuple[NodeId, int]] = Counter()
    for fence in pool.rows.live:
        for part in pool.rows.leases[fence].parts:
            for gpu in part.piece.gpus:
                taken[part.piece.node, gpu] += part.piece.slots
    most = max(taken.values(), default=0)
    invariant(most <= world.profile.slots, "IS1: a GPU in two leases", taken=taken)


def epochs_grow(world: "FaultWorld", pool: SimulatedPool) -> None:
    """IS4: the leader's epoch never goes back."""
    epochs, epoch = world.checker.epochs, pool.rows.epoch
    invariant(epoch >= epochs[pool.name], "IS4: an epoch went back", pool=pool.name)
    epochs[pool.name] = epoch


def clocks_are_believed_rightly(world: "FaultWorld", pool: SimulatedPool) -> None:
    """IS7: no node with a clock within its bounds is suspected."""
    if world.profile.node_ppm <= 10_000:
        for machine in pool.rows.machines.values():
            invariant(not machine.wrong_clock, "IS7: a sound clock is suspected", node=machine.id)


def epochs_agree(used: int, epoch: int) -> None:
    """IS5: what is written was decided by the current leader."""
    invariant(used == epoch, "IS5: a former leader has written", used=used, epoch=epoch)


# Processes that really run


def _running(world: "FaultWorld") -> Iterator[tuple[NodeHost, HostedProcess]]:
    """The processes that run at this instant, without those that are frozen with their node.

    Also without those that continue for a moment when a node resumes after their time: no clock can
    prevent this, and their run time does not count.
    """
    for host in world.hosts.values():
        if host.frozen_until <= world.at:
            for task in host.tasks.values():
                if task.is_alive and task.outlived_at is None:
                    yield host, task


def nothing_runs_twice(world: "FaultWorld") -> None:
    """IS2: no two attempts of a job run at the same time."""
    running: dict[JobKey, tuple[str, int]] = {}
    for host, task in _running(world):
        attempt = host.pool, task.fence
        other = running.setdefault(task.key, attempt)
        invariant(
            other == attempt, "IS2: a job runs twice", job=task.key, attempts=(other, attempt)
        )


def gpus_are_used_once(world: "FaultWorld") -> None:
    """IS1: no part of a GPU has two processes, even if one should have ended long ago."""
    for host in world.hosts.values():
        taken: Counter[int] = Counter()
        for task in host.tasks.values():
            for gpu in task.piece.gpus if task.is_alive else ():
                taken[gpu] += task.piece.slots
        most = max(taken.values(), default=0)
        invariant(most <= host.slots, "IS1: two on one GPU", node=host.id, taken=taken)


def nothing_outlives_its_lease(world: "FaultWorld") -> None:
    """IS7: a process ends before its pool counts its GPUs as free, with any clocks."""
    for host, task in _running(world):
        lease = world.pools[host.pool].rows.leases[task.fence]
        part = lease.part_on(host.id)
        right = lease.is_live and part is not None and part.exit is None
        invariant(right, "IS7: a process without a lease", node=host.id, fence=task.fence)


def what_has_thawed_dies(world: "FaultWorld") -> None:
    """IS7: a process whose time ended while it was frozen ends as soon as a guard can act."""
    for host in world.hosts.values():
        for task in host.tasks.values():
            if task.is_alive and task.outlived_at is not None and host.frozen_until <= world.at:
                right = world.at <= task.outlived_at + KILL_SPAN
                invariant(right, "IS7: a guard has slept", node=host.id, fence=task.fence)


def started_once(watch: "InvariantChecker", host: NodeHost, task: HostedProcess) -> None:
    """IS3: each attempt starts at most once on each of its nodes."""
    invariant(
        (host.id, task.fence) not in watch.started_processes, "IS3: started twice", fence=task.fence
    )


def started_in_order(watch: "InvariantChecker", host: NodeHost, task: HostedProcess) -> None:
    """IS6: a node starts no fence smaller than an earlier one, also after restarts."""
    largest = max((fence for node, fence in watch.started_processes if node == host.id), default=0)
    right = task.fence > largest and host.fence == task.fence
    invariant(right, "IS6: an old fence was started", fence=task.fence, largest=largest)


# At the end


def holds_are_closed(world: "FaultWorld") -> None:
    """IM4, IV2: all jobs have finished, and nothing is held for them."""
    for org in world.orgs.values():
        for name, hold in org.books.holds.items():
            invariant(hold.closed_at is not None, "IM4: a hold was left", org=org.id, hold=name)
        held = sum(grant.held for _, grant in org.books.grants.items())
        invariant(held == 0, "IM4: credits were left in holds", org=org.id, held=held)


def both_sides_agree(world: "FaultWorld") -> None:
    """IL12, IM3, IM5: each attempt was settled once, at the price that its pool accepted."""
    for lease in _all_leases(world):
        meter = _meter_of(world, lease)
        ran = lease.run_ms if lease.kept_ms is None else lease.kept_ms
        late = _ended_by_itself(world, lease)
        invariant(meter.run_ms == ran, "IM5: the two sides differ", lease=lease, meter=meter)
        invariant(meter.settled or late, "IM3: an attempt was not settled", lease=lease)


def _ended_by_itself(world: "FaultWorld", lease: Lease) -> bool:
    """Whether a hold expired before its org received the end of an attempt.

    Then its run time is booked as late usage, which settles nothing.
    """
    return any(
        isinstance(event, HoldClosed)
        and event.hold == HoldId(lease.job)
        and event.why is Closing.ENDED
        for event in world.orgs[lease.org].events
    )


def lost_work_is_free(world: "FaultWorld") -> None:
    """IM8: work lost by a preemption or with a node is not charged.

    Except after a correction: then the corrected end class counts.
    """
    free = {EndClass.PLATFORM, EndClass.PREEMPTION}
    for lease in _all_leases(world):
        by_itself = EndClass.PLATFORM if lease.why in (Cause.LOST, Cause.PREEMPTED) else None
        whose = lease.corrected or by_itself
        own = lease.why is Cause.FINISHED or (
            lease.why is Cause.MADE_ROOM and whose is EndClass.PREEMPTION
        )
        if whose in free and not own:
            saved_ms = min(part.saved_ms for part in lease.parts)
            meter = _meter_of(world, lease)
            right = meter.run_ms <= saved_ms
            invariant(right, "IM8: lost work was charged", lease=lease, meter=meter)


def failures_are_own(world: "FaultWorld") -> None:
    """IM3: a job counts as failed only if one of its own processes failed."""
    for pool in world.pools.values():
        failed = {
            task.fence for task in pool.tasks if task.exit is Exit.FAILED and not task.misses_gang
        }
        for lease in pool.rows.leases.values():
            right = lease.why is not Cause.FAILED or lease.fence in failed
            invariant(right, "IM3: a loss was taken for a failure", lease=lease)


def _all_leases(world: "FaultWorld") -> Iterator[Lease]:
    for pool in world.pools.values():
        yield from pool.rows.leases.values()


def _meter_of(world: "FaultWorld", lease: Lease) -> Meter:
    hold = world.orgs[lease.org].books.holds.get(HoldId(lease.job))
    meter = None if hold is None else hold.meter(lease.attempt)
    invariant(meter is not None, "IM3: an attempt was never charged", lease=lease)
    assert meter is not None
    return meter


def usage_was_real(world: "FaultWorld") -> None:
    """IM1: no more is charged than the longest of an attempt's processes really ran."""
    for pool in world.pools.values():
        ran: Counter[int] = Counter()
        for task in pool.tasks:
            assert task.truly_ended_at is not None
            span = task.truly_ended_at - task.truly_started_at
            ran[task.fence] = max(ran[task.fence], span)
        for lease in pool.rows.leases.values():
            most = ran[lease.fence] * 102 // 100 // MILLISECOND + 1
            invariant(lease.run_ms <= most, "IM1: more than it ran", lease=lease, most=most)


def no_move_is_left(world: "FaultWorld") -> None:
    """IS16: a job that a pool returned has finished in another pool, or was cancelled."""
    for pool in world.pools.values():
        for key, row in pool.rows.jobs.items():
            job = world.orgs[row.org].jobs[row.job]
            if row.state is JobState.MOVED:
                right = (
                    job.withdrawn
                    if job.pool == pool.name
                    else key in world.pools[job.pool].rows.jobs
                )
                invariant(right, "IS16: a job was lost on its way", job=key)


def books_follow_from_events(world: "FaultWorld") -> None:
    """IL4: books rebuilt from the events are equal, and all sums and indexes are right."""
    for org in world.orgs.values():
        again = rebuild(org.events, PRICES)
        invariant(again == org.books, "IL4: rebuilt books differ", org=org.id)
        problems = find_problems(org.books)
        invariant(not problems, "IL4: the books do not add up", org=org.id, problems=problems)


def nothing_is_owed(world: "FaultWorld") -> None:
    """IL14: no attempt ran beyond what was held for it.

    Except after a correction: other holds may have used the credits meanwhile.
    """
    corrected = {lease.key for lease in _all_leases(world) if lease.corrected is not None}
    for org in world.orgs.values():
        for name, hold in org.books.holds.items():
            right = hold.owed == hold.absorbed == 0 or (org.id, JobId(name)) in corrected
            invariant(right, "IL14: ran into debt", org=org.id, hold=name, owed=hold.owed)


OF_ORGS: Final[dict[str, Callable[["FaultWorld", SimulatedOrg], None]]] = {
    "IL1": conservation,
    "IL5": holds_are_draws,
    "IL11": holds_stay,
    "IS9": both_know_what_is_held,
    "IL12": charges_follow_readings,
    "IL19": numbers_have_no_gap,
    "IL14": nothing_is_objected,
    "IM7": accepted_jobs_are_there,
    "IA7": messages_in_order,
    "IM9": one_of_identical_jobs_leads,
    "IM10": arrays_count_their_elements,
    "IS16": moves_follow_routes,
}
OF_JOBS: Final[
    dict[str, Callable[["FaultWorld", SimulatedPool, PoolJob | None, PoolJob], None]]
] = {
    "IM6": life_follows_the_table,
    "IS2": attempts_are_numbered,
    "IS9": credits_cover_what_runs,
    "IS16": waits_in_one_pool,
}
OF_LEASES: Final[dict[str, Callable[["FaultWorld", SimulatedPool, Lease | None, Lease], None]]] = {
    "IS2": attempts_stay_in_a_pool,
    "IS4": fences_grow,
    "IS8": gangs_are_whole,
    "IS15": silent_nodes_get_nothing,
    "IM6": what_is_withdrawn_gets_nothing,
    "IM1": readings_grow,
    "IM2": stale_fences_change_nothing,
    "IS9": holds_outlive_leases,
}
OF_THE_POOL: Final[dict[str, PoolCheck]] = {
    "IS1": slots_are_leased_once,
    "IS4": epochs_grow,
    "IS7": clocks_are_believed_rightly,
}
OF_PROCESSES: Final[dict[str, Check]] = {
    "IS1": gpus_are_used_once,
    "IS2": nothing_runs_twice,
    "IS7": nothing_outlives_its_lease,
    "IS7, thawed": what_has_thawed_dies,
}
AT_THE_END: Final[dict[str, Check]] = {
    "IM4": holds_are_closed,
    "IM5": both_sides_agree,
    "IM3": failures_are_own,
    "IM8": lost_work_is_free,
    "IM1": usage_was_real,
    "IL4": books_follow_from_events,
    "IL14": nothing_is_owed,
    "IS16": no_move_is_left,
}
