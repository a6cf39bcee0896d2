"""A quick and exact no: how much a job lacks even if everybody left who may be asked.

The problem. To show that no set of victims makes room, a search would have to look at all sets. But
most often a sum shows it: a gang needs 80 GPUs, all that may be asked have 4,000, and the floor of
their org leaves 79 of these to be given. So for each place where the job could lie, as close
together as it must, the most that could become free is added up: what is free, and what the
candidates there have, at every place of the tree no more than is above its floor, and by share no
more than leaves the larger part larger. Only if that is enough is it worth a search.

The sums are bounds from above. With jobs of one GPU they are exact; with larger ones a job may lack
more than is said, never less.
"""

from collections.abc import Iterator
from math import gcd
from typing import NamedTuple

from bursar.core.ids import JobId
from bursar.core.instant import Instant
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.jobs import Job, RunningJob, task_need
from bursar.core.scheduling.model.nodes import MILLI, Level, NodeKind, NodeRoom, NodeUsage
from bursar.core.scheduling.model.policy import ANY_TYPE
from bursar.core.scheduling.order.share import ShareGroup
from bursar.core.scheduling.preemption.rights import PreemptionRights, Right

CandidatesById = dict[JobId, tuple[RunningJob, Right]]  # who may be asked, by job


class ProtectedGroup(NamedTuple):
    """Why a place does not give more."""

    right: str  # floor, or share: it would not have the larger part any more
    group: ShareGroup
    has: int  # milli-GPUs
    keeps: int  # milli-GPUs that nobody may ask of it

    @property
    def path(self) -> str:
        """Its name."""
        return ".".join(self.group.path)


class Shortfall(NamedTuple):
    """How much a job lacks in the best place, in milli-GPUs."""

    lacks: int
    free: int
    asked: int  # of jobs that may be asked, each by itself
    given: int  # the most that they may give together
    fixed: int  # of jobs that may not be asked at all
    guards: tuple[ProtectedGroup, ...]  # whose floors or shares protect the rest, the most first


def find_shortfall(cluster: Cluster, job: Job, gpu_type: str) -> Shortfall | None:
    """What a job lacks on GPUs of one type whoever makes room; None if it may be enough."""
    rights = PreemptionRights(cluster, job, gpu_type)
    asked: CandidatesById = {}
    for _, job_id in cluster.running_index.ends.get(gpu_type, ()):
        running = cluster.running.get(job_id)
        if (
            running is not None
            and (right := rights.right_against(running, cluster.now)) is not None
        ):
            asked[job_id] = running, right
    domains = nodes_by_domain(cluster, job, gpu_type)
    lacks = [_measure(rights, cluster, asked, domains[name]) for name in sorted(domains)]
    found = min(lacks, key=lambda lack: lack.lacks, default=None)
    return None if found is None or found.lacks <= 0 else found


def free_milli(kind: NodeKind, room: NodeRoom) -> int:
    """Free milli-GPUs of a node."""
    return (room.whole * kind.slots + sum(room.parts)) * MILLI // kind.slots


