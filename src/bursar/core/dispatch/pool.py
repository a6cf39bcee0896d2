"""A pool at work: messages of orgs, decisions of the leader, reports of nodes, expired leases.

Every function is one event of a `PoolTransaction`: it reads rows, writes rows and messages, and
returns the answer.

    org ── Enqueue, Withdraw, Leave,
                  HoldGrew, Correct ────▶ receive
                        the leader only ─▶ place, preempt
    node ── NodeReport ─────────────────▶ report ──▶ LeaseOrders
                   any process, polling ─▶ expire, lead
    org ◀── Started, RanSoFar, Ended, Corrected, Dropped, Left ──

**Nodes ask.** A node reports all its processes every five seconds, and the answer contains all its
leases. The pool sends nothing else, so a lost, repeated or delayed message cannot start or stop a
process: a lease is part of the answer to a report, and counts from when that report was *sent*.
Reports are numbered; one that is not newer than the last is ignored.

**Rights and facts.** A lease is a right until an instant; every report before it renews the lease.
After that, the node can neither renew nor end it, but the run time it reports still counts, up to
the end of the lease (M4). The GPUs become free when the node reports that the process has ended, or
a margin after the end of the lease: by then the node's guard has ended the process.

**A gang** has one lease with a part on each of its nodes. It ends when its last process has. If one
process fails or is lost, the others are asked to stop.

**Leading.** A leader has an epoch; the next leader has a larger one. Decisions are checked against
it in the transaction that writes them. So decisions of a leader that was suspended and replaced are
refused.
"""

from collections.abc import Iterable
from typing import NamedTuple

from bursar.core.dispatch.attempt_end import (
    affords,
    affords_a_run,
    check_lease,
    correct_end,
    drop_job,
    lease_of,
    report_interval_of,
    request_stop,
    run_ms_max,
    with_part,
    with_step,
)
from bursar.core.dispatch.job_lifecycle import END_CLASSES, LIVE, WAITING, JobState
from bursar.core.dispatch.quarantine import is_usable, state_of
from bursar.core.dispatch.reports import START_TIMEOUT
from bursar.core.dispatch.state import (
    LEADER_TERM,
    NO_TROUBLE,
    Exit,
    JobKey,
    JobMessage,
    Lease,
    LeasePart,
    PoolJob,
    PoolNode,
    PoolTransaction,
    key_of_name,
)
from bursar.core.ids import NodeId
from bursar.core.instant import Instant
from bursar.core.leases import LEASE_MARGIN, Denied, lease_end
from bursar.core.messages import (
    Cause,
    Correct,
    Dropped,
    Enqueue,
    HoldGrew,
    Leave,
    Left,
    Withdraw,
)
from bursar.core.refusal import fail_invariant
from bursar.core.scheduling.decisions import Decision, EarmarkGpus, Preempt, Start
from bursar.core.scheduling.model.jobs import Earmark, slots_for
from bursar.core.scheduling.model.nodes import Node, NodeState, Piece
from bursar.core.value import replace


class Placement(NamedTuple):
    """Where a job is to run."""

    key: JobKey
    gpu_type: str
    pieces: tuple[Piece, ...]


# Nodes


def register_node(work: PoolTransaction, node: Node) -> Denied | None:
    """Add a node to the pool, or update it; its GPUs cannot change while a job runs on it.

    The state stays: a draining node drains, and an ordered node becomes ready at its first report.
    """
    known = work.machine(node.id)
    if known is None:
        work.put(PoolNode(node=node))
        return None
    node = replace(node, state=known.node.state, ready_at=known.node.ready_at)
    if known.node != node:
        if _gpus(known.node) != _gpus(node) and any(True for _ in work.live_on(node.id)):
            return Denied.NODE_BUSY
        work.put(replace(known, node=node))
    return None


def set_node_state(work: PoolTransaction, node: NodeId, state: NodeState) -> bool:
    """Drain a node, or make it ready and clear its faults; False if it is unknown.

    Making it ready also clears the mark of a wrong clock; the clock is then compared again. An
    ordered node becomes ready at its first report, not before.
    """
    machine = work.machine(node)
    if machine is None:
        return False
    if state is NodeState.READY:
        machine = replace(machine, trouble=NO_TROUBLE, wrong_clock=False, clock_sample=None)
    if machine.node.state is not NodeState.ON_ORDER:
        machine = replace(machine, node=replace(machine.node, state=state))
    work.put(machine)
    return True


