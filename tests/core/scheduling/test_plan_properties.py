"""What every plan keeps, whatever the pool: found false by no random state."""

import sys
from collections import Counter
from collections.abc import Iterator
from random import Random
from types import FrameType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bursar.core.ids import JobId, NodeId
from bursar.core.instant import HOUR, MINUTE, SECOND
from bursar.core.scheduling.decisions import Decision, EarmarkGpus, Plan, Preempt, Promise, Start
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.jobs import Job, Path, Shape, StartReason
from bursar.core.scheduling.model.nodes import MILLI, Node, NodeState, Piece
from bursar.core.scheduling.model.policy import ANY_TYPE, PoolPolicy, Share, Tier
from bursar.core.scheduling.model.snapshot import PoolSnapshot
from bursar.core.scheduling.plan import make_plan
from bursar.core.scheduling.preemption.rights import Right
from bursar.core.value import replace
from tests.support.random_clusters import (
    CROWD,
    MIDDLE,
    SMALL,
    Game,
    fits_whole,
    holders,
    indexes,
    shares_of,
    used,
    worlds,
)
from tests.support.scheduling_cases import CREDIT, PLAIN, T0, after

pytestmark = pytest.mark.property

EXAMPLES = settings().max_examples
some = settings(max_examples=EXAMPLES // 2)
few = settings(max_examples=EXAMPLES // 5)  # of what takes many rounds
POOLS = st.one_of(*[worlds(SMALL)] * 4, worlds(CROWD), worlds(MIDDLE))


def steps(before: PoolSnapshot, plan: Plan) -> Iterator[tuple[PoolSnapshot, Decision]]:
    """Each decision, and the pool in which it is taken."""
    cluster = Cluster.from_snapshot(before)
    cluster.advance_to(plan.at)
    for decision in plan.decisions:
        yield cluster.snapshot(), decision
        cluster.apply(decision)


def given_places(plan: Plan) -> Iterator[Start | EarmarkGpus]:
    """All decisions that give a job GPUs."""
    return (one for one in plan.decisions if isinstance(one, Start | EarmarkGpus))


def planned(before: PoolSnapshot) -> Plan:
    """The plan for a pool."""
    return make_plan(Cluster.from_snapshot(before), before.at)


# --------------------------------------------------------------------------- places


@some
@given(POOLS)
def test_nothing_is_given_twice(before: PoolSnapshot) -> None:
    """What runs fits its nodes: slots of each GPU, CPU and memory, counted from pieces alone; and
    with it what is kept, once all have left who are to leave by then (S1, S10)."""
    then = after(before, planned(before))
    soon = before.at + before.policy.preemption_grace
    staying = [piece for one in then.running if one.ends_by > soon for piece in one.pieces]
    kept = [piece for one in then.earmarks for piece in one.pieces]

    assert fits_whole(then.nodes, [piece for one in then.running for piece in one.pieces])
    assert fits_whole(then.nodes, staying + kept)


@some
@given(POOLS)
def test_gangs_are_placed_whole_and_close_enough(before: PoolSnapshot) -> None:
    """All tasks have all that they asked for, inside one place of the required level (S1, S2)."""
    nodes = {node.id: node for node in before.nodes}
    jobs = {job.id: job for job in before.waiting}
    for one in given_places(planned(before)):
        shape = jobs[one.job].shape

        assert shape.tasks == sum(tasks_of(piece, shape, nodes) for piece in one.pieces)
        assert 1 == len({nodes[piece.node].domain(shape.within) for piece in one.pieces})
        assert len(one.pieces) == len({piece.node for piece in one.pieces})


def tasks_of(piece: Piece, shape: Shape, nodes: dict[NodeId, Node]) -> int:
    """How many tasks lie in a piece that has exactly what they need."""
    node = nodes[piece.node]
    assert tuple(sorted(set(piece.gpus))) == piece.gpus
    assert set(piece.gpus) <= set(range(node.gpus))
    counts = []
    if gpus := shape.gpus or bool(shape.milli):
        assert (shape.milli or MILLI) == piece.slots * MILLI // node.slots
        counts.append(len(piece.gpus) / gpus)
    if shape.cpu_milli:
        counts.append(piece.cpu_milli / shape.cpu_milli)
    if shape.ram_mib:
        counts.append(piece.ram_mib / shape.ram_mib)
    assert 1 == len(set(counts)), "parts of a piece belong to different numbers of tasks"
    return int(counts[0])


@some
@given(POOLS)
def test_jobs_run_on_nodes_that_they_accept(before: PoolSnapshot) -> None:
    """A type from the job's list, enough memory on each GPU, all labels, a region from its list if
    it has one, nodes that are ready, and not before a job may be tried again (S1)."""
    nodes = {node.id: node for node in before.nodes}
    jobs = {job.id: job for job in before.waiting}
    for one in given_places(planned(before)):
        job = jobs[one.job]
        assert job.not_before <= before.at
        assert one.gpu_type in job.shape.types
        for node in (nodes[piece.node] for piece in one.pieces):
            assert one.gpu_type == node.gpu_type
            assert node.memory_gib >= job.shape.memory_gib
            assert set(job.shape.labels) <= set(node.labels)
            assert not job.shape.regions or node.region in job.shape.regions
            assert NodeState.READY is node.state


# --------------------------------------------------------------------------- shares


@some
@given(POOLS)
def test_no_ceiling_is_passed(before: PoolSnapshot) -> None:
    """No place gets more than its ceiling, by type or in all, nor more jobs than its quota, and no
    limit outside the tree is passed; who is above already gets nothing more (S3, B4)."""
    jobs = {job.id: job for job in before.waiting}
    for world, one in steps(before, planned(before)):
        if isinstance(one, EarmarkGpus):
            assert within_all(world, holders(world), jobs[one.job], one.gpu_type)
        elif isinstance(one, Start):  # now: whoever was asked to stop is still there
            there = [(running.job, running.gpu_type) for running in world.running]
            assert within_all(world, there, jobs[one.job], one.gpu_type)


def within_all(
    world: PoolSnapshot, holding: list[tuple[Job, str]], job: Job, gpu_type: str
) -> bool:
    """Whether a job more is within what all its places may have, and all limits that count it."""
    shares, limits = shares_of(world), dict(world.policy.limits)
    places = [job.path[:depth] for depth in range(1, len(job.path) + 1)]
    return all(
        within(
            shares.get(place),
            [h for h in holding if h[0].path[: len(place)] == place],
            job,
            gpu_type,
        )
        for place in places
    ) and all(
        within(limits.get(name), [h for h in holding if name in h[0].limit_names], job, gpu_type)
        for name in job.limit_names
    )


def within(share: Share | None, inside: list[tuple[Job, str]], job: Job, gpu_type: str) -> bool:
    """Whether a job more is within what a place may have."""
    if share is None:
        return True
    for of, gpus in share.ceiling:
        milli = sum(one.shape.milli_gpus for one, t in inside if of in (ANY_TYPE, t))
        if of in (ANY_TYPE, gpu_type) and milli + job.shape.milli_gpus > gpus * MILLI:
            return False
    return share.jobs_max is None or len(inside) < share.jobs_max


@some
@given(POOLS)
def test_only_preemptible_jobs_are_preempted(before: PoolSnapshot) -> None:
    """Never one that is not preemptible, made room as often as is allowed (except to an earlier
    job of its user), stops already, or has just been started (S5)."""
    running = {one.job.id: one for one in before.running}
    for one in planned(before).decisions:
        if isinstance(one, Preempt):
            victim = running[one.job]
            assert victim.job.preemptible
            spent = victim.job.preemptions >= before.policy.preemptions_max
            assert not spent or one.right is Right.AGE
            assert victim.stops_at is None
            assert victim.started_at < before.at
            assert victim.work_lost(before.at) == one.lost


@some
@given(POOLS)
def test_a_job_past_its_turn_loses_little(before: PoolSnapshot) -> None:
    """By one of the same org and class, that ran long and has more to do, to one that has less."""
    waiting = {job.id: job for job in before.waiting}
    running = {one.job.id: one for one in before.running}
    for one in planned(before).decisions:
        if isinstance(one, Preempt) and one.right is Right.TURN:
            victim, job = running[one.job], waiting[one.wanted_by]
            ran = before.at - victim.started_at
            assert victim.job.path[:2] == job.path[:2]
            assert victim.job.priority_class == job.priority_class
            assert victim.job.checkpoint_every
            assert before.policy.turn_after * victim.job.checkpoint_cost <= ran
            last = job.estimate is not None and job.expected_run > victim.job.expected_run - ran
            assert last or victim.work(before.at) >= 2 * job.work


@some
@given(POOLS)
def test_no_floor_is_cut_into(before: PoolSnapshot) -> None:
    """Jobs that make room leave their groups the floors; one job that is reclaimed for a floor may
    straddle them (S3, S5)."""
    jobs = {job.id: job for job in before.waiting}
    running = {one.job.id: one.job for one in before.running}
    start = None  # the pool before the first of those who make room for one job
    reclaimed: list[Job] = []
    for world, one in steps(before, planned(before)):
        if isinstance(one, Preempt):
            start = start or world
            reclaimed += [running[one.job]] if one.right is Right.FLOOR else []
        elif start is not None:
            assert isinstance(one, EarmarkGpus)
            for path, share in shares_of(before).items():
                if path != jobs[one.job].path[: len(path)]:
                    keeps_floor(path, share, start, world, reclaimed)
            start, reclaimed = None, []
    assert start is None, "somebody was preempted for nothing"


def keeps_floor(
    path: Path, share: Share, start: PoolSnapshot, world: PoolSnapshot, reclaimed: list[Job]
) -> None:
    """A group that lost something has its floor still, or had more before its largest job left."""
    sizes = [job.shape.milli_gpus for job in reclaimed if job.path[: len(path)] == path]
    largest = max(sizes, default=0)
    for of, floor in share.floor:
        rest, milli = used(world, path, of), floor * MILLI
        lost = used(start, path, of) - rest
        assert lost == 0 or rest >= milli or rest + largest > milli, (path, of)


# --------------------------------------------------------------------------- the same every time


@some
@given(POOLS)
def test_planning_changes_nothing(before: PoolSnapshot) -> None:
    """Neither what is known nor any index differs from that of a pool that never planned (S14)."""
    cluster = Cluster.from_snapshot(before)
    first = make_plan(cluster, before.at)
    fresh = Cluster.from_snapshot(before)
    fresh.advance_to(before.at)

    assert before == cluster.snapshot()
    assert indexes(fresh) == indexes(cluster)
    assert first == make_plan(cluster, before.at)


@some
@given(POOLS, st.integers(0, 2**32))
def test_a_plan_does_not_depend_on_the_order_of_facts(before: PoolSnapshot, seed: int) -> None:
    """The same facts, learned in any order, make the same plan (S3, S14)."""
    shuffled = Random(seed).sample
    turned = replace(
        before,
        nodes=tuple(shuffled(before.nodes, len(before.nodes))),
        running=tuple(shuffled(before.running, len(before.running))),
        waiting=tuple(shuffled(before.waiting, len(before.waiting))),
        usage=tuple(shuffled(before.usage, len(before.usage))),
        policy=replace(
            before.policy, shares=tuple(shuffled(before.policy.shares, len(before.policy.shares)))
        ),
    )

    assert planned(before) == planned(turned)


@some
@given(POOLS)
def test_a_second_round_decides_nothing(before: PoolSnapshot) -> None:
    """A plan that was carried out leaves nothing to decide, and the same jobs wait (S5, S14)."""
    plan = planned(before)
    again = planned(after(before, plan))

    assert () == again.decisions
    assert plan.waits == again.waits


@few
@given(worlds(SMALL), st.integers(0, 2**32))
def test_a_plan_does_not_depend_on_how_the_pool_came_about(before: PoolSnapshot, seed: int) -> None:
    """A pool that was kept up through whatever happened plans as one built of its snapshot does,
    and no index of it differs (S14)."""
    game, random = Game(before), Random(seed)
    for _ in range(8):
        happen(game, random)
        game.cluster.advance_to(game.now)
        fresh = Cluster.from_snapshot(game.cluster.snapshot())
        fresh.advance_to(game.now)

        assert indexes(fresh) == indexes(game.cluster)
        assert make_plan(fresh, game.now) == make_plan(game.cluster, game.now)


def happen(game: Game, random: Random) -> None:
    """Something happens: a round, an end, time, a checkpoint, a job comes or goes, a node fails."""
    cluster = game.cluster
    what = random.randrange(8)
    if what == 0 and cluster.running:
        game.end(random.choice(sorted(cluster.running)))
    elif what == 1 and cluster.waiting:
        cluster.withdraw(random.choice(sorted(cluster.waiting)))
    elif what == 2 and cluster.running:
        cluster.record_checkpoint(random.choice(sorted(cluster.running)), game.now)
    elif what == 3 and cluster.nodes.by_id:
        machine = cluster.nodes.by_id[random.choice(sorted(cluster.nodes.by_id))]
        state = random.choice((NodeState.READY, NodeState.READY, NodeState.DRAINING))
        cluster.add_node(replace(machine.node, state=state, ready_at=0))
    elif what == 4:
        game.go_to(game.now + random.choice((1, SECOND, MINUTE, HOUR, 60 * HOUR)))
    elif what == 5 and (change := game.next_change()) is not None:
        game.go_to(change[0])
    else:
        game.round()


# --------------------------------------------------------------------------- making room


@some
@given(POOLS)
def test_a_job_that_preempts_starts_on_the_freed_gpus(before: PoolSnapshot) -> None:
    """Every preemption belongs to GPUs that are kept for a job, each victim is in its way, and once
    all have left the job starts on exactly these GPUs (S5)."""
    game = Game(before)
    plan = game.round()
    kept = {one.job: one for one in plan.decisions if isinstance(one, EarmarkGpus)}
    asked = [(one.wanted_by, one.job) for one in plan.decisions if isinstance(one, Preempt)]
    assert sorted(asked) == sorted((one.job, v) for one in kept.values() for v in one.victims)
    then = game.cluster.snapshot()
    claimed = any(wait.planned is not None for wait in plan.waits)
    for one in kept.values():
        assert one.victims, "nobody had to leave, and yet it waits"
        # With a claim on free GPUs a victim may make room for whoever has it.
        for victim in one.victims:
            assert claimed or in_the_way(then, victim) or at_a_ceiling(then, one, victim)

    game.go_to(before.at + before.policy.preemption_grace)
    game.round()
    for one in kept.values():
        there = game.cluster.running[one.job]
        assert (one.pieces, one.gpu_type, StartReason.FREED) == (
            there.pieces,
            there.gpu_type,
            there.why,
        )


def in_the_way(then: PoolSnapshot, victim: JobId) -> bool:
    """Whether somebody could not have what is kept for it if this victim stayed."""
    soon = then.at + then.policy.preemption_grace
    staying = [
        piece
        for one in then.running
        if one.ends_by > soon or one.job.id == victim
        for piece in one.pieces
    ]
    earmarked = [piece for one in then.earmarks for piece in one.pieces]
    return not fits_whole(then.nodes, staying + earmarked)


def at_a_ceiling(then: PoolSnapshot, kept: EarmarkGpus, victim: JobId) -> bool:
    """Whether some place would have more than it may if a job came and this victim stayed."""
    jobs = {job.id: job for job in then.waiting} | {one.job.id: one.job for one in then.running}
    left = {kept.job, *kept.victims} - {victim}
    others = [(one.job, one.gpu_type) for one in then.running if one.job.id not in left]
    others += [(jobs[one.job], one.gpu_type) for one in then.earmarks if one.job not in left]
    return not within_all(then, others, jobs[kept.job], kept.gpu_type)


@few
@given(worlds(SMALL))
def test_jobs_do_not_preempt_each_other_to_and_fro(before: PoolSnapshot) -> None:
    """When nothing new comes and nothing ends, rounds settle: nobody is preempted for one that was
    preempted for it by the same right, and nobody often (S5)."""
    endless = replace(
        before,
        policy=replace(before.policy, preemptions_max=1_000),
        running=tuple(
            replace(one, job=replace(one.job, run_max=10_000 * HOUR)) for one in before.running
        ),
        waiting=tuple(replace(job, run_max=10_000 * HOUR) for job in before.waiting),
    )
    game = Game(endless)
    for _ in range(12):
        plan = game.round()
        game.go_to(game.now + 40 * SECOND)
    asked = {(one.job, one.wanted_by, one.right) for one in game.asked}
    times = Counter(one.job for one in game.asked)

    assert not [one for one in plan.decisions if not isinstance(one, Promise)], "never settles"
    assert not [one for one in asked if (one[1], one[0], one[2]) in asked]
    assert max(times.values(), default=0) <= 2


# --------------------------------------------------------------------------- dates


def quiet(world: PoolSnapshot) -> PoolSnapshot:
    """The pool without all that may rightly change whose turn it is: nobody makes room, nobody ages
    or comes back, no ceiling holds anybody up, and turns do not depend on what was started."""

    def still(job: Job) -> Job:
        prices = tuple((gpu_type, 0) for gpu_type, _ in job.prices)
        return replace(job, prices=prices, not_before=0, preemptible=False)

    running = [one for one in world.running if one.stops_at is None]
    tiers = tuple(Tier(name=tier.name, ages_after=2**53) for tier in world.policy.tiers)
    return replace(
        world,
        policy=replace(world.policy, tiers=tiers, shares=(), limits=()),
        running=tuple(replace(one, job=still(one.job)) for one in running),
        waiting=tuple(still(job) for job in world.waiting),
    )


@some
@given(worlds(SMALL).map(quiet))
def test_the_first_in_turn_starts_by_its_date(before: PoolSnapshot) -> None:
    """If all that runs ends at its bound and nobody comes, the first job with a future place starts
    by then; its date never moves back, whatever was started in the meantime (S7)."""
    game = Game(before)
    plan = game.round()
    first = next((wait for wait in plan.waits if wait.planned is not None), None)
    while first is not None and first.job not in game.started:
        assert first.planned is not None
        change = game.next_change()
        assert change is not None
        assert change[0] <= first.planned.at, "it should have started by now"
        game.go_to(change[0])
        again = {wait.job: wait.planned for wait in game.round().waits}.get(first.job)
        assert first.job in game.started or (again and again.at <= first.planned.at)


@some
@given(worlds(SMALL))
def test_a_job_with_a_date_starts_by_then(before: PoolSnapshot) -> None:
    """Whoever has waited too long gets a date, and starts by then if all that runs ends at its
    bound, whoever else comes in the meantime (S4)."""
    game = Game(patient(before))
    dates: dict[JobId, int] = {}
    for coming in range(12):
        for one in game.round().decisions:
            if isinstance(one, Promise):
                assert one.at <= dates.get(one.job, one.at)
                dates[one.job] = one.at
        late = [job for job, at in dates.items() if at <= game.now and job not in game.started]
        assert not late, "it has a date, and did not start by then"
        if coming < 6:
            more_come(game, before, coming)
        if (change := game.next_change()) is not None:
            game.go_to(change[0])


def patient(world: PoolSnapshot) -> PoolSnapshot:
    """The pool with jobs that age soon, without preemption and ceilings, which may hold them up."""
    tiers = tuple(
        replace(tier, ages_after=HOUR, ceiling_ppm=1_000_000) for tier in world.policy.tiers
    )
    shares = tuple(
        (path, replace(share, ceiling=(), jobs_max=None)) for path, share in world.policy.shares
    )
    running = [one for one in world.running if one.stops_at is None]
    return replace(
        world,
        policy=replace(world.policy, tiers=tiers, shares=shares, limits=()),
        running=tuple(replace(r, job=replace(r.job, preemptible=False)) for r in running),
        waiting=tuple(replace(job, preemptible=False) for job in world.waiting),
    )


def more_come(game: Game, before: PoolSnapshot, coming: int) -> None:
    """Somebody else wants the same again."""
    for job in before.waiting[:2]:
        again = replace(
            job, id=JobId(f"{job.id}.{coming}"), path=(*job.path[:-1], "zoe"), queued_at=game.now,
            preemptible=False, not_before=0,
        )  # fmt: skip
        game.cluster.enqueue(again)


# --------------------------------------------------------------------------- in the long run


WEIGHTS = {
    "two users": {"paid.acme.ml.ann": 1, "paid.acme.ml.bob": 3},
    "three orgs": {"paid.a": 1, "paid.b": 2, "paid.c": 5},
    "tiers, orgs and users": {
        "enterprise": 8, "paid": 4, "free": 1, "paid.b": 3, "enterprise.a.x.ann": 2,
    },
}  # fmt: skip
USERS = {
    "two users": ("paid.acme.ml.ann", "paid.acme.ml.bob"),
    "three orgs": ("paid.a.x.ann", "paid.b.x.ann", "paid.b.y.bob", "paid.c.x.ann"),
    "tiers, orgs and users": (
        "enterprise.a.x.ann", "enterprise.a.x.bob", "paid.a.x.ann", "paid.b.x.ann", "free.a.x.ann",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WEIGHTS)
def test_shares_follow_the_weights(name: str) -> None:
    """In a pool that is never enough, everybody's part of the GPU time comes within two per cent of
    its weights, at each level of the tree (S3)."""
    weights = {tuple(path.split(".")): weight for path, weight in WEIGHTS[name].items()}
    users = [tuple(user.split(".")) for user in USERS[name]]
    tiers = tuple(Tier(name=t.name, weight=weights.get((t.name,), 1)) for t in PLAIN.tiers)
    below = {path: weight for path, weight in weights.items() if len(path) > 1}
    shares = tuple((path, Share(weight=weight)) for path, weight in below.items())
    had = saturated(replace(PLAIN, tiers=tiers, shares=shares, half_life=12), users)

    for user in users:
        part = 1.0
        for depth in range(1, len(user) + 1):
            siblings = {one[:depth] for one in users if one[: depth - 1] == user[: depth - 1]}
            whole = sum(weights.get(one, 1) for one in siblings)
            part *= weights.get(user[:depth], 1) / whole
        assert abs(had[user] / had.total() - part) <= 0.02 * part, user


def saturated(policy: PoolPolicy, users: list[Path]) -> Counter[Path]:
    """How long each user had GPUs of a full pool in which all want more, after it has settled."""
    nodes = tuple(Node(id=NodeId(f"n{n}"), gpu_type="H100", gpus=8) for n in range(3))
    cluster = Cluster.from_snapshot(
        PoolSnapshot(at=T0, policy=replace(policy, reservations=0), nodes=nodes)
    )
    had, number = Counter[Path](), 0
    while cluster.now < T0 + 110 * HOUR:
        for user in users:
            while len(cluster.tree.groups.user_group(user).oldest) < 24:
                number += 1
                # The first ones end at different times; from then on ends are spread.
                length = HOUR if cluster.now > T0 else (number % 4 + 1) * HOUR // 4
                cluster.enqueue(equal_job(number, user, length, cluster.now))
        for decision in make_plan(cluster, cluster.now).decisions:
            cluster.apply(decision)
        cluster.advance_to(min(one.ends_by for one in cluster.running.values()))
        over = [job_id for job_id, one in cluster.running.items() if one.ends_by == cluster.now]
        for ended in map(cluster.remove_running, over):
            had[ended.job.path] += HOUR if cluster.now > T0 + 10 * HOUR else 0
    return had


def equal_job(number: int, path: Path, run_max: int, at: int) -> Job:
    """One of many jobs that are alike."""
    return Job(
        id=JobId(f"j{number:06}"), shape=Shape(types=("H100",)), path=path, run_max=run_max,
        prices=(("H100", CREDIT),), queued_at=at, preemptible=False,
    )  # fmt: skip


@pytest.mark.parametrize("free", [0, 3], ids=["all blocked", "a few start"])
def test_ten_thousand_equal_jobs_cost_as_much_as_a_few(free: int) -> None:
    """A queue of jobs that are alike makes a round no longer: the same calls are made for ten
    thousand as for ten (S3)."""
    calls_of_a_round(10, free)  # whatever is remembered between pools is remembered from here on

    assert calls_of_a_round(10, free) == calls_of_a_round(10_000, free)


def calls_of_a_round(jobs: int, free: int) -> int:
    """How many functions of ours a round calls."""
    path: Path = ("paid", "acme", "ml", "ann")
    node = Node(id=NodeId("n1"), gpu_type="H100", gpus=8)
    cluster = Cluster.from_snapshot(PoolSnapshot(at=T0, policy=PLAIN, nodes=(node,)))
    for number in range(jobs):
        cluster.enqueue(equal_job(number, path, HOUR, T0))
    for number in range(8 - free):
        piece = Piece(node.id, (number,), 1)
        start = Start(
            job=JobId(f"j{number:06}"), gpu_type="H100", pieces=(piece,), why=StartReason.TURN
        )
        cluster.apply(start)
    cluster.advance_to(T0)
    calls = Counter[str]()

    def count(frame: FrameType, event: str, arg: object) -> None:
        if event == "call" and "bursar" in frame.f_code.co_filename:
            calls[event] += 1

    sys.setprofile(count)
    make_plan(cluster, T0)
    sys.setprofile(None)
    return calls.total()
