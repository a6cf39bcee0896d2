"""The loads of the table in docs/scheduling.md as snapshots: what is there at the beginning."""

import random
from collections.abc import Callable, Iterable
from typing import Final

from benchmarks.environment import SEED
from benchmarks.schedule.sizes import Stream, Streams
from bursar.core.ids import JobId, NodeId
from bursar.core.instant import DAY, HOUR, MINUTE, SECOND, Instant
from bursar.core.scheduling.model.jobs import Job, Path, RunningJob, Shape
from bursar.core.scheduling.model.nodes import Node, Piece
from bursar.core.scheduling.model.policy import ANY_TYPE, PoolPolicy, Share, Tier
from bursar.core.scheduling.model.snapshot import PoolSnapshot
from bursar.core.value import replace

T0: Final[Instant] = 20_000 * DAY
TIER: Final = Tier(name="paid")
GPU_TYPE: Final = "H100"
PRICES: Final = ((GPU_TYPE, 2_000_000),)
SHAPES: Final = tuple(  # tasks, GPUs of each, CPUs of each: 200 that placement tells apart
    (tasks, gpus, cpus)
    for cpus in range(1, 26)
    for tasks, gpus in ((1, 1), (1, 2), (1, 4), (1, 8), (2, 8), (4, 8), (8, 8), (16, 8))
)
RUN_MAX: Final = 10 * SECOND  # what a job of the streams says that it may run


def make_shape(tasks: int = 1, gpus: int = 1, cpus: int = 0) -> Shape:
    """So many tasks, each with so many whole GPUs."""
    return Shape(types=(GPU_TYPE,), tasks=tasks, gpus=gpus, cpu_milli=1_000 * cpus)


def make_job(
    name: str, path: Path, of: Shape, *, run_max: int = DAY, queued_at: Instant = T0
) -> Job:
    """A job that waits."""
    return Job(
        id=JobId(name), shape=of, path=path, prices=PRICES, run_max=run_max, queued_at=queued_at
    )


def make_path(org: str, account: str = "team", user: str = "user") -> Path:
    """Whose a job is."""
    return TIER.name, org, account, user


def make_nodes(count: int, gpus: int, cpus: int = 0) -> tuple[Node, ...]:
    """Nodes that are all alike."""
    return tuple(
        Node(id=NodeId(f"n{number:05}"), gpu_type=GPU_TYPE, gpus=gpus, cpu_milli=1_000 * cpus)
        for number in range(count)
    )


def make_policy(*shares: tuple[Path, Share], looks: int = PoolPolicy().looks) -> PoolPolicy:
    """The shipped policy for a pool with one tier, and these shares."""
    return PoolPolicy(tiers=(TIER,), shares=shares, looks=looks)


def fill_nodes(
    all_nodes: tuple[Node, ...], owner: Callable[[int], Path], run_max: int = DAY
) -> tuple[RunningJob, ...]:
    """One-GPU jobs on all GPUs, which began at different times."""
    single, running = make_shape(), []
    places = [(node.id, gpu) for node in all_nodes for gpu in range(node.gpus)]
    for number, (node, gpu) in enumerate(places):
        began = T0 - 10 * MINUTE - number * 7_919 % 3_600 * SECOND
        ask = make_job(f"r{number:06}", owner(number), single, run_max=run_max, queued_at=began)
        piece = Piece(node, (gpu,), 1)
        running.append(
            RunningJob(
                job=ask, gpu_type=GPU_TYPE, pieces=(piece,), started_at=began, saved_at=began
            )
        )
    return tuple(running)


def make_fill(count: int, hopeless: int) -> PoolSnapshot:
    """KAI's fill: an empty pool, a one-GPU job for each GPU, hopeless jobs of others behind."""
    single, gpus = make_shape(), 8 * count
    team, excluded = make_path("team"), make_path("zero")
    return PoolSnapshot(
        at=T0,
        policy=make_policy(
            (team[:2], Share(floor=((ANY_TYPE, gpus),))),
            (excluded[:2], Share(ceiling=((ANY_TYPE, 0),))),
        ),
        nodes=make_nodes(count, 8),
        waiting=(
            *(make_job(f"j{number:06}", team, single) for number in range(gpus)),
            *(make_job(f"z{number:06}", excluded, single) for number in range(hopeless)),
        ),
    )


def make_reclaim(count: int, asks: int, of: Shape, *, protected: int = 0) -> PoolSnapshot:
    """KAI's reclaim: all GPUs are lent, and those whose they are ask for some.

    The borrower has a claim to `kept` of them.
    """
    all_nodes, owner, borrower = make_nodes(count, 8), make_path("entitled"), make_path("borrower")
    floors = [(owner[:2], Share(floor=((ANY_TYPE, 8 * count - protected),)))]
    if protected:
        floors.append((borrower[:2], Share(floor=((ANY_TYPE, protected),))))
    return PoolSnapshot(
        at=T0,
        policy=make_policy(*floors),
        nodes=all_nodes,
        waiting=tuple(make_job(f"ask{number:05}", owner, of) for number in range(asks)),
        running=fill_nodes(all_nodes, lambda _: borrower),
    )


