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
POLL_INTERVAL_S: Final = 0.01
TIMEOUT_S: Final = 60.0

RunTime = Callable[[JobId], int]  # how long a job runs, in microseconds


class _Machine:
    """One node: its agent, its processes, its last report."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.agent = Agent(node=node.id, boot=1, fence=0)
        self.processes: dict[int, Process] = {}
        self.gpu_fences: dict[int, int] = {}  # GPU → fence of who has it
        self.report: NodeReport | None = None  # a report that waits for news
        self.held_orders: LeaseOrders | None = None  # its answer, if there are none in time
        self.has_open_request = False  # a report, or a question for news
        self.has_news = False  # there were some meanwhile
        self.has_changed = False  # something has begun or ended since the last report


class SimulatedNodes:
    """The nodes of a pool, at work while this is open."""

    def __init__(self, pools: Pools, pool: str, nodes: Sequence[Node], run_time: RunTime) -> None:
        self._pools = pools
        self._pool = pool
        self._handle = pools.handles[pool]
        self._run_time = run_time
        self._machines = {node.id: _Machine(node) for node in nodes}
        self._timers: list[tuple[Instant, int, NodeId, int]] = []  # fence 0: time to report
        self._count = 0
        self._events: deque[tuple[_Machine, Future[Any] | None]] = deque()
        self._wake = threading.Event()
        self._closed = False
        self._is_ending = False  # whatever runs is to end now
        self._open = ExitStack()
        self._thread = threading.Thread(target=self._work, name="nodes", daemon=True)
        self.problems: list[str] = []
        self.first_starts: dict[JobId, float] = {}  # first starts, by `time.perf_counter`
        self.gpus_in_use = 0  # GPUs that are in use
        self.last_start_at = 0.0  # when one was last taken, by `time.perf_counter`
        self.preemptions = 0  # times that one had to make room
        self.reports = 0

    def __enter__(self) -> Self:
        for machine in self._machines.values():
            call = self._make_news_callback(machine)
            self._open.enter_context(
                self._pools.waiting_for_orders(self._pool, machine.node.id, call)
            )
            machine.has_changed = True
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
        self._wake.set()
        self._thread.join()
        self._open.close()

    def end_all(self) -> None:
        """Let all jobs end that run now, and those that come at once."""
        self._run_time = lambda _: 0
        self._is_ending = True
        self._wake.set()

    def await_gpus(self, gpus: int) -> float:
        """Wait until so many GPUs are in use; since when, by `time.perf_counter`."""
        self._await(lambda: self.gpus_in_use >= gpus)
        return self.last_start_at

    def await_starts(self, jobs: int) -> None:
        """Wait until so many jobs have begun at some time."""
        self._await(lambda: len(self.first_starts) >= jobs)

    def _await(self, reached: Callable[[], bool]) -> None:
        until = time.monotonic() + TIMEOUT_S
        while not reached() and time.monotonic() < until:
            time.sleep(POLL_INTERVAL_S)

    def _make_news_callback(self, machine: _Machine) -> Callable[[], object]:
        def call() -> None:
            machine.has_news = True
            self._events.append((machine, None))
            self._wake.set()

        return call

    # The thread

    def _work(self) -> None:
        try:
            while not self._closed:
                self._wake.wait(self._wait_s())
                self._wake.clear()
                self._handle_events()
        except Exception as error:
            self.problems.append(f"the nodes have failed: {error!r}")
            raise

    def _wait_s(self) -> float:
        if self._events:
            return 0.0
        if not self._timers:
            return 1.0
        return max(self._timers[0][0] - running_time(), 0) / 1_000_000

    def _handle_events(self) -> None:
        """Take all that has happened, then report for each node that has something to tell."""
        touched: dict[NodeId, _Machine] = {}
        while self._events:
            machine, answer = self._events.popleft()
            touched[machine.node.id] = machine
            if answer is not None:
                self._handle_answer(machine, answer.result())
        now = running_time()
        while self._timers and self._timers[0][0] <= now:
            _, _, name, fence = heappop(self._timers)
            machine = touched[name] = self._machines[name]
            if fence:
                self._end(machine, fence, now)
            elif not machine.has_open_request:
                self._follow(machine, machine.held_orders, now)
                machine.has_changed = True
        if self._is_ending:
            self._is_ending = False
            touched |= self._machines
            for machine in self._machines.values():
                for fence in list(machine.processes):
                    self._end(machine, fence, now)
        for machine in touched.values():
            self._send_report(machine)

    def _send_report(self, machine: _Machine) -> None:
        """Report, or ask for the news; one of them at a time."""
        if machine.has_open_request:
            return
        now = running_time()
        if machine.has_changed:
            machine.has_changed = machine.has_news = False
            machine.held_orders = None
            report = machine.report = self._make_report(machine, now)
            request: Future[Any] = self._handle.report(report)
            self._set_timer(now + rules.REPORT_INTERVAL, machine, 0)
        elif machine.has_news and machine.report is not None:
            machine.has_news = False
            request = self._handle.answer(machine.report)
        else:
            return
        machine.has_open_request = True
        request.add_done_callback(lambda answer: self._on_answer(machine, answer))

    def _make_report(self, machine: _Machine, now: Instant) -> NodeReport:
        """What a node says now."""
        self.reports += 1
        for fence, process in machine.processes.items():
            if process.exit is None:
                run_ms = (now - process.started_at) // MILLISECOND
                machine.processes[fence] = replace(process, run_ms=run_ms)
        return rules.make_report(machine.agent, machine.processes, now)

    def _on_answer(self, machine: _Machine, answer: Future[Any]) -> None:
        self._events.append((machine, answer))
        self._wake.set()

    def _set_timer(self, at: Instant, machine: _Machine, fence: int) -> None:
        self._count += 1
        heappush(self._timers, (at, self._count, machine.node.id, fence))

    # Orders

    def _handle_answer(self, machine: _Machine, orders: LeaseOrders | None) -> None:
        """Follow an answer; one that says nothing new is kept back, as the service does."""
        machine.has_open_request = False
        report = machine.report
        if orders is None or report is None:
            self.problems.append(f"a report of {machine.node.id} was not taken")
            return
        running = {lease.fence for lease in report.readings if lease.exit is None}
        if running == {lease.fence for lease in orders.leases} and not _has_stop(orders):
            machine.held_orders = orders
            return
        machine.report = None
        machine.has_changed = True  # a report is open at all times: news are waited for
        self._follow(machine, orders, running_time())

    def _follow(self, machine: _Machine, orders: LeaseOrders | None, now: Instant) -> None:
        if orders is not None:
            for action in rules.follow_orders(machine.agent, orders, machine.processes, now):
                self._act(machine, action, now)

    def _act(self, machine: _Machine, action: rules.Action, now: Instant) -> None:
        match action:
            case Run():
                self._begin(machine, action.order, action.until, now)
            case Prolong():
                process = machine.processes[action.fence]
                machine.processes[action.fence] = replace(process, until=action.until)
            case Stop():
                self.preemptions += 1
                self._free(machine, action.fence)
                process = machine.processes[action.fence]
                machine.processes[action.fence] = replace(process, stopping=True, exit=Exit.STOPPED)
            case Kill():
                self.problems.append(f"lease {action.fence} was lost while its job ran")
                self._free(machine, action.fence)
                del machine.processes[action.fence]
            case Forget():
                del machine.processes[action.fence]
            case _:
                pass  # what an agent has on disk

    def _begin(self, machine: _Machine, order: LeaseOrder, until: Instant, now: Instant) -> None:
        for gpu in order.piece.gpus:
            if gpu in machine.gpu_fences:
                self.problems.append(f"GPU {gpu} of {machine.node.id} was given away twice")
            machine.gpu_fences[gpu] = order.fence
        machine.processes[order.fence] = Process(
            fence=order.fence, piece=order.piece, started_at=now, until=until
        )
        self.gpus_in_use += len(order.piece.gpus)
        self.last_start_at = time.perf_counter()
        self.first_starts.setdefault(order.job, self.last_start_at)
        runs = self._run_time(order.job)
        if runs == 0:
            self._end(machine, order.fence, now)
        elif runs < FOREVER:
            self._set_timer(now + runs, machine, order.fence)

    def _end(self, machine: _Machine, fence: int, now: Instant) -> None:
        """A process has come to its end; its guard may have ended it before."""
        process = machine.processes.get(fence)
        if process is None or process.exit is not None:
            return  # it has made room
        late = process.until <= now
        if late:
            self.problems.append(f"lease {fence} was not renewed in time")
        self._free(machine, fence)
        machine.processes[fence] = replace(
            process,
            run_ms=(now - process.started_at) // MILLISECOND,
            exit=Exit.KILLED if late else Exit.DONE,
            exit_code=None if late else 0,
        )
        machine.has_changed = True

    def _free(self, machine: _Machine, fence: int) -> None:
        self.gpus_in_use -= len(machine.processes[fence].piece.gpus)
        for gpu in machine.processes[fence].piece.gpus:
            del machine.gpu_fences[gpu]


def _has_stop(orders: LeaseOrders) -> bool:
    return any(lease.stop for lease in orders.leases)
