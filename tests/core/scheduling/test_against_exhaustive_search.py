"""Plans for small pools against a search that looks at everything.

The search shares no code with the scheduler: it lays tasks on GPUs one by one, and goes through all
sets of running jobs. What it looks for is written as the documents say it: who may ask whom, what
makes one set of victims better than another, and when it is better to wait.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar.core.ids import JobId
from bursar.core.instant import DAY, HOUR, MINUTE, NEVER, Instant
from bursar.core.scheduling.decisions import EarmarkGpus, Plan, Preempt, Start, Wait
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.jobs import Job, Path, RunningJob, StartReason
from bursar.core.scheduling.model.nodes import MILLI, NodeState
from bursar.core.scheduling.model.policy import ANY_TYPE, Share
from bursar.core.scheduling.model.snapshot import PoolSnapshot
from bursar.core.scheduling.model.usage import UsageDecay
from bursar.core.scheduling.plan import make_plan
from bursar.core.scheduling.preemption.rights import ENDING_GRACES
from bursar.core.value import replace
from tests.support.random_clusters import (
    CROWD,
    SMALL,
    TINY,
    Free,
    holders,
    lay,
    parts,
    shares_of,
    used,
    worlds,
)
from tests.support.scheduling_cases import after

pytestmark = pytest.mark.property

Set = tuple[RunningJob, ...]
Cost = tuple[int, int, int, list[JobId]]


def unlimited(world: PoolSnapshot) -> PoolSnapshot:
    """The pool without ceilings, and without jobs that should have ended by now: when their GPUs
    are free is anybody's guess."""
    shares = [(p, replace(s, ceiling=(), jobs_max=None)) for p, s in world.policy.shares]
    tiers = tuple(replace(tier, ceiling_ppm=1_000_000) for tier in world.policy.tiers)
    policy = replace(world.policy, shares=tuple(shares), tiers=tiers, limits=())
    running = tuple(one for one in world.running if one.ends_by > world.at)
    return replace(world, policy=policy, running=running)


def with_one_job(world: PoolSnapshot) -> PoolSnapshot:
    """The pool with the first job that waits, which may be tried now."""
    return replace(world, waiting=tuple(replace(job, not_before=0) for job in world.waiting[:1]))


POOLS = st.one_of(worlds(TINY), worlds(CROWD)).map(unlimited)
QUESTIONS = POOLS.map(with_one_job).filter(lambda world: bool(world.waiting))


# --------------------------------------------------------------------------- places


def fits(
    world: PoolSnapshot, job: Job, gpu_type: str, at: Instant, gone: Sequence[JobId] = ()
) -> bool:
    """Whether all tasks of a job can be laid on GPUs of a type at an instant, if nothing begins and
    some jobs are gone."""
    free = {
        node.id: Free(node)
        for node in world.nodes
        if node.state is NodeState.READY
        or (node.state is NodeState.ON_ORDER and world.at < node.ready_at <= at)
    }
    for piece in (piece for one in taken(world, at, gone) for piece in one):
        if piece.node in free:
            free[piece.node].take(piece)
    able = [one for one in free.values() if accepts(one, job, gpu_type)]
    domains = {one.node.domain(job.shape.within) for one in able}
    return any(
        lay([one for one in able if one.node.domain(job.shape.within) == domain], job.shape)
        for domain in sorted(domains)
    )


def accepts(free: Free, job: Job, gpu_type: str) -> bool:
    """Whether a task could lie on a node that is empty."""
    node, shape = free.node, job.shape
    roomy = node.memory_gib >= shape.memory_gib and set(shape.labels) <= set(node.labels)
    near = not shape.regions or node.region in shape.regions
    divided = not shape.milli or shape.milli in parts(node.slots)
    return roomy and near and divided and node.gpu_type == gpu_type


