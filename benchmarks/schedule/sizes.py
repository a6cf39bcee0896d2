"""Sizes of the loads: as published, and tiny ones that only show that the benchmark works."""

from dataclasses import dataclass
from typing import Final

from bursar.core.instant import SECOND

MS: Final = SECOND // 1_000
QUICK_TITLE: Final = " --quick: figures mean nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Jobs that arrive at a queue one after another, all alike."""

    jobs: int
    gpus: int
    runs: int  # microseconds
    every: int  # microseconds between two arrivals
    priority_class: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """Groups of queues; the queues of a group lend each other what they do not use."""

    groups: int
    queues: int  # of each group
    floor: int  # GPUs of each queue, its own
    ceiling: int  # GPUs that a queue can have at most
    streams: tuple[Stream, ...]  # of each queue

    @property
    def gpus(self) -> int:
        """All there are: the sum of the floors."""
        return self.groups * self.queues * self.floor

    @property
    def jobs(self) -> int:
        """Of all queues."""
        return self.groups * self.queues * sum(stream.jobs for stream in self.streams)

    @property
    def ideal_s(self) -> float:
        """How long all jobs take at the least: by the GPUs there are, and by the last arrival."""
        work = sum(stream.jobs * stream.gpus * stream.runs for stream in self.streams) / self.floor
        last = max((stream.jobs - 1) * stream.every + stream.runs for stream in self.streams)
        return max(work, last) / SECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSizes:
    """The numbers of one run of the benchmark."""

    baseline: Streams
    large: Streams
    kai_nodes: int  # of 8 GPUs
    hopeless: int  # jobs that can never start, behind the others
    gangs: int  # of 10 x 8 GPUs that ask for their own together
    repeats: int  # times that a load is measured whose figure is a small difference
    pods: tuple[tuple[int, int], ...]  # jobs and tasks of each
    steady_nodes: int
    steady_gpus: int  # of each node
    steady_changes: int  # times that one job ends and one arrives
    deep_nodes: int  # of 8 GPUs
    deep_tenants: int
    deep_queued: tuple[int, int]  # jobs, and many more
    deep_frees: int  # GPUs that become free, one after another
    deep_many_frees: int  # the same with many more queued
    slurm_nodes: int  # of 6 GPUs
    slurm_jobs: int
    idle_jobs: int  # one after another, where nothing else waits
    idle_http_jobs: int  # the same over HTTP


FULL: Final = ScheduleSizes(
    baseline=Streams(
        groups=5, queues=6, floor=20, ceiling=100,
        streams=(
            Stream(jobs=350, gpus=1, runs=200 * MS, every=100 * MS, priority_class=50),
            Stream(jobs=100, gpus=5, runs=500 * MS, every=500 * MS, priority_class=100),
            Stream(jobs=50, gpus=20, runs=1_000 * MS, every=1_200 * MS, priority_class=200),
        ),
    ),
    large=Streams(
        groups=10, queues=100, floor=20, ceiling=100,
        streams=(
            Stream(jobs=35, gpus=1, runs=150 * MS, every=60 * MS, priority_class=50),
            Stream(jobs=11, gpus=5, runs=350 * MS, every=300 * MS, priority_class=100),
            Stream(jobs=4, gpus=20, runs=700 * MS, every=700 * MS, priority_class=200),
        ),
    ),
    kai_nodes=500,
    hopeless=400,
    gangs=50,
    repeats=5,
    pods=((10_000, 1), (500, 20), (20, 500), (1, 10_000)),
    steady_nodes=1_000,
    steady_gpus=32,
    steady_changes=50,
    deep_nodes=1_250,
    deep_tenants=1_000,
    deep_queued=(100_000, 1_000_000),
    deep_frees=200,
    deep_many_frees=50,
    slurm_nodes=250,
    slurm_jobs=5_000,
    idle_jobs=300,
    idle_http_jobs=200,
)  # fmt: skip
QUICK: Final = ScheduleSizes(
    baseline=Streams(
        groups=2, queues=2, floor=20, ceiling=30,
        streams=(
            Stream(jobs=7, gpus=1, runs=200 * MS, every=100 * MS, priority_class=50),
            Stream(jobs=3, gpus=5, runs=500 * MS, every=500 * MS, priority_class=100),
            Stream(jobs=2, gpus=20, runs=1_000 * MS, every=1_200 * MS, priority_class=200),
        ),
    ),
    large=Streams(
        groups=3, queues=4, floor=20, ceiling=60,
        streams=(
            Stream(jobs=4, gpus=1, runs=150 * MS, every=60 * MS, priority_class=50),
            Stream(jobs=2, gpus=5, runs=350 * MS, every=300 * MS, priority_class=100),
            Stream(jobs=1, gpus=20, runs=700 * MS, every=700 * MS, priority_class=200),
        ),
    ),
    kai_nodes=20,
    hopeless=5,
    gangs=2,
    repeats=1,
    pods=((80, 1), (4, 20), (1, 80)),
    steady_nodes=5,
    steady_gpus=4,
    steady_changes=2,
    deep_nodes=5,
    deep_tenants=8,
    deep_queued=(400, 800),
    deep_frees=4,
    deep_many_frees=4,
    slurm_nodes=4,
    slurm_jobs=60,
    idle_jobs=5,
    idle_http_jobs=3,
)  # fmt: skip
