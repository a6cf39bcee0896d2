"""Leases and readings: how long a lease lasts, what a reading proves, when a pool reports (M2, M4).

Every report of a node renews its leases; without reports they expire. A lease is a right, usage is
a fact: a report that arrives too late renews nothing, but the run time it proves still counts, up
to the end of the lease. The pool reports proven run time to the org at intervals and at the end of
the attempt (D4).
"""

from enum import StrEnum
from typing import Final

from bursar.core.instant import MILLISECOND, SECOND, Instant
from bursar.core.messages import EndClass
from bursar.core.money import Micros, usage_price_up

LEASE_TTL: Final = 20 * SECOND  # how long a lease lasts without being renewed
LEASE_MARGIN: Final = (
    10 * SECOND
)  # how long its slots rest after that: workers' clocks may run slower
REPORT_INTERVAL_MS: Final = 5 * 60 * 1_000  # run time between two reports to the org
REPORTS_PER_HOLD: Final = 100  # or one report per hundredth of the hold


class Denied(StrEnum):
    """Why a pool denies a request."""

    JOB_UNKNOWN = "job_unknown"
    NOT_QUEUED = "not_queued"  # it runs already, is over, or was withdrawn
    HOLD_ENDED = "hold_ended"  # its credits are no longer set aside
    OVER_QUOTA = "over_quota"  # its org's quotas leave the pool too little for it
    NODE_UNKNOWN = "node_unknown"
    SLOT_UNKNOWN = "slot_unknown"
    SLOT_TAKEN = "slot_taken"
    TYPE_NOT_PRICED = "type_not_priced"  # the job does not accept GPUs of this type
    WRONG_SIZE = "wrong_size"  # the slots are not what the job needs
    FENCE_STALE = "fence_stale"  # the lease has ended or run out
    NODE_SILENT = "node_silent"  # not heard of for a while, or its clock is wrong
    NODE_NOT_READY = (
        "node_not_ready"  # nothing shall start there: draining, in quarantine, on order
    )
    NODE_BUSY = "node_busy"  # it cannot have other GPUs while something runs there
    EPOCH_STALE = "epoch_stale"  # another process leads the pool by now


def lease_end(now: Instant, latest: Instant) -> Instant:
    """The end of a lease that is granted or renewed now; never beyond `latest`."""
    return min(now + LEASE_TTL, latest)


def latest_lease_end(hold_until: Instant, started_at: Instant, run_ms_max: int) -> Instant:
    """The latest end of a lease: the end of its hold, or of its longest run (M1)."""
    return min(hold_until, started_at + run_ms_max * MILLISECOND)


def provable_ms(leased_at: Instant, until: Instant) -> int:
    """The most run time that a lease can prove by `until`: longer readings are clamped (M2)."""
    return (until - leased_at) // MILLISECOND


def report_interval_ms(rate: Micros, milli_gpus: int, hold: Micros) -> int:
    """The run time between two reports to the org: five minutes, or a hundredth of the hold (D4).

    At least a hundredth of the hold is used when such a report is due.
    """
    part = -(-hold // REPORTS_PER_HOLD)
    in_five_minutes = usage_price_up(rate, milli_gpus, REPORT_INTERVAL_MS)
    if in_five_minutes <= part:
        return REPORT_INTERVAL_MS
    return max(-(-part * REPORT_INTERVAL_MS // in_five_minutes), 1)


def requeues(end_class: EndClass, requeues_left: int, left_ms: int, *, withdrawn: bool) -> bool:
    """Whether a job waits for another attempt after this end (M3)."""
    return not is_job_responsible(end_class) and not withdrawn and requeues_left > 0 and left_ms > 0


def is_job_responsible(end_class: EndClass) -> bool:
    """Whether the job is responsible for an end: then lost work is not refunded (M3)."""
    return end_class in (EndClass.USER, EndClass.LIMIT)
