"""The columns of a pool's values, and the statements about them.

Every transaction of a pool first locks the pool's row, so that transactions run one after another.
Then it reads the time, which is stored and never goes back (D5).
"""

from collections.abc import Mapping
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from bursar.core.dispatch.job_lifecycle import JobState
from bursar.core.dispatch.state import (
    NO_TROUBLE,
    ClockSample,
    Exit,
    Lease,
    LeasePart,
    PoolJob,
    PoolNode,
    Trouble,
)
from bursar.core.ids import JobId, NodeId
from bursar.core.instant import Instant
from bursar.core.leases import provable_ms
from bursar.core.messages import Cause, EndClass, Enqueue
from bursar.core.scheduling.model.jobs import Earmark
from bursar.core.scheduling.model.nodes import Node, Piece
from bursar.store.jobs.outbox import message_of, message_text
from bursar.store.sql.arrays import Values
from bursar.store.sql.codec import text_of, value_of
from bursar.store.sql.fragments import array_parameters, lookup, match_keys

Row = tuple[Any, ...]


class PoolTable(NamedTuple):
    """A table of a pool: its key, its constant columns, and those that change; column → type."""

    name: str
    key: Mapping[str, str]
    fixed: Mapping[str, str]
    changing: Mapping[str, str]

    @property
    def columns(self) -> dict[str, str]:
        """All columns except the pool's id, in the order of the values."""
        return {**self.key, **self.fixed, **self.changing}


def _columns(text: str) -> Mapping[str, str]:
    """`"a b: text, c: bigint"` as column → type."""
    columns: dict[str, str] = {}
    for part in filter(None, text.split(", ")):
        names, _, kind = part.partition(": ")
        columns.update(dict.fromkeys(names.split(), kind))
    return MappingProxyType(columns)


NODES: Final = PoolTable(
    "nodes",
    _columns("node_id: text"),
    _columns(""),
    _columns(
        "body trouble: json, boot n reported_at: bigint, clock_sample: bigint[], "
        "wrong_clock: boolean"
    ),
)
HEARD: Final = PoolTable(
    "nodes",
    NODES.key,
    _columns(""),
    _columns("boot n reported_at: bigint, clock_sample: bigint[], wrong_clock: boolean"),
)
QUEUE: Final = PoolTable(
    "queue",
    _columns("org_id job_id: text"),
    _columns("body: json, queued_at: bigint"),
    _columns(
        "state why: text, received sent hold_micros hold_until requeues_left attempt: bigint, "
        "fence ran_ms used: bigint, withdrawn: boolean, preemptions stopped_at losses: bigint, "
        "earmark: json"
    ),
)
LEASES: Final = PoolTable(
    "leases",
    _columns("fence: bigint"),
    _columns("org_id job_id: text, attempt: bigint, gpu_type: text, leased_at: bigint"),
    _columns(
        "run_ms_max report_interval_ms started_at reported_ms: bigint, "
        "clamped: boolean, stop_reason: text, "
        "ended_at reportable_until: bigint, why: text, kept_ms: bigint, corrected: text"
    ),
)
PARTS: Final = PoolTable(
    "lease_parts",
    _columns("fence: bigint, node_id: text"),
    _columns(
        "place: integer, gpus: integer[], slots: integer, cpu_milli ram_mib: bigint, "
        "leased_at: bigint"
    ),
    _columns(
        "until run_ms saved_ms run_ms_at_stop: bigint, exit: text, exit_code: integer, result: text"
    ),
)
TABLES: Final = (NODES, QUEUE, LEASES, PARTS)
_AS_TEXT: Final = ("json", "bigint[]", "integer[]")  # arrays of arrays would be flattened


def _unnest(columns: Mapping[str, str]) -> str:
    kinds = {name: "text" if kind in _AS_TEXT else kind for name, kind in columns.items()}
    return f"unnest({array_parameters(kinds)}) as u({', '.join(columns)})"


def _as(name: str, kind: str) -> str:
    return f"u.{name}::{kind}" if kind in _AS_TEXT else f"u.{name}"


