"""Jobs on the orgs' side: asking for one, withdrawing it, and charging what its pool tells (M1–M4).

A job is submitted by the very command that reserves its hold: job, hold and the message to the pool
are there together or not at all. The hold has the job's id. It is the pool that says when a job is
over, even one that was withdrawn; until then its hold stays.

    submitting  the command that submits, and what is written with it
    caching     jobs that are alike: one runs, the others are given its result
    followers   those others, to their end
    receiving   messages of a pool, and the commands they come to
    routing     which pool a job waits in that names none
    moving      how it goes to another before it has begun
    withdrawing letting a job run no more
    states      how a job stands after a message
    looking     jobs as they are shown

Roads not taken. Messages in any order: every handler would have to cope with an end before its
start, a reading of the attempt before last, and so on, and a hold would be drawn for an attempt
that is over. A message that has overtaken another waits instead until it is sent again.
"""

from collections.abc import Callable, Iterable, Sequence

from bursar.core.ids import HoldId, JobId, OrgId
from bursar.core.instant import Instant
from bursar.core.ledger.commands import ExtendHold
from bursar.failpoints import failpoint
from bursar.service.jobs.arrays import Arrays, Part
from bursar.service.jobs.cache_followers import Followers, flights_of
from bursar.service.jobs.cancellation import withdrawing
from bursar.service.jobs.ledger_port import Answers, Asked, through
from bursar.service.jobs.pool_messages import Handling, in_order, key_of
from bursar.service.jobs.submission import Extended, Submission, asked_for_a_job
from bursar.service.ledger.batch import Answer, Ask
from bursar.store.jobs.outbox import Letter, ack_orgs, by_job
from bursar.store.jobs.rows import JobRow, ask_jobs, enter, jobs_of
from bursar.store.sql.connection import Connection, money_time

__all__ = ["Answers", "Asked", "JobUnknown", "Jobs", "Submission", "key_of", "through"]


class JobUnknown(KeyError):
    """There is no such job."""


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
        self._followers = Followers(connection, ledger, clock)
        self._arrays = Arrays(connection, ledger)
        self.with_room: set[OrgId] = set()  # orgs whose arrays may go on, by what was received

    def submit(self, org: OrgId, key: str, ask: Submission) -> Answer:
        """Reserve a job's hold, and send the job to its pool; both or neither."""
        return self._one(asked_for_a_job(org, key, ask))

    def extend(
        self, org: OrgId, key: str, job: JobId, amount: int, until: Instant | None = None
    ) -> Answer:
        """Set more aside for a job, or for longer; its pool is told."""
        self._existing(org, job)
        command = ExtendHold(hold=HoldId(job), amount=amount, expires_at=until)
        return self._one(Ask(org, key, command, Extended(job, amount, until or 0)))

    def withdraw(self, org: OrgId, job: JobId, key: str = "", actor: str = "") -> Answer:
        """Ask a job's pool to run it no more; asking again, under any key, changes nothing."""
        found = self._existing(org, job)
        answer = self._one(withdrawing(org, job, key, actor))
        failpoint("withdraw.after_commit")
        if found.follows and found.alike is not None:  # it is in no pool that could let it go
            self._followers.of([(org, found.alike)])
        return answer

    def go_on(self, org: OrgId | None = None) -> None:
        """Let the arrays of all orgs, or of one, go on as far as there is room."""
        self._arrays.go_on(org)

    def acknowledge(self, letters: Sequence[Letter]) -> None:
        """Remember that pools have these messages of ours.

        No books are looked at: nobody who works on them has to wait for this.
        """
        if not letters:
            return
        with self._connection.transaction(), self._connection.pipeline():
            enter(self._connection, {letter.org for letter in letters})
            ack_orgs(self._connection, letters, self._clock(self._connection))

    def receive(self, letters: Sequence[Letter]) -> list[Letter]:
        """Handle messages of a pool, each once and in order; those that need not come again.

        All jobs go side by side: the ledger is asked one command of each at a time.
        """
        handled: list[Letter] = []
        jobs = self._of(letters) if letters else {}
        running: list[Handling] = []
        for key, come in by_job(letters).items():
            job = jobs.get(key)
            if job is None:
                continue  # nobody of ours has asked for it
            # What another pool says was handled before the job could leave it.
            handled += [one for one in come if one.pool != job.pool or one.n <= job.received]
            due = [one for one in come if one.pool == job.pool and one.n > job.received]
            part = None if job.array is None else Part(job.array, job.array_waits)
            running.append(Handling(in_order(due, job.received), handled, part))
        while running := [one for one in running if one.ask is not None]:
            answers = self._ledger([one.ask for one in running if one.ask is not None])
            for one, answer in zip(running, answers, strict=True):
                one.go_on(answer)
            if any(one.ask is not None for one in running):
                failpoint("receive.between_commands")
        self._followers.of(flights_of(handled, jobs))
        self.with_room |= {job.org for job in jobs.values() if job.array is not None}
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

    def _existing(self, org: OrgId, job: JobId) -> JobRow:
        found = self._known([org], [(org, job)]).get((org, job))
        if found is None:
            raise JobUnknown(job)
        return found

    def _one(self, ask: Ask) -> Answer:
        [answer] = self._ledger([ask])
        if isinstance(answer, Exception):
            raise answer
        return answer
