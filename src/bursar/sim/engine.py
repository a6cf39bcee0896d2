"""The clock of a made-up world: events from a heap, and a round whenever something has changed.

An event is a tuple that begins with its instant and its number, so their order is total. Events of
one instant all happen before the round. An end or a stop names the attempt it is meant for: if that
is over, nothing happens.

Nothing here reads a clock, and chance comes in as an argument.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Final

from bursar.core.ids import JobId
from bursar.core.instant import Instant
from bursar.core.refusal import invariant
from bursar.core.scheduling.cluster import Cluster
from bursar.core.scheduling.decisions import Preempt, Start
from bursar.core.scheduling.jobs import Job, Shape, need
from bursar.core.scheduling.machines import Machine, Node, NodeId, NodeState
from bursar.core.value import altered
from bursar.sim.chance import Chance
from bursar.sim.fleets import Group
from bursar.sim.lives import Fate, Life
from bursar.sim.policies import Scheduler
from bursar.sim.purse import Purse
from bursar.sim.work import Work
from bursar.sim.world import World

_Event = tuple[Instant, int, str, str, int]  # when, number, what, of which job or node, attempt
POINTS: Final = 300  # of a timeline, or up to twice as many
Progress = Callable[[int, int], None]  # jobs that are over, and all


class Area:
    """A quantity that changes in steps, and the area under it."""

    def __init__(self, at: Instant) -> None:
        self.level = 0
        self._area = 0
        self._since = at

    def change(self, by: int, now: Instant) -> None:
        """Let the quantity change."""
        self._area = self.until(now)
        self._since = now
        self.level += by

    def until(self, now: Instant) -> int:
        """The area so far, in units times microseconds."""
        return self._area + self.level * (now - self._since)


class Timeline:
    """How full a pool was and how many waited, a few hundred times in a run of any length."""

    def __init__(self) -> None:
        self.points: list[tuple[Instant, int, int]] = []  # when, milli-GPUs that are busy, jobs
        self._apart = 0  # microseconds between two points, at least

    def note(self, now: Instant, busy: int, waiting: int) -> None:
        """Remember how things are, if the last point is long enough ago."""
        if self.points and now < self.points[-1][0] + self._apart:
            return
        self.points.append((now, busy, waiting))
        if len(self.points) == 2 * POINTS:
            span = now - self.points[0][0]
            self._apart = 2 * span // (2 * POINTS)
            self.points = self.points[::2]


class Engine:
    """One run of a world under one policy."""

    def __init__(self, world: World, scheduler: Scheduler, chance: Chance) -> None:
        self.world = world
        self.now = world.begins_at
        self.cluster = Cluster(world.policy, self.now)
        self.purse = Purse(world.fleet.prices, dict(world.credits), self.now)
        self.lives: dict[JobId, Life] = {}
        self.rounds = 0
        self.node_failures = 0
        self.capacity = Area(self.now)  # GPUs that are there
        self.busy = Area(self.now)  # thousandths of GPUs that jobs have
        self.wanted = Area(self.now)  # thousandths of GPUs that jobs have or wait for
        self.waiting = Area(self.now)  # jobs
        self.timeline = Timeline()
        self._scheduler = scheduler
        self._chance = chance
        self._works = {work.id: work for work in world.works}
        self._left = len(world.works)
        self._number = len(world.works)
        self._heap: list[_Event] = [
            (work.arrives_at, number, "arrive", work.id, 0)
            for number, work in enumerate(world.works)
        ]
        self._looks_at: Instant | None = None
        self._fitting: dict[Shape, bool] = {}
        self._groups: dict[NodeId, Group] = {}
        self._luck: dict[NodeId, Chance] = {}
        heapify(self._heap)
        for node, group in world.fleet.named():
            self._add(node, group)

    def run(self, progress: Progress = lambda over, all: None) -> None:
        """Live through everything."""
        total, told = len(self._works), 0
        while self._left and self._heap and self._heap[0][0] <= self.world.ends_at:
            self.now = self._heap[0][0]
            self.cluster.at(self.now)
            changed = False
            while self._heap and self._heap[0][0] == self.now:
                _, _, what, name, attempt = heappop(self._heap)
                changed = self._happen(what, name, attempt) or changed
            if changed:
                self._round()
            if total - self._left >= told + 100:
                told = total - self._left
                progress(told, total)
        progress(total - self._left, total)

    # ----------------------------------------------------------------------- events

    def _at(self, at: Instant, what: str, name: str, attempt: int = 0) -> None:
        self._number += 1
        heappush(self._heap, (at, self._number, what, name, attempt))

    def _happen(self, what: str, name: str, attempt: int) -> bool:
        """Let an event happen; whether it changed anything."""
        if what == "arrive":
            return self._arrive(self._works[JobId(name)])
        if what == "end":
            return self._end(JobId(name), attempt)
        if what == "stop":
            return self._stop(JobId(name), attempt)
        if what == "fail":
            return self._fail(NodeId(name))
        if what == "join":
            return self._join(NodeId(name))
        stale = self._looks_at != self.now
        self._looks_at = None if not stale else self._looks_at
        return not stale

    def _arrive(self, work: Work) -> bool:
        job = Job(
            id=work.id, shape=work.shape, path=work.path, prices=self.world.fleet.prices,
            run_max=work.run_max, queued_at=self.now, priority_class=work.priority_class,
            estimate=work.estimate, preemptible=work.preemptible,
            checkpoint_every=work.checkpoint_every, checkpoint_cost=work.checkpoint_cost,
        )  # fmt: skip
        life = self.lives[work.id] = Life(work, job, self.world.restart_cost)
        life.wanted_before = self.wanted.until(self.now)
        if not self._fits(work.shape):
            return self._turn_away(life, Fate.UNFIT)
        types = self.purse.submit(work, self._most(work), self.now)
        if not types:
            return self._turn_away(life, Fate.UNPAID)
        if types != work.shape.types:
            life.job = altered(job, shape=altered(work.shape, types=types))
        self.wanted.change(work.milli_gpus, self.now)
        self._queue(life.job)
        return True

    def _turn_away(self, life: Life, fate: Fate) -> bool:
        life.fate = fate
        self._left -= 1
        return False

    def _end(self, name: JobId, attempt: int) -> bool:
        life = self.lives[name]
        if life.fate is not Fate.RUNNING or life.attempt != attempt:
            return False
        self._leave(life)
        run = self.now - life.started_at
        kept = life.finish(self.now)
        self.purse.finish(life.work, attempt, life.gpu_type, run, kept, self.now)
        self.wanted.change(-life.work.milli_gpus, self.now)
        life.wanted_after = self.wanted.until(self.now)
        self._left -= 1
        return True

    def _stop(self, name: JobId, attempt: int) -> bool:
        """A job that was asked to make room does so."""
        life = self.lives[name]
        if life.fate is not Fate.RUNNING or life.attempt != attempt:
            return False
        asked = self.cluster.running[name].stops_at
        invariant(asked == self.now, "a job stops that was not asked to", job=name, asked=asked)
        life.preemptions += 1
        self._interrupt(life, self.world.policy.grace)
        return True

    def _fail(self, name: NodeId) -> bool:
        """A node is gone, and with it whatever ran there."""
        self.node_failures += 1
        machine = self.cluster.machines[name]
        for job in sorted(machine.taken):
            if job in self.cluster.running:
                self.lives[job].failures += 1
                self._interrupt(self.lives[job], 0)
        self.cluster.add_node(altered(machine.node, state=NodeState.DEAD))
        self.capacity.change(-machine.node.gpus, self.now)
        self._at(self.now + self._groups[name].repaired_in, "join", name)
        return True

    def _join(self, name: NodeId) -> bool:
        """A node that was on order, or failed, is there."""
        node = self.cluster.machines[name].node
        self._ready(altered(node, state=NodeState.READY))
        return True

    # ----------------------------------------------------------------------- jobs and nodes

    def _round(self) -> None:
        self.rounds += 1
        for decision in self._scheduler.round(self.cluster, self.now):
            if isinstance(decision, Start):
                self._start(decision)
            elif isinstance(decision, Preempt):
                attempt = self.lives[decision.job].attempt
                self._at(decision.stops_at, "stop", decision.job, attempt)
        self.timeline.note(self.now, self.busy.level, self.waiting.level)
        look = self._scheduler.look_again(self.cluster, self.now)
        if look is not None and look != self._looks_at:
            self._looks_at = look
            self._at(look, "look", "")

    def _start(self, decision: Start) -> None:
        life = self.lives[decision.job]
        ends_at = life.begin(decision.gpu_type, self.now)
        most = life.job.run_max + self.world.policy.grace
        self.purse.start(life.work, life.attempt, life.gpu_type, most, self.now)
        self.waiting.change(-1, self.now)
        self.busy.change(life.work.milli_gpus, self.now)
        self._at(ends_at, "end", life.work.id, life.attempt)

    def _queue(self, job: Job) -> None:
        self.cluster.queue(job)
        self._scheduler.queued(job)
        self.waiting.change(1, self.now)

    def _leave(self, life: Life) -> None:
        self.cluster.end(life.work.id)
        self.busy.change(-life.work.milli_gpus, self.now)

    def _interrupt(self, life: Life, grace: int) -> None:
        """End an attempt too early, and let its job wait again."""
        self._leave(life)
        run = self.now - life.started_at
        kept = life.interrupt(self.now, grace=grace)
        self.purse.stop(life.work, life.attempt, life.gpu_type, run, kept, self.now)
        self._queue(life.again())

    def _most(self, work: Work) -> int:
        """What is set aside for a job: its bound, a beginning anew, and the time to stop."""
        return work.run_max + self.world.restart_cost + self.world.policy.grace

    def _fits(self, shape: Shape) -> bool:
        """Whether a job could run if nothing else did."""
        known = self._fitting.get(shape)
        if known is None:
            known = self._fitting[shape] = any(
                self._tasks(shape, gpu_type) >= shape.tasks for gpu_type in shape.types
            )
        return known

    def _tasks(self, shape: Shape, gpu_type: str) -> int:
        """Tasks of a job that all nodes of a type could have at once."""
        count = 0
        for node in self._groups:
            empty = Machine(self.cluster.machines[node].node)
            task = need(shape, empty.kind) if empty.kind.gpu_type == gpu_type else None
            count += task.times_in(empty.room) if task else 0
        return count

    def _add(self, node: Node, group: Group) -> None:
        self._groups[node.id] = group
        self._luck[node.id] = self._chance.stream(f"node/{node.id}")
        if group.joins:
            ready_at = self.now + group.joins
            self.cluster.add_node(altered(node, state=NodeState.ON_ORDER, ready_at=ready_at))
            self._at(ready_at, "join", node.id)
        else:
            self._ready(node)

    def _ready(self, node: Node) -> None:
        """A node can be used, until it fails."""
        self.cluster.add_node(node)
        self.capacity.change(node.gpus, self.now)
        group = self._groups[node.id]
        if group.fails_every:
            lasts = int(self._luck[node.id].wait(group.fails_every)) + 1
            self._at(self.now + lasts, "fail", node.id)
