"""Jobs of a trace run again under simple rules: the yardsticks of experiments C, D and Philly-Oct.

A job needs all its GPUs at once, on one node, for a known time; a pool that only counts GPUs is one
large node. Two drivers, because rules that never stop a job need not look at the ones that run:
`queue` starts jobs in an order, `rank` decides anew who runs. Times are whole milliseconds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Final, NamedTuple

SECOND: Final = 1_000


class TraceJob(NamedTuple):
    """A job of a trace."""

    name: str
    owner: str
    tier: int  # 0 is the highest
    arrives: int
    gpus: int
    runs: int  # run time without a stop


@dataclass(slots=True, eq=False)
class TraceTask:
    """A job under way."""

    job: TraceJob
    left: int  # of its work
    attained: int = 0  # time that it had its GPUs
    delay: int = 0  # before work goes on: what a start costs
    node: int | None = None  # where it runs
    since: int = 0
    stops: int = 0  # how often it was stopped
    ended: int = 0

    @property
    def ends(self) -> int:
        """When it is done, if it goes on running."""
        return self.since + self.delay + self.left

    @property
    def jct(self) -> int:
        """From arrival to completion."""
        return self.ended - self.job.arrives

    @property
    def waited(self) -> int:
        """All that came on top of its run time."""
        return self.jct - self.job.runs

    def advance(self, now: int) -> None:
        """Count what it has done since it was looked at last."""
        span = now - self.since
        self.attained += span
        self.left -= max(span - self.delay, 0)
        self.delay = max(self.delay - span, 0)
        self.since = now


Order = Callable[[TraceJob], tuple[int, ...]]
Ranks = Callable[[TraceTask], tuple[int, ...]]


def run_queue(
    jobs: Sequence[TraceJob], nodes: Sequence[int], order: Order, *, blocks: bool = False
) -> list[TraceTask]:
    """Start jobs in an order, and never stop one.

    A job that finds no room keeps all later ones waiting if it `blocks`; else they overtake it.
    """
    coming = _latest_first(jobs, nodes)
    line = _Queue(list(nodes), order, blocks=blocks)
    while coming or line.ends:
        moments = [coming[-1].arrives] if coming else []
        moments += [line.ends[0][0]] if line.ends else []
        now = min(moments)
        line.end(now)
        while coming and coming[-1].arrives == now:
            line.add(coming.pop())
        line.start(now)
    return line.done


class _Queue:
    """Jobs that wait, by size: of each only the first can be next."""

    def __init__(self, free: list[int], order: Order, *, blocks: bool) -> None:
        self.done: list[TraceTask] = []
        self.ends: list[tuple[int, int, TraceTask]] = []
        self._free = free
        self._order = order
        self._blocks = blocks
        self._waiting: dict[int, list[tuple[tuple[int, ...], int, TraceJob]]] = {}
        self._numbers = count()  # of equals, the first comes first

    def add(self, job: TraceJob) -> None:
        """A job has arrived."""
        waiting = self._waiting.setdefault(job.gpus, [])
        heappush(waiting, (self._order(job), next(self._numbers), job))

    def end(self, now: int) -> None:
        """Take back the GPUs of what is done."""
        while self.ends and self.ends[0][0] == now:
            task = heappop(self.ends)[2]
            assert task.node is not None
            self._free[task.node] += task.job.gpus
            self.done.append(task)

    def start(self, now: int) -> None:
        """Start what comes first, as long as there is room, each on the tightest node."""
        while (job := self._next(max(self._free))) is not None:
            heappop(self._waiting[job.gpus])
            rooms = enumerate(self._free)
            node = min((room, place) for place, room in rooms if room >= job.gpus)[1]
            self._free[node] -= job.gpus
            task = TraceTask(job, job.runs, node=node, since=now, ended=now + job.runs)
            heappush(self.ends, (task.ended, next(self._numbers), task))

    def _next(self, most: int) -> TraceJob | None:
        """The next job to start on a node with `most` free GPUs; None if no job can."""
        heads = [
            waiting[0]
            for gpus, waiting in self._waiting.items()
            if waiting and (self._blocks or gpus <= most)
        ]
        job = min(heads)[2] if heads else None
        return job if job is not None and job.gpus <= most else None


def _latest_first(jobs: Sequence[TraceJob], nodes: Sequence[int]) -> list[TraceJob]:
    """Jobs from the last to the first, to be popped; all of them must be able to run."""
    most = max((job.gpus for job in jobs), default=0)
    if most > max(nodes):
        raise ValueError(f"a job asks for {most} GPUs, no node has more than {max(nodes)}")
    return sorted(jobs, key=lambda job: (job.arrives, job.name), reverse=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Who runs, decided anew whenever something has changed."""

    ranks: Ranks  # the smaller, the sooner; equal ones stay in the order they had
    moves: bool = False  # whether time alone changes the order
    every: int = 1  # decisions are made at multiples of this
    start_cost: int = 0  # before a job does any work
    restart_cost: int = 0  # the same, after it was stopped


