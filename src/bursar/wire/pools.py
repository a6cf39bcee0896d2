"""Pools and nodes as they are asked for and told."""

from collections import Counter
from typing import Annotated, Final, Literal, Self

from pydantic import Field

from bursar.core.dispatch.job_lifecycle import LIVE, JobState
from bursar.core.dispatch.quarantine import is_quarantined, state_of
from bursar.core.dispatch.state import Pool, PoolNode
from bursar.core.instant import MILLISECOND
from bursar.core.scheduling.model.nodes import MILLI, NodeState
from bursar.wire.fields import WireModel

_USED: Final = (NodeState.READY, NodeState.DRAINING)
NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"


class PoolRequest(WireModel):
    """A pool to begin."""

    id: Annotated[str, Field(pattern=NAME, examples=["main"])]


class PoolGpuType(WireModel):
    """What a pool has of one GPU type."""

    gpu_type: str
    gpus: Annotated[int, Field(description="of nodes that can be used")]
    free_milli_gpus: int


class PoolResponse(WireModel):
    """A pool: what it has, and what waits for it."""

    id: str
    nodes: int
    nodes_on_order: Annotated[int, Field(description="that were ordered and have not come yet")]
    types: list[PoolGpuType]
    queued: int
    running: int
    out_of_credits: int

    @classmethod
    def from_core(cls, id: str, pool: Pool) -> Self:
        """Build the response from the core's pool."""
        nodes = [(node, state_of(node, pool.now)) for node in pool.machines.values()]
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


class PoolsResponse(WireModel):
    """All pools."""

    pools: list[PoolResponse]


class NodeResponse(WireModel):
    """A node, and what is taken of it."""

    id: str
    gpu_type: str
    gpus: int
    free_milli_gpus: int
    leases: int
    state: Annotated[NodeState, Field(description="what it can be used for now")]
    operator_state: Annotated[NodeState, Field(description="what an operator has said of it")]
    quarantine_ms_left: Annotated[
        int, Field(description="how long it gets no new jobs because too much went wrong there")
    ]
    wrong_clock: Annotated[bool, Field(description="its clock does not run as the pool's does")]
    last_report_ms_ago: int | None
    region: str
    rack: str
    labels: list[str]

    @classmethod
    def from_core(cls, pool: Pool, machine: PoolNode) -> Self:
        """Build the response from the core's node."""
        node, heard_at = machine.node, machine.reported_at
        left = machine.trouble.until - pool.now if is_quarantined(machine, pool.now) else 0
        return cls(
            id=node.id,
            gpu_type=node.gpu_type,
            gpus=node.gpus,
            free_milli_gpus=_free(pool, machine),
            leases=len(pool.on_node.get(node.id, ())),
            state=state_of(machine, pool.now),
            operator_state=node.state,
            quarantine_ms_left=left // MILLISECOND,
            wrong_clock=machine.wrong_clock,
            last_report_ms_ago=None if heard_at is None else (pool.now - heard_at) // MILLISECOND,
            region=node.region,
            rack=node.rack,
            labels=list(node.labels),
        )


class NodesResponse(WireModel):
    """The nodes of a pool."""

    nodes: list[NodeResponse]


class NodeStateRequest(WireModel):
    """What a node shall be used for."""

    state: Literal["ready", "draining"]
