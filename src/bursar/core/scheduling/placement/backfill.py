"""Planned starts: when a blocked job can start at the latest, and how other jobs are kept from
delaying it.

Every running job ends by a bound (`run_max`). So a blocked job has an earliest certain start: going
through the ends in order, the first at which enough is free together. It claims its nodes from then
on. A job that comes later in turn may start now if, on every node it takes, all claims can still be
met when they begin. So it never delays a planned start.
"""

from collections.abc import Iterator
from heapq import heappop, heappush, merge
from typing import NamedTuple

from bursar.core.ids import JobId, NodeId
from bursar.core.instant import NEVER, Instant
from bursar.core.scheduling.decisions import PlannedStart
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.jobs import Job, Shape, task_need
from bursar.core.scheduling.model.nodes import JobIds, NodeKind, NodeRoom, NodeUsage, TaskNeed
from bursar.core.scheduling.placement.search import pack_tasks

# A node, and how many tasks fit there from then on; None if they must be counted.
_Change = tuple[Instant, NodeId, int | None]


class NodeClaim(NamedTuple):
    """Tasks that will run on a node from one instant to another."""

    at: Instant
    until: Instant
    task: TaskNeed
    tasks: int
    job: JobId


class NodeClaims:
    """The claims of all planned starts of a round, by node."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.by_node: dict[NodeId, list[NodeClaim]] = {}

    def add(self, job: Job, planned: PlannedStart) -> None:
        """Claim the nodes of a planned start."""
        until = min(planned.at + job.run_max, NEVER)
        for node, tasks in planned.nodes:
            task = task_need(job.shape, self._cluster.nodes.by_id[node].kind)
            assert task is not None
            claim = NodeClaim(planned.at, until, task, tasks, job.id)
            self.by_node.setdefault(node, []).append(claim)

    def copy(self) -> "NodeClaims":
        """A copy, to which trial claims can be added."""
        copy = NodeClaims(self._cluster)
        copy.by_node = {node: list(claims) for node, claims in self.by_node.items()}
        return copy

    def until(self, at: Instant) -> "NodeClaims":
        """The claims that begin by an instant."""
        early = NodeClaims(self._cluster)
        for node, claims in self.by_node.items():
            early.by_node[node] = [claim for claim in claims if claim.at <= at]
        return early

    def release(self, job: Job) -> None:
        """Give up the claims of a job's promised start, if it has one."""
        for node, _ in job.promised_on:
            remaining = [claim for claim in self.by_node.get(node, ()) if claim.job != job.id]
            if remaining:
                self.by_node[node] = remaining
            else:
                self.by_node.pop(node, None)

    def is_available(self, job: Job, planned: PlannedStart) -> bool:
        """Whether a planned start can still be claimed."""
        until = planned.at + job.run_max
        for node, tasks in planned.nodes:
            usage = self._cluster.nodes.by_id.get(node)
            task = task_need(job.shape, usage.kind) if usage is not None else None
            if usage is None or task is None or not usage.node.is_usable_at(planned.at):
                return False
            if self.count_tasks(usage, task, planned.at, until) < tasks:
                return False
        return bool(planned.nodes)

    def count_tasks(
        self,
        usage: NodeUsage,
        task: TaskNeed,
        at: Instant,
        until: Instant,
        without: JobIds = frozenset(),
    ) -> int:
        """How many tasks fit on a node from one instant to another, with all claims met.

        The jobs in `without` count as gone.
        """
        fits = task.count_in(self._room(usage, at, without))
        for claim in self.by_node.get(usage.node.id, ()):
            if fits and at < claim.at < until:
                fits = min(fits, task.count_in(self._room(usage, claim.at, without)))
        return fits

    def _room(self, usage: NodeUsage, at: Instant, without: JobIds) -> NodeRoom:
        """The room that is free and not claimed at an instant."""
        now = at <= self._cluster.now and not without
        room = usage.room if now else usage.room_at(at, without)
        for claim in self.by_node.get(usage.node.id, ()):
            if claim.at <= at < claim.until:
                room = claim.task.room_after_claims(room, claim.tasks)
        return room


def find_planned_start(
    cluster: Cluster, claims: NodeClaims, job: Job, types: tuple[str, ...]
) -> PlannedStart | None:
    """The first instant at which a job certainly fits, and where; None if never."""
    candidates = [
        planned
        for gpu_type in types
        if (planned := _PlannedStartSearch(cluster, claims, job, gpu_type).find_first()) is not None
    ]
    return min(candidates, key=lambda planned: planned.at, default=None)