def taken(world: PoolSnapshot, at: Instant, gone: Sequence[JobId]) -> Iterator[Sequence]:  # type: ignore[type-arg]
    """The pieces of all that is still there at an instant."""
    jobs = {job.id: job for job in world.waiting}
    for one in world.running:
        if one.ends_by > at and one.job.id not in gone:
            yield one.pieces
    for kept in world.earmarks:
        if kept.since + world.policy.preemption_grace + jobs[kept.job].run_max > at:
            yield kept.pieces


def earliest(world: PoolSnapshot, job: Job) -> Instant | None:
    """The first instant at which a job surely fits."""
    grace = world.policy.preemption_grace
    jobs = {one.id: one for one in world.waiting}
    instants = {world.at, world.at + grace, *(one.ends_by for one in world.running)}
    instants |= {node.ready_at for node in world.nodes}
    instants |= {kept.since + grace + jobs[kept.job].run_max for kept in world.earmarks}
    for at in sorted(instants):
        if at >= world.at and any(fits(world, job, t, at) for t in job.shape.types):
            return at
    return None


# --------------------------------------------------------------------------- rights


@dataclass(frozen=True)
class Rights:
    """What one job may ask of others in a pool, on GPUs of one type."""

    world: PoolSnapshot
    job: Job
    gpu_type: str
    shares: dict[Path, Share]

    def of(self, other: RunningJob) -> str | None:
        """By which right another can be asked."""
        mine, theirs = self.job.path, other.job.path
        if (
            not other.job.preemptible
            or (
                other.job.preemptions >= self.world.policy.preemptions_max
                and not self.is_overtaken_by(other)
            )
            or other.stops_at is not None
            or other.started_at >= self.world.at
            or other.gpu_type != self.gpu_type
        ):
            return None
        lets_end = self.lets_end(other)
        owed = self.owed() if self.in_time or not lets_end else []
        if any(theirs[: len(place)] != place for place in owed) and self.reaches(theirs):
            return "floor"
        if mine[:2] == theirs[:2]:
            if other.job.priority_class < self.job.priority_class:
                return "class"
            return "age" if self.is_overtaken_by(other) else None
        return "share" if mine[0] == theirs[0] and not lets_end else None

    def is_overtaken_by(self, other: RunningJob) -> bool:
        """Whether the job waits too long, while a later one of its user, class and size runs that
        does not end soon."""
        job, theirs, policy = self.job, other.job, self.world.policy
        tier = next((tier for tier in policy.tiers if tier.name == job.path[0]), None)
        patience = DAY if tier is None else tier.ages_after
        if policy.express_until(job) < NEVER:
            patience = min(patience, 3 * HOUR)
        if max(job.queued_at, job.stopped_at) + patience > self.world.at:
            return False
        alike = (job.path, job.priority_class, job.shape.milli_gpus) == (
            theirs.path, theirs.priority_class, theirs.shape.milli_gpus,
        )  # fmt: skip
        later = (theirs.queued_at, theirs.id) > (job.queued_at, job.id)
        fresh = other.why is StartReason.AGE and (
            self.world.at < other.started_at + policy.turn_after * policy.preemption_grace
        )
        soon = ENDING_GRACES * policy.preemption_grace
        return alike and later and not fresh and not other.ends_soon(self.world.at, soon)

    @property
    def in_time(self) -> bool:
        """Whether the job is brief, and not late yet."""
        return self.world.policy.is_express(self.job, self.world.at)

    def lets_end(self, other: RunningJob) -> bool:
        """Whether both say that they are over within minutes."""
        soon = ENDING_GRACES * self.world.policy.preemption_grace
        brief = self.job.estimate is not None and self.job.expected_run <= soon
        return brief and other.ends_soon(self.world.at, soon)

    def owed(self) -> list[Path]:
        """The places of the job that have less than their floor, even with it."""
        milli, path = self.job.shape.milli_gpus, self.job.path
        return [
            place
            for place in (path[:depth] for depth in range(1, len(path) + 1))
            for of, floor in self.floor(place)
            if milli and of in (ANY_TYPE, self.gpu_type)
            if used(self.world, place, of) + milli <= floor
        ]

    def floor(self, place: Path) -> list[tuple[str, int]]:
        """What a place must keep, in thousandths of GPUs."""
        share = self.shares.get(place, Share())
        return [(of, gpus * MILLI) for of, gpus in share.floor]

    def reaches(self, other: Path) -> bool:
        """Whether the job's tier may take from another's."""
        tiers = {tier.name: tier.preempts for tier in self.world.policy.tiers}
        return other[0] == self.job.path[0] or other[0] in tiers.get(self.job.path[0], ())

    def legal(self, victims: Set, *, straddling: bool) -> bool:
        """Whether all floors and shares allow that these leave together."""
        places = {one.job.path[:depth] for one in victims for depth in range(1, 6)}
        strange = [place for place in places if place != self.job.path[: len(place)]]
        return all(self.keeps_floor(place, victims, straddling) for place in strange) and all(
            self.keeps_larger_part(one.job.path[:2], victims)
            for one in victims
            if self.of(one) == "share"
        )

    def keeps_floor(self, place: Path, victims: Set, straddling: bool) -> bool:
        """Whether a place has its floor once these have left, if it loses anything of it. A job
        that leaves for a floor may straddle the place's own, if that has more until then."""
        for of, floor in self.floor(place):
            left = used(self.world, place, of)
            inside = [
                (self.of(one) == "floor", one.job.shape.milli_gpus)
                for one in victims
                if one.job.path[: len(place)] == place and of in (ANY_TYPE, one.gpu_type)
            ]
            for reclaimed, milli in sorted(inside):  # the smaller first
                if (
                    milli
                    and left - milli < floor
                    and not (straddling and reclaimed and left > floor)
                ):
                    return False
                left -= milli
        return True

    def keeps_larger_part(self, org: Path, victims: Set) -> bool:
        """Whether an org has the larger part by weight, and no smaller one afterwards, of what runs
        in credits an hour, and of what was used and runs ahead."""
        mine, more = self.job.path[:2], self.job.rate(self.gpu_type)
        lost, own = (
            sum(one.job.rate(one.gpu_type) for one in victims if one.job.path[:2] == place)
            for place in (org, mine)
        )
        ahead = self.growth(self.tick + self.world.policy.ahead) - self.growth(self.world.at)
        return all(
            theirs * self.weight(mine) > (ours + (more - own) * span) * self.weight(org)
            and (theirs - lost * span) * self.weight(mine)
            >= (ours + (more - own) * span) * self.weight(org)
            for theirs, ours, span in (
                (self.rate(org), self.rate(mine), 1),
                (self.ahead(org), self.ahead(mine), ahead),
            )
        )

    def rate(self, org: Path) -> int:
        """What an org's jobs cost in an hour."""
        return sum(job.rate(t) for job, t in holders(self.world) if job.path[:2] == org)

    def ahead(self, org: Path) -> int:
        """What an org used, grown, and what its jobs cost until a while from now."""
        since = {one.job.id: one.started_at for one in self.world.running}
        since |= {kept.job: kept.since for kept in self.world.earmarks}
        then = self.growth(self.tick + self.world.policy.ahead)
        before = sum(base for path, base in self.world.usage if path[:2] == org)
        return before + sum(
            job.rate(gpu_type) * (then - self.growth(since[job.id]))
            for job, gpu_type in holders(self.world)
            if job.path[:2] == org
        )

    def growth(self, at: Instant) -> int:
        """What a unit of use counts at an instant."""
        return UsageDecay(self.world.policy.half_life, self.world.at).growth(at)

    @property
    def tick(self) -> Instant:
        """The last full minute: turns are taken as of then."""
        return self.world.at - self.world.at % MINUTE

    def weight(self, org: Path) -> int:
        """An org's weight."""
        return self.shares.get(org, Share()).weight

    def above_floor(self, other: RunningJob) -> tuple[int, str]:
        """How far the place where another's path parts from ours is above its floor."""
        mine, theirs = self.job.path, other.job.path
        depth = next(n for n in range(1, 6) if mine[:n] != theirs[:n])
        floor = dict(self.floor(theirs[:depth])).get(ANY_TYPE, 0)
        return used(self.world, theirs[:depth], ANY_TYPE) - floor, "/".join(theirs[:depth])

    def part_of_org(self, other: RunningJob) -> tuple[Fraction, Path]:
        """What another's org runs by weight."""
        org = other.job.path[:2]
        return Fraction(self.rate(org), self.weight(org)), org


