"""Callers that retry under the same key until they get an answer, and count their answers.

The tally knows nothing of the ledger's rules. `discrepancies` compares it with the rows in the
database: every answered command is stored once, and held and spent credits agree (L7).
"""

import threading
import time
from collections import Counter
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

from benchmarks.ledger.callers import (
    CHARGED_MICROS,
    HELD_MICROS,
    STEPS,
    CommandTarget,
    Unit,
    UnitSource,
)
from benchmarks.ledger.orgs import SETUP_KEY_PREFIX
from bursar.core.money import Micros
from bursar.core.refusal import Refusal
from bursar.service.database import Connection, Database, OrgId, ScratchDatabase
from bursar.service.ledger.audit import verify
from bursar.service.ledger.batch import Answer
from bursar.service.ledger.batcher import Busy, Unreachable

KEYS: Final = """
    select key
      from requests
     where org_id = %s
     order by key
"""
SUMS: Final = """
    select sum(amount)::bigint, sum(available)::bigint, sum(held)::bigint, sum(spent)::bigint,
           sum(lapsed)::bigint, sum(revoked)::bigint, sum(moved)::bigint
      from grants
     where org_id = %s
"""


@dataclass(slots=True)
class Tally:
    """The callers' own count of their answers."""

    keys: list[str] = field(default_factory=list)  # one for each answered command
    refusals: Counter[str] = field(default_factory=Counter)  # by code
    retries: int = 0  # because the database could not be reached
    replayed: int = 0  # retries of commands that were stored already
    held: Micros = 0
    spent: Micros = 0
    recovered_at: float | None = None  # first answer after a retry, by perf_counter


class RetryingCallers:
    """A number of callers on one ledger, each with one command in flight."""

    def __init__(self, ledger: CommandTarget, works: UnitSource, callers: int) -> None:
        self.ledger = ledger
        self.works = works
        self.tally = Tally()
        self.error: BaseException | None = None  # neither an answer nor a reason to retry
        self.stopping = False
        self._lock = threading.Lock()
        self._to_retry: list[_Caller] = []
        self._callers = [_Caller(self) for _ in range(callers)]
        self._idle = 0

    def start(self) -> None:
        """Send every caller's first command."""
        for caller in self._callers:
            caller.send()

    def retry(self) -> None:
        """Resend the commands that got no answer. Call this at intervals."""
        with self._lock:
            waiting, self._to_retry = self._to_retry, []
        for caller in waiting:
            caller.send()

    def stop(self) -> None:
        """Send no new commands; commands in flight are still retried until answered."""
        self.stopping = True

    @property
    def is_idle(self) -> bool:
        """Whether every caller has stopped."""
        return self._idle == len(self._callers)

    def on_silence(self, caller: "_Caller") -> None:
        """Queue a caller's command for a retry."""
        with self._lock:
            self.tally.retries += 1
            self._to_retry.append(caller)

    def on_answer(self, caller: "_Caller", answer: Answer) -> None:
        """Count an answer."""
        with self._lock:
            tally = self.tally
            tally.keys.append(caller.unit.key(caller.step))
            if tally.retries and tally.recovered_at is None:
                tally.recovered_at = time.perf_counter()
            tally.replayed += answer.replayed
            if isinstance(answer.outcome, Refusal):
                tally.refusals[answer.outcome.code] += 1
            else:
                spent, held = _effect(caller.step)
                tally.spent += spent
                tally.held += held

    def on_stop(self, error: BaseException | None = None) -> None:
        """Count a caller that stopped."""
        with self._lock:
            self._idle += 1
            self.error = self.error or error


def _effect(step: int) -> tuple[Micros, Micros]:
    """What a command of a unit adds to spent and to held."""
    if step == 0:
        return 0, HELD_MICROS
    if step < STEPS - 1:
        return CHARGED_MICROS, -CHARGED_MICROS
    return 0, (STEPS - 2) * CHARGED_MICROS - HELD_MICROS


class _Caller:
    """Sends one command after the other, each until it is answered."""

    def __init__(self, callers: RetryingCallers) -> None:
        self._callers = callers
        self.unit: Unit = callers.works.next()
        self.step = 0

    def send(self) -> None:
        """Send the current command, for the first time or again."""
        try:
            answer = self.unit.submit(self._callers.ledger, self.step)
        except Busy:
            self._callers.on_silence(self)
        else:
            answer.add_done_callback(self._on_done)

    def _on_done(self, answer: "Future[Answer]") -> None:
        error = answer.exception()
        if isinstance(error, (Busy, Unreachable)):
            self._callers.on_silence(self)
        elif error is not None:
            self._callers.on_stop(error)
        else:
            self._advance(answer.result())

    def _advance(self, answer: Answer) -> None:
        self._callers.on_answer(self, answer)
        if isinstance(answer.outcome, Refusal) or self.step == STEPS - 1:
            self.unit, self.step = self._callers.works.next(), 0
        else:
            self.step += 1
        if self._callers.stopping:
            self._callers.on_stop()
        else:
            self.send()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTotals:
    """An org's request keys and credits, counted by rows alone."""

    keys: list[str]
    granted: Micros
    available: Micros
    held: Micros
    spent: Micros
    elsewhere: Micros  # lapsed, revoked or moved

    @property
    def adds_up(self) -> bool:
        """Whether every granted micro-credit is in exactly one compartment."""
        return sum((self.available, self.held, self.spent, self.elsewhere)) == self.granted


def load_totals(connection: Connection, org: OrgId) -> StoredTotals:
    """Read an org's totals in one snapshot."""
    with connection.transaction():
        connection.execute("set transaction isolation level repeatable read, read only")
        keys = [key for (key,) in connection.execute(KEYS, [org])]
        [sums] = connection.execute(SUMS, [org]).fetchall()
    granted, available, held, spent, *elsewhere = sums
    return StoredTotals(
        keys=keys,
        granted=granted,
        available=available,
        held=held,
        spent=spent,
        elsewhere=sum(elsewhere),
    )


def discrepancies(database: Database | ScratchDatabase, org: OrgId, tally: Tally) -> list[str]:
    """Compare the callers' tally with the database; one line for each difference."""
    with database.connect(timeouts=None) as connection:
        totals = load_totals(connection, org)
        problems = [f"verify: {problem}" for problem in verify(connection)]
    stored = [key for key in totals.keys if not key.startswith(SETUP_KEY_PREFIX)]
    lost = Counter(tally.keys) - Counter(stored)
    unanswered = Counter(stored) - Counter(tally.keys)
    problems += [f"answered but not stored: {key}" for key in sorted(lost)]
    problems += [f"stored twice or never answered: {key}" for key in sorted(unanswered)]
    if not totals.adds_up:
        problems.append(f"credits do not add up: {totals}")
    if (totals.held, totals.spent) != (tally.held, tally.spent):
        problems.append(
            f"held and spent differ: {totals.held}, {totals.spent} stored,"
            f" {tally.held}, {tally.spent} by the callers' count"
        )
    return problems
