"""Small worlds to be lived through by hand."""

from typing import Any

from bursar.core.ids import JobId
from bursar.core.instant import DAY, HOUR, MINUTE, SECOND
from bursar.core.scheduling.model.policy import PoolPolicy
from bursar.sim.engine import Engine
from bursar.sim.fleets import Fleet, Group
from bursar.sim.job_runs import JobRun
from bursar.sim.loads import T0, ArrivalPattern, SimulatedTenant, works
from bursar.sim.policies import POLICIES
from bursar.sim.rng import Chance
from bursar.sim.work import Work, gang
from bursar.sim.world import SimulatedWorld

PRICE = 3_600_000_000  # a micro-credit for each GPU-microsecond: sums can be done in the head


def fleet(nodes: int = 1, gpus: int = 8, fails_every: int = 0) -> Fleet:
    group = Group(gpu_type="H100", nodes=nodes, gpus=gpus, price=PRICE, fails_every=fails_every)
    return Fleet(groups=(group,))


def work(
    name: str,
    *,
    at: int = 0,
    runs: int = HOUR,
    gpus: int = 1,
    org: str = "acme",
    tier: str = "paid",
    limit: int | None = None,
    told: bool = True,
    types: tuple[str, ...] = ("H100",),
    checkpoint_every: int = 0,
    checkpoint_cost: int = 0,
) -> Work:
    """A job that comes so many microseconds after the beginning, and knows how long it runs."""
    return Work(
        id=JobId(name),
        arrives_at=T0 + at,
        shape=gang(types, gpus, 8),
        path=(tier, org, "jobs", "user"),
        runs=runs,
        run_max=runs if limit is None else limit,
        estimate=runs if told else None,
        checkpoint_every=checkpoint_every,
        checkpoint_cost=checkpoint_cost,
    )


def lived(
    *works: Work,
    policy: str = "bursar",
    on: Fleet | None = None,
    rules: PoolPolicy | None = None,
    restart_cost: int = 0,
    credits: tuple[tuple[str, int], ...] = (),
    seed: int = 1,
    **more: Any,
) -> Engine:
    """The world of these jobs, lived through."""
    world = SimulatedWorld(
        fleet=on or fleet(),
        works=tuple(sorted(works, key=lambda one: (one.arrives_at, one.id))),
        policy=rules or PoolPolicy(),
        restart_cost=restart_cost,
        credits=credits,
        **more,
    )
    engine = Engine(world, POLICIES[policy][1](world.policy), Chance(seed))
    engine.run()
    return engine


def life(engine: Engine, name: str) -> JobRun:
    return engine.lives[JobId(name)]


def ended(engine: Engine) -> dict[str, int]:
    """When each job was over, in seconds after the beginning."""
    return {
        name: (one.ended_at - T0) // SECOND
        for name, one in sorted(engine.lives.items())
        if one.ended_at is not None
    }


def problems(engine: Engine, *, over: bool = True) -> list[str]:
    accounts = engine.purse.accounts.values()
    return [problem for account in accounts for problem in account.problems(over=over)]


def mixed(seed: int, *, span: int = 4 * HOUR, fails_every: int = DAY) -> SimulatedWorld:
    """Four tenants in a hurry on three nodes that fail, all drawn by chance."""
    there = fleet(nodes=3, fails_every=fails_every)
    sizes = ((1, 6), (2, 2), (4, 1), (8, 1), (16, 1))
    tenants = (
        SimulatedTenant(
            org="acme", tier="enterprise", users=2, gpus=sizes, known=0.3,
            arrivals=ArrivalPattern(kind="diurnal", per_hour=8, burst=2, peak_at=2 * HOUR),
            checkpoint_every=5 * MINUTE, checkpoint_cost=5 * SECOND,
        ),
        SimulatedTenant(
            org="beta", gpus=sizes, arrivals=ArrivalPattern(kind="bursty", per_hour=12),
        ),
        SimulatedTenant(
            org="flood", run_median=5 * MINUTE,
            arrivals=ArrivalPattern(kind="flood", per_hour=60, begins=HOUR, ends=2 * HOUR),
        ),
        SimulatedTenant(
            org="free", tier="free", users=5, arrivals=ArrivalPattern(per_hour=12), known=0.0,
        ),
    )  # fmt: skip
    drawn = works(tenants, span, there.types, there.node_gpus, Chance(seed, "load"))
    return SimulatedWorld(fleet=there, works=drawn, restart_cost=20 * SECOND)