def stages(rights: Rights) -> Iterator[tuple[list[RunningJob], bool]]:
    """Among whom victims are looked for, one group after another; and whether jobs may straddle
    floors, which is tried last."""
    by_right: dict[str, list[RunningJob]] = {"floor": [], "class": [], "share": [], "age": []}
    for one in rights.world.running:
        if right := rights.of(one):
            by_right[right].append(one)
    for straddling in (False, True):
        if owed := by_right["floor"]:
            largest = max(map(rights.above_floor, owed))
            yield [one for one in owed if rights.above_floor(one) == largest], straddling
        for right, group in by_right.items():
            if right == "share" and group:
                most = max(map(rights.part_of_org, group))
                yield [one for one in group if rights.part_of_org(one) == most], straddling
            yield group, straddling
        yield [one for group in by_right.values() for one in group], straddling


def cost(victims: Set, now: Instant) -> Cost:
    """What a set of victims costs; the smaller, the better."""
    return (
        max(one.job.priority_class for one in victims),
        sum(one.work_lost(now) for one in victims),
        len(victims),
        sorted(one.job.id for one in victims),
    )


def ready(world: PoolSnapshot) -> PoolSnapshot:
    """The pool without the nodes on which nothing can start."""
    nodes = tuple(node for node in world.nodes if node.state is NodeState.READY)
    return replace(world, nodes=nodes)


