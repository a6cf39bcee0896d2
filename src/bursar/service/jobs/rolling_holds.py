"""Tops up rolling holds at intervals (`core.jobs.rolling_holds` has the rules)."""

import logging
from collections.abc import Callable, Sequence
from typing import Final

from bursar.core.ids import OrgId
from bursar.core.instant import Instant
from bursar.core.jobs.rolling_holds import RollingJob, rest_of, top_up, top_up_command
from bursar.core.money import Micros
from bursar.core.refusal import Refusal
from bursar.failpoints import failpoint
from bursar.service.jobs.job_worker import JobRounds, JobWorker, is_accepted
from bursar.service.ledger.batch import Answer, CommandRequest
from bursar.store.jobs.rows import rolling_jobs

WORKER: Final = "rolling holds"
PAGE_SIZE: Final = 500

_log = logging.getLogger(__name__)


class TopUps(JobRounds):
    """Tops up the holds of all jobs with rolling holds, on a connection and a ledger."""

    def round(self, goes_on: Callable[[], bool] = lambda: True) -> int:
        """Top up the holds that need it; return how many have grown."""
        grown = 0
        after = ("", "")
        while goes_on() and (page := rolling_jobs(self._connection, after, PAGE_SIZE)):
            after = page[-1][0], page[-1][1].job
            now = self._clock(self._connection)
            wanted = [(org, job, amount) for org, job in page if (amount := top_up(job)) > 0]
            if wanted:
                failpoint("rolling_holds.selected")
            grown += self._grow(wanted, now)
        return grown

    def _grow(self, wanted: Sequence[tuple[OrgId, RollingJob, Micros]], now: Instant) -> int:
        """Extend holds by the wanted amounts, or by as much as is available."""
        answers = self._ledger([_ask(*more, now, rest=False) for more in wanted])
        less: list[tuple[OrgId, RollingJob, Micros]] = []
        grown = 0
        for (org, job, _), answer in zip(wanted, answers, strict=True):
            if not isinstance(answer, Answer):
                _log.warning("hold of job %s, org %s: top-up failed: %s", job.job, org, answer)
            elif not isinstance(answer.outcome, Refusal):
                grown += 1
            elif rest := rest_of(job, answer.outcome):
                less.append((org, job, rest))
        reduced = self._ledger([_ask(*more, now, rest=True) for more in less])
        return grown + sum(map(is_accepted, reduced))


def _ask(
    org: OrgId, job: RollingJob, amount: Micros, now: Instant, *, rest: bool
) -> CommandRequest:
    return CommandRequest(org, *top_up_command(job, amount, now, rest=rest))


class RollingHoldWorker(JobWorker):
    """Tops up rolling holds while this process holds the lease."""

    lease_name = WORKER
    rounds_class = TopUps
    default_interval_s = 5.0
