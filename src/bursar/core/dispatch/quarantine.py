"""Quarantine: a node on which attempts keep failing gets no new jobs for a while (S10).

A mishap is an attempt that was lost, or failed, within its first seconds. Several mishaps of
different jobs within a short time put their node into quarantine, unless one org alone may have
caused them. So they must be of several orgs, or the node's agent could not start the attempts at
all. A program that runs can fail on purpose, so mishaps of one org whose programs have started
prove nothing. Failures count only until an attempt runs well on the node.

A user with broken jobs, or an outage of the service, must not empty a pool. So at most a part of
the usable nodes of a type is in quarantine at a time, and never the last one. Each quarantine in a
row is longer than the one before. It ends after its time, or when an operator makes the node ready.
"""

from typing import Final

from bursar.core.dispatch.state import (
    NO_TROUBLE,
    Lease,
    LeasePart,
    Mishap,
    PoolNode,
    PoolTransaction,
    Trouble,
)
from bursar.core.dispatch.state import Exit as How
from bursar.core.instant import DAY, MINUTE, Instant
from bursar.core.leases import LEASE_TTL
from bursar.core.messages import Cause
from bursar.core.scheduling.model.nodes import NodeState
from bursar.core.value import replace

MIN_RUN_MS: Final = 10_000  # an attempt that ran this long ran well
JOBS_MIN: Final = 3  # different jobs with a mishap
MISHAP_WINDOW: Final = 15 * MINUTE
FIRST_QUARANTINE: Final = 5 * MINUTE  # each further quarantine is twice as long
QUARANTINE_MAX: Final = DAY
RESET_AFTER: Final = DAY  # this long after a quarantine, the next one is a first one again
NODES_PER_QUARANTINE: Final = 4  # at most a quarter of a type's nodes


def is_quarantined(machine: PoolNode, now: Instant) -> bool:
    """Whether a node is in quarantine."""
    return now < machine.trouble.until


def is_usable(machine: PoolNode, now: Instant) -> bool:
    """Whether a node has reported within a lease's time to live and has a sound clock (IS15)."""
    heard = machine.reported_at is not None and now < machine.reported_at + LEASE_TTL
    return heard and not machine.wrong_clock


def state_of(machine: PoolNode, now: Instant) -> NodeState:
    """The effective state of a node: its set state, unless it is silent or in quarantine."""
    if machine.node.state is NodeState.ON_ORDER:
        return NodeState.ON_ORDER
    if not is_usable(machine, now):
        return NodeState.DEAD
    return NodeState.QUARANTINED if is_quarantined(machine, now) else machine.node.state


def record_end(work: PoolTransaction, lease: Lease, why: Cause) -> None:
    """Record the end of an attempt as a success or a mishap of its nodes."""
    ran_well = lease.run_ms >= MIN_RUN_MS or why is Cause.FINISHED
    for part in lease.parts:
        machine = work.machine(part.piece.node)
        assert machine is not None  # a node with a live lease is not removed
        if ran_well:
            _record_success(work, machine)
        elif _is_node_to_blame(part, why):
            _record_mishap(work, machine, lease, lost=why is Cause.LOST)


def _is_node_to_blame(part: LeasePart, why: Cause) -> bool:
    """Whether the process on this node caused the end of the attempt."""
    return (why, part.exit) in ((Cause.LOST, How.GONE), (Cause.FAILED, How.FAILED))


def _record_success(work: PoolTransaction, machine: PoolNode) -> None:
    """Remove failed attempts from the record: the node works. Lost ones stay."""
    losses = tuple([mishap for mishap in machine.trouble.mishaps if mishap.lost])
    if losses != machine.trouble.mishaps:
        work.put(replace(machine, trouble=replace(machine.trouble, mishaps=losses)))


def _record_mishap(work: PoolTransaction, machine: PoolNode, lease: Lease, *, lost: bool) -> None:
    before = machine.trouble
    lately = (mishap for mishap in before.mishaps if mishap.at > work.now - MISHAP_WINDOW)
    others = (mishap for mishap in lately if (mishap.org, mishap.job) != lease.key)
    began = lease.started_at is not None
    mishaps = (*others, Mishap(work.now, lease.org, lease.job, lost=lost, began=began))
    trouble = replace(before, mishaps=mishaps)
    if _is_enough(mishaps):
        trouble = (
            _start_quarantine(trouble, work.now) if _can_be_spared(work, machine) else NO_TROUBLE
        )
    work.put(replace(machine, trouble=trouble))


def _is_enough(mishaps: tuple[Mishap, ...]) -> bool:
    """Whether mishaps, each of another job, are more than one org alone can have caused."""
    not_begun = sum(not mishap.began for mishap in mishaps)
    orgs = {mishap.org for mishap in mishaps}
    return not_begun >= JOBS_MIN or (len(mishaps) >= JOBS_MIN and len(orgs) > 1)


def _start_quarantine(trouble: Trouble, now: Instant) -> Trouble:
    """A quarantine from now on, twice as long as the last one unless that was long ago."""
    times = trouble.quarantines if now < trouble.until + RESET_AFTER else 0
    return Trouble(
        until=now + min(FIRST_QUARANTINE << min(times, 10), QUARANTINE_MAX), quarantines=times + 1
    )


def _can_be_spared(work: PoolTransaction, machine: PoolNode) -> bool:
    """Whether enough nodes of its type remain."""
    states = [
        state_of(other, work.now)
        for other in work.machines()
        if other.node.gpu_type == machine.node.gpu_type
    ]
    ready, kept_away = states.count(NodeState.READY), states.count(NodeState.QUARANTINED)
    return ready > 1 and kept_away < max((ready + kept_away) // NODES_PER_QUARANTINE, 1)
