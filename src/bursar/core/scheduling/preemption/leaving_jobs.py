"""A set of victims while it is built: which jobs would leave, and what their groups lose."""

from collections.abc import Iterator

from bursar.core.ids import JobId
from bursar.core.money import Micros
from bursar.core.scheduling.model.jobs import RunningJob
from bursar.core.scheduling.model.policy import ANY_TYPE
from bursar.core.scheduling.order.share_group import ShareGroup
from bursar.core.scheduling.preemption.rights import PreemptionRights, Right


class LeavingJobs:
    """Jobs that would leave together. All bounds are sums, so their order does not matter."""

    def __init__(
        self, rights: PreemptionRights, own_rate_max: Micros, *, may_straddle: bool = False
    ) -> None:
        self._rights = rights
        self._own = id(rights.shares.org_of(rights.job))
        # At most so much is expected to leave the job's own org; at first, all its candidates.
        # What leaves it makes room for more by share, so a set that is not legal yet may become so.
        self.own_rate_max = own_rate_max
        self._may_straddle = may_straddle  # whether one job of a group may straddle its floor
        self._lost_milli: dict[int, dict[str, int]] = {}  # by group, then by GPU type
        self._reclaimed: dict[int, list[int]] = {}  # by group: sizes of jobs that leave by `floor`
        self._lost_rates: dict[int, Micros] = {}  # by org
        self._by_share: dict[int, int] = {}  # by org: how many leave by the right `share`
        self.jobs: dict[JobId, tuple[RunningJob, Right]] = {}

    def add(self, running: RunningJob, right: Right) -> bool:
        """Let a job leave, if that may be legal together with all that leave already."""
        self._adjust(running, right, 1)
        if self._may_be_legal(running):
            return True
        self._adjust(running, right, -1)
        return False

    def drop(self, running: RunningJob) -> None:
        """Let a job stay after all."""
        self._adjust(running, self.jobs[running.job.id][1], -1)

    @property
    def is_always_legal(self) -> bool:
        """Whether all sets that `add` allows are legal, and all smaller ones."""
        return not self.own_rate_max

    def is_legal(self) -> bool:
        """Whether all orgs that lose jobs by share keep no smaller part than the job's org."""
        if self.is_always_legal:
            return True
        own_rate = self.own_rate()
        shares = self._rights.shares
        orgs = {id(org): org for org in self._orgs_by_share()}
        return all(
            shares.can_lose(org, self._lost_rates[key], own_rate) for key, org in orgs.items()
        )

    def own_rate(self) -> Micros:
        """The rate of the jobs of the job's own org that leave."""
        return self._lost_rates.get(self._own, 0)

    def clears_ceilings(self) -> bool:
        """Whether the waiting job passes no ceiling once these jobs have left."""
        return self._rights.ceilings.is_cleared_by(running for running, _ in self.jobs.values())

    def _adjust(self, running: RunningJob, right: Right, sign: int) -> None:
        if sign > 0:
            self.jobs[running.job.id] = running, right
        else:
            del self.jobs[running.job.id]
        milli = running.job.shape.milli_gpus
        for group in self._rights.floors.protected_groups(running.job):
            lost = self._lost_milli.setdefault(id(group), {})
            for of in (ANY_TYPE, running.gpu_type):
                lost[of] = lost.get(of, 0) + sign * milli
            if right is Right.FLOOR:
                sizes = self._reclaimed.setdefault(id(group), [])
                sizes.append(milli) if sign > 0 else sizes.remove(milli)
        org = id(self._rights.shares.org_of(running.job))
        rate = sign * running.job.rate(running.gpu_type)
        self._lost_rates[org] = self._lost_rates.get(org, 0) + rate
        if right is Right.SHARE:
            self._by_share[org] = self._by_share.get(org, 0) + sign

    def _orgs_by_share(self) -> Iterator[ShareGroup]:
        for running, right in self.jobs.values():
            if right is Right.SHARE:
                yield self._rights.shares.org_of(running.job)

    def _may_be_legal(self, running: RunningJob) -> bool:
        """Whether every floor holds, and shares do if `own_rate_max` leaves the own org."""
        if not all(map(self._keeps_floor, self._rights.floors.protected_groups(running.job))):
            return False
        shares = self._rights.shares
        org = shares.org_of(running.job)
        if self._by_share.get(id(org)):
            return shares.can_lose(org, self._lost_rates[id(org)], self.own_rate_max)
        return True

    def _keeps_floor(self, group: ShareGroup) -> bool:
        """Whether a group keeps its floors, except for the rest of one job that straddles them.

        Jobs that leave by `floor` leave while the group has more than its floor, the largest last.
        """
        lost = self._lost_milli[id(group)]
        sizes = self._reclaimed.get(id(group)) if self._may_straddle else None
        straddling = max(sizes) if sizes else 0
        for of, floor in group.floor.items():
            rest = group.used.get(of, 0) - lost.get(of, 0)
            if lost.get(of, 0) and rest < floor and rest + straddling <= floor:
                return False
        return True
