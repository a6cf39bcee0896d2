"""Well-known policies to compare with: one order for all jobs, with or without preemption.

They use the same placement and the same grace for victims as Bursar's own scheduler, so they differ
only in which job comes next.
"""

from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Any, Final

from bursar.core.ids import JobId, NodeId
from bursar.core.instant import MINUTE, NEVER, Instant
from bursar.core.scheduling.decisions import Decision, EarmarkGpus, Preempt, Start
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.earmarks import can_start
from bursar.core.scheduling.model.jobs import Job, Path, RunningJob, Shape, StartReason, task_need
from bursar.core.scheduling.model.nodes import FREE_NOW, MILLI, NodeUsage, TaskNeed
from bursar.core.scheduling.model.policy import WHOLE_PPM, PoolPolicy
from bursar.core.scheduling.placement.backfill import NodeClaims
from bursar.core.scheduling.placement.search import NodePlacement, choose_pieces, find_placement
from bursar.core.sorted_set import SortedSet

Key = tuple[Any, ...]  # smaller comes first; in a queue it ends in the job's id
QUANTUM: Final = MINUTE  # the interval of policies whose keys change with time


class InOrder:
    """Jobs start in the order of a key; running jobs are not preempted."""

    def __init__(self, key: Callable[[Job], Key], *, backfill: bool) -> None:
        self._key = key
        self._backfill = backfill  # or else the first that does not fit keeps all others waiting
        self._queues: dict[Shape, SortedSet[Key]] = {}
        self._keys: dict[JobId, Key] = {}

    def queued(self, job: Job) -> None:
        """Add a job. Jobs of one shape are in one queue: if the first does not fit, none does."""
        queue = self._queues.setdefault(job.shape, SortedSet())
        if job.id in self._keys:
            queue.discard(self._keys[job.id])
        self._keys[job.id] = (*self._key(job), job.id)
        queue.add(self._keys[job.id])

    def look_again(self, cluster: Cluster, now: Instant) -> Instant | None:
        """Time alone changes nothing."""
        return None

    def round(self, cluster: Cluster, now: Instant) -> Sequence[Decision]:
        """Start the jobs that fit, in order."""
        cluster.advance_to(now)
        decisions: list[Decision] = list(start_kept(cluster))
        for job in self.in_turn(cluster):
            start = start_of(cluster, job)
            if start is not None:
                cluster.apply(start)
                decisions.append(start)
            elif not self._backfill:
                break
        return decisions

    def in_turn(self, cluster: Cluster) -> Iterator[Job]:
        """Yield the jobs in order. If one still waits afterwards, its shape is skipped."""
        heads: list[tuple[Key, int]] = []
        queues = list(self._queues.values())
        for number, queue in enumerate(queues):
            if (first := _next(cluster, queue, ())) is not None:
                heads.append((first, number))
        heapify(heads)
        while heads:
            key, number = heappop(heads)
            job = cluster.waiting[key[-1]]
            yield job
            if job.id in cluster.waiting and job.id not in cluster.earmarks:
                continue  # no other of its shape fits either
            if (following := _next(cluster, queues[number], key)) is not None:
                heappush(heads, (following, number))


def _next(cluster: Cluster, queue: SortedSet[Key], after: Key) -> Key | None:
    """The first waiting job after a key; jobs with earmarked GPUs need no turn."""
    gone: list[Key] = []
    following = None
    for key in queue.since(after):
        if key[-1] not in cluster.waiting:
            gone.append(key)  # it has started
        elif key != after and key[-1] not in cluster.earmarks:
            following = key
            break
    for key in gone:
        queue.discard(key)
    return following


class Preemptive(InOrder):
    """Jobs run in the order of a key, and later jobs make room for earlier ones."""

    def __init__(
        self,
        key: Callable[[Job], Key],
        running_key: Callable[[RunningJob, Instant], Key],
        *,
        every: int = 0,
    ) -> None:
        super().__init__(key, backfill=True)
        self._running_key = running_key
        self._every = every  # microseconds after which keys are looked at again; 0: they stay

    def look_again(self, cluster: Cluster, now: Instant) -> Instant | None:
        """After a quantum, if keys change with time and jobs wait."""
        return now + self._every if self._every and cluster.waiting else None

    def round(self, cluster: Cluster, now: Instant) -> Sequence[Decision]:
        """Start the jobs that fit; for the others, preempt later jobs if that makes enough room."""
        cluster.advance_to(now)
        decisions: list[Decision] = list(start_kept(cluster))
        later: _Later | None = None
        for job in self.in_turn(cluster):
            start = start_of(cluster, job)
            if start is not None:
                cluster.apply(start)
                decisions.append(start)
                continue
            later = later or _Later(cluster, self._running_key)
            for decision in later.make_room(job, (*self._key(job), job.id)):
                cluster.apply(decision)
                decisions.append(decision)
        return decisions


