"""Callers in this process, and the commands that they send.

A unit of work is: reserve, three charges, settle; five commands, each under a key of its own.

Callers are not threads. Each has one command in flight, and the callback of its answer submits the
next one: for the ledger that is the same as 64 waiting threads, but it costs a few microseconds,
while waking a thread costs more than the ledger's own work. The cost of the callers themselves is
measured with a `NullLedger`.

Peaks are measured with callers that wait for their answers (closed loop). Latency is measured at
a fixed rate (open loop): units begin at seeded random times whether or not earlier ones have
finished, each later command of a unit is due shortly after the one before, and the latency of an
answer counts from when its command was due.
"""

import queue
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final, Protocol

from benchmarks.environment import SEED
from benchmarks.ledger.orgs import USER, make_expiry, project_id
from bursar.core.ids import ChargeId, HoldId
from bursar.core.ledger.commands import Charge, Command, RepayDebt, Reserve, Settle
from bursar.core.money import CREDIT
from bursar.core.refusal import Refusal
from bursar.service.database import OrgId
from bursar.service.ledger.batch import Answer
from bursar.service.ledger.batcher import Busy

STEPS: Final = 5  # commands in a unit
HELD_MICROS: Final = CREDIT
CHARGED_MICROS: Final = CREDIT // 4  # three times
STEP_INTERVAL_S: Final = 0.05  # between two commands of a unit at a fixed rate
TICK_S: Final = 0.001  # precision of due times
LAST_ANSWER_TIMEOUT_S: Final = 15.0  # for the last answers


class CommandTarget(Protocol):
    """Accepts commands: a ledger, or a `NullLedger`."""

    def submit(self, org: OrgId, key: str, command: Command) -> "Future[Answer]":
        """Submit a command with its idempotency key."""


class UnitSource:
    """Makes units of work, spread evenly over the projects of some orgs."""

    def __init__(self, name: str, orgs: Sequence[OrgId], projects: int) -> None:
        self._name = name
        self._orgs = orgs
        self._projects = projects
        self._rng = random.Random(f"{SEED}/{name}")
        self._expires_at = make_expiry()
        self._count = 0
        self._lock = threading.Lock()  # callers draw from several threads

    def next(self) -> "Unit":
        """Make a new unit."""
        with self._lock:
            self._count += 1
            org = self._orgs[int(self._rng.random() * len(self._orgs))]
            account = int(self._rng.random() * self._projects)
            return Unit(f"{self._name}-{self._count}", org, account, self._expires_at)


class Unit:
    """Reserve, three charges, settle."""

    __slots__ = ("_account", "_expires_at", "name", "org")

    def __init__(self, name: str, org: OrgId, account: int, expires_at: int) -> None:
        self.name = name
        self.org = org
        self._account = account
        self._expires_at = expires_at

    def submit(self, ledger: CommandTarget, step: int) -> "Future[Answer]":
        """Submit the command of this step, from 0."""
        return ledger.submit(self.org, self.key(step), self.command(step))

    def key(self, step: int) -> str:
        """The idempotency key of a step."""
        return f"{self.name}/{step}"

    def command(self, step: int) -> Command:
        """The command of a step."""
        hold = HoldId(self.name)
        if step == 0:
            return Reserve(
                hold=hold,
                account=project_id(self._account),
                user=USER,
                amount=HELD_MICROS,
                expires_at=self._expires_at,
            )
        charge = ChargeId(f"{self.name}/{step}")
        if step < STEPS - 1:
            return Charge(charge=charge, hold=hold, amount=CHARGED_MICROS)
        return Settle(charge=charge, hold=hold)


@dataclass(slots=True)
class Peak:
    """The result of callers that wait for their answers."""

    commands: int
    seconds: float
    failed: int  # refused or not answered

    @property
    def per_second(self) -> float:
        """Answered commands per second."""
        return self.commands / self.seconds


class _Caller:
    """Submits the next command when the last is answered, up to the time `until`."""

    def __init__(self, ledger: CommandTarget, draw: Callable[[], Unit], until: float) -> None:
        self._ledger = ledger
        self._draw = draw
        self._until = until
        self._unit: Unit | None = None
        self._step = 0
        self.answered = 0
        self.failed = 0
        self.ended = threading.Event()

    def submit_next(self) -> None:
        """Submit the next command."""
        if self._unit is None or self._step == STEPS:
            self._unit, self._step = self._draw(), 0
        try:
            answer = self._unit.submit(self._ledger, self._step)
        except Busy:
            self.failed += 1
            self.ended.set()
        else:
            answer.add_done_callback(self._on_answer)

    def _on_answer(self, answer: "Future[Answer]") -> None:
        if not _is_accepted(answer):
            self.failed += 1
            self._unit = None
        self.answered += 1
        self._step += 1
        if time.perf_counter() < self._until:
            self.submit_next()
        else:
            self.ended.set()


def _is_accepted(answer: "Future[Answer]") -> bool:
    error = answer.exception()
    if error is not None:
        return False
    return not isinstance(answer.result().outcome, Refusal)


