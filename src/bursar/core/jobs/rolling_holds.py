"""Rolling holds: the hold of a job grows while it runs, up to its maximum run time (M1, M5).

If the hold of a running job covers only a few more minutes, it is extended by 15 minutes, or by the
step in the request. If the account or a budget has less than that, it is extended by what is left.
If nothing is left, the pool stops the job in time for a checkpoint, and the job is out of credits.
The top-up is then retried until there are credits or the hold expires. The limit is the run time,
not its cost: on a cheaper GPU type a job may still run as long.

Two processes that do this at once send the same command with the same key, so only one takes
effect. The key changes with time, so that a refused top-up is retried with another key.
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
# The least for short steps: a stop takes ten seconds, and both a report and the next poll may be
# five seconds late.
SOONEST_MS: Final = 25_000
STEP_MS: Final = 15 * 60_000  # run time that a top-up pays for, unless the request states it
LEAST_MS: Final = 60_000  # less than this is not worth a start
RETRY_RUNNING: Final = 30 * SECOND  # after which a refused top-up of a running job is tried again
RETRY_WAITING: Final = MINUTE  # and of a job that waits for credits

# The figure of a refusal that says how much there is.
_AVAILABLE: Final = {Code.INSUFFICIENT_CREDITS: "spendable", Code.BUDGET_EXCEEDED: "headroom"}


class RollingJob(NamedTuple):
    """A job with a rolling hold, and the figures of that hold."""

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
    step_ms: int | None = None  # run time that a top-up pays for, if the request states it


def top_up(job: RollingJob) -> Micros:
    """The amount to add to a job's hold now; 0 if the hold covers enough."""
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
    """The rate at which the job runs; for a waiting job, the highest rate of its types."""
    rates = dict(job.rates)
    if job.state is JobState.RUNNING and job.gpu_type in rates:
        return rates[job.gpu_type]
    return max(rates.values(), default=0)


def rest_of(job: RollingJob, refusal: Refusal) -> Micros:
    """The amount that is available if the whole step is not; 0 if it is too little."""
    if refusal.code not in _AVAILABLE:
        return 0
    available: Micros = refusal.figures[_AVAILABLE[refusal.code]]
    least_ms = min(LEAST_MS, job.step_ms or STEP_MS)
    return available if available >= usage_price(_rate(job), job.milli_gpus, least_ms) else 0


def top_up_command(job: RollingJob, amount: Micros, now: Instant, *, rest: bool) -> FollowUp:
    """The command that extends the hold; `rest` if the amount is less than the whole step."""
    again = RETRY_RUNNING if job.state is JobState.RUNNING else RETRY_WAITING
    key = f"bursar:roll/{job.job}/{job.sent}/{now // again}{'/rest' if rest else ''}"
    command = ExtendHold(hold=HoldId(job.job), amount=amount)
    return FollowUp(key, command, ExtendJob(job.job, amount, 0))
