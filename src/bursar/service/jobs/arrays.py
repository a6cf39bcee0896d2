"""Arrays: one request for many like jobs, its elements, each with a lot of the array's hold (M1).

An array is submitted by one command: one hold, one row, admitted or refused as one. Its elements
are jobs of their own from when they begin, which is when their lots are taken out of the hold: to
their pool, and to everything else that knows jobs, there is nothing special about them. At most
`at_once` are in the pool at a time; whenever one ends, the next begins.

    Submitted   (`submitting`) the array is there; nothing has begun
    Arrays      elements begin where there is room; an array whose elements are all over, is over
    Part        what happens to elements is counted
    Withdrawn   (`withdrawing`) the lots that are left are dropped, all that live are told to stop

To go on is asked for again and again, by whoever delivers letters (`relay`), and may be cut short
anywhere: what was taken out is told by the hold, under the org's lock, and asked for by its number.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from bursar.core.dispatch.job_lifecycle import State
from bursar.core.dispatch.message_commands import Outcome
from bursar.core.ids import HoldId, JobId, OrgId
from bursar.core.instant import Instant
from bursar.core.ledger.books import Books
from bursar.core.ledger.commands import Release, TakeLots
from bursar.core.ledger.events import JobStepped, LotTaken
from bursar.core.messages import EndClass, Enqueue, Message, Started, Why
from bursar.core.money import Micros
from bursar.core.refusal import Code, Refusal
from bursar.core.value import replace
from bursar.service.jobs.job_state import Stand
from bursar.service.jobs.ledger_port import Asked
from bursar.service.jobs.submission import step_of
from bursar.service.ledger.batch import Answer, Ask
from bursar.store.jobs.arrays import Due, arrays_due
from bursar.store.jobs.outbox import message_of, message_text
from bursar.store.jobs.rows import Noted, Stands, stands, stepped
from bursar.store.sql.connection import Connection

INDEX: Final = "BURSAR_ARRAY_INDEX"  # what an element finds in its environment
COUNT: Final = "BURSAR_ARRAY_COUNT"
AT_A_TIME: Final = 250  # elements that begin in one transaction
PAGE: Final = 100

_log = logging.getLogger(__name__)


def element(template: Enqueue, number: int, count: int) -> Enqueue:
    """What a pool is told of an element."""
    own = {INDEX: str(number), COUNT: str(count)}
    program = template.spec.program
    env = tuple(sorted({**dict(program.env), **own}.items()))
    return replace(template, spec=replace(template.spec, program=replace(program, env=env)))


# Going on


class Arrays:
    """Lets arrays go on, on a connection and a ledger."""

    def __init__(self, connection: Connection, ledger: Asked) -> None:
        self._connection = connection
        self._ledger = ledger

    def go_on(self, org: OrgId | None = None) -> None:
        """Do what is to be done about the arrays of all orgs, or of one, until nothing is."""
        after: tuple[OrgId, str] = ("", "")
        while page := arrays_due(self._connection, org, after, PAGE):
            if not self._got_on(page):  # each was tried: it is for another time
                after = page[-1].org, page[-1].job

    def _got_on(self, due: Sequence[Due]) -> bool:
        """Whether something has come of asking."""
        got_on = False
        for array, answer in zip(due, self._ledger([_ask(one) for one in due]), strict=True):
            if isinstance(answer, Answer):
                got_on |= not answer.replayed
            else:
                _log.warning("array %s of %s cannot go on: %s", array.job, array.org, answer)
        return got_on


def _ask(array: Due) -> Ask:
    """The next command about an array."""
    hold = HoldId(array.job)
    if array.closed:
        return Ask(array.org, f"bursar:array/{array.job}/over", Release(hold=hold), Ended(array))
    room = min(array.at_once - array.live, array.elements - array.begun, AT_A_TIME)
    key = f"bursar:array/{array.job}/{array.begun}+{room}"
    return Ask(array.org, key, TakeLots(hold=hold, first=array.begun, count=room), Begun(array))


class Begun(NamedTuple):
    """That elements have begun: a job each, with what its pool is told."""

    array: Due

    def rows(self, org: OrgId, books: Books, outcome: Outcome, at: Instant) -> Iterator[Noted]:
        """What is written; if the hold has come to its limit, that no more will begin."""
        array = self.array
        if isinstance(outcome, Refusal):
            if outcome.code is Code.HOLD_CLOSED:
                yield Noted("array closes", (org, array.job))
            return
        template = message_of(array.body)
        assert isinstance(template, Enqueue)
        hold = HoldId(array.job)
        lots = [one for one in outcome if isinstance(one, LotTaken) and one.lot_of == hold]
        for lot in lots:
            job = JobId(lot.hold)
            told = message_text(element(template, lot.number, array.elements))
            yield Noted("element", (org, array.job, job, lot.number, at))
            yield Noted("first letter", (org, job, array.pool, told, at))
            yield step_of(org, job, books, "submitted", at, Stand(state=State.QUEUED.value))
        yield Noted("elements begin", (org, array.job, len(lots)))


class Ended(NamedTuple):
    """That an array is over: all that has begun is, and nothing more will begin."""

    array: Due

    def rows(self, org: OrgId, books: Books, outcome: Outcome, at: Instant) -> Iterator[Noted]:
        """What is written, whether its hold was open until now or had come to its limit."""
        array = self.array
        state, why, end_class = end_of(array)
        stand = Stand(0, state.value, why.value, at, end_class.value)
        yield Noted("go on", (org, array.job, 0, *stand))
        yield Noted("array done", (org, array.job))
        yield _with_spent(org, step_of(org, array.job, books, why.value, at, stand), array.spent)


def _with_spent(org: OrgId, step: Noted, spent: Micros) -> Noted:
    """The step of an array, which spends by its lots alone."""
    assert step.event is not None
    return stepped(org, replace(step.event, spent=spent))


def end_of(array: Due) -> tuple[State, Why, EndClass]:
    """How an array has ended: by the worst that has happened to an element."""
    if array.withdrawn and (array.cancelled or array.begun < array.elements):
        return State.CANCELLED, Why.CANCELLED, EndClass.USER
    if array.failed:
        return State.FAILED, Why.FAILED, EndClass.USER
    if array.expired:
        return State.EXPIRED, Why.TIME_UP, EndClass.LIMIT
    if array.begun < array.elements:
        return State.EXPIRED, Why.HOLD_ENDED, EndClass.LIMIT
    if array.cancelled:
        return State.CANCELLED, Why.CANCELLED, EndClass.USER
    return State.SUCCEEDED, Why.FINISHED, EndClass.USER


# What its elements do


@dataclass(slots=True)
class Part:
    """Whose element a job is."""

    array: JobId
    waits: bool  # none of the array has started, as far as one knows
    first: Stands | None = None  # how the array stands if it starts by this element

    def look(self, connection: Connection, org: OrgId, noted: Sequence[Noted]) -> None:
        """See under the lock whether the array has not started yet; it does so once."""
        self.first = None
        starts = ("element starts", (org, self.array))
        if self.waits and all((one.statement, one.values[:2]) != starts for one in noted):
            found = stands(connection, org, self.array)
            self.first = found if found.state == State.QUEUED.value else None

    def rows(self, org: OrgId, message: Message, stand: Stand, at: Instant) -> Iterator[Noted]:
        """What is written of the array when a message about the element was handled."""
        if stand.ended_at is not None:
            yield Noted("element over", (org, self.array, stand.state))
        elif isinstance(message, Started) and self.first is not None:
            yield Noted("element starts", (org, self.array, message.at))
            yield _starting(org, self.array, self.first, at)


def _starting(org: OrgId, array: JobId, stands: Stands, at: Instant) -> Noted:
    """The step of an array whose first element has started."""
    state = State.STOPPING if stands.withdrawn else State.RUNNING
    why, spent, held = Why.STARTED.value, stands.spent, stands.held
    event = JobStepped(at=at, job=array, why=why, state=state.value, spent=spent, held=held)
    return stepped(org, event)
