"""Callers in this process, and what they ask.

A unit of work is: reserve, three charges, settle; five commands, each under a key of its own.

Callers are not threads. Each has one command on its way, and the callback of its answer asks the
next one: for the ledger that is the same as 64 threads that wait, but it costs a few microseconds
where waking a thread costs more than the ledger's own work. What asking costs is measured by
asking `Nobody`.

Peaks are measured with callers that wait for their answers (closed loop). Latency is measured at
a given rate (open loop): units begin at seeded random instants whatever has become of the earlier
ones, each later command of a unit is due a little after the one before, and the time of an answer
counts from when its command was due.
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
from benchmarks.ledger.orgs import USER, later, project
from bursar.core.ids import ChargeId, HoldId
from bursar.core.ledger.commands import Charge, Command, RepayDebt, Reserve, Settle
from bursar.core.money import CREDIT
from bursar.core.refusal import Refusal
from bursar.service.database import OrgId
from bursar.service.ledger.batch import Answer
from bursar.service.ledger.batcher import Busy

STEPS: Final = 5  # commands in a unit
HELD: Final = CREDIT
CHARGED: Final = CREDIT // 4  # three times
BETWEEN_S: Final = 0.05  # from one command of a unit to the next, when they come by the clock
TICK_S: Final = 0.001  # how exactly the clock is followed
LAST_ANSWERS_S: Final = 15.0  # after that, what has no answer will have none


class Asked(Protocol):
    """What takes commands: a ledger, or nobody."""

    def submit(self, org: OrgId, key: str, command: Command) -> "Future[Answer]":
        """Ask for a command under a key."""


class Works:
    """Units of work without end, spread evenly over the projects of some orgs."""

    def __init__(self, name: str, orgs: Sequence[OrgId], projects: int) -> None:
        self._name = name
        self._orgs = orgs
        self._projects = projects
        self._chance = random.Random(f"{SEED}/{name}")
        self._expires_at = later()
        self._count = 0
        self._door = threading.Lock()  # callers draw from several threads

    def next(self) -> "Unit":
        """One that nobody has asked for yet."""
        with self._door:
            self._count += 1
            org = self._orgs[int(self._chance.random() * len(self._orgs))]
            account = int(self._chance.random() * self._projects)
            return Unit(f"{self._name}-{self._count}", org, account, self._expires_at)


class Unit:
    """Reserve, three charges, settle."""

    __slots__ = ("_account", "_expires_at", "name", "org")

    def __init__(self, name: str, org: OrgId, account: int, expires_at: int) -> None:
        self.name = name
        self.org = org
        self._account = account
        self._expires_at = expires_at

    def ask(self, ledger: Asked, step: int) -> "Future[Answer]":
        """Ask for the command of this number, from 0."""
        return ledger.submit(self.org, self.key(step), self.command(step))

    def key(self, step: int) -> str:
        """The key under which it is asked, however often."""
        return f"{self.name}/{step}"

    def command(self, step: int) -> Command:
        """The command of this number."""
        hold = HoldId(self.name)
        if step == 0:
            return Reserve(
                hold=hold,
                account=project(self._account),
                user=USER,
                amount=HELD,
                expires_at=self._expires_at,
            )
        charge = ChargeId(f"{self.name}/{step}")
        if step < STEPS - 1:
            return Charge(charge=charge, hold=hold, amount=CHARGED)
        return Settle(charge=charge, hold=hold)


@dataclass(slots=True)
class Peak:
    """What callers that wait for their answers have come to."""

    commands: int
    seconds: float
    failed: int  # refused, or not answered: no load means to be

    @property
    def per_second(self) -> float:
        """Answered commands a second."""
        return self.commands / self.seconds


class _Caller:
    """Asks the next command when the last is answered, until `until`."""

    def __init__(self, ledger: Asked, draw: Callable[[], Unit], until: float) -> None:
        self._ledger = ledger
        self._draw = draw
        self._until = until
        self._unit: Unit | None = None
        self._step = 0
        self.answered = 0
        self.failed = 0
        self.ended = threading.Event()

    def go_on(self) -> None:
        """Ask the next command."""
        if self._unit is None or self._step == STEPS:
            self._unit, self._step = self._draw(), 0
        try:
            answer = self._unit.ask(self._ledger, self._step)
        except Busy:
            self.failed += 1
            self.ended.set()
        else:
            answer.add_done_callback(self._heard)

    def _heard(self, answer: "Future[Answer]") -> None:
        if not _is_good(answer):
            self.failed += 1
            self._unit = None
        self.answered += 1
        self._step += 1
        if time.perf_counter() < self._until:
            self.go_on()
        else:
            self.ended.set()


def _is_good(answer: "Future[Answer]") -> bool:
    error = answer.exception()
    if error is not None:
        return False
    return not isinstance(answer.result().outcome, Refusal)


def peak(ledger: Asked, works: Works, callers: int, seconds: float) -> Peak:
    """Let so many callers ask as fast as they are answered."""
    began = time.perf_counter()
    asking = [_Caller(ledger, works.next, began + seconds) for _ in range(callers)]
    for one in asking:
        one.go_on()
    latest = began + seconds + LAST_ANSWERS_S
    unheard = sum(not one.ended.wait(max(latest - time.perf_counter(), 0)) for one in asking)
    lasted = time.perf_counter() - began
    failed = unheard + sum(one.failed for one in asking)
    return Peak(sum(one.answered for one in asking), lasted, failed)


# By the clock.


@dataclass(slots=True)
class Latency:
    """How long answers took at a given rate, from when their commands were due."""

    rate: float  # commands a second that were due
    times: list[float] = field(default_factory=list)  # seconds
    dropped: int = 0  # turned away, or without an answer at the end
    failed: int = 0

    def ms(self, part: float) -> float:
        """The time that this part of the answers did not exceed."""
        ordered = sorted(self.times)
        return ordered[min(int(part * len(ordered)), len(ordered) - 1)] * 1_000 if ordered else 0.0


class _Timed:
    """A unit whose commands come by the clock, yet never before the last one's answer."""

    __slots__ = ("_busy", "_dues", "_ledger", "_lock", "_step", "_told", "_unit")

    def __init__(
        self, ledger: Asked, unit: Unit, told: Callable[[float, str], None], lock: threading.Lock
    ) -> None:
        self._ledger = ledger
        self._unit = unit
        self._told = told
        self._lock = lock
        self._dues: deque[float] = deque()
        self._step = 0
        self._busy = False

    def fall_due(self, at: float) -> None:
        """Ask the next command now, or as soon as the one before is answered."""
        with self._lock:
            self._dues.append(at)
            if self._busy:
                return
            self._busy = True
        self._ask()

    def _ask(self) -> None:
        try:
            answer = self._unit.ask(self._ledger, self._step)
        except Busy:
            # The rest of the unit would be refused: `_busy` stays, nothing more of it is asked.
            self._told(0.0, "dropped")
        else:
            self._step += 1
            answer.add_done_callback(self._heard)

    def _heard(self, answer: "Future[Answer]") -> None:
        due = self._dues[0]
        self._told(time.perf_counter() - due, "answered" if _is_good(answer) else "failed")
        with self._lock:
            self._dues.popleft()
            self._busy = bool(self._dues)
        if self._busy:
            self._ask()


