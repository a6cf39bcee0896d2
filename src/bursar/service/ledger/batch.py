"""One transaction for many ledger commands: lock, load, decide, write, commit (D3).

Commands run in their order of arrival, each against the books of its org. Missing rows are loaded
in rounds, for all orgs at once; each round loads twice as many keys of an order as the one before.
Books stay in memory between batches, without closed holds and charges. They are used again if they
have the number of the org's last event: every change has an event, so they are up to date. Books
that are a few events behind, because another process wrote them, apply the events: that costs less
than loading.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from bursar.core.ids import JobId, OrgId
from bursar.core.instant import Instant
from bursar.core.jobs.effects import FollowUp, JobEffect, Performed, perform_with
from bursar.core.jobs.rows import ArrayProgress, OrgJob
from bursar.core.jobs.transaction import JobTransaction
from bursar.core.ledger.books import Books, FinishedWork
from bursar.core.ledger.commands import Command
from bursar.core.ledger.decide import decide
from bursar.core.ledger.events import ChargeBooked, Event, HoldOpened, LotTaken
from bursar.core.ledger.evolve import evolve
from bursar.core.ledger.holds import refuse_change_of_job_hold
from bursar.core.ledger.idempotency import Reply, replay
from bursar.core.ledger.tables import NotLoaded
from bursar.core.pricing import PriceBook
from bursar.core.refusal import Fault, InvariantBroken, Refusal
from bursar.core.value import value
from bursar.failpoints import failpoint
from bursar.service.gc_pause import gc_paused
from bursar.service.ledger.clock import ClockRefused, events_ahead
from bursar.service.ledger.prefetch import Prefetch, new_names
from bursar.service.ledger.prices import DeploymentPrices, looks_at_prices
from bursar.store.jobs.transaction import (
    StoredJobs,
    arrays_of,
    ask_arrays,
    ask_jobs,
    jobs_of,
    save_jobs,
)
from bursar.store.ledger.loader import (
    OrgRow,
    WantedRows,
    ask_replies,
    events_between,
    load,
    lock_orgs,
    locked,
    replies,
)
from bursar.store.ledger.writer import BatchWriter, RequestAnswer
from bursar.store.sql.connection import Connection, SentStatement, money_time

FIRST_KEYS: Final = 4  # keys of an order that the first round loads
SIZE_MAX: Final = 200_000  # rows and orders of one org that stay in memory
ORGS_MAX: Final = 10_000  # orgs that stay in memory
MOST_KEYS: Final = 4_096  # keys of an order that a round loads at most
FOLLOWED_MOST: Final = 12  # events that books may be behind; to apply more costs more than loading
SENT_AT_ONCE: Final = 64  # answers that are sent to the database together


class OrgUnknown(KeyError):
    """The org does not exist."""


class OrgFrozen(Fault):
    """The org's books contradict themselves; it is frozen until an operator repairs it."""


class CommandRequest(NamedTuple):
    """A command to one org, with its idempotency key."""

    org: OrgId
    key: str
    command: Command
    effect: JobEffect | None = None  # its change of the org's jobs
    generated_fields: tuple[str, ...] = ()  # fields of the command with generated ids
    actor: str = ""  # the API key of the request; empty for commands of Bursar itself


@value
class Answer:
    """The outcome of a command."""

    command: Command  # of the first request with its key
    outcome: tuple[Event, ...] | Refusal
    number: int  # of the org's last event after the decision
    replayed: bool  # whether the key was used before and this is its first answer


BatchResult: TypeAlias = Answer | OrgUnknown | OrgFrozen | ClockRefused