def measure_peak(ledger: CommandTarget, works: UnitSource, callers: int, seconds: float) -> Peak:
    """Run this many callers, each as fast as it is answered."""
    began = time.perf_counter()
    running = [_Caller(ledger, works.next, began + seconds) for _ in range(callers)]
    for caller in running:
        caller.submit_next()
    latest = began + seconds + LAST_ANSWER_TIMEOUT_S
    unanswered = sum(
        not caller.ended.wait(max(latest - time.perf_counter(), 0)) for caller in running
    )
    lasted = time.perf_counter() - began
    failed = unanswered + sum(caller.failed for caller in running)
    return Peak(sum(caller.answered for caller in running), lasted, failed)


# At a fixed rate.


@dataclass(slots=True)
class Latency:
    """Latencies at a fixed rate, from when each command was due."""

    rate: float  # commands a second that were due
    times: list[float] = field(default_factory=list)  # seconds
    dropped: int = 0  # rejected as busy, or unanswered at the end
    failed: int = 0

    def ms(self, part: float) -> float:
        """A percentile of the latencies, in milliseconds; 0.99 is the p99."""
        ordered = sorted(self.times)
        return ordered[min(int(part * len(ordered)), len(ordered) - 1)] * 1_000 if ordered else 0.0


class _TimedUnit:
    """A unit whose commands fall due at fixed times; each waits for the answer before it."""

    __slots__ = ("_busy", "_dues", "_ledger", "_lock", "_record", "_step", "_unit")

    def __init__(
        self,
        ledger: CommandTarget,
        unit: Unit,
        record: Callable[[float, str], None],
        lock: threading.Lock,
    ) -> None:
        self._ledger = ledger
        self._unit = unit
        self._record = record
        self._lock = lock
        self._dues: deque[float] = deque()
        self._step = 0
        self._busy = False

    def fall_due(self, at: float) -> None:
        """Submit the next command now, or as soon as the one before is answered."""
        with self._lock:
            self._dues.append(at)
            if self._busy:
                return
            self._busy = True
        self._submit()

    def _submit(self) -> None:
        try:
            answer = self._unit.submit(self._ledger, self._step)
        except Busy:
            # The rest of the unit would be refused: `_busy` stays set, so nothing more is sent.
            self._record(0.0, "dropped")
        else:
            self._step += 1
            answer.add_done_callback(self._on_answer)

    def _on_answer(self, answer: "Future[Answer]") -> None:
        due = self._dues[0]
        self._record(time.perf_counter() - due, "answered" if _is_accepted(answer) else "failed")
        with self._lock:
            self._dues.popleft()
            self._busy = bool(self._dues)
        if self._busy:
            self._submit()


def measure_latency(
    ledger: CommandTarget, works: UnitSource, rate: float, seconds: float
) -> Latency:
    """Submit `rate` commands per second, and record the latency of each answer."""
    results = Latency(rate)

    def record(lasted: float, how: str) -> None:
        if how == "answered":
            results.times.append(lasted)
        elif how == "dropped":
            results.dropped += 1
        else:
            results.failed += 1

    schedule = _make_schedule(rate, seconds)
    units: dict[int, _TimedUnit] = {}
    lock = threading.Lock()
    began = time.perf_counter()
    for due, number in schedule:
        _wait_until(began + due)
        if number not in units:
            units[number] = _TimedUnit(ledger, works.next(), record, lock)
        units[number].fall_due(began + due)
    _poll_until(lambda: len(results.times) + results.dropped + results.failed >= len(schedule))
    results.dropped = len(schedule) - len(results.times) - results.failed
    return results


def _make_schedule(rate: float, seconds: float) -> list[tuple[float, int]]:
    """The due times of commands, in seconds from the start, and their units; in order."""
    rng = random.Random(SEED)
    schedule: list[tuple[float, int]] = []
    start, number = rng.expovariate(rate / STEPS), 0
    while start < seconds:
        schedule += [(start + step * STEP_INTERVAL_S, number) for step in range(STEPS)]
        start += rng.expovariate(rate / STEPS)
        number += 1
    return sorted(schedule)


def _wait_until(at: float) -> None:
    while (remaining := at - time.perf_counter()) > 0:
        time.sleep(max(remaining, TICK_S))


def _poll_until(true: Callable[[], bool]) -> None:
    deadline = time.perf_counter() + LAST_ANSWER_TIMEOUT_S
    while not true() and time.perf_counter() < deadline:
        time.sleep(0.01)


# The cost of the callers.


class NullLedger:
    """Answers every command with no events, from a thread of its own as a ledger does."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Future[Answer] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def submit(self, org: OrgId, key: str, command: Command) -> "Future[Answer]":
        """Accept a command and do nothing."""
        answer: Future[Answer] = Future()
        self._queue.put(answer)
        return answer

    def close(self) -> None:
        """Stop."""
        self._queue.put(None)
        self._thread.join()

    def _work(self) -> None:
        nothing = Answer(command=RepayDebt(), outcome=(), number=0, replayed=False)
        while (answer := self._queue.get()) is not None:
            answer.set_result(nothing)


def measure_caller_cost(callers: int, seconds: float) -> float:
    """Processor time that one command costs the callers and their futures, in seconds."""
    target = NullLedger()
    began = time.process_time()
    peak = measure_peak(target, UnitSource("null", ["org"], 16), callers, seconds)
    used = time.process_time() - began
    target.close()
    return used / max(peak.commands, 1)
