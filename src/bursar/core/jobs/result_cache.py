"""The result cache: of identical jobs of an org one runs, the others get its result (S13).

A job that shares results states how old a result may be. At submission, under the org's lock, the
rules decide between three cases:

    hit      an identical job has succeeded recently enough: the hold is settled in the same
             transaction, and the job has succeeded
    follows  an identical job is unfinished: this one has a hold, but is sent to no pool
    leads    otherwise: the job is sent to its pool like any other

A follower waits until one of these happens:

    an identical job succeeds     the follower gets that result, and pays its price
    its org cancels it            its hold is released
    its hold expires              it expires
    there is no leader any more   the first follower takes over: it is sent to its pool

Results are shared within an org only: digests of two orgs are never compared. The price of a result
is set in the price book (`cache_hit_ppm`). As for all prices of a hold, the version in force at
submission applies. A result never costs more than is held.

A repeated command finds the hold closed, or finds a leader. So two processes may handle the same
followers, and what a killed process left undone is done at the next poll.

Alternatives that were rejected. Checking before the transaction, with fewer locks: two jobs
submitted at the same time would both run. Copying the result into each job: ten thousand followers
would be ten thousand copies; they refer to the job that has it. The leader as a column of each
follower: the end of a leader would update all its followers at once.
"""

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
from bursar.core.ledger.values import Hold
from bursar.core.messages import Cause, EndClass, Enqueue
from bursar.core.money import Micros, share_of
from bursar.core.pricing import hit_ppm_of
from bursar.core.refusal import Refusal, invariant
from bursar.core.value import replace

FOLLOWS: Final = "follows"  # a step of a job: it waits for the result of an identical job
TOOK_OVER: Final = "took_over"  # a step of a follower: the leader did not succeed, so it leads

KEY: Final = "bursar:cache"  # prefix of the keys of commands for such jobs
EXPIRE_MAX: Final = 100  # followers that expire in one transaction


class Sharing(NamedTuple):
    """The digest of a job that shares results, and the maximum age of a result for it."""

    digest: str
    max_age: int  # microseconds


class Match(NamedTuple):
    """The identical job that a new job can use; none if the new job is to lead."""

    source: JobId | None = None
    hit: bool = False  # the source has succeeded
    exit_code: int | None = None  # of the source, then
    used: Micros = 0  # what the source has cost


def match_of(alike: Alike, since: Instant) -> Match:
    """A result from after an instant, or else an unfinished job: the leader, or a follower that
    waits for a leader. A follower with a result does not wait, however old the result is."""
    ended_at = -1 if alike.ended_at is None else alike.ended_at
    if alike.result is not None and ended_at > since:
        return Match(alike.result, True, alike.exit_code, alike.used or 0)
    waits = alike.submitted_at is not None and alike.submitted_at > ended_at
    return Match(alike.leader or (alike.waiting if waits else None))


def price_of(used: Micros, ppm: int, held: Micros) -> Micros:
    """The price of a result, limited to what is held."""
    return min(share_of(used, ppm), held)


def hit_ppm(books: Books, now: Instant) -> int:
    """The price of a result, as a part of the cost of the run."""
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
    """Let a new job lead or follow; `message` is sent to its pool if it leads.

    If there is a result, the returned command gives it to the job.
    """
    match = match_of(find_alike(jobs, books, sharing.digest), now - sharing.max_age)
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


def find_alike(jobs: JobTransaction, books: Books, digest: str) -> Alike:
    """The identical jobs, including the changes of this transaction.

    The outcome is the same whether jobs end and are submitted in one transaction or in several.
    """
    stored = jobs.reads.alike(digest, list(jobs.jobs))
    alike = stored._replace(used=_cost_of(books, stored))
    for row in jobs.jobs.values():
        if row.digest == digest:
            alike = _with_job(alike, books, row)
    return alike


def _with_job(alike: Alike, books: Books, row: OrgJob) -> Alike:
    """Identical jobs and another one: the last result, the leader, the last follower."""
    if row.leads:
        return alike._replace(leader=row.id)
    if is_waiting_follower(row):
        last = (alike.submitted_at, alike.waiting)
        if alike.waiting is None or last < (row.submitted_at, row.id):
            return alike._replace(waiting=row.id, submitted_at=row.submitted_at)
    if has_result(row):
        last = (alike.ended_at, alike.result)
        if alike.result is None or last < (row.ended_at, row.id):
            used = require(books.holds, HoldId(row.id)).used
            return alike._replace(
                result=row.id, exit_code=row.exit_code, used=used, ended_at=row.ended_at
            )
    return alike


def has_result(job: OrgJob) -> bool:
    """Whether a job has succeeded by running itself."""
    return job.state is JobState.SUCCEEDED and job.cached_from is None


def is_waiting_follower(job: OrgJob) -> bool:
    """Whether a job follows another one and was not cancelled."""
    return job.follows and not job.withdrawn


