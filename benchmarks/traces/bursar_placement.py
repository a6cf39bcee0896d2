"""Bursar's own placement on experiment A: the same code that places jobs of the service."""

from collections.abc import Sequence
from typing import Final

from benchmarks.traces.packers import Curve, Host, Pod, count_capacity, find_typical
from bursar.core.ids import JobId, NodeId
from bursar.core.instant import HOUR, NEVER, Instant
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.jobs import Job, RunningJob, Shape
from bursar.core.scheduling.model.nodes import MILLI, Node
from bursar.core.scheduling.model.policy import PoolPolicy
from bursar.core.scheduling.model.snapshot import PoolSnapshot
from bursar.core.scheduling.placement.backfill import NodeClaims
from bursar.core.scheduling.placement.search import choose_pieces, find_placement

T0: Final[Instant] = 500_000 * HOUR
OWNER: Final = ("paid", "org", "account", "user")


class PlacementRun:
    """An empty cluster whose nodes have numbers in the order of the run."""

    def __init__(self, pods: Sequence[Pod], hosts: Sequence[Host]) -> None:
        self._models = tuple(sorted({host.model for host in hosts}))
        typical = tuple((self._make_shape(pod), times) for pod, times in find_typical(pods))
        nodes = tuple(_make_node(place, host) for place, host in enumerate(hosts))
        snapshot = PoolSnapshot(at=T0, policy=PoolPolicy(), nodes=nodes, typical=typical)
        self._cluster = Cluster.from_snapshot(snapshot)
        self._claims = NodeClaims(self._cluster)
        self._placed = 0

    def place(self, pod: Pod) -> bool:
        """Start a pod where the planner would; whether there is such a place."""
        shape = self._make_shape(pod)
        spot = find_placement(self._cluster, self._claims, shape, shape.types, NEVER)
        if spot is None:
            return False
        job = Job(
            id=JobId(f"pod{self._placed:06}"), shape=shape, path=OWNER, prices=(), run_max=HOUR,
            queued_at=T0,
        )  # fmt: skip
        taken = choose_pieces(self._cluster, shape, spot)
        self._cluster.add_running(
            RunningJob(job=job, gpu_type=spot.gpu_type, pieces=taken, started_at=T0, saved_at=T0)
        )
        self._placed += 1
        return True

    def _make_shape(self, pod: Pod) -> Shape:
        known = tuple(model for model in self._models if model in pod.models)
        return Shape(
            types=known or pod.models or self._models, types_equal=True,
            gpus=0 if pod.is_shared else pod.gpus, milli=pod.milli if pod.is_shared else 0,
            cpu_milli=pod.cpu_milli, ram_mib=pod.ram_mib,
        )  # fmt: skip


def _make_node(place: int, host: Host) -> Node:
    return Node(
        id=NodeId(f"n{place:05}"), gpu_type=host.model, gpus=len(host.free), slots=MILLI,
        cpu_milli=host.cpu_milli, ram_mib=host.ram_mib,
    )  # fmt: skip


def pack_with_bursar(pods: Sequence[Pod], coming: Sequence[Pod], hosts: Sequence[Host]) -> Curve:
    """One run; `pods` is the list from which the typical shapes are known."""
    placing = PlacementRun(pods, hosts)
    curve = Curve(count_capacity(hosts))
    for pod in coming:
        curve.count(pod, placed=placing.place(pod))
    return curve
