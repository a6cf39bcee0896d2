"""Quotas divided among pools: never passed, and all of it usable where it is wanted (B4)."""

from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bursar.core.dispatch.quota_usage import LiveJob, QuotaClaims, QuotaUsage
from bursar.core.ids import AccountId, UserId
from bursar.core.instant import NEVER
from bursar.core.messages import Enqueue, JobSpec
from bursar.core.quota_slices import (
    GPUS,
    JOBS,
    TURN_SPAN,
    PoolSlice,
    RunningQuota,
    Slice,
    SliceReport,
    first_slice,
    rebalance,
    type_key,
)
from bursar.core.scheduling.model.jobs import Shape
from bursar.core.scheduling.model.policy import ANY_TYPE, Share
from bursar.core.value import replace

EAST, NORTH, WEST = "east", "north", "west"
POOLS: Final = (EAST, NORTH, WEST)
H100, A100 = "H100", "A100"
UNKNOWN: Final = 1 << 60  # so much may run while nobody knows what does
SOME: Final = settings(max_examples=min(150, settings().max_examples))
EVERYTHING: Final = ((GPUS, 8), (type_key(H100), 5), (JOBS, 6))


def asking(milli: int, user: str = "u", *, quotas: tuple[str, ...] = ("q",)) -> Enqueue:
    whole, part = divmod(milli, 1_000)
    shape = Shape(types=(H100, A100), gpus=0 if part else whole, milli=part)
    return Enqueue(
        account=AccountId("team"), user=UserId(user), shares=(AccountId("team"), AccountId("root")),
        tier="paid", rates=(), run_ms=1, hold_micros=0, hold_until=NEVER, spec=JobSpec(shape=shape),
        quotas=quotas,
    )  # fmt: skip


@dataclass
class PoolSide:
    """A pool, as far as quotas go."""

    counted: QuotaUsage = field(default_factory=QuotaUsage)
    waiting: dict[str, Enqueue] = field(default_factory=dict)
    running: dict[int, tuple[Enqueue, str]] = field(default_factory=dict)
    numbers: "count[int]" = field(default_factory=lambda: count(1))

    def submit(self, ask: Enqueue) -> None:
        name = str(next(self.numbers))
        self.waiting[name] = ask
        self.counted.set_waiting(("org", name), ask)

    def start(self, gpu_type: str) -> bool:
        """Start the first job that no slice is against."""
        for name, ask in self.waiting.items():
            if not QuotaClaims(self.counted).exceeds("org", ask, gpu_type, self._lives):
                del self.waiting[name]
                self.counted.set_waiting(("org", name), None)
                fence = next(self.numbers)
                self.running[fence] = ask, gpu_type
                self.counted.add_live(fence, "org", ask, gpu_type)
                return True
        return False

    def _lives(self) -> list[LiveJob]:
        return [LiveJob(fence, "org", ask, of) for fence, (ask, of) in self.running.items()]

    def end(self, fence: int) -> None:
        del self.running[fence]
        self.counted.remove_live(fence)

    def hear(self, given: Slice) -> None:
        """Take a slice, as a transaction does."""
        claims = QuotaClaims(self.counted)
        claims.put_slice(given)
        for new in claims.new.values():
            if self.counted.put(new):
                self.counted = self.counted.recounted(self._lives())
                for name, ask in self.waiting.items():
                    self.counted.set_waiting(("org", name), ask)

    def uses(self, quota: RunningQuota, name: str) -> int:
        """What runs and counts, counted once more from nothing: thousandths, or jobs."""
        scope = Slice(org="org", quota="q", account=quota.account, user=quota.user)
        found = [(ask, of) for ask, of in self.running.values() if scope.counts(ask)]
        if name == JOBS:
            return len(found)
        return sum(ask.milli_gpus for ask, of in found if name in (GPUS, type_key(of)))


