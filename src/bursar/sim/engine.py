"""The event loop of a simulation: events from a heap, and a round after each change.

An event is a tuple that begins with its instant and its number, so their order is total. Events of
one instant all happen before the round. An end, a stop or a reading names its attempt; if that
attempt has finished, nothing happens.

The end of an attempt and the report of it are separate events: its GPUs become free at the report.

Nothing here reads a clock, and randomness is an argument.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from bursar.core.ids import JobId, NodeId
from bursar.core.instant import Instant
from bursar.core.money import PPM
from bursar.core.refusal import invariant
from bursar.core.scheduling.advice.admission import Rejected
from bursar.core.scheduling.decisions import Preempt, Promise, Start
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.job_mix import JobMix
from bursar.core.scheduling.model.jobs import Job
from bursar.core.scheduling.model.nodes import Piece
from bursar.core.value import replace
from bursar.sim.admission import AdmissionGate
from bursar.sim.job_runs import Fate, JobRun
from bursar.sim.nodes import SimulatedNodes
from bursar.sim.policies import Scheduler
from bursar.sim.reports import Reports
from bursar.sim.rng import Chance
from bursar.sim.tenant_ledgers import TenantLedgers
from bursar.sim.time_integral import TimeIntegral
from bursar.sim.work import Work
from bursar.sim.world import SimulatedWorld

_Event = tuple[Instant, int, str, str, int, int]  # when, number, what, whose, attempt, figure
Progress = Callable[[int, int], None]  # finished jobs, all jobs


class GpuStretch(NamedTuple):
    """A finished attempt: the GPUs that a job had, and when."""

    job: JobId
    pieces: tuple[Piece, ...]
    since: Instant
    until: Instant


class Engine:
    """One run of a world under one policy."""

    def __init__(self, world: SimulatedWorld, scheduler: Scheduler, chance: Chance) -> None:
        self.world = world
        self.now = world.begins_at
        self.cluster = Cluster(world.policy, self.now)
        self.purse = TenantLedgers(world.prices, dict(world.credits), self.now)
        self.admission_gate = (
            None if world.admission is None else AdmissionGate(world.admission, world.policy)
        )
        self.lives: dict[JobId, JobRun] = {}
        self.stretches: list[GpuStretch] = []
        self.rounds = 0
        self.busy = TimeIntegral(self.now)  # thousandths of GPUs that jobs work on
        self.wanted = TimeIntegral(self.now)  # thousandths of GPUs that jobs have or wait for
        self._scheduler = scheduler
        self._reports = Reports(world.clocks, chance)
        self._typical = JobMix()
        self._prices = world.prices
        self._speeds = dict(world.speeds)
        self._works = {work.id: work for work in world.works}
        self._left = len(world.works)
        self._number = len(world.works)
        self._heap: list[_Event] = [
            (work.arrives_at, number, "arrive", work.id, 0, 0)
            for number, work in enumerate(world.works)
        ]
        self._looks_at: Instant | None = None
        self._happen: dict[str, Callable[[str, int, int], bool]] = {
            "arrive": self._arrive,
            "end": self._end,
            "ended": self._ended,
            "stop": self._stop,
            "stopped": self._stopped,
            "read": self._read,
            "reading": self._reading,
            "fail": self._fail,
            "join": self._join,
            "drain": self._drain,
            "undrain": self._undrain,
            "advise": self._advise,
            "look": self._look,
        }
        heapify(self._heap)
        self.nodes = SimulatedNodes(
            world,
            self.cluster,
            chance,
            lambda at, what, node, figure: self._at(at, what, node, 0, figure),
        )

    def run(self, progress: Progress = lambda over, all: None) -> None:
        """Process events until all jobs have finished or the simulation ends."""
        total, reported = len(self._works), 0
        while self._left and self._heap and self._heap[0][0] <= self.world.ends_at:
            self.now = self._heap[0][0]
            self.cluster.advance_to(self.now)
            changed = False
            while self._heap and self._heap[0][0] == self.now:
                _, _, what, name, attempt, figure = heappop(self._heap)
                changed = self._happen[what](name, attempt, figure) or changed
            if changed:
                self.nodes.let_go(self.now)
                self._round()
            if total - self._left >= reported + 100:
                reported = total - self._left
                progress(reported, total)
        progress(total - self._left, total)
        self._close()

    def _at(self, at: Instant, what: str, name: str, attempt: int = 0, figure: int = 0) -> None:
        self._number += 1
        heappush(self._heap, (at, self._number, what, name, attempt, figure))

    def _close(self) -> None:
        """End the simulation: record the nodes and attempts that are left."""
        self.nodes.close(self.now)
        for job, running in sorted(self.cluster.running.items()):
            if self.lives[job].fate is Fate.RUNNING:
                since = running.started_at
                self.stretches.append(GpuStretch(job, running.pieces, since, self.now))

    # ----------------------------------------------------------------------- jobs: what happens

    def _arrive(self, name: str, attempt: int, figure: int) -> bool:
        life = self.lives.get(JobId(name)) or self._born(self._works[JobId(name)])
        work = life.work
        if not self._let_in(life):
            return False
        if not self.nodes.fits(work.shape):
            return self._turn_away(life, Fate.UNFIT)
        types = self.purse.submit(work, self._most(work), self.now)
        if not types:
            return self._turn_away(life, Fate.UNPAID)
        if types != work.shape.types:
            life.job = replace(life.job, shape=replace(work.shape, types=types))
        self.wanted.change(work.milli_gpus, self.now)
        self._typical.add(life.job.shape)
        self.cluster.fragments = self._typical.fragments
        self._queue(life.job)
        return True

    def _born(self, work: Work) -> JobRun:
        job = Job(
            id=work.id, shape=work.shape, path=work.path, prices=self._prices,
            run_max=work.run_max, queued_at=self.now, priority_class=work.priority_class,
            estimate=work.estimate, preemptible=work.preemptible,
            checkpoint_every=work.checkpoint_every, checkpoint_cost=work.checkpoint_cost,
        )  # fmt: skip
        life = self.lives[work.id] = JobRun(work, job, self.world.restart_cost)
        life.wanted_before = self.wanted.until(self.now)
        return life

    def _let_in(self, life: JobRun) -> bool:
        """Whether admission control admits a job. A rejected job may retry later."""
        if self.admission_gate is None:
            return True
        life.tries += 1
        answer = self.admission_gate.ask(life.job, self.cluster, self.now)
        if not isinstance(answer, Rejected):
            return True
        again = self.admission_gate.again(answer, life.tries)
        if again is None:
            self._turn_away(life, Fate.TURNED)
        else:
            self._at(self.now + again, "arrive", life.work.id)
        return False

    def _turn_away(self, life: JobRun, fate: Fate) -> bool:
        life.fate = fate
        self._left -= 1
        return False

    def _end(self, name: str, attempt: int, figure: int) -> bool:
        """An attempt has done all its work, or has reached its bound."""
        life = self.lives[JobId(name)]
        return self._is_running(life, attempt) and self._over(life, "ended")

    def _ended(self, name: str, attempt: int, figure: int) -> bool:
        """The end of an attempt was reported: the job has finished."""
        life = self.lives[JobId(name)]
        run = life.over_at - life.started_at
        kept_run = life.finish(self.now)
        self.cluster.remove_running(life.work.id)
        self.purse.finish(
            life.work, attempt, life.gpu_type, life.measured(run), life.measured(kept_run), self.now
        )
        self.wanted.change(-life.work.milli_gpus, self.now)
        life.wanted_after = self.wanted.until(self.now)
        self._left -= 1
        return True

    def _stop(self, name: str, attempt: int, figure: int) -> bool:
        """A preempted attempt stops."""
        life = self.lives[JobId(name)]
        if not self._is_running(life, attempt):
            return False
        bound = self.cluster.running[life.work.id].stops_at
        is_due = bound is not None and self.now <= bound
        invariant(is_due, "a job stops that was not asked to", job=name, bound=bound)
        return self._over(life, "stopped")

    def _stopped(self, name: str, attempt: int, figure: int) -> bool:
        """The stop of an attempt was reported: the job waits again."""
        life = self.lives[JobId(name)]
        life.preemptions += 1
        self._again(life, self.world.policy.preemption_grace)
        return True

    def _is_running(self, life: JobRun, attempt: int) -> bool:
        return life.fate is Fate.RUNNING and life.attempt == attempt

    def _over(self, life: JobRun, event: str) -> bool:
        """End an attempt; `event` follows when its report arrives."""
        self._cease(life)
        late = self._reports.late(life.work.id, life.attempt, -1)
        if late:
            self._at(self.now + late, event, life.work.id, life.attempt)
            return False
        return self._happen[event](life.work.id, life.attempt, 0)

    def _cease(self, life: JobRun) -> None:
        """Record the end of an attempt."""
        life.fate, life.over_at = Fate.ENDING, self.now
        self.busy.change(-life.work.milli_gpus, self.now)
        pieces = self.cluster.running[life.work.id].pieces
        self.stretches.append(GpuStretch(life.work.id, pieces, life.started_at, self.now))

    def _again(self, life: JobRun, grace: int | None) -> None:
        """An attempt ended too early: its job waits again."""
        run = life.over_at - life.started_at
        kept_run = life.interrupt(grace=grace)
        self.cluster.remove_running(life.work.id)
        self.purse.stop(
            life.work, life.attempt, life.gpu_type, life.measured(run), life.measured(kept_run),
            self.now,
        )  # fmt: skip
        self._queue(life.again(self.now))

    def _read(self, name: str, attempt: int, figure: int) -> bool:
        """A machine reports how long an attempt has run; the report may be late, or get lost."""
        life = self.lives[JobId(name)]
        if not self._is_running(life, attempt):
            return False
        run = life.measured(self.now - life.started_at)
        if not self._reports.lost(life.work.id, attempt, figure):
            late = self._reports.late(life.work.id, attempt, figure)
            if late:
                self._at(self.now + late, "reading", name, attempt, run)
            else:
                self._reading(name, attempt, run)
        self._at(self.now + self.world.readings, "read", name, attempt, figure + 1)
        return False

    def _reading(self, name: str, attempt: int, figure: int) -> bool:
        """A reading has arrived."""
        self.purse.read(self.lives[JobId(name)].work, attempt, figure, self.now)
        return False

    # ----------------------------------------------------------------------- rounds

    def _round(self) -> None:
        self.rounds += 1
        for decision in self._scheduler.round(self.cluster, self.now):
            if isinstance(decision, Start):
                self._start(decision)
            elif isinstance(decision, Preempt):
                life = self.lives[decision.job]
                stops_at = self.now + life.time_to_stop(decision.stops_at - self.now)
                self._at(stops_at, "stop", decision.job, life.attempt)
            elif isinstance(decision, Promise):
                self.lives[decision.job].promise(decision.at)
        look = self._scheduler.look_again(self.cluster, self.now)
        if look is not None and look != self._looks_at:
            self._looks_at = look
            self._at(look, "look", "")

    def _look(self, name: str, attempt: int, figure: int) -> bool:
        """Run a round at the time that the scheduler chose, unless it has chosen another since."""
        if self._looks_at != self.now:
            return False
        self._looks_at = None
        return True

    def _start(self, decision: Start) -> None:
        life = self.lives[decision.job]
        speed = self._speeds.get(decision.gpu_type, PPM)
        ends_at = life.begin(decision.gpu_type, speed, self.now)
        life.drift = self._reports.drift(decision.pieces[0].node)
        most = life.job.run_max + self.world.policy.preemption_grace
        self.purse.start(life.work, life.attempt, life.gpu_type, most, self.now)
        self.busy.change(life.work.milli_gpus, self.now)
        self._at(ends_at, "end", life.work.id, life.attempt)
        if self.world.readings:
            self._at(self.now + self.world.readings, "read", life.work.id, life.attempt, 1)

    def _queue(self, job: Job) -> None:
        self.cluster.enqueue(job)
        self._scheduler.queued(job)

    def _most(self, work: Work) -> int:
        """The run time that a job's hold covers: its maximum, a restart, and the grace."""
        return work.run_max + self.world.restart_cost + self.world.policy.preemption_grace

    # ----------------------------------------------------------------------- nodes

    def _join(self, name: str, attempt: int, figure: int) -> bool:
        self.nodes.join(NodeId(name), self.now)
        return True

    def _fail(self, name: str, attempt: int, figure: int) -> bool:
        """A node fails, with all attempts on it."""
        for job in self.nodes.taken_on(NodeId(name)):
            life = self.lives[job]
            if life.fate is Fate.RUNNING:
                self._cease(life)
                life.failures += 1
                self._again(life, None)
        self.nodes.fail(NodeId(name), self.now)
        return True

    def _drain(self, name: str, attempt: int, figure: int) -> bool:
        self.nodes.drain(NodeId(name), figure, self.now)
        return True

    def _undrain(self, name: str, attempt: int, figure: int) -> bool:
        self.nodes.undrain(NodeId(name), self.now)
        return True

    def _advise(self, name: str, attempt: int, figure: int) -> bool:
        return self.nodes.advise(self.now)
