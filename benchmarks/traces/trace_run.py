"""Bursar's own scheduler on the jobs of a trace: experiments C, D and Philly-Oct.

The rounds are those of the service, `carry_out` on a `Cluster`. A job's request has only what its
user could state. Around the rounds are only arrivals, ends and stops. There is no ledger, because
no org runs out of credits here; that makes it quicker than the simulator.

A victim saves its work and stops when that is done, not at the end of the grace. Saved work is
not lost; the time to save it and to start again is.
"""

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from benchmarks.traces.replay import TraceJob, TraceTask
from bursar.core.ids import JobId, NodeId
from bursar.core.instant import HOUR, MILLISECOND, Instant
from bursar.core.money import CREDIT
from bursar.core.scheduling.decisions import Preempt, Start
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.jobs import Job, Path, Shape
from bursar.core.scheduling.model.nodes import Node
from bursar.core.scheduling.model.policy import PoolPolicy
from bursar.core.value import replace
from bursar.sim.policies import Bursar

T0: Final[Instant] = 500_000 * HOUR
GPU: Final = "gpu"
PRICES: Final = ((GPU, CREDIT),)  # a GPU-hour is a credit
END, STOP, ARRIVE, LOOK = range(4)  # what happens first of what happens at once


class JobRequest(NamedTuple):
    """What a user says of a job: whose it is, what it needs, how long it runs; in milliseconds."""

    path: Path
    shape: Shape
    run_max: int  # that it is sure not to need more than
    estimate: int | None = None  # what it expects to need, if it says so


class TraceCluster(NamedTuple):
    """Where a trace is run: nodes, and what starting and stopping costs, in milliseconds."""

    nodes: int
    node_gpus: int
    start_cost: int = 0  # before a job does any work for the first time
    restart_cost: int = 0  # the same, after it was stopped
    stop_cost: int = 0  # until its work is saved when it is asked to stop
    every: int = 1  # rounds are at multiples of this


class TraceRun:
    """One run of a trace."""

    def __init__(
        self,
        jobs: Sequence[TraceJob],
        world: TraceCluster,
        policy: PoolPolicy,
        make_request: Callable[[TraceJob], JobRequest],
    ) -> None:
        self.world = world
        self.cluster = Cluster(policy, T0)
        self.done: list[TraceTask] = []
        self.rounds = 0
        self._scheduler = Bursar()
        self._make_request = make_request
        self._requests: dict[str, JobRequest] = {}
        self._jobs: dict[str, Job] = {}
        self._tasks = {job.name: TraceTask(job, job.runs, delay=world.start_cost) for job in jobs}
        self._attempts = dict.fromkeys(self._tasks, 0)
        self._stop_requested_at: dict[str, int] = {}  # when a job was asked to stop
        self._heap = [(job.arrives, ARRIVE, job.name, 0) for job in jobs]
        self._round_at: int | None = None
        heapify(self._heap)
        for place in range(world.nodes):
            name = NodeId(f"n{place:04}")
            self.cluster.add_node(Node(id=name, gpu_type=GPU, gpus=world.node_gpus))

    def run(self) -> list[TraceTask]:
        """Run to the end; returns the jobs in the order in which they ended."""
        while len(self.done) < len(self._tasks):
            now = self._heap[0][0]
            self.cluster.advance_to(_instant(now))
            due = False
            while self._heap and self._heap[0][0] == now:
                _, what, name, attempt = heappop(self._heap)
                due = self._handle_event(what, name, attempt, now) or due
            if due:
                self._round(now)
        return self.done

    # ----------------------------------------------------------------------- events

    def _handle_event(self, what: int, name: str, attempt: int, now: int) -> bool:
        """Let an event happen; whether there is a round at once."""
        if what == LOOK:
            due = self._round_at == now
            self._round_at = None if due else self._round_at
            return due
        if what == ARRIVE:
            self._arrive(self._tasks[name].job, now)
        elif attempt != self._attempts[name]:
            return False
        elif what == STOP:
            self._stop(self._tasks[name], now)
            return True
        else:
            self._end(self._tasks[name], now)
        return self._schedule_round(now, now)

    def _schedule_round(self, at: int, now: int) -> bool:
        """See to a round at that time or the next possible one; whether that is now."""
        at = -(-at // self.world.every) * self.world.every
        if at <= now:
            return True
        if self._round_at is None or at < self._round_at:
            self._round_at = at
            heappush(self._heap, (at, LOOK, "", 0))
        return False

    def _arrive(self, trace_job: TraceJob, now: int) -> None:
        request = self._requests[trace_job.name] = self._make_request(trace_job)
        cost = self.world.start_cost
        job = self._jobs[trace_job.name] = Job(
            id=JobId(trace_job.name), shape=request.shape, path=request.path, prices=PRICES,
            run_max=(request.run_max + cost) * MILLISECOND, queued_at=_instant(now),
            estimate=None if request.estimate is None else (request.estimate + cost) * MILLISECOND,
            checkpoint_every=MILLISECOND,
            checkpoint_cost=(self.world.stop_cost + self.world.restart_cost) * MILLISECOND,
        )  # fmt: skip
        self.cluster.enqueue(job)

    def _end(self, task: TraceTask, now: int) -> None:
        self.cluster.remove_running(JobId(task.job.name))
        task.advance(now)
        task.ended = now
        self._attempts[task.job.name] += 1
        self.done.append(task)

    def _stop(self, task: TraceTask, now: int) -> None:
        """A job has saved its work, leaves its GPUs and waits again."""
        name, world = task.job.name, self.world
        self.cluster.remove_running(JobId(name))
        self._attempts[name] += 1
        work_before, requested_at = task.left, self._stop_requested_at.pop(name)
        task.advance(requested_at)
        task.attained += now - requested_at
        task.stops += 1
        task.delay = world.restart_cost
        job, request = self._jobs[name], self._requests[name]
        saved_time = (work_before - task.left) * MILLISECOND
        worked = task.job.runs - task.left
        estimate = None if request.estimate is None else max(request.estimate - worked, 1)
        job = self._jobs[name] = replace(
            job,
            run_max=max(request.run_max - worked + world.restart_cost, 1) * MILLISECOND,
            estimate=None if estimate is None else (estimate + world.restart_cost) * MILLISECOND,
            preemptions=task.stops, stopped_at=_instant(now),
            attained=job.attained + job.price_of(GPU, saved_time),
        )  # fmt: skip
        self.cluster.enqueue(job)

    # ----------------------------------------------------------------------- rounds

    def _round(self, now: int) -> None:
        self.rounds += 1
        at = _instant(now)
        for decision in self._scheduler.round(self.cluster, at):
            if isinstance(decision, Start):
                self._start(self._tasks[decision.job], now)
            elif isinstance(decision, Preempt):
                self._stop_requested_at[decision.job] = now
                stops = min(now + self.world.stop_cost, _ms(decision.stops_at))
                heappush(self._heap, (stops, STOP, decision.job, self._attempts[decision.job]))
        if (look := self._scheduler.look_again(self.cluster, at)) is not None:
            self._schedule_round(max(_ms(look), now + 1), now)

    def _start(self, task: TraceTask, now: int) -> None:
        task.since = now
        heappush(self._heap, (task.ends, END, task.job.name, self._attempts[task.job.name]))


def _instant(ms: int) -> Instant:
    return T0 + ms * MILLISECOND


def _ms(at: Instant) -> int:
    return -(-(at - T0) // MILLISECOND)