@dataclass
class World:
    """An org with one quota, its pools, and all that was ever said between them."""

    quota: RunningQuota = field(
        default_factory=lambda: RunningQuota(org="org", id="q", account="root", limits=EVERYTHING)
    )
    pools: dict[str, PoolSide] = field(default_factory=lambda: {one: PoolSide() for one in POOLS})
    parts: tuple[PoolSlice, ...] = ()
    written: list[tuple[str, Slice]] = field(default_factory=list)
    said: dict[str, list[SliceReport]] = field(default_factory=lambda: {one: [] for one in POOLS})
    most: dict[str, int] = field(default_factory=dict)  # what may run at all, by name
    now: int = 0

    def set(self, quota: RunningQuota) -> None:
        """The org has changed its quota."""
        other = (quota.account, quota.user) != (self.quota.account, self.quota.user)
        old = dict(self.quota.limits)
        for name, limit in quota.limits:
            known = UNKNOWN if other or name not in old else self.most.get(name, UNKNOWN)
            self.most[name] = max(known, limit)
        self.quota = quota

    def say(self, pool: str) -> None:
        """A pool says what it knows and has."""
        self.said[pool].append(self.pools[pool].counted.report_of("org").get("q", SliceReport()))

    def balance(self, heard: dict[str, SliceReport], pools: tuple[str, ...] = POOLS) -> None:
        """The org divides anew, by what it has heard: the newest, or something long ago."""
        known = {part.pool for part in self.parts}
        parts = (*self.parts, *(first_slice(self.quota, one) for one in pools if one not in known))
        self.parts = rebalance(self.quota, parts, heard, self.now)
        self.written += [(part.pool, part.slice) for part in self.parts]
        self.check_bounds()
        for name, limit in self.quota.limits:
            bounds = [dict(part.bounds).get(name, UNKNOWN) for part in self.parts]
            if len(bounds) == len(POOLS) and sum(bounds) <= limit:
                self.most[name] = limit

    def check_bounds(self) -> None:
        """No pool has more than its org thinks that it can have."""
        for part in self.parts:
            if part.slice.scope == (self.quota.account, self.quota.user):
                for name, most in part.bounds:
                    unit = 1 if name == JOBS else 1_000
                    assert self.pools[part.pool].uses(self.quota, name) <= most * unit

    def check(self) -> None:
        """All pools together have no more than the quota."""
        for name, _ in self.quota.limits:
            unit = 1 if name == JOBS else 1_000
            used = sum(pool.uses(self.quota, name) for pool in self.pools.values())
            assert used <= self.most.get(name, UNKNOWN) * unit, (name, used)
        self.check_bounds()

    def settle(self) -> None:
        """Everybody is heard, and starts what it can, until nothing changes any more."""
        for _ in range(2 * len(POOLS)):
            self.now += TURN_SPAN
            for _ in range(3):
                for pool in POOLS:
                    self.say(pool)
                self.balance({pool: said[-1] for pool, said in self.said.items()})
                for part in self.parts:
                    self.pools[part.pool].hear(part.slice)
            for side in self.pools.values():
                while side.start(A100) or side.start(H100):
                    self.check()

    def room_for(self, ask: Enqueue) -> bool:
        """Whether the quota has room for one job more, on the type with the more room."""
        free = {
            name: limit * (1 if name == JOBS else 1_000)
            - sum(pool.uses(self.quota, name) for pool in self.pools.values())
            for name, limit in self.quota.limits
        }
        return free.get(GPUS, UNKNOWN) >= ask.milli_gpus and free.get(JOBS, UNKNOWN) >= 1


def step(world: World, chance: Random, sizes: tuple[int, ...]) -> None:
    """Something happens."""
    pool = chance.choice(POOLS)
    side = world.pools[pool]
    what = chance.randrange(13)
    if what < 2:
        quotas = ("q",) if chance.random() < 0.8 else ()
        side.submit(asking(chance.choice(sizes), chance.choice("uv"), quotas=quotas))
    elif what < 6:
        side.start(chance.choice((H100, A100)))
    elif what < 7 and side.running:
        side.end(chance.choice(list(side.running)))
    elif what < 9:
        world.say(pool)
    elif what < 10:
        world.now += chance.randrange(TURN_SPAN)
        heard = {one: chance.choice(said[-3:]) for one, said in world.said.items() if said}
        world.balance(heard, POOLS[: chance.randint(1, 3)])
    elif what < 12 and world.written:
        at, given = chance.choice(world.written[-9:])
        world.pools[at].hear(given)
    elif chance.random() < 0.1:
        world.set(other(world.quota, chance))


def other(quota: RunningQuota, chance: Random) -> RunningQuota:
    """A quota as its org may change it."""
    if chance.random() < 0.3:
        return replace(quota, user=chance.choice((None, "u")))
    names = [name for name, _ in EVERYTHING if chance.random() < 0.8]
    return replace(quota, limits=tuple((name, chance.randrange(10)) for name in names))


