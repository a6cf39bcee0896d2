"""A pool as the scheduler knows it: nodes, what runs, what waits, indexed for planning.

Whoever owns a cluster keeps it up with what happens; `make_plan` tries things on it and takes them
back. Every change that a plan may try has an exact inverse, and is written to the journal while a
trial is on.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice, takewhile
from typing import Final

from bursar.core.ids import JobId, NodeId
from bursar.core.instant import NEVER, Instant
from bursar.core.refusal import invariant
from bursar.core.scheduling.decisions import Decision, Keep, Preempt, Promise, Start
from bursar.core.scheduling.model.jobs import (
    Earmark,
    Job,
    Path,
    RunningJob,
    Shape,
    StartReason,
    task_need,
)
from bursar.core.scheduling.model.nodes import (
    Level,
    Node,
    NodeKind,
    NodeRoom,
    NodeState,
    NodeUsage,
    Piece,
)
from bursar.core.scheduling.model.policy import PoolPolicy, Share
from bursar.core.scheduling.model.snapshot import PoolSnapshot
from bursar.core.scheduling.order.backlog import Backlog
from bursar.core.scheduling.order.share import ShareGroup, ShareTree
from bursar.core.scheduling.placement.availability import Availability
from bursar.core.scheduling.placement.fragmentation import Fragmentation
from bursar.core.sorted_set import SortedSet
from bursar.core.value import replace

POLES: Final = 16  # jobs of a user that are looked at for one that would outlast all
LATE: Final = 10  # graces after its bound that a job is still expected to end any moment


class Cluster:
    """A pool's nodes and jobs; changes through its methods alone."""

    def __init__(self, policy: PoolPolicy, at: Instant) -> None:
        self.policy = policy
        self.now = at
        self.tree = ShareTree(policy, at)
        self.machines: dict[NodeId, NodeUsage] = {}
        self.rooms: dict[
            NodeKind, dict[NodeRoom, SortedSet[NodeId]]
        ] = {}  # of nodes where jobs can start
        self.horizon = Availability(self.machines)
        self.gpus: dict[str, int] = {}  # of these nodes, by type
        self.coming: SortedSet[tuple[Instant, NodeId]] = SortedSet()  # nodes on order
        self.waiting: dict[JobId, Job] = {}
        self.running: dict[JobId, RunningJob] = {}
        self.earmarks: dict[JobId, Earmark] = {}
        self.ends: dict[str, SortedSet[tuple[Instant, JobId]]] = {}  # of what runs, by GPU type
        self._of_org: dict[Path, set[JobId]] = {}  # what runs
        self.urgent: set[Path] = set()  # orgs where a higher class waits than one that runs
        self.promised: SortedSet[tuple[Instant, JobId]] = SortedSet()  # who has a date, since when
        self.preempts = {tier.name: tier.preempts for tier in policy.tiers}
        self.aged = 0  # milli-GPUs of what runs for its age
        self._classes: dict[Path, SortedSet[tuple[int, JobId]]] = {}  # of what may be asked, by org
        self.fragments = Fragmentation(())
        self._later: SortedSet[tuple[Instant, JobId]] = SortedSet()  # who may not be tried yet
        self._in_time: SortedSet[tuple[Instant, JobId]] = SortedSet()  # who waits, until it is late
        self._pressing: SortedSet[tuple[Instant, JobId]] = (
            SortedSet()
        )  # who waits, until it may press
        self.backlog = Backlog()  # of those that may be tried
        self._expected: SortedSet[tuple[Instant, JobId]] = SortedSet()  # when what runs should end
        self._turns: dict[Path, SortedSet[tuple[Instant, JobId]]] = {}  # who gives up its turn when
        self._journal: list[Callable[[], None]] | None = None
        self._tiers_stale = True
        self.one_rack = True  # whether all nodes stand in one rack
        self.islands = False  # whether some share an NVLink island

    @classmethod
    def from_snapshot(cls, snapshot: PoolSnapshot) -> "Cluster":
        """The cluster of which this is the snapshot."""
        cluster = cls(snapshot.policy, snapshot.at)
        cluster.fragments = Fragmentation(snapshot.typical)
        for node in snapshot.nodes:
            cluster.add_node(node)
        for path, base in snapshot.usage:
            cluster.tree.add_past_usage(path, base)
        for running in snapshot.running:
            cluster.add_running(running)
        for job in snapshot.waiting:
            cluster.enqueue(job)
        for earmark in snapshot.earmarks:
            cluster.add_earmark(earmark)
        for node in snapshot.nodes:
            if node.state is not NodeState.READY:
                cluster._unmark_on(node.id)
        cluster.advance_to(snapshot.at)
        return cluster

    def snapshot(self) -> PoolSnapshot:
        """All that is known, as a value; equal clusters give equal snapshots."""
        return PoolSnapshot(
            at=self.now,
            policy=self.policy,
            nodes=tuple(self.machines[node].node for node in sorted(self.machines)),
            waiting=tuple(self.waiting[job] for job in sorted(self.waiting)),
            running=tuple(self.running[job] for job in sorted(self.running)),
            earmarks=tuple(self.earmarks[job] for job in sorted(self.earmarks)),
            usage=tuple(self.tree.list_past_usage()),
            typical=self.fragments.typical,
        )

    # ----------------------------------------------------------------------- what happens

    def advance_to(self, now: Instant) -> None:
        """Let time pass."""
        invariant(now >= self.now, "time runs backwards", now=now, before=self.now)
        late = list(takewhile(lambda one: one[0] <= now, self._in_time))
        for _, job_id in late:
            self._dequeue(self.waiting[job_id])
        self.now = now
        self.tree.advance_to(now)
        for _, job_id in late:
            self._enqueue(self.waiting[job_id])
        while (first := self._later.first()) is not None and first[0] <= now:
            self._later.pop_first()
            self._enqueue(self.waiting[first[1]])
        while (first := self._expected.first()) is not None and first[0] <= now:
            self._expected.pop_first()
            self.backlog.count_running(self.running[first[1]], -1)
        if self._tiers_stale:
            self._entitle_tiers()
        for ends in self.ends.values():
            while (end := ends.first()) is not None and end[0] <= now - LATE * self.policy.grace:
                ends.pop_first()
                self._count_no_more_on(end[1])

    def _count_no_more_on(self, job_id: JobId) -> None:
        """Expect no more that a job ends: it should have long ago."""
        holder = self.running.get(job_id) or self.earmarks[job_id]
        for piece in holder.pieces:
            machine = self.machines[piece.node]
            machine.set_end(job_id, NEVER)
            self.horizon.mark_changed(machine)

    def add_node(self, node: Node) -> None:
        """A node is there, or was changed in what it can be used for."""
        old = self.machines.get(node.id)
        if old is not None:
            self._hide(old)
            invariant(old.kind == node.kind, "a node became another", node=node.id)
            old.node = node
        machine = self.machines[node.id] = old or NodeUsage(node)
        self._show(machine)
        if node.state is not NodeState.READY:
            self._unmark_on(node.id)
        self._tiers_stale = True

    def drop_node(self, node: NodeId) -> None:
        """A node is gone; nothing runs there any more."""
        self._unmark_on(node)
        machine = self.machines[node]
        invariant(not machine.taken, "a node left with jobs on it", node=node)
        self._hide(machine)
        del self.machines[node]
        self._tiers_stale = True

    def enqueue(self, job: Job) -> None:
        """A job waits, from now on or again."""
        known = job.id in self.waiting or job.id in self.running
        invariant(not known, "a job is there already", job=job.id)
        self.tree.user_group(job.path)  # refuses a path that cannot be, before anything has changed
        self.waiting[job.id] = job
        if job.not_before > self.now:
            self._later.add((job.not_before, job.id))
        else:
            self._enqueue(job)

    def withdraw(self, job_id: JobId) -> None:
        """A job waits no more."""
        job = self.waiting[job_id]
        if job_id in self.earmarks:
            self._unmark(job_id)
        if not self._later.discard((job.not_before, job_id)):
            self._dequeue(job)
        del self.waiting[job_id]

    def add_running(self, running: RunningJob) -> None:
        """A job runs that does not wait here: as read from a snapshot."""
        self.tree.user_group(running.job.path)
        self.running[running.job.id] = running
        self._take(running.job.id, running.pieces, running.ends_by)
        self._count(running)
        if running.stops_at is None:
            self.tree.count_running(running.job, running.gpu_type, running.started_at)
        else:
            self.tree.count_leaving(running.job, running.gpu_type)

    def remove_running(self, job_id: JobId) -> RunningJob:
        """A running job has stopped, for whatever reason."""
        running = self.running.pop(job_id)
        self._give(job_id, running.pieces)
        self._uncount(running)
        if running.stops_at is None:
            self.tree.count_stopped(running.job, running.gpu_type, running.started_at, self.now)
        else:
            self.tree.count_leaving(running.job, running.gpu_type, -1)
        return running

    def set_limit(self, name: str, share: Share) -> None:
        """A ceiling outside the tree is another from now on."""
        limits = {**dict(self.policy.limits), name: share}
        self.policy = replace(self.policy, limits=tuple(sorted(limits.items())))
        self.tree.set_limit(name, share)

    def record_checkpoint(self, job_id: JobId, at: Instant) -> None:
        """A running job has made a checkpoint."""
        self.running[job_id] = replace(self.running[job_id], saved_at=at)

    def apply(self, decision: Decision) -> None:
        """Carry a decision out."""
        if isinstance(decision, Start):
            self.start(decision)
        elif isinstance(decision, Preempt):
            self.stop(decision.job, decision.stops_at)
        elif isinstance(decision, Keep):
            self.keep(decision)
        else:
            self.promise(decision)

    # ----------------------------------------------------------------------- what plans try

    def start(self, decision: Start) -> None:
        """Give a waiting job its GPUs."""
        job = self.waiting[decision.job]
        earmark = self.earmarks.get(job.id)
        if earmark is not None:
            self._unmark(job.id)
        self._dequeue(job, goes_on=True)
        del self.waiting[job.id]
        running = RunningJob(
            job=job, gpu_type=decision.gpu_type, pieces=decision.pieces, why=decision.why,
            started_at=self.now, saved_at=self.now,
        )  # fmt: skip
        self.add_running(running)
        self._note(lambda: self._unstart(job, earmark))

    def stop(self, job_id: JobId, stops_at: Instant) -> None:
        """Ask a running job to make room: it counts no more, its GPUs are free by then."""
        before = self.running[job_id]
        self._uncount(before)
        self._place(replace(before, stops_at=stops_at))
        self.tree.count_stopped(before.job, before.gpu_type, before.started_at, self.now)
        self.tree.count_leaving(before.job, before.gpu_type)
        self._note(lambda: self._unstop(before))

    def keep(self, decision: Keep) -> None:
        """Keep GPUs for a waiting job until those who are on them have left."""
        earmark = Earmark(
            job=decision.job, gpu_type=decision.gpu_type, pieces=decision.pieces,
            victims=decision.victims, since=self.now,
        )  # fmt: skip
        self.add_earmark(earmark)
        self._note(lambda: self._unmark(decision.job))

    def promise(self, decision: Promise) -> None:
        """Give a waiting job a date."""
        before = self.waiting[decision.job]
        at, since, on = decision.at, decision.since, decision.nodes
        self._requeue(replace(before, promised_at=at, promised_since=since, promised_on=on))
        self._note(lambda: self._requeue(before))

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Whatever is tried inside has not happened afterwards."""
        journal: list[Callable[[], None]] = []
        self._journal = journal
        try:
            yield
        finally:
            self._journal = None
            for undo in reversed(journal):
                undo()

    # ----------------------------------------------------------------------- questions

    def can_start(self, earmark: Earmark) -> bool:
        """Whether all who were asked have left, and all GPUs that are kept for a job are free."""
        victims = (self.running.get(victim) for victim in earmark.victims)
        if any(one is not None and one.stops_at is not None for one in victims):
            return False
        return all(self.machines[piece.node].is_free_for(piece) for piece in earmark.pieces)

    def could_mark(self, earmark: Earmark) -> bool:
        """Whether GPUs can be kept for a job: there is nobody on them but those who leave them."""
        leaving = frozenset(
            victim
            for victim in earmark.victims
            if victim in self.running and self.running[victim].stops_at is not None
        )
        return all(
            piece.node in self.machines and self.machines[piece.node].can_earmark(piece, leaving)
            for piece in earmark.pieces
        )

    def free(self) -> dict[str, tuple[int, int]]:
        """By GPU type: the most whole GPUs that are free on one node, and how many on all."""
        free: dict[str, tuple[int, int]] = {}
        for kind, rooms in self.rooms.items():
            largest, total = free.get(kind.gpu_type, (0, 0))
            for room, nodes in rooms.items():
                largest = max(largest, room.whole)
                total += room.whole * len(nodes)
            free[kind.gpu_type] = largest, total
        return free

    def free_for(self, shape: Shape, types: tuple[str, ...]) -> int:
        """How many whole GPUs are free on nodes of some types that a shape can use."""
        return sum(
            room.whole * len(nodes)
            for kind, rooms in self.rooms.items()
            if kind.gpu_type in types and task_need(shape, kind) is not None
            for room, nodes in rooms.items()
        )

    def open_types(self, job: Job) -> tuple[str, ...]:
        """The types on which a job passes no ceiling, the most welcome first."""
        return tuple(t for t in job.shape.types if self.tree.first_exceeded(job, t) is None)

    def running_of(self, orgs: Iterable[Path]) -> Iterator[RunningJob]:
        """What runs of some orgs, in no order."""
        for org in orgs:
            yield from map(self.running.__getitem__, self._of_org.get(org, ()))

    def type_of(self, node: NodeId) -> str:
        """The GPU type of a node; "" if it is gone."""
        machine = self.machines.get(node)
        return "" if machine is None else machine.node.gpu_type

    def distinct(self, level: Level) -> bool:
        """Whether nodes share domains of a level, or, for single nodes, always."""
        return level is Level.NODE or (self.islands if level is Level.ISLAND else not self.one_rack)

    def lowest_class(self, org: Path) -> int | None:
        """The lowest class of an org's running jobs that can be asked to make room."""
        classes = self._classes.get(org)
        first = classes.first() if classes is not None else None
        return None if first is None else first[0]

    def turn_ends(self, running: RunningJob) -> Instant:
        """From when on a job may be asked for its turn: by then stopping costs little."""
        job, policy = running.job, self.policy
        saves = job.checkpoint_every and job.checkpoint_cost <= policy.grace
        if not (policy.turn_after and policy.orders_by_work and saves):
            return NEVER
        return running.started_at + policy.turn_after * policy.grace

    def turns_up(self, org: Path) -> Iterator[RunningJob]:
        """What runs of an org and may be asked for its turn, the longest so first."""
        for at, job_id in self._turns.get(org, ()):
            if at > self.now:
                break
            yield self.running[job_id]

    def next_turn(self) -> Instant:
        """When a turn ends next in an org of which somebody waits; now if some have, else NEVER."""
        waiting = (turns for org in self.tree.waiting_classes if (turns := self._turns.get(org)))
        firsts = (turns.first() for turns in waiting)
        return max(min((one[0] for one in firsts if one is not None), default=NEVER), self.now)

    def next_press(self) -> Instant:
        """When somebody may press others next to start in time; NEVER if nobody will."""
        return next((at for at, _ in self._pressing.since((self.now + 1, JobId("")))), NEVER)

    def next_try(self) -> Instant:
        """When somebody may be tried again whose start failed; NEVER if nobody waits for that."""
        first = self._later.first()
        return NEVER if first is None else first[0]

    def backing_off(self) -> Iterator[Job]:
        """The jobs that may not be tried yet."""
        return (self.waiting[job_id] for _, job_id in self._later)

    def outlasts_all(self, job: Job, ran: int = 0) -> bool:
        """Whether a job says that it lasts longer than the whole pool has work: see `backlog`."""
        rest = job.expected_run - ran
        told = self.policy.orders_by_work and job.estimate is not None and rest > 0
        return told and self.backlog.is_outlasted_by(job, rest, self.now, self.gpus)

    def outlasting(self, user: ShareGroup) -> Iterator[Job]:
        """A user's jobs of its highest class that would outlast all, the longest first."""
        first = user.queue_heads.first()
        for less_class, _, job_id in islice(user.longest, POLES):
            job = self.waiting[job_id]
            if first is None or less_class != first[0] or not self.outlasts_all(job):
                return
            yield job

    # ----------------------------------------------------------------------- within

    def _note(self, undo: Callable[[], None]) -> None:
        if self._journal is not None:
            self._journal.append(undo)

    def _enqueue(self, job: Job) -> None:
        if job.promised_since is not None:
            self.promised.add((job.promised_since, job.id))
        self.tree.enqueue(job)
        self.backlog.count_waiting(job)
        late_from = self.policy.late_at(job)
        if self.now < late_from < NEVER:
            self._in_time.add((late_from, job.id))
        if self.policy.is_express(job, self.now):
            self._pressing.add((self.policy.presses_at(job), job.id))
        self._weigh(job.path[:2])

    def _dequeue(self, job: Job, *, goes_on: bool = False) -> None:
        if job.promised_since is not None:
            self.promised.discard((job.promised_since, job.id))
        self.tree.dequeue(job, goes_on=goes_on)
        self.backlog.count_waiting(job, -1)
        self._in_time.discard((self.policy.late_at(job), job.id))
        self._pressing.discard((self.policy.presses_at(job), job.id))
        self._weigh(job.path[:2])

    def _unstart(self, job: Job, earmark: Earmark | None) -> None:
        running = self.running.pop(job.id)
        self._give(job.id, running.pieces)
        self._uncount(running)
        self.tree.count_running(job, running.gpu_type, running.started_at, -1)
        self.waiting[job.id] = job
        self._enqueue(job)
        if earmark is not None:
            self.add_earmark(earmark)

    def _unstop(self, before: RunningJob) -> None:
        job = before.job
        self._uncount(self.running[job.id])
        self._place(before)
        self.tree.count_leaving(job, before.gpu_type, -1)
        self.tree.count_stopped(job, before.gpu_type, before.started_at, self.now, -1)

    def _place(self, running: RunningJob) -> None:
        """Note when a running job's GPUs are free, which has changed."""
        self.running[running.job.id] = running
        for piece in running.pieces:
            machine = self.machines[piece.node]
            machine.set_end(running.job.id, running.ends_by)
            self.horizon.mark_changed(machine)
        self._count(running)

    def _count(self, running: RunningJob) -> None:
        job = running.job
        self._ends_of(running.gpu_type).add((running.ends_by, job.id))
        self._of_org.setdefault(job.path[:2], set()).add(job.id)
        if running.why is StartReason.AGE:
            self.aged += job.shape.milli_gpus
        if (ends := running.started_at + job.expected_run) > self.now:
            self._expected.add((ends, job.id))
            self.backlog.count_running(running)
        if job.preemptible and running.stops_at is None:
            classes = self._classes.setdefault(job.path[:2], SortedSet())
            classes.add((job.priority_class, job.id))
            self._turns.setdefault(job.path[:2], SortedSet()).add((self.turn_ends(running), job.id))
            self._weigh(job.path[:2])

    def _uncount(self, running: RunningJob) -> None:
        job = running.job
        self._ends_of(running.gpu_type).discard((running.ends_by, job.id))
        self._of_org[job.path[:2]].discard(job.id)
        if running.why is StartReason.AGE:
            self.aged -= job.shape.milli_gpus
        if self._expected.discard((running.started_at + job.expected_run, job.id)):
            self.backlog.count_running(running, -1)
        if job.preemptible and running.stops_at is None:
            self._classes[job.path[:2]].discard((job.priority_class, job.id))
            self._turns[job.path[:2]].discard((self.turn_ends(running), job.id))
            self._weigh(job.path[:2])

    def _weigh(self, org: Path) -> None:
        """Note whether somebody of an org waits who could ask others of it to make room."""
        lowest, first = self.lowest_class(org), self.tree.highest_waiting_class(org)
        if lowest is not None and first is not None and first > lowest:
            self.urgent.add(org)
        else:
            self.urgent.discard(org)

    def _ends_of(self, gpu_type: str) -> SortedSet[tuple[Instant, JobId]]:
        return self.ends.setdefault(gpu_type, SortedSet())

    def add_earmark(self, earmark: Earmark) -> None:
        """Keep GPUs for a waiting job, as was decided before."""
        job = self.waiting[earmark.job]
        self.earmarks[job.id] = earmark
        self._dequeue(job)
        self.backlog.count_waiting(job)
        self.tree.count_running(job, earmark.gpu_type, earmark.since)
        until = self._kept_until(earmark)
        self._take(job.id, earmark.pieces, until)
        self._ends_of(earmark.gpu_type).add((until, job.id))

    def _unmark(self, job_id: JobId) -> None:
        job, earmark = self.waiting[job_id], self.earmarks.pop(job_id)
        self._ends_of(earmark.gpu_type).discard((self._kept_until(earmark), job_id))
        self._give(job_id, earmark.pieces)
        self.tree.count_running(job, earmark.gpu_type, earmark.since, -1)
        self.backlog.count_waiting(job, -1)
        self._enqueue(job)

    def _unmark_on(self, node: NodeId) -> None:
        """Keep nothing for anybody on a node that cannot be used: they wait in turn again."""
        for job_id in sorted(self.earmarks):
            if any(piece.node == node for piece in self.earmarks[job_id].pieces):
                self._unmark(job_id)

    def _kept_until(self, earmark: Earmark) -> Instant:
        """When the GPUs are free that are kept for a job, once it has run."""
        return earmark.since + self.policy.grace + self.waiting[earmark.job].run_max

    def _requeue(self, job: Job) -> None:
        self._dequeue(self.waiting[job.id])
        self.waiting[job.id] = job
        self._enqueue(job)

    def _take(self, job_id: JobId, pieces: tuple[Piece, ...], until: Instant) -> None:
        for piece in pieces:
            machine = self.machines[piece.node]
            room = machine.room
            machine.take(job_id, piece, until)
            self._changed(machine, room)

    def _give(self, job_id: JobId, pieces: tuple[Piece, ...]) -> None:
        for piece in pieces:
            machine = self.machines[piece.node]
            room = machine.room
            machine.release(job_id)
            self._changed(machine, room)

    def _changed(self, machine: NodeUsage, room: NodeRoom) -> None:
        """Put a node where it belongs once what is free on it has changed."""
        if machine.node.state is NodeState.READY:
            self.horizon.mark_changed(machine)
            if room != machine.room:
                self._leave(machine, room)
                self._enter(machine)

    def _show(self, machine: NodeUsage) -> None:
        """Let jobs start on a node, if its state allows it."""
        node = machine.node
        if node.state is NodeState.READY:
            self._enter(machine)
            self.horizon.add(machine)
        elif node.state is NodeState.ON_ORDER:
            self.coming.add((node.ready_at, node.id))

    def _hide(self, machine: NodeUsage) -> None:
        node = machine.node
        if node.state is NodeState.READY:
            self._leave(machine, machine.room)
            self.horizon.remove(machine)
        elif node.state is NodeState.ON_ORDER:
            self.coming.discard((node.ready_at, node.id))

    def _enter(self, machine: NodeUsage) -> None:
        rooms = self.rooms.setdefault(machine.kind, {})
        nodes = rooms.get(machine.room)
        if nodes is None:
            nodes = rooms[machine.room] = SortedSet()
        nodes.add(machine.node.id)

    def _leave(self, machine: NodeUsage, room: NodeRoom) -> None:
        rooms = self.rooms[machine.kind]
        nodes = rooms[room]
        nodes.discard(machine.node.id)
        if not nodes:
            del rooms[room]
        if not rooms:
            del self.rooms[machine.kind]

    def _entitle_tiers(self) -> None:
        """Work out what the tiers are entitled to in GPUs: they have parts of what there is."""
        ready = [m.node for m in self.machines.values() if m.node.state is NodeState.READY]
        self.gpus = {}
        for node in ready:
            self.gpus[node.gpu_type] = self.gpus.get(node.gpu_type, 0) + node.gpus
        total = sum(self.gpus.values())
        self.one_rack = len({node.rack for node in ready}) < 2
        self.islands = any(node.island for node in ready)
        own = {path for path, _ in self.policy.shares}
        tiers = {(tier.name,): self.policy.tier_share(tier, total) for tier in self.policy.tiers}
        self.tree.set_shares({path: share for path, share in tiers.items() if path not in own})
        self._tiers_stale = False
