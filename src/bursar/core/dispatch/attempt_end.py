"""How jobs wait, stop and end, whether a message, a report or time is the cause.

An attempt may run until the maximum run time of its job is used, its credits are used, or its hold
ends. It is asked to stop one grace period before that. It has ended when its last process has. Then
it is settled, and its job waits for GPUs, waits for credits, or is finished (M3, M5).
"""

from typing import Final

from bursar.core.dispatch.job_lifecycle import END_CLASSES, JobState, next_state
from bursar.core.dispatch.quarantine import record_end
from bursar.core.dispatch.share_usage import record_usage
from bursar.core.dispatch.state import Exit, Lease, LeasePart, PoolJob, PoolTransaction
from bursar.core.instant import MILLISECOND, SECOND, Instant
from bursar.core.leases import is_job_responsible, report_interval_ms, requeues
from bursar.core.messages import Cause, Corrected, Dropped, EndClass, Ended, RanSoFar, Started
from bursar.core.money import Micros, run_ms_for, usage_price
from bursar.core.value import replace

STOP_GRACE: Final = 10 * SECOND  # to make a checkpoint and end, once asked
STOP_GRACE_MS: Final = STOP_GRACE // MILLISECOND
MAKES_ROOM: Final = frozenset({Cause.PREEMPTED, Cause.MADE_ROOM})  # stopped for another job


# How long credits last


def rate_of(job: PoolJob, gpu_type: str) -> Micros:
    """The price of one GPU-hour of a type for a job."""
    return dict(job.request.rates)[gpu_type]


def run_ms_max(job: PoolJob, gpu_type: str) -> int:
    """How long an attempt may run, by the job's remaining time and its credits."""
    rate = rate_of(job, gpu_type)
    if rate == 0:
        return job.remaining_ms
    left = max(job.hold_micros - job.used, 0)
    return min(job.remaining_ms, run_ms_for(rate, job.request.milli_gpus, left))


def report_interval_of(job: PoolJob, gpu_type: str) -> int:
    """The run time between two messages to the org."""
    return report_interval_ms(rate_of(job, gpu_type), job.request.milli_gpus, job.hold_micros)


def affords(job: PoolJob, gpu_type: str) -> bool:
    """Whether the job's time and credits last longer than the stop grace."""
    return run_ms_max(job, gpu_type) > STOP_GRACE_MS


def affords_a_run(job: PoolJob) -> bool:
    """Whether they do on any of its GPU types."""
    return any(affords(job, gpu_type) for gpu_type, _ in job.request.rates)


# From one state to the next


def with_step(job: PoolJob, why: Cause, fence: int | None = None) -> PoolJob:
    """The job after a step, with the fence of its lease if it then has one."""
    return replace(job, state=next_state(job.state, why), why=why, fence=fence, earmark=None)


def job_of(work: PoolTransaction, lease: Lease) -> PoolJob:
    """The job of a lease."""
    job = work.job(lease.key)
    assert job is not None
    return job


def lease_of(work: PoolTransaction, job: PoolJob) -> Lease:
    """The lease of a live job."""
    assert job.fence is not None
    lease = work.lease(job.fence)
    assert lease is not None
    return lease


def with_part(lease: Lease, part: LeasePart) -> Lease:
    """The lease with a new state of its part on one node."""
    node = part.piece.node
    parts = tuple([part if other.piece.node == node else other for other in lease.parts])
    return replace(lease, parts=parts)


def drop_job(work: PoolTransaction, job: PoolJob, why: Cause) -> None:
    """Drop a waiting job and report this to its org: the job will not run."""
    work.put(with_step(job, why))
    work.send(job.key, Dropped(end_class=END_CLASSES[why], why=why))


def request_stop(work: PoolTransaction, lease: Lease, why: Cause) -> None:
    """Request that an attempt stops; its nodes receive this in the answer to a report.

    The first reason stays, except that a cancellation replaces any other.
    """
    if lease.stop_reason is None or why is Cause.CANCELLED:
        work.put(replace(lease, stop_reason=why))
    job = job_of(work, lease)
    if job.state is not JobState.STOPPING:
        work.put(with_step(job, Cause.STOP_REQUESTED, lease.fence))


