"""The loads through the database: each with a deployment of its own, and its conservation check.

Seconds are those of a clock on the wall: databases are waited for. A load is over when the orgs
know it: a job runs when its start was handled in the ledger, and has ended when it was settled.
"""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager

from benchmarks.environment import Log
from benchmarks.results import Figure, Load
from benchmarks.schedule import loads
from benchmarks.schedule.durable.deployment import Setting, World, deployed, nodes_of
from benchmarks.schedule.durable.nodes import FOREVER, Nodes
from benchmarks.schedule.sizes import ScheduleSizes, Streams
from bursar.core.ids import JobId
from bursar.core.instant import SECOND
from bursar.core.scheduling.model.jobs import Job
from bursar.core.scheduling.model.snapshot import PoolSnapshot
from bursar.service.database import Database

SUBMITTERS = 8
SLURM_STARTS = 73.0  # a second, its best on such a machine


def setting_of(snapshot: PoolSnapshot, jobs: Iterable[Job]) -> Setting:
    """The orgs and accounts that these jobs are of."""
    accounts: dict[str, dict[str, None]] = {}
    for job in jobs:
        accounts.setdefault(job.path[1], {})[job.path[2]] = None
    return Setting(snapshot, {org: tuple(found) for org, found in accounts.items()})


def _for_ever(_: JobId) -> int:
    return FOREVER


def _at_once(_: JobId) -> int:
    return 0


# ----------------------------------------------------------------------- Kueue


def kueue_baseline(server: Database, sizes: ScheduleSizes, log: Log) -> Load:
    """Few queues, more work than GPUs for a minute."""
    return _streams(server, "kueue-baseline", sizes.baseline, 351, 70, log)


def kueue_large(server: Database, sizes: ScheduleSizes, log: Log) -> Load:
    """A thousand queues; jobs come faster than anybody takes them."""
    return _streams(server, "kueue-large", sizes.large, 1_179, 120, log)


def _streams(
    server: Database, name: str, load: Streams, theirs: int, most: float, log: Log
) -> Load:
    what = f"{load.jobs:,} jobs of {load.groups * load.queues:,} queues in {load.groups} groups"
    log(f"{name}: {what}")
    told = Load(name=name, what=what)
    arriving = [((at - loads.T0) / SECOND, job, runs) for at, job, runs in loads.arrivals(load)]
    runs_of = {job.id: runs for _, job, runs in arriving}
    setting = setting_of(loads.groups(load), (job for _, job, _ in arriving))
    with (
        deployed(server, setting) as world,
        _said(world, load.jobs, log),
        nodes_of(world, setting, runs_of.__getitem__) as nodes,
    ):
        world.await_nodes()
        began = time.perf_counter()
        world.submit([(due, job) for due, job, _ in arriving], began)
        submitted = time.perf_counter() - began
        took = world.await_all("succeeded", load.jobs) - began
        _check(told, world, nodes)
        waits = _waits([(began + due, job) for due, job, _ in arriving], nodes)
    told.figures = [
        Figure(
            what="until all are settled", value=took, unit="s", most=most, peer_value=theirs,
            peer=f"Kueue {theirs:,} s",
        ),
        Figure(what="the same, of the ideal", value=took / load.ideal_s, unit="x"),
        Figure(what="starts", value=load.jobs / took, unit="starts/s"),
    ]  # fmt: skip
    told.notes.append(
        f"all submitted after {submitted:.1f} s; mean wait from when it was due to its start, by"
        f" class {waits}; {nodes.stopped:,} times one made room for another; the ideal is"
        f" {load.ideal_s:,.0f} s"
    )
    return told


def _waits(due: Sequence[tuple[float, Job]], nodes: Nodes) -> str:
    spans: dict[int, list[float]] = {}
    for at, job in due:
        if job.id in nodes.began:
            spans.setdefault(job.priority_class, []).append(nodes.began[job.id] - at)
    return ", ".join(
        f"{one}: {sum(waits) / len(waits):.1f} s" for one, waits in sorted(spans.items())
    )


# ----------------------------------------------------------------------- KAI, Volcano, Slurm


def kai_fill(server: Database, sizes: ScheduleSizes, log: Log) -> Load:
    """One-GPU jobs for all GPUs are queued, then nodes come; again with hopeless ones behind."""
    gpus = 8 * sizes.kai_nodes
    told = Load(name="kai-fill", what=f"{sizes.kai_nodes} nodes x 8 GPUs, {gpus:,} x 1 GPU")
    log(f"kai-fill: {gpus:,} one-GPU jobs")
    plain = _fill(server, loads.filling(sizes.kai_nodes, 0), gpus, told, log)
    log(f"kai-fill: the same with {sizes.hopeless} hopeless ones behind")
    behind = _fill(server, loads.filling(sizes.kai_nodes, sizes.hopeless), gpus, told, log)
    told.figures = [
        Figure(what="all run", value=plain, unit="s", peer="KAI 398 s", peer_value=398, most=1.5),
        Figure(
            what=f"with {sizes.hopeless} hopeless jobs behind", value=behind, unit="s",
            yardstick="without", yardstick_value=plain, ratio_most=1.05,
            peer="KAI 398 s", peer_value=398,
        ),
    ]  # fmt: skip
    return told


