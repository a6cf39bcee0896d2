"""Rolling holds: what is set aside for a job grows while it runs, up to its longest run (M1, M5).

A job that runs, and whose hold covers less than a few minutes more, gets another quarter of an hour
set aside, or as much as its request says; if the account or a budget has less than that, what it
has. When nothing is to be had the job is stopped by its pool, in time and with a checkpoint, and
waits out of credits; then it is tried again now and then, until there are credits or its hold has
come to its limit. Run time counts, whatever it has cost: on a cheaper type it may run as long.

Two processes that do this at once ask for the same under the same key, and one of them gets the
other's answer. A key is good for a while only: what was refused once is asked again under another.
"""

import json
import logging
from collections.abc import Callable, Sequence
from typing import Final

from bursar.core.ids import HoldId
from bursar.core.instant import MINUTE, SECOND, Instant
from bursar.core.ledger.commands import ExtendHold
from bursar.core.money import Micros, run_ms_for, usage_price
from bursar.core.refusal import Code, Refusal
from bursar.failpoints import failpoint
from bursar.service.jobs.ledger_port import Asked
from bursar.service.jobs.submission import Extended
from bursar.service.ledger.batch import Answer, Ask
from bursar.service.ledger.clock import GuardedClock
from bursar.service.workers.worker import LeasedWorker
from bursar.store.jobs.rows import Rolling, rolling_jobs
from bursar.store.sql.connection import Connection

DUTY: Final = "rolling holds"
LOW_MS: Final = 5 * 60_000  # a hold that covers less is topped up
# Nor is it later than this: a stop takes ten seconds, and both a report and the next look may come
# five seconds late.
SOONEST_MS: Final = 25_000
STEP_MS: Final = 15 * 60_000  # run time that is set aside at once, if the request does not say
LEAST_MS: Final = 60_000  # less than this is not worth a start
AGAIN: Final = 30 * SECOND  # after which a running job is tried again
AGAIN_WAITING: Final = MINUTE  # and one that waits for credits
PAGE: Final = 500

# Where a refusal says how much there is.
_LEFT: Final = {Code.INSUFFICIENT_CREDITS: "spendable", Code.BUDGET_EXCEEDED: "headroom"}

_log = logging.getLogger(__name__)


def top_up(job: Rolling) -> Micros:
    """What is to be set aside more for a job now; nothing if its hold reaches far enough."""
    rate = _rate(job)
    if rate == 0:
        return 0
    step_ms = job.step_ms or STEP_MS
    low_ms = min(LOW_MS, max(step_ms // 3, SOONEST_MS))
    if job.state == "running" and run_ms_for(rate, job.milli_gpus, job.open) >= low_ms:
        return 0
    most = usage_price(rate, job.milli_gpus, max(job.run_ms - job.ran_ms, 0))
    if job.max_cost is not None:
        most = min(most, job.max_cost - job.used)
    step = usage_price(rate, job.milli_gpus, step_ms)
    return max(min(step, most - job.open), 0)


def _rate(job: Rolling) -> Micros:
    """The rate it runs at; one that waits may get the dearest of its types."""
    rates: dict[str, Micros] = dict(json.loads(job.rates))
    if job.state == "running" and job.gpu_type in rates:
        return rates[job.gpu_type]
    return max(rates.values(), default=0)


def _rest(job: Rolling, refusal: Refusal) -> Micros:
    """What can be had when all that is wanted cannot; nothing if that is not worth it."""
    if refusal.code not in _LEFT:
        return 0
    left: Micros = refusal.figures[_LEFT[refusal.code]]
    least_ms = min(LEAST_MS, job.step_ms or STEP_MS)
    return left if left >= usage_price(_rate(job), job.milli_gpus, least_ms) else 0


class TopUps:
    """Walks over all jobs with rolling holds, on a connection and a ledger."""

    def __init__(
        self, connection: Connection, ledger: Asked, clock: Callable[[Connection], Instant]
    ) -> None:
        self._connection = connection
        self._ledger = ledger
        self._clock = clock

    def round(self, goes_on: Callable[[], bool] = lambda: True) -> int:
        """Top up whoever needs it; how many holds have grown."""
        grown = 0
        after = ("", "")
        while goes_on() and (page := rolling_jobs(self._connection, after, PAGE)):
            after = page[-1].org, page[-1].job
            now = self._clock(self._connection)
            wanted = [(job, amount) for job in page if (amount := top_up(job)) > 0]
            if wanted:
                failpoint("rolling.looked")
            grown += self._grown(wanted, now)
        return grown

    def _grown(self, wanted: Sequence[tuple[Rolling, Micros]], now: Instant) -> int:
        """Ask for more; for what is left of it where there is not so much."""
        answers = self._ledger([_ask(job, amount, now, "") for job, amount in wanted])
        less: list[tuple[Rolling, Micros]] = []
        grown = 0
        for (job, _), answer in zip(wanted, answers, strict=True):
            if not isinstance(answer, Answer):
                _log.warning("%s of %s could not be topped up: %s", job.job, job.org, answer)
            elif not isinstance(answer.outcome, Refusal):
                grown += 1
            elif rest := _rest(job, answer.outcome):
                less.append((job, rest))
        again = self._ledger([_ask(job, amount, now, "/rest") for job, amount in less])
        return grown + sum(
            isinstance(one, Answer) and not isinstance(one.outcome, Refusal) for one in again
        )


def _ask(job: Rolling, amount: Micros, now: Instant, what: str) -> Ask:
    """A hold that grows, and its pool that is told."""
    again = AGAIN if job.state == "running" else AGAIN_WAITING
    key = f"bursar:roll/{job.job}/{job.sent}/{now // again}{what}"
    command = ExtendHold(hold=HoldId(job.job), amount=amount)
    return Ask(job.org, key, command, Extended(job.job, amount, 0))


class RollingHolds(LeasedWorker):
    """Tops up again and again, while no other process does."""

    def __init__(
        self,
        connect: Callable[[], Connection],
        ledger: Asked,
        *,
        interval_s: float = 5.0,
        term_s: float = 15.0,
        clock: Callable[[Connection], Instant] | None = None,
    ) -> None:
        clock = clock or GuardedClock()
        super().__init__(
            DUTY,
            connect,
            lambda connection: TopUps(connection, ledger, clock).round,
            interval_s=interval_s,
            term_s=term_s,
            clock=clock,
        )
