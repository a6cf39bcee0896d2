"""The jobs that may be preempted for a waiting job: ranked, in stages, and by node."""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from bursar.core.ids import JobId, NodeId
from bursar.core.money import Micros
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.jobs import Path, RunningJob
from bursar.core.scheduling.order.share_group import ShareGroup
from bursar.core.scheduling.order.share_usage import KEY_SCALE
from bursar.core.scheduling.preemption.rights import PreemptionRights, Right


class VictimCost(NamedTuple):
    """What it costs to preempt a job. Smaller is better."""

    priority_class: int
    lost: Micros
    id: JobId


RankedCandidates = list[tuple[VictimCost, RunningJob, Right]]


class Candidates:
    """Some candidates, by node, the cheapest first. A job that was preempted meanwhile is none."""

    def __init__(self, cluster: Cluster, ranked: RankedCandidates) -> None:
        self.ranked = ranked
        self._cluster = cluster
        self._by_node: dict[NodeId, list[int]] = {}  # indexes into `ranked`
        for index, (_, running, _) in enumerate(ranked):
            for piece in running.pieces:
                self._by_node.setdefault(piece.node, []).append(index)
        self._heads = [(indexes[0], node) for node, indexes in self._by_node.items()]
        heapify(self._heads)

    def on_node(self, node: NodeId) -> list[int]:
        """The candidates on a node, as indexes into `ranked`."""
        indexes = self._by_node.get(node, [])
        while indexes and not self.is_current(indexes[0]):
            del indexes[0]
        return [index for index in indexes if self.is_current(index)]

    def nodes(self) -> Iterator[NodeId]:
        """The nodes that have candidates, the one with the cheapest first."""
        yielded = []
        try:
            while self._heads:
                head, node = heappop(self._heads)
                indexes = self.on_node(node)
                if indexes and indexes[0] != head:
                    heappush(self._heads, (indexes[0], node))
                elif indexes:
                    yielded.append((head, node))
                    yield node
        finally:  # the caller may stop at any node
            for entry in yielded:
                heappush(self._heads, entry)

    def own_rate(self, org: Path) -> Micros:
        """The rate of all candidates of an org."""
        jobs = (running for _, running, _ in self.ranked if running.job.path[:2] == org)
        return sum(running.job.rate(running.gpu_type) for running in jobs)

    def has_right(self, right: Right) -> bool:
        """Whether there is a candidate by a right."""
        return any(entry[2] is right for entry in self.ranked)

    def has_only(self, right: Right) -> bool:
        """Whether all candidates can be preempted by one right."""
        return all(entry[2] is right for entry in self.ranked)

    def is_current(self, index: int) -> bool:
        """Whether a candidate still runs as it did when it was ranked."""
        running = self.ranked[index][1]
        return self._cluster.running.get(running.job.id) is running


class CandidateStages(NamedTuple):
    """Which candidates are searched together: by borrower, to restore a floor; then by right."""

    borrowers: list[tuple[ShareGroup, Candidates]]
    stages: list[tuple[Right | None, Candidates]]  # last, with None, all candidates
    orgs: list[tuple[ShareGroup, Candidates]]  # the candidates by `share`
    can_straddle: bool  # whether a candidate by `floor` has a group with a floor

    def in_order(self) -> Iterator[tuple[Candidates, bool]]:
        """First the jobs of the borrower furthest above its floor, then stage by stage.

        By share, the org with the largest part comes first. If a smaller one lost jobs, its waiting
        jobs could preempt the largest in turn, and more jobs would stop than need to. Then the same
        again, with True: now one job of each group may straddle its floor.
        """
        for may_straddle in (False, True) if self.can_straddle else (False,):
            if self.borrowers:
                largest = max(
                    self.borrowers, key=lambda entry: (entry[0].above_floor(), entry[0].path)
                )
                yield largest[1], may_straddle
            for right, stage in self.stages:
                if right is Right.SHARE and len(self.orgs) > 1 and not may_straddle:
                    yield max(self.orgs, key=_part_of)[1], False
                if not may_straddle or stage.has_right(Right.FLOOR):
                    yield stage, may_straddle


def _part_of(entry: tuple[ShareGroup, Candidates]) -> tuple[int, Path]:
    """The part of an org by weight, for an order that is total."""
    org = entry[0]
    return org.rate * KEY_SCALE // org.weight, org.path


def find_candidates(cluster: Cluster, rights: PreemptionRights, gpu_type: str) -> CandidateStages:
    """Find all jobs that may be preempted, and group them into stages."""
    ranked = _rank_candidates(cluster, rights, gpu_type)
    by_right = {right: [entry for entry in ranked if entry[2] is right] for right in Right}
    by_borrower: dict[Path, tuple[ShareGroup, RankedCandidates]] = {}
    for entry in by_right[Right.FLOOR]:
        borrower = rights.floors.borrower(entry[1].job)
        by_borrower.setdefault(borrower.path, (borrower, []))[1].append(entry)
    by_org: dict[Path, tuple[ShareGroup, RankedCandidates]] = {}
    for entry in by_right[Right.SHARE]:
        org = rights.shares.org_of(entry[1].job)
        by_org.setdefault(org.path, (org, []))[1].append(entry)
    stages: list[tuple[Right | None, RankedCandidates]] = [*by_right.items()]
    stages = [stage for stage in stages if stage[1]]
    if len(stages) > 1:
        stages.append((None, ranked))
    return CandidateStages(
        [(borrower, Candidates(cluster, entries)) for borrower, entries in by_borrower.values()],
        [(right, Candidates(cluster, entries)) for right, entries in stages],
        [(org, Candidates(cluster, entries)) for org, entries in by_org.values()],
        any(rights.floors.protected_groups(running.job) for _, running, _ in by_right[Right.FLOOR]),
    )


def _rank_candidates(cluster: Cluster, rights: PreemptionRights, gpu_type: str) -> RankedCandidates:
    """All jobs that may be preempted, the cheapest first."""
    orgs, now = rights.victim_orgs(), cluster.now
    jobs = cluster.running.values() if orgs is None else cluster.running_index.of_orgs(orgs)
    ranked = []
    for running in jobs:
        right = rights.right_against(running, now) if running.gpu_type == gpu_type else None
        if right is not None:
            ranked.append((victim_cost(running, cluster), running, right))
    return sorted(ranked, key=lambda entry: entry[0])


def victim_cost(running: RunningJob, cluster: Cluster) -> VictimCost:
    """What it costs to preempt a running job now."""
    job = running.job
    return VictimCost(job.priority_class, running.work_lost(cluster.now), job.id)
