"""Who must make room for whom.

A job may ask another to make room by one of six rights:

    floor   a place it belongs to has less than its floor, even with the job; whoever belongs to
            another place gives what is above that one's own floor; but a job that says it is over
            within minutes and is late lets those end who say so as well
    class   the other is of the same org and of a lower class
    target  half the job's start target has passed, it is over within minutes (`Policy.express`);
            the other's tier has a longer target, and it can save its work within the grace
    turn    the other is of the same org and class, makes checkpoints, has run so long that stopping
            costs little beside it, and has at least twice as much to do; or this job would outlast
            all others (`backlog`), and the other would not
    share   the other's org, of the same tier, still has the larger part by weight afterwards, of
            what runs now and of what was used and runs ahead; and not both say that they are over
            within minutes
    move    the other can go on elsewhere at once (`moving`)

By whichever right, nobody's floor is cut into. All bounds are sums over the jobs that leave, so a
set is legal or not whatever the order in which it was made: `Leaving` keeps the sums. As each move
by share leaves the larger part larger, shares only come closer and nobody is asked to and fro.
"""

from collections.abc import Iterable, Iterator
from enum import StrEnum
from itertools import islice, takewhile
from typing import Final, NamedTuple

from bursar.core.ids import JobId
from bursar.core.instant import Instant
from bursar.core.money import Micros
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.jobs import Job, Path, Running, Why
from bursar.core.scheduling.model.policy import ANY
from bursar.core.scheduling.order.share import JOBS, Place

LARGEST: Final = 16  # orgs that are looked at for one with the larger share
ENDING: Final = 10  # graces: whoever says that it ends by then is let end
LARGER: Final = 2  # times as much to do has whoever gives up its turn


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