def free_milli_up(kind: NodeKind, room: NodeRoom) -> int:
    """The same rounded up, as a bound needs it: three and four sevenths are a whole GPU."""
    return -(-(room.whole * kind.slots + sum(room.parts)) * MILLI // kind.slots)


def nodes_by_domain(cluster: Cluster, job: Job, gpu_type: str) -> dict[str, list[NodeUsage]]:
    """The nodes that a job can use, by the place in which all of its tasks must lie."""
    level = Level.NODE if job.shape.tasks == 1 else job.shape.within
    domains: dict[str, list[NodeUsage]] = {}
    for kind, rooms in cluster.nodes.rooms.items():
        if kind.gpu_type == gpu_type and task_need(job.shape, kind) is not None:
            for node in (node for nodes in rooms.values() for node in nodes):
                machine = cluster.nodes.by_id[node]
                domains.setdefault(machine.node.domain(level), []).append(machine)
    return domains


def _measure(
    rights: PreemptionRights, cluster: Cluster, asked: CandidatesById, machines: list[NodeUsage]
) -> Shortfall:
    """What is lacking in one place."""
    shape = rights.job.shape
    each = shape.milli_gpus // shape.tasks
    soon = cluster.now + cluster.policy.grace
    tasks = free = all_asked = fixed = 0
    given: dict[JobId, int] = {}  # milli-GPUs by job, on nodes where tasks could lie
    missing: list[int] = []  # milli-GPUs for one task more, on each node
    for machine in machines:
        there = _there(machine, soon)
        mine = {job: milli for job, milli in there.items() if job in asked}
        all_asked += sum(mine.values())
        fixed += sum(there.values()) - sum(mine.values())
        task = task_need(shape, machine.kind)
        assert task is not None
        room = machine.room_at(soon, frozenset(mine))
        fits = task.count_in(room)
        missing.append(each - (free_milli(machine.kind, room) - fits * each) % max(each, 1))
        if fits:
            tasks += fits
            free += free_milli_up(machine.kind, machine.room_at(soon))
            for job, milli in mine.items():
                given[job] = given.get(job, 0) + milli
    leaving = [(*asked[job], milli) for job, milli in given.items() if milli]
    most, guards = _most_given(rights, leaving)
    short = max(shape.tasks - tasks, 0)
    by_fit = sum(sorted(missing)[:short]) + max(short - len(missing), 0) * each
    unfree = max((shape.tasks - short) * each - free - most, 0)
    return Shortfall(by_fit + unfree, free, all_asked, most, fixed, guards if unfree else ())


def _there(machine: NodeUsage, soon: Instant) -> dict[JobId, int]:
    """Who has how many milli-GPUs of a node, those left out who have gone by then."""
    return {
        job: -(-len(piece.gpus) * piece.slots * MILLI // machine.kind.slots)
        for job, (piece, until) in machine.allocations.items()
        if until > soon
    }


GivenUp = list[tuple[RunningJob, Right, int]]


def _most_given(rights: PreemptionRights, given: GivenUp) -> tuple[int, tuple[ProtectedGroup, ...]]:
    """The most that some jobs may give together, and who protects the rest."""
    floors, guards = _above_floors(rights, given)
    shares, others = _by_share(rights, given)
    guarding = guards if floors <= shares else others
    return min(floors, shares), tuple(sorted(guarding, key=lambda one: (-one.keeps, one.path)))


def _above_floors(rights: PreemptionRights, given: GivenUp) -> tuple[int, list[ProtectedGroup]]:
    """What is given if no place goes below its floor, added up from the users to the tiers."""
    chains: dict[tuple[ShareGroup, ...], int] = {}
    for running, _, milli in given:
        chain = tuple(rights.protected(running.job))
        chains[chain] = chains.get(chain, 0) + milli
    guards = []
    while longest := max((chain for chain in chains if chain), key=len, default=()):
        milli, place = chains.pop(longest), longest[0]
        spares = list(_spare(place, given[0][0].gpu_type))
        spare = _worth(given, min(spares)) if spares else milli
        if spare < milli:
            has = place.used[ANY_TYPE]
            guards.append(ProtectedGroup("floor", place, has, has - spare))
        chains[longest[1:]] = chains.get(longest[1:], 0) + min(milli, spare)
    return chains.get((), 0), guards


def _worth(given: GivenUp, spare: int) -> int:
    """What can become free here if jobs of so many milli-GPUs leave.

    Slots may be a little more than the part that they are called (a third is 0.333), and a gang may
    lie elsewhere as well.
    """
    sizes = ((milli, running.job.shape.milli_gpus) for running, _, milli in given)
    most = max(spare * milli // size for milli, size in sizes if size)
    return most // _unit(given) * _unit(given)


def _unit(given: GivenUp) -> int:
    """What all amounts that can be given are multiples of: jobs leave whole."""
    return gcd(*(milli for _, _, milli in given)) or 1


def _spare(place: ShareGroup, gpu_type: str) -> Iterator[int]:
    """How much a place has above each of its floors that count here."""
    for of in (ANY_TYPE, gpu_type):
        if of in place.floor:
            yield max(place.used.get(of, 0) - place.floor[of], 0)


def _by_share(rights: PreemptionRights, given: GivenUp) -> tuple[int, list[ProtectedGroup]]:
    """What is given if every org that is asked by share keeps the larger part."""
    total = 0
    by_org: dict[ShareGroup, GivenUp] = {}
    for one in given:
        if one[1] is Right.SHARE and one[0].job.rate(one[0].gpu_type):
            by_org.setdefault(rights.org_of(one[0].job), []).append(one)
        else:
            total += one[2]
    guards = []
    for org, jobs in by_org.items():
        milli = sum(one[2] for one in jobs)
        most = max(rights.spare_rate(org) - 1, 0) // rights.weight  # of its rate
        worth = max(most * one[2] // one[0].job.rate(one[0].gpu_type) for one in jobs)
        spare = worth // _unit(jobs) * _unit(jobs)
        if spare < milli:
            has = org.used[ANY_TYPE]
            guards.append(ProtectedGroup("share", org, has, has - spare))
        total += min(milli, spare)
    return total, guards
