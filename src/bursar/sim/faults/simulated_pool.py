"""A pool of a simulated world: its rows, its clock, its processes and its nodes."""

from collections.abc import Iterable

from bursar.core.dispatch.cluster_sync import ClusterMirror
from bursar.core.dispatch.state import Pool
from bursar.core.ids import NodeId
from bursar.sim.faults.clocks import SimulatedClock
from bursar.sim.faults.node_host import HostedProcess, NodeHost


class PoolProcess:
    """A process of a pool: it leads, or stands by."""

    def __init__(self, name: str, pool: "SimulatedPool") -> None:
        self.name = name
        self.pool = pool
        self.boot = 0
        self.up = False
        self.paused_until = 0
        self.forget()

    def forget(self) -> None:
        """Empty its memory, as a restart does."""
        self.epoch: int | None = None  # None if it does not lead, as far as its memory goes
        self.mirror: ClusterMirror | None = None
        self.deciding = False  # a decision is made and not written yet
        self.changes_read = 0  # of the pool's list of changes

    def __repr__(self) -> str:
        return f"{self.name}#{self.boot}"


class SimulatedPool:
    """A pool: the rows of its database, and what runs for it."""

    def __init__(self, name: str, processes: Iterable[str], clock: SimulatedClock) -> None:
        self.name = name
        self.rows = Pool()
        self.clock = clock
        self.processes = {process: PoolProcess(process, self) for process in processes}
        self.hosts: dict[NodeId, NodeHost] = {}
        self.tasks: list[HostedProcess] = []  # every process that was ever started

    def __repr__(self) -> str:
        return self.name
