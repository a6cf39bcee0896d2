"""The nodes of a simulation: they join, fail, are drained, ordered and released."""

from collections.abc import Callable
from typing import NamedTuple

from bursar.core.ids import JobId, NodeId
from bursar.core.instant import Instant
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.jobs import Shape, task_need
from bursar.core.scheduling.model.nodes import Node, NodeState, NodeUsage
from bursar.core.value import replace
from bursar.sim.fleets import Group
from bursar.sim.provisioning import SimulatedProvisioner
from bursar.sim.rng import Chance
from bursar.sim.time_integral import TimeIntegral
from bursar.sim.world import SimulatedWorld

Later = Callable[[Instant, str, str, int], None]  # when, what, to which node, a figure


class Stay(NamedTuple):
    """A node, and the time in which it existed."""

    node: NodeId
    since: Instant
    until: Instant


class SimulatedNodes:
    """All nodes of a run, and their future events."""

    def __init__(
        self, world: SimulatedWorld, cluster: Cluster, chance: Chance, later: Later
    ) -> None:
        self.provisioner = (
            None if world.provision is None else SimulatedProvisioner(world.provision)
        )
        self.capacity = TimeIntegral(world.begins_at)  # GPUs that are there
        self.stays: list[Stay] = []
        self.gpus: dict[NodeId, int] = {}  # of all nodes that were ever there
        self.failures = 0
        self._world = world
        self._cluster = cluster
        self._later = later
        self._groups: dict[NodeId, Group] = {}  # of the fleet
        self._luck: dict[NodeId, Chance] = {}
        self._since: dict[NodeId, Instant] = {}  # nodes that are there, and from when on
        self._drained: dict[NodeId, Instant] = {}  # by an operator, until when
        self._leaving: set[NodeId] = set()  # ordered nodes that go when they are empty
        self._fitting: dict[Shape, bool] = {}
        for node, group in world.fleet.named():
            self._groups[node.id] = group
            self._luck[node.id] = chance.stream(f"node/{node.id}")
            if group.joins:
                self._order(node, group.joins, world.begins_at)
            else:
                self._ready(node, world.begins_at)
        self._plan_outages()
        if world.provision is not None:
            later(world.begins_at + world.provision.every, "advise", "", 0)

    def close(self, now: Instant) -> None:
        """End the simulation: record the nodes that are left."""
        for node, since in sorted(self._since.items()):
            self.stays.append(Stay(node, since, now))
        if self.provisioner is not None:
            for node in sorted(self.provisioner.since):
                self.provisioner.left(node, now)

    def fits(self, shape: Shape) -> bool:
        """Whether a job could run on the whole fleet and all nodes that can be ordered."""
        known = self._fitting.get(shape)
        if known is None:
            known = self._fitting[shape] = any(
                self._tasks(shape, gpu_type) >= shape.tasks for gpu_type in shape.types
            )
        return known

    def _tasks(self, shape: Shape, gpu_type: str) -> int:
        """How many tasks of a job all nodes of a type could run at once."""
        nodes = [(self._cluster.nodes.by_id[node].node, 1) for node in self._groups]
        if self._world.provision is not None:
            nodes += [(offer.node, offer.most) for offer in self._world.provision.offers]
        count = 0
        for node, times in nodes:
            task = task_need(shape, node.kind) if node.gpu_type == gpu_type else None
            count += task.count_in(NodeUsage(node).room) * times if task else 0
        return count

    # ----------------------------------------------------------------------- there or not

    def join(self, name: NodeId, now: Instant) -> None:
        """Add a node that was ordered, or was repaired."""
        self._ready(replace(self._node(name), state=NodeState.READY), now)

    def taken_on(self, name: NodeId) -> list[JobId]:
        """The jobs that have GPUs of a node, or earmarks there."""
        return sorted(self._cluster.nodes.by_id[name].allocations)

    def fail(self, name: NodeId, now: Instant) -> None:
        """A node fails; its jobs have been stopped before."""
        self.failures += 1
        node = self._node(name)
        self._cluster.add_node(replace(node, state=NodeState.DEAD))
        self._gone(node, now)
        self._later(now + self._groups[name].repaired_in, "join", name, 0)

    def _order(self, node: Node, delay: int, now: Instant) -> None:
        ready_at = now + delay
        self._cluster.add_node(replace(node, state=NodeState.ON_ORDER, ready_at=ready_at))
        self._later(ready_at, "join", node.id, 0)

    def _ready(self, node: Node, now: Instant) -> None:
        """Make a node usable, until it fails."""
        drained = self._drained.get(node.id, now) > now
        self._cluster.add_node(replace(node, state=NodeState.DRAINING) if drained else node)
        self.capacity.change(node.gpus, now)
        self._since[node.id], self.gpus[node.id] = now, node.gpus
        group = self._groups.get(node.id)
        if group is None and self.provisioner is not None:
            self.provisioner.since[node.id] = now
        elif group is not None and group.fails_every:
            lasts = int(self._luck[node.id].wait(group.fails_every)) + 1
            self._later(now + lasts, "fail", node.id, 0)

    def _gone(self, node: Node, now: Instant) -> None:
        self.capacity.change(-node.gpus, now)
        self.stays.append(Stay(node.id, self._since.pop(node.id), now))

    def _node(self, name: NodeId) -> Node:
        return self._cluster.nodes.by_id[name].node

    # ----------------------------------------------------------------------- drained by an operator

    def _plan_outages(self) -> None:
        """Plan the drains by an operator."""
        names = sorted(self._groups)
        for outage in self._world.outages:
            of_type = [name for name in names if self._groups[name].gpu_type == outage.gpu_type]
            for name in of_type[: outage.nodes]:
                begins = self._world.begins_at + outage.begins
                self._later(begins, "drain", name, outage.lasts)
                self._later(begins + outage.lasts, "undrain", name, 0)

    def drain(self, name: NodeId, lasts: int, now: Instant) -> None:
        """An operator drains a node for a while."""
        node = self._node(name)
        self._drained[name] = max(self._drained.get(name, 0), now + lasts)
        if node.state is NodeState.READY:
            self._cluster.add_node(replace(node, state=NodeState.DRAINING))

    def undrain(self, name: NodeId, now: Instant) -> None:
        """End a drain, if the node exists and is not drained for another reason."""
        node = self._node(name)
        if self._drained[name] <= now and node.state is NodeState.DRAINING:
            self._cluster.add_node(replace(node, state=NodeState.READY))

    # ----------------------------------------------------------------------- ordered on advice

    def advise(self, now: Instant) -> bool:
        """Get scaling advice and carry it out; return whether anything was done."""
        assert self.provisioner is not None
        assert self._world.provision is not None
        ordered, drained = self.provisioner.look(self._cluster, now)
        for node, delay in ordered:
            self._order(node, delay, now)
        for going in drained:
            self._cluster.add_node(replace(self._node(going), state=NodeState.DRAINING))
            self._leaving.add(going)
        self._later(now + self._world.provision.every, "advise", "", 0)
        return bool(ordered or drained)

    def let_go(self, now: Instant) -> None:
        """Remove ordered nodes that were drained and are empty."""
        for name in sorted(self._leaving):
            machine = self._cluster.nodes.by_id[name]
            if not machine.allocations and self.provisioner is not None:
                self._leaving.remove(name)
                self._gone(machine.node, now)
                self._cluster.remove_node(name)
                self.provisioner.left(name, now)
