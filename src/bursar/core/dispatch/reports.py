"""Handles the reports of nodes and builds the answers.

A reading proves how long a process has run, up to the end of its lease. The first reading is the
start of the attempt. A report renews the node's leases, and the answer lists them.
"""

from typing import Final

from bursar.core.dispatch.attempt_end import (
    affords_a_run,
    check_lease,
    job_of,
    lease_of,
    rate_of,
    report_run,
    report_start,
    run_ms_max,
    with_part,
    with_step,
)
from bursar.core.dispatch.job_lifecycle import LIVE, JobState
from bursar.core.dispatch.state import (
    ClockSample,
    Exit,
    Lease,
    LeasePart,
    PoolNode,
    PoolTransaction,
)
from bursar.core.ids import JobId, NodeId
from bursar.core.instant import MILLISECOND, SECOND, Instant
from bursar.core.leases import latest_lease_end, lease_end, provable_ms
from bursar.core.messages import Cause, Program
from bursar.core.money import usage_price
from bursar.core.scheduling.model.nodes import NodeState, Piece
from bursar.core.value import replace, value

START_TIMEOUT: Final = 60 * SECOND  # or the attempt is lost: its node may not hear us
DRIFT_PPM: Final = 10_000  # by how much a node's clock may run faster or slower
CLOCK_SPAN_MIN: Final = 30 * SECOND  # clocks are compared over at least so long
CLOCK_JUMP_MAX: Final = 10 * SECOND  # by which the pool's own clock may have been put meanwhile
BOOT_STEP_MAX: Final = 1_000_000  # starts of an agent that the pool may not have heard of


@value
class Reading:
    """A node's reading of one process."""

    fence: int
    run_ms: int
    saved_ms: int = 0
    run_ms_at_stop: int | None = None  # what it had run when it was asked to stop
    exit: Exit | None = None
    exit_code: int | None = None
    result: str | None = None  # what the process has left, as JSON


@value
class NodeReport:
    """All processes of a node, at one instant of its own clock."""

    node: NodeId
    boot: int  # how often its agent was started
    number: int  # since then
    at: Instant  # by its running time
    answered_at: Instant | None  # the instant in the last answer it has had
    readings: tuple[Reading, ...] = ()


@value
class LeaseOrder:
    """A lease of a node, in the answer to its report."""

    fence: int
    org: str
    job: JobId
    attempt: int
    piece: Piece
    ttl_us: int  # from when the answered report was sent
    run_ms_max: int
    program: Program
    nodes: tuple[NodeId, ...]  # of the whole attempt, the first leads a gang
    stop: bool = False


@value
class LeaseOrders:
    """The answer to a report: all leases of the node. Other processes have to end."""

    node: NodeId
    boot: int
    number: int  # of the report
    at: Instant  # by the pool's clock
    leases: tuple[LeaseOrder, ...] = ()


def has_news(report: NodeReport, orders: LeaseOrders) -> bool:
    """Whether the orders differ from what the node reports; an earlier answer may be lost."""
    is_stopping = {
        reading.fence: reading.run_ms_at_stop is not None
        for reading in report.readings
        if reading.exit is None
    }
    if is_stopping.keys() != {lease.fence for lease in orders.leases}:
        return True
    return any(lease.stop and not is_stopping[lease.fence] for lease in orders.leases)


def receive_report(work: PoolTransaction, report: NodeReport) -> LeaseOrders | None:
    """Apply a node's readings and renew its leases; None if the report is not newer."""
    machine = work.machine(report.node)
    if machine is None or not is_next_report(machine, report):
        return None
    work.put(_node_after(work, machine, report))
    for reading in report.readings:
        lease = work.lease(reading.fence)
        part = None if lease is None else lease.part_on(report.node)
        if lease is not None and part is not None:
            _apply_reading(work, lease, part, reading)
    return renew_leases(work, report)


def is_next_report(machine: PoolNode, report: NodeReport) -> bool:
    """Whether a report is newer than the last one of its node, and credible.

    A node counts its starts. A count far ahead would shut out the reports of the real agent.
    """
    is_newer = (report.boot, report.number) > (machine.boot, machine.n)
    return is_newer and report.boot <= machine.boot + BOOT_STEP_MAX


def renew_leases(work: PoolTransaction, report: NodeReport) -> LeaseOrders:
    """Renew all leases of a node and list them, as the answer to a report."""
    orders = []
    for lease in work.live_on(report.node):
        part = lease.part_on(report.node)
        if part is not None and part.exit is None and work.now < part.until:
            orders.append(_renew_part(work, lease, part))
    return LeaseOrders(
        node=report.node, boot=report.boot, number=report.number, at=work.now, leases=tuple(orders)
    )


def _node_after(work: PoolTransaction, machine: PoolNode, report: NodeReport) -> PoolNode:
    """The node after a report; its clock is compared with the pool's."""
    clock_sample, wrong = machine.clock_sample, machine.wrong_clock
    if report.answered_at is not None:
        this = ClockSample(report.at, report.answered_at, work.now)
        if clock_sample is None or report.boot != machine.boot:
            clock_sample = this
        else:
            wrong = wrong or clocks_differ(clock_sample, this)
    machine = replace(
        machine,
        boot=report.boot,
        n=report.number,
        reported_at=work.now,
        clock_sample=clock_sample,
        wrong_clock=wrong,
    )
    if machine.node.state is NodeState.ON_ORDER:  # it has come
        machine = replace(machine, node=replace(machine.node, state=NodeState.READY, ready_at=0))
    return machine