def latency(ledger: Asked, works: Works, rate: float, seconds: float) -> Latency:
    """Ask `rate` commands a second for so long, and take the time of each answer."""
    told = Latency(rate)

    def tell(lasted: float, how: str) -> None:
        if how == "answered":
            told.times.append(lasted)
        elif how == "dropped":
            told.dropped += 1
        else:
            told.failed += 1

    schedule = _schedule(rate, seconds)
    units: dict[int, _Timed] = {}
    lock = threading.Lock()
    began = time.perf_counter()
    for due, number in schedule:
        _wait_until(began + due)
        if number not in units:
            units[number] = _Timed(ledger, works.next(), tell, lock)
        units[number].fall_due(began + due)
    _await(lambda: len(told.times) + told.dropped + told.failed >= len(schedule))
    told.dropped = len(schedule) - len(told.times) - told.failed
    return told


def _schedule(rate: float, seconds: float) -> list[tuple[float, int]]:
    """When commands are due, and of which unit: seconds from the beginning, in order."""
    chance = random.Random(SEED)
    made: list[tuple[float, int]] = []
    start, number = chance.expovariate(rate / STEPS), 0
    while start < seconds:
        made += [(start + step * BETWEEN_S, number) for step in range(STEPS)]
        start += chance.expovariate(rate / STEPS)
        number += 1
    return sorted(made)


def _wait_until(at: float) -> None:
    while (left := at - time.perf_counter()) > 0:
        time.sleep(max(left, TICK_S))


def _await(true: Callable[[], bool]) -> None:
    deadline = time.perf_counter() + LAST_ANSWERS_S
    while not true() and time.perf_counter() < deadline:
        time.sleep(0.01)


# What asking costs.


class Nobody:
    """Answers everything with nothing, from a thread of its own as a ledger does."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Future[Answer] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def submit(self, org: OrgId, key: str, command: Command) -> "Future[Answer]":
        """Take a command, to no effect."""
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
    """Seconds of processor time that one command costs the callers and their futures."""
    nobody = Nobody()
    began = time.process_time()
    told = peak(nobody, Works("nobody", ["org"], 16), callers, seconds)
    used = time.process_time() - began
    nobody.close()
    return used / max(told.commands, 1)