def reset_reports(work: PoolTransaction, node: NodeId) -> Denied | None:
    """Accept the next report of a node whatever number it has.

    Only while the node has no lease: an agent that lost its disk could start an attempt twice.
    """
    machine = work.machine(node)
    if machine is None:
        return Denied.NODE_UNKNOWN
    if any(True for _ in work.live_on(node)):
        return Denied.NODE_BUSY
    work.put(replace(machine, boot=0, n=0, clock_sample=None))
    return None


def _gpus(node: Node) -> tuple[str, int, int]:
    return node.gpu_type, node.gpus, node.slots


# Leading


def lead(work: PoolTransaction, process: str, *, anyway: bool = True) -> int | None:
    """Lead the pool for another term; returns the epoch, or None while another process leads it.

    A pool at rest needs no leader, except if the caller wants to lead it `anyway`. Terms follow the
    clock. If the clock was ahead once, the pool's time stands still until the clock has caught up,
    and a term that ends later than any term can end is void.
    """
    if work.now < work.leader_due_at and not anyway:
        return None
    if work.leader != process:
        if work.clock < work.leads_until <= work.clock + LEADER_TERM:
            return None
        work.leader, work.epoch = process, work.epoch + 1
    work.leads_until = work.clock + LEADER_TERM
    return work.epoch


# Messages of orgs


def receive(work: PoolTransaction, envelope: JobMessage) -> bool:
    """Handle a message of an org; return whether it is done with and needs no redelivery.

    A message that arrives before an earlier one is left for redelivery. The first message of a job
    here is an `Enqueue`, with any number: earlier ones went to other pools, and it includes their
    effect.
    """
    job, message = work.job((envelope.org, envelope.job)), envelope.message
    if job is None:
        if isinstance(message, Enqueue):
            _enqueue(work, envelope, message)
            return True
        if envelope.n == 1:
            fail_invariant("a job begins with something else", job=envelope.job, message=message)
        return False
    if envelope.n != job.received + 1:
        return envelope.n <= job.received
    job = replace(job, received=envelope.n)
    work.put(job)
    if isinstance(message, Withdraw):
        _withdraw(work, job)
    elif isinstance(message, Leave):
        _leave(work, job)
    elif isinstance(message, HoldGrew):
        _grow_hold(work, job, message)
    elif isinstance(message, Correct):
        _correct(work, job, message)
    else:
        fail_invariant("a pool cannot handle this", job=envelope.job, message=message)
    return True


def _enqueue(work: PoolTransaction, envelope: JobMessage, ask: Enqueue) -> None:
    job = PoolJob(
        org=envelope.org,
        job=envelope.job,
        request=ask,
        hold_micros=ask.hold_micros,
        hold_until=ask.hold_until,
        requeues_left=ask.spec.requeues,
        queued_at=work.now,
        received=envelope.n,
    )
    if not affords_a_run(job):
        job = replace(job, state=JobState.OUT_OF_CREDITS, why=Cause.OUT_OF_CREDITS)
    work.put(job)


def _withdraw(work: PoolTransaction, job: PoolJob) -> None:
    first = not job.withdrawn
    job = replace(job, withdrawn=True)
    work.put(job)
    if job.state in WAITING:
        drop_job(work, job, Cause.CANCELLED)
    elif job.state in LIVE:
        request_stop(work, lease_of(work, job), Cause.CANCELLED)
    elif job.state is JobState.MOVED and first:  # cancelled before the org received `Left`
        work.send(job.key, Dropped(end_class=END_CLASSES[Cause.CANCELLED], why=Cause.CANCELLED))


def _leave(work: PoolTransaction, job: PoolJob) -> None:
    """Return a job without an attempt to its org. Otherwise it stays: its checkpoints are here.

    Its org then receives the start instead, or an end that was sent before.
    """
    if job.state in WAITING and job.attempt == 0:
        work.put(with_step(job, Cause.MOVED))
        work.send(job.key, Left())


