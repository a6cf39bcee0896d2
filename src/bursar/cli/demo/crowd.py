"""A crowd of careful callers: each asks again, under the same key, what it got no answer to.

It keeps books of its own about what it was told, in a few lines that know nothing of the ledger's
rules: at the end the database is compared with them.
"""

import threading
import time
from collections import Counter
from concurrent.futures import Future
from dataclasses import dataclass, field

from bursar.bench.ledger.callers import CHARGED, HELD, STEPS, Asked, Unit, Works
from bursar.core.money import Micros
from bursar.core.refusal import Refusal
from bursar.service.ledger.batch import Answer
from bursar.service.ledger.batcher import Busy, Unreachable


@dataclass(slots=True)
class Told:
    """What the crowd was told, in its own words."""

    keys: list[str] = field(default_factory=list)  # of the answers, one for each
    refusals: Counter[str] = field(default_factory=Counter)  # by code
    asked_again: int = 0  # because the database could not be reached
    replayed: int = 0  # of these, done already: the first answer was given again
    held: Micros = 0
    spent: Micros = 0
    waits: list[float] = field(default_factory=list)  # seconds, since they were last looked at
    answered_again_at: float | None = None  # the first answer after a silence, by perf_counter


class Crowd:
    """So many callers on one ledger."""

    def __init__(self, ledger: Asked, works: Works, callers: int) -> None:
        self.ledger = ledger
        self.works = works
        self.told = Told()
        self.error: BaseException | None = None  # that nobody has foreseen
        self.stopping = False
        self._door = threading.Lock()
        self._again: list[_Caller] = []
        self._callers = [_Caller(self) for _ in range(callers)]
        self._idle = 0

    def start(self) -> None:
        """Let all of them begin."""
        for one in self._callers:
            one.ask()

    def retry(self) -> None:
        """Let those ask again who got no answer; to be called every now and then."""
        with self._door:
            waiting, self._again = self._again, []
        for one in waiting:
            one.ask()

    def stop(self) -> None:
        """Let nobody ask anything new; whoever waits for an answer still gets it."""
        self.stopping = True

    @property
    def ended(self) -> bool:
        """Whether everybody has the last answer."""
        return self._idle == len(self._callers)

    def waits(self) -> list[float]:
        """How long the answers took that came since this was last asked, in seconds."""
        with self._door:
            waits, self.told.waits = self.told.waits, []
            return waits

    def note_silence(self, caller: "_Caller") -> None:
        """Somebody got no answer."""
        with self._door:
            self.told.asked_again += 1
            self._again.append(caller)

    def note(self, caller: "_Caller", answer: Answer, waited: float) -> None:
        """Somebody got an answer."""
        with self._door:
            told = self.told
            told.keys.append(caller.unit.key(caller.step))
            told.waits.append(waited)
            if told.asked_again and told.answered_again_at is None:
                told.answered_again_at = time.perf_counter()
            told.replayed += answer.replayed
            if isinstance(answer.outcome, Refusal):
                told.refusals[answer.outcome.code] += 1
            else:
                spent, held = _moved(caller.step)
                told.spent += spent
                told.held += held

    def note_end(self, error: BaseException | None = None) -> None:
        """Somebody has stopped."""
        with self._door:
            self._idle += 1
            self.error = self.error or error


def _moved(step: int) -> tuple[Micros, Micros]:
    """What a command of a unit adds to spent and to held."""
    if step == 0:
        return 0, HELD
    if step < STEPS - 1:
        return CHARGED, -CHARGED
    return 0, (STEPS - 2) * CHARGED - HELD


class _Caller:
    """Asks one command after the other, each until it is answered."""

    def __init__(self, crowd: Crowd) -> None:
        self._crowd = crowd
        self.unit: Unit = crowd.works.next()
        self.step = 0
        self._asked_at: float | None = None  # for the first time

    def ask(self) -> None:
        """Ask the command at hand, perhaps not for the first time."""
        self._asked_at = self._asked_at or time.perf_counter()
        try:
            answer = self.unit.ask(self._crowd.ledger, self.step)
        except Busy:
            self._crowd.note_silence(self)
        else:
            answer.add_done_callback(self._heard)

    def _heard(self, answer: "Future[Answer]") -> None:
        error = answer.exception()
        if isinstance(error, (Busy, Unreachable)):
            self._crowd.note_silence(self)
        elif error is not None:
            self._crowd.note_end(error)
        else:
            self._go_on(answer.result())

    def _go_on(self, answer: Answer) -> None:
        assert self._asked_at is not None
        self._crowd.note(self, answer, time.perf_counter() - self._asked_at)
        self._asked_at = None
        if isinstance(answer.outcome, Refusal) or self.step == STEPS - 1:
            self.unit, self.step = self._crowd.works.next(), 0
        else:
            self.step += 1
        if self._crowd.stopping:
            self._crowd.note_end()
        else:
            self.ask()
