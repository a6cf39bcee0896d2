"""An org of a simulated world: its books and jobs, as rows in memory.

It runs the rules of `core.jobs`, as the service does. `SimulatedOrg` has the role of the service's
database: the rows of jobs, read and written in transactions; the answers by key; and the messages
that the pool has not acknowledged yet.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from bursar.core.dispatch.state import JobMessage
from bursar.core.ids import HoldId, JobId
from bursar.core.instant import Instant
from bursar.core.jobs import relocation
from bursar.core.jobs.cancellation import CancelJob, cancel_command, cancel_key
from bursar.core.jobs.corrections import CorrectAttemptEnd
from bursar.core.jobs.effects import JobEffect, Outcome, perform_with
from bursar.core.jobs.pool_messages import PoolMessage, commands_of
from bursar.core.jobs.result_cache import has_result, is_waiting_follower
from bursar.core.jobs.rows import ArrayProgress, JobFigures, OrgJob, Receipt, Route
from bursar.core.jobs.submission import ExtendJob, Submission, SubmitJob, reserve_for_job
from bursar.core.jobs.transaction import Alike, Heir, JobTransaction
from bursar.core.ledger.books import Books, require
from bursar.core.ledger.commands import Command, CorrectEnd, ExtendHold
from bursar.core.ledger.events import Event
from bursar.core.ledger.idempotency import Reply, replay
from bursar.core.messages import Enqueue, ToPool, Withdraw
from bursar.core.money import Micros
from bursar.core.refusal import Refusal

POOL: Final = "pool"


@dataclass(slots=True)
class SimulatedOrg:
    """An org: its books, its jobs, and the messages that its pool has not acknowledged."""

    id: str
    books: Books
    events: list[Event] = field(default_factory=list)
    jobs: dict[JobId, OrgJob] = field(default_factory=dict)
    arrays: dict[JobId, ArrayProgress] = field(default_factory=dict)
    routed: dict[JobId, list[Route]] = field(default_factory=dict)
    enqueued: dict[JobId, Enqueue] = field(default_factory=dict)  # what its pool was sent first
    replies: dict[str, Reply] = field(default_factory=dict)
    outbox: dict[tuple[JobId, int], ToPool] = field(default_factory=dict)
    addressed: dict[JobId, list[str]] = field(default_factory=dict)  # pools, by message number
    cancelled_in: dict[JobId, str] = field(default_factory=dict)  # pools that got a cancel
    objections: list[Receipt] = field(default_factory=list)  # for an operator to see

    def pool_of(self, job: JobId, n: int) -> str:
        """The pool that a message was sent to."""
        return self.addressed[job][n - 1]

    # What a transaction reads

    def job(self, job: JobId) -> OrgJob | None:
        """A job."""
        return self.jobs.get(job)

    def array(self, array: JobId) -> ArrayProgress | None:
        """The progress of an array."""
        return self.arrays.get(array)

    def live_elements(self, array: JobId) -> list[OrgJob]:
        """The elements of an array that were added and have not finished, by number."""
        rows = [job for job in self.jobs.values() if job.array == array and not job.is_finished]
        return sorted(rows, key=lambda job: job.place or 0)

    def load(self, jobs: Sequence[JobId]) -> None:
        """All rows are in memory."""

    def figures(self, jobs: Sequence[JobId], excluded: Sequence[JobId]) -> dict[JobId, JobFigures]:
        """What jobs have spent and hold; an array with all of its elements."""
        return {job: self._figures(job, excluded) for job in jobs if job in self.jobs}

    def _figures(self, job: JobId, excluded: Sequence[JobId]) -> JobFigures:
        parts = [job, *(row.id for row in self.jobs.values() if row.array == job)]
        holds = [require(self.books.holds, HoldId(part)) for part in parts if part not in excluded]
        return JobFigures(sum(hold.used for hold in holds), sum(hold.open for hold in holds))

    def routes(self, job: JobId) -> list[Route]:
        """The pools that a job was sent to, in order."""
        return self.routed.get(job, [])

    def last_enqueue(self, job: JobId) -> Enqueue:
        """The `Enqueue` message to the job's last pool."""
        return self.enqueued[job]

    def _identical(self, digest: str, excluded: Sequence[JobId]) -> list[OrgJob]:
        rows = [
            job for job in self.jobs.values() if job.digest == digest and job.id not in excluded
        ]
        return sorted(rows, key=lambda job: (job.submitted_at, job.id))

    def alike(self, digest: str, excluded: Sequence[JobId]) -> Alike:
        """The jobs with a digest."""
        rows = self._identical(digest, excluded)
        leader = next((job.id for job in rows if job.leads), None)
        waiting = next((job for job in reversed(rows) if is_waiting_follower(job)), None)
        alike = Alike(leader=leader)
        if waiting is not None:
            alike = alike._replace(waiting=waiting.id, submitted_at=waiting.submitted_at)
        results = [job for job in rows if has_result(job)]
        if results:
            last = max(results, key=lambda job: (job.ended_at or 0, job.id))
            used = require(self.books.holds, HoldId(last.id)).used
            alike = alike._replace(
                result=last.id, exit_code=last.exit_code, used=used, ended_at=last.ended_at
            )
        return alike

    def without_hold(
        self, digest: str, most: int, excluded: Sequence[JobId]
    ) -> list[tuple[JobId, Micros]]:
        """The first followers whose holds have ended, and what they have spent."""
        holds = [
            (job.id, require(self.books.holds, HoldId(job.id)))
            for job in self._identical(digest, excluded)
            if job.follows
        ]
        return [(job, hold.used) for job, hold in holds if hold.closed_at is not None][:most]

    def heir(
        self, digest: str, after: Instant, now: Instant, excluded: Sequence[JobId]
    ) -> Heir | None:
        """The first follower, of those submitted after an instant, whose hold lasts beyond now."""
        for job in self._identical(digest, excluded):
            hold = require(self.books.holds, HoldId(job.id))
            able = is_waiting_follower(job) and job.submitted_at > after
            if able and hold.closed_at is None and hold.expires_at > now:
                return Heir(job.id, job.submitted_at, hold.open, hold.expires_at)
        return None

    def count_waiting(self, account: str | None, user: str | None, most: int) -> int:
        """No world has quotas."""
        return 0

    def count_latest(self, account: str | None, user: str | None, since: Instant, most: int) -> int:
        """No world has quotas."""
        return 0