_Offer = tuple[int, NodeId, int, list[RunningJob]]  # see `_Later`


class _Later:
    """The running jobs by node: finds those that come later in order than a waiting job."""

    def __init__(self, cluster: Cluster, key: Callable[[RunningJob, Instant], Key]) -> None:
        self._cluster = cluster
        self._by_node: dict[NodeId, list[tuple[Key, RunningJob]]] = {}
        for running in cluster.running.values():
            if running.stops_at is None and running.job.preemptible:
                entry = (*key(running, cluster.now), running.job.id), running
                for piece in running.pieces:
                    self._by_node.setdefault(piece.node, []).append(entry)
        for there in self._by_node.values():
            there.sort(key=lambda entry: entry[0], reverse=True)

    def make_room(self, job: Job, key: Key) -> list[Decision]:
        """Preempt the jobs that are last in order, if the job then fits; nothing otherwise."""
        for gpu_type in job.shape.types:
            offers = sorted(self._offers(job.shape, gpu_type, key), key=lambda entry: entry[:2])
            nodes: list[tuple[NodeId, int]] = []
            victims: dict[JobId, RunningJob] = {}
            tasks = 0
            for _, node, fits, leaving in offers:
                nodes.append((node, min(fits, job.shape.tasks - tasks)))
                victims.update((running.job.id, running) for running in leaving)
                tasks += nodes[-1][1]
                if tasks == job.shape.tasks:
                    return self._decisions(
                        job, NodePlacement(gpu_type, tuple(sorted(nodes))), victims
                    )
        return []

    def _offers(self, shape: Shape, gpu_type: str, key: Key) -> Iterator[_Offer]:
        """What each node can offer: cost per task, name, number of tasks, jobs that leave."""
        for name, machine in self._cluster.nodes.by_id.items():
            task = task_need(shape, machine.kind)
            usable = machine.node.is_usable_at(self._cluster.now)
            if task is None or machine.node.gpu_type != gpu_type or not usable:
                continue
            leaving: list[RunningJob] = []
            fits = task.count_in(machine.room)
            for other, running in self._by_node.get(name, ()):
                if fits >= shape.tasks or other <= key:
                    break
                if self._cluster.running.get(running.job.id) is running:  # else asked already
                    leaving.append(running)
                    fits = _fits(machine, task, leaving)
            if fits:
                fewest = _needed(machine, task, leaving, fits)
                cost = sum(running.job.shape.milli_gpus for running in fewest) // fits
                yield cost, name, fits, fewest

    def _decisions(
        self, job: Job, spot: NodePlacement, victims: dict[JobId, RunningJob]
    ) -> list[Decision]:
        now, cluster = self._cluster.now, self._cluster
        names = tuple(sorted(victims))
        pieces = choose_pieces(cluster, job.shape, spot, FREE_NOW, frozenset(names))
        preemptions: list[Decision] = [
            Preempt(
                job=name, wanted_by=job.id, right="order", lost=victims[name].work_lost(now),
                stops_at=now + cluster.policy.preemption_grace,
            )
            for name in names
        ]  # fmt: skip
        return [
            *preemptions,
            EarmarkGpus(job=job.id, gpu_type=spot.gpu_type, pieces=pieces, victims=names),
        ]


def _fits(machine: NodeUsage, task: TaskNeed, leaving: list[RunningJob]) -> int:
    """How many tasks fit on a node after some jobs have left."""
    return task.count_in(
        machine.room_at(FREE_NOW, frozenset(running.job.id for running in leaving))
    )


def _needed(
    machine: NodeUsage, task: TaskNeed, leaving: list[RunningJob], fits: int
) -> list[RunningJob]:
    """The jobs that must leave for this many tasks to fit; others stay, the first first."""
    for candidate in leaving if len(leaving) > 1 else ():
        others = [other for other in leaving if other is not candidate]
        if _fits(machine, task, others) >= fits:
            return _needed(machine, task, others, fits)
    return leaving


def start_kept(cluster: Cluster) -> list[Decision]:
    """Start the jobs whose earmarked GPUs are free."""
    decisions: list[Decision] = []
    for name in sorted(cluster.earmarks):
        earmark = cluster.earmarks[name]
        if can_start(cluster, earmark):
            start = Start(
                job=name, gpu_type=earmark.gpu_type, pieces=earmark.pieces, why=StartReason.FREED
            )
            cluster.apply(start)
            decisions.append(start)
    return decisions


def start_of(cluster: Cluster, job: Job) -> Start | None:
    """The start of a job at once, where it fits best; None if it does not fit."""
    spot = find_placement(cluster, NodeClaims(cluster), job.shape, job.shape.types, NEVER)
    if spot is None:
        return None
    got = choose_pieces(cluster, job.shape, spot)
    return Start(job=job.id, gpu_type=spot.gpu_type, pieces=got, why=StartReason.TURN)


