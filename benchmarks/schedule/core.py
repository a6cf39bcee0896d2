"""The loads in memory: decisions alone, with nobody who runs the jobs and no database.

Every load is decided by the planner that the service uses, and beside it, in the same run, by the
yardstick (`naive`). Seconds are processor time of the one thread that plans: on a machine with
other work the clock on the wall tells more about the neighbours.
"""

from benchmarks.environment import Log
from benchmarks.results import Figure, Load
from benchmarks.schedule import loads
from benchmarks.schedule.checker import Pool, Stopwatch, Took, starts_of, victims_of
from benchmarks.schedule.loads import T0, job, path, shape
from benchmarks.schedule.naive import Naive, seconds_of
from benchmarks.schedule.sizes import ScheduleSizes, Streams
from benchmarks.schedule.streams import Ours, Theirs, drive
from bursar.core.ids import JobId
from bursar.core.instant import SECOND
from bursar.core.scheduling.decisions import EarmarkGpus
from bursar.core.scheduling.explain.explanation import explain
from bursar.core.scheduling.model.jobs import Shape
from bursar.core.scheduling.model.snapshot import PoolSnapshot

LENT = path("borrower")[:2]
DEEP_S = 60.0  # processor time after which no further GPU becomes free
EACH_LEAST = 20  # but so many do


# ----------------------------------------------------------------------- Kueue


def kueue_baseline(sizes: ScheduleSizes, log: Log) -> Load:
    """Few queues, more work than GPUs for a minute."""
    return _streams("kueue-baseline", sizes.baseline, "Kueue 351 s", "≤ 70 s durable", log)


def kueue_large(sizes: ScheduleSizes, log: Log) -> Load:
    """A thousand queues, hardly any waiting."""
    return _streams("kueue-large", sizes.large, "Kueue 1,179 s", "≤ 120 s durable", log)


def _streams(name: str, load: Streams, peer: str, durable: str, log: Log) -> Load:
    what = f"{load.jobs:,} jobs of {load.groups * load.queues:,} queues in {load.groups} groups"
    log(f"{name}: {what}")
    snapshot, arriving = loads.groups(load), loads.arrivals(load)
    pool = Pool(snapshot)
    went = drive(Ours(pool), arriving)
    log("  the yardstick")
    theirs = Theirs(Naive(snapshot))
    watch = Stopwatch()
    naive = drive(theirs, arriving)
    naive_s = watch.took().cpu
    told = Load(name=name, what=what, problems=pool.watch.problems)
    if went.ended != load.jobs or pool.watch.gpus:
        told.problems.append(f"{went.ended:,} of {load.jobs:,} jobs have run")
    told.figures = [
        Figure(
            what="virtual time until all have run", value=went.makespan_s, unit="s",
            yardstick="naive", yardstick_value=naive.makespan_s, peer=peer, other_goal=durable,
        ),
        Figure(
            what="the same, of the ideal", value=went.makespan_s / load.ideal_s, unit="x",
            yardstick="naive", yardstick_value=naive.makespan_s / load.ideal_s,
        ),
        Figure(
            what=f"deciding, {pool.rounds:,} rounds", value=pool.took.cpu, unit="s",
            wall_s=pool.took.wall, yardstick="naive", yardstick_value=naive_s,
        ),
    ]  # fmt: skip
    means = ", ".join(f"{one}: {mean:.1f} s" for one, mean in went.waits_s.items())
    told.notes.append(
        f"mean wait by class {means}; {went.stopped:,} times one made room for another;"
        f" the ideal is {load.ideal_s:,.0f} s"
    )
    return told


# ----------------------------------------------------------------------- KAI


def kai_fill(sizes: ScheduleSizes, log: Log) -> Load:
    """One-GPU jobs for all GPUs, then the same with hopeless ones behind."""
    gpus = 8 * sizes.kai_nodes
    log(f"kai-fill: {gpus:,} one-GPU jobs; with {sizes.hopeless} hopeless ones behind")
    told = Load(name="kai-fill", what=f"{sizes.kai_nodes} nodes x 8 GPUs, {gpus:,} x 1 GPU")
    plain, behind = [], []
    for _ in range(sizes.repeats):  # in turn, so that neighbours disturb both alike
        plain.append(_fill(loads.filling(sizes.kai_nodes, 0), told))
        behind.append(_fill(loads.filling(sizes.kai_nodes, sizes.hopeless), told))
    naive_s = seconds_of(Naive(loads.filling(sizes.kai_nodes, 0)).round)
    least = min(plain)
    told.figures = [
        Figure(
            what="all decided and carried out", value=least.cpu, unit="s", wall_s=least.wall,
            yardstick="naive", yardstick_value=naive_s, peer="KAI 398 s", most=0.4,
        ),
        Figure(
            what=f"{sizes.hopeless} hopeless jobs behind: more by",
            value=(min(behind).cpu / least.cpu - 1) * 100, unit="%", most=5,
        ),
    ]  # fmt: skip
    return told