class Rights:
    """What one job may ask of others, on GPUs of one type."""

    def __init__(self, cluster: Cluster, job: Job, gpu_type: str) -> None:
        self.job = job
        self._cluster = cluster
        self._tree = cluster.tree
        self._type = gpu_type
        self._rate = job.rate(gpu_type)
        self._much = LARGER * max(job.work, 1)  # work of whoever gives up its turn
        self._places = list(self._tree.user(job.path).above())
        self._above = set(map(id, self._places))
        self._owed = self._places_owed()
        self._protected: dict[Path, list[Place]] = {}
        self._orgs: dict[Path, Place] = {}
        self._gives: dict[Path, Micros] = {}
        self.full = self._places_full()
        self._tiers = {job.path[0], *cluster.preempts.get(job.path[0], ())}
        self._org = self._places[-3] if len(self._places) > 2 else self._places[0]
        self._tier = self._places[-2]
        self._soon = ENDING * cluster.policy.grace
        self._brief = job.estimate is not None and job.lasts <= self._soon
        self._in_time = cluster.policy.express(job, cluster.now)
        self._presses = self._in_time and cluster.policy.presses_from(job) <= cluster.now

    def of(self, other: Running, now: Instant) -> Right | None:
        """By which right another can be asked, if it can be asked at all."""
        job = other.job
        spent = job.preemptions >= self._cluster.policy.preemptions_max
        spent = spent and not self._takes_turn(other)  # which costs little, however often
        ending = other.stops_at is not None or other.ends_by <= now
        if not job.preemptible or spent or ending or other.started_at >= now:
            return None
        if other.why is Why.AGE and other.ends_soon(now, self._soon):
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
        give = self.to_give(self.org_of(job))
        return Right.SHARE if job.rate(other.gpu_type) * self.weight < give else None

    def orgs(self) -> list[Path] | None:
        """The orgs in which there may be somebody to ask; None if that may be any."""
        if self._owed or self._presses:
            return None
        return [self.job.path[:2], *(org.path for org in self._larger())]

    def any(self) -> bool:
        """Whether there may be somebody to ask; a quick look that errs on the side of yes."""
        near = self._lower_class() or self._some_turn()
        return bool(self._owed) or self._presses or near or self._larger_share()

    @property
    def haste(self) -> tuple[bool, bool, bool]:
        """Whether it is over within minutes, can start in time, and is about to be late."""
        return self._brief, self._in_time, self._presses

    def owed_at(self) -> tuple[Path, ...]:
        """The places of this job that are owed GPUs."""
        return tuple(place.path for place in self._owed)

    def protected(self, other: Job) -> list[Place]:
        """The places of another that it does not share with this job, and that have a floor."""
        found = self._protected.get(other.path)
        if found is None:
            places = self._tree.user(other.path).above()
            found = [place for place in places if place.floor and id(place) not in self._above]
            self._protected[other.path] = found
        return found

    def makes_way(self, leaving: Iterable[Running]) -> bool:
        """Whether the places that are at their ceiling have room for the job once others left."""
        gone = list(leaving) if self.full else []
        return all(
            excess
            <= sum(
                1 if of == JOBS else running.job.shape.milli_gpus
                for running in gone
                if of in (JOBS, ANY, running.gpu_type) and _counts(place, running.job)
            )
            for place, of, excess in self.full
        )

    def to_give(self, org: Place) -> Micros:
        """How much of its rate an org may lose, by weight, and still have the larger part.

        Of what runs now, and also of what was used and runs ahead, by which turns are taken: else
        whoever starts in turn would be asked the next moment by those who come after. Below zero
        if it has not; one that loses exactly so much has no larger part any more.
        """
        found = self._gives.get(org.path)
        if found is None:
            found = self._gives[org.path] = self._to_give(org)
        return found

    def _to_give(self, org: Place) -> Micros:
        ahead = self._tree.ahead(self._cluster.now)
        turn = self._tree.counted_ahead(org) * self._org.weight
        turn -= (self._tree.counted_ahead(self._org) + self._rate * ahead) * org.weight
        return min(self.runs_more(org), -(-turn // ahead))

    def runs_more(self, org: Place) -> Micros:
        """By how much, by weight, an org runs more than this job's would with the job."""
        mine = self._org
        return org.rate * mine.weight - (mine.rate + self._rate) * org.weight

    def org_of(self, other: Job) -> Place:
        """The org of another, as a place."""
        found = self._orgs.get(other.path)
        if found is None:
            places = list(self._tree.user(other.path).above())
            found = self._orgs[other.path] = places[-3] if len(places) > 2 else places[0]
        return found

    @property
    def weight(self) -> int:
        """The weight of this job's org."""
        return self._org.weight

    def borrower(self, other: Job) -> Place:
        """The place where another's path parts from ours."""
        above = [p for p in self._tree.user(other.path).above() if id(p) not in self._above]
        return above[-1]

    def _places_owed(self) -> list[Place]:
        """Places of this job that stay within their floor with it."""
        milli = self.job.shape.milli_gpus
        return [
            place
            for place in self._places
            for of, floor in place.floor.items()
            if milli and of in (ANY, self._type) and place.used.get(of, 0) + milli <= floor
        ]

    def _places_full(self) -> list[tuple[Place, str, int]]:
        """Places of this job that are at a ceiling, and how much must leave them for it."""
        full: list[tuple[Place, str, int]] = []
        for place in (*self._places, *self._tree.limits(self.job)):
            over = place.all_over(self.job.shape.milli_gpus, self._type)
            full += [(place, of, excess) for of, excess in over]
        return full

    def _reaches(self, owed: Place, other: Job) -> bool:
        """Whether a floor can be restored at the cost of another."""
        outside = other.path[: len(owed.path)] != owed.path
        return outside and other.path[0] in self._tiers

    def _pressed(self, other: Running) -> bool:
        """Whether another's tier has more time, and its work is safe."""
        policy, its = self._cluster.policy, other.job
        if not its.checkpoint_every or its.checkpoint_cost > policy.grace:
            return False
        return policy.start_target(its.path[0]) > policy.start_target(self.job.path[0])

    def _some_turn(self) -> bool:
        return any(map(self._takes_turn, self._cluster.turns_up(self.job.path[:2])))

    def _takes_turn(self, other: Running) -> bool:
        """Whether another of the same org and class has had its turn, and has much more to do."""
        cluster, now = self._cluster, self._cluster.now
        mine, its = self.job, other.job
        if its.path[:2] != mine.path[:2] or its.priority_class != mine.priority_class:
            return False
        if cluster.turn_ends(other) > now:
            return False
        if other.ends_soon(now, self._soon):
            return False
        if cluster.outlasts_all(other.job, now - other.started_at):
            return False
        return other.work(now) >= self._much or cluster.outlasts_all(self.job)

    def _lower_class(self) -> bool:
        lowest = self._cluster.lowest_class(self.job.path[:2])
        return lowest is not None and lowest < self.job.priority_class

    def _larger_share(self) -> bool:
        return any(True for _ in self._larger())

    def _larger(self) -> Iterator[Place]:
        """The other orgs that have something to give, of those that run the most."""
        more = takewhile(lambda org: self.runs_more(org) > 0, self._others())
        return (org for org in islice(more, LARGEST) if self.to_give(org) > 0)

    def _others(self) -> Iterator[Place]:
        """The other orgs of the tier in which something runs, the largest part first."""
        if len(self.job.path) > 1:
            yield from (org for org in self._tree.largest(self._tier) if org is not self._org)


def _counts(place: Place, job: Job) -> bool:
    """Whether a place, in the tree or outside it, counts a job."""
    if place.outside:
        return place.name in job.counted
    return job.path[: len(place.path)] == place.path


class Leaving:
    """Jobs that would leave, and what their places have left."""

    def __init__(self, rights: Rights) -> None:
        self._rights = rights
        self._gone: dict[int, dict[str, int]] = {}  # milli-GPUs, by place
        self._rates: dict[int, Micros] = {}  # by org
        self._by_share: dict[int, int] = {}  # how many are asked by their org's larger share
        self.jobs: dict[JobId, tuple[Running, Right]] = {}

    def add(self, other: Running, right: Right) -> bool:
        """Let another leave, if that is legal together with all that leave already."""
        self._move(other, right, 1)
        if self._legal(other):
            return True
        self._move(other, right, -1)
        return False

    def drop(self, other: Running) -> None:
        """Let one that was to leave stay."""
        self._move(other, self.jobs[other.job.id][1], -1)

    def makes_way(self) -> bool:
        """Whether enough leaves the places that are at their ceiling."""
        return self._rights.makes_way(running for running, _ in self.jobs.values())

    def _move(self, other: Running, right: Right, way: int) -> None:
        if way > 0:
            self.jobs[other.job.id] = other, right
        else:
            del self.jobs[other.job.id]
        milli = way * other.job.shape.milli_gpus
        for place in self._rights.protected(other.job):
            gone = self._gone.setdefault(id(place), {})
            for of in (ANY, other.gpu_type):
                gone[of] = gone.get(of, 0) + milli
        org = id(self._rights.org_of(other.job))
        rate = way * other.job.rate(other.gpu_type)
        self._rates[org] = self._rates.get(org, 0) + rate
        if right is Right.SHARE:
            self._by_share[org] = self._by_share.get(org, 0) + way

    def _legal(self, other: Running) -> bool:
        for place in self._rights.protected(other.job):
            gone = self._gone[id(place)]
            for of, floor in place.floor.items():
                if gone.get(of, 0) and place.used.get(of, 0) - gone[of] < floor:
                    return False
        org = self._rights.org_of(other.job)
        if self._by_share.get(id(org)):
            return self._rates[id(org)] * self._rights.weight < self._rights.to_give(org)
        return True
