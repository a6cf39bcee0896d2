"""Requests and responses of pools and nodes."""

from collections import Counter
from typing import Annotated, Final, Literal, Self

from pydantic import Field

from bursar.core.dispatch.job_lifecycle import LIVE, JobState
from bursar.core.dispatch.quarantine import is_quarantined, state_of
from bursar.core.dispatch.state import Pool, PoolNode
from bursar.core.instant import MILLISECOND, Instant
from bursar.core.scheduling.model.nodes import MILLI, NodeState
from bursar.wire.fields import WireModel

_USED: Final = (NodeState.READY, NodeState.DRAINING)
NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"


class PoolRequest(WireModel):
    """A pool to create."""

    id: Annotated[str, Field(pattern=NAME, examples=["main"])]


class PoolGpuType(WireModel):
    """The GPUs of one type in a pool."""

    gpu_type: str
    gpus: Annotated[int, Field(description="GPUs of usable nodes.")]
    free_milli_gpus: int


class PoolResponse(WireModel):
    """A pool: its GPUs and its queue."""

    id: str
    nodes: int
    nodes_on_order: Annotated[int, Field(description="Ordered nodes that have not reported yet.")]
    types: list[PoolGpuType]
    queued: int
    running: int
    out_of_credits: int

    @classmethod
    def from_core(cls, id: str, pool: Pool, now: Instant) -> Self:
        """Build the response from the core's pool, with the states of its nodes at a time."""
        nodes = [(node, state_of(node, now)) for node in pool.machines.values()]
        usable = [machine for machine, state in nodes if state in _USED]
        gpus: Counter[str] = Counter()
        free: Counter[str] = Counter()
        for machine in usable:
            gpus[machine.node.gpu_type] += machine.node.gpus
            free[machine.node.gpu_type] += _free(pool, machine)
        states = Counter(job.state for job in pool.jobs.values())
        return cls(
            id=id,
            nodes=len(usable),
            nodes_on_order=sum(state is NodeState.ON_ORDER for _, state in nodes),
            types=[
                PoolGpuType(gpu_type=name, gpus=gpus[name], free_milli_gpus=free[name])
                for name in sorted(gpus)
            ],
            queued=states[JobState.QUEUED],
            running=sum(states[state] for state in LIVE),
            out_of_credits=states[JobState.OUT_OF_CREDITS],
        )


def _free(pool: Pool, machine: PoolNode) -> int:
    """What is free of a node, in thousandths of a GPU."""
    node = machine.node
    taken = 0
    for fence in pool.on_node.get(node.id, ()):
        part = pool.leases[fence].part_on(node.id)
        assert part is not None
        taken += len(part.piece.gpus) * part.piece.slots
    return (node.gpus * node.slots - taken) * MILLI // node.slots


class NodeResponse(WireModel):
    """A node and its free capacity."""

    id: str
    gpu_type: str
    gpus: int
    free_milli_gpus: int
    leases: int
    state: Annotated[NodeState, Field(description="The current state of the node.")]
    operator_state: Annotated[NodeState, Field(description="The state that an operator has set.")]
    quarantine_ms_left: Annotated[
        int, Field(description="How long it gets no new jobs after too many failures.")
    ]
    wrong_clock: Annotated[
        bool, Field(description="Whether its clock runs at another rate than the pool's.")
    ]
    last_report_ms_ago: int | None
    region: str
    rack: str
    labels: list[str]

    @classmethod
    def from_core(cls, pool: Pool, machine: PoolNode, now: Instant) -> Self:
        """Build the response from the core's node, with its state at a time."""
        node, heard_at = machine.node, machine.reported_at
        left = machine.trouble.until - now if is_quarantined(machine, now) else 0
        return cls(
            id=node.id,
            gpu_type=node.gpu_type,
            gpus=node.gpus,
            free_milli_gpus=_free(pool, machine),
            leases=len(pool.on_node.get(node.id, ())),
            state=state_of(machine, now),
            operator_state=node.state,
            quarantine_ms_left=left // MILLISECOND,
            wrong_clock=machine.wrong_clock,
            last_report_ms_ago=None if heard_at is None else (now - heard_at) // MILLISECOND,
            region=node.region,
            rack=node.rack,
            labels=list(node.labels),
        )


class NodeStateRequest(WireModel):
    """The state to set on a node."""

    state: Literal["ready", "draining"]