def _insert(table: PoolTable) -> str:
    columns = {"pool_id": "text", **table.columns}
    values = ", ".join(_as(name, kind) for name, kind in columns.items())
    return f"""
        insert into {table.name} ({", ".join(columns)})
        select {values} from {_unnest(columns)}
    """


def _update(table: PoolTable) -> str:
    changes = ", ".join(f"{name} = {_as(name, kind)}" for name, kind in table.changing.items())
    return f"""
        update {table.name} t set {changes}
          from {_unnest({"pool_id": "text", **table.key, **table.changing})}
         where {match_keys("pool_id", *table.key)}
    """


def selected(table: PoolTable) -> str:
    """The columns of a query, in the form that the `…_of` functions read."""
    return ", ".join(
        f"t.{name}::text" if kind == "json" else f"t.{name}" for name, kind in table.columns.items()
    )


INSERTS: Final = MappingProxyType({table.name: _insert(table) for table in TABLES})
UPDATES: Final = MappingProxyType({table.name: _update(table) for table in TABLES})
UPDATE_HEARD: Final = _update(HEARD)  # of nodes that are described as before
# A lease is asked for with all its parts, by its fence alone.
BY_KEY: Final = MappingProxyType(
    {
        table.name: f"""
            select {selected(table)}
              from {lookup({"pool_id": "text", **key}, table.name)}
        """
        for table, key in (
            (NODES, NODES.key),
            (QUEUE, QUEUE.key),
            (LEASES, LEASES.key),
            (PARTS, LEASES.key),
        )
    }
)


def _text(text: str | None) -> str | None:
    return None if text is None else str(text)


# Nodes


def heard_values(machine: PoolNode) -> Values:
    """The columns of a node that its reports change."""
    clock_sample = (
        None
        if machine.clock_sample is None
        else "{" + ",".join(map(str, machine.clock_sample)) + "}"
    )
    return (
        machine.id,
        machine.boot,
        machine.n,
        machine.reported_at,
        clock_sample,
        machine.wrong_clock,
    )


def node_values(machine: PoolNode) -> Values:
    """All columns of a node."""
    name, *heard = heard_values(machine)
    trouble = None if machine.trouble == NO_TROUBLE else text_of(machine.trouble)
    return name, text_of(machine.node), trouble, *heard


def machine_of(row: Row) -> PoolNode:
    """The node from a row."""
    _, body, trouble, boot, n, reported_at, clock_sample, wrong_clock = row
    return PoolNode(
        node=value_of(Node, body),
        boot=boot,
        n=n,
        reported_at=reported_at,
        clock_sample=None if clock_sample is None else ClockSample(*clock_sample),
        wrong_clock=wrong_clock,
        trouble=NO_TROUBLE if trouble is None else value_of(Trouble, trouble),
    )


# Jobs


def job_values(job: PoolJob) -> Values:
    """The columns of a job that change."""
    return (
        *(job.state.value, _text(job.why), job.received, job.sent, job.hold_micros),
        *(job.hold_until, job.requeues_left, job.attempt, job.fence, job.ran_ms, job.used),
        *(job.withdrawn, job.preemptions, job.stopped_at, job.losses),
        None if job.earmark is None else text_of(job.earmark),
    )


def new_job_values(job: PoolJob) -> Values:
    """All columns of a job."""
    return job.org, job.job, message_text(job.request), job.queued_at, *job_values(job)


def job_of(row: Row) -> PoolJob:
    """The job from a row."""
    org, job, body, queued_at, state, why, received, sent, micros, until, *rest = row
    requeues, attempt, fence, ran_ms, used, withdrawn, preemptions, stopped_at, *last = rest
    losses, earmark = last
    ask = message_of(body)
    assert isinstance(ask, Enqueue)
    return PoolJob(
        org=org,
        job=JobId(job),
        request=ask,
        hold_micros=micros,
        hold_until=until,
        requeues_left=requeues,
        queued_at=queued_at,
        state=JobState(state),
        why=None if why is None else Cause(why),
        received=received,
        sent=sent,
        attempt=attempt,
        fence=fence,
        ran_ms=ran_ms,
        used=used,
        withdrawn=withdrawn,
        preemptions=preemptions,
        stopped_at=stopped_at,
        losses=losses,
        earmark=None if earmark is None else value_of(Earmark, earmark),
    )