def _grow_hold(work: PoolTransaction, job: PoolJob, grew: HoldGrew) -> None:
    """Apply a larger hold: a live attempt may run longer, a waiting job may run again."""
    until = max(job.hold_until, grew.until)
    job = replace(job, hold_micros=job.hold_micros + grew.added, hold_until=until)
    work.put(job)
    if job.state in LIVE:
        lease = lease_of(work, job)
        most = run_ms_max(job, lease.gpu_type)
        report_interval_ms = report_interval_of(job, lease.gpu_type)
        work.put(replace(lease, run_ms_max=most, report_interval_ms=report_interval_ms))
    elif job.state is JobState.OUT_OF_CREDITS and affords_a_run(job):
        work.put(with_step(job, Cause.TOPPED_UP))


def _correct(work: PoolTransaction, job: PoolJob, correction: Correct) -> None:
    """Correct the end of an attempt of a finished job."""
    lease = work.attempt(job.key, correction.attempt)
    if lease is None or not job.is_finished:
        fail_invariant("this attempt cannot be corrected", job=job.key, attempt=correction.attempt)
    correct_end(work, lease, correction.end_class)


# What the leader decides


def place(work: PoolTransaction, epoch: int, where: Placement) -> Lease | Denied:
    """Give a waiting job a lease, or deny it."""
    job = work.job(where.key)
    denied = _placement_denied(work, epoch, where, job)
    if denied is not None:
        return denied
    assert job is not None
    work.fence += 1
    job = replace(with_step(job, Cause.PLACED, work.fence), attempt=job.attempt + 1)
    until = lease_end(work.now, min(job.hold_until, work.now + START_TIMEOUT))
    lease = Lease(
        fence=work.fence,
        org=job.org,
        job=job.job,
        attempt=job.attempt,
        gpu_type=where.gpu_type,
        leased_at=work.now,
        parts=tuple(LeasePart(piece=piece, until=until) for piece in where.pieces),
        run_ms_max=run_ms_max(job, where.gpu_type),
        report_interval_ms=report_interval_of(job, where.gpu_type),
    )
    work.put(job)
    work.put(lease)
    return lease


def _placement_denied(
    work: PoolTransaction, epoch: int, where: Placement, job: PoolJob | None
) -> Denied | None:
    """Why a job cannot be placed; None if it can."""
    if epoch != work.epoch:
        return Denied.EPOCH_STALE
    if job is None:
        return Denied.JOB_UNKNOWN
    if job.state is not JobState.QUEUED:
        return Denied.NOT_QUEUED
    if where.gpu_type not in dict(job.request.rates):
        return Denied.TYPE_NOT_PRICED
    if job.hold_until <= work.now or not affords(job, where.gpu_type):
        return Denied.HOLD_ENDED
    if work.exceeds_quota(job, where.gpu_type):
        return Denied.OVER_QUOTA
    shape, gpus = job.request.spec.shape, 0
    for piece in where.pieces:
        machine = work.machine(piece.node)
        denied = _piece_denied(work, piece, where.gpu_type, machine)
        if denied is not None:
            return denied
        assert machine is not None
        if piece.slots != slots_for(shape, machine.node.slots):
            return Denied.WRONG_SIZE
        gpus += len(piece.gpus)
    return None if gpus == shape.tasks * (shape.gpus or 1) else Denied.WRONG_SIZE


def _piece_denied(
    work: PoolTransaction, piece: Piece, gpu_type: str, machine: PoolNode | None
) -> Denied | None:
    """Why a piece of a node cannot be leased; None if it can."""
    if machine is None:
        return Denied.NODE_UNKNOWN
    if not is_usable(machine, work.now):
        return Denied.NODE_SILENT
    if state_of(machine, work.now) is not NodeState.READY:
        return Denied.NODE_NOT_READY
    if machine.node.gpu_type != gpu_type:
        return Denied.TYPE_NOT_PRICED
    if any(not 0 <= gpu < machine.node.gpus for gpu in piece.gpus):
        return Denied.SLOT_UNKNOWN
    taken = dict.fromkeys(piece.gpus, piece.slots)
    for lease in work.live_on(piece.node):
        part = lease.part_on(piece.node)
        assert part is not None
        for gpu in part.piece.gpus:
            if gpu in taken:
                taken[gpu] += part.piece.slots
    return Denied.SLOT_TAKEN if max(taken.values()) > machine.node.slots else None


