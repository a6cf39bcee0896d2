"""Correcting who answers for the end of an attempt, on its org's side (M3).

Its pool knows how much work was lost, and what can still be reported of the attempt: so it is told,
and what it tells then moves the credits (`receiving`). Only of jobs that are over: nobody counts on
what their holds have any more.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bursar.core.dispatch.message_commands import Outcome
from bursar.core.ids import JobId, OrgId
from bursar.core.instant import Instant
from bursar.core.ledger.books import Books
from bursar.core.ledger.commands import CorrectEnd
from bursar.core.messages import Correct
from bursar.core.refusal import Code, Refusal
from bursar.service.jobs.submission import told
from bursar.service.ledger.batch import Ask
from bursar.store.jobs.rows import Noted, corrections_on_their_way
from bursar.store.sql.connection import Connection


def correcting(org: OrgId, key: str, said: CorrectEnd, actor: str) -> Ask:
    """The command that corrects an end of a job that is over."""
    return Ask(org, key, said, Correcting(said), (), actor)


class Correcting(NamedTuple):
    """That somebody else answers for an end."""

    said: CorrectEnd

    def objection(
        self, connection: Connection, org: OrgId, books: Books, noted: Sequence[Noted], at: Instant
    ) -> Refusal | None:
        """That another correction of the job is on its way: its credits have not moved yet."""
        job = JobId(self.said.hold)
        about = [one for one in noted if one.values[:2] == (org, job)]
        sent = sum(one.statement == "tell pool" for one in about)
        if sent or corrections_on_their_way(connection, org, job):
            return Refusal(Code.CORRECTION_PENDING, {"job": job})
        return None

    def rows(self, org: OrgId, books: Books, outcome: Outcome, at: Instant) -> Iterator[Noted]:
        """What is written: the job's pool is told, unless the ledger refuses."""
        if not isinstance(outcome, Refusal):
            message = Correct(attempt=self.said.attempt, end_class=self.said.end_class)
            yield told(org, JobId(self.said.hold), message, at)