def _fill(snapshot: PoolSnapshot, told: Load) -> Took:
    pool = Pool(snapshot)
    plan = pool.round(T0)
    took, gpus = pool.took, sum(node.gpus for node in snapshot.nodes)
    told.problems += pool.watch.problems
    if not len(starts_of(plan)) == len(plan.decisions) == gpus == pool.watch.gpus:
        told.problems.append(f"{len(starts_of(plan)):,} of {gpus:,} jobs start")
    if pool.round(T0).decisions:
        told.problems.append("a second look decides something")
    return took


def kai_reclaim(sizes: ScheduleSizes, log: Log) -> Load:
    """All GPUs are lent; those whose they are ask for them in five ways."""
    count = sizes.kai_nodes
    told = Load(name="kai-reclaim", what=f"{8 * count:,} GPUs lent as one-GPU jobs")
    for asks, of, peer, most in (
        (1, shape(), "KAI 13.9 s", 0.1),
        (8 * count, shape(), "KAI 694 s", 20),
        (sizes.gangs, shape(10, 8), "KAI 717 s", 20),
        (1, shape(count // 2, 8), "KAI 102 s", 5),
        (1, shape(count, 8), "KAI 85 s", 5),
    ):
        what = f"{asks:,} x {_sized(of)}"
        log(f"kai-reclaim: {what}")
        snapshot = loads.reclaiming(count, asks, of)
        took = _reclaim(snapshot, told)
        naive_s = seconds_of(Naive(snapshot, LENT).round)
        told.figures.append(
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
    return told


def _sized(of: Shape) -> str:
    return "1 GPU" if of.tasks == 1 else f"({of.tasks} x {of.gpus}) GPUs"


def _reclaim(snapshot: PoolSnapshot, told: Load) -> Took:
    """The time until it is decided who leaves; then see that all who asked start."""
    pool = Pool(snapshot)
    plan = pool.round(T0)
    took, victims = pool.planned, victims_of(plan)
    kept = [one for one in plan.decisions if isinstance(one, EarmarkGpus)]
    asks = len(snapshot.waiting)
    wanted = sum(one.shape.milli_gpus for one in snapshot.waiting) // 1_000
    if len(kept) != asks or len(victims) != wanted:
        told.problems.append(f"{len(victims):,} leave for {len(kept):,} of {asks:,} jobs")
    later = T0 + snapshot.policy.preemption_grace
    pool.cluster.advance_to(later)
    for victim in victims:
        pool.end(victim.job)
    starts = starts_of(pool.round(later))
    if len(starts) != asks:
        told.problems.append(f"{len(starts):,} of {asks:,} jobs start once the victims have left")
    told.problems += pool.watch.problems
    return took


def kai_negative(sizes: ScheduleSizes, log: Log) -> Load:
    """A gang that lacks exactly one GPU that it could ask for."""
    log("kai-negative: a gang that lacks one victim")
    gang = shape(10, 8)
    snapshot = loads.reclaiming(sizes.kai_nodes, 1, gang, kept=8 * sizes.kai_nodes - 79)
    told = Load(name="kai-negative", what="a gang of 10 x 8 GPUs may ask 79 victims")
    pool = Pool(snapshot)
    plan = pool.round(T0)
    told.figures.append(
        Figure(
            what="the answer no",
            value=pool.planned.cpu,
            unit="s",
            wall_s=pool.planned.wall,
            peer="KAI 249 s",
            most=1,
        )
    )
    told.problems += pool.watch.problems
    if plan.decisions or [one.job for one in plan.waits] != ["ask00000"]:
        told.problems.append(f"{len(plan.decisions):,} decisions where none is right")
        return told
    clocks = Stopwatch()
    explained = explain(pool.cluster, JobId("ask00000"), T0, plan)
    why = clocks.took()
    told.figures.append(Figure(what="the reason", value=why.cpu, unit="s", wall_s=why.wall, most=1))
    told.notes += explained.render()
    return told


# ----------------------------------------------------------------------- Volcano, Armada, Slurm


def volcano(sizes: ScheduleSizes, log: Log) -> Load:
    """As many tasks as GPUs, in jobs of different sizes."""
    told = Load(name="volcano-4", what="as many tasks as GPUs, as jobs of different sizes")
    for jobs, tasks in sizes.pods:
        log(f"volcano-4: {jobs:,} x {tasks:,}")
        snapshot = loads.pods(jobs, tasks)
        pool = Pool(snapshot)
        plan = pool.round(T0)
        naive_s = seconds_of(Naive(snapshot).round)
        told.problems += pool.watch.problems
        if len(starts_of(plan)) != jobs or pool.watch.gpus != jobs * tasks:
            told.problems.append(f"{len(starts_of(plan)):,} of {jobs:,} jobs start")
        told.figures.append(
            Figure(
                what=f"{jobs:,} x {tasks:,}",
                value=pool.took.cpu,
                unit="s",
                wall_s=pool.took.wall,
                yardstick="naive",
                yardstick_value=naive_s,
                peer="Volcano 180-250 s" if tasks == 1 else "",
                other_goal="≤ 4 s durable",
            )
        )
    return told


def armada_steady(sizes: ScheduleSizes, log: Log) -> Load:
    """Everything runs: a cold start that changes nothing, then small changes."""
    count, gpus = sizes.steady_nodes, sizes.steady_gpus
    log(f"armada-steady: {count * gpus:,} jobs run")
    snapshot = loads.steady(count, gpus)
    pool = Pool(snapshot)
    told = Load(name="armada-steady", what=f"{count:,} nodes x {gpus} slots, all running")
    if pool.round(T0).decisions:
        told.problems.append("a round decides something where nothing is to be done")
    cold = pool.read.and_also(pool.took)
    naive_s = seconds_of(lambda: Naive(snapshot).round())
    took, naive_change = _changes(pool, Naive(snapshot), sizes.steady_changes, told)
    told.figures = [
        Figure(
            what="cold start, nothing to do", value=cold.cpu, unit="s", wall_s=cold.wall,
            yardstick="naive", yardstick_value=naive_s, peer="Armada 1.3 s", most=1.3,
        ),
        Figure(
            what="one ends, one arrives: the slowest", value=max(took) * 1_000, unit="ms",
            yardstick="naive", yardstick_value=naive_change * 1_000, most=20,
        ),
    ]  # fmt: skip
    told.problems += pool.watch.problems
    return told


def _changes(pool: Pool, naive: Naive, times: int, told: Load) -> tuple[list[float], float]:
    """What each of these took, and on average what it took the yardstick."""
    running, took, naive_s = sorted(pool.cluster.running), [], 0.0
    for number in range(times):
        now = T0 + (number + 1) * SECOND
        ended = running[number * 7_919 % len(running) - number]
        new = job(f"new{number}", path(f"queue{number % 10}"), shape(), queued_at=now)
        before = pool.took.cpu
        pool.cluster.advance_to(now)
        pool.end(ended)
        pool.cluster.enqueue(new)
        if [one.job for one in starts_of(pool.round(now))] != [new.id]:
            told.problems.append(f"{new.id} does not start on the GPU of {ended}")
        took.append(pool.took.cpu - before)
        naive.end(ended)
        naive.waiting.append(new)
        naive_s += seconds_of(naive.round)
    return took, naive_s / times


def slurm_throughput(sizes: ScheduleSizes, log: Log) -> Load:
    """An array of one-GPU jobs that end at once; then rounds over a queue with nothing free."""
    count, jobs = sizes.slurm_nodes, sizes.slurm_jobs
    log(f"slurm-throughput: {jobs:,} one-GPU jobs on {count * 6:,} GPUs")
    told = Load(name="slurm-throughput", what=f"{count} nodes x 6 GPUs, {jobs:,} x 1 GPU")
    snapshot = loads.array(count, jobs, full=False)
    pool = Pool(snapshot)
    if (started := _waves(pool)) != jobs:
        told.problems.append(f"{started:,} of {jobs:,} jobs have run")
    naive_s = seconds_of(lambda: _naive_waves(Naive(snapshot)))
    told.figures.append(
        Figure(
            what="starts decided and carried out",
            value=jobs / pool.took.cpu,
            unit="starts/s",
            wall_s=pool.took.wall,
            yardstick="naive",
            yardstick_value=jobs / naive_s,
            peer="Slurm 40-73/s; its manual: 500/s",
            least=3_000,
        )
    )
    told.problems += pool.watch.problems
    peer = "Slurm 10-16 s; full depth 89 s"
    alike = loads.array(count, jobs, full=True)
    told.figures.append(_full_round("a round, all pending alike", alike, peer, told))
    tenants = max(jobs // 5, 1)
    mixed = loads.deep(-(-count * 6 // 8), tenants, jobs, looks=10 * jobs)
    what = f"a round, {tenants:,} tenants, 200 shapes"
    told.figures.append(_full_round(what, mixed, peer, told))
    return told


def _waves(pool: Pool) -> int:
    """Start what fits and let it end, until nothing starts; how many have run."""
    now, started = T0, 0
    while starts := starts_of(pool.round(now)):
        started += len(starts)
        now += SECOND
        pool.cluster.advance_to(now)
        for start in starts:
            pool.end(start.job)
    return started


def _naive_waves(naive: Naive) -> None:
    while started := naive.round():
        for one in started:
            naive.end(one.id)


def _full_round(what: str, snapshot: PoolSnapshot, peer: str, told: Load) -> Figure:
    """A round that looks at everything and starts nothing: all GPUs are taken."""
    pool = Pool(snapshot)
    plan = pool.round(T0)
    if starts_of(plan) or not plan.complete:
        told.problems.append(f"{what}: {len(starts_of(plan))} starts, complete: {plan.complete}")
    told.problems += pool.watch.problems
    return Figure(
        what=what, value=pool.planned.cpu, unit="s", wall_s=pool.planned.wall, peer=peer, most=0.3
    )


# ----------------------------------------------------------------------- a deep queue


def deep_queue(sizes: ScheduleSizes, log: Log) -> Load:
    """Nothing is free and very much waits; a GPU becomes free, again and again."""
    few, many = sizes.deep_queued
    told = Load(
        name="deep-queue",
        what=f"{8 * sizes.deep_nodes:,} GPUs full, {sizes.deep_tenants:,} tenants, 200 shapes",
    )
    took, naive_s = _deep(sizes, few, sizes.deep_frees, told, log)
    more, _ = _deep(sizes, many, sizes.deep_many_frees, told, log)
    told.figures = [
        Figure(
            what=f"{few:,} queued: a decision, p50", value=_part(took, 50), unit="ms",
            yardstick="naive", yardstick_value=naive_s * 1_000,
        ),
        Figure(what=f"{few:,} queued: a decision, p99", value=_part(took, 99), unit="ms", most=5),
        Figure(
            what=f"{many:,} queued: a decision, p50", value=_part(more, 50), unit="ms",
            yardstick=f"{few:,} queued", yardstick_value=_part(took, 50), ratio_most=1.5,
        ),
        Figure(what=f"{many:,} queued: a decision, p99", value=_part(more, 99), unit="ms"),
    ]  # fmt: skip
    return told


def _part(took: list[float], percent: int) -> float:
    """The time that so many percent of all do not pass, in milliseconds."""
    return sorted(took)[max(-(-len(took) * percent // 100) - 1, 0)] * 1_000


def _deep(
    sizes: ScheduleSizes, queued: int, frees: int, told: Load, log: Log
) -> tuple[list[float], float]:
    """Processor seconds of each decision, and of the yardstick's first."""
    log(f"deep-queue: {queued:,} queued")
    snapshot = loads.deep(sizes.deep_nodes, sizes.deep_tenants, queued)
    pool = Pool(snapshot)
    if starts_of(pool.round(T0)):
        told.problems.append("something starts where nothing is free")
    first, running = pool.took.cpu, sorted(pool.cluster.running)
    took: list[float] = []
    starts = 0
    for number in range(frees):
        if number >= EACH_LEAST and sum(took) > DEEP_S:
            break
        before, now = pool.took.cpu, T0 + (number + 1) * SECOND
        pool.cluster.advance_to(now)
        pool.end(running[number * 7_919 % len(running)])
        starts += len(starts_of(pool.round(now)))
        took.append(pool.took.cpu - before)
    told.notes.append(
        f"{queued:,} queued: read in {pool.read.cpu:.1f} s, first round {first * 1_000:,.0f} ms;"
        f" {len(took)} GPUs became free, {starts} jobs started"
    )
    told.problems += pool.watch.problems
    log("  the yardstick")
    naive = Naive(snapshot)
    naive.end(running[0])
    return took, seconds_of(naive.round)
