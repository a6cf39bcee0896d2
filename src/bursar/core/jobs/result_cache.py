"""Identical jobs of one org: one of them runs, the others are given its result (S13).

A job that shares results says how old a result may be. Under the org's lock, with the hold, the
rules decide what the job does:

    hit      an identical job has succeeded, not too long ago: the hold is settled in the same
             transaction, and the job has succeeded
    follows  an identical job is under way: this one has its hold, and is sent to no pool
    leads    neither is so: it goes to its pool like any other

A follower ends in one of four ways:

    an identical job has succeeded    it is given that result, and settled at its price
    its org has cancelled it          its hold is released
    its hold has come to the limit    it has expired
    no job leads any more             the first follower takes over: it is sent to its pool

Results are never looked for in another org: the digest means something together with the org alone.
What a result costs is the price book's to say (`cache_hit_ppm`), at the moment of submission, as
for everything a hold is opened with; it is never more than what is held.

A command that comes twice finds the hold closed, or a job that leads. So two processes may look
after the same followers, and a process that was killed is replaced by the next look.

Roads not taken. To look before the transaction, and lock less: two jobs that come together would
both run. A result that is copied into each job: ten thousand followers would be ten thousand
copies; they name the job that has it. The leader of a follower as a column: the end of a leader
would write to all its followers at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from bursar.core.dispatch.job_lifecycle import JobState, next_state
from bursar.core.ids import ChargeId, HoldId, JobId, derive_id
from bursar.core.instant import Instant
from bursar.core.jobs.effects import FollowUp, JobEffect, Outcome
from bursar.core.jobs.rows import JobFigures, OrgJob
from bursar.core.jobs.states import JobUpdate, event_of
from bursar.core.jobs.transaction import Alike, Heir, JobTransaction
from bursar.core.ledger.books import Books, require
from bursar.core.ledger.commands import Release, Settle
from bursar.core.messages import Cause, EndClass, Enqueue
from bursar.core.money import Micros, share_of
from bursar.core.pricing import hit_ppm_of
from bursar.core.refusal import Refusal, invariant
from bursar.core.value import replace

FOLLOWS: Final = "follows"  # steps of a job that shares its result: an identical one is under way
TOOK_OVER: Final = "took_over"  # that one did not succeed

KEY: Final = "bursar:cache"  # prefix of the keys of commands for such jobs
EXPIRE_MAX: Final = 100  # followers that expire in one transaction


class Sharing(NamedTuple):
    """A job shares its result: the digest, and the age that a result may have."""

    digest: str
    max_age: int  # microseconds


class Match(NamedTuple):
    """The identical job that a new job meets; none, if the new job is to lead."""

    source: JobId | None = None
    hit: bool = False  # the source has succeeded
    exit_code: int | None = None  # of the source, then
    used: Micros = 0  # what the source has cost


def match_of(alike: Alike) -> Match:
    """A result before a job under way; followers that wait for one of them to lead count, too."""
    if alike.result is not None:
        return Match(alike.result, True, alike.exit_code, alike.used or 0)
    return Match(alike.leader or alike.waiting)


def price_of(used: Micros, ppm: int, held: Micros) -> Micros:
    """What a result costs; no more than is held for it."""
    return min(share_of(used, ppm), held)


def hit_ppm(books: Books, now: Instant) -> int:
    """What a result costs now, of what the run has cost."""
    return hit_ppm_of(books.deployment, books.header.prices, now)


# Submission


def share(
    jobs: JobTransaction,
    books: Books,
    job: JobId,
    sharing: Sharing,
    message: Enqueue,
    now: Instant,
) -> FollowUp | None:
    """Let a new job lead or follow; `message` goes to its pool if it is to run.

    If a result is there, the command that gives the job this result follows.
    """
    match = match_of(_find_alike(jobs, books, sharing, now))
    ppm = hit_ppm(books, now)
    row = replace(jobs.job(job), digest=sharing.digest, hit_ppm=ppm)
    if match.source is None:
        jobs.put(replace(row, leads=True))
        jobs.send(job, message, now)
        return None
    source, hit = match.source, match.hit
    jobs.put(replace(row, follows=True, source=source, hit=hit, unsent=message, why=FOLLOWS))
    held = require(books.holds, HoldId(job)).open
    if not match.hit:
        queued = JobUpdate(state=JobState.QUEUED)
        jobs.step(job, event_of(job, FOLLOWS, now, JobFigures(held=held), queued), source)
        return None
    end = EndFollower.with_result(job, source, match.exit_code)
    return settle_with_result(end, price_of(match.used, ppm, held), "at once")


def _find_alike(jobs: JobTransaction, books: Books, sharing: Sharing, now: Instant) -> Alike:
    """The identical jobs as this transaction has left them.

    The outcome is the same whether jobs end and come in one transaction or in several.
    """
    since = now - sharing.max_age
    rows = [row for row in jobs.jobs.values() if row.digest == sharing.digest]
    excluded = [row.id for row in rows if not (row.leads or is_waiting_follower(row))]
    stored = jobs.reads.alike(sharing.digest, since, excluded)
    leader = next((row.id for row in rows if row.leads), stored.leader)
    results = [row for row in rows if has_result(row)]
    waiting = _last_follower(jobs, rows, stored, results)
    recent = [row for row in results if (row.ended_at or 0) > since]
    if recent:
        last = max(recent, key=lambda row: (row.ended_at or 0, row.id))
        used = require(books.holds, HoldId(last.id)).used
        return Alike(last.id, last.exit_code, used, leader, waiting)
    return stored._replace(used=_cost_of(books, stored), leader=leader, waiting=waiting)


def has_result(job: OrgJob) -> bool:
    """Whether a job has succeeded by its own run."""
    return job.state is JobState.SUCCEEDED and job.cached_from is None


def is_waiting_follower(job: OrgJob) -> bool:
    """Whether a job follows another one and was not cancelled."""
    return job.follows and not job.withdrawn


def _last_follower(
    jobs: JobTransaction, rows: Sequence[OrgJob], stored: Alike, results: Sequence[OrgJob]
) -> JobId | None:
    """The follower that was submitted last; None if there is a result for it."""
    added = [row for row in rows if row.id in jobs.added and is_waiting_follower(row)]
    last = max(added, key=lambda row: (row.submitted_at, row.id)).id if added else stored.waiting
    if last is None or not results:
        return last
    submitted_at = jobs.job(last).submitted_at
    return None if any((row.ended_at or 0) >= submitted_at for row in results) else last


def _cost_of(books: Books, alike: Alike) -> Micros | None:
    """The cost of a stored result; this transaction may have corrected it."""
    if alike.result is None or not books.holds.knows(HoldId(alike.result)):
        return alike.used
    return require(books.holds, HoldId(alike.result)).used


# The end of a follower


@dataclass(slots=True)
class EndFollower(JobEffect):
    """Ends a job that was in no pool: with the result of another job, or without one."""

    job: JobId
    why: Cause
    end_class: EndClass
    source: JobId | None = None
    exit_code: int | None = None

    @classmethod
    def with_result(cls, job: JobId, source: JobId, exit_code: int | None) -> "EndFollower":
        """It is given the result of an identical job."""
        return cls(job, Cause.CACHED, EndClass.USER, source, exit_code)

    @classmethod
    def cancelled(cls, job: JobId) -> "EndFollower":
        """Its org has cancelled it."""
        return cls(job, Cause.CANCELLED, EndClass.USER)

    @classmethod
    def expired(cls, job: JobId) -> "EndFollower":
        """Its hold has come to its limit."""
        return cls(job, Cause.HOLD_ENDED, EndClass.LIMIT)

    @property
    def jobs(self) -> tuple[JobId, ...]:
        """The job."""
        return (self.job,)

    def apply(self, jobs: JobTransaction, books: Books, outcome: Outcome, now: Instant) -> None:
        """End it; nothing if its hold was closed before."""
        if not isinstance(outcome, Refusal):
            self.end(jobs, require(books.holds, HoldId(self.job)).used, now)

    def end(self, jobs: JobTransaction, spent: Micros, now: Instant) -> None:
        """End it, with a step."""
        row = jobs.job(self.job)
        state = next_state(JobState.QUEUED, self.why)
        jobs.put(
            replace(
                row,
                state=state,
                why=self.why.value,
                ended_at=now,
                end_class=self.end_class,
                cached_from=self.source,
                exit_code=self.exit_code,
                follows=False,
                unsent=None,
            )
        )
        update = JobUpdate(state=state, exit_code=self.exit_code)
        event = event_of(self.job, self.why.value, now, JobFigures(spent=spent), update)
        jobs.step(self.job, event, self.source)


def settle_with_result(end: EndFollower, price: Micros, when: str) -> FollowUp:
    """The command that gives a follower another job's result, for a price."""
    charge = ChargeId(derive_id(end.job, end.why.value))
    command = Settle(charge=charge, hold=HoldId(end.job), total=price)
    return FollowUp(f"{KEY}/{end.job}/{when}", command, end)


