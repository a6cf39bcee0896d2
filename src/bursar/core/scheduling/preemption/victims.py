"""Which running jobs stop for a waiting one: the search for the best set of victims.

The best set touches the lowest classes, then loses the least work in credits, then is the smallest,
then comes first by ids. To restore a floor, the search first tries the jobs of the group that is
furthest above its own floor, then those of all such groups; then jobs of lower classes of the same
org; then tiers with longer start targets; then the org with the largest share, then all orgs with
larger shares; then later jobs of the same user; then jobs of the same org that have had their turn;
then all of these together. Last, if no set leaves all groups their floors, one job of each group
may be a job that straddles its floor.

For a job that needs one node the search finds the best set, node by node. For a gang it finds a
good one: it empties nodes in the order of cost per task, then keeps every job that need not leave.
With few candidates it checks all sets. Jobs of the own org that leave allow more jobs to leave by
share; if the cheapest sets are illegal because too few do, the search is repeated with bounds that
expect less of them. The work is counted in sets checked, and the result says whether the budget
ended before the best set was proven.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from bursar.core.ids import JobId, NodeId
from bursar.core.instant import Instant
from bursar.core.money import Micros
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.jobs import Job, Path, RunningJob, task_need
from bursar.core.scheduling.model.nodes import FREE_NOW
from bursar.core.scheduling.order.longest_jobs import outlasts_all
from bursar.core.scheduling.placement.backfill import NodeClaims
from bursar.core.scheduling.placement.search import NodePlacement, pack_tasks
from bursar.core.scheduling.preemption.candidates import (
    Candidates,
    CandidateStages,
    VictimCost,
    find_candidates,
    victim_cost,
)
from bursar.core.scheduling.preemption.leaving_jobs import LeavingJobs
from bursar.core.scheduling.preemption.rights import PreemptionRights, Right
from bursar.core.scheduling.preemption.shortfall import find_shortfall
from bursar.core.scheduling.preemption.step_budget import StepBudget

Cost = tuple[int, Micros, int, tuple[JobId, ...]]  # highest class, work lost, victims, their ids

EXHAUSTIVE_CANDIDATES: Final = 12  # up to so many candidates, all sets are checked for a gang


class VictimSet(NamedTuple):
    """Room for a job: where it goes, which jobs leave, and by which right."""

    placement: NodePlacement
    victims: tuple[tuple[RunningJob, Right], ...]
    proven: bool  # whether no better set exists
    at: Instant  # what is free by then counts as free; or FREE_NOW


def may_preempt_any(cluster: Cluster, job: Job, types: tuple[str, ...]) -> bool:
    """Whether a job may have a right to preempt. A quick check: True does not promise a victim."""
    user, org = cluster.tree.groups.user_group(job.path), job.path[:2]
    if (
        any(group.floor for group in user.lineage())
        or org in cluster.classes.urgent
        or any(cluster.running_index.past_turn(org, cluster.now))
        or cluster.overtaken.is_overtaken(job)
        or cluster.policy.is_express(job, cluster.now)
        or cluster.tree.org_rates.has_larger(user)
    ):
        return any(PreemptionRights(cluster, job, gpu_type).may_preempt() for gpu_type in types)
    return False


# What candidates depend on: GPU type, user, class, groups below their floor, rate, work, whether
# the job outlasts all others, `PreemptionRights.urgency`, and the job itself if its age counts.
_Key = tuple[
    str, Path, int, tuple[Path, ...], Micros, Micros, bool, tuple[bool, bool, bool], JobId
]  # fmt: skip


class PreemptionSearch:
    """Makes room for the jobs of a round, one after another.

    The candidates of a job are kept for other jobs with the same rights: while a plan is made, no
    job becomes preemptible that was not before.
    """

    def __init__(self, cluster: Cluster, claims: NodeClaims, steps: StepBudget) -> None:
        self._cluster = cluster
        self._claims = claims
        self._steps = steps
        self._stages_by_key: dict[_Key, CandidateStages] = {}

    def make_room(self, job: Job, types: tuple[str, ...]) -> VictimSet | None:
        """Find the victims that make room for a job; None if there are none."""
        for gpu_type in types:
            rights = PreemptionRights(self._cluster, job, gpu_type)
            if not rights.may_preempt() or self._is_hopeless(job, gpu_type):
                continue
            self._steps.reset(self._cluster.policy.victim_steps)
            for stage, may_straddle in self._stages(rights, gpu_type):
                if not rights.ceilings.is_cleared_by(running for _, running, _ in stage.ranked):
                    continue
                own_rate_max = stage.own_rate(job.path[:2]) if stage.has_right(Right.SHARE) else 0
                leaving = LeavingJobs(rights, own_rate_max, may_straddle=may_straddle)
                claims = self._claims_on(stage, job)
                search = _VictimSearch(
                    self._cluster, claims, rights, gpu_type, stage, leaving, self._steps
                )
                if victims := search.find_best():
                    return victims
        return None

    def _claims_on(self, stage: Candidates, job: Job) -> NodeClaims:
        """The claims that the job must not delay in the place of these candidates.

        By age it takes over the place of a later job of its user. It delays no start that is
        promised soon. A start that is promised for a time beyond its patience would make it wait
        too long again, so that start gets another place.
        """
        if stage.has_only(Right.AGE):
            return self._claims.until(self._cluster.now + self._cluster.policy.patience(job))
        return self._claims

    def _is_hopeless(self, job: Job, gpu_type: str) -> bool:
        """Whether a sum shows that no victims make room for a gang.

        Where GPUs are divided into slots the sum does not hold, so the search decides.
        """
        kinds = (kind for kind in self._cluster.nodes.rooms if kind.gpu_type == gpu_type)
        if job.shape.tasks == 1 or any(kind.slots > 1 for kind in kinds):
            return False
        return find_shortfall(self._cluster, job, gpu_type) is not None

    def _stages(self, rights: PreemptionRights, gpu_type: str) -> Iterator[tuple[Candidates, bool]]:
        """The candidates, one stage after another, and whether one may straddle a floor."""
        job = rights.job
        key = (
            gpu_type, job.path, job.priority_class, rights.floors.paths_below_floor(),
            job.rate(gpu_type), job.work, outlasts_all(self._cluster, job), rights.urgency,
            job.id if rights.depends_on_age() else JobId(""),
        )  # fmt: skip
        stages = self._stages_by_key.get(key)
        if stages is None:
            stages = self._stages_by_key[key] = find_candidates(self._cluster, rights, gpu_type)
        return stages.in_order()


def make_room(
    cluster: Cluster, claims: NodeClaims, job: Job, types: tuple[str, ...], steps: StepBudget
) -> VictimSet | None:
    """Find the victims that make room for one job; None if there are none."""
    return PreemptionSearch(cluster, claims, steps).make_room(job, types)


class _VictimSearch:
    """The search among the candidates of one stage."""

    def __init__(
        self, cluster: Cluster, claims: NodeClaims, rights: PreemptionRights, gpu_type: str,
        candidates: Candidates, leaving: LeavingJobs, steps: StepBudget,
    ) -> None:  # fmt: skip
        self._cluster = cluster
        self._claims = claims
        self._job = rights.job
        self._type = gpu_type
        self._candidates = candidates
        self._ranked = candidates.ranked
        self._steps = steps
        # Room that is free by the end of the grace counts as free. Not so at a ceiling, where GPUs
        # are not what is short, nor for an express job, which would be late.
        is_now = bool(rights.ceilings.excesses) or cluster.policy.is_express(
            rights.job, cluster.now
        )
        self._at = FREE_NOW if is_now else cluster.now + cluster.policy.preemption_grace
        self._leaving = leaving
        self._best: tuple[Cost, NodePlacement, tuple[tuple[RunningJob, Right], ...]] | None = None
        self._proven = True

    def find_best(self) -> VictimSet | None:
        """The best set of victims; None if there is none."""
        if self._job.shape.tasks == 1:
            self._search_nodes()
            if self._best is None and not self._proven and not self._leaving.is_always_legal:
                # Most sets that were checked may have been illegal: now `add` allows legal ones.
                self._leaving.own_rate_max = 0
                self._steps.reset(self._cluster.policy.victim_steps)
                self._search_nodes()
        else:
            self._search_domains()
        if self._best is None:
            return None
        _, placement, victims = self._best
        return VictimSet(placement, victims, self._proven, self._at)

    # ----------------------------------------------------------------------- one node

    def _search_nodes(self) -> None:
        """Check node by node, the one with the cheapest candidate first."""
        for node in self._candidates.nodes():
            indexes = self._candidates.on_node(node)
            cheapest = self._ranked[indexes[0]][0]
            if self._best is not None and (*cheapest[:2], 1, (cheapest.id,)) >= self._best[0]:
                break
            if not self._fits(node):  # room that is free soon belongs to another job
                self._check_subsets(node, indexes, 0)

    def _check_subsets(self, node: NodeId, indexes: list[int], start: int) -> None:
        """Add candidates of a node to those that leave, in all ways that may be the best."""
        for at in range(start, len(indexes)):
            victim, running, right = self._ranked[indexes[at]]
            if self._best is not None and self._cost(victim) >= self._best[0]:
                return  # all further candidates cost at least as much
            if not self._count_tasks(node, indexes[at:]):
                return  # no room even if all of them left
            if not self._steps.take():
                self._proven = False
                return
            if not self._leaving.add(running, right):
                continue
            if self._fits(node):
                if self._leaving.is_legal() and self._needs_all(lambda _: self._fits(node)):
                    self._keep_if_best(NodePlacement(self._type, ((node, 1),)))
            else:
                self._check_subsets(node, indexes, at + 1)
            self._leaving.drop(running)

    def _fits(self, node: NodeId) -> bool:
        return self._count_tasks(node) > 0 and self._leaving.clears_ceilings()

    # ----------------------------------------------------------------------- gangs

    def _search_domains(self) -> None:
        """Check domain by domain; the cheapest set wins."""
        domains: dict[str, dict[NodeId, int]] = {}
        for kind, rooms in self._cluster.nodes.rooms.items():
            if kind.gpu_type == self._type and task_need(self._job.shape, kind) is not None:
                for node in (node for nodes in rooms.values() for node in nodes):
                    name = self._cluster.nodes.by_id[node].node.domain(self._job.shape.within)
                    domains.setdefault(name, {})[node] = self._count_tasks(node)
        for name in sorted(domains):
            if self._is_enough(domains[name]):
                continue  # room that is free soon belongs to another job
            self._empty_nodes_legally(domains[name])
            if len(self._ranked) <= EXHAUSTIVE_CANDIDATES:
                self._check_all_sets(domains[name], 0)
            else:
                self._proven = False

    def _empty_nodes_legally(self, tasks: dict[NodeId, int]) -> None:
        """Empty nodes, again with less expected from the own org if the set was illegal.

        Less than expected left it, so other orgs gave too much. The more they keep, the more the
        own org gives instead. If nothing is expected, all sets are legal.
        """
        own_rate_max = self._leaving.own_rate_max
        while (own_rate := self._empty_nodes(tasks)) is not None:
            self._leaving.own_rate_max = own_rate  # less than before, or the set were legal
        self._leaving.own_rate_max = own_rate_max

    def _empty_nodes(self, tasks: dict[NodeId, int]) -> Micros | None:
        """Empty nodes of a domain, the cheapest for a task first, until the gang fits.

        If these jobs must not leave together, returns the rate that would leave the own org.
        """
        tasks = dict(tasks)
        offers = [o for node in sorted(tasks) if (o := self._make_offer(node, tasks[node]))]
        heapify(offers)
        while offers and not self._is_enough(tasks):
            _, node, _ = heappop(offers)
            offer = self._make_offer(node, tasks[node])  # more jobs may leave than before
            if offer is None:
                continue
            if offers and offer > offers[0]:
                heappush(offers, offer)
                continue
            for index in offer[2]:
                _, running, right = self._ranked[index]
                self._leaving.add(running, right)
                self._recount(tasks, running)
            if next_offer := self._make_offer(node, tasks[node]):
                heappush(offers, next_offer)
        own_rate = None
        if self._is_enough(tasks):
            self._drop_unneeded(tasks)
            if self._leaving.is_legal():
                self._keep_if_best(self._pack(tasks))
            else:
                own_rate = self._leaving.own_rate()
        for running, _ in list(self._leaving.jobs.values()):
            self._leaving.drop(running)
        return own_rate

    def _make_offer(self, node: NodeId, tasks: int) -> "_Offer | None":
        """What room for one more task on a node costs: class, credits per task, and the victims."""
        added: list[int] = []
        for index in self._candidates.on_node(node):
            _, running, right = self._ranked[index]
            if running.job.id in self._leaving.jobs or not self._leaving.add(running, right):
                continue
            added.append(index)
            if self._count_tasks(node) > tasks:
                break
        gained = self._count_tasks(node) - tasks
        for index in reversed(added[:-1]):  # drop the jobs that need not leave
            _, running, right = self._ranked[index]
            self._leaving.drop(running)
            if self._count_tasks(node) - tasks < gained:
                self._leaving.add(running, right)
            else:
                added.remove(index)
        for index in added:
            self._leaving.drop(self._ranked[index][1])
        if not gained:
            return None
        victims = [self._ranked[index][0] for index in added]
        lost = sum(victim.lost for victim in victims)
        price = (victims[-1].priority_class, lost * 1_000 // gained, len(victims))
        return price, node, tuple(added)

    def _drop_unneeded(self, tasks: dict[NodeId, int]) -> None:
        """Let every job stay that need not leave, the most expensive first."""
        order = sorted(self._leaving.jobs.values(), key=self._cost_of, reverse=True)
        for running, right in order:
            self._leaving.drop(running)
            self._recount(tasks, running)
            if not self._is_enough(tasks):
                self._leaving.add(running, right)
                self._recount(tasks, running)

    def _check_all_sets(self, tasks: dict[NodeId, int], start: int) -> None:
        """Check all sets of candidates that may be the best for a gang."""
        for at in range(start, len(self._ranked)):
            victim, running, right = self._ranked[at]
            if self._best is not None and self._cost(victim)[:3] > self._best[0][:3]:
                return
            if not self._steps.take():
                self._proven = False
                return
            if not self._candidates.is_current(at) or not self._leaving.add(running, right):
                continue
            more_tasks = dict(tasks)
            self._recount(more_tasks, running)
            if self._is_enough(more_tasks):
                fits_with = partial(self._is_enough_with, more_tasks)
                if self._leaving.is_legal() and self._needs_all(fits_with):
                    self._keep_if_best(self._pack(more_tasks))
            else:
                self._check_all_sets(more_tasks, at + 1)
            self._leaving.drop(running)

    # ----------------------------------------------------------------------- both

    def _count_tasks(self, node: NodeId, more: Sequence[int] = ()) -> int:
        """How many tasks fit on a node once the leaving jobs, and some candidates, have left."""
        usage = self._cluster.nodes.by_id[node]
        task = task_need(self._job.shape, usage.kind)
        if task is None or not usage.node.is_usable_at(self._cluster.now):
            return 0
        until = self._cluster.now + self._cluster.policy.preemption_grace + self._job.run_max
        leaving = self._leaving.jobs
        others = {self._ranked[index][1].job.id for index in more}
        without = frozenset(job for job in usage.allocations if job in leaving or job in others)
        return self._claims.count_tasks(usage, task, self._at, until, without)

    def _is_enough(self, tasks: dict[NodeId, int]) -> bool:
        """Whether a gang fits, and passes no ceiling, if nodes have room for so many tasks."""
        return sum(tasks.values()) >= self._job.shape.tasks and self._leaving.clears_ceilings()

    def _is_enough_with(self, tasks: dict[NodeId, int], staying: RunningJob) -> bool:
        """Whether a gang fits although a job stays that had left when tasks were counted."""
        tasks = dict(tasks)
        self._recount(tasks, staying)
        return self._is_enough(tasks)

    def _needs_all(self, fits_with: Callable[[RunningJob], bool]) -> bool:
        """Whether the job fits only if all of the leaving jobs leave.

        A set with a job too many is never the best one, unless only that job makes it legal. Also
        False if the budget ends: then it is not known.
        """
        if self._leaving.is_always_legal:
            return True
        for running, right in list(self._leaving.jobs.values()):
            if not self._steps.take():
                self._proven = False
                return False
            self._leaving.drop(running)
            is_unneeded = fits_with(running)
            self._leaving.add(running, right)
            if is_unneeded:
                return False
        return True

    def _recount(self, tasks: dict[NodeId, int], running: RunningJob) -> None:
        """Count the tasks anew on the nodes of a job that leaves or stays."""
        for piece in running.pieces:
            if piece.node in tasks:
                tasks[piece.node] = self._count_tasks(piece.node)

    def _pack(self, tasks: dict[NodeId, int]) -> NodePlacement:
        capacities = [(count, node) for node, count in tasks.items() if count]
        return NodePlacement(self._type, pack_tasks(capacities, self._job.shape.tasks))

    def _cost(self, *more: VictimCost) -> Cost:
        """What it costs if the leaving jobs, and perhaps some more, leave."""
        victims = [*map(self._cost_of, self._leaving.jobs.values()), *more]
        return (
            max(victim.priority_class for victim in victims),
            sum(victim.lost for victim in victims),
            len(victims),
            tuple(sorted(victim.id for victim in victims)),
        )

    def _cost_of(self, entry: tuple[RunningJob, Right]) -> VictimCost:
        return victim_cost(entry[0], self._cluster)

    def _keep_if_best(self, placement: NodePlacement) -> None:
        cost = self._cost()
        if self._best is None or cost < self._best[0]:
            self._best = cost, placement, tuple(self._leaving.jobs.values())


_Offer = tuple[tuple[int, int, int], NodeId, tuple[int, ...]]
