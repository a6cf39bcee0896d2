"""A made-up world: machines, jobs to come, rules. All that a run follows from, besides the seed."""

from bursar.core.checks import whole
from bursar.core.instant import DAY, NEVER, Instant
from bursar.core.money import Micros
from bursar.core.scheduling.policy import Policy
from bursar.core.value import value
from bursar.sim.fleets import Fleet
from bursar.sim.loads import T0
from bursar.sim.work import Work


@value
class World:
    """Where a policy is tried out."""

    fleet: Fleet
    works: tuple[Work, ...]  # by arrival
    policy: Policy = Policy()
    credits: tuple[tuple[str, Micros], ...] = ()  # by org; others have plenty
    restart_cost: int = 0  # microseconds an attempt after the first spends before it goes on
    drain: int = 30 * DAY  # how long after the last arrival the world still goes on
    begins_at: Instant = T0

    def __post_init__(self) -> None:
        whole("restart_cost", self.restart_cost, 0, NEVER)
        whole("drain", self.drain, 0, NEVER)
        if any(work.arrives_at < self.begins_at for work in self.works):
            raise ValueError("a job arrives before the world begins")
        if len({work.id for work in self.works}) < len(self.works):
            raise ValueError("two jobs have the same id")

    @property
    def ends_at(self) -> Instant:
        """When the world ends, whatever is left."""
        last = self.works[-1].arrives_at if self.works else self.begins_at
        return last + self.drain