def report_start(work: PoolTransaction, lease: Lease, job: PoolJob) -> None:
    """Report the start of an attempt to the org; reduce the hold to what it can need."""
    assert lease.started_at is not None
    need = usage_price(rate_of(job, lease.gpu_type), job.request.milli_gpus, job.remaining_ms)
    work.put(replace(job, hold_micros=min(job.hold_micros, job.used + need)))
    work.send(
        lease.key,
        Started(
            attempt=lease.attempt,
            gpu_type=lease.gpu_type,
            started_at=lease.started_at,
            run_ms=job.remaining_ms,
        ),
    )


def report_run(work: PoolTransaction, lease: Lease) -> Lease:
    """Report to the org how long an attempt has run."""
    lease = replace(lease, reported_ms=lease.run_ms)
    work.put(lease)
    work.send(lease.key, RanSoFar(attempt=lease.attempt, run_ms=lease.run_ms))
    return lease


# How attempts end


def check_lease(work: PoolTransaction, lease: Lease) -> None:
    """After new readings: report to the org, request a stop, or end the lease.

    The message about an end includes the last reading, so no separate message is sent for it.
    """
    exits = [part.exit for part in lease.parts]
    if None not in exits:
        _close(work, lease, _why_ended(work, lease))
        return
    if lease.run_ms - lease.reported_ms >= lease.report_interval_ms:
        lease = report_run(work, lease)
    if any(part_exit not in (None, Exit.DONE) for part_exit in exits):
        request_stop(work, lease, _why_ended(work, lease))
    elif _is_at_limit(lease) or work.now >= job_of(work, lease).hold_until - STOP_GRACE:
        request_stop(work, lease, _limit_reached(work, lease))


def _is_at_limit(lease: Lease) -> bool:
    """Whether an attempt has used its run time, except for the stop grace."""
    return lease.run_ms >= lease.run_ms_max - STOP_GRACE_MS


def _limit_reached(work: PoolTransaction, lease: Lease) -> Cause:
    """The limit that an attempt reaches first: its credits, or the time of job and hold."""
    unpaid = lease.run_ms_max < job_of(work, lease).remaining_ms
    return Cause.OUT_OF_CREDITS if unpaid and _is_at_limit(lease) else Cause.TIME_UP


def _why_ended(work: PoolTransaction, lease: Lease) -> Cause:
    """The cause of an attempt's end, from the exits of its processes.

    If a gang lost a node, the cause is the loss, although its other processes then fail. If the
    lease was not renewed because the hold ended, that is no loss.
    """
    exits = {part.exit for part in lease.parts}
    if exits == {Exit.DONE}:
        return Cause.FINISHED
    if lease.stop_reason is Cause.CANCELLED:
        return Cause.CANCELLED
    if Exit.FAILED in exits and Exit.GONE not in exits:
        return Cause.FAILED
    # A stop because another process of the gang ended is no stop request of org or leader.
    stop_reason = None if lease.stop_reason in (Cause.FAILED, Cause.LOST) else lease.stop_reason
    last = max(part.until for part in lease.parts)
    if _is_at_limit(lease) or last >= job_of(work, lease).hold_until:
        return stop_reason or _limit_reached(work, lease)
    return Cause.LOST if Exit.GONE in exits or stop_reason is None else stop_reason


def _close(work: PoolTransaction, lease: Lease, why: Cause) -> None:
    """End a lease after its last process has ended: the job waits again or is finished (M3)."""
    record_end(work, lease, why)
    job = job_of(work, lease)
    record_usage(work, job, lease)
    if lease.started_at is None:
        lease = replace(lease, started_at=lease.leased_at)
        report_start(work, lease, job)
        job = job_of(work, lease)
    lease = replace(lease, ended_at=work.now, reported_ms=lease.run_ms, why=why)
    pays = _pays(lease, END_CLASSES[why])
    kept_ms = _kept_ms(lease, pays=pays)
    # If the job pays for all run time, late readings up to the end of the lease still count.
    last = min(work.now, max(part.until for part in lease.parts))
    reportable_until = last if pays and kept_ms is None else lease.leased_at
    lease = replace(lease, kept_ms=kept_ms, reportable_until=reportable_until)
    price = _price(job, lease, lease.paid_ms)
    job = replace(job, ran_ms=job.ran_ms + lease.paid_ms, used=job.used + price)
    job = _job_after(job, lease, why, work.now)
    work.put(job)
    work.put(lease)
    work.send(
        lease.key,
        Ended(
            attempt=lease.attempt,
            end_class=END_CLASSES[why],
            run_ms=lease.run_ms,
            kept_ms=lease.kept_ms,
            job_finished=job.is_finished,
            why=why,
            exit_code=_exit_code(lease),
            result=lease.parts[0].result,
        ),
    )


