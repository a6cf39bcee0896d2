"""Making room: which running jobs are asked to stop for one that may ask them.

The best set of victims touches the lowest classes, then loses the least work in credits, then is
the smallest, then comes first by ids. Sets that restore a floor are looked for first among the
jobs of the place that is furthest above its own, then among all such places; then jobs of lower
classes of the same org; then tiers with longer start targets; then orgs with larger shares; then
jobs of the same org that have had their turn; last, all of these together.

A job that needs one node gets the best set, found node by node. A gang gets a good one: nodes are
emptied in the order of what a task costs there, and whoever need not leave after all stays; with
few candidates all sets are looked at. The work is counted in sets looked at, and a plan says when a
budget ended before the best was proven.
"""

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from bursar.core.ids import JobId, NodeId
from bursar.core.instant import Instant
from bursar.core.money import Micros
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.jobs import Job, Path, RunningJob, task_need
from bursar.core.scheduling.model.nodes import FREE_NOW
from bursar.core.scheduling.order.longest_jobs import outlasts_all
from bursar.core.scheduling.order.share import ShareGroup
from bursar.core.scheduling.placement.backfill import NodeClaims
from bursar.core.scheduling.placement.search import NodePlacement, pack_tasks
from bursar.core.scheduling.preemption.rights import LeavingJobs, PreemptionRights, Right, Victim
from bursar.core.scheduling.preemption.shortfall import find_shortfall

Cost = tuple[int, Micros, int, tuple[JobId, ...]]

EXHAUSTIVE_CANDIDATES: Final = 12  # candidates of which all sets are looked at for a gang


class VictimSet(NamedTuple):
    """Room for a job: where, and who leaves by which right."""

    placement: NodePlacement
    victims: tuple[tuple[RunningJob, Right], ...]
    proven: bool  # whether no better set exists
    at: Instant  # counted on: what is free by then, or NOW


def may_preempt_any(cluster: Cluster, job: Job, types: tuple[str, ...]) -> bool:
    """Whether a job may have the right to ask somebody; a quick look."""
    user = cluster.tree.user_group(job.path)
    owed = any(place.floor for place in user.lineage())
    near = job.path[:2] in cluster.classes.urgent or any(
        cluster.running_index.past_turn(job.path[:2], cluster.now)
    )
    near = near or cluster.policy.is_express(job, cluster.now)
    if owed or near or cluster.tree.is_uneven(user):
        return any(PreemptionRights(cluster, job, gpu_type).may_preempt() for gpu_type in types)
    return False


class PreemptionSearch:
    """Making room for the jobs of a round, one after another.

    Whom a job may ask is found once and kept for others of the same user, class and claim to a
    floor: while a plan is made nobody can be asked who could not before.
    """

    def __init__(self, cluster: Cluster, claims: NodeClaims, steps: "StepBudget") -> None:
        self._cluster = cluster
        self._claims = claims
        self._steps = steps
        self._known: dict[_Key, CandidateStages] = {}

    def make_room(self, job: Job, types: tuple[str, ...]) -> VictimSet | None:
        """Whom to ask so that a job fits; None if nobody can be asked."""
        for gpu_type in types:
            rights = PreemptionRights(self._cluster, job, gpu_type)
            if not rights.may_preempt() or self._hopeless(job, gpu_type):
                continue
            self._steps.reset(self._cluster.policy.victim_steps)
            for stage in self._stages(rights, gpu_type):
                if not rights.clears_ceilings(running for _, running, _ in stage.asked):
                    continue
                search = _VictimSearch(
                    self._cluster, self._claims, rights, gpu_type, stage, self._steps
                )
                if freed := search.best():
                    return freed
        return None

    def _hopeless(self, job: Job, gpu_type: str) -> bool:
        """Whether a sum shows that a gang gets no room: with parts of GPUs it does not add up."""
        kinds = (kind for kind in self._cluster.nodes.rooms if kind.gpu_type == gpu_type)
        if job.shape.tasks == 1 or any(kind.slots > 1 for kind in kinds):
            return False
        return find_shortfall(self._cluster, job, gpu_type) is not None

    def _stages(self, rights: PreemptionRights, gpu_type: str) -> "Iterator[Candidates]":
        """Whom to look at together, one group after another."""
        job = rights.job
        alike = (
            gpu_type,
            job.path,
            job.priority_class,
            rights.paths_below_floor(),
            job.rate(gpu_type),
        )
        key = *alike, job.work, outlasts_all(self._cluster, job), rights.haste
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._found(
                rights, _rank_candidates(self._cluster, rights, gpu_type)
            )
        if found.borrowers:
            yield max(found.borrowers, key=lambda one: (one[0].above_floor(), one[0].path))[1]
        yield from found.groups

    def _found(self, rights: PreemptionRights, asked: "RankedCandidates") -> "CandidateStages":
        by_right = {right: [one for one in asked if one[2] is right] for right in Right}
        by_place: dict[Path, tuple[ShareGroup, RankedCandidates]] = {}
        for one in by_right[Right.FLOOR]:
            place = rights.borrower(one[1].job)
            by_place.setdefault(place.path, (place, []))[1].append(one)
        groups = [group for group in by_right.values() if group]
        if len(groups) > 1:
            groups.append(asked)
        return CandidateStages(
            [(place, Candidates(self._cluster, of)) for place, of in by_place.values()],
            [Candidates(self._cluster, group) for group in groups],
        )