class _PlannedStartSearch:
    """The search for the earliest certain start on GPUs of one type."""

    def __init__(self, cluster: Cluster, claims: NodeClaims, job: Job, gpu_type: str) -> None:
        self._cluster = cluster
        self._claims = claims
        self._job = job
        self._shape: Shape = job.shape
        self._gpu_type = gpu_type
        self._tasks_on: dict[NodeId, int] = {}  # tasks that fit on each node checked so far
        self._tasks_in: dict[str, int] = {}  # the same, by domain
        self._rechecks: list[tuple[Instant, NodeId]] = []  # when to check a node again
        self._checked_at: dict[NodeId, Instant] = {}  # the instant for which each node was checked

    def find_first(self) -> PlannedStart | None:
        """Go through all instants at which room becomes free."""
        for change in self._changes():
            when = max(change[0], self._cluster.now)
            if planned := self._place_in(self._check_node(change, when), when):
                return planned
        return None

    def _changes(self) -> Iterator[_Change]:
        """Where room becomes free, in order of time, and the nodes to check again.

        A job that should have ended by now is expected to end within the grace.
        """
        now = self._cluster.now
        regular = self._indexed_changes() if self._shape.gpus else self._changes_by_end()
        for change in merge(regular, self._other_changes()):
            if 0 < change[0] <= now:
                heappush(self._rechecks, (now + self._cluster.policy.preemption_grace, change[1]))
                continue
            while self._rechecks and self._rechecks[0] < change[:2]:
                yield *heappop(self._rechecks), None
            yield change
        while self._rechecks:
            yield *heappop(self._rechecks), None

    def _check_node(self, change: _Change, when: Instant) -> str:
        """Count the tasks that fit on a node from an instant on. Returns the node's domain."""
        at, node, tasks = change
        usage = self._cluster.nodes.by_id[node]
        self._checked_at[node] = when
        if tasks is None or self._shape.cpu_milli or self._shape.ram_mib:
            fits = self._count_tasks(usage, when)
            if tasks is not None and fits < tasks and (later := usage.next_end(at)):
                heappush(self._rechecks, (later, node))  # too little CPU or memory is free
            tasks = fits
        return self._set_tasks(usage, tasks)

    def _indexed_changes(self) -> Iterator[_Change]:
        """When whole GPUs become free on nodes without claims, from the availability index."""
        kinds = sorted(kind for kind in self._cluster.nodes.rooms if self._need(kind) is not None)
        availability, claimed = self._cluster.nodes.availability, self._claims.by_node
        for entry in merge(*(availability.entries(kind, self._shape.gpus) for kind in kinds)):
            if entry[1] not in claimed:
                yield entry

    def _changes_by_end(self) -> Iterator[_Change]:
        """For tasks without whole GPUs: all nodes now, then the nodes of each job as it ends."""
        rooms = self._cluster.nodes.rooms
        kinds = (kind for kind in rooms if self._need(kind) is not None)
        for node in sorted(n for kind in kinds for nodes in rooms[kind].values() for n in nodes):
            yield 0, node, None
        running, earmarks = self._cluster.running, self._cluster.earmarks
        for at, job in self._cluster.running_index.ends.get(self._gpu_type, ()):
            for piece in (running.get(job) or earmarks[job]).pieces:
                yield at, piece.node, None

    def _other_changes(self) -> Iterator[_Change]:
        """Nodes on order, and nodes with claims at each instant at which they may change."""
        changes: list[_Change] = [
            (at, node, None) for at, node in self._cluster.nodes.on_order if at > self._cluster.now
        ]  # an overdue node may never come
        for node, claims in self._claims.by_node.items():
            instants = {0, *self._cluster.nodes.by_id[node].gpus_free_at()}
            instants |= {claim.until for claim in claims}
            changes += ((at, node, None) for at in instants)
        yield from sorted(changes, key=lambda change: change[:2])

    def _need(self, kind: NodeKind) -> TaskNeed | None:
        return task_need(self._shape, kind) if kind.gpu_type == self._gpu_type else None

    def _count_tasks(self, usage: NodeUsage, at: Instant) -> int:
        """How many tasks fit on a node from an instant on."""
        task = self._need(usage.kind)
        if task is None or not usage.node.is_usable_at(at):
            return 0
        return self._claims.count_tasks(usage, task, at, at + self._job.run_max)

    def _set_tasks(self, usage: NodeUsage, tasks: int) -> str:
        domain = usage.node.domain(self._shape.within)
        more = tasks - self._tasks_on.get(usage.node.id, 0)
        self._tasks_on[usage.node.id] = tasks
        self._tasks_in[domain] = self._tasks_in.get(domain, 0) + more
        return domain

    def _place_in(self, domain: str, at: Instant) -> PlannedStart | None:
        """The planned start in a domain from an instant on, if there is enough room."""
        if self._tasks_in[domain] < self._shape.tasks:
            return None
        level, nodes = self._shape.within, self._cluster.nodes.by_id
        inside = [n for n in self._tasks_on if nodes[n].node.domain(level) == domain]
        # Claims may begin meanwhile, and more may become free at the same instant: count again.
        for node in inside:
            if node in self._claims.by_node or self._checked_at[node] == at:
                self._set_tasks(nodes[node], self._count_tasks(nodes[node], at))
        if self._tasks_in[domain] < self._shape.tasks:
            return None
        fitting = [(self._tasks_on[node], node) for node in inside if self._tasks_on[node]]
        return PlannedStart(at, self._gpu_type, pack_tasks(fitting, self._shape.tasks))
