"""The rules of a node's agent: start leased processes, report them, end those without a lease.

The state of an agent is the node's table of processes, which survives the agent. Each process has a
*guard*, a small program that ends it at a certain time of the node's own clock. An agent can only
postpone that time. So a process ends in time even if its agent is dead, stopped or cut off, and a
restarted agent takes over the processes it finds.

A lease in an answer counts from the time at which the agent sent the report. The pool renewed the
lease later than that, so the process ends before the lease does, however long the messages took. A
margin allows for a node's clock that is slow: a process ends at `sent + ttl · (1 − 1 %) − KILL`.

The agent writes a fence to disk before it starts the process, and starts only larger fences. So
each attempt starts at most once. If the pool leases a fence that the agent started earlier and that
has no process any more, the agent reports it as gone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from bursar.core.dispatch.attempt_end import STOP_GRACE
from bursar.core.dispatch.reports import DRIFT_PPM, LeaseOrder, LeaseOrders, NodeReport, Reading
from bursar.core.dispatch.state import Exit
from bursar.core.ids import NodeId
from bursar.core.instant import MILLISECOND, SECOND, Instant
from bursar.core.scheduling.model.nodes import Piece
from bursar.core.value import value

REPORT_INTERVAL: Final = 5 * SECOND
KILL_SPAN: Final = 500 * MILLISECOND  # what ending a process may take
REPORTS_REMEMBERED: Final = 64  # reports that can still be answered


@value
class Process:
    """An entry in a node's table of processes, by fence. Times are by the node's own clock."""

    fence: int
    piece: Piece
    started_at: Instant
    until: Instant  # the guard ends it then
    run_ms: int = 0
    saved_ms: int = 0  # run time up to its last checkpoint, without the checkpoint's own time (M2)
    stopping: bool = False
    run_ms_at_stop: int | None = None  # what it had run when it was asked to
    exit: Exit | None = None
    exit_code: int | None = None
    result: str | None = None  # what it has left, as JSON


ProcessTable: TypeAlias = Mapping[int, Process]


@value
class Remember:
    """Write a fence to disk as the largest one that was started here."""

    fence: int


@value
class Run:
    """Start a process under a guard."""

    order: LeaseOrder
    until: Instant


@value
class Prolong:
    """Postpone the time at which a process's guard ends it."""

    fence: int
    until: Instant


@value
class Stop:
    """Ask a process to make a checkpoint and exit; its guard ends it at `until` at the latest."""

    fence: int
    until: Instant


@value
class Kill:
    """End a process at once."""

    fence: int


@value
class Forget:
    """Remove an ended process from the table: the pool has received its end."""

    fence: int


Action: TypeAlias = Remember | Run | Prolong | Stop | Kill | Forget


@dataclass(slots=True)
class Agent:
    """The memory of one run of an agent; it may be lost at any time."""

    node: NodeId
    boot: int  # how often it was started; kept on disk
    fence: int  # the largest on disk
    n: int = 0  # reports so far
    answered: int = 0  # the last report that was answered
    answered_at: Instant | None = None  # when, by the pool's clock
    sent: dict[int, tuple[Instant, frozenset[int]]] = field(
        default_factory=dict
    )  # when; ends in it
    absent: dict[int, Exit] = field(default_factory=dict)  # leased, but not to be started again


def make_report(agent: Agent, table: ProcessTable, now: Instant) -> NodeReport:
    """Report all processes of the node; `now` is by the node's own clock."""
    agent.n += 1
    ended = frozenset(fence for fence, process in table.items() if process.exit is not None)
    agent.sent[agent.n] = now, ended | agent.absent.keys()
    agent.sent.pop(agent.n - REPORTS_REMEMBERED, None)
    absent = (Reading(fence=fence, run_ms=0, exit=how) for fence, how in agent.absent.items())
    readings = tuple(_reading(table[fence]) for fence in sorted(table))
    return NodeReport(
        node=agent.node,
        boot=agent.boot,
        number=agent.n,
        at=now,
        answered_at=agent.answered_at,
        readings=(*readings, *absent),
    )


