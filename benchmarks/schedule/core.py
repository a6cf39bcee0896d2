"""The loads in memory: decisions alone, without a database and without running the jobs.

Every load is decided by the planner of the service and, in the same run, by the yardstick
(`naive`). Seconds are processor time of the one thread that plans: on a shared machine elapsed
time depends on the other work.
"""

from benchmarks.environment import Log
from benchmarks.results import Figure, Load
from benchmarks.schedule import loads
from benchmarks.schedule.checker import Elapsed, MeasuredPool, Stopwatch, find_starts, find_victims
from benchmarks.schedule.loads import T0, make_job, make_path, make_shape
from benchmarks.schedule.naive import NaivePlanner, measure_cpu_s
from benchmarks.schedule.sizes import ScheduleSizes, Streams
from benchmarks.schedule.streams import BursarScheduler, NaiveScheduler, run_streams
from bursar.core.ids import JobId
from bursar.core.instant import SECOND
from bursar.core.scheduling.decisions import EarmarkGpus
from bursar.core.scheduling.explain.explanation import explain
from bursar.core.scheduling.model.jobs import Shape
from bursar.core.scheduling.model.snapshot import PoolSnapshot

BORROWER = make_path("borrower")[:2]
DECISIONS_MAX_S = 60.0  # processor time after which no further GPU is freed
DECISIONS_LEAST = 20  # GPUs that are freed in any case


# ----------------------------------------------------------------------- Kueue


def measure_kueue_baseline(sizes: ScheduleSizes, log: Log) -> Load:
    """Measure few queues with more work than GPUs for a minute."""
    return _measure_streams("kueue-baseline", sizes.baseline, "Kueue 351 s", "≤ 70 s durable", log)


def measure_kueue_large(sizes: ScheduleSizes, log: Log) -> Load:
    """Measure a thousand queues with hardly any waiting."""
    return _measure_streams("kueue-large", sizes.large, "Kueue 1,179 s", "≤ 120 s durable", log)


def _measure_streams(name: str, streams: Streams, peer: str, durable: str, log: Log) -> Load:
    what = (
        f"{streams.jobs:,} jobs of {streams.groups * streams.queues:,} queues"
        f" in {streams.groups} groups"
    )
    log(f"{name}: {what}")
    snapshot, arriving = loads.make_groups(streams), loads.list_arrivals(streams)
    pool = MeasuredPool(snapshot)
    outcome = run_streams(BursarScheduler(pool), arriving)
    log("  the yardstick")
    theirs = NaiveScheduler(NaivePlanner(snapshot))
    watch = Stopwatch()
    naive = run_streams(theirs, arriving)
    naive_s = watch.elapsed().cpu
    load = Load(name=name, what=what, problems=pool.checker.problems)
    if outcome.ended != streams.jobs or pool.checker.gpus:
        load.problems.append(f"{outcome.ended:,} of {streams.jobs:,} jobs have run")
    load.figures = [
        Figure(
            what="virtual time until all have run", value=outcome.makespan_s, unit="s",
            yardstick="naive", yardstick_value=naive.makespan_s, peer=peer, other_goal=durable,
        ),
        Figure(
            what="the same, of the ideal", value=outcome.makespan_s / streams.ideal_s, unit="x",
            yardstick="naive", yardstick_value=naive.makespan_s / streams.ideal_s,
        ),
        Figure(
            what=f"deciding, {pool.rounds:,} rounds", value=pool.round_time.cpu, unit="s",
            wall_s=pool.round_time.wall, yardstick="naive", yardstick_value=naive_s,
        ),
    ]  # fmt: skip
    means = ", ".join(f"{priority}: {mean:.1f} s" for priority, mean in outcome.waits_s.items())
    load.notes.append(
        f"mean wait by class {means}; {outcome.stopped:,} preemptions;"
        f" the ideal is {streams.ideal_s:,.0f} s"
    )
    return load


# ----------------------------------------------------------------------- KAI


def measure_kai_fill(sizes: ScheduleSizes, log: Log) -> Load:
    """Measure one-GPU jobs for all GPUs, then the same with hopeless jobs behind them."""
    gpus = 8 * sizes.kai_nodes
    log(f"kai-fill: {gpus:,} one-GPU jobs; with {sizes.hopeless} hopeless ones behind")
    load = Load(name="kai-fill", what=f"{sizes.kai_nodes} nodes x 8 GPUs, {gpus:,} x 1 GPU")
    plain, behind = [], []
    for _ in range(sizes.repeats):  # in turn, so that other work disturbs both alike
        plain.append(_measure_fill(loads.make_fill(sizes.kai_nodes, 0), load))
        behind.append(_measure_fill(loads.make_fill(sizes.kai_nodes, sizes.hopeless), load))
    naive_s = measure_cpu_s(NaivePlanner(loads.make_fill(sizes.kai_nodes, 0)).round)
    least = min(plain)
    load.figures = [
        Figure(
            what="all decided and carried out", value=least.cpu, unit="s", wall_s=least.wall,
            yardstick="naive", yardstick_value=naive_s, peer="KAI 398 s", most=0.4,
        ),
        Figure(
            what=f"{sizes.hopeless} hopeless jobs behind: more by",
            value=(min(behind).cpu / least.cpu - 1) * 100, unit="%", most=5,
        ),
    ]  # fmt: skip
    return load


