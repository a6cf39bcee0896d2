"""The loads through the database: each with a deployment of its own, and its conservation check.

Seconds are elapsed time, which includes waiting for the database. A job runs when the ledger has
handled its start, and has ended when it is settled.
"""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager

from benchmarks.environment import Log
from benchmarks.results import Figure, Load
from benchmarks.schedule import loads
from benchmarks.schedule.durable.deployment import Deployment, LoadSetup, deploy, simulate_nodes
from benchmarks.schedule.durable.nodes import FOREVER, SimulatedNodes
from benchmarks.schedule.sizes import ScheduleSizes, Streams
from bursar.core.ids import JobId
from bursar.core.instant import SECOND
from bursar.core.scheduling.model.jobs import Job
from bursar.core.scheduling.model.snapshot import PoolSnapshot
from bursar.service.database import Database

SUBMITTERS = 8
SLURM_STARTS_PER_S = 73.0  # a second, its best on such a machine


def make_setup(snapshot: PoolSnapshot, jobs: Iterable[Job]) -> LoadSetup:
    """Collect the orgs and accounts of these jobs."""
    accounts: dict[str, dict[str, None]] = {}
    for job in jobs:
        accounts.setdefault(job.path[1], {})[job.path[2]] = None
    return LoadSetup(snapshot, {org: tuple(names) for org, names in accounts.items()})


def _run_forever(_: JobId) -> int:
    return FOREVER


def _end_at_once(_: JobId) -> int:
    return 0


# ----------------------------------------------------------------------- Kueue


def measure_kueue_baseline(server: Database, sizes: ScheduleSizes, log: Log) -> Load:
    """Measure few queues with more work than GPUs for a minute."""
    return _measure_streams(server, "kueue-baseline", sizes.baseline, 351, 70, log)


def measure_kueue_large(server: Database, sizes: ScheduleSizes, log: Log) -> Load:
    """Measure a thousand queues; jobs arrive faster than they are decided."""
    return _measure_streams(server, "kueue-large", sizes.large, 1_179, 120, log)


def _measure_streams(
    server: Database, name: str, streams: Streams, peer_s: int, most: float, log: Log
) -> Load:
    what = (
        f"{streams.jobs:,} jobs of {streams.groups * streams.queues:,} queues"
        f" in {streams.groups} groups"
    )
    log(f"{name}: {what}")
    load = Load(name=name, what=what)
    arriving = [
        ((at - loads.T0) / SECOND, job, runs) for at, job, runs in loads.list_arrivals(streams)
    ]
    runs_of = {job.id: runs for _, job, runs in arriving}
    setup = make_setup(loads.make_groups(streams), (job for _, job, _ in arriving))
    with (
        deploy(server, setup) as deployment,
        _log_progress(deployment, streams.jobs, log),
        simulate_nodes(deployment, setup, runs_of.__getitem__) as nodes,
    ):
        deployment.await_nodes()
        began = time.perf_counter()
        deployment.submit([(due, job) for due, job, _ in arriving], began)
        submitted = time.perf_counter() - began
        took = deployment.await_all("succeeded", streams.jobs) - began
        _check(load, deployment, nodes)
        waits = _describe_waits([(began + due, job) for due, job, _ in arriving], nodes)
    load.figures = [
        Figure(
            what="until all are settled", value=took, unit="s", most=most, peer_value=peer_s,
            peer=f"Kueue {peer_s:,} s",
        ),
        Figure(what="the same, of the ideal", value=took / streams.ideal_s, unit="x"),
        Figure(what="starts", value=streams.jobs / took, unit="starts/s"),
    ]  # fmt: skip
    load.notes.append(
        f"all submitted after {submitted:.1f} s; mean wait from when it was due to its start, by"
        f" class {waits}; {nodes.preemptions:,} preemptions; the ideal is"
        f" {streams.ideal_s:,.0f} s"
    )
    return load


def _describe_waits(due: Sequence[tuple[float, Job]], nodes: SimulatedNodes) -> str:
    spans: dict[int, list[float]] = {}
    for at, job in due:
        if job.id in nodes.first_starts:
            spans.setdefault(job.priority_class, []).append(nodes.first_starts[job.id] - at)
    return ", ".join(
        f"{priority}: {sum(waits) / len(waits):.1f} s" for priority, waits in sorted(spans.items())
    )


# ----------------------------------------------------------------------- KAI, Volcano, Slurm


def measure_kai_fill(server: Database, sizes: ScheduleSizes, log: Log) -> Load:
    """Measure queued one-GPU jobs once nodes come; again with hopeless jobs behind them."""
    gpus = 8 * sizes.kai_nodes
    load = Load(name="kai-fill", what=f"{sizes.kai_nodes} nodes x 8 GPUs, {gpus:,} x 1 GPU")
    log(f"kai-fill: {gpus:,} one-GPU jobs")
    plain = _measure_fill(server, loads.make_fill(sizes.kai_nodes, 0), gpus, load, log)
    log(f"kai-fill: the same with {sizes.hopeless} hopeless ones behind")
    behind = _measure_fill(
        server, loads.make_fill(sizes.kai_nodes, sizes.hopeless), gpus, load, log
    )
    load.figures = [
        Figure(what="all run", value=plain, unit="s", peer="KAI 398 s", peer_value=398, most=1.5),
        Figure(
            what=f"with {sizes.hopeless} hopeless jobs behind", value=behind, unit="s",
            yardstick="without", yardstick_value=plain, ratio_most=1.05,
            peer="KAI 398 s", peer_value=398,
        ),
    ]  # fmt: skip
    return load