# Leases


_CHANGING: Final = attrgetter(*LEASES.changing)  # columns and fields have the same names


def lease_values(lease: Lease) -> Values:
    """The columns of a lease that change, without its parts."""
    return (
        *(
            lease.run_ms_max,
            lease.report_interval_ms,
            lease.started_at,
            lease.reported_ms,
            lease.clamped,
        ),
        *(
            _text(lease.stop_reason),
            lease.ended_at,
            lease.reportable_until,
            _text(lease.why),
            lease.kept_ms,
        ),
        _text(lease.corrected),
    )


def lease_differs(old: Lease, new: Lease) -> bool:
    """Whether a lease has changed, except for its parts."""
    return bool(_CHANGING(old) != _CHANGING(new))


def new_lease_values(lease: Lease) -> Values:
    """All columns of a lease, without its parts."""
    fixed = lease.org, lease.job, lease.attempt, lease.gpu_type, lease.leased_at
    return lease.fence, *fixed, *lease_values(lease)


def part_values(lease: Lease, part: LeasePart) -> Values:
    """The columns of a part that change. Run time is the lease's, limited by the part's end.

    So the largest run time of the parts is that of the lease, which one of them has proven.
    """
    run_ms = min(lease.run_ms, provable_ms(lease.leased_at, part.until))
    exited = _text(part.exit), part.exit_code, part.result
    return part.until, run_ms, part.saved_ms, part.run_ms_at_stop, *exited


def new_part_values(lease: Lease, place: int) -> Values:
    """All columns of a part."""
    part = lease.parts[place]
    piece = part.piece
    gpus = "{" + ",".join(map(str, piece.gpus)) + "}"
    size = gpus, piece.slots, piece.cpu_milli, piece.ram_mib, lease.leased_at
    return lease.fence, piece.node, place, *size, *part_values(lease, part)


def part_of(row: Row) -> tuple[LeasePart, int]:
    """The part from a row, and the proven run time."""
    _, node, _, gpus, slots, cpu_milli, ram_mib, _, until, run_ms, saved_ms, *rest = row
    run_ms_at_stop, exited, exit_code, result = rest
    return LeasePart(
        piece=Piece(NodeId(node), tuple(gpus), slots, cpu_milli, ram_mib),
        until=until,
        saved_ms=saved_ms,
        run_ms_at_stop=run_ms_at_stop,
        exit=None if exited is None else Exit(exited),
        exit_code=exit_code,
        result=result,
    ), run_ms


def lease_of(row: Row, parts: list[Row]) -> Lease:
    """The lease from a row, with its parts in order."""
    fence, org, job, attempt, gpu_type, leased_at, most, every, started_at, reported_ms, *rest = row
    clamped, stop, ended_at, reportable_until, why, kept_ms, corrected = rest
    parts_and_run_ms = [part_of(part) for part in parts]
    return Lease(
        fence=fence,
        org=org,
        job=JobId(job),
        attempt=attempt,
        gpu_type=gpu_type,
        leased_at=leased_at,
        parts=tuple(part for part, _ in parts_and_run_ms),
        run_ms_max=most,
        report_interval_ms=every,
        started_at=started_at,
        run_ms=max(run_ms for _, run_ms in parts_and_run_ms),
        reported_ms=reported_ms,
        clamped=clamped,
        stop_reason=None if stop is None else Cause(stop),
        ended_at=ended_at,
        reportable_until=reportable_until,
        why=None if why is None else Cause(why),
        kept_ms=kept_ms,
        corrected=None if corrected is None else EndClass(corrected),
    )


class PoolRow(NamedTuple):
    """A pool's own row."""

    now: Instant
    fence: int
    version: int
    epoch: int
    leader: str
    leads_until: Instant
    audit_events: int
    digest: str
    leader_due_at: Instant
