"""Submitting a job: one command reserves its hold, and its effect adds the job (M1)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bursar.core.dispatch.job_lifecycle import JobState
from bursar.core.ids import AccountId, HoldId, JobId
from bursar.core.instant import Instant
from bursar.core.jobs.effects import FollowUp, JobEffect, Outcome, figures_of
from bursar.core.jobs.quotas import Quota, QuotaCheck, counting_in_pool
from bursar.core.jobs.result_cache import Sharing, share
from bursar.core.jobs.rows import SUBMITTED, ArrayProgress, OrgJob, Route
from bursar.core.jobs.states import JobUpdate, event_of, topped_up
from bursar.core.jobs.transaction import JobTransaction
from bursar.core.ledger.books import Books
from bursar.core.ledger.commands import Reserve
from bursar.core.ledger.decide import decide
from bursar.core.ledger.events import HoldOpened
from bursar.core.messages import Cause, Enqueue, HoldGrew, JobSpec
from bursar.core.money import Micros
from bursar.core.refusal import Code, Refusal
from bursar.core.tiers import list_allowed_tiers, tier_of_job
from bursar.core.value import replace


class Option(NamedTuple):
    """A pool that a job may be sent to, the GPU types it would use there, and the reason."""

    pool: str
    types: tuple[str, ...]
    why: str


class Submission(NamedTuple):
    """A job to run, and the pool to run it in."""

    pool: str
    reserve: Reserve  # by run time; its hold is named after the job, its context names the job
    spec: JobSpec
    run_ms: int | None = None  # longest run and stop grace, if its hold is for less: to be extended
    request: str | None = None  # JSON
    labels: str = "{}"  # JSON
    max_cost: Micros | None = None  # the most that may be held for it in total
    rolling: bool = False  # whether its hold is to be topped up
    quotas: tuple[Quota, ...] = ()  # of its org
    routes: tuple[Option, ...] = ()  # if it names no pool: where it may go, the best first
    sharing: Sharing | None = None  # whether it shares results with identical jobs
    tier: str | None = None  # that it asks for
    tier_orders: tuple[tuple[str, ...], ...] = ()  # of the pools, if it asks for a tier

    @property
    def job(self) -> JobId:
        """The job's id, which is also the id of its hold."""
        return JobId(self.reserve.hold)

    @property
    def run_ms_max(self) -> int:
        """The maximum run time, stop grace included."""
        return (self.reserve.run_ms or 0) if self.run_ms is None else self.run_ms


def reserve_for_job(submission: Submission) -> Reserve:
    """The command that submits a job.

    Only this command allows a hold to last as long as a job may. A request for a hold alone has the
    shorter limit, whatever its context says (L10).
    """
    reserve = submission.reserve
    if reserve.run_ms is None or reserve.context.job != submission.job:
        raise ValueError("a job's hold is sized by run time, and has the job's id")
    return replace(reserve, for_job=True)


@dataclass(slots=True)
class SubmitJob(JobEffect):
    """Adds the job, its first step, and the message to its pool."""

    submission: Submission

    def precheck(self, jobs: JobTransaction, books: Books, now: Instant) -> Refusal | None:
        """Refuse a tier above the org's (S4), an exceeded quota (B4), or a job that can pay for no
        pool's GPU types (M1).
        """
        submission = self.submission
        refusal = refuse_tier(books.header.tier, submission.tier, submission.tier_orders)
        if refusal is not None:
            return refusal
        check = QuotaCheck(jobs, books, now)
        exceeded = check.first_exceeded(submission.quotas, submission.reserve, submission.spec)
        return exceeded or _unserved(submission, books, now)

    def apply(
        self, jobs: JobTransaction, books: Books, outcome: Outcome, now: Instant
    ) -> FollowUp | None:
        """Add the job; nothing if the hold was refused."""
        if isinstance(outcome, Refusal):
            return None
        opened = next(
            event
            for event in outcome
            if isinstance(event, HoldOpened) and event.hold == self.submission.reserve.hold
        )
        submission = _with_pool(self.submission, {kind for kind, _ in opened.terms.rates})
        reserve, job = submission.reserve, submission.job
        tier = tier_of_job(books.header.tier, submission.tier)
        message = _enqueue(opened, submission, books.path(reserve.account), tier)
        jobs.add(_row(submission, now))
        if (
            submission.routes and not reserve.element_count
        ):  # the elements of an array are not moved
            jobs.add_route(job, Route(1, submission.pool, now, now, submission.routes[0].why))
        queued = JobUpdate(state=JobState.QUEUED)
        jobs.step(job, event_of(job, SUBMITTED, now, figures_of(books, job), queued))
        if reserve.element_count is not None:
            jobs.add_array(_array(job, reserve, message))
        elif submission.sharing is not None:
            return share(jobs, books, job, submission.sharing, message, now)
        else:
            jobs.send(job, message, now)
        return None


def refuse_tier(
    org_tier: str | None, asked_tier: str | None, orders: Sequence[Sequence[str]]
) -> Refusal | None:
    """A refusal if a job asks for a tier that its org may not use."""
    allowed = list_allowed_tiers(org_tier, orders)
    if asked_tier is None or asked_tier in allowed:
        return None
    return Refusal(Code.TIER_NOT_ALLOWED, {"tier": asked_tier, "allowed": allowed})