def make_room(
    cluster: Cluster, claims: NodeClaims, job: Job, types: tuple[str, ...], steps: "StepBudget"
) -> VictimSet | None:
    """Whom to ask so that one job fits; None if nobody can be asked."""
    return PreemptionSearch(cluster, claims, steps).make_room(job, types)


class StepBudget:
    """A budget that counts what is looked at, so that the same plan comes out every time."""

    def __init__(self) -> None:
        self.left = 0
        self.taken = 0
        self.ended = False  # whether more would have been taken

    def reset(self, most: int) -> None:
        """Give another job as many steps."""
        self.left = most

    def take(self) -> bool:
        """Count a step; False if none is left."""
        if self.left == 0:
            self.ended = True
            return False
        self.taken += 1
        self.left -= 1
        return True


RankedCandidates = list[tuple[Victim, RunningJob, Right]]


def _rank_candidates(cluster: Cluster, rights: PreemptionRights, gpu_type: str) -> RankedCandidates:
    """Everybody who can be asked, the best first."""
    orgs = rights.victim_orgs()
    found = []
    for running in (
        cluster.running.values() if orgs is None else cluster.running_index.of_orgs(orgs)
    ):
        right = rights.right_against(running, cluster.now) if running.gpu_type == gpu_type else None
        if right is not None:
            job = running.job
            victim = Victim(job.priority_class, running.work_lost(cluster.now), job.id)
            found.append((victim, running, right))
    return sorted(found, key=lambda one: one[0])


class CandidateStages(NamedTuple):
    """Whom to look at together: by borrower, where a floor is to be restored, then by right."""

    borrowers: "list[tuple[ShareGroup, Candidates]]"
    groups: "list[Candidates]"


_Key = tuple[
    str, Path, int, tuple[Path, ...], Micros, Micros, bool, tuple[bool, bool, bool]
]  # fmt: skip


class Candidates:
    """Some who can be asked, by node, the best first; whoever was asked is none any more."""

    def __init__(self, cluster: Cluster, asked: RankedCandidates) -> None:
        self.asked = asked
        self._cluster = cluster
        self._on: dict[NodeId, list[int]] = {}
        for at, (_, running, _) in enumerate(asked):
            for piece in running.pieces:
                self._on.setdefault(piece.node, []).append(at)
        self._heads = [(on[0], node) for node, on in self._on.items()]
        heapify(self._heads)

    def on(self, node: NodeId) -> list[int]:
        """Those on a node, by their place among all."""
        here = self._on.get(node, [])
        while here and not self._there(here[0]):
            del here[0]
        return [at for at in here if self._there(at)]

    def nodes(self) -> Iterator[NodeId]:
        """The nodes with somebody to ask, the one with the best first."""
        seen = []
        try:
            while self._heads:
                head, node = heappop(self._heads)
                here = self.on(node)
                if here and here[0] != head:
                    heappush(self._heads, (here[0], node))
                elif here:
                    seen.append((head, node))
                    yield node
        finally:  # whoever asks may stop anywhere
            for one in seen:
                heappush(self._heads, one)

    def _there(self, at: int) -> bool:
        running = self.asked[at][1]
        return self._cluster.running.get(running.job.id) is running


