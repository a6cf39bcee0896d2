"""The agent's loop: report to the pool, carry out its answer, report again.

The agent reports every five seconds, and at once when a process started or ended. The pool may hold
an answer back until there is news (a long poll), so a new lease arrives at once. Later reports do
not wait for that answer. While the pool does not answer, reports continue, and processes run until
their guards end them.
"""

import logging
import queue
import random
import threading
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from bursar.agent.backend import Backend, act
from bursar.agent.clock import running_time
from bursar.agent.state_dir import StateDir
from bursar.agent.transport import NoAnswer, Transport
from bursar.core.dispatch.agent import (
    REPORT_INTERVAL,
    Agent,
    Process,
    Remember,
    follow_orders,
    make_report,
)
from bursar.core.dispatch.reports import LeaseOrders, NodeReport
from bursar.core.ids import NodeId
from bursar.core.instant import MILLISECOND, SECOND
from bursar.core.value import replace
from bursar.failpoints import failpoint

POLL_INTERVAL_S: Final = 0.2
IN_FLIGHT_MAX: Final = 8
LONG_POLLS_MAX: Final = 2  # of the reports in flight, how many the pool may answer late
BACKOFF_FIRST_US: Final = SECOND // 2
IGNORED_MAX: Final = 3  # reports in a row
RESULTS_BYTES_MAX: Final = 512 * 1024  # of all results in one report; the others follow in the next

_log = logging.getLogger("bursar.agent")
_Answer: TypeAlias = LeaseOrders | NoAnswer | None


class _SentReport(NamedTuple):
    """A report whose answer has not arrived."""

    n: int
    may_wait: bool  # the pool may hold the answer back until there is news


class AgentLoop:
    """One run of a node's agent, from start to stop."""

    def __init__(
        self,
        node: NodeId,
        state_dir: StateDir,
        backend: Backend,
        transport: Transport,
        *,
        on_change: Callable[[], None] = lambda: None,
        interval_us: int = REPORT_INTERVAL,
        random_fraction: Callable[[], float] = random.random,
    ) -> None:
        """`on_change` is called when processes start or end, and when the pool answers again.

        `interval_us` separates two reports; `random_fraction` draws from [0, 1) for back-off.
        """
        self._state_dir = state_dir
        self._backend = backend
        self._transport = transport
        self._on_change = on_change
        self._interval_us = interval_us
        self._random_fraction = random_fraction
        self._agent = Agent(node=node, boot=state_dir.count_start(), fence=state_dir.fence)
        self._answers: queue.SimpleQueue[tuple[_SentReport, _Answer]] = queue.SimpleQueue()
        self._in_flight = 0
        self._long_polls = 0  # of those in flight
        self._next_report_at = 0
        self._failures = 0  # in a row
        self._ignored = 0  # in a row
        self._reported_state: frozenset[object] = frozenset()

    def run(self, stop_event: threading.Event) -> None:
        """Report and act until the event is set. Running processes continue after that."""
        for fence, process in sorted(self._backend.table().items()):
            _log.info("took over the process of fence %s: %s", fence, process.exit or "running")
        while not stop_event.is_set():
            self.step()

    def step(self) -> None:
        """Report if it is time; wait briefly for an answer and carry it out."""
        table = self._backend.table()
        if self._is_due(table):
            self._send_report(table)
        try:
            sent, answer = self._answers.get(timeout=POLL_INTERVAL_S)
        except queue.Empty:
            return
        self._handle_answer(sent, answer)

    # Reports

    def _is_due(self, table: dict[int, Process]) -> bool:
        if self._in_flight >= IN_FLIGHT_MAX:
            return False
        has_news = not self._failures and _state_of(table) != self._reported_state
        return has_news or running_time() >= self._next_report_at

    def _send_report(self, table: dict[int, Process]) -> None:
        now = running_time()
        node_report = make_report(self._agent, limit_results(table), now)
        # No long poll while the pool does not answer, nor beside enough others.
        may_wait = not self._failures and self._long_polls < LONG_POLLS_MAX
        self._next_report_at = now + self._interval_us
        if _state_of(table) != self._reported_state:
            self._reported_state = _state_of(table)
            self._on_change()
        self._in_flight += 1
        self._long_polls += may_wait
        sent = _SentReport(node_report.number, may_wait)
        threading.Thread(target=self._exchange, args=(node_report, sent), daemon=True).start()

    def _exchange(self, node_report: NodeReport, sent: _SentReport) -> None:
        """Send a report and queue the answer. Runs in its own thread, since it may block."""
        wait_ms = self._interval_us // MILLISECOND if sent.may_wait else 0
        try:
            failpoint("agent.before_report")
            answer: _Answer = self._transport.exchange(node_report, wait_ms)
        except NoAnswer as error:
            answer = error
        except Exception as error:  # after a bug the node still reports
            _log.exception("sending a report failed")
            answer = NoAnswer(str(error))
        self._answers.put((sent, answer))

    # Answers

    def _handle_answer(self, sent: _SentReport, answer: _Answer) -> None:
        self._in_flight -= 1
        self._long_polls -= sent.may_wait
        if isinstance(answer, NoAnswer):
            self._back_off(answer)
            return
        if self._failures:
            _log.info("the pool answers again")
            self._on_change()
        self._failures = 0
        if answer is not None:
            self._ignored = 0
            self._carry_out(answer)
        elif sent.n == self._agent.n:  # no later report explains the missing answer
            self._count_ignored()

    def _count_ignored(self) -> None:
        self._ignored += 1
        if self._ignored == IGNORED_MAX:
            _log.error(
                "the pool ignores the reports of %s: the node is not registered, or the pool has"
                " reports of a later start. If its disk was replaced, an operator can run:"
                " bursar nodes POOL --reset NODE",
                self._agent.node,
            )

    def _back_off(self, error: NoAnswer) -> None:
        """Schedule the next report: soon at first, then later, at most one interval away."""
        self._failures += 1
        if self._failures == 1:
            _log.warning("no answer from the pool: %s", error)
        span = min(BACKOFF_FIRST_US << min(self._failures - 1, 10), self._interval_us)
        span = int(span * (1 + self._random_fraction()) / 2)
        self._next_report_at = min(self._next_report_at, running_time() + span)

    def _carry_out(self, orders: LeaseOrders) -> None:
        """Carry out the orders of an answer. The pool repeats an order that failed."""
        failpoint("agent.after_report")
        now = running_time()
        for action in follow_orders(self._agent, orders, self._backend.table(), now):
            _log.debug("%s", action)
            try:
                if isinstance(action, Remember):
                    self._state_dir.remember_fence(action.fence)
                    failpoint("agent.fence_saved")
                else:
                    act(self._backend, action)
            except OSError:
                _log.exception("the action %s failed", type(action).__name__)
                if isinstance(action, Remember):
                    return  # nothing is started before its fence is on disk


def _state_of(table: dict[int, Process]) -> frozenset[object]:
    """The part of the table whose change is reported at once: starts and ends."""
    return frozenset(
        (process.fence, process.run_ms > 0, process.exit) for process in table.values()
    )


def limit_results(table: dict[int, Process]) -> dict[int, Process]:
    """The table with no more results than a report can carry.

    A process whose result does not fit is reported as running, with its final run time.
    """
    bytes_left, limited = RESULTS_BYTES_MAX, {}
    for fence in sorted(table):
        process = table[fence]
        bytes_left -= len((process.result or "").encode())
        if bytes_left < 0 and process.exit is not None and process.result:
            process = replace(process, exit=None, exit_code=None, result=None)
        limited[fence] = process
    return limited
