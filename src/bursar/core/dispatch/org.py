"""Jobs on an org's side: each with its hold, and what is told to and heard from its pool.

A job is submitted by the very command that reserves its hold: job, hold and message to the pool are
there together or not at all. Whatever is asked of the ledger is asked under a key, and a key that
was seen before is answered as before (L7); so a message that comes again, or whose handling was cut
short, has its effect once.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from bursar.core.dispatch.message_commands import CommandStep, Outcome, steps
from bursar.core.dispatch.state import JobMessage
from bursar.core.ids import ChargeId, HoldId, JobId
from bursar.core.instant import Instant
from bursar.core.ledger.books import Books
from bursar.core.ledger.commands import Command, CorrectEnd, ExtendHold, Reserve
from bursar.core.ledger.decide import perform
from bursar.core.ledger.events import Event, HoldOpened
from bursar.core.ledger.idempotency import Reply, replay
from bursar.core.messages import (
    Correct,
    Corrected,
    Dropped,
    EndClass,
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
from bursar.core.value import replace, value


@value
class Submitted:
    """A job as its org knows it."""

    job: JobId
    running: bool = False
    ended: EndClass | None = None  # it is over
    attempt: int = 0
    sent: int = 1  # messages to its pool
    received: int = 0  # messages of its pool that were handled
    withdrawn: bool = False
    correcting: bool = False  # its pool has not told of a correction yet


@dataclass(slots=True)
class Org:
    """An org: its books, its jobs, what it was asked, what its pool has not acknowledged yet."""

    id: str
    books: Books
    events: list[Event] = field(default_factory=list)
    jobs: dict[JobId, Submitted] = field(default_factory=dict)
    replies: dict[str, Reply] = field(default_factory=dict)
    outbox: dict[tuple[JobId, int], ToPool] = field(default_factory=dict)
    objections: list[tuple[JobMessage, Code]] = field(
        default_factory=list
    )  # for an operator to see


def ask(org: Org, key: str, command: Command, now: Instant) -> tuple[Outcome, bool]:
    """Let the ledger decide, once for each key; the outcome, and whether it is a new one."""
    first = replay(key, org.replies.get(key), command)
    if first is not None:
        return (first if isinstance(first, Refusal) else first.outcome), False
    now = max(now, org.books.header.now)
    outcome = perform(org.books, command, now)
    if not isinstance(outcome, Refusal):
        org.events.extend(outcome)
    org.replies[key] = Reply(command=command, outcome=outcome, number=org.books.header.number)
    return outcome, True


def submit(org: Org, key: str, reserve: Reserve, run_ms: int, spec: Spec, now: Instant) -> Outcome:
    """Reserve a job's hold and send the job to its pool; both or neither.

    The hold may be for less than the longest run: then it is to be extended in time.
    """
    outcome, new = ask(org, key, reserve, now)
    if new and not isinstance(outcome, Refusal):
        hold, job = reserve.hold, JobId(reserve.hold)
        opened = next(one for one in outcome if isinstance(one, HoldOpened) and one.hold == hold)
        org.jobs[job] = Submitted(job=job)
        org.outbox[job, 1] = _enqueue(org.books, opened, run_ms, spec)
    return outcome


def _enqueue(books: Books, opened: HoldOpened, run_ms: int, spec: Spec) -> Enqueue:
    """What the pool is told, from what the ledger has promised."""
    terms = opened.terms
    tier = books.header.tier
    return Enqueue(
        account=terms.account,
        user=terms.user,
        shares=books.path(terms.account),
        tier=terms.context.tier if tier is None else tier,
        rates=terms.rates,
        run_ms=run_ms,
        hold_micros=sum(posting.amount for posting in opened.postings),
        hold_until=opened.expires_at,
        spec=spec,
    )


def extend(org: Org, key: str, grow: ExtendHold, now: Instant) -> Outcome:
    """Set more aside for a job, or for longer; its pool is told."""
    outcome, new = ask(org, key, grow, now)
    if new and not isinstance(outcome, Refusal):
        _tell(org, JobId(grow.hold), HoldGrew(added=grow.amount, until=grow.expires_at or 0))
    return outcome


def correct(org: Org, key: str, said: CorrectEnd, now: Instant) -> Outcome:
    """Say who answers for the end of an attempt of a job that is over; its pool is told (M3).

    One at a time: what the ledger looks at is what will be when its pool has told of it.
    """
    job = JobId(said.hold)
    if org.jobs[job].correcting and key not in org.replies:
        refusal = Refusal(Code.CORRECTION_PENDING, {"job": job})
        org.replies[key] = Reply(command=said, outcome=refusal, number=org.books.header.number)
        return refusal
    outcome, new = ask(org, key, said, now)
    if new and not isinstance(outcome, Refusal):
        org.jobs[job] = replace(org.jobs[job], correcting=True)
        _tell(org, job, Correct(attempt=said.attempt, end_class=said.end_class))
    return outcome


def withdraw(org: Org, job: JobId) -> None:
    """Ask a job's pool to run it no more; asking again changes nothing."""
    known = org.jobs[job]
    if not known.withdrawn and known.ended is None:
        org.jobs[job] = replace(known, withdrawn=True)
        _tell(org, job, Withdraw())


def _tell(org: Org, job: JobId, message: ToPool) -> None:
    known = org.jobs[job]
    org.jobs[job] = replace(known, sent=known.sent + 1)
    org.outbox[job, known.sent + 1] = message


def acknowledge(org: Org, job: JobId, n: int) -> None:
    """The pool has handled a message."""
    org.outbox.pop((job, n), None)


def need_not_come_again(org: Org, letter: JobMessage) -> bool:
    """Whether a message of the pool was handled."""
    return letter.n <= org.jobs[letter.job].received


def handle(org: Org, letter: JobMessage, now: Instant) -> Iterator[None]:
    """Handle the next message of a job's pool, one transaction at a time.

    It may be cut short after any of them; when the message comes again, the first are answered as
    before. What has overtaken another, and what was handled before, is left alone.
    """
    if letter.n != org.jobs[letter.job].received + 1:
        return
    what = f"{letter.job}/{letter.n}"
    told = steps(HoldId(letter.job), ChargeId(f"{what}/charge"), letter.message)
    step, number = next(told), 1
    while True:
        outcome, _ = ask(org, f"pool:{what}/{number}", step.command, now)
        code = outcome.code if isinstance(outcome, Refusal) else None
        if step.last and code not in step.unless:
            _handled(org, letter, step, code)
        yield
        try:
            step, number = told.send(outcome), number + 1
        except StopIteration:
            return


def _handled(org: Org, letter: JobMessage, step: CommandStep, code: Code | None) -> None:
    """With the last of its commands a message is handled; what the rules object to is kept."""
    if code is not None and code not in step.anyway:
        org.objections.append((letter, code))
    job = replace(org.jobs[letter.job], received=letter.n)
    org.jobs[letter.job] = _after(job, letter.message)


def _after(job: Submitted, message: Message) -> Submitted:
    match message:
        case Started():
            return replace(job, attempt=message.attempt, running=True)
        case Ended(over=False):
            return replace(job, running=False)
        case Ended() | Dropped():
            return replace(job, running=False, ended=message.end_class)
        case Corrected():
            ended = message.end_class if message.over else job.ended
            return replace(job, ended=ended, correcting=False)
        case _:
            return job