def first_result(rows: Sequence[OrgJob], follower: OrgJob) -> OrgJob | None:
    """The first of identical jobs that has succeeded since a follower was submitted."""
    since = follower.submitted_at
    results = [job for job in rows if has_result(job) and (job.ended_at or 0) >= since]
    return min(results, key=lambda job: (job.ended_at or 0, job.id), default=None)


# Transactions


def ask(
    org: SimulatedOrg, key: str, command: Command, now: Instant, effect: JobEffect | None = None
) -> tuple[Outcome, bool]:
    """Let the ledger decide, once for each key; returns the outcome, and whether it is new."""
    first = replay(key, org.replies.get(key), command)
    if first is not None:
        return (first if isinstance(first, Refusal) else first.outcome), False
    jobs = JobTransaction(org)
    outcome = perform_command(org, key, command, effect, jobs, now)
    commit_jobs(org, jobs)
    return outcome, True


def perform_command(
    org: SimulatedOrg,
    key: str,
    command: Command,
    effect: JobEffect | None,
    jobs: JobTransaction,
    now: Instant,
) -> Outcome:
    """Perform a command, and those that follow it in the same transaction."""
    now = max(now, org.books.header.now)
    performed = perform_with(org.books, command, effect, jobs, now)
    outcome = performed.outcome
    org.events.extend(performed.steps if isinstance(outcome, Refusal) else outcome)
    org.replies[key] = Reply(command=command, outcome=outcome, number=org.books.header.number)
    more = performed.follow_up
    if more is not None and more.key not in org.replies:
        perform_command(org, more.key, more.command, more.effect, jobs, now)
    return outcome


def commit_jobs(org: SimulatedOrg, jobs: JobTransaction) -> None:
    """Apply all changes of a transaction."""
    org.jobs |= jobs.jobs
    org.arrays |= jobs.arrays
    for sent in jobs.messages:
        org.outbox[sent.job, sent.n] = sent.message
        org.addressed.setdefault(sent.job, []).append(sent.pool)
        if isinstance(sent.message, Withdraw):
            org.cancelled_in[sent.job] = sent.pool
        if isinstance(sent.message, Enqueue):
            org.enqueued[sent.job] = sent.message
    org.objections += [receipt for receipt in jobs.receipts if receipt.refusal is not None]
    for row in jobs.routes_added:
        org.routed.setdefault(row.job, []).append(row.route)
    for row in jobs.routes_arrived:
        routes = org.routed[row.job]
        org.routed[row.job] = [row.route if old.n == row.route.n else old for old in routes]


# Calls


def submit(org: SimulatedOrg, key: str, submission: Submission, now: Instant) -> Outcome:
    """Reserve a job's hold and send the job to its pool; both or neither."""
    return ask(org, key, reserve_for_job(submission), now, SubmitJob(submission))[0]


def extend(org: SimulatedOrg, key: str, command: ExtendHold, now: Instant) -> Outcome:
    """Extend the hold of a job; its pool gets a message."""
    effect = ExtendJob(JobId(command.hold), command.amount, command.expires_at or 0)
    return ask(org, key, command, now, effect)[0]


def correct(org: SimulatedOrg, key: str, command: CorrectEnd, now: Instant) -> Outcome:
    """Correct the end class of an attempt; the pool of the finished job gets a message (M3)."""
    return ask(org, key, command, now, CorrectAttemptEnd(command))[0]


def cancel(org: SimulatedOrg, job: JobId, now: Instant) -> Outcome:
    """Cancel a job; cancelling again changes nothing."""
    return ask(org, cancel_key(job), cancel_command(job), now, CancelJob(job))[0]


def request_move(org: SimulatedOrg, job: JobId, source: str, target: str, now: Instant) -> bool:
    """Request a job back from its pool, for another pool; False if it cannot move."""
    jobs = JobTransaction(org)
    is_requested = relocation.request_move(jobs, job, source, target, "it starts sooner", now)
    commit_jobs(org, jobs)
    return is_requested


# Messages


def acknowledge(org: SimulatedOrg, job: JobId, n: int) -> None:
    """Record that the pool has handled a message."""
    org.outbox.pop((job, n), None)


def is_handled(org: SimulatedOrg, pool: str, envelope: JobMessage) -> bool:
    """Whether a message of a pool was handled; all messages of a former pool were."""
    job = org.jobs[envelope.job]
    return pool != job.pool or envelope.n <= job.received


def handle(org: SimulatedOrg, pool: str, envelope: JobMessage, now: Instant) -> Iterator[None]:
    """Handle the next message of a job's pool, one transaction at a time.

    The process may die after any of them; when the message is delivered again, the first commands
    get the same answers. A message that arrives early, or was handled before, is ignored.
    """
    job = org.jobs[envelope.job]
    if pool != job.pool or envelope.n != job.received + 1:
        return
    commands = commands_of(PoolMessage(pool, envelope.job, envelope.n, envelope.message), job.array)
    key, command, effect = next(commands)
    while True:
        outcome, _ = ask(org, key, command, now, effect)
        yield
        try:
            key, command, effect = commands.send(outcome)
        except StopIteration:
            return
