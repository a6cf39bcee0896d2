"""The agent's loop: report, follow the answer, report again.

A report goes out every five seconds, and at once when a process has begun or ended. Its answer may
be held back by the pool until there is news, so that a new lease is heard of at once; a later
report does not wait for it. If nobody answers, reports go on: what runs is ended by its guard when
its time is over, and by nobody earlier.
"""

import logging
import queue
import random
import threading
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from bursar.agent.backend import Backend, act
from bursar.agent.clock import running_time
from bursar.agent.state_dir import Disk
from bursar.agent.transport import Transport, Unheard
from bursar.core.dispatch.agent import REPORT_EVERY, Agent, Process, Remember, hear, report
from bursar.core.dispatch.reports import LeaseOrders, NodeReport
from bursar.core.ids import NodeId
from bursar.core.instant import MILLISECOND, SECOND
from bursar.core.value import replace
from bursar.failpoints import failpoint

LOOK_EVERY_S: Final = 0.2
IN_FLIGHT_MAX: Final = 8
WAITING_MAX: Final = 2  # of these, that the pool may hold back
BACKOFF_FIRST: Final = SECOND // 2
UNWANTED_MAX: Final = 3  # reports in a row that the pool had no answer to
RESULTS_MAX: Final = 512 * 1024  # bytes of results in one report; the rest comes with the next

_log = logging.getLogger("bursar.agent")
_Answer: TypeAlias = LeaseOrders | Unheard | None


class _Sent(NamedTuple):
    """A report that is on its way."""

    n: int
    waits: bool  # the pool may hold its answer back


class Running:
    """One start of a node's agent."""

    def __init__(
        self,
        node: NodeId,
        disk: Disk,
        backend: Backend,
        transport: Transport,
        *,
        every: int = REPORT_EVERY,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """`every` is between two reports, in microseconds; `chance` draws from [0, 1)."""
        self._disk = disk
        self._backend = backend
        self._transport = transport
        self._every = every
        self._chance = chance
        self._agent = Agent(node=node, boot=disk.begin(), fence=disk.fence)
        self._answers: queue.SimpleQueue[tuple[_Sent, _Answer]] = queue.SimpleQueue()
        self._in_flight = 0
        self._waiting = 0  # of these
        self._next_at = 0
        self._failures = 0  # in a row
        self._unwanted = 0  # in a row
        self._told: frozenset[object] = frozenset()

    def run(self, stopped: threading.Event) -> None:
        """Look after the node until told to stop; what runs goes on."""
        for fence, one in sorted(self._backend.table().items()):
            _log.info("found %s, %s", fence, one.exit or "running")
        while not stopped.is_set():
            self.step()

    def step(self) -> None:
        """Report if it is time, and follow an answer if one comes meanwhile."""
        table = self._backend.table()
        if self._is_due(table):
            self._report(table)
        try:
            sent, answer = self._answers.get(timeout=LOOK_EVERY_S)
        except queue.Empty:
            return
        self._hear(sent, answer)

    # Reports

    def _is_due(self, table: dict[int, Process]) -> bool:
        if self._in_flight >= IN_FLIGHT_MAX:
            return False
        news = not self._failures and _state(table) != self._told
        return news or running_time() >= self._next_at

    def _report(self, table: dict[int, Process]) -> None:
        now = running_time()
        told = report(self._agent, affordable(table), now)
        # Not while nobody answers, nor if others are held back already: this one has news.
        waits = not self._failures and self._waiting < WAITING_MAX
        self._next_at = now + self._every
        self._told = _state(table)
        self._in_flight += 1
        self._waiting += waits
        sent = _Sent(told.n, waits)
        threading.Thread(target=self._exchange, args=(told, sent), daemon=True).start()

    def _exchange(self, told: NodeReport, sent: _Sent) -> None:
        """In a thread of its own: it may take long, or for ever."""
        wait_ms = self._every // MILLISECOND if sent.waits else 0
        try:
            failpoint("agent.before_report")
            answer: _Answer = self._transport.exchange(told, wait_ms)
        except Unheard as error:
            answer = error
        except Exception as error:  # a bug in there must not make the node silent
            _log.exception("a report broke")
            answer = Unheard(str(error))
        self._answers.put((sent, answer))

    # Answers

    def _hear(self, sent: _Sent, answer: _Answer) -> None:
        self._in_flight -= 1
        self._waiting -= sent.waits
        if isinstance(answer, Unheard):
            self._back_off(answer)
            return
        if self._failures:
            _log.info("the pool answers again")
        self._failures = 0
        if answer is not None:
            self._unwanted = 0
            self._follow(answer)
        elif sent.n == self._agent.n:  # and no later one can be why
            self._not_wanted()

    def _not_wanted(self) -> None:
        self._unwanted += 1
        if self._unwanted == UNWANTED_MAX:
            _log.error(
                "the pool takes no report of %s: it is not registered, or was heard of with a"
                " higher count. Was its disk replaced? Then give it another name",
                self._agent.node,
            )

    def _back_off(self, why: Unheard) -> None:
        """Try again soon, then ever more slowly, but not more slowly than leases need."""
        self._failures += 1
        if self._failures == 1:
            _log.warning("the pool does not answer: %s", why)
        span = min(BACKOFF_FIRST << min(self._failures - 1, 10), self._every)
        span = int(span * (1 + self._chance()) / 2)
        self._next_at = min(self._next_at, running_time() + span)

    def _follow(self, orders: LeaseOrders) -> None:
        """Do what an answer asks for; what cannot be done is asked for again."""
        failpoint("agent.answered")
        now = running_time()
        for action in hear(self._agent, orders, self._backend.table(), now):
            _log.debug("%s", action)
            try:
                if isinstance(action, Remember):
                    self._disk.remember(action.fence)
                    failpoint("agent.remembered")
                else:
                    act(self._backend, action)
            except OSError:
                _log.exception("%s could not be done", type(action).__name__)
                if isinstance(action, Remember):
                    return  # nothing is started that is not on disk


def _state(table: dict[int, Process]) -> frozenset[object]:
    """What is worth a report of its own: who has begun, who has ended."""
    return frozenset((one.fence, one.run_ms > 0, one.exit) for one in table.values())


def affordable(table: dict[int, Process]) -> dict[int, Process]:
    """The table with no more results than a report can carry.

    Whose result does not fit seems to run for a little longer, without using any time.
    """
    left, told = RESULTS_MAX, {}
    for fence in sorted(table):
        one = table[fence]
        left -= len((one.result or "").encode())
        if left < 0 and one.exit is not None and one.result:
            one = replace(one, exit=None, exit_code=None, result=None)
        told[fence] = one
    return told