def correct_end(work: PoolTransaction, lease: Lease, end_class: EndClass) -> None:
    """Change the end class of an attempt and report to the org what is paid now (M3).

    More is charged only if the job is responsible under the new class: only then has the org
    checked that the charge is possible. The charge is limited to what the hold has left after other
    attempts. No run time of the attempt is reported after this.
    """
    job = job_of(work, lease)
    job = replace(
        job,
        ran_ms=job.ran_ms - lease.paid_ms,
        used=job.used - _price(job, lease, lease.paid_ms),
    )
    kept_ms = _kept_ms(lease, pays=_pays(lease, end_class))
    most = lease.paid_ms
    if is_job_responsible(end_class):
        most = max(most, _affordable_ms(job, lease))
    if most < (lease.run_ms if kept_ms is None else kept_ms):
        kept_ms = most
    lease = replace(lease, corrected=end_class, kept_ms=kept_ms, reportable_until=lease.leased_at)
    price = _price(job, lease, lease.paid_ms)
    work.put(replace(job, ran_ms=job.ran_ms + lease.paid_ms, used=job.used + price))
    work.put(lease)
    work.send(
        lease.key,
        Corrected(
            attempt=lease.attempt,
            end_class=end_class,
            run_ms=lease.run_ms,
            kept_ms=lease.kept_ms,
            job_finished=job.attempt == lease.attempt and job.why in (lease.why, Cause.GIVEN_UP),
        ),
    )


def _affordable_ms(job: PoolJob, lease: Lease) -> int:
    """How much run time of an attempt the unused part of the hold can pay."""
    rate, left = rate_of(job, lease.gpu_type), max(job.hold_micros - job.used, 0)
    return lease.run_ms if rate == 0 else run_ms_for(rate, job.request.milli_gpus, left)


def _price(job: PoolJob, lease: Lease, run_ms: int) -> Micros:
    return usage_price(rate_of(job, lease.gpu_type), job.request.milli_gpus, run_ms)


def _pays(lease: Lease, end_class: EndClass) -> bool:
    """Whether the job pays for lost work (M3).

    It does if it is responsible for the end, or if it stopped for a job of its own org. An attempt
    that succeeded lost nothing, and is paid in full.
    """
    own_room = end_class is EndClass.PREEMPTION and lease.why is Cause.MADE_ROOM
    return is_job_responsible(end_class) or own_room or lease.why is Cause.FINISHED


def _kept_ms(lease: Lease, *, pays: bool) -> int | None:
    """The run time of an attempt that is paid; None if all of it is (M3).

    This is the time up to the last checkpoint, unless the job pays for lost work. Run time after a
    preemption request is not paid (M2), even if the node was lost then.
    """
    kept_ms = lease.run_ms if pays else min(part.saved_ms for part in lease.parts)
    if lease.stop_reason in MAKES_ROOM and lease.why in (lease.stop_reason, Cause.LOST):
        run_ms_at_stops = (
            part.run_ms_at_stop for part in lease.parts if part.run_ms_at_stop is not None
        )
        kept_ms = min((kept_ms, *run_ms_at_stops))
    return kept_ms if kept_ms < lease.run_ms else None


def _exit_code(lease: Lease) -> int | None:
    """The exit code of the first process that failed, else 0; None if unknown."""
    codes = [part.exit_code for part in lease.parts]
    return next((code for code in codes if code), None if None in codes else 0)


def _job_after(job: PoolJob, lease: Lease, why: Cause, now: Instant) -> PoolJob:
    """The job after the end of an attempt: it waits, or is finished."""
    if END_CLASSES[why] in (EndClass.PREEMPTION, EndClass.PLATFORM):
        left_ms = job.remaining_ms - STOP_GRACE_MS
        if not requeues(END_CLASSES[why], job.requeues_left, left_ms, withdrawn=job.withdrawn):
            return with_step(job, Cause.GIVEN_UP)
        job = replace(
            job,
            requeues_left=job.requeues_left - 1,
            preemptions=job.preemptions + (END_CLASSES[why] is EndClass.PREEMPTION),
            stopped_at=now,
            losses=job.losses + 1 if why is Cause.LOST and lease.run_ms < STOP_GRACE_MS else 0,
        )
        return with_step(job, why if affords_a_run(job) else Cause.OUT_OF_CREDITS)
    job = with_step(job, why)
    if job.state is JobState.OUT_OF_CREDITS and affords_a_run(job):
        return with_step(job, Cause.TOPPED_UP)
    return job
