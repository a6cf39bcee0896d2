"""Submitting a job: one command that reserves its hold, and what is written with it (M1)."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bursar.core.dispatch.job_lifecycle import CORRECTED, State
from bursar.core.dispatch.message_commands import Outcome
from bursar.core.ids import AccountId, HoldId, JobId, OrgId, PoolId
from bursar.core.instant import Instant
from bursar.core.ledger.books import Books
from bursar.core.ledger.commands import Reserve
from bursar.core.ledger.decide import decide
from bursar.core.ledger.events import HoldOpened, JobStepped
from bursar.core.messages import Enqueue, HoldGrew, Spec, ToPool
from bursar.core.refusal import Code, Refusal
from bursar.core.value import replace
from bursar.service.jobs.job_state import Stand
from bursar.service.jobs.quotas import Quota, Room, counting
from bursar.service.jobs.result_cache import Sharing
from bursar.service.ledger.batch import Ask
from bursar.store.jobs.outbox import message_text
from bursar.store.jobs.rows import Noted, max_cost_of, stepped
from bursar.store.sql.connection import Connection


class Option(NamedTuple):
    """A pool that a job may go to, for one of these GPU types, and why."""

    pool: PoolId
    types: tuple[str, ...]
    told: str


class Submission(NamedTuple):
    """What shall run, and where."""

    pool: PoolId
    reserve: Reserve  # by run time; its hold is named after the job, its context names the job
    spec: Spec
    run_ms: int | None = None  # longest run and stop grace, if its hold is for less: to be extended
    asked: str | None = None  # the request, as JSON
    labels: str = "{}"  # JSON
    max_cost: int | None = None  # what may be set aside for it in all
    rolling: bool = False  # whether its hold is to be topped up
    quotas: tuple[Quota, ...] = ()  # of its org
    routes: tuple[Option, ...] = ()  # if it names no pool: where it may go, the best first
    sharing: Sharing | None = None  # whether others may have its result, or it theirs

    @property
    def job(self) -> JobId:
        """The job's id, which is its hold's too."""
        return JobId(self.reserve.hold)

    @property
    def run_ms_max(self) -> int:
        """The longest that it may run, stop grace included."""
        return (self.reserve.run_ms or 0) if self.run_ms is None else self.run_ms


def asked_for_a_job(
    org: OrgId, key: str, ask: Submission, made: tuple[str, ...] = (), actor: str = ""
) -> Ask:
    """The command that submits a job, with all that is written together with it.

    This is the one way to a hold that lasts as long as a job may: whoever asks for a hold alone
    gets the bound of a raw one, whatever its context says (L10).
    """
    if ask.reserve.run_ms is None or ask.reserve.context.job != ask.job:
        raise ValueError("a job's hold is asked by run time, and has the job's id")
    reserve = replace(ask.reserve, for_job=True)
    return Ask(org, key, reserve, Submitted(ask), made, actor)


class Submitted(NamedTuple):
    """The job, its first step, and what its pool is told."""

    ask: Submission

    def objection(
        self, connection: Connection, org: OrgId, books: Books, noted: Sequence[Noted], at: Instant
    ) -> Refusal | None:
        """The first quota that has no room for it (B4); or that nothing can be paid for it (M1)."""
        room = Room(connection, org, books, noted, at)
        lacking = room.lacking(self.ask.quotas, self.ask.reserve, self.ask.spec)
        lacking = lacking or _unserved(self.ask, books, at)
        if lacking is None and self.ask.sharing is not None:
            self.ask.sharing.look(connection, org, noted, at)
        return lacking

    def rows(self, org: OrgId, books: Books, outcome: Outcome, at: Instant) -> Iterator[Noted]:
        """What is written; nothing if the hold was refused."""
        if isinstance(outcome, Refusal):
            return
        ask, reserve, job = self.ask, self.ask.reserve, self.ask.job
        opened = next(
            one for one in outcome if isinstance(one, HoldOpened) and one.hold == reserve.hold
        )
        ask = _sent_to(ask, {kind for kind, _ in opened.terms.rates})
        message = _enqueue(opened, ask, books.path(reserve.account), books.header.tier)
        more = (ask.asked, ask.labels, ask.run_ms_max, ask.max_cost, ask.rolling)
        yield Noted("submit", (org, job, reserve.account, reserve.user, ask.pool, at, *more))
        if ask.routes and not reserve.lots:  # the elements of an array are moved by nobody
            yield Noted("route", (org, job, ask.pool, at, ask.routes[0].told))
        yield step_of(org, job, books, "submitted", at, Stand(state=State.QUEUED.value))
        if reserve.lots is not None:
            yield _array(org, job, reserve, message)
            return
        first = Noted("first letter", (org, job, ask.pool, message_text(message), at))
        if ask.sharing is None:
            yield first
        else:
            yield from ask.sharing.rows(org, first, books, at)

    def then(self, org: OrgId, books: Books, outcome: Outcome, at: Instant) -> Ask | None:
        """What follows at once: that a result which is there is given."""
        sharing = self.ask.sharing
        if sharing is None or isinstance(outcome, Refusal):
            return None
        return sharing.then(org, self.ask.job, books, at)


def served(reserve: Reserve, routes: Sequence[Option]) -> Reserve | None:
    """The same for those GPU types only that some pool has; None if it is for no others."""
    had = {kind for option in routes for kind in option.types}
    types = tuple(kind for kind in reserve.context.gpu_types if kind in had)
    if not routes or types == reserve.context.gpu_types:
        return None
    return replace(reserve, context=replace(reserve.context, gpu_types=types))


def _unserved(ask: Submission, books: Books, at: Instant) -> Refusal | None:
    """That there would be credits for GPU types only that no pool has: it would wait for ever."""
    fewer = served(ask.reserve, ask.routes)
    whole = None if fewer is None else decide(books, ask.reserve, at)
    if fewer is None or whole is None or isinstance(whole, Refusal):
        return None
    funded = {kind for one in whole if isinstance(one, HoldOpened) for kind, _ in one.terms.rates}
    if not funded.isdisjoint(fewer.context.gpu_types):
        return None
    refused = decide(books, fewer, at)
    if isinstance(refused, Refusal):
        return refused
    figures = {"gpu_type": ", ".join(fewer.context.gpu_types), "held": tuple(sorted(funded))}
    return Refusal(Code.TYPE_NOT_HELD, figures)


def _sent_to(ask: Submission, funded: set[str]) -> Submission:
    """A submission that goes to the first pool which has a type that there are credits for."""
    for option in ask.routes:
        if not funded.isdisjoint(option.types):
            return ask._replace(pool=option.pool, routes=(option,))
    return ask


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
        run_ms=ask.run_ms_max,
        hold_micros=sum(posting.amount for posting in opened.postings),
        hold_until=opened.expires_at,
        spec=_funded(ask.spec, dict(terms.rates)),
        quotas=counting(ask.quotas, shares, terms.user),
    )


def _array(org: OrgId, job: JobId, reserve: Reserve, whole: Enqueue) -> Noted:
    """What makes a job an array, with what its pool is told of each of its elements (`arrays`)."""
    count = reserve.lots or 1
    template = replace(whole, hold_micros=whole.hold_micros // count)
    return Noted("array", (org, job, count, reserve.at_once or count, message_text(template)))


def _funded(spec: Spec, rates: dict[str, int]) -> Spec:
    """A spec with those GPU types only that there are credits for."""
    types = tuple(kind for kind in spec.shape.types if kind in rates)
    if types == spec.shape.types:
        return spec
    return replace(spec, shape=replace(spec.shape, types=types))


class Extended(NamedTuple):
    """That more is set aside for a job, or for longer."""

    job: JobId
    amount: int
    until: Instant

    def objection(
        self, connection: Connection, org: OrgId, books: Books, noted: Sequence[Noted], at: Instant
    ) -> Refusal | None:
        """That it could then cost more than whoever submitted it allows (M1)."""
        hold, most = books.holds.get(HoldId(self.job)), max_cost_of(connection, org, self.job)
        if hold is None or most is None or hold.used + hold.open + self.amount <= most:
            return None
        amount = hold.used + hold.open + self.amount
        return Refusal(Code.MAX_COST_EXCEEDED, {"amount": amount, "most": most})

    def rows(self, org: OrgId, books: Books, outcome: Outcome, at: Instant) -> Iterator[Noted]:
        """What is written; nothing if there are no more credits."""
        if not isinstance(outcome, Refusal):
            yield told(org, self.job, HoldGrew(added=self.amount, until=self.until), at)
            yield Noted("top up", (org, self.job))
            yield step_of(org, self.job, books, "topped_up", at)


def told(org: OrgId, job: JobId, message: ToPool, at: Instant) -> Noted:
    """A message to a job's pool."""
    return Noted("tell pool", (org, job, message_text(message), at))


def step_of(
    org: OrgId, job: JobId, books: Books, why: str, at: Instant, stand: Stand | None = None
) -> Noted:
    """A step of a job's life, with how it and its hold stand now; told in the org's stream too."""
    hold = books.holds.get(HoldId(job))
    spent, held = (0, 0) if hold is None else (hold.used, hold.open)
    stand = stand or Stand()
    event = JobStepped(
        at=at,
        job=job,
        why=why,
        state=stand.state,
        attempt=stand.attempt,
        gpu_type=stand.gpu_type,
        exit_code=stand.exit_code,
        spent=spent,
        held=held,
        end_class=stand.end_class if why == CORRECTED else None,
    )
    return stepped(org, event)