@dataclass(slots=True)
class Batch:
    """Commands of one transaction."""

    connection: Connection
    prices: PriceBook  # of a deployment that stores none
    cache: dict[OrgId, Books]
    clock: Callable[[Connection], Instant] = money_time
    deployment: DeploymentPrices = field(default_factory=DeploymentPrices)
    # Whether an org may be changed at a time, by the time of its last event.
    admits: Callable[[Instant, Instant], bool] = lambda now, last: True
    rounds: int = 0  # rounds of loading
    _known: dict[tuple[OrgId, str], Reply] = field(default_factory=dict)
    _answers: list[tuple[OrgId, Books, RequestAnswer]] = field(default_factory=list)
    _written: BatchWriter = field(default_factory=BatchWriter)
    _jobs: dict[OrgId, JobTransaction] = field(default_factory=dict)
    _follow_ups: dict[tuple[OrgId, str], FollowUp] = field(default_factory=dict)
    _finished: list[tuple[Books, FinishedWork]] = field(default_factory=list)

    def run(self, asks: Sequence[CommandRequest]) -> list[BatchResult]:
        """Run all commands and return their answers. If this raises, no command has an effect."""
        orgs = {ask.org for ask in asks}
        self._jobs.clear()
        self._finished.clear()
        try:
            with gc_paused(), self.connection.transaction(), self.connection.pipeline():
                answers = self._decided(asks, orgs)
                failpoint("ledger.before_commit")
            failpoint("ledger.after_commit")
            self._let_go(orgs)
            return answers
        except BaseException:
            for org in orgs:  # the books may have changes that were not stored
                self.cache.pop(org, None)
            raise

    def _let_go(self, orgs: set[OrgId]) -> None:
        """Free memory: finished work, large books, and the least recently used of many books."""
        for changed_books, finished in self._finished:
            changed_books.forget(finished)
        for org in orgs:
            books = self.cache.pop(org, None)
            if books is not None and books.size <= SIZE_MAX:
                self.cache[org] = books
        while len(self.cache) > ORGS_MAX:
            del self.cache[next(iter(self.cache))]

    def _decided(self, asks: Sequence[CommandRequest], orgs: set[OrgId]) -> list[BatchResult]:
        locking = lock_orgs(self.connection, orgs)
        asking = ask_replies(self.connection, [(ask.org, ask.key) for ask in asks])
        priced = any(looks_at_prices(ask.command) for ask in asks)
        pricing = self.deployment.ask(self.connection) if priced else None
        loading = _ask_jobs(self.connection, asks)
        now = self.clock(self.connection)  # waits for the first result
        if pricing is not None:
            self.deployment.take(pricing)
        rows = locked(locking)
        self._known = replies(self.connection, asking)
        self._jobs = _transactions(self.connection, rows, *loading)
        self._follow(rows)
        open_orgs = {
            org: row
            for org, row in rows.items()
            if row.frozen is None and self.admits(now, row.now)
        }
        heard = [ask for ask in asks if ask.org in open_orgs]
        answers = iter(self._performed(heard, {ask.org: open_orgs[ask.org] for ask in heard}, now))
        return [
            next(answers) if ask.org in open_orgs else self._not_heard(ask, rows.get(ask.org), now)
            for ask in asks
        ]

    def _not_heard(self, ask: CommandRequest, row: OrgRow | None, now: Instant) -> BatchResult:
        """The answer for an org that takes no commands; repeated requests get their first answer.

        The org is unknown, is frozen, or has events that are ahead of the database's clock.
        """
        if row is None:
            return OrgUnknown(ask.org)
        again = replay(
            ask.key, self._known.get((ask.org, ask.key)), ask.command, ask.generated_fields
        )
        if again is not None:
            return _again(ask, again, row.number)
        if row.frozen is None:
            return ClockRefused(events_ahead(ask.org, row.now, now))
        return OrgFrozen(f"{ask.org}: {row.frozen}")

    def _performed(
        self, asks: Sequence[CommandRequest], rows: dict[OrgId, OrgRow], now: Instant
    ) -> list[Answer]:
        """Decide commands and write their changes."""
        books = {org: self._books(org, row) for org, row in rows.items()}
        trials = {org: org_books.trial() for org, org_books in books.items()}
        for trial in trials.values():
            trial.__enter__()
            trial.keep()
        self._prefetch(asks, books, now)
        answers = self._answered(asks, books, now)
        self._send_answers()
        for org, trial in trials.items():
            self._written.rows(org, books[org], trial)
            self._finished.append((books[org], trial.finished()))
            trial.__exit__()
        self._written.save(self.connection)
        save_jobs(self.connection, self._jobs)
        return answers

    def _follow(self, rows: dict[OrgId, OrgRow]) -> None:
        """Apply new events to books that are a few events behind, or evict them.

        Their last event must have the same time in the database, or they belong to another history.
        `_books` compares the result with the org's row.
        """
        behind = {
            org: books
            for org, row in rows.items()
            if (books := self.cache.get(org)) is not None
            and 0 < books.header.number < row.number <= books.header.number + FOLLOWED_MOST
        }
        spans = [
            (org, org_books.header.number, rows[org].number) for org, org_books in behind.items()
        ]
        happened = events_between(self.connection, spans)
        for (org, books), events in zip(behind.items(), happened, strict=True):
            if not events or events[0].at != books.header.now or not _followed(books, events[1:]):
                del self.cache[org]

    def _books(self, org: OrgId, row: OrgRow) -> Books:
        """The books of a locked org: those in memory if they are up to date, or else new ones."""
        books = self.cache.get(org)
        if books is None or not row.is_of(books):
            books = Books(complete=False)
            row.fill(books)
            self.cache[org] = books
        books.deployment = self.deployment.book_or(self.prices)
        return books

    def _send_answers(self) -> None:
        """Send answers to the database, which writes them while other commands are decided."""
        for org, books, answered in self._answers:
            self._written.answer(org, books, answered)
        self._written.send(self.connection)
        self._answers.clear()

    def _prefetch(
        self, asks: Sequence[CommandRequest], books: dict[OrgId, Books], now: Instant
    ) -> None:
        """Load the rows that the commands will read, as far as they are known in advance."""
        asks = [ask for ask in asks if (ask.org, ask.key) not in self._known]
        wanted = {
            WantedRows(ask.org, what): None
            for ask in asks
            for what in new_names(books[ask.org], ask.command)
        }
        while True:
            ahead = {org: Prefetch(books[org], now) for org in {ask.org for ask in asks}}
            again: list[CommandRequest] = []  # commands that may need more rows after this round
            for ask in asks:
                missing = [
                    WantedRows(ask.org, what) for what in ahead[ask.org].missing_for(ask.command)
                ]
                if missing:
                    again.append(ask)
                    wanted |= dict.fromkeys(missing)
            if not wanted:
                return
            self.rounds += 1
            load(self.connection, books, wanted, FIRST_KEYS)
            asks, wanted = again, {}

    def _answered(
        self, asks: Sequence[CommandRequest], books: dict[OrgId, Books], now: Instant
    ) -> list[Answer]:
        """Decide each org's commands in order; each round loads missing rows for all orgs."""
        waiting: dict[OrgId, list[int]] = defaultdict(list)
        for place in reversed(range(len(asks))):
            waiting[asks[place].org].append(place)
        answers: dict[int, Answer] = {}
        number, asks = len(asks), list(asks)  # follow-ups are appended
        most = FIRST_KEYS
        while any(waiting.values()):
            missing = [
                wanted
                for org, places in waiting.items()
                for wanted in self._go_on(org, places, asks, books[org], now, answers)
            ]
            if missing:
                self.rounds += 1
                load(self.connection, books, dict.fromkeys(missing), most)
                most = min(2 * most, MOST_KEYS)
        return [answers[place] for place in range(number)]

    def _go_on(
        self,
        org: OrgId,
        places: list[int],
        asks: list[CommandRequest],
        books: Books,
        now: Instant,
        answers: dict[int, Answer],
    ) -> list[WantedRows]:
        """Decide an org's next commands until none is left or a row is missing.

        Then the missing rows of the commands behind it are collected too: one round loads them all.
        """
        while places:
            ask = asks[places[-1]]
            try:
                answers[places[-1]] = self._decide_command(ask, books, max(now, books.header.now))
            except NotLoaded as missing:
                behind = (asks[place] for place in places[-2::-1])
                return [WantedRows(org, missing.what), *self._lacking(behind, books, now)]
            places.pop()
            follow_up = self._follow_ups.pop((org, ask.key), None)
            if follow_up is not None:
                places.append(len(asks))
                asks.append(CommandRequest(org, *follow_up))
        return []

    def _lacking(
        self, asks: Iterable[CommandRequest], books: Books, now: Instant
    ) -> Iterator[WantedRows]:
        """The first missing row of each command, as if it were the next."""
        for ask in asks:
            if (ask.org, ask.key) not in self._known:
                try:
                    decide(books, ask.command, max(now, books.header.now))
                except NotLoaded as missing:
                    yield WantedRows(ask.org, missing.what)
                except InvariantBroken:
                    return  # raised again when the command is decided

    def _decide_command(self, ask: CommandRequest, books: Books, now: Instant) -> Answer:
        first = self._known.get((ask.org, ask.key))
        again = replay(ask.key, first, ask.command, ask.generated_fields)
        if again is not None:
            return _again(ask, again, books.header.number)
        outcome, steps, follow_up = self._perform(ask, books, now)
        if follow_up is not None:
            self._follow_ups[ask.org, ask.key] = follow_up
        number = books.header.number
        self._known[ask.org, ask.key] = Reply(command=ask.command, outcome=outcome, number=number)
        answered = RequestAnswer(ask.key, ask.command, outcome, number, now, ask.actor, steps)
        self._answers.append((ask.org, books, answered))
        if len(self._answers) == SENT_AT_ONCE:
            self._send_answers()
        return Answer(command=ask.command, outcome=outcome, number=number, replayed=False)

    def _perform(self, ask: CommandRequest, books: Books, now: Instant) -> Performed:
        """Decide a command, with its effect. A caller may not change the hold of a job."""
        if ask.effect is None and ask.actor:
            refusal = refuse_change_of_job_hold(books, ask.command)
            if refusal is not None:
                return Performed(refusal)
        return perform_with(books, ask.command, ask.effect, self._jobs[ask.org], now)


