"""A simulated world: nodes, jobs and policy. A run depends only on these and the seed."""

from bursar.core.instant import DAY, HOUR, NEVER, Instant
from bursar.core.money import PPM, Micros
from bursar.core.scheduling.model.policy import PoolPolicy
from bursar.core.validation import check_int, check_text
from bursar.core.value import value
from bursar.sim.admission import Admission
from bursar.sim.fleets import Fleet
from bursar.sim.loads import T0
from bursar.sim.provisioning import Provision
from bursar.sim.work import Work


@value
class ClockDrift:
    """The faults of nodes' reports: delays, losses and wrong clocks."""

    late: int = 0  # microseconds that a report is under way, on average; any may be far later
    lost: float = 0.0  # the part of readings that never comes; the end of an attempt always does
    drift_ppm: int = 0  # how wrong the clock of a machine is at most, fast or slow

    def __post_init__(self) -> None:
        check_int("late", self.late, 0, NEVER)
        check_int("drift_ppm", self.drift_ppm, 0, PPM // 10)
        if not 0 <= self.lost <= 1:
            raise ValueError(f"lost is a part, from 0 to 1, not {self.lost}")


@value
class Outage:
    """Nodes that an operator drains for a while: running jobs continue, no job starts."""

    gpu_type: str
    nodes: int = 1  # the first so many of the fleet, by name
    begins: int = 0  # microseconds after the beginning
    lasts: int = HOUR

    def __post_init__(self) -> None:
        check_text("gpu_type", self.gpu_type)
        check_int("nodes", self.nodes, 1, 100_000)
        check_int("begins", self.begins, 0, NEVER)
        check_int("lasts", self.lasts, 1, NEVER)


@value
class SimulatedWorld:
    """The world in which a policy is simulated."""

    fleet: Fleet
    works: tuple[Work, ...]  # by arrival
    policy: PoolPolicy = PoolPolicy()
    credits: tuple[tuple[str, Micros], ...] = ()  # by org; others have plenty
    restart_cost: int = 0  # microseconds an attempt after the first spends before it goes on
    drain: int = 30 * DAY  # how long after the last arrival the world still goes on
    begins_at: Instant = T0
    speeds: tuple[tuple[str, int], ...] = ()  # GPU type → work it does in a second, in millionths
    readings: int = 0  # microseconds between the readings of what runs; 0: at its end alone
    clocks: ClockDrift = ClockDrift()
    admission: Admission | None = None  # None: everybody is let in
    provision: Provision | None = None  # None: the fleet stays as it is
    outages: tuple[Outage, ...] = ()

    def __post_init__(self) -> None:
        check_int("restart_cost", self.restart_cost, 0, NEVER)
        check_int("drain", self.drain, 0, NEVER)
        check_int("readings", self.readings, 0, NEVER)
        for gpu_type, speed in self.speeds:
            check_int(f"the speed of {gpu_type}", speed, 1, 1_000 * PPM)
        if any(work.arrives_at < self.begins_at for work in self.works):
            raise ValueError("a job arrives before the world begins")
        if len({work.id for work in self.works}) < len(self.works):
            raise ValueError("two jobs have the same id")
        tiers = {tier.name for tier in self.policy.tiers}
        unknown = sorted({work.tier for work in self.works} - tiers)
        if self.admission is not None and unknown:
            raise ValueError(f"there is no tier {', '.join(unknown)}, which admission needs")

    @property
    def ends_at(self) -> Instant:
        """When the simulation ends at the latest."""
        last = self.works[-1].arrives_at if self.works else self.begins_at
        return last + self.drain

    @property
    def prices(self) -> tuple[tuple[str, Micros], ...]:
        """The price of a GPU-hour for tenants, by type: of the fleet, else of the offer.

        A type that jobs accept and no node has costs as much as the most expensive type.
        """
        prices = dict(self.fleet.prices)
        for offer in self.provision.offers if self.provision else ():
            prices.setdefault(offer.gpu_type, offer.price)
        dearest = max(prices.values())
        accepted = sorted({gpu_type for work in self.works for gpu_type in work.shape.types})
        return tuple((dict.fromkeys(accepted, dearest) | prices).items())
