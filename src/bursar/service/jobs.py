"""Jobs on the orgs' side: asking for one, withdrawing it, and charging what its pool tells (M1–M4).

A job is submitted by the very command that reserves its hold: job, hold and the message to the pool
are there together or not at all. The hold has the job's id. It is the pool that says when a job is
over, even one that was withdrawn; until then its hold stays.

What a pool tells becomes ledger commands, in the order of its numbers (`core.dispatch.charging`).
Their keys follow from pool, job and number, so a message that comes again, or whose handling was
cut short, is answered as before (L7). With the last of its commands a message is marked as handled.
The rules may object (usage beyond all bounds of lateness); the message is handled then too, and the
objection is kept where `verify` finds it.

Roads not taken. Messages in any order: every handler would have to cope with an end before its
start, a reading of the attempt before last, and so on, and a hold would be drawn for an attempt
that is over. A message that has overtaken another waits instead until it is sent again.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import NamedTuple, TypeAlias

from bursar.core.dispatch import charging
from bursar.core.dispatch.charging import Outcome, Step, Steps
from bursar.core.ids import AccountId, ChargeId, HoldId, JobId, derived_id
from bursar.core.instant import Instant
from bursar.core.ledger.books import Books
from bursar.core.ledger.commands import ExtendHold, Reserve
from bursar.core.ledger.events import HoldOpened
from bursar.core.messages import (
    Dropped,
    Ended,
    Enqueue,
    HoldGrew,
    Message,
    Spec,
    Started,
    ToPool,
    Withdraw,
)
from bursar.core.refusal import Code, Refusal
from bursar.core.value import altered
from bursar.service.batch import Answer, Ask
from bursar.service.ledger import Busy, Ledger
from bursar.store.jobs import JobRow, Noted, ask_jobs, enter, jobs_of, mark_withdrawn, save_notes
from bursar.store.outbox import Letter, PoolId, ack_orgs, by_job, message_text
from bursar.store.reading import Connection, OrgId, lock_orgs, money_time

Answers: TypeAlias = Sequence[Answer | Exception]
Asked: TypeAlias = Callable[[Sequence[Ask]], Answers]  # the ledger: commands in, answers out


def through(ledger: Ledger) -> Asked:
    """Ask a ledger that many others ask, too: what fails, fails for itself."""

    def ask(asks: Sequence[Ask]) -> Answers:
        waiting = [_submitted(ledger, one) for one in asks]
        return [one if isinstance(one, Busy) else _result(one) for one in waiting]

    return ask


def _submitted(ledger: Ledger, ask: Ask) -> "Future[Answer] | Busy":
    try:
        return ledger.submit(*ask)
    except Busy as busy:
        return busy


def _result(waiting: "Future[Answer]") -> Answer | Exception:
    try:
        return waiting.result()
    except Exception as error:  # whatever it is, it is this command's own
        return error


class JobUnknown(KeyError):
    """There is no such job."""


class Submission(NamedTuple):
    """What shall run, and where."""

    pool: PoolId
    reserve: Reserve  # by run time; its hold is named after the job, its context names the job
    spec: Spec

    @property
    def job(self) -> JobId:
        """The job's id, which is its hold's too."""
        return JobId(self.reserve.hold)


class Jobs:
    """Jobs of orgs, on one connection and a ledger."""

    def __init__(
        self,
        connection: Connection,
        ledger: Asked,
        clock: Callable[[Connection], Instant] = money_time,
    ) -> None:
        self._connection = connection
        self._ledger = ledger
        self._clock = clock

    def submit(self, org: OrgId, key: str, ask: Submission) -> Answer:
        """Reserve a job's hold, and send the job to its pool; both or neither.

        This is the one way to a hold that lasts as long as a job may: whoever asks for a hold
        alone gets the bound of a raw one, whatever its context says (L10).
        """
        if ask.reserve.run_ms is None or ask.reserve.context.job != ask.job:
            raise ValueError("a job's hold is asked by run time, and has the job's id")
        reserve = altered(ask.reserve, for_job=True)
        return self._one(Ask(org, key, reserve, _Submitted(ask)))

    def extend(
        self, org: OrgId, key: str, job: JobId, amount: int, until: Instant | None = None
    ) -> Answer:
        """Set more aside for a job, or for longer; its pool is told."""
        self._existing(org, job)
        command = ExtendHold(hold=HoldId(job), amount=amount, expires_at=until)
        return self._one(Ask(org, key, command, _Extended(job, amount, until or 0)))

    def withdraw(self, org: OrgId, job: JobId) -> None:
        """Ask a job's pool to run it no more; asking again changes nothing."""
        with self._connection.transaction(), self._connection.pipeline():
            lock_orgs(self._connection, [org])
            found = jobs_of(ask_jobs(self._connection, [(org, job)])).get((org, job))
            if found is None:
                raise JobUnknown(job)
            if found.withdrawn or found.state == "over":
                return
            now = self._clock(self._connection)
            mark_withdrawn(self._connection, org, job)
            save_notes(self._connection, [_tell(org, job, Withdraw(), now)])

    def acknowledge(self, letters: Sequence[Letter]) -> None:
        """Remember that pools have these messages of ours."""
        if not letters:
            return
        with self._connection.transaction(), self._connection.pipeline():
            lock_orgs(self._connection, {letter.org for letter in letters})
            ack_orgs(self._connection, letters, self._clock(self._connection))

    def receive(self, letters: Sequence[Letter]) -> list[Letter]:
        """Handle messages of a pool, each once and in order; those that need not come again.

        All jobs go side by side: the ledger is asked one command of each at a time.
        """
        jobs = self._of(letters)
        handled: list[Letter] = []
        running: list[_Handling] = []
        for key, told in by_job(letters).items():
            job = jobs.get(key)
            if job is None:
                continue  # nobody of ours has asked for it
            handled += [letter for letter in told if letter.n <= job.received]
            due = [letter for letter in told if letter.n > job.received]
            running.append(_Handling(job, list(_in_order(due, job.received)), handled))
        while running := [one for one in running if one.ask is not None]:
            answers = self._ledger([one.ask for one in running if one.ask is not None])
            for one, answer in zip(running, answers, strict=True):
                one.go_on(answer)
        return handled

    def _of(self, letters: Sequence[Letter]) -> dict[tuple[OrgId, JobId], JobRow]:
        return self._known({letter.org for letter in letters}, list(by_job(letters)))

    def _known(
        self, orgs: Iterable[OrgId], keys: Sequence[tuple[OrgId, JobId]]
    ) -> dict[tuple[OrgId, JobId], JobRow]:
        with self._connection.transaction():
            with self._connection.pipeline():
                enter(self._connection, orgs)
                sent = ask_jobs(self._connection, keys)
            return jobs_of(sent)

    def _existing(self, org: OrgId, job: JobId) -> None:
        if not self._known([org], [(org, job)]):
            raise JobUnknown(job)

    def _one(self, ask: Ask) -> Answer:
        [answer] = self._ledger([ask])
        if isinstance(answer, Exception):
            raise answer
        return answer


