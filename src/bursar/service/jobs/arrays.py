"""Advances arrays: adds elements where there is room, and ends arrays (`core.jobs.arrays`).

The relay calls this repeatedly; the process may be killed at any point.
"""

import logging
from collections.abc import Sequence
from typing import Final

from bursar.core.ids import OrgId
from bursar.core.jobs.arrays import advance
from bursar.core.jobs.rows import ArrayProgress
from bursar.service.jobs.ledger_port import RunAsks
from bursar.service.ledger.batch import Answer, CommandRequest
from bursar.store.jobs.arrays import arrays_due
from bursar.store.sql.connection import Connection

PAGE_SIZE: Final = 100

_log = logging.getLogger(__name__)


class Arrays:
    """Advances arrays, on a connection and a ledger."""

    def __init__(self, connection: Connection, ledger: RunAsks) -> None:
        self._connection = connection
        self._ledger = ledger

    def advance(self, org: OrgId | None = None) -> None:
        """Advance the arrays of all orgs, or of one, as far as there is room."""
        after: tuple[OrgId, str] = ("", "")
        while page := arrays_due(self._connection, org, after, PAGE_SIZE):
            if not self._advance(page):  # all were tried; continue with the next page
                after = page[-1][0], page[-1][1].id

    def _advance(self, due: Sequence[tuple[OrgId, ArrayProgress]]) -> bool:
        """Advance these arrays; return whether any of them advanced."""
        got_on = False
        answers = self._ledger([CommandRequest(org, *advance(array)) for org, array in due])
        for (org, array), answer in zip(due, answers, strict=True):
            if isinstance(answer, Answer):
                got_on |= not answer.replayed
            else:
                _log.warning("array %s of %s cannot be advanced: %s", array.id, org, answer)
        return got_on