class LeastAttained(Preemptive):
    """The job with the fewest GPU-seconds so far runs, in doubling steps; ties by arrival.

    Lost work counts as well: otherwise two jobs without checkpoints would preempt each other
    forever.
    """

    def __init__(self) -> None:
        super().__init__(self._waiting, self._running, every=QUANTUM)
        self._had: dict[JobId, int] = {}  # GPU-microseconds of earlier attempts

    def round(self, cluster: Cluster, now: Instant) -> Sequence[Decision]:
        """Like the others; also records the GPU time of preempted jobs."""
        decisions = super().round(cluster, now)
        for decision in decisions:
            if isinstance(decision, Preempt):
                running = cluster.running[decision.job]  # until its grace is over
                self._had[decision.job] = self._service(running, decision.stops_at)
        return decisions

    def _waiting(self, job: Job) -> Key:
        return _step(self._had.get(job.id, 0)), job.queued_at

    def _running(self, running: RunningJob, now: Instant) -> Key:
        return _step(self._service(running, now)), -1

    def _service(self, running: RunningJob, now: Instant) -> int:
        job = running.job
        now_had = job.shape.milli_gpus * (now - running.started_at) // MILLI
        return self._had.get(job.id, 0) + now_had


def _step(service: int) -> int:
    """The number of the doubling step; the first is two GPU-minutes."""
    return (service // (2 * MINUTE)).bit_length()


class DominantShare:
    """The org with the smallest dominant share, by weight, comes first (DRF)."""

    def __init__(self, policy: PoolPolicy) -> None:
        self._tiers = {tier.name: tier.weight for tier in policy.tiers}
        self._weights = {path: share.weight for path, share in policy.shares}
        self._orgs: dict[Path, InOrder] = {}

    def queued(self, job: Job) -> None:
        """Add a job to the queue of its org."""
        org = job.path[:2]
        if org not in self._orgs:
            self._orgs[org] = InOrder(lambda job: (job.queued_at,), backfill=True)
        self._orgs[org].queued(job)

    def look_again(self, cluster: Cluster, now: Instant) -> Instant | None:
        """Time alone changes nothing."""
        return None

    def round(self, cluster: Cluster, now: Instant) -> Sequence[Decision]:
        """Start jobs, each time one of the org with the smallest share."""
        cluster.advance_to(now)
        decisions: list[Decision] = []
        turns = {org: queue.in_turn(cluster) for org, queue in self._orgs.items()}
        had = self._had(cluster)
        shares = [(self._share(cluster, org, had.get(org, {})), org) for org in turns]
        heapify(shares)
        full: set[Shape] = set()
        while shares:
            _, org = heappop(shares)
            start = next(_first_start(cluster, turns[org], full), None)
            if start is not None:
                cluster.apply(start)
                decisions.append(start)
                of_org = had.setdefault(org, {})
                milli = cluster.running[start.job].job.shape.milli_gpus
                of_org[start.gpu_type] = of_org.get(start.gpu_type, 0) + milli
                heappush(shares, (self._share(cluster, org, of_org), org))
        return decisions

    def _share(self, cluster: Cluster, org: Path, had: dict[str, int]) -> int:
        """The largest part of a GPU type that an org has, in parts per million, by weight."""
        parts = (
            WHOLE_PPM * milli // (cluster.nodes.gpus[name] * MILLI) for name, milli in had.items()
        )
        weight = self._tiers.get(org[0], 1) * self._weights.get(org, 1)
        return max(parts, default=0) * WHOLE_PPM // weight

    def _had(self, cluster: Cluster) -> dict[Path, dict[str, int]]:
        had: dict[Path, dict[str, int]] = {}
        for running in cluster.running.values():
            of_org = had.setdefault(running.job.path[:2], {})
            milli = running.job.shape.milli_gpus
            of_org[running.gpu_type] = of_org.get(running.gpu_type, 0) + milli
        return had


def _first_start(cluster: Cluster, turn: Iterator[Job], full: set[Shape]) -> Iterator[Start]:
    """The start of the first job of an org that fits; shapes known not to fit are skipped."""
    for job in turn:
        if job.shape not in full:
            start = start_of(cluster, job)
            if start is not None:
                yield start
                return
            full.add(job.shape)


def left(job: Job) -> int:
    """Microseconds that a job is expected to run: its estimate, or else its limit."""
    return job.run_max if job.estimate is None else min(job.estimate, job.run_max)


def left_running(running: RunningJob, now: Instant) -> int:
    """The same for a running job."""
    return max(left(running.job) - (now - running.started_at), 0)
