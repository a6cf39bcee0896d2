"""Which running jobs a waiting job may preempt.

There are six rights:

    floor   a group of the waiting job has less than its floor, even with the job; jobs outside it
            give up what is above their own groups' floors. A late job that ends within minutes does
            not stop jobs that do so as well
    class   the victim is of the same org and of a lower class
    target  half of the job's start target has passed, and it ends within minutes
            (`PoolPolicy.express`); the victim's tier has a longer target, and the victim can save
            its work within the grace
    turn    the victim is of the same org and class, makes checkpoints, has run so long that
            stopping costs little, and has at least twice as much left to do; or the waiting job
            would outlast all others (`longest_jobs`) and the victim would not
    share   the victim's org, of the same tier, still has the larger part by weight afterwards: of
            what runs now, and of past usage plus what runs; and not both jobs end within minutes
    move    the victim can continue elsewhere at once (`migration`)

No right cuts into another group's floor. All bounds are sums over the jobs that leave, kept by
`LeavingJobs`, so whether a set of victims is legal does not depend on the order in which it was
built. Each preemption by share leaves the larger part larger, so shares converge and preemption
cannot oscillate.
"""

from collections.abc import Iterable, Iterator
from enum import StrEnum
from itertools import islice, takewhile
from typing import Final, NamedTuple

from bursar.core.ids import JobId
from bursar.core.instant import Instant
from bursar.core.money import Micros
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.jobs import Job, Path, RunningJob, StartReason
from bursar.core.scheduling.model.policy import ANY_TYPE
from bursar.core.scheduling.model.running_index import turn_ends
from bursar.core.scheduling.order.longest_jobs import outlasts_all
from bursar.core.scheduling.order.share import JOBS, ShareGroup

LARGEST_ORGS: Final = 16  # orgs that are looked at for one with the larger share
ENDING_GRACES: Final = 10  # graces: whoever says that it ends by then is let end
TURN_WORK_FACTOR: Final = 2  # times as much to do has whoever gives up its turn


class Right(StrEnum):
    """Why a job may ask another to make room."""

    FLOOR = "floor"
    CLASS = "class"
    TARGET = "target"
    SHARE = "share"
    TURN = "turn"
    MOVE = "move"


class Victim(NamedTuple):
    """Somebody who might make room; the smaller, the better."""

    priority_class: int
    lost: Micros
    id: JobId