def _ask_jobs(
    connection: Connection, asks: Sequence[CommandRequest]
) -> tuple[SentStatement | None, SentStatement | None]:
    """Send a query for the jobs, and one for the arrays, that effects read."""
    effects = [(ask.org, ask.effect) for ask in asks if ask.effect is not None]
    jobs = dict.fromkeys((org, job) for org, effect in effects for job in effect.jobs)
    arrays = dict.fromkeys((org, array) for org, effect in effects for array in effect.arrays)
    return _Loading(
        ask_jobs(connection, list(jobs)) if jobs else None,
        ask_arrays(connection, list(arrays)) if arrays else None,
    )


class _Loading(NamedTuple):
    """Queries that were sent; None if no effect reads such rows."""

    jobs: SentStatement | None
    arrays: SentStatement | None


def _transactions(
    connection: Connection,
    orgs: Iterable[OrgId],
    jobs: SentStatement | None,
    arrays: SentStatement | None,
) -> dict[OrgId, JobTransaction]:
    """For each org the transaction of its jobs, with the loaded rows."""
    loaded: dict[OrgId, tuple[dict[JobId, OrgJob], dict[JobId, ArrayProgress]]]
    loaded = {org: ({}, {}) for org in orgs}
    for (org, job), row in ({} if jobs is None else jobs_of(jobs)).items():
        loaded[org][0][job] = row
    for (org, array), counts in ({} if arrays is None else arrays_of(arrays)).items():
        loaded[org][1][array] = counts
    return {org: JobTransaction(StoredJobs(connection, org, *rows)) for org, rows in loaded.items()}


def _followed(books: Books, events: Sequence[Event]) -> bool:
    """Apply stored events to books; False if they lack rows that these change."""
    try:
        with books.trial() as trial:
            for event in events:
                if isinstance(event, (HoldOpened, LotTaken)):  # a new hold
                    books.holds.mark_absent(event.hold)
                elif isinstance(event, ChargeBooked):
                    books.charges.mark_absent(event.charge)
                evolve(books, event)
            trial.keep()
            finished = trial.finished()
    except (NotLoaded, InvariantBroken):
        return False
    books.forget(finished)
    return True


def _again(ask: CommandRequest, again: Reply | Refusal, number: int) -> Answer:
    """The first answer again, or a refusal if the key belongs to another command."""
    if isinstance(again, Reply):
        first = again.command
        return Answer(command=first, outcome=again.outcome, number=again.number, replayed=True)
    return Answer(command=ask.command, outcome=again, number=number, replayed=False)