class _VictimSearch:
    """The search among some candidates."""

    def __init__(
        self, cluster: Cluster, claims: NodeClaims, rights: PreemptionRights, gpu_type: str,
        candidates: Candidates, steps: StepBudget,
    ) -> None:  # fmt: skip
        self._cluster = cluster
        self._claims = claims
        self._job = rights.job
        self._type = gpu_type
        self._candidates = candidates
        self._asked = candidates.asked
        self._steps = steps
        # At a ceiling it is not GPUs that are short, and a job in a hurry would be late: nobody is
        # waited for who only ends soon.
        now_or_never = bool(rights.full_groups) or cluster.policy.is_express(
            rights.job, cluster.now
        )
        self._at = FREE_NOW if now_or_never else cluster.now + cluster.policy.grace
        self._leaving = LeavingJobs(rights)
        self._best: tuple[Cost, NodePlacement, tuple[tuple[RunningJob, Right], ...]] | None = None
        self._proven = True

    def best(self) -> VictimSet | None:
        """The best set of victims, if there is any."""
        if self._job.shape.tasks == 1:
            self._one()
        else:
            self._gang()
        if self._best is None:
            return None
        _, spot, victims = self._best
        return VictimSet(spot, victims, self._proven, self._at)

    # ----------------------------------------------------------------------- one node

    def _one(self) -> None:
        """Node by node, from the one with the best candidate on."""
        for node in self._candidates.nodes():
            here = self._candidates.on(node)
            cheapest = self._asked[here[0]][0]
            if self._best is not None and (*cheapest[:2], 1, (cheapest.id,)) >= self._best[0]:
                break
            if not self._fits(node):  # else it is free soon anyway, and somebody else's
                self._subsets(node, here, 0)

    def _subsets(self, node: NodeId, candidates: list[int], start: int) -> None:
        """Look at all sets of candidates that may be the best, going on from those that leave."""
        for at in range(start, len(candidates)):
            victim, running, right = self._asked[candidates[at]]
            if self._best is not None and self._cost(victim) >= self._best[0]:
                return  # all further ones cost at least as much
            if not self._tasks(node, candidates[at:]):
                return  # not even if all of them left
            if not self._steps.take():
                self._proven = False
                return
            if not self._leaving.add(running, right):
                continue
            if self._fits(node):
                self._keep_if_best(NodePlacement(self._type, ((node, 1),)))
            else:
                self._subsets(node, candidates, at + 1)
            self._leaving.drop(running)

    def _fits(self, node: NodeId) -> bool:
        return self._tasks(node) > 0 and self._leaving.clears_ceilings()

    # ----------------------------------------------------------------------- gangs

    def _gang(self) -> None:
        """Domain by domain; the best one wins."""
        domains: dict[str, dict[NodeId, int]] = {}
        for kind, rooms in self._cluster.nodes.rooms.items():
            if kind.gpu_type == self._type and task_need(self._job.shape, kind) is not None:
                for node in (node for nodes in rooms.values() for node in nodes):
                    name = self._cluster.nodes.by_id[node].node.domain(self._job.shape.within)
                    domains.setdefault(name, {})[node] = self._tasks(node)
        for name in sorted(domains):
            if self._enough(domains[name]):
                continue  # it is free soon anyway, and somebody else's
            self._empty(domains[name])
            if len(self._asked) <= EXHAUSTIVE_CANDIDATES:
                self._all_sets(domains[name], 0)
            else:
                self._proven = False

    def _empty(self, tasks: dict[NodeId, int]) -> None:
        """Empty nodes of a domain, the cheapest for a task first, until the gang fits."""
        here = dict(tasks)
        offers = [offer for node in sorted(here) if (offer := self._offer(node, here[node]))]
        heapify(offers)
        while offers and not self._enough(here):
            _, node, _ = heappop(offers)
            offer = self._offer(node, here[node])  # others may have left since it was made
            if offer is None:
                continue
            if offers and offer > offers[0]:
                heappush(offers, offer)
                continue
            for at in offer[2]:
                _, running, right = self._asked[at]
                self._leaving.add(running, right)
                self._look_again(here, running)
            if more := self._offer(node, here[node]):
                heappush(offers, more)
        if self._enough(here):
            self._let_stay(here)
            self._keep_if_best(self._spot(here))
        for running, _ in list(self._leaving.jobs.values()):
            self._leaving.drop(running)

    def _offer(self, node: NodeId, tasks: int) -> "_Offer | None":
        """What it costs to get room for one task more on a node: class, credits a task, and who."""
        added: list[int] = []
        for at in self._candidates.on(node):
            _, running, right = self._asked[at]
            if running.job.id in self._leaving.jobs or not self._leaving.add(running, right):
                continue
            added.append(at)
            if self._tasks(node) > tasks:
                break
        gained = self._tasks(node) - tasks
        for at in reversed(added[:-1]):  # whoever need not leave after all
            _, running, right = self._asked[at]
            self._leaving.drop(running)
            if self._tasks(node) - tasks < gained:
                self._leaving.add(running, right)
            else:
                added.remove(at)
        for at in added:
            self._leaving.drop(self._asked[at][1])
        if not gained:
            return None
        victims = [self._asked[at][0] for at in added]
        lost = sum(victim.lost for victim in victims)
        price = (victims[-1].priority_class, lost * 1_000 // gained, len(victims))
        return price, node, tuple(added)

    def _let_stay(self, here: dict[NodeId, int]) -> None:
        """Let everybody stay who need not leave, the dearest first."""
        order = sorted(self._leaving.jobs.values(), key=self._victim_of, reverse=True)
        for running, right in order:
            self._leaving.drop(running)
            self._look_again(here, running)
            if not self._enough(here):
                self._leaving.add(running, right)
                self._look_again(here, running)

    def _all_sets(self, tasks: dict[NodeId, int], start: int) -> None:
        """Look at all sets of candidates that may be the best for a gang."""
        for at in range(start, len(self._asked)):
            victim, running, right = self._asked[at]
            if self._best is not None and self._cost(victim)[:3] > self._best[0][:3]:
                return
            if not self._steps.take():
                self._proven = False
                return
            if self._gone(running) or not self._leaving.add(running, right):
                continue
            here = dict(tasks)
            self._look_again(here, running)
            if self._enough(here):
                self._keep_if_best(self._spot(here))
            else:
                self._all_sets(here, at + 1)
            self._leaving.drop(running)

    # ----------------------------------------------------------------------- both

    def _tasks(self, node: NodeId, more: Sequence[int] = ()) -> int:
        """How many tasks fit on a node once all have left who are to leave, and some more."""
        machine = self._cluster.nodes.by_id[node]
        task = task_need(self._job.shape, machine.kind)
        if task is None or not machine.node.is_usable_at(self._cluster.now):
            return 0
        until = self._cluster.now + self._cluster.policy.grace + self._job.run_max
        leaving = self._leaving.jobs
        rest = {self._asked[at][1].job.id for at in more}
        without = frozenset(job for job in machine.allocations if job in leaving or job in rest)
        return self._claims.count_tasks(machine, task, self._at, until, without)

    def _enough(self, here: dict[NodeId, int]) -> bool:
        """Whether a gang fits, and passes no ceiling, with as many tasks on each node."""
        return sum(here.values()) >= self._job.shape.tasks and self._leaving.clears_ceilings()

    def _gone(self, running: RunningJob) -> bool:
        """Whether it has been asked since the candidates were found."""
        return self._cluster.running.get(running.job.id) is not running

    def _look_again(self, here: dict[NodeId, int], running: RunningJob) -> None:
        for piece in running.pieces:
            if piece.node in here:
                here[piece.node] = self._tasks(piece.node)

    def _spot(self, here: dict[NodeId, int]) -> NodePlacement:
        able = [(tasks, node) for node, tasks in here.items() if tasks]
        return NodePlacement(self._type, pack_tasks(able, self._job.shape.tasks))

    def _cost(self, *more: Victim) -> Cost:
        """What it costs if all leave who are to leave, and perhaps some more."""
        victims = [*map(self._victim_of, self._leaving.jobs.values()), *more]
        return (
            max(victim.priority_class for victim in victims),
            sum(victim.lost for victim in victims),
            len(victims),
            tuple(sorted(victim.id for victim in victims)),
        )

    def _victim_of(self, one: tuple[RunningJob, Right]) -> Victim:
        running = one[0]
        return Victim(
            running.job.priority_class, running.work_lost(self._cluster.now), running.job.id
        )

    def _keep_if_best(self, spot: NodePlacement) -> None:
        cost = self._cost()
        if self._best is None or cost < self._best[0]:
            self._best = cost, spot, tuple(self._leaving.jobs.values())


_Offer = tuple[tuple[int, int, int], NodeId, tuple[int, ...]]
