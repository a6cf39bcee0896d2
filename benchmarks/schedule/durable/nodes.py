"""Nodes that run nothing: they answer a pool as agents do, and their jobs end in time.

All nodes of a load are one thread. Each keeps an agent of `core.dispatch`, reports at once when
something has begun or ended, else every five seconds, and its last report waits for news. It keeps
count by itself: a GPU that it is asked to give to two jobs at once is a problem of the load.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from heapq import heappop, heappush
from types import TracebackType
from typing import Any, Final, Self

from bursar.core.dispatch import agent as rules
from bursar.core.dispatch.agent import Agent, Forget, Kill, Process, Prolong, Run, Stop
from bursar.core.dispatch.reports import LeaseOrder, LeaseOrders, NodeReport
from bursar.core.dispatch.state import Exit
from bursar.core.ids import JobId, NodeId
from bursar.core.instant import MILLISECOND, Instant
from bursar.core.scheduling.model.nodes import Node
from bursar.core.value import replace
from bursar.service.ledger.clock import running_time
from bursar.service.pools.host import Pools

FOREVER: Final = 10**15  # microseconds that a job runs which ends when it is told to
LOOK_S: Final = 0.01
PATIENCE_S: Final = 60.0

Runs = Callable[[JobId], int]  # how long a job runs, in microseconds


class _Machine:
    """One node: its agent, its processes, its last report."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.agent = Agent(node=node.id, boot=1, fence=0)
        self.table: dict[int, Process] = {}
        self.gpus: dict[int, int] = {}  # GPU → fence of who has it
        self.waiting: NodeReport | None = None  # a report that waits for news
        self.held: LeaseOrders | None = None  # its answer, if there are none in time
        self.on_its_way = False  # a report, or a question for news
        self.news = False  # there were some meanwhile
        self.changed = False  # something has begun or ended since the last report


