"""Rolling holds: what is set aside for a job grows while it runs, up to its longest run (M1, M5).

A running job whose hold covers less than a few minutes more gets another quarter of an hour set
aside, or as much as its request says; if the account or a budget has less than that, what it has.
When nothing is to be had, the pool stops the job in time and with a checkpoint, and the job waits
out of credits. Then it is tried again now and then, until there are credits or its hold has come to
its limit. Run time counts, whatever it has cost: on a cheaper type a job may run as long.

Two processes that do this at once send the same command under the same key, and one of them gets
the other's answer. A key is good for a while only: a refused top-up is tried again under another.
"""

from typing import Final, NamedTuple

from bursar.core.dispatch.job_lifecycle import JobState
from bursar.core.ids import HoldId, JobId
from bursar.core.instant import MINUTE, SECOND, Instant
from bursar.core.jobs.effects import FollowUp
from bursar.core.jobs.submission import ExtendJob
from bursar.core.ledger.commands import ExtendHold
from bursar.core.money import Micros, run_ms_for, usage_price
from bursar.core.refusal import Code, Refusal

LOW_MS: Final = 5 * 60_000  # a hold that covers less is topped up
# Nor is it later than this: a stop takes ten seconds, and both a report and the next look may come
# five seconds late.
SOONEST_MS: Final = 25_000
STEP_MS: Final = 15 * 60_000  # run time that is set aside at once, if the request does not say
LEAST_MS: Final = 60_000  # less than this is not worth a start
RETRY_RUNNING: Final = 30 * SECOND  # after which a refused top-up of a running job is tried again
RETRY_WAITING: Final = MINUTE  # and of a job that waits for credits

# The figure of a refusal that says how much there is.
_AVAILABLE: Final = {Code.INSUFFICIENT_CREDITS: "spendable", Code.BUDGET_EXCEEDED: "headroom"}


class RollingJob(NamedTuple):
    """A job whose hold is topped up while it runs, and how far the hold reaches."""

    job: JobId
    state: JobState
    gpu_type: str | None
    run_ms: int
    max_cost: Micros | None
    sent: int  # messages to its pool
    used: Micros
    open: Micros
    ran_ms: int  # in all of its attempts, as far as they were charged
    rates: tuple[tuple[str, Micros], ...]
    milli_gpus: int
    step_ms: int | None = None  # run time that is set aside at once, if the request says so


def top_up(job: RollingJob) -> Micros:
    """What is to be set aside more for a job now; nothing if its hold reaches far enough."""
    rate = _rate(job)
    if rate == 0:
        return 0
    step_ms = job.step_ms or STEP_MS
    low_ms = min(LOW_MS, max(step_ms // 3, SOONEST_MS))
    if job.state is JobState.RUNNING and run_ms_for(rate, job.milli_gpus, job.open) >= low_ms:
        return 0
    most = usage_price(rate, job.milli_gpus, max(job.run_ms - job.ran_ms, 0))
    if job.max_cost is not None:
        most = min(most, job.max_cost - job.used)
    step = usage_price(rate, job.milli_gpus, step_ms)
    return max(min(step, most - job.open), 0)


def _rate(job: RollingJob) -> Micros:
    """The rate it runs at; a job that waits may get the dearest of its types."""
    rates = dict(job.rates)
    if job.state is JobState.RUNNING and job.gpu_type in rates:
        return rates[job.gpu_type]
    return max(rates.values(), default=0)


def rest_of(job: RollingJob, refusal: Refusal) -> Micros:
    """What can be had when all that is wanted cannot; nothing if that is not worth it."""
    if refusal.code not in _AVAILABLE:
        return 0
    available: Micros = refusal.figures[_AVAILABLE[refusal.code]]
    least_ms = min(LEAST_MS, job.step_ms or STEP_MS)
    return available if available >= usage_price(_rate(job), job.milli_gpus, least_ms) else 0


def top_up_command(job: RollingJob, amount: Micros, now: Instant, *, rest: bool) -> FollowUp:
    """The command that lets a hold grow; `rest` if it is for less than was wanted."""
    again = RETRY_RUNNING if job.state is JobState.RUNNING else RETRY_WAITING
    key = f"bursar:roll/{job.job}/{job.sent}/{now // again}{'/rest' if rest else ''}"
    command = ExtendHold(hold=HoldId(job.job), amount=amount)
    return FollowUp(key, command, ExtendJob(job.job, amount, 0))