def _fill(server: Database, snapshot: PoolSnapshot, count: int, told: Load, log: Log) -> float:
    """How long it takes from when the nodes come until the first so many of the jobs run."""
    setting = setting_of(snapshot, snapshot.waiting)
    hopeless = [job.id for job in snapshot.waiting[count:]]
    with deployed(server, setting) as world, _said(world, count, log):
        world.submit([(0.0, job) for job in snapshot.waiting], time.perf_counter())
        world.await_post()
        began = time.perf_counter()
        with nodes_of(world, setting, _for_ever) as nodes:
            took = world.await_all("running", count) - began
            if nodes.taken != count:
                told.problems.append(f"{nodes.taken:,} of {count:,} GPUs are in use")
            nodes.end_all()
            world.await_all("succeeded", count)
            _check(told, world, nodes, hopeless)
    return took


def volcano(server: Database, sizes: ScheduleSizes, log: Log) -> Load:
    """As many tasks as GPUs, in jobs of different sizes: from the first submission on."""
    told = Load(name="volcano-4", what="as many tasks as GPUs, as jobs of different sizes")
    for jobs, tasks in sizes.pods:
        log(f"volcano-4: {jobs:,} x {tasks:,}")
        snapshot = loads.pods(jobs, tasks)
        setting = setting_of(snapshot, snapshot.waiting)
        with (
            deployed(server, setting) as world,
            _said(world, jobs, log),
            nodes_of(world, setting, _for_ever) as nodes,
        ):
            world.await_nodes()
            began = time.perf_counter()
            world.submit([(0.0, job) for job in snapshot.waiting], began)
            world.await_all("running", jobs)
            took = nodes.await_taken(jobs * tasks) - began
            nodes.end_all()
            world.await_all("succeeded", jobs)
            _check(told, world, nodes)
        told.figures.append(
            Figure(
                what=f"{jobs:,} x {tasks:,}: all tasks run", value=took, unit="s", most=4,
                peer="Volcano 180-250 s" if tasks == 1 else "",
                peer_value=180 if tasks == 1 else None,
            )
        )  # fmt: skip
    return told


def slurm_throughput(server: Database, sizes: ScheduleSizes, log: Log) -> Load:
    """One-GPU jobs that end at once: one by one from many submitters, and queued before."""
    count, jobs = sizes.slurm_nodes, sizes.slurm_jobs
    told = Load(name="slurm-throughput", what=f"{count} nodes x 6 GPUs, {jobs:,} x 1 GPU")
    snapshot = loads.array(count, jobs, full=False)
    setting = setting_of(snapshot, snapshot.waiting)
    log(f"slurm-throughput: {jobs:,} jobs from {SUBMITTERS} submitters, then nodes come")
    with deployed(server, setting) as world, _said(world, jobs, log):
        began = time.perf_counter()
        world.submit_one_by_one(snapshot.waiting, SUBMITTERS)
        submitted = time.perf_counter() - began
        world.await_post()
        began = time.perf_counter()
        with nodes_of(world, setting, _at_once) as nodes:
            queued = world.await_all("succeeded", jobs) - began
            started = max(nodes.began.values()) - began
            _check(told, world, nodes)
    log(f"slurm-throughput: {jobs:,} jobs from {SUBMITTERS} submitters, run at once")
    with (
        deployed(server, setting) as world,
        _said(world, jobs, log),
        nodes_of(world, setting, _at_once) as nodes,
    ):
        world.await_nodes()
        began = time.perf_counter()
        world.submit_one_by_one(snapshot.waiting, SUBMITTERS)
        running = time.perf_counter() - began
        settled = world.await_all("succeeded", jobs) - began
        _check(told, world, nodes)
    told.figures = [
        Figure(
            what="starts, all queued before", value=jobs / started, unit="starts/s",
            peer="Slurm 40-73/s; its manual: 500/s", peer_value=SLURM_STARTS,
            least=3_000,
        ),
        Figure(what="the same, until settled", value=jobs / queued, unit="jobs/s"),
        Figure(
            what=f"submissions, one by one from {SUBMITTERS}", value=jobs / submitted,
            unit="jobs/s", peer="Slurm 230/s", peer_value=230, least=1_500,
        ),
        Figure(
            what="the same while they start and end", value=jobs / running, unit="jobs/s",
            peer="Slurm 230/s", peer_value=230, least=1_500,
        ),
        Figure(what="the same, until settled", value=jobs / settled, unit="jobs/s"),
    ]  # fmt: skip
    return told


def _check(told: Load, world: World, nodes: Nodes, hopeless: Sequence[JobId] = ()) -> None:
    world.check(told, hopeless)
    told.problems += nodes.problems
    if nodes.taken:
        told.problems.append(f"{nodes.taken:,} GPUs are in use by nobody")


def _said(world: World, jobs: int, log: Log) -> AbstractContextManager[object]:
    """Log how far a load has got, every few seconds."""
    return _Saying(lambda: world.progress(jobs), log)


class _Saying:
    """A thread that says something now and then."""

    EVERY_S = 5.0

    def __init__(self, what: Callable[[], str], log: Log) -> None:
        self._what = what
        self._log = log
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> "_Saying":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._closed.wait(self.EVERY_S):
            self._log(f"  {self._what()}")