class Nodes:
    """The nodes of a pool, at work while this is open."""

    def __init__(self, pools: Pools, pool: str, nodes: Sequence[Node], runs: Runs) -> None:
        self._pools = pools
        self._pool = pool
        self._keeper = pools.handles[pool]
        self._runs = runs
        self._machines = {one.id: _Machine(one) for one in nodes}
        self._timers: list[tuple[Instant, int, NodeId, int]] = []  # fence 0: time to report
        self._count = 0
        self._events: deque[tuple[_Machine, Future[Any] | None]] = deque()
        self._door = threading.Event()
        self._closed = False
        self._ends = False  # whatever runs is to end now
        self._open = ExitStack()
        self._thread = threading.Thread(target=self._work, name="nodes", daemon=True)
        self.problems: list[str] = []
        self.began: dict[JobId, float] = {}  # first starts, by `time.perf_counter`
        self.taken = 0  # GPUs that are in use
        self.last_at = 0.0  # when one was last taken, by `time.perf_counter`
        self.stopped = 0  # times that one had to make room
        self.reports = 0

    def __enter__(self) -> Self:
        for machine in self._machines.values():
            call = self._news_of(machine)
            self._open.enter_context(
                self._pools.waiting_for_orders(self._pool, machine.node.id, call)
            )
            machine.changed = True
            self._events.append((machine, None))
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closed = True
        self._door.set()
        self._thread.join()
        self._open.close()

    def end_all(self) -> None:
        """Let all jobs end that run now, and those that come at once."""
        self._runs = lambda _: 0
        self._ends = True
        self._door.set()

    def await_taken(self, gpus: int) -> float:
        """Wait until so many GPUs are in use; since when, by `time.perf_counter`."""
        self._await(lambda: self.taken >= gpus)
        return self.last_at

    def await_begun(self, jobs: int) -> None:
        """Wait until so many jobs have begun at some time."""
        self._await(lambda: len(self.began) >= jobs)

    def _await(self, reached: Callable[[], bool]) -> None:
        until = time.monotonic() + PATIENCE_S
        while not reached() and time.monotonic() < until:
            time.sleep(LOOK_S)

    def _news_of(self, machine: _Machine) -> Callable[[], object]:
        def call() -> None:
            machine.news = True
            self._events.append((machine, None))
            self._door.set()

        return call

    # The thread

    def _work(self) -> None:
        try:
            while not self._closed:
                self._door.wait(self._pause())
                self._door.clear()
                self._turn()
        except Exception as error:
            self.problems.append(f"the nodes have failed: {error!r}")
            raise

    def _pause(self) -> float:
        if self._events:
            return 0.0
        if not self._timers:
            return 1.0
        return max(self._timers[0][0] - running_time(), 0) / 1_000_000

    def _turn(self) -> None:
        """Take all that has happened, then report for each node that has something to tell."""
        touched: dict[NodeId, _Machine] = {}
        while self._events:
            machine, answer = self._events.popleft()
            touched[machine.node.id] = machine
            if answer is not None:
                self._answered(machine, answer.result())
        now = running_time()
        while self._timers and self._timers[0][0] <= now:
            _, _, name, fence = heappop(self._timers)
            machine = touched[name] = self._machines[name]
            if fence:
                self._end(machine, fence, now)
            elif not machine.on_its_way:
                self._follow(machine, machine.held, now)
                machine.changed = True
        if self._ends:
            self._ends = False
            touched |= self._machines
            for machine in self._machines.values():
                for fence in list(machine.table):
                    self._end(machine, fence, now)
        for machine in touched.values():
            self._say(machine)

    def _say(self, machine: _Machine) -> None:
        """Report, or ask for the news; one of them at a time."""
        if machine.on_its_way:
            return
        now = running_time()
        if machine.changed:
            machine.changed = machine.news = False
            machine.held = None
            told = machine.waiting = self._told(machine, now)
            asked: Future[Any] = self._keeper.report(told)
            self._at(now + rules.REPORT_INTERVAL, machine, 0)
        elif machine.news and machine.waiting is not None:
            machine.news = False
            asked = self._keeper.answer(machine.waiting)
        else:
            return
        machine.on_its_way = True
        asked.add_done_callback(lambda answer: self._hear(machine, answer))

    def _told(self, machine: _Machine, now: Instant) -> NodeReport:
        """What a node says now."""
        self.reports += 1
        for fence, one in machine.table.items():
            if one.exit is None:
                ran = (now - one.started_at) // MILLISECOND
                machine.table[fence] = replace(one, run_ms=ran)
        return rules.make_report(machine.agent, machine.table, now)

    def _hear(self, machine: _Machine, answer: Future[Any]) -> None:
        self._events.append((machine, answer))
        self._door.set()

    def _at(self, at: Instant, machine: _Machine, fence: int) -> None:
        self._count += 1
        heappush(self._timers, (at, self._count, machine.node.id, fence))

    # Orders

    def _answered(self, machine: _Machine, orders: LeaseOrders | None) -> None:
        """Follow an answer; one that says nothing new is kept back, as the service does."""
        machine.on_its_way = False
        told = machine.waiting
        if orders is None or told is None:
            self.problems.append(f"a report of {machine.node.id} was not taken")
            return
        running = {one.fence for one in told.readings if one.exit is None}
        if running == {one.fence for one in orders.leases} and not _stops(orders):
            machine.held = orders
            return
        machine.waiting = None
        machine.changed = True  # a report is open at all times: news are waited for
        self._follow(machine, orders, running_time())

    def _follow(self, machine: _Machine, orders: LeaseOrders | None, now: Instant) -> None:
        if orders is not None:
            for action in rules.follow_orders(machine.agent, orders, machine.table, now):
                self._act(machine, action, now)

    def _act(self, machine: _Machine, action: rules.Action, now: Instant) -> None:
        match action:
            case Run():
                self._begin(machine, action.order, action.until, now)
            case Prolong():
                one = machine.table[action.fence]
                machine.table[action.fence] = replace(one, until=action.until)
            case Stop():
                self.stopped += 1
                self._free(machine, action.fence)
                one = machine.table[action.fence]
                machine.table[action.fence] = replace(one, stopping=True, exit=Exit.STOPPED)
            case Kill():
                self.problems.append(f"lease {action.fence} was lost while its job ran")
                self._free(machine, action.fence)
                del machine.table[action.fence]
            case Forget():
                del machine.table[action.fence]
            case _:
                pass  # what an agent has on disk

    def _begin(self, machine: _Machine, order: LeaseOrder, until: Instant, now: Instant) -> None:
        for gpu in order.piece.gpus:
            if gpu in machine.gpus:
                self.problems.append(f"GPU {gpu} of {machine.node.id} was given away twice")
            machine.gpus[gpu] = order.fence
        machine.table[order.fence] = Process(
            fence=order.fence, piece=order.piece, started_at=now, until=until
        )
        self.taken += len(order.piece.gpus)
        self.last_at = time.perf_counter()
        self.began.setdefault(order.job, self.last_at)
        runs = self._runs(order.job)
        if runs == 0:
            self._end(machine, order.fence, now)
        elif runs < FOREVER:
            self._at(now + runs, machine, order.fence)

    def _end(self, machine: _Machine, fence: int, now: Instant) -> None:
        """A process has come to its end; its guard may have ended it before."""
        one = machine.table.get(fence)
        if one is None or one.exit is not None:
            return  # it has made room
        late = one.until <= now
        if late:
            self.problems.append(f"lease {fence} was not renewed in time")
        self._free(machine, fence)
        machine.table[fence] = replace(
            one,
            run_ms=(now - one.started_at) // MILLISECOND,
            exit=Exit.KILLED if late else Exit.DONE,
            exit_code=None if late else 0,
        )
        machine.changed = True

    def _free(self, machine: _Machine, fence: int) -> None:
        self.taken -= len(machine.table[fence].piece.gpus)
        for gpu in machine.table[fence].piece.gpus:
            del machine.gpus[gpu]


def _stops(orders: LeaseOrders) -> bool:
    return any(one.stop for one in orders.leases)
