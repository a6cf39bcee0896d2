"""An org's background work for its jobs: rolling holds, arrays and identical jobs.

In the service these are the workers of `service.jobs`; here an org does the same at intervals.
Every command goes through the ledger with its key, so the process may die between any two.
"""

from collections.abc import Iterator
from typing import Final

from bursar.core.dispatch.job_lifecycle import JobState
from bursar.core.ids import HoldId
from bursar.core.instant import MINUTE, Instant
from bursar.core.jobs.arrays import advance, is_due
from bursar.core.jobs.effects import FollowUp
from bursar.core.jobs.result_cache import KEY, DueFollower, RepairGroup, end_follower
from bursar.core.jobs.rolling_holds import RollingJob, rest_of, top_up, top_up_command
from bursar.core.jobs.rows import OrgJob
from bursar.core.ledger.books import require
from bursar.core.ledger.commands import Lapse
from bursar.core.refusal import Refusal
from bursar.sim.faults.org import SimulatedOrg, ask, first_result

STEP_MS: Final = 10_000  # run time that a rolling hold grows by
_ROLLS: Final = frozenset({JobState.RUNNING, JobState.OUT_OF_CREDITS})


def run_upkeep(org: SimulatedOrg, now: Instant) -> Iterator[str]:
    """Do all background work of an org, one transaction at a time; yields what was done."""
    yield from _top_up(org, now)
    yield from _advance_arrays(org, now)
    yield from _look_after_followers(org, now)


def _top_up(org: SimulatedOrg, now: Instant) -> Iterator[str]:
    for job in list(org.jobs.values()):
        if not job.rolling or job.withdrawn or job.state not in _ROLLS:
            continue
        rolling = _rolling_job(org, job)
        amount = top_up(rolling)
        if amount > 0:
            outcome = _ask(org, top_up_command(rolling, amount, now, rest=False), now)
            yield "holds that rolled"
            if isinstance(outcome, Refusal) and (rest := rest_of(rolling, outcome)):
                _ask(org, top_up_command(rolling, rest, now, rest=True), now)
                yield "holds that rolled"


def _rolling_job(org: SimulatedOrg, job: OrgJob) -> RollingJob:
    hold = require(org.books.holds, HoldId(job.id))
    return RollingJob(
        job.id,
        job.state,
        job.gpu_type,
        job.run_ms or 0,
        job.max_cost,
        job.sent,
        hold.used,
        hold.open,
        sum(meter.run_ms for _, meter in hold.meters),
        hold.terms.rates,
        hold.terms.context.milli_gpus,
        STEP_MS,
    )


def _advance_arrays(org: SimulatedOrg, now: Instant) -> Iterator[str]:
    for array in list(org.arrays.values()):
        if is_due(array):
            _ask(org, advance(array), now)
            yield "arrays advanced"


def _look_after_followers(org: SimulatedOrg, now: Instant) -> Iterator[str]:
    followers = [job for job in org.jobs.values() if job.follows]
    for digest in sorted({job.digest for job in followers if job.digest is not None}):
        repair = FollowUp(f"{KEY}/{digest}/{now}", Lapse(most=1), RepairGroup(digest, expire=True))
        _ask(org, repair, now)
        yield "groups looked after"
    for job in followers:
        due = find_due(org, job.id)
        if due is not None:
            _ask(org, end_follower(due, str(now // MINUTE)), now)
            yield "followers ended"


def find_due(org: SimulatedOrg, job_id: str) -> DueFollower | None:
    """A follower that can end: it was cancelled, or an identical job has succeeded."""
    job = next(row for row in org.jobs.values() if row.id == job_id)
    hold = require(org.books.holds, HoldId(job.id))
    if not job.follows or hold.closed_at is not None:
        return None
    alike = [row for row in org.jobs.values() if row.digest == job.digest]
    source = first_result(alike, job)
    if not job.withdrawn and source is None:
        return None
    ppm = job.hit_ppm or 0
    if source is None:
        return DueFollower(job.id, job.withdrawn, ppm, hold.open)
    used = require(org.books.holds, HoldId(source.id)).used
    return DueFollower(job.id, job.withdrawn, ppm, hold.open, source.id, source.exit_code, used)


def _ask(org: SimulatedOrg, command: FollowUp, now: Instant) -> object:
    return ask(org, command.key, command.command, now, command.effect)[0]