@SOME
@given(st.integers(0, 2**32))
def test_a_quota_is_never_passed_whatever_is_lost_late_or_repeated(seed: int) -> None:
    """Pools together have no more than the quota, from when all of them know of it, and what
    runs at the time has fallen below it (B4)."""
    chance, world = Random(seed), World()
    for _ in range(120):
        step(world, chance, (250, 500, 1_000, 2_000, 4_000))
        world.check()


@SOME
@given(st.integers(0, 2**32))
def test_all_of_a_quota_can_be_used_where_it_is_wanted(seed: int) -> None:
    """Once everybody was heard no job waits for which the quota has room (B4)."""
    chance, world = Random(seed), World()
    for _ in range(60):
        step(world, chance, (1_000, 2_000, 4_000))
    limits = (GPUS, chance.randint(1, 12)), (JOBS, chance.randint(1, 8))
    world.set(replace(world.quota, account="root", user=None, limits=limits))

    world.settle()

    left = [ask for pool in world.pools.values() for ask in pool.waiting.values()]
    assert not [ask for ask in left if world.room_for(ask)]


def balanced(world: World, *times: int) -> None:
    """All is heard and told, so many times, at these instants."""
    for world.now in times:
        for pool in POOLS:
            world.say(pool)
        world.balance({pool: said[-1] for pool, said in world.said.items()})
        for part in world.parts:
            world.pools[part.pool].hear(part.slice)


def granted(world: World, name: str = GPUS) -> list[int | None]:
    return [dict(part.slice.granted).get(name) for part in world.parts]


def gpus(most: int) -> RunningQuota:
    return RunningQuota(org="org", id="q", account="root", limits=((GPUS, most),))


def test_a_new_quota_gives_nothing_before_all_pools_know_of_it() -> None:
    world = World(quota=gpus(8))
    world.balance({})
    assert [0, 0, 0] == granted(world)

    balanced(world, 0)
    assert [0, 0, 0] == granted(world), "nobody has said so yet"
    balanced(world, 0)
    assert [8, 0, 0] == granted(world)


def test_the_only_pool_has_all_of_it_at_once() -> None:
    parts = rebalance(gpus(8), [first_slice(gpus(8), EAST)], {}, 0)

    [one] = parts
    assert (((GPUS, 8),), 1) == (one.slice.granted, one.slice.n)


def test_without_pools_there_is_nothing_to_divide() -> None:
    assert () == rebalance(gpus(8), [], {}, 0)


def test_free_quota_goes_to_one_pool_after_another() -> None:
    """Two halves of what a gang needs would start no gang."""
    world = World(quota=gpus(8))
    balanced(world, 0, 0)
    for pool in (EAST, WEST):
        world.pools[pool].submit(asking(8_000))

    balanced(world, 0, 0)
    assert [8, 0, 0] == granted(world)
    balanced(world, 2 * TURN_SPAN, 2 * TURN_SPAN, 2 * TURN_SPAN)
    assert [0, 0, 8] == granted(world)


def test_a_slice_is_lowered_before_another_is_raised() -> None:
    world = World(quota=gpus(8))
    balanced(world, 0, 0)
    east, west = world.pools[EAST], world.pools[WEST]
    east.submit(asking(5_000))
    assert east.start(H100)
    west.submit(asking(4_000))

    for pool in POOLS:
        world.say(pool)
    world.balance({pool: said[-1] for pool, said in world.said.items()})
    assert [5, 0, 0] == granted(world)
    balanced(world, 0, 0)
    assert [5, 0, 3] == granted(world)
    east.end(next(iter(east.running)))
    balanced(world, 0, 0)
    assert [4, 0, 4] == granted(world)


def test_used_quota_stays_with_its_pool() -> None:
    world = World(quota=gpus(8))
    balanced(world, 0, 0)
    east, west = world.pools[EAST], world.pools[WEST]
    east.submit(asking(5_000))
    assert east.start(H100)
    west.submit(asking(8_000))

    balanced(world, 2 * TURN_SPAN, 2 * TURN_SPAN)

    assert [5, 0, 3] == granted(world)


def test_nothing_starts_while_more_runs_than_a_quota_that_was_lowered() -> None:
    """And nothing is killed."""
    world = World(quota=gpus(8))
    balanced(world, 0, 0)
    east = world.pools[EAST]
    for _ in range(3):
        east.submit(asking(4_000))
    assert east.start(H100)
    assert east.start(H100)
    world.set(gpus(4))
    balanced(world, 0, 0)

    east.end(next(iter(east.running)))
    assert not east.start(H100)
    east.end(next(iter(east.running)))
    assert east.start(H100)


