"""What a leader leaves behind: its audit stream, and the pool at rest (S11, S14).

**The stream.** Whatever a leader's cluster was told, and whatever it decided, goes to the pool's
audit stream, in the transaction that carries it out. A window begins with a snapshot of the cluster
and goes on with its steps; a reader of a window can repeat all of its decisions (`decide_again`). A
leader that made its memory anew, or took over from another, begins a window.

Events have numbers without gaps. A leader says after which one its next follows: if another is
there by then, another leader has written, or this one, without an answer. Then its
memory is not what the stream says, and it is denied like any stale leader.

**At rest.** A pool in which nothing waits or runs need not be led. Its leader says so, and until
when; the next leader may lead it at once.
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
    """What a leader has to write down, and the event after which it goes on."""

    recording: Recording
    after: int  # does not matter where a window begins


def carry_out_audited(
    work: PoolTransaction, epoch: int, decisions: Sequence[Decision], noted: AuditRecord | None
) -> PlanOutcome:
    """Carry out what a leader has decided, and note how it came to that; or nothing of it."""
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
    """Lead no more until then, unless something waits or runs; whether that is so."""
    if epoch != work.epoch or work.is_active:
        return False
    work.rests_until, work.leads_until = until, 0
    return True
