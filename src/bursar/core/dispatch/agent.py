"""A node's agent: it starts what it is leased, says what runs, and ends what it has no right to.

What an agent knows is what its node knows: the table of processes, which outlives it. Each entry
is kept by a *guard*, a small program beside the process that ends it at an instant of the node's
running time; all an agent can do is to move that instant on. So a process ends in time even if its
agent is dead, stopped or cut off, and an agent that is started again looks after whatever it finds.

An order counts from when the report was sent that it answers. The pool renewed the lease after
that, so it ends there later than here, however long the messages took; a part of the span is
left off for a clock that runs too slowly. A process ends at `sent + ttl · (1 − 1 %) − KILL`.

A fence is written to disk before its process is started, and nothing is started whose fence is not
larger: each attempt starts once at most. If an agent is asked for one that it has begun before and
that is not there, it says that it is gone.
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
    """An entry of a node's table of processes, by its fence; times are its running time."""

    fence: int
    piece: Piece
    started_at: Instant
    until: Instant  # its guard ends it then
    run_ms: int = 0
    saved_ms: int = 0  # up to where its work is kept: not what a checkpoint takes (M2)
    stopping: bool = False
    run_ms_at_stop: int | None = None  # what it had run when it was asked to
    exit: Exit | None = None
    exit_code: int | None = None
    result: str | None = None  # what it has left, as JSON


ProcessTable: TypeAlias = Mapping[int, Process]


@value
class Remember:
    """Write a fence to disk: the largest that was ever to be started here."""

    fence: int


@value
class Run:
    """Start a process under a guard."""

    order: LeaseOrder
    until: Instant


@value
class Prolong:
    """Let a process's guard wait for longer."""

    fence: int
    until: Instant


@value
class Stop:
    """Ask a process to make a checkpoint and to end; its guard waits no longer than until then."""

    fence: int
    until: Instant


@value
class Kill:
    """End a process at once."""

    fence: int


@value
class Forget:
    """Take what has ended out of the table: the pool knows it."""

    fence: int


Action: TypeAlias = Remember | Run | Prolong | Stop | Kill | Forget


@dataclass(slots=True)
class Agent:
    """What one start of an agent remembers; all of it may be lost at any time."""

    node: NodeId
    boot: int  # how often it was started; kept on disk
    fence: int  # the largest on disk
    n: int = 0  # reports so far
    answered: int = 0  # the last report that was answered
    answered_at: Instant | None = None  # when, by the pool's clock
    sent: dict[int, tuple[Instant, frozenset[int]]] = field(
        default_factory=dict
    )  # when; ends in it
    absent: dict[int, Exit] = field(default_factory=dict)  # leased, and not to be started any more


def make_report(agent: Agent, table: ProcessTable, now: Instant) -> NodeReport:
    """Say all that the node knows; `now` is its running time."""
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
    """What is said of a process; one that its guard has ended unasked is gone: it was cut off."""
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
    """Follow the answer to a report, unless it is an old one; what is to be done, in order."""
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
            break  # a larger fence would shut it out; the next answer brings them again
    return actions


def safe_span(ttl_us: int) -> int:
    """How much of a lease's span an agent relies on (IS7)."""
    return ttl_us - ttl_us * DRIFT_PPM // 1_000_000 - KILL_SPAN


def _end_unleased(
    table: ProcessTable, leased: set[int], reported_ends: frozenset[int]
) -> list[Action]:
    """End what has no lease; forget what has ended, once the pool has answered its report."""
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
    """What becomes of a process that is there: it goes on for longer, or is asked to stop."""
    if process.exit is not None or process.stopping or process.until <= now:
        return []
    until = max(_bounded(until, process.started_at, order), process.until)
    if order.stop:
        return [Stop(fence=process.fence, until=min(until, now + STOP_GRACE))]
    return [Prolong(fence=process.fence, until=until)] if until > process.until else []


def _bounded(until: Instant, started_at: Instant, order: LeaseOrder) -> Instant:
    """Not beyond the longest run, by the node's own clock."""
    return min(until, started_at + order.run_ms_max * MILLISECOND - KILL_SPAN)


def _is_free(piece: Piece, table: ProcessTable, leased: set[int]) -> bool:
    """Whether nothing is on these GPUs any more that is being ended.

    What has a lease may be there: the pool knows how many parts of a GPU it has given away.
    """
    return not any(
        process.exit is None and fence not in leased and set(piece.gpus) & set(process.piece.gpus)
        for fence, process in table.items()
    )