@dataclass(slots=True)
class _FreeGpus:
    """GPUs in one walk through the jobs by rank: what the better ones have left."""

    room: list[int]
    idle: list[int] = field(default_factory=list)  # GPUs in use by no job, not even a worse one

    def keep(self, task: TraceTask) -> bool:
        """Leave a job where it runs, unless a better one has come there."""
        assert task.node is not None
        if self.room[task.node] < task.job.gpus:
            self.idle[task.node] += task.job.gpus
            return False
        self.room[task.node] -= task.job.gpus
        return True

    def find(self, gpus: int) -> int | None:
        """The tightest node with as much idle, else the one where fewest GPUs change hands."""
        able = [place for place, room in enumerate(self.room) if room >= gpus]
        if not able:
            return None
        idle = [(self.idle[place], place) for place in able if self.idle[place] >= gpus]
        node = min(idle)[1] if idle else max(able, key=lambda place: self.idle[place])
        self.room[node] -= gpus
        self.idle[node] -= gpus
        return node


def run_ranked(jobs: Sequence[TraceJob], nodes: Sequence[int], rule: Rule) -> list[TraceTask]:
    """Run the best jobs by rank; worse ones stop for better ones."""
    coming = _latest_first(jobs, nodes)
    active: list[TraceTask] = []
    running: list[TraceTask] = []
    done: list[TraceTask] = []
    now = 0
    while coming or active:
        for task in running:
            if task.ends <= now:
                task.ended = task.ends
                done.append(task)
            else:
                task.advance(now)
        active = [task for task in active if not task.ended]
        while coming and coming[-1].arrives <= now:
            job = coming.pop()
            active.append(TraceTask(job, job.runs, delay=rule.start_cost))
        running = _choose_running(active, nodes, rule, now)
        moments = [task.ends for task in running] + [job.arrives for job in coming[-1:]]
        if rule.moves and len(running) < len(active):
            now += rule.every
        elif moments:
            now = max(-(-min(moments) // rule.every) * rule.every, now + 1)
    return done


def _choose_running(
    active: list[TraceTask], nodes: Sequence[int], rule: Rule, now: int
) -> list[TraceTask]:
    """Go through the jobs by rank and let run what fits; the others stop."""
    ranks = rule.ranks
    active.sort(key=ranks)
    pool = _FreeGpus(list(nodes), list(nodes))
    for task in active:
        if task.node is not None:
            pool.idle[task.node] -= task.job.gpus
    chosen = []
    for task in active:
        previous = task.node
        node = previous if previous is not None and pool.keep(task) else pool.find(task.job.gpus)
        if previous is not None and node != previous:
            task.stops += 1
            task.delay = rule.restart_cost
        if node is not None:
            chosen.append(task)
            task.since = now
        task.node = node
    return chosen