def best_set(world: PoolSnapshot, job: Job) -> Set | None:
    """The best victims for a job: the first type and group with a legal set that makes room, on
    nodes that are there."""
    world = ready(world)
    soon = world.at + world.policy.preemption_grace
    shares = shares_of(world)
    for gpu_type in job.shape.types:
        rights = Rights(world, job, gpu_type, shares)
        for group, straddling in stages(rights):
            sets = [
                victims
                for count in range(1, len(group) + 1)
                for victims in combinations(group, count)
                if rights.legal(victims, straddling=straddling)
                and fits(world, job, gpu_type, soon, [one.job.id for one in victims])
                and all_are_needed(world, job, gpu_type, victims)
            ]
            if sets:
                return min(sets, key=lambda victims: cost(victims, world.at))
    return None


def all_are_needed(world: PoolSnapshot, job: Job, gpu_type: str, victims: Set) -> bool:
    """Whether a job has no place if one of these stays."""
    soon, ids = world.at + world.policy.preemption_grace, [one.job.id for one in victims]
    return not any(
        fits(world, job, gpu_type, soon, [one for one in ids if one != stays]) for stays in ids
    )


def better_wait(world: PoolSnapshot, job: Job, wait: Wait, victims: Set) -> bool:
    """Whether a place is free soon enough, at less cost than the victims' lost work."""
    if wait.planned is None:
        return False
    span = wait.planned.at - world.at
    targets = {tier.name: tier.start_target for tier in world.policy.tiers}
    lost, unused = sum(one.work_lost(world.at) for one in victims), 0
    freed = sum(one.job.shape.milli_gpus for one in victims)
    if (idle := freed - job.shape.milli_gpus) > 0:  # as if no other waiting job could use them
        until = min(job.likely_run, max(one.ends_by for one in victims) - world.at)
        unused = sum(one.job.price_of(one.gpu_type, until) for one in victims) * idle // freed
    patient = span <= targets.get(job.path[0], 0)
    rights = Rights(world, job, wait.planned.gpu_type, shares_of(world))
    by_age = any(rights.of(one) == "age" for one in victims)
    waiting = job.price_of(wait.planned.gpu_type, span)
    return (
        span <= world.policy.preemption_grace
        or (patient and waiting < lost + unused)
        or (by_age and waiting < unused)
    )