class PreemptionRights:
    """What one job may ask of others, on GPUs of one type."""

    def __init__(self, cluster: Cluster, job: Job, gpu_type: str) -> None:
        self.job = job
        self._cluster = cluster
        self._tree = cluster.tree
        self._type = gpu_type
        self._rate = job.rate(gpu_type)
        self._much = TURN_WORK_FACTOR * max(job.work, 1)  # work of whoever gives up its turn
        self._places = list(self._tree.user_group(job.path).lineage())
        self._above = set(map(id, self._places))
        self._owed = self._places_owed()
        self._protected: dict[Path, list[ShareGroup]] = {}
        self._orgs: dict[Path, ShareGroup] = {}
        self._gives: dict[Path, Micros] = {}
        self.full_groups = self._places_full()
        self._tiers = {job.path[0], *cluster.policy.preempted_tiers(job.path[0])}
        self._org = self._places[-3] if len(self._places) > 2 else self._places[0]
        self._tier = self._places[-2]
        self._soon = ENDING_GRACES * cluster.policy.grace
        self._brief = job.estimate is not None and job.expected_run <= self._soon
        self._in_time = cluster.policy.is_express(job, cluster.now)
        self._presses = self._in_time and cluster.policy.target_right_at(job) <= cluster.now

    def right_against(self, other: RunningJob, now: Instant) -> Right | None:
        """By which right another can be asked, if it can be asked at all."""
        job = other.job
        spent = job.preemptions >= self._cluster.policy.preemptions_max
        spent = spent and not self._takes_turn(other)  # which costs little, however often
        ending = other.stops_at is not None or other.ends_by <= now
        if not job.preemptible or spent or ending or other.started_at >= now:
            return None
        if other.why is StartReason.AGE and other.ends_soon(now, self._soon):
            return None  # it has waited too long once
        lets_end = self._brief and other.ends_soon(now, self._soon)
        owed = () if lets_end and not self._in_time else self._owed
        if any(self._reaches(place, job) for place in owed):
            return Right.FLOOR
        if job.path[:2] == self.job.path[:2]:
            if job.priority_class < self.job.priority_class:
                return Right.CLASS
            return Right.TURN if self._takes_turn(other) else None
        if self._presses and self._pressed(other):
            return Right.TARGET
        if job.path[0] != self.job.path[0] or len(self.job.path) == 1:
            return None
        if lets_end:
            return None
        give = self.spare_rate(self.org_of(job))
        return Right.SHARE if job.rate(other.gpu_type) * self.weight < give else None

    def victim_orgs(self) -> list[Path] | None:
        """The orgs in which there may be somebody to ask; None if that may be any."""
        if self._owed or self._presses:
            return None
        return [self.job.path[:2], *(org.path for org in self._larger())]

    def may_preempt(self) -> bool:
        """Whether there may be somebody to ask; a quick look that errs on the side of yes."""
        near = self._lower_class() or self._some_turn()
        return bool(self._owed) or self._presses or near or self._larger_share()

    @property
    def haste(self) -> tuple[bool, bool, bool]:
        """Whether it is over within minutes, can start in time, and is about to be late."""
        return self._brief, self._in_time, self._presses

    def paths_below_floor(self) -> tuple[Path, ...]:
        """The places of this job that are owed GPUs."""
        return tuple(place.path for place in self._owed)

    def protected(self, other: Job) -> list[ShareGroup]:
        """The places of another that it does not share with this job, and that have a floor."""
        found = self._protected.get(other.path)
        if found is None:
            places = self._tree.user_group(other.path).lineage()
            found = [place for place in places if place.floor and id(place) not in self._above]
            self._protected[other.path] = found
        return found

    def clears_ceilings(self, leaving: Iterable[RunningJob]) -> bool:
        """Whether the places that are at their ceiling have room for the job once others left."""
        gone = list(leaving) if self.full_groups else []
        return all(
            excess
            <= sum(
                1 if of == JOBS else running.job.shape.milli_gpus
                for running in gone
                if of in (JOBS, ANY_TYPE, running.gpu_type) and _counts(place, running.job)
            )
            for place, of, excess in self.full_groups
        )

    def spare_rate(self, org: ShareGroup) -> Micros:
        """How much of its rate an org may lose, by weight, and still have the larger part.

        Of what runs now, and also of what was used and runs ahead, by which turns are taken: else
        whoever starts in turn would be asked the next moment by those who come after. Below zero
        if it has not; one that loses exactly so much has no larger part any more.
        """
        found = self._gives.get(org.path)
        if found is None:
            found = self._gives[org.path] = self._to_give(org)
        return found

    def _to_give(self, org: ShareGroup) -> Micros:
        ahead = self._tree.projection_weight(self._cluster.now)
        turn = self._tree.projected_usage(org) * self._org.weight
        turn -= (self._tree.projected_usage(self._org) + self._rate * ahead) * org.weight
        return min(self.excess_rate(org), -(-turn // ahead))

    def excess_rate(self, org: ShareGroup) -> Micros:
        """By how much, by weight, an org runs more than this job's would with the job."""
        mine = self._org
        return org.rate * mine.weight - (mine.rate + self._rate) * org.weight

    def org_of(self, other: Job) -> ShareGroup:
        """The org of another, as a place."""
        found = self._orgs.get(other.path)
        if found is None:
            places = list(self._tree.user_group(other.path).lineage())
            found = self._orgs[other.path] = places[-3] if len(places) > 2 else places[0]
        return found

    @property
    def weight(self) -> int:
        """The weight of this job's org."""
        return self._org.weight

    def borrower(self, other: Job) -> ShareGroup:
        """The place where another's path parts from ours."""
        above = [p for p in self._tree.user_group(other.path).lineage() if id(p) not in self._above]
        return above[-1]

    def _places_owed(self) -> list[ShareGroup]:
        """Places of this job that stay within their floor with it."""
        milli = self.job.shape.milli_gpus
        return [
            place
            for place in self._places
            for of, floor in place.floor.items()
            if milli and of in (ANY_TYPE, self._type) and place.used.get(of, 0) + milli <= floor
        ]

    def _places_full(self) -> list[tuple[ShareGroup, str, int]]:
        """Places of this job that are at a ceiling, and how much must leave them for it."""
        full: list[tuple[ShareGroup, str, int]] = []
        for place in (*self._places, *self._tree.limits_of(self.job)):
            over = place.exceeded_ceilings(self.job.shape.milli_gpus, self._type)
            full += [(place, of, excess) for of, excess in over]
        return full

    def _reaches(self, owed: ShareGroup, other: Job) -> bool:
        """Whether a floor can be restored at the cost of another."""
        outside = other.path[: len(owed.path)] != owed.path
        return outside and other.path[0] in self._tiers

    def _pressed(self, other: RunningJob) -> bool:
        """Whether another's tier has more time, and its work is safe."""
        policy, its = self._cluster.policy, other.job
        if not its.checkpoint_every or its.checkpoint_cost > policy.grace:
            return False
        return policy.start_target(its.path[0]) > policy.start_target(self.job.path[0])

    def _some_turn(self) -> bool:
        past_turn = self._cluster.running_index.past_turn(self.job.path[:2], self._cluster.now)
        return any(map(self._takes_turn, past_turn))

    def _takes_turn(self, other: RunningJob) -> bool:
        """Whether another of the same org and class has had its turn, and has much more to do."""
        cluster, now = self._cluster, self._cluster.now
        mine, its = self.job, other.job
        if its.path[:2] != mine.path[:2] or its.priority_class != mine.priority_class:
            return False
        if turn_ends(other, cluster.policy) > now:
            return False
        if other.ends_soon(now, self._soon):
            return False
        if outlasts_all(cluster, other.job, now - other.started_at):
            return False
        return other.work(now) >= self._much or outlasts_all(cluster, self.job)

    def _lower_class(self) -> bool:
        lowest = self._cluster.classes.lowest_running(self.job.path[:2])
        return lowest is not None and lowest < self.job.priority_class

    def _larger_share(self) -> bool:
        return any(True for _ in self._larger())

    def _larger(self) -> Iterator[ShareGroup]:
        """The other orgs that have something to give, of those that run the most."""
        more = takewhile(lambda org: self.excess_rate(org) > 0, self._others())
        return (org for org in islice(more, LARGEST_ORGS) if self.spare_rate(org) > 0)

    def _others(self) -> Iterator[ShareGroup]:
        """The other orgs of the tier in which something runs, the largest part first."""
        if len(self.job.path) > 1:
            yield from (org for org in self._tree.orgs_by_rate(self._tier) if org is not self._org)


def _counts(place: ShareGroup, job: Job) -> bool:
    """Whether a place, in the tree or outside it, counts a job."""
    if place.is_limit:
        return place.name in job.limit_names
    return job.path[: len(place.path)] == place.path


class LeavingJobs:
    """Jobs that would leave, and what their places have left."""

    def __init__(self, rights: PreemptionRights) -> None:
        self._rights = rights
        self._gone: dict[int, dict[str, int]] = {}  # milli-GPUs, by place
        self._rates: dict[int, Micros] = {}  # by org
        self._by_share: dict[int, int] = {}  # how many are asked by their org's larger share
        self.jobs: dict[JobId, tuple[RunningJob, Right]] = {}

    def add(self, other: RunningJob, right: Right) -> bool:
        """Let another leave, if that is legal together with all that leave already."""
        self._adjust(other, right, 1)
        if self._is_legal(other):
            return True
        self._adjust(other, right, -1)
        return False

    def drop(self, other: RunningJob) -> None:
        """Let one that was to leave stay."""
        self._adjust(other, self.jobs[other.job.id][1], -1)

    def clears_ceilings(self) -> bool:
        """Whether enough leaves the places that are at their ceiling."""
        return self._rights.clears_ceilings(running for running, _ in self.jobs.values())

    def _adjust(self, other: RunningJob, right: Right, way: int) -> None:
        if way > 0:
            self.jobs[other.job.id] = other, right
        else:
            del self.jobs[other.job.id]
        milli = way * other.job.shape.milli_gpus
        for place in self._rights.protected(other.job):
            gone = self._gone.setdefault(id(place), {})
            for of in (ANY_TYPE, other.gpu_type):
                gone[of] = gone.get(of, 0) + milli
        org = id(self._rights.org_of(other.job))
        rate = way * other.job.rate(other.gpu_type)
        self._rates[org] = self._rates.get(org, 0) + rate
        if right is Right.SHARE:
            self._by_share[org] = self._by_share.get(org, 0) + way

    def _is_legal(self, other: RunningJob) -> bool:
        for place in self._rights.protected(other.job):
            gone = self._gone[id(place)]
            for of, floor in place.floor.items():
                if gone.get(of, 0) and place.used.get(of, 0) - gone[of] < floor:
                    return False
        org = self._rights.org_of(other.job)
        if self._by_share.get(id(org)):
            return self._rates[id(org)] * self._rights.weight < self._rights.spare_rate(org)
        return True
