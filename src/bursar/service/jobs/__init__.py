"""Jobs on the orgs' side: loading rows, running the rules of `core.jobs`, saving rows (M1–M4).

    admission        which pool a job goes to, and whether it may be submitted now
    submission       the request that submits a job or extends its hold
    cancellation     the request that cancels a job
    corrections      the request that corrects the cause of an attempt's end
    pool_messages    messages of pools, as ledger commands
    relocation       requests a job back from its pool
    routing          chooses the pool of a job that names none
    rolling_holds    tops up rolling holds
    arrays           advances arrays
    cache_followers  ends jobs that wait for the result of an identical one
    queries          jobs for display

An alternative that was rejected: handling messages in any order. Every handler would have to accept
an end before its start or a reading of an earlier attempt, and a hold might be drawn for an attempt
that has ended. Instead, a message that arrives early is left for redelivery.
"""

from collections.abc import Callable, Sequence

from bursar.core.ids import JobId, OrgId
from bursar.core.instant import Instant
from bursar.core.jobs.rows import OrgJob
from bursar.failpoints import failpoint
from bursar.service.jobs.arrays import Arrays
from bursar.service.jobs.cache_followers import Followers, flights_of
from bursar.service.jobs.cancellation import cancellation_request
from bursar.service.jobs.ledger_port import Answers, RunAsks, run_asks_through
from bursar.service.jobs.pool_messages import MessageHandler, in_order
from bursar.service.jobs.submission import Submission, extension_request, submission_request
from bursar.service.ledger.batch import Answer, CommandRequest
from bursar.store.jobs.outbox import Envelope, ack_orgs, by_job
from bursar.store.jobs.rows import enter
from bursar.store.jobs.transaction import ask_jobs, jobs_of
from bursar.store.sql.connection import Connection, money_time

__all__ = ["Answers", "JobUnknown", "Jobs", "RunAsks", "Submission", "run_asks_through"]


class JobUnknown(KeyError):
    """The job does not exist."""


class Jobs:
    """Operations on the jobs of orgs, on one connection and a ledger."""

    def __init__(
        self,
        connection: Connection,
        ledger: RunAsks,
        clock: Callable[[Connection], Instant] = money_time,
    ) -> None:
        self._connection = connection
        self._ledger = ledger
        self._clock = clock
        self._followers = Followers(connection, ledger, clock)
        self._arrays = Arrays(connection, ledger)
        self.with_room: set[OrgId] = set()  # orgs whose arrays may advance after these messages

    def submit(self, org: OrgId, key: str, submission: Submission) -> Answer:
        """Reserve a job's hold and send the job to its pool; both or neither."""
        return self._ask(submission_request(org, key, submission))

    def extend(
        self, org: OrgId, key: str, job: JobId, amount: int, until: Instant | None = None
    ) -> Answer:
        """Extend the hold of a job; its pool gets a message."""
        self._require(org, job)
        return self._ask(extension_request(org, key, job, amount, until))

    def cancel(self, org: OrgId, job: JobId, key: str = "", actor: str = "") -> Answer:
        """Cancel a job; cancelling again, with any key, changes nothing."""
        row = self._require(org, job)
        answer = self._ask(cancellation_request(org, job, key, actor))
        failpoint("cancellation.after_commit")
        if row.follows and row.digest is not None:  # it is in no pool: end it here
            self._followers.of([(org, row.digest)])
        return answer

    def advance_arrays(self, org: OrgId | None = None) -> None:
        """Advance the arrays of all orgs, or of one, as far as there is room."""
        self._arrays.advance(org)

    def acknowledge(self, envelopes: Sequence[Envelope]) -> None:
        """Mark messages to pools as received.

        Takes no lock, so that commands of the orgs do not wait for it.
        """
        if not envelopes:
            return
        with self._connection.transaction(), self._connection.pipeline():
            enter(self._connection, {envelope.org for envelope in envelopes})
            ack_orgs(self._connection, envelopes, self._clock(self._connection))

    def receive(self, envelopes: Sequence[Envelope]) -> list[Envelope]:
        """Handle messages of a pool, each once and in order; return those that are done with.

        The jobs are handled in parallel: each call of the ledger has one command of each job.
        """
        handled: list[Envelope] = []
        jobs = self._rows(list(by_job(envelopes))) if envelopes else {}
        handlers: list[MessageHandler] = []
        for key, come in by_job(envelopes).items():
            job = jobs.get(key)
            if job is None:
                continue  # no org of this deployment has such a job
            # Messages of an earlier pool were handled before the job left it.
            handled += [each for each in come if each.pool != job.pool or each.n <= job.received]
            due = [each for each in come if each.pool == job.pool and each.n > job.received]
            handlers.append(MessageHandler(in_order(due, job.received), handled, job.array))
        while handlers := [each for each in handlers if each.ask is not None]:
            answers = self._ledger([each.ask for each in handlers if each.ask is not None])
            for handler, answer in zip(handlers, answers, strict=True):
                handler.take(answer)
            if any(each.ask is not None for each in handlers):
                failpoint("messages.between_commands")
        self._followers.of(flights_of(handled, jobs))
        self.with_room |= {org for (org, _), job in jobs.items() if job.array is not None}
        return handled

    def _rows(self, keys: Sequence[tuple[OrgId, JobId]]) -> dict[tuple[OrgId, JobId], OrgJob]:
        """The current rows of jobs, read without a lock."""
        with self._connection.transaction():
            with self._connection.pipeline():
                enter(self._connection, {org for org, _ in keys})
                sent = ask_jobs(self._connection, keys)
            return jobs_of(sent)

    def _require(self, org: OrgId, job: JobId) -> OrgJob:
        row = self._rows([(org, job)]).get((org, job))
        if row is None:
            raise JobUnknown(job)
        return row

    def _ask(self, ask: CommandRequest) -> Answer:
        [answer] = self._ledger([ask])
        if isinstance(answer, Exception):
            raise answer
        return answer
