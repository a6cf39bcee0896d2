"""The audit stream of a pool, and pools without work (S11, S14).

**The stream.** All inputs of a leader's cluster and all its decisions are written to the pool's
audit stream, in the transaction that carries them out. A window begins with a snapshot of the
cluster and continues with its steps. `decide_again` repeats the decisions of a window. A leader
that has rebuilt its memory, or has taken over from another, begins a new window.

Events are numbered without gaps. A leader states the number of the last event it knows. If the
stream is longer, another leader has written to it, or this leader has and lost the answer. Then its
memory may be wrong, and its decisions are refused like those of any former leader.

**At rest.** A pool without waiting or running jobs needs no leader. Its leader records this, and
until when. Any process may then lead the pool at once.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from bursar.core.dispatch.pool import PlanOutcome, carry_out
from bursar.core.dispatch.state import AuditEvent, PoolTransaction
from bursar.core.instant import Instant
from bursar.core.leases import Denied
from bursar.core.scheduling.decisions import Decision
from bursar.core.scheduling.model.recording import Recording, split_snapshot

SNAPSHOT_PART_MAX: Final = 1_000  # nodes and jobs of a snapshot in one event


class AuditRecord(NamedTuple):
    """What a leader writes to the audit stream, and the number of the event it continues."""

    recording: Recording
    after: int  # ignored at the beginning of a window


def carry_out_audited(
    work: PoolTransaction, epoch: int, decisions: Sequence[Decision], noted: AuditRecord | None
) -> PlanOutcome:
    """Carry out a leader's decisions and record their inputs; all of it or nothing."""
    if noted is None:
        return carry_out(work, epoch, decisions)
    recorded = noted.recording
    if epoch != work.epoch or (recorded.snapshot is None and noted.after != work.audit_events):
        return PlanOutcome((), (), (Denied.EPOCH_STALE,))
    written = carry_out(work, epoch, decisions)
    work.audit_new += _audit_events(epoch, recorded, written.denied)
    return written._replace(audit_events=work.audit_events)


def _audit_events(
    epoch: int, recorded: Recording, denied: tuple[Denied, ...]
) -> Iterator[AuditEvent]:
    if recorded.snapshot is not None:
        parts = split_snapshot(recorded.snapshot, SNAPSHOT_PART_MAX)
        for number, part in enumerate(parts):
            yield AuditEvent(epoch=epoch, record=part, part=number, parts=len(parts))
    *before, last = recorded.steps
    for step in before:
        yield AuditEvent(epoch=epoch, record=step)
    yield AuditEvent(epoch=epoch, record=last, denied=denied)


def let_rest(work: PoolTransaction, epoch: int, until: Instant) -> bool:
    """Stop leading the pool until then, if no job waits or runs; return whether it rests."""
    if epoch != work.epoch or work.is_active:
        return False
    work.rests_until, work.leads_until = until, 0
    return True