def _in_order(letters: Iterable[Letter], received: int) -> Iterator[Letter]:
    """The letters that follow on what was received, without a gap."""
    for letter in letters:
        if letter.n != received + 1:
            return
        received = letter.n
        yield letter


# Notes: what is written together with a command


class _Submitted(NamedTuple):
    ask: Submission

    def rows(self, org: OrgId, books: Books, outcome: Outcome, at: Instant) -> Iterator[Noted]:
        if isinstance(outcome, Refusal):
            return
        reserve, job, pool = self.ask.reserve, self.ask.job, self.ask.pool
        opened = next(
            one for one in outcome if isinstance(one, HoldOpened) and one.hold == reserve.hold
        )
        message = _enqueue(opened, self.ask, books.path(reserve.account), books.singles.tier)
        values = (org, job, reserve.account, reserve.user, pool, at)
        yield Noted("submit", values)
        yield Noted("first letter", (org, job, pool, message_text(message), at))


def _enqueue(
    opened: HoldOpened, ask: Submission, shares: tuple[AccountId, ...], tier: str | None
) -> Enqueue:
    """What the pool is told, from what the ledger has promised."""
    terms = opened.terms
    return Enqueue(
        account=terms.account,
        user=terms.user,
        shares=shares,
        tier=terms.context.tier if tier is None else tier,
        rates=terms.rates,
        run_ms=ask.reserve.run_ms or 0,
        hold_micros=sum(posting.amount for posting in opened.postings),
        hold_until=opened.expires_at,
        spec=ask.spec,
    )