def test_a_quota_that_was_dropped_limits_nothing() -> None:
    world = World(quota=gpus(0))
    balanced(world, 0, 0)
    east = world.pools[EAST]
    east.submit(asking(4_000))
    assert not east.start(H100)
    world.set(replace(world.quota, limits=()))

    balanced(world, 0)

    assert east.start(H100)
    assert [None, None, None] == granted(world)


def test_a_pool_that_knows_no_slice_of_a_quota_starts_nothing_that_names_it() -> None:
    pool = PoolSide()
    pool.submit(asking(1_000))
    assert not pool.start(H100)
    assert ["org"] == pool.counted.orgs_to_divide()
    pool.submit(asking(1_000, quotas=()))
    assert pool.start(H100)


def test_an_org_needs_division_while_a_pool_wants_more() -> None:
    pool = PoolSide()
    pool.submit(asking(3_000))
    some = Slice(org="org", quota="q", n=1, granted=((GPUS, 2),), limits=((GPUS, 8),))
    pool.hear(some)
    assert ["org"] == pool.counted.orgs_to_divide()
    pool.hear(replace(some, n=2, granted=((GPUS, 3),)))
    assert [] == pool.counted.orgs_to_divide()
    pool.hear(replace(some, n=3, granted=((GPUS, 2),), limits=((GPUS, 2),)))
    assert [] == pool.counted.orgs_to_divide(), "there is no more to be had"
    wanted = ((GPUS, 3), (type_key(A100), 3), (type_key(H100), 3), (JOBS, 1))
    assert {"q": SliceReport(n=3, wanted=wanted)} == pool.counted.report_of("org")


def test_an_org_needs_division_while_a_pool_uses_too_much() -> None:
    pool = PoolSide()
    pool.submit(asking(3_000, quotas=()))
    assert pool.start(H100)
    pool.hear(Slice(org="org", quota="q", n=1, granted=((GPUS, 2),), limits=((GPUS, 2),)))
    assert ["org"] == pool.counted.orgs_to_divide()
    pool.end(next(iter(pool.running)))
    assert [] == pool.counted.orgs_to_divide()


def test_an_older_slice_changes_nothing() -> None:
    pool = PoolSide()
    new = Slice(org="org", quota="q", n=2, granted=((GPUS, 1),), limits=((GPUS, 8),))
    pool.hear(new)
    pool.hear(replace(new, n=1, granted=((GPUS, 8),)))

    assert new == pool.counted.slice(("org", "q"))


@pytest.mark.parametrize(
    ("account", "user", "counts"),
    [
        (None, None, True),
        ("root", None, True),
        ("team", "u", True),
        ("team", "v", False),
        ("other", None, False),
    ],
)
def test_a_slice_counts_an_account_with_all_below_it_a_user_or_the_pair(
    account: str | None, user: str | None, counts: bool
) -> None:
    one = Slice(org="org", quota="q", account=account, user=user)

    assert counts is one.counts(asking(1_000))


def test_a_slice_is_a_ceiling_of_the_scheduler() -> None:
    one = Slice(org="org", quota="q", granted=((GPUS, 8), (type_key(H100), 4), (JOBS, 2)))

    assert Share(ceiling=((ANY_TYPE, 8), (H100, 4)), jobs_max=2) == one.share


def test_a_transaction_counts_what_it_has_changed_itself() -> None:
    """Of what was there before, and of slices that come in it, too."""
    pool, ask = PoolSide(), asking(1_000)
    pool.hear(Slice(org="org", quota="q", n=1, granted=((GPUS, 2),), limits=((GPUS, 2),)))
    claims = QuotaClaims(pool.counted)
    claims.count("org", ask, H100, 1)
    assert not claims.exceeds("org", ask, H100, list)
    claims.count("org", ask, H100, 1)
    assert claims.exceeds("org", ask, H100, list)
    claims.count("org", ask, H100, -1)
    assert not claims.exceeds("org", ask, H100, list)

    claims.put_slice(Slice(org="org", quota="q", n=2, granted=((GPUS, 1),), limits=((GPUS, 2),)))
    claims.put_slice(Slice(org="else", quota="q", n=2, granted=((GPUS, 0),)))
    assert claims.exceeds("org", ask, H100, lambda: [LiveJob(1, "org", ask, H100)])
    assert not claims.exceeds("org", ask, H100, list)