def make_pods(jobs: int, tasks: int) -> PoolSnapshot:
    """Volcano's four: as many tasks as there are GPUs, in jobs of different sizes."""
    of = make_shape(tasks)
    return PoolSnapshot(
        at=T0,
        policy=make_policy(),
        nodes=make_nodes(-(-jobs * tasks // 8), 8),
        waiting=tuple(make_job(f"j{number:05}", make_path("team"), of) for number in range(jobs)),
    )


def make_steady(count: int, gpus: int) -> PoolSnapshot:
    """Armada's steady round: everything runs and nothing waits."""
    all_nodes = make_nodes(count, gpus)
    running = fill_nodes(all_nodes, lambda number: make_path(f"queue{number % 10}"))
    return PoolSnapshot(at=T0, policy=make_policy(), nodes=all_nodes, running=running)


def make_deep_queue(
    count: int, tenants: int, queued: int, looks: int = PoolPolicy().looks
) -> PoolSnapshot:
    """A full pool and a long queue: 200 shapes, many tenants."""
    rng = random.Random(SEED)
    all_nodes = make_nodes(count, 8, cpus=400)
    orgs = [make_path(f"org{number:04}") for number in range(tenants)]
    shapes = [make_shape(*sizes) for sizes in SHAPES]
    waiting = (
        make_job(
            f"w{number:07}",
            orgs[rng.randrange(tenants)],
            shapes[number % len(shapes)],
            run_max=rng.randrange(1, 48) * HOUR,
            queued_at=T0 - rng.randrange(10 * HOUR),
        )
        for number in range(queued)
    )
    return PoolSnapshot(
        at=T0,
        policy=make_policy(looks=looks),
        nodes=all_nodes,
        waiting=tuple(waiting),
        running=fill_nodes(all_nodes, lambda number: orgs[number % tenants], 48 * HOUR),
    )


def make_array(count: int, jobs: int, *, full: bool) -> PoolSnapshot:
    """Slurm's array: one-GPU jobs of one user on nodes of six GPUs."""
    single, all_nodes = make_shape(), make_nodes(count, 6)
    return PoolSnapshot(
        at=T0,
        policy=make_policy(),
        nodes=all_nodes,
        waiting=tuple(
            make_job(f"j{number:05}", make_path("team"), single) for number in range(jobs)
        ),
        running=fill_nodes(all_nodes, lambda _: make_path("team")) if full else (),
    )


def make_groups(load: Streams) -> PoolSnapshot:
    """Kueue's groups of queues, before the first job arrives.

    Each group is an org that cannot have more than the floors of its queues add up to.
    """
    together = load.queues * load.floor
    shares: list[tuple[Path, Share]] = []
    for group in range(load.groups):
        org = make_path(f"group{group:02}")[:2]
        shares.append((org, Share(floor=((ANY_TYPE, together),), ceiling=((ANY_TYPE, together),))))
        queue = Share(floor=((ANY_TYPE, load.floor),), ceiling=((ANY_TYPE, load.ceiling),))
        shares += [((*org, f"queue{number:03}"), queue) for number in range(load.queues)]
    return PoolSnapshot(at=T0, policy=make_policy(*shares), nodes=make_nodes(-(-load.gpus // 8), 8))


def list_arrivals(load: Streams) -> list[tuple[Instant, Job, int]]:
    """All jobs of the streams, in the order in which they arrive, and how long each runs."""
    arriving = [
        arrival
        for group in range(load.groups)
        for queue in range(load.queues)
        for number, stream in enumerate(load.streams)
        for arrival in _stream_arrivals(
            stream, f"g{group:02}q{queue:03}s{number}", _queue_path(group, queue)
        )
    ]
    return sorted(arriving, key=lambda arrival: (arrival[0], arrival[1].id))


def _queue_path(group: int, queue: int) -> Path:
    return make_path(f"group{group:02}", f"queue{queue:03}")


def _stream_arrivals(stream: Stream, name: str, owner: Path) -> Iterable[tuple[Instant, Job, int]]:
    of = make_shape(stream.gpus)
    for number in range(stream.jobs):
        at = T0 + number * stream.every
        ask = make_job(f"{name}n{number:03}", owner, of, run_max=RUN_MAX, queued_at=at)
        yield at, replace(ask, priority_class=stream.priority_class), stream.runs
