"""How much room a job lacks even if every job left that it may preempt.

To show that no set of victims makes room, a search would have to check all sets. Most often a sum
shows it: a gang needs 80 GPUs, its candidates have 4,000, and the floor of their org lets 79 of
these go. For each domain where the job could run, this module adds up the most that could become
free: what is free now, and what the candidates there have, limited at every group to what is above
its floor (and to the rest of one job that straddles it), and by share to what leaves the other
part no smaller. Only if that is enough is a search worth its cost.

The sums are upper bounds. With jobs of one GPU they are exact. With larger jobs the real shortfall
may be greater, never smaller.
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
from bursar.core.scheduling.order.share_group import ShareGroup
from bursar.core.scheduling.preemption.rights import PreemptionRights, Right

CandidatesById = dict[JobId, tuple[RunningJob, Right]]
Releases = list[tuple[RunningJob, Right, int]]  # a candidate, and its milli-GPUs in the domain


class ProtectedGroup(NamedTuple):
    """A group that does not let more go."""

    right: str  # what protects it: `floor`, or `share` (its part would become the smaller one)
    group: ShareGroup
    has: int  # milli-GPUs
    keeps: int  # milli-GPUs that it does not let go
    straddling: int = 0  # milli-GPUs of the largest job that may straddle its floor

    @property
    def path(self) -> str:
        """The name of the group."""
        return ".".join(self.group.path)


class Shortfall(NamedTuple):
    """What a job lacks in the best domain. All figures are in milli-GPUs."""

    missing: int
    free: int
    preemptible: int  # of jobs that may be preempted, each by itself
    releasable: int  # the most that these may release together
    fixed: int  # of jobs that may not be preempted at all
    guards: tuple[ProtectedGroup, ...]  # what protects the rest, the largest first


def find_shortfall(cluster: Cluster, job: Job, gpu_type: str) -> Shortfall | None:
    """What a job lacks on GPUs of one type, whatever leaves; None if there may be enough."""
    rights = PreemptionRights(cluster, job, gpu_type)
    candidates: CandidatesById = {}
    for _, job_id in cluster.running_index.ends.get(gpu_type, ()):
        running = cluster.running.get(job_id)
        if running is not None and (right := rights.right_against(running, cluster.now)):
            candidates[job_id] = running, right
    domains = nodes_by_domain(cluster, job, gpu_type)
    shortfalls = [_measure(rights, cluster, candidates, domains[name]) for name in sorted(domains)]
    best = min(shortfalls, key=lambda shortfall: shortfall.missing, default=None)
    return None if best is None or best.missing <= 0 else best


def free_milli(kind: NodeKind, room: NodeRoom) -> int:
    """The free milli-GPUs of a node."""
    return (room.whole * kind.slots + sum(room.parts)) * MILLI // kind.slots


def free_milli_up(kind: NodeKind, room: NodeRoom) -> int:
    """The same rounded up, for upper bounds: three and four sevenths are a whole GPU."""
    return -(-(room.whole * kind.slots + sum(room.parts)) * MILLI // kind.slots)


def nodes_by_domain(cluster: Cluster, job: Job, gpu_type: str) -> dict[str, list[NodeUsage]]:
    """The nodes that a job can use, by the domain in which all of its tasks must be."""
    level = Level.NODE if job.shape.tasks == 1 else job.shape.within
    domains: dict[str, list[NodeUsage]] = {}
    for kind, rooms in cluster.nodes.rooms.items():
        if kind.gpu_type == gpu_type and task_need(job.shape, kind) is not None:
            for node in (node for nodes in rooms.values() for node in nodes):
                usage = cluster.nodes.by_id[node]
                domains.setdefault(usage.node.domain(level), []).append(usage)
    return domains


def _measure(
    rights: PreemptionRights, cluster: Cluster, candidates: CandidatesById, nodes: list[NodeUsage]
) -> Shortfall:
    """What is missing in one domain."""
    shape = rights.job.shape
    task_milli = shape.milli_gpus // shape.tasks
    soon = cluster.now + cluster.policy.preemption_grace
    tasks = free = preemptible = fixed = 0
    released: dict[JobId, int] = {}  # milli-GPUs of candidates, on nodes where tasks could run
    missing: list[int] = []  # milli-GPUs for one more task, on each node
    for usage in nodes:
        held = _held_milli(usage, soon)
        leaving = {job: milli for job, milli in held.items() if job in candidates}
        preemptible += sum(leaving.values())
        fixed += sum(held.values()) - sum(leaving.values())
        task = task_need(shape, usage.kind)
        assert task is not None
        room = usage.room_at(soon, frozenset(leaving))
        fits = task.count_in(room)
        remainder = (free_milli(usage.kind, room) - fits * task_milli) % max(task_milli, 1)
        missing.append(task_milli - remainder)
        if fits:
            tasks += fits
            free += free_milli_up(usage.kind, usage.room_at(soon))
            for job, milli in leaving.items():
                released[job] = released.get(job, 0) + milli
    releases = [(*candidates[job], milli) for job, milli in released.items() if milli]
    releasable, guards = _most_released(rights, releases)
    lacking = max(shape.tasks - tasks, 0)  # tasks
    by_fit = sum(sorted(missing)[:lacking]) + max(lacking - len(missing), 0) * task_milli
    unfree = max((shape.tasks - lacking) * task_milli - free - releasable, 0)
    return Shortfall(
        by_fit + unfree, free, preemptible, releasable, fixed, guards if unfree else ()
    )


def _held_milli(usage: NodeUsage, soon: Instant) -> dict[JobId, int]:
    """How many milli-GPUs of a node each job has that does not end by an instant."""
    return {
        job: -(-len(piece.gpus) * piece.slots * MILLI // usage.kind.slots)
        for job, (piece, until) in usage.allocations.items()
        if until > soon
    }


def _most_released(
    rights: PreemptionRights, releases: Releases
) -> tuple[int, tuple[ProtectedGroup, ...]]:
    """The most that some jobs may release together, and which groups protect the rest."""
    above_floors, floor_guards = _released_above_floors(rights, releases)
    by_share, share_guards = _released_by_share(rights, releases)
    guards = floor_guards if above_floors <= by_share else share_guards
    ordered = sorted(guards, key=lambda guard: (-guard.keeps, guard.path))
    return min(above_floors, by_share), tuple(ordered)


def _released_above_floors(
    rights: PreemptionRights, releases: Releases
) -> tuple[int, list[ProtectedGroup]]:
    """What is released if groups keep their floors, added up from the users to the tiers.

    By `floor`, one job of a group may straddle its floor: see `LeavingJobs`.
    """
    chains: dict[tuple[ShareGroup, ...], int] = {}
    straddling: dict[ShareGroup, int] = {}  # the largest job of a group that leaves by `floor`
    for running, right, milli in releases:
        chain = tuple(rights.floors.protected_groups(running.job))
        chains[chain] = chains.get(chain, 0) + milli
        if right is Right.FLOOR:
            for group in chain:
                size = max(straddling.get(group, 0), running.job.shape.milli_gpus)
                straddling[group] = size
    guards = []
    while longest := max((chain for chain in chains if chain), key=len, default=()):
        milli, group = chains.pop(longest), longest[0]
        above = min(_above_floors(group, releases[0][0].gpu_type), default=None)
        spare = milli
        if above is not None:
            most = above + max(straddling.get(group, 0) - 1, 0) if above else 0
            spare = _released_within(releases, most)
        if spare < milli:
            has, largest = group.used[ANY_TYPE], straddling.get(group, 0)
            guards.append(ProtectedGroup("floor", group, has, has - spare, largest))
        chains[longest[1:]] = chains.get(longest[1:], 0) + min(milli, spare)
    return chains.get((), 0), guards


def _released_within(releases: Releases, spare: int) -> int:
    """What can become free here if jobs of so many milli-GPUs in all leave.

    Slots can be a little more than the part that they are named by (a third is 0.333), and a gang
    may have tasks in other domains.
    """
    sizes = ((milli, running.job.shape.milli_gpus) for running, _, milli in releases)
    most = max(spare * milli // size for milli, size in sizes if size)
    return most // _unit(releases) * _unit(releases)


def _unit(releases: Releases) -> int:
    """What all amounts that can be released are multiples of: jobs leave as a whole."""
    return gcd(*(milli for _, _, milli in releases)) or 1


def _above_floors(group: ShareGroup, gpu_type: str) -> Iterator[int]:
    """How much a group has above each of its floors that count for a GPU type."""
    for of in (ANY_TYPE, gpu_type):
        if of in group.floor:
            yield max(group.used.get(of, 0) - group.floor[of], 0)


def _released_by_share(
    rights: PreemptionRights, releases: Releases
) -> tuple[int, list[ProtectedGroup]]:
    """What is released if no org preempted by share gets the smaller part."""
    shares = rights.shares
    total = 0
    by_org: dict[ShareGroup, Releases] = {}
    for running, right, milli in releases:
        if right is Right.SHARE and running.job.rate(running.gpu_type):
            org = shares.org_of(running.job)
            by_org.setdefault(org, []).append((running, right, milli))
        else:
            total += milli
    guards = []
    for org, org_releases in by_org.items():
        org_milli = sum(milli for _, _, milli in org_releases)
        own_rate = rights.own_rate() * org.weight
        rate_max = max(shares.spare_rate(org) + own_rate, 0) // shares.weight
        most = max(
            rate_max * milli // running.job.rate(running.gpu_type)
            for running, _, milli in org_releases
        )
        spare = most // _unit(org_releases) * _unit(org_releases)
        if spare < org_milli:
            has = org.used[ANY_TYPE]
            guards.append(ProtectedGroup("share", org, has, has - spare))
        total += min(org_milli, spare)
    return total, guards