# --------------------------------------------------------------------------- the plans


def planned(before: PoolSnapshot) -> Plan:
    """The plan for a pool."""
    return make_plan(Cluster.from_snapshot(before), before.at)


def victims_of(plan: Plan) -> list[JobId]:
    """Who is asked to make room."""
    return sorted(one.job for one in plan.decisions if isinstance(one, Preempt))


@given(QUESTIONS)
def test_one_job_gets_exactly_what_the_search_finds(before: PoolSnapshot) -> None:
    """It starts if there is any place; else the best legal set of victims makes room, unless it is
    better to wait; else it waits, until the first instant at which it surely fits (S2, S5, S7)."""
    (job,) = before.waiting
    plan = planned(before)
    kinds = {type(one) for one in plan.decisions} & {Start, EarmarkGpus}

    if any(fits(before, job, gpu_type, before.at) for gpu_type in job.shape.types):
        assert {Start} == kinds
        return
    best = best_set(before, job)
    if {EarmarkGpus} == kinds:
        assert best is not None
        assert sorted(one.job.id for one in best) == victims_of(plan)
        return
    assert set() == kinds
    (wait,) = plan.waits
    assert earliest(before, job) == (wait.planned and wait.planned.at)
    assert best is None or better_wait(before, job, wait, best)


@given(POOLS)
def test_first_waiting_job_really_has_no_room(before: PoolSnapshot) -> None:
    """Once a plan is carried out, there is no place for the first job that waits for capacity, and
    no legal set of victims either, unless it is better to wait (S5)."""
    plan = planned(before)
    then = after(before, plan)
    jobs = {job.id: job for job in then.waiting}
    first = next((wait for wait in plan.waits if wait.reason in ("capacity", "never_fits")), None)
    if first is None:
        return
    job = jobs[first.job]

    assert not any(fits(then, job, gpu_type, then.at) for gpu_type in job.shape.types)
    best = best_set(then, job)
    assert best is None or better_wait(then, job, first, best)


def unclaimed(world: PoolSnapshot, job: Job) -> bool:
    """Whether nobody was promised a place, and room would be made for a job if it waited alone."""
    kept = {earmark.job for earmark in world.earmarks}
    alone = tuple(one for one in world.waiting if one.id == job.id or one.id in kept)
    asks = any(
        one.wanted_by == job.id
        for one in planned(replace(world, waiting=alone)).decisions
        if isinstance(one, Preempt)
    )
    return asks and all(one.promised_at is None for one in world.waiting)


@given(st.one_of(POOLS, worlds(SMALL).map(unlimited)))
def test_victims_are_legal_and_all_are_needed(before: PoolSnapshot) -> None:
    """Whoever makes room may be asked, all of them together, by the right that is told; and no
    victim fewer would be enough, if nobody else has a claim on what is free (S5)."""
    plan = planned(before)
    shares = shares_of(before)
    cluster = Cluster.from_snapshot(before)
    cluster.advance_to(plan.at)
    world, asked = cluster.snapshot(), list[Preempt]()
    for one in plan.decisions:
        if isinstance(one, Preempt):
            asked.append(one)
        elif isinstance(one, EarmarkGpus):
            job = next(job for job in world.waiting if job.id == one.job)
            rights = Rights(world, job, one.gpu_type, shares)
            running = {there.job.id: there for there in world.running}
            victims = tuple(running[ask.job] for ask in asked)

            assert [ask.right for ask in asked] == [rights.of(victim) for victim in victims]
            assert rights.legal(victims, straddling=True)
            there, soon = ready(world), world.at + world.policy.preemption_grace
            assert fits(there, job, one.gpu_type, soon, one.victims)
            for stays in one.victims if unclaimed(world, job) else ():
                fewer = [victim for victim in one.victims if victim != stays]
                assert not fits(there, job, one.gpu_type, soon, fewer), stays
            asked = []
        cluster.apply(one)
        world = world if asked else cluster.snapshot()
