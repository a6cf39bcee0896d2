"""How the jobs of experiments C, D and Philly-Oct are told to Bursar's scheduler.

Everything here is what a user would have told at submission, and the tree of shares an operator
would have set up. What a trace knows beyond that stays in the trace.
"""

import random
from collections.abc import Sequence
from math import exp
from typing import Final, NamedTuple

from benchmarks.traces.replay import SECOND, Ask, Task
from benchmarks.traces.trace_run import GPU, Drive, Told, World
from bursar.core.scheduling.model.jobs import Shape
from bursar.core.scheduling.model.policy import PoolPolicy, Share
from bursar.core.value import replace

NODE_GPUS: Final = 8
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
TIERS: Final = ("enterprise", "paid", "free")
DOUBLE: Final = 2  # the bound of a user who knows how long a job runs, by that
LIMIT: Final = 12 * HOUR  # the bound in experiments C and D of one who does not
MONTHS: Final = 60 * 24 * HOUR  # the same in Philly-Oct
PARTS: Final = 1_000  # of a pool, by which shares of tenants are told


class Track(NamedTuple):
    """What users know of how long their jobs run."""

    known: bool = True
    sigma: float = 0.0  # log-normal error of what they think they know
    seed: int = 0


EXACT: Final = Track()
BLIND: Final = Track(known=False)


def estimates(asks: Sequence[Ask], track: Track) -> dict[str, int | None]:
    """What users log how long their jobs run, in milliseconds."""
    chance = random.Random(track.seed)
    told: dict[str, int | None] = {}
    for ask in asks:
        off = exp(track.sigma * chance.gauss(0, 1)) if track.sigma else 1.0
        told[ask.name] = max(round(ask.runs * off), 1) if track.known else None
    return told


def _bound(estimate: int | None, track: Track, limit: int) -> int:
    """The bound that users give: double, if they know; the largest usual one, if they do not."""
    return limit if estimate is None or track.sigma else DOUBLE * estimate


def drive_fair(asks: Sequence[Ask], gpus: int, policy: PoolPolicy, track: Track) -> list[Task]:
    """Experiment C: one user's jobs; a gang's GPUs may lie on different nodes."""
    told = estimates(asks, track)

    def tell(ask: Ask) -> Told:
        estimate = told[ask.name]
        shape = Shape(types=(GPU,), tasks=ask.gpus)
        return Told(("paid", "org", "a", "u"), shape, _bound(estimate, track, LIMIT), estimate)

    world = World(
        nodes=gpus // NODE_GPUS, node_gpus=NODE_GPUS, start_cost=20 * SECOND,
        restart_cost=20 * SECOND,
    )  # fmt: skip
    return Drive(asks, world, policy, tell).run()


def drive_tiers(asks: Sequence[Ask], nodes: int, policy: PoolPolicy, track: Track) -> list[Task]:
    """Experiment D: each group is an org of its tier; a gang is one task on one node."""
    told = estimates(asks, track)

    def tell(ask: Ask) -> Told:
        estimate = told[ask.name]
        shape = Shape(types=(GPU,), gpus=ask.gpus)
        path = TIERS[ask.tier], ask.owner, "a", "u"
        return Told(path, shape, _bound(estimate, track, LIMIT), estimate)

    world = World(nodes=nodes, node_gpus=NODE_GPUS, stop_cost=5 * SECOND)
    return Drive(asks, world, policy, tell).run()


def drive_month(
    asks: Sequence[Ask], nodes: int, policy: PoolPolicy, track: Track, *, every: int = MINUTE
) -> list[Task]:
    """Philly-Oct: tenants are orgs of one tier, weighted by what they use; gangs of whole nodes.

    Rounds are a minute apart, as for the rules that it is measured by.
    """
    told = estimates(asks, track)
    shares = tuple((("paid", vc), Share(weight=part)) for vc, part in parts(asks).items())

    def tell(ask: Ask) -> Told:
        estimate = told[ask.name]
        path = "paid", ask.owner, "a", "u"
        return Told(path, shape_of(ask.gpus), _bound(estimate, track, MONTHS), estimate)

    world = World(nodes=nodes, node_gpus=NODE_GPUS, restart_cost=30 * SECOND, every=every)
    return Drive(asks, world, replace(policy, shares=(*policy.shares, *shares)), tell).run()


def parts(asks: Sequence[Ask]) -> dict[str, int]:
    """What part of all GPU-time each tenant asks for, in thousandths, at least one."""
    asked: dict[str, int] = {}
    for ask in asks:
        asked[ask.owner] = asked.get(ask.owner, 0) + ask.gpus * ask.runs
    total = sum(asked.values())
    return {vc: max(round(PARTS * used / total), 1) for vc, used in sorted(asked.items())}


def shape_of(gpus: int) -> Shape:
    """A gang: on one node if it fits there, else on whole nodes, else GPU by GPU."""
    if gpus <= NODE_GPUS:
        return Shape(types=(GPU,), gpus=gpus)
    if gpus % NODE_GPUS == 0:
        return Shape(types=(GPU,), tasks=gpus // NODE_GPUS, gpus=NODE_GPUS)
    return Shape(types=(GPU,), tasks=gpus)