class _Extended(NamedTuple):
    job: JobId
    amount: int
    until: Instant

    def rows(self, org: OrgId, books: Books, outcome: Outcome, at: Instant) -> Iterator[Noted]:
        if not isinstance(outcome, Refusal):
            yield _tell(org, self.job, HoldGrew(added=self.amount, until=self.until), at)


def _tell(org: OrgId, job: JobId, message: ToPool, at: Instant) -> Noted:
    return Noted("tell pool", (org, job, message_text(message), at))


class _Received(NamedTuple):
    """That a message was handled, with the last of its commands."""

    letter: Letter
    step: Step

    def rows(self, org: OrgId, books: Books, outcome: Outcome, at: Instant) -> Iterator[Noted]:
        refusal = outcome.code if isinstance(outcome, Refusal) else None
        if refusal in self.step.unless:
            return
        if refusal in self.step.anyway:
            refusal = None
        _, pool, job, n, message, _ = self.letter
        yield Noted("receive", (org, pool, job, n, at, refusal))
        yield Noted("go on", (org, job, n, *_state_after(message, at)))


def _state_after(
    message: Message, at: Instant
) -> tuple[int, str | None, Instant | None, str | None]:
    """A job's last attempt, its new state, when and why it ended; None leaves it as it is."""
    match message:
        case Started():
            return message.attempt, "running", None, None
        case Ended(over=False):
            return message.attempt, "waiting", None, None
        case Ended():
            return message.attempt, "over", at, message.end_class.value
        case Dropped():
            return 0, "over", at, message.end_class.value
        case _:
            return 0, None, None, None


# From messages to commands


def steps(letter: Letter) -> Steps:
    """The commands that a message comes to; each is sent the outcome of the one before."""
    return charging.steps(HoldId(letter.job), ChargeId(_id_of(letter, "charge")), letter.message)


def key_of(letter: Letter, number: int) -> str:
    """The key of the first, second … command that a message comes to."""
    return f"pool:{_id_of(letter, str(number))}"


def _id_of(letter: Letter, what: str) -> str:
    """A name for something of a message: the same whenever it comes."""
    return derived_id(f"{len(letter.pool)}:{letter.pool}/{letter.job}", f"{letter.n}/{what}")


class _Handling:
    """The messages about one job on their way through the ledger, one command at a time."""

    def __init__(self, job: JobRow, letters: list[Letter], handled: list[Letter]) -> None:
        self.ask: Ask | None = None  # the next command; None when there is none
        self._job = job
        self._letters = iter(letters)
        self._handled = handled
        self._letter: Letter
        self._steps: Steps
        self._number = 0
        self._next_letter()

    def go_on(self, answer: Answer | Exception) -> None:
        """Take the answer to the command; if it failed, the rest waits for another time."""
        if isinstance(answer, Exception) or _key_was_taken(answer):
            self.ask = None
            return
        try:
            self._ask(self._steps.send(answer.outcome))
        except StopIteration:
            self._handled.append(self._letter)
            self._next_letter()

    def _next_letter(self) -> None:
        letter = next(self._letters, None)
        if letter is None:
            self.ask = None
            return
        self._letter, self._steps, self._number = letter, steps(letter), 0
        self._ask(next(self._steps))

    def _ask(self, step: Step) -> None:
        letter = self._letter
        self._number += 1
        key = key_of(letter, self._number)
        note = _Received(letter, step) if step.last else None
        self.ask = Ask(letter.org, key, step.command, note)


def _key_was_taken(answer: Answer) -> bool:
    return isinstance(answer.outcome, Refusal) and answer.outcome.code is Code.KEY_REUSED