def clocks_differ(earlier: ClockSample, later: ClockSample) -> bool:
    """Whether a node's clock runs differently from the pool's, even with the slowest messages.

    A node sends a report after the last answer was sent and before the report arrives. So the time
    between two reports is known within bounds. Only a clock outside these bounds counts as wrong
    (IS7).
    """
    span = later.sent_at - earlier.sent_at
    least, most = later.answered_at - earlier.received_at, later.received_at - earlier.answered_at
    if least < CLOCK_SPAN_MIN:
        return False
    drift = (
        most * DRIFT_PPM * 2 // 1_000_000 + CLOCK_JUMP_MAX
    )  # the pool's clock may be off as well
    return span < least - drift or span > most + drift


def _apply_reading(work: PoolTransaction, lease: Lease, part: LeasePart, reading: Reading) -> None:
    """Apply a reading: how long the process has run, and whether it has ended."""
    in_time = lease.is_live and part.exit is None and work.now < part.until
    end = work.now if in_time else part.until if lease.is_live else lease.reportable_until
    most = min(provable_ms(lease.leased_at, end), lease.run_ms_max)
    proven = max(min(reading.run_ms, most), lease.run_ms)
    clamped = lease.clamped or (reading.run_ms > most and end > lease.leased_at)
    if part.exit is None and lease.is_live:
        changed_part = _part_after(part, reading, most, in_time=in_time)
        if changed_part is not part:
            lease = with_part(lease, changed_part)
    lease = replace(lease, run_ms=proven, clamped=clamped)
    if reading.exit is not Exit.GONE or reading.run_ms:
        lease = _with_start(work, lease, end)
    work.put(lease)
    if lease.is_live:
        check_lease(work, lease)
    elif lease.run_ms > lease.reported_ms:
        _count_late(work, lease)


def _part_after(part: LeasePart, reading: Reading, most: int, *, in_time: bool) -> LeasePart:
    """The part after a reading; the same object if nothing has changed, which is usual."""
    if not in_time:  # without a lease, its process can only be gone
        return part if reading.exit is None else replace(part, exit=Exit.GONE)
    saved_ms = max(min(reading.saved_ms, most), part.saved_ms)
    run_ms_at_stop = reading.run_ms_at_stop if part.run_ms_at_stop is None else part.run_ms_at_stop
    news = saved_ms, run_ms_at_stop, reading.exit, reading.exit_code, reading.result
    if news == (part.saved_ms, part.run_ms_at_stop, part.exit, part.exit_code, part.result):
        return part
    return replace(  # a result counts with the right to it only (S9)
        part,
        saved_ms=saved_ms,
        run_ms_at_stop=run_ms_at_stop,
        exit=reading.exit,
        exit_code=reading.exit_code,
        result=reading.result,
    )


def _count_late(work: PoolTransaction, lease: Lease) -> None:
    """Count run time that is reported after the end of the attempt; report it to the org.

    This reduces what is left for a running attempt; a waiting job may run out of credits.
    """
    job = job_of(work, lease)
    rate, milli_gpus = rate_of(job, lease.gpu_type), job.request.milli_gpus
    before, now = (usage_price(rate, milli_gpus, ms) for ms in (lease.reported_ms, lease.run_ms))
    ran_ms = job.ran_ms + lease.run_ms - lease.reported_ms
    job = replace(job, ran_ms=ran_ms, used=job.used + now - before)
    if job.state is JobState.QUEUED and not affords_a_run(job):
        job = with_step(job, Cause.OUT_OF_CREDITS)
    work.put(job)
    if job.state in LIVE:
        other = lease_of(work, job)
        most = max(run_ms_max(job, other.gpu_type), other.run_ms)
        work.put(replace(other, run_ms_max=most))
    report_run(work, lease)


def _with_start(work: PoolTransaction, lease: Lease, end: Instant) -> Lease:
    """The lease with its start; the first reading is the start, and is reported to the org."""
    if lease.started_at is not None:
        return lease
    lease = replace(lease, started_at=end - lease.run_ms * MILLISECOND)
    job = job_of(work, lease)
    if job.state is JobState.STARTING:
        job = with_step(job, Cause.STARTED, lease.fence)
    report_start(work, lease, job)
    return lease


def _renew_part(work: PoolTransaction, lease: Lease, part: LeasePart) -> LeaseOrder:
    """Renew a part of a lease and return the order for its node."""
    job = job_of(work, lease)
    if lease.started_at is None:
        bound = min(job.hold_until, lease.leased_at + START_TIMEOUT)
    else:
        bound = latest_lease_end(job.hold_until, lease.started_at, lease.run_ms_max)
    until = max(lease_end(work.now, bound), part.until)
    work.put(with_part(lease, replace(part, until=until)))
    return LeaseOrder(
        fence=lease.fence,
        org=lease.org,
        job=lease.job,
        attempt=lease.attempt,
        piece=part.piece,
        ttl_us=until - work.now,
        run_ms_max=lease.run_ms_max,
        program=job.request.spec.program,
        nodes=tuple([gang_part.piece.node for gang_part in lease.parts]),
        stop=lease.stop_reason is not None,
    )