class DueFollower(NamedTuple):
    """A follower that can end: it was cancelled, or an identical job has succeeded."""

    job: JobId
    cancelled: bool
    hit_ppm: int
    held: Micros
    source: JobId | None = None  # the job whose result it is given
    exit_code: int | None = None
    used: Micros = 0  # what that has cost


def end_follower(follower: DueFollower, when: str) -> FollowUp:
    """The command by which a follower ends."""
    job = follower.job
    if follower.cancelled or follower.source is None:
        key = f"{KEY}/{job}/{when}/cancelled"
        return FollowUp(key, Release(hold=HoldId(job)), EndFollower.cancelled(job))
    price = price_of(follower.used, follower.hit_ppm, follower.held)
    end = EndFollower.with_result(job, follower.source, follower.exit_code)
    return settle_with_result(end, price, when)


# Succession


@dataclass(slots=True)
class RepairGroup(JobEffect):
    """Lets a follower lead a group of identical jobs without a leader; expires those without hold.

    `count` says afterwards how many jobs have gone on.
    """

    digest: str
    expire: bool  # whether some follower has no hold: to look for it takes long where many follow
    count: int = 0

    def apply(self, jobs: JobTransaction, books: Books, outcome: Outcome, now: Instant) -> None:
        """Repair the group as it is under the lock."""
        self.count = 0
        ended = jobs.reads.without_hold(self.digest, EXPIRE_MAX) if self.expire else ()
        for job, spent in ended:
            if jobs.job(job).follows:  # unless this transaction has ended it
                EndFollower.expired(job).end(jobs, spent, now)
                self.count += 1
        heir = jobs.reads.heir(self.digest, now)
        # A row that this transaction has changed may have another hold: the next look finds it.
        if heir is not None and heir.job not in jobs.jobs:
            _succeed(jobs, heir, now)
            self.count += 1


def _succeed(jobs: JobTransaction, heir: Heir, now: Instant) -> None:
    """Let a follower lead: its pool is sent what was kept back, with its hold as it is now.

    The leader that waits for credits goes on alone once it has some: others run before that.
    """
    if heir.leader is not None:
        jobs.put(replace(jobs.job(heir.leader), digest=None, leads=False))
    row = jobs.job(heir.job)
    invariant(row.follows, "only a follower takes over", job=row.id)
    assert row.unsent is not None
    message = replace(row.unsent, hold_micros=heir.held, hold_until=heir.expires_at)
    jobs.put(replace(row, leads=True, follows=False, unsent=None, why=TOOK_OVER))
    jobs.send(heir.job, message, now)
    queued = JobUpdate(state=JobState.QUEUED)
    jobs.step(heir.job, event_of(heir.job, TOOK_OVER, now, JobFigures(held=heir.held), queued))