def preempt(work: PoolTransaction, epoch: int, key: JobKey, wanted_by: JobKey) -> Denied | None:
    """Ask a running job to stop for another; None if it is asked, now or earlier.

    Denied if the other job no longer waits.
    """
    if epoch != work.epoch:
        return Denied.EPOCH_STALE
    job, other = work.job(key), work.job(wanted_by)
    if job is None or job.state not in LIVE:
        return Denied.FENCE_STALE
    if other is not None and other.state is not JobState.QUEUED:
        return Denied.NOT_QUEUED
    own = wanted_by[0] == job.org
    request_stop(work, lease_of(work, job), Cause.MADE_ROOM if own else Cause.PREEMPTED)
    return None


def set_earmark(work: PoolTransaction, epoch: int, mark: EarmarkGpus) -> Denied | None:
    """Store which GPUs are freed for a job, so that a later leader starts it there (S5)."""
    if epoch != work.epoch:
        return Denied.EPOCH_STALE
    job = work.job(key_of_name(mark.job))
    if job is None or job.state is not JobState.QUEUED:
        return Denied.NOT_QUEUED
    earmark = Earmark(
        job=mark.job,
        gpu_type=mark.gpu_type,
        pieces=mark.pieces,
        victims=mark.victims,
        since=work.now,
    )
    work.put(replace(job, earmark=earmark))
    return None


def _clear_earmark(work: PoolTransaction, epoch: int, key: JobKey) -> None:
    """Remove the earmark of a job that could not be started on it."""
    job = work.job(key)
    if epoch == work.epoch and job is not None and job.earmark is not None:
        work.put(replace(job, earmark=None))


class PlanOutcome(NamedTuple):
    """The result of carrying out a plan."""

    placed: tuple[Lease, ...]
    stopping: tuple[JobKey, ...]  # to make room
    denied: tuple[Denied, ...]  # if not empty, the leader's memory is out of date
    audit_events: int = 0  # events of the pool's audit stream by then


def carry_out(work: PoolTransaction, epoch: int, decisions: Iterable[Decision]) -> PlanOutcome:
    """Carry out the leader's decisions; each one that is no longer possible is denied."""
    placed: list[Lease] = []
    stopping: list[JobKey] = []
    denied: list[Denied] = []
    for decision in decisions:
        if isinstance(decision, Start):
            lease = place(
                work,
                epoch,
                Placement(key_of_name(decision.job), decision.gpu_type, decision.pieces),
            )
            if isinstance(lease, Lease):
                placed.append(lease)
            else:
                denied.append(lease)
                _clear_earmark(work, epoch, key_of_name(decision.job))
        elif isinstance(decision, Preempt):
            stale = preempt(work, epoch, key_of_name(decision.job), key_of_name(decision.wanted_by))
            if stale is None:
                stopping.append(key_of_name(decision.job))
            else:
                denied.append(stale)
        elif isinstance(decision, EarmarkGpus):
            denied += filter(None, [set_earmark(work, epoch, decision)])
    return PlanOutcome(tuple(placed), tuple(stopping), tuple(denied))


# Expiry


def expire(work: PoolTransaction) -> int:
    """End leases that have run out and waiting jobs whose holds have ended; return how many.

    The GPUs of a silent node become free only now. Its guard has ended the process before the end
    of the lease by the node's clock, which may be behind the pool's by the margin.
    """
    ended = 0
    for lease in work.live():
        silent = [part for part in lease.parts if _has_run_out(part, work.now)]
        if silent:
            ended += 1
            for part in silent:
                lease = with_part(lease, replace(part, exit=Exit.GONE))
            work.put(lease)
            check_lease(work, lease)
    for job in work.jobs_without_hold():
        ended += 1
        drop_job(work, job, Cause.HOLD_ENDED)
    return ended


def _has_run_out(part: LeasePart, now: Instant) -> bool:
    return part.exit is None and part.until + LEASE_MARGIN <= now