def _measure_fill(snapshot: PoolSnapshot, load: Load) -> Elapsed:
    pool = MeasuredPool(snapshot)
    plan = pool.round(T0)
    took, gpus = pool.round_time, sum(node.gpus for node in snapshot.nodes)
    load.problems += pool.checker.problems
    if not len(find_starts(plan)) == len(plan.decisions) == gpus == pool.checker.gpus:
        load.problems.append(f"{len(find_starts(plan)):,} of {gpus:,} jobs start")
    if pool.round(T0).decisions:
        load.problems.append("a second round decides something")
    return took


def measure_kai_reclaim(sizes: ScheduleSizes, log: Log) -> Load:
    """Measure how the owner of lent GPUs reclaims them, with five kinds of jobs."""
    count = sizes.kai_nodes
    load = Load(name="kai-reclaim", what=f"{8 * count:,} GPUs lent as one-GPU jobs")
    for asks, of, peer, most in (
        (1, make_shape(), "KAI 13.9 s", 0.1),
        (8 * count, make_shape(), "KAI 694 s", 20),
        (sizes.gangs, make_shape(10, 8), "KAI 717 s", 20),
        (1, make_shape(count // 2, 8), "KAI 102 s", 5),
        (1, make_shape(count, 8), "KAI 85 s", 5),
    ):
        what = f"{asks:,} x {_describe_shape(of)}"
        log(f"kai-reclaim: {what}")
        snapshot = loads.make_reclaim(count, asks, of)
        took = _measure_reclaim(snapshot, load)
        naive_s = measure_cpu_s(NaivePlanner(snapshot, BORROWER).round)
        load.figures.append(
            Figure(
                what=what,
                value=took.cpu,
                unit="s",
                wall_s=took.wall,
                yardstick="naive",
                yardstick_value=naive_s,
                peer=peer,
                most=most,
            )
        )
    return load


def _describe_shape(of: Shape) -> str:
    return "1 GPU" if of.tasks == 1 else f"({of.tasks} x {of.gpus}) GPUs"


def _measure_reclaim(snapshot: PoolSnapshot, load: Load) -> Elapsed:
    """Measure the choice of victims; then check that all waiting jobs start."""
    pool = MeasuredPool(snapshot)
    plan = pool.round(T0)
    took, victims = pool.plan_time, find_victims(plan)
    earmarks = [decision for decision in plan.decisions if isinstance(decision, EarmarkGpus)]
    asks = len(snapshot.waiting)
    gpus = sum(waiting.shape.milli_gpus for waiting in snapshot.waiting) // 1_000
    if len(earmarks) != asks or len(victims) != gpus:
        load.problems.append(f"{len(victims):,} victims for {len(earmarks):,} of {asks:,} jobs")
    later = T0 + snapshot.policy.preemption_grace
    pool.cluster.advance_to(later)
    for victim in victims:
        pool.end(victim.job)
    starts = find_starts(pool.round(later))
    if len(starts) != asks:
        load.problems.append(f"{len(starts):,} of {asks:,} jobs start once the victims have left")
    load.problems += pool.checker.problems
    return took


def measure_kai_negative(sizes: ScheduleSizes, log: Log) -> Load:
    """Measure a gang that lacks exactly one legal victim."""
    log("kai-negative: a gang that lacks one victim")
    gang = make_shape(10, 8)
    snapshot = loads.make_reclaim(sizes.kai_nodes, 1, gang, protected=8 * sizes.kai_nodes - 79)
    load = Load(name="kai-negative", what="a gang of 10 x 8 GPUs has 79 legal victims")
    pool = MeasuredPool(snapshot)
    plan = pool.round(T0)
    load.figures.append(
        Figure(
            what="the answer no",
            value=pool.plan_time.cpu,
            unit="s",
            wall_s=pool.plan_time.wall,
            peer="KAI 249 s",
            most=1,
        )
    )
    load.problems += pool.checker.problems
    if plan.decisions or [wait.job for wait in plan.waits] != ["ask00000"]:
        load.problems.append(f"{len(plan.decisions):,} decisions where none is right")
        return load
    clocks = Stopwatch()
    explained = explain(pool.cluster, JobId("ask00000"), T0, plan)
    why = clocks.elapsed()
    load.figures.append(Figure(what="the reason", value=why.cpu, unit="s", wall_s=why.wall, most=1))
    load.notes += explained.render()
    return load


# ----------------------------------------------------------------------- Volcano, Armada, Slurm


def measure_volcano(sizes: ScheduleSizes, log: Log) -> Load:
    """Measure as many tasks as GPUs, in jobs of different sizes."""
    load = Load(name="volcano-4", what="as many tasks as GPUs, as jobs of different sizes")
    for jobs, tasks in sizes.pods:
        log(f"volcano-4: {jobs:,} x {tasks:,}")
        snapshot = loads.make_pods(jobs, tasks)
        pool = MeasuredPool(snapshot)
        plan = pool.round(T0)
        naive_s = measure_cpu_s(NaivePlanner(snapshot).round)
        load.problems += pool.checker.problems
        if len(find_starts(plan)) != jobs or pool.checker.gpus != jobs * tasks:
            load.problems.append(f"{len(find_starts(plan)):,} of {jobs:,} jobs start")
        load.figures.append(
            Figure(
                what=f"{jobs:,} x {tasks:,}",
                value=pool.round_time.cpu,
                unit="s",
                wall_s=pool.round_time.wall,
                yardstick="naive",
                yardstick_value=naive_s,
                peer="Volcano 180-250 s" if tasks == 1 else "",
                other_goal="≤ 4 s durable",
            )
        )
    return load


def measure_armada_steady(sizes: ScheduleSizes, log: Log) -> Load:
    """Measure a full cluster: a cold start that changes nothing, then small changes."""
    count, gpus = sizes.steady_nodes, sizes.steady_gpus
    log(f"armada-steady: {count * gpus:,} jobs run")
    snapshot = loads.make_steady(count, gpus)
    pool = MeasuredPool(snapshot)
    load = Load(name="armada-steady", what=f"{count:,} nodes x {gpus} slots, all running")
    if pool.round(T0).decisions:
        load.problems.append("a round decides something where nothing is to be done")
    cold = pool.build_time.plus(pool.round_time)
    naive_s = measure_cpu_s(lambda: NaivePlanner(snapshot).round())
    took, naive_change = _measure_changes(pool, NaivePlanner(snapshot), sizes.steady_changes, load)
    load.figures = [
        Figure(
            what="cold start, nothing to do", value=cold.cpu, unit="s", wall_s=cold.wall,
            yardstick="naive", yardstick_value=naive_s, peer="Armada 1.3 s", most=1.3,
        ),
        Figure(
            what="one ends, one arrives: the slowest", value=max(took) * 1_000, unit="ms",
            yardstick="naive", yardstick_value=naive_change * 1_000, most=20,
        ),
    ]  # fmt: skip
    load.problems += pool.checker.problems
    return load


def _measure_changes(
    pool: MeasuredPool, naive: NaivePlanner, times: int, load: Load
) -> tuple[list[float], float]:
    """Processor time of each change, and the mean of the yardstick, in seconds."""
    running, took, naive_s = sorted(pool.cluster.running), [], 0.0
    for number in range(times):
        now = T0 + (number + 1) * SECOND
        ended = running[number * 7_919 % len(running) - number]
        new = make_job(
            f"new{number}", make_path(f"queue{number % 10}"), make_shape(), queued_at=now
        )
        before = pool.round_time.cpu
        pool.cluster.advance_to(now)
        pool.end(ended)
        pool.cluster.enqueue(new)
        if [start.job for start in find_starts(pool.round(now))] != [new.id]:
            load.problems.append(f"{new.id} does not start on the GPU of {ended}")
        took.append(pool.round_time.cpu - before)
        naive.end(ended)
        naive.waiting.append(new)
        naive_s += measure_cpu_s(naive.round)
    return took, naive_s / times


def measure_slurm_throughput(sizes: ScheduleSizes, log: Log) -> Load:
    """Measure an array of jobs that end at once, then rounds over a queue with nothing free."""
    count, jobs = sizes.slurm_nodes, sizes.slurm_jobs
    log(f"slurm-throughput: {jobs:,} one-GPU jobs on {count * 6:,} GPUs")
    load = Load(name="slurm-throughput", what=f"{count} nodes x 6 GPUs, {jobs:,} x 1 GPU")
    snapshot = loads.make_array(count, jobs, full=False)
    pool = MeasuredPool(snapshot)
    if (started := _run_waves(pool)) != jobs:
        load.problems.append(f"{started:,} of {jobs:,} jobs have run")
    naive_s = measure_cpu_s(lambda: _run_naive_waves(NaivePlanner(snapshot)))
    load.figures.append(
        Figure(
            what="starts decided and carried out",
            value=jobs / pool.round_time.cpu,
            unit="starts/s",
            wall_s=pool.round_time.wall,
            yardstick="naive",
            yardstick_value=jobs / naive_s,
            peer="Slurm 40-73/s; its manual: 500/s",
            least=3_000,
        )
    )
    load.problems += pool.checker.problems
    peer = "Slurm 10-16 s; full depth 89 s"
    alike = loads.make_array(count, jobs, full=True)
    load.figures.append(_measure_full_round("a round, all pending alike", alike, peer, load))
    tenants = max(jobs // 5, 1)
    mixed = loads.make_deep_queue(-(-count * 6 // 8), tenants, jobs, looks=10 * jobs)
    what = f"a round, {tenants:,} tenants, 200 shapes"
    load.figures.append(_measure_full_round(what, mixed, peer, load))
    return load


def _run_waves(pool: MeasuredPool) -> int:
    """Start what fits and end it, until nothing starts; return the number of starts."""
    now, started = T0, 0
    while starts := find_starts(pool.round(now)):
        started += len(starts)
        now += SECOND
        pool.cluster.advance_to(now)
        for start in starts:
            pool.end(start.job)
    return started


def _run_naive_waves(naive: NaivePlanner) -> None:
    while started := naive.round():
        for job in started:
            naive.end(job.id)


def _measure_full_round(what: str, snapshot: PoolSnapshot, peer: str, load: Load) -> Figure:
    """Measure a round that attempts everything and starts nothing: all GPUs are in use."""
    pool = MeasuredPool(snapshot)
    plan = pool.round(T0)
    if find_starts(plan) or not plan.complete:
        load.problems.append(f"{what}: {len(find_starts(plan))} starts, complete: {plan.complete}")
    load.problems += pool.checker.problems
    return Figure(
        what=what,
        value=pool.plan_time.cpu,
        unit="s",
        wall_s=pool.plan_time.wall,
        peer=peer,
        most=0.3,
    )


# ----------------------------------------------------------------------- a deep queue


def measure_deep_queue(sizes: ScheduleSizes, log: Log) -> Load:
    """Measure decisions on a full cluster with a very long queue, each time a GPU is freed."""
    few, many = sizes.deep_queued
    load = Load(
        name="deep-queue",
        what=f"{8 * sizes.deep_nodes:,} GPUs full, {sizes.deep_tenants:,} tenants, 200 shapes",
    )
    took, naive_s = _measure_decisions(sizes, few, sizes.deep_frees, load, log)
    more, _ = _measure_decisions(sizes, many, sizes.deep_many_frees, load, log)
    load.figures = [
        Figure(
            what=f"{few:,} queued: a decision, p50", value=_percentile_ms(took, 50), unit="ms",
            yardstick="naive", yardstick_value=naive_s * 1_000,
        ),
        Figure(
            what=f"{few:,} queued: a decision, p99", value=_percentile_ms(took, 99), unit="ms",
            most=5,
        ),
        Figure(
            what=f"{many:,} queued: a decision, p50", value=_percentile_ms(more, 50), unit="ms",
            yardstick=f"{few:,} queued", yardstick_value=_percentile_ms(took, 50), ratio_most=1.5,
        ),
        Figure(what=f"{many:,} queued: a decision, p99", value=_percentile_ms(more, 99), unit="ms"),
    ]  # fmt: skip
    return load


def _percentile_ms(took: list[float], percent: int) -> float:
    """A percentile of times in seconds, in milliseconds."""
    return sorted(took)[max(-(-len(took) * percent // 100) - 1, 0)] * 1_000


def _measure_decisions(
    sizes: ScheduleSizes, queued: int, frees: int, load: Load, log: Log
) -> tuple[list[float], float]:
    """Processor time of each decision, and of the yardstick's first, in seconds."""
    log(f"deep-queue: {queued:,} queued")
    snapshot = loads.make_deep_queue(sizes.deep_nodes, sizes.deep_tenants, queued)
    pool = MeasuredPool(snapshot)
    if find_starts(pool.round(T0)):
        load.problems.append("something starts where nothing is free")
    first, running = pool.round_time.cpu, sorted(pool.cluster.running)
    took: list[float] = []
    starts = 0
    for number in range(frees):
        if number >= DECISIONS_LEAST and sum(took) > DECISIONS_MAX_S:
            break
        before, now = pool.round_time.cpu, T0 + (number + 1) * SECOND
        pool.cluster.advance_to(now)
        pool.end(running[number * 7_919 % len(running)])
        starts += len(find_starts(pool.round(now)))
        took.append(pool.round_time.cpu - before)
    load.notes.append(
        f"{queued:,} queued: built in {pool.build_time.cpu:.1f} s,"
        f" first round {first * 1_000:,.0f} ms;"
        f" {len(took)} GPUs became free, {starts} jobs started"
    )
    load.problems += pool.checker.problems
    log("  the yardstick")
    naive = NaivePlanner(snapshot)
    naive.end(running[0])
    return took, measure_cpu_s(naive.round)