def _row(submission: Submission, now: Instant) -> OrgJob:
    return OrgJob(
        id=submission.job,
        account=submission.reserve.account,
        user=submission.reserve.user,
        pool=submission.pool,
        submitted_at=now,
        request=submission.request,
        labels=submission.labels,
        run_ms=submission.run_ms_max,
        max_cost=submission.max_cost,
        rolling=submission.rolling,
        elements=submission.reserve.element_count,
    )


def _array(job: JobId, reserve: Reserve, whole: Enqueue) -> ArrayProgress:
    """The row of an array, with the message for its elements."""
    count = reserve.element_count or 1
    template = replace(whole, hold_micros=whole.hold_micros // count)
    return ArrayProgress(
        id=job, elements=count, at_once=reserve.at_once or count, template=template
    )


def served(reserve: Reserve, routes: Sequence[Option]) -> Reserve | None:
    """The command with only the GPU types that a pool has; None if that changes nothing."""
    available = {kind for option in routes for kind in option.types}
    types = tuple(kind for kind in reserve.context.gpu_types if kind in available)
    if not routes or types == reserve.context.gpu_types:
        return None
    return replace(reserve, context=replace(reserve.context, gpu_types=types))


def _unserved(submission: Submission, books: Books, now: Instant) -> Refusal | None:
    """The refusal if there are credits only for GPU types that no pool has."""
    fewer = served(submission.reserve, submission.routes)
    whole = None if fewer is None else decide(books, submission.reserve, now)
    if fewer is None or whole is None or isinstance(whole, Refusal):
        return None
    funded = {
        kind for event in whole if isinstance(event, HoldOpened) for kind, _ in event.terms.rates
    }
    if not funded.isdisjoint(fewer.context.gpu_types):
        return None
    refusal = decide(books, fewer, now)
    if isinstance(refusal, Refusal):
        return refusal
    figures = {"gpu_type": ", ".join(fewer.context.gpu_types), "held": tuple(sorted(funded))}
    return Refusal(Code.TYPE_NOT_HELD, figures)


def _with_pool(submission: Submission, funded: set[str]) -> Submission:
    """The submission with the first pool that has a GPU type for which there are credits."""
    for option in submission.routes:
        if not funded.isdisjoint(option.types):
            return submission._replace(pool=option.pool, routes=(option,))
    return submission


def _enqueue(
    opened: HoldOpened, submission: Submission, shares: tuple[AccountId, ...], tier: str
) -> Enqueue:
    """The message to the pool, with what the ledger holds for the job."""
    terms = opened.terms
    return Enqueue(
        account=terms.account,
        user=terms.user,
        shares=shares,
        tier=tier,
        rates=terms.rates,
        run_ms=submission.run_ms_max,
        hold_micros=sum(posting.amount for posting in opened.postings),
        hold_until=opened.expires_at,
        spec=_funded(submission.spec, dict(terms.rates)),
        quotas=counting_in_pool(submission.quotas, shares, terms.user),
    )


def _funded(spec: JobSpec, rates: dict[str, int]) -> JobSpec:
    """The spec with only the GPU types for which there are credits."""
    types = tuple(kind for kind in spec.shape.types if kind in rates)
    if types == spec.shape.types:
        return spec
    return replace(spec, shape=replace(spec.shape, types=types))


@dataclass(slots=True)
class ExtendJob(JobEffect):
    """Reports a larger or longer hold to the job's pool."""

    job: JobId
    amount: Micros
    until: Instant

    @property
    def jobs(self) -> tuple[JobId, ...]:
        """The job."""
        return (self.job,)

    def precheck(self, jobs: JobTransaction, books: Books, now: Instant) -> Refusal | None:
        """Refuse for an array, or if the job would exceed its maximum cost (M1).

        The hold of an array is divided into equal lots; single elements can be extended instead.
        """
        row = jobs.find(self.job)
        if row is not None and row.elements is not None:
            return Refusal(Code.HOLD_OF_AN_ARRAY, {"job": self.job})
        hold, most = books.holds.get(HoldId(self.job)), max_cost_of(jobs, self.job)
        if hold is None or most is None or hold.used + hold.open + self.amount <= most:
            return None
        amount = hold.used + hold.open + self.amount
        return Refusal(Code.MAX_COST_EXCEEDED, {"amount": amount, "most": most})

    def apply(self, jobs: JobTransaction, books: Books, outcome: Outcome, now: Instant) -> None:
        """Send the message; nothing if the extension was refused."""
        if isinstance(outcome, Refusal):
            return
        jobs.send(self.job, HoldGrew(added=self.amount, until=self.until), now)
        jobs.put(topped_up(jobs.job(self.job)))
        figures = figures_of(books, self.job)
        jobs.step(self.job, event_of(self.job, Cause.TOPPED_UP.value, now, figures))


def max_cost_of(jobs: JobTransaction, job: JobId) -> Micros | None:
    """The most that may be held for a job; for an element, its part of the array's maximum."""
    row = jobs.find(job)
    if row is None or row.max_cost is not None or row.array is None:
        return None if row is None else row.max_cost
    array = jobs.job(row.array)
    if array.max_cost is None or array.elements is None:
        return None
    return array.max_cost // array.elements
