"""How the jobs of experiments C, D and Philly-Oct are told to Bursar's scheduler.

Everything here is what a user would have told at submission, and the tree of shares an operator
would have set up. What a trace knows beyond that stays in the trace.
"""

import random
from collections.abc import Sequence
from math import exp
from typing import Final, NamedTuple

from benchmarks.traces.replay import SECOND, TraceJob, TraceTask
from benchmarks.traces.trace_run import GPU, JobRequest, TraceCluster, TraceRun
from bursar.core.scheduling.model.jobs import Shape
from bursar.core.scheduling.model.policy import PoolPolicy, Share
from bursar.core.value import replace

NODE_GPUS: Final = 8
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
TIERS: Final = ("enterprise", "paid", "free")
BOUND_FACTOR: Final = 2  # the bound of a user who knows how long a job runs, by that
RUN_MAX: Final = 12 * HOUR  # the bound in experiments C and D of one who does not
MONTH_RUN_MAX: Final = 60 * 24 * HOUR  # the same in Philly-Oct
PARTS: Final = 1_000  # of a pool, by which shares of tenants are told


class Track(NamedTuple):
    """What users know of how long their jobs run."""

    known: bool = True
    sigma: float = 0.0  # log-normal error of what they think they know
    seed: int = 0


EXACT: Final = Track()
BLIND: Final = Track(known=False)


def make_estimates(jobs: Sequence[TraceJob], track: Track) -> dict[str, int | None]:
    """What users log how long their jobs run, in milliseconds."""
    rng = random.Random(track.seed)
    estimates: dict[str, int | None] = {}
    for job in jobs:
        off = exp(track.sigma * rng.gauss(0, 1)) if track.sigma else 1.0
        estimates[job.name] = max(round(job.runs * off), 1) if track.known else None
    return estimates


def _bound_run(estimate: int | None, track: Track, limit: int) -> int:
    """The bound that users give: double, if they know; the largest usual one, if they do not."""
    return limit if estimate is None or track.sigma else BOUND_FACTOR * estimate


def run_fair(
    jobs: Sequence[TraceJob], gpus: int, policy: PoolPolicy, track: Track
) -> list[TraceTask]:
    """Experiment C: one user's jobs; a gang's GPUs may lie on different nodes."""
    estimates = make_estimates(jobs, track)

    def make_request(job: TraceJob) -> JobRequest:
        estimate = estimates[job.name]
        shape = Shape(types=(GPU,), tasks=job.gpus)
        return JobRequest(
            ("paid", "org", "a", "u"), shape, _bound_run(estimate, track, RUN_MAX), estimate
        )

    world = TraceCluster(
        nodes=gpus // NODE_GPUS, node_gpus=NODE_GPUS, start_cost=20 * SECOND,
        restart_cost=20 * SECOND,
    )  # fmt: skip
    return TraceRun(jobs, world, policy, make_request).run()


def run_tiers(
    jobs: Sequence[TraceJob], nodes: int, policy: PoolPolicy, track: Track
) -> list[TraceTask]:
    """Experiment D: each group is an org of its tier; a gang is one task on one node."""
    estimates = make_estimates(jobs, track)

    def make_request(job: TraceJob) -> JobRequest:
        estimate = estimates[job.name]
        shape = Shape(types=(GPU,), gpus=job.gpus)
        path = TIERS[job.tier], job.owner, "a", "u"
        return JobRequest(path, shape, _bound_run(estimate, track, RUN_MAX), estimate)

    world = TraceCluster(nodes=nodes, node_gpus=NODE_GPUS, stop_cost=5 * SECOND)
    return TraceRun(jobs, world, policy, make_request).run()


def run_month(
    jobs: Sequence[TraceJob], nodes: int, policy: PoolPolicy, track: Track, *, every: int = MINUTE
) -> list[TraceTask]:
    """Philly-Oct: tenants are orgs of one tier, weighted by what they use; gangs of whole nodes.

    Rounds are a minute apart, as for the rules that it is measured by.
    """
    estimates = make_estimates(jobs, track)
    shares = tuple((("paid", vc), Share(weight=part)) for vc, part in compute_parts(jobs).items())

    def make_request(job: TraceJob) -> JobRequest:
        estimate = estimates[job.name]
        path = "paid", job.owner, "a", "u"
        return JobRequest(
            path, make_shape(job.gpus), _bound_run(estimate, track, MONTH_RUN_MAX), estimate
        )

    world = TraceCluster(nodes=nodes, node_gpus=NODE_GPUS, restart_cost=30 * SECOND, every=every)
    return TraceRun(
        jobs, world, replace(policy, shares=(*policy.shares, *shares)), make_request
    ).run()


def compute_parts(jobs: Sequence[TraceJob]) -> dict[str, int]:
    """What part of all GPU-time each tenant asks for, in thousandths, at least one."""
    gpu_time: dict[str, int] = {}
    for job in jobs:
        gpu_time[job.owner] = gpu_time.get(job.owner, 0) + job.gpus * job.runs
    total = sum(gpu_time.values())
    return {vc: max(round(PARTS * used / total), 1) for vc, used in sorted(gpu_time.items())}


def make_shape(gpus: int) -> Shape:
    """A gang: on one node if it fits there, else on whole nodes, else GPU by GPU."""
    if gpus <= NODE_GPUS:
        return Shape(types=(GPU,), gpus=gpus)
    if gpus % NODE_GPUS == 0:
        return Shape(types=(GPU,), tasks=gpus // NODE_GPUS, gpus=NODE_GPUS)
    return Shape(types=(GPU,), tasks=gpus)