def _cost_of(books: Books, alike: Alike) -> Micros | None:
    """The cost of a stored result, including a correction in this transaction."""
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
        """The end of a follower that gets the result of an identical job."""
        return cls(job, Cause.CACHED, EndClass.USER, source, exit_code)

    @classmethod
    def cancelled(cls, job: JobId) -> "EndFollower":
        """The end of a follower that its org has cancelled."""
        return cls(job, Cause.CANCELLED, EndClass.USER)

    @classmethod
    def expired(cls, job: JobId) -> "EndFollower":
        """The end of a follower whose hold has expired."""
        return cls(job, Cause.HOLD_ENDED, EndClass.LIMIT)

    @property
    def jobs(self) -> tuple[JobId, ...]:
        """The job."""
        return (self.job,)

    def apply(self, jobs: JobTransaction, books: Books, outcome: Outcome, now: Instant) -> None:
        """End the follower; nothing if its hold was closed before."""
        if not isinstance(outcome, Refusal):
            self.end(jobs, require(books.holds, HoldId(self.job)).used, now)

    def end(self, jobs: JobTransaction, spent: Micros, now: Instant) -> None:
        """End the follower and record the step."""
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
    """The command that gives a follower another job's result, at a price."""
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
    """The command that ends a follower."""
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
    """Gives a group of identical jobs a leader if it has none; expires followers without hold.

    `count` is the number of jobs that were changed.
    """

    digest: str
    expire: bool  # whether a follower has no hold; searching a large group for it is slow
    count: int = 0

    def apply(self, jobs: JobTransaction, books: Books, outcome: Outcome, now: Instant) -> None:
        """Repair the group in its state under the lock."""
        self.count = 0
        for job, spent in find_without_hold(jobs, books, self.digest) if self.expire else ():
            EndFollower.expired(job).end(jobs, spent, now)
            self.count += 1
        succession = find_heir(jobs, books, self.digest, now)
        if succession is not None:
            _succeed(jobs, *succession, now)
            self.count += 1


def find_without_hold(
    jobs: JobTransaction, books: Books, digest: str
) -> list[tuple[JobId, Micros]]:
    """The first followers whose holds have ended, and what they have spent."""
    own = _changed_followers(jobs, books, digest)
    ended = [
        (row.submitted_at, row.id, hold.used) for row, hold in own if hold.closed_at is not None
    ]
    stored = jobs.reads.without_hold(digest, EXPIRE_MAX, _changed_ids(jobs))
    ended += [(jobs.job(job).submitted_at, job, spent) for job, spent in stored]
    return [(job, spent) for _, job, spent in sorted(ended)[:EXPIRE_MAX]]


def find_heir(
    jobs: JobTransaction, books: Books, digest: str, now: Instant
) -> tuple[Heir, JobId | None] | None:
    """The first follower that could run, and the leader that it replaces.

    None if the leader can run, or an identical job has succeeded since the follower was submitted.
    """
    alike = find_alike(jobs, books, digest)
    if alike.leader and jobs.job(alike.leader).state is not JobState.OUT_OF_CREDITS:
        return None
    after = -1 if alike.ended_at is None else alike.ended_at
    heirs = [
        Heir(row.id, row.submitted_at, hold.open, hold.expires_at)
        for row, hold in _changed_followers(jobs, books, digest)
        if is_waiting_follower(row)
        and row.submitted_at > after
        and hold.closed_at is None
        and hold.expires_at > now
    ]
    stored = jobs.reads.heir(digest, after, now, _changed_ids(jobs))
    heirs += [] if stored is None else [stored]
    if not heirs:
        return None
    return min(heirs, key=lambda heir: (heir.submitted_at, heir.job)), alike.leader


def _changed_ids(jobs: JobTransaction) -> list[JobId]:
    """The jobs whose row or hold this transaction has changed."""
    return list(dict.fromkeys((*jobs.jobs, *map(JobId, jobs.changed_holds()))))


def _changed_followers(
    jobs: JobTransaction, books: Books, digest: str
) -> list[tuple[OrgJob, Hold]]:
    """The followers, and their holds, of which this transaction has changed one or both."""
    rows = list(jobs.jobs.values())
    holds = [require(books.holds, hold) for hold in jobs.changed_holds()]
    # A follower is a job that has not started.
    others = [JobId(hold.terms.id) for hold in holds if hold.terms.context.job and not hold.meters]
    others = [job for job in others if job not in jobs.jobs]
    jobs.reads.load(others)
    rows += [row for job in others if (row := jobs.find(job)) is not None]
    return [
        (row, require(books.holds, HoldId(row.id)))
        for row in rows
        if row.digest == digest and row.follows
    ]


def _succeed(jobs: JobTransaction, heir: Heir, leader: JobId | None, now: Instant) -> None:
    """Make a follower the leader: send its message to its pool, with its current hold.

    A previous leader that waits for credits no longer belongs to the group.
    """
    if leader is not None:
        jobs.put(replace(jobs.job(leader), digest=None, leads=False))
    row = jobs.job(heir.job)
    invariant(row.follows, "only a follower takes over", job=row.id)
    assert row.unsent is not None
    message = replace(row.unsent, hold_micros=heir.held, hold_until=heir.expires_at)
    jobs.put(replace(row, leads=True, follows=False, unsent=None, why=TOOK_OVER))
    jobs.send(heir.job, message, now)
    queued = JobUpdate(state=JobState.QUEUED)
    jobs.step(heir.job, event_of(heir.job, TOOK_OVER, now, JobFigures(held=heir.held), queued))
