"""Correcting the class of an end: an operator says who answers for it (M3)."""

from collections.abc import Iterator
from typing import NamedTuple

from bursar.core.dispatch.charging import Outcome
from bursar.core.ids import JobId
from bursar.core.instant import Instant
from bursar.core.ledger.books import Books
from bursar.core.refusal import Refusal
from bursar.service.jobs.states import Stand
from bursar.service.jobs.submitting import step_of
from bursar.store.jobs import Noted
from bursar.store.pools.attempts import Ran, attempt_of
from bursar.store.reading import OrgId

__all__ = ["Corrected", "Ran", "attempt_of"]


class Corrected(NamedTuple):
    """That an end was corrected; a step of its job if anything has changed by it."""

    job: JobId
    attempt: int

    def rows(self, org: OrgId, books: Books, outcome: Outcome, at: Instant) -> Iterator[Noted]:
        """What is written; nothing if it was so already, or is refused."""
        if outcome and not isinstance(outcome, Refusal):
            yield step_of(org, self.job, books, "corrected", at, Stand(attempt=self.attempt))