def _measure_fill(
    server: Database, snapshot: PoolSnapshot, count: int, load: Load, log: Log
) -> float:
    """Measure the time from when the nodes come until `count` jobs run."""
    setup = make_setup(snapshot, snapshot.waiting)
    hopeless = [job.id for job in snapshot.waiting[count:]]
    with deploy(server, setup) as deployment, _log_progress(deployment, count, log):
        deployment.submit([(0.0, job) for job in snapshot.waiting], time.perf_counter())
        deployment.await_relay()
        began = time.perf_counter()
        with simulate_nodes(deployment, setup, _run_forever) as nodes:
            took = deployment.await_all("running", count) - began
            if nodes.gpus_in_use != count:
                load.problems.append(f"{nodes.gpus_in_use:,} of {count:,} GPUs are in use")
            nodes.end_all()
            deployment.await_all("succeeded", count)
            _check(load, deployment, nodes, hopeless)
    return took


def measure_volcano(server: Database, sizes: ScheduleSizes, log: Log) -> Load:
    """Measure as many tasks as GPUs, in jobs of different sizes, from the first submission."""
    load = Load(name="volcano-4", what="as many tasks as GPUs, as jobs of different sizes")
    for jobs, tasks in sizes.pods:
        log(f"volcano-4: {jobs:,} x {tasks:,}")
        snapshot = loads.make_pods(jobs, tasks)
        setup = make_setup(snapshot, snapshot.waiting)
        with (
            deploy(server, setup) as deployment,
            _log_progress(deployment, jobs, log),
            simulate_nodes(deployment, setup, _run_forever) as nodes,
        ):
            deployment.await_nodes()
            began = time.perf_counter()
            deployment.submit([(0.0, job) for job in snapshot.waiting], began)
            deployment.await_all("running", jobs)
            took = nodes.await_gpus(jobs * tasks) - began
            nodes.end_all()
            deployment.await_all("succeeded", jobs)
            _check(load, deployment, nodes)
        load.figures.append(
            Figure(
                what=f"{jobs:,} x {tasks:,}: all tasks run", value=took, unit="s", most=4,
                peer="Volcano 180-250 s" if tasks == 1 else "",
                peer_value=180 if tasks == 1 else None,
            )
        )  # fmt: skip
    return load


def measure_slurm_throughput(server: Database, sizes: ScheduleSizes, log: Log) -> Load:
    """Measure one-GPU jobs that end at once: queued before, and while they are submitted."""
    count, jobs = sizes.slurm_nodes, sizes.slurm_jobs
    load = Load(name="slurm-throughput", what=f"{count} nodes x 6 GPUs, {jobs:,} x 1 GPU")
    snapshot = loads.make_array(count, jobs, full=False)
    setup = make_setup(snapshot, snapshot.waiting)
    log(f"slurm-throughput: {jobs:,} jobs from {SUBMITTERS} submitters, then nodes come")
    with deploy(server, setup) as deployment, _log_progress(deployment, jobs, log):
        began = time.perf_counter()
        deployment.submit_one_by_one(snapshot.waiting, SUBMITTERS)
        submitted = time.perf_counter() - began
        deployment.await_relay()
        began = time.perf_counter()
        with simulate_nodes(deployment, setup, _end_at_once) as nodes:
            queued = deployment.await_all("succeeded", jobs) - began
            started = max(nodes.first_starts.values()) - began
            _check(load, deployment, nodes)
    log(f"slurm-throughput: {jobs:,} jobs from {SUBMITTERS} submitters, run at once")
    with (
        deploy(server, setup) as deployment,
        _log_progress(deployment, jobs, log),
        simulate_nodes(deployment, setup, _end_at_once) as nodes,
    ):
        deployment.await_nodes()
        began = time.perf_counter()
        deployment.submit_one_by_one(snapshot.waiting, SUBMITTERS)
        running = time.perf_counter() - began
        settled = deployment.await_all("succeeded", jobs) - began
        _check(load, deployment, nodes)
    load.figures = [
        Figure(
            what="starts, all queued before", value=jobs / started, unit="starts/s",
            peer="Slurm 40-73/s; its manual: 500/s", peer_value=SLURM_STARTS_PER_S,
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
    return load


def _check(
    load: Load, deployment: Deployment, nodes: SimulatedNodes, hopeless: Sequence[JobId] = ()
) -> None:
    deployment.check(load, hopeless)
    load.problems += nodes.problems
    if nodes.gpus_in_use:
        load.problems.append(f"{nodes.gpus_in_use:,} GPUs are in use without a job")


def _log_progress(deployment: Deployment, jobs: int, log: Log) -> AbstractContextManager[object]:
    """Log the progress of a load every few seconds."""
    return _ProgressLogger(lambda: deployment.describe_progress(jobs), log)


class _ProgressLogger:
    """A thread that logs a line at an interval."""

    INTERVAL_S = 5.0

    def __init__(self, describe: Callable[[], str], log: Log) -> None:
        self._describe = describe
        self._log = log
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> "_ProgressLogger":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._closed.wait(self.INTERVAL_S):
            self._log(f"  {self._describe()}")