def _reading(process: Process) -> Reading:
    """The reading of a process. One that its guard ended without a stop request counts as gone."""
    cut_off = process.exit is Exit.KILLED and not process.stopping
    return Reading(
        fence=process.fence,
        run_ms=process.run_ms,
        saved_ms=process.saved_ms,
        run_ms_at_stop=process.run_ms_at_stop,
        exit=Exit.GONE if cut_off else process.exit,
        exit_code=process.exit_code,
        result=process.result,
    )


def follow_orders(
    agent: Agent, orders: LeaseOrders, table: ProcessTable, now: Instant
) -> list[Action]:
    """The actions that follow from the answer to a report, in order; none for an old answer."""
    if (
        orders.boot != agent.boot
        or orders.number <= agent.answered
        or orders.number not in agent.sent
    ):
        return []
    sent_at, reported_ends = agent.sent[orders.number]
    agent.answered, agent.answered_at = orders.number, orders.at
    agent.sent = {n: report for n, report in agent.sent.items() if n > orders.number}
    leased = {order.fence for order in orders.leases}
    agent.absent = {fence: how for fence, how in agent.absent.items() if fence in leased}
    actions = _end_unleased(table, leased, reported_ends)
    for order in sorted(orders.leases, key=lambda order: order.fence):
        until = sent_at + safe_span(order.ttl_us)
        process = table.get(order.fence)
        if process is not None:
            actions += _renew_process(process, order, until, now)
        elif order.fence <= agent.fence:
            agent.absent.setdefault(order.fence, Exit.GONE)
        elif order.stop:
            agent.fence = order.fence
            agent.absent[order.fence] = Exit.STOPPED
            actions.append(Remember(fence=order.fence))
        elif now < until and _is_free(order.piece, table, leased):
            agent.fence = order.fence
            actions.append(Remember(fence=order.fence))
            actions.append(Run(order=order, until=_bounded(until, now, order)))
        else:
            break  # starting a larger fence would exclude this one; the next answer repeats both
    return actions


def safe_span(ttl_us: int) -> int:
    """The part of a lease's time to live that an agent relies on (IS7)."""
    return ttl_us - ttl_us * DRIFT_PPM // 1_000_000 - KILL_SPAN


def _end_unleased(
    table: ProcessTable, leased: set[int], reported_ends: frozenset[int]
) -> list[Action]:
    """Kill processes without a lease; forget ended ones whose end the pool has received."""
    actions: list[Action] = []
    for fence in sorted(table.keys() - leased):
        if table[fence].exit is None:
            actions.append(Kill(fence=fence))
        elif fence in reported_ends:
            actions.append(Forget(fence=fence))
    return actions


def _renew_process(
    process: Process, order: LeaseOrder, until: Instant, now: Instant
) -> list[Action]:
    """The actions for a process that has a lease: prolong it, or ask it to stop."""
    if process.exit is not None or process.stopping or process.until <= now:
        return []
    until = max(_bounded(until, process.started_at, order), process.until)
    if order.stop:
        return [Stop(fence=process.fence, until=min(until, now + STOP_GRACE))]
    return [Prolong(fence=process.fence, until=until)] if until > process.until else []


def _bounded(until: Instant, started_at: Instant, order: LeaseOrder) -> Instant:
    """`until`, limited to the longest run by the node's own clock."""
    return min(until, started_at + order.run_ms_max * MILLISECOND - KILL_SPAN)


def _is_free(piece: Piece, table: ProcessTable, leased: set[int]) -> bool:
    """Whether no process without a lease is still on these GPUs.

    A process with a lease may share a GPU: the pool counts the slots it has leased.
    """
    return not any(
        process.exit is None and fence not in leased and set(piece.gpus) & set(process.piece.gpus)
        for fence, process in table.items()
    )
