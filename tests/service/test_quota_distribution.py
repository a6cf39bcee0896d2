"""Policies and slices of quotas on their way to pools, on a real database (B4, S3)."""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest

from bursar.core.dispatch.pool import PlanOutcome
from bursar.core.dispatch.reports import NodeReport, Reading
from bursar.core.dispatch.state import Exit
from bursar.core.ids import JobId, NodeId, SettingId
from bursar.core.instant import MINUTE, SECOND
from bursar.core.leases import Denied
from bursar.core.ledger.books import Books
from bursar.core.ledger.commands import SetSetting
from bursar.core.pricing import PriceBook
from bursar.core.scheduling.explain.explanation import explain
from bursar.core.scheduling.model.nodes import Node
from bursar.core.scheduling.model.policy import PAID, PoolPolicy
from bursar.core.scheduling.plan import carry_out
from bursar.service.keys import DEPLOYMENT
from bursar.service.ledger.batch import Batch, CommandRequest
from bursar.service.ledger.batcher import Limits
from bursar.service.org_setup import begin_books
from bursar.service.pools.pool import (
    NullListener,
    PoolHandle,
    PoolReplica,
    open_pool,
    pool_on_connection,
)
from bursar.service.pools.quota_distribution import POLICY_SETTING, QuotaDistributor
from bursar.store.database import Timeouts
from bursar.store.database import connect as limited
from bursar.store.jobs.outbox import Envelope
from bursar.store.ledger.loader import lock_orgs
from bursar.store.pools.loader import create_pool, lock_pool
from bursar.store.sql.connection import Connection
from bursar.store.verify.ledger import problems
from bursar.store.verify.quota_slices import SLICE_CHECKS
from tests.support.builders import T0
from tests.support.databases import connected, new_org
from tests.support.dispatch_pool import asking
from tests.support.pool_driver import Clock, Killed, Mortal

NUMBERS = count(1)
POLICY = PoolPolicy(tiers=(PAID,))
N1 = NodeId("n1")


@dataclass
class Process:
    """A process that keeps two pools and deals, on one connection; it may die."""

    world: "World"
    connection: Any

    def __post_init__(self) -> None:
        self.pools = {
            name: pool_on_connection(
                self.connection, PoolReplica(name, NullListener(), self.world.clock)
            )
            for name in self.world.pools
        }
        self.dealer = QuotaDistributor(self.connection, self.pools, self.world.clock)

    def deal(self) -> None:
        """Carry what is to be carried."""
        self.dealer.deliver_policies()
        for org in sorted(
            (self.dealer.undivided_orgs() | self.dealer.orgs_in_need()) & {self.world.org}
        ):
            self.dealer.divide(org)

    def schedule(self, name: str) -> PlanOutcome | None:
        """A round of a pool."""
        pool = self.pools[name]
        epoch, now = pool.lead("one")
        assert epoch is not None
        follower, _ = pool.follow(POLICY, now)
        decisions = carry_out(follower.cluster, now).decisions
        written = pool.write(epoch, decisions)
        follower.add_leases(written.placed)
        if written.denied:
            pool.unfollow()
        return written

    def rounds(self) -> None:
        """Rounds of both, and what follows from them, until nothing changes."""
        for _ in range(2):
            self.deal()
            for name in self.world.pools:
                self.schedule(name)
                self.world.check()


@dataclass
class World:
    """An org, two pools with a node of four GPUs each, and a clock."""

    plain: Connection
    clock: Clock = field(default_factory=Clock)
    cache: dict[str, Books] = field(default_factory=dict)
    most: int = 1 << 30  # that may run

    def __post_init__(self) -> None:
        number = next(NUMBERS)
        self.org = new_org(self.plain)
        begin_books(self.plain, DEPLOYMENT)
        self.pools = (f"east-{number}", f"west-{number}")
        for name in self.pools:
            create_pool(self.plain, name)
        first = Process(self, self.plain)
        for pool in first.pools.values():
            assert pool.register(Node(id=N1, gpu_type="H100", gpus=4)) is None
            self.report(pool)

    def report(self, pool: PoolHandle, *readings: Reading) -> None:
        """The node of a pool reports."""
        pool.expire()  # so that the pool is known
        n = pool.look(lambda kept: kept.machines[N1].n) + 1
        told = NodeReport(node=N1, boot=1, number=n, at=0, answered_at=None, readings=readings)
        assert pool.report(told).result() is not None

    def set(self, org: str, kind: str, id: str, body: dict[str, Any] | None) -> None:
        """Set something; new or not."""
        key = f"set-{next(NUMBERS)}"
        text = None if body is None else json.dumps(body)
        [(known,)] = self.plain.execute(
            "select count(*) from settings where org_id = %s and kind = %s and setting_id = %s",
            [org, kind, id],
        ).fetchall()
        before = None if known else 0
        command = SetSetting(kind=kind, id=SettingId(id), body=text, before=before)
        [answer] = Batch(self.plain, PriceBook(), self.cache, self.clock).run(
            [CommandRequest(org, key, command)]
        )
        assert isinstance(answer.outcome, tuple), answer  # type: ignore[union-attr]

    def quota(self, **limits: Any) -> None:
        """Set the quota of all that the org's root account has."""
        self.set(self.org, "quota", "q", {"account_id": "root", **limits})

    def submit(self, pool: PoolHandle, *jobs: str, quotas: tuple[str, ...] = ("q",)) -> None:
        """Jobs of one GPU come to a pool."""
        envelopes = [
            Envelope(self.org, pool.id, JobId(job), 1, asking(quotas=quotas), T0) for job in jobs
        ]
        assert len(jobs) == len(pool.receive(envelopes))

    def running(self) -> list[tuple[str, int, str]]:
        """What has GPUs, as the database has it."""
        sql = """
            select pool_id, fence, job_id from leases
             where pool_id = any(%s) and ended_at is null order by pool_id, fence
        """
        return self.plain.execute(sql, [list(self.pools)]).fetchall()

    def check(self) -> None:
        """No more runs than may."""
        assert len(self.running()) <= self.most

    def end(self, process: Process) -> None:
        """All that runs comes to its end."""
        for pool, fence, _ in self.running():
            reading = Reading(fence=fence, run_ms=0, saved_ms=0, exit=Exit.DONE, exit_code=0)
            self.report(process.pools[pool], reading)


@pytest.fixture
def world(connection: Connection) -> World:
    """An org and two pools of the test's own."""
    return World(connection)


def names(prefix: str, many: int) -> Sequence[str]:
    return [f"{prefix}{n}" for n in range(many)]


def test_an_account_has_no_more_than_its_quota_in_all_pools_together(world: World) -> None:
    """And all of it where it is wanted (B4)."""
    one = Process(world, world.plain)
    east, west = one.pools.values()
    world.quota(gpus_max=3)
    world.submit(east, *names("e", 4))
    one.rounds()
    assert ["e0", "e1", "e2"] == [job for *_, job in world.running()]

    world.most = 3
    world.submit(west, *names("w", 4))
    one.rounds()
    assert 3 == len(world.running())
    world.end(one)
    world.clock.now += MINUTE
    for pool in one.pools.values():
        world.report(pool)
    one.rounds()
    assert 3 == len(world.running())
    assert {"w"} < {job[0] for *_, job in world.running()} | {"e"}


def test_a_job_over_a_quota_waits_with_the_quota_as_reason(world: World) -> None:
    """As for a ceiling (B4)."""
    one = Process(world, world.plain)
    pool, _ = one.pools.values()
    world.quota(jobs_running_max=1, gpus_max_by_type={"H100": 3})
    world.submit(pool, "first", "second")
    one.rounds()
    [(_, _, runs)] = world.running()
    follower, _ = pool.follow(POLICY, world.clock.now)
    [waits] = follower.cluster.waiting

    told = explain(follower.cluster, waits, world.clock.now)

    assert {("first", "second")} == {tuple(sorted((runs, waits.partition("/")[2])))}
    assert "job_limit" == told.blockers[0].code
    assert f"quota {world.org}/q" == dict(told.blockers[0].figures)["path"]


def test_a_lowered_quota_kills_nothing_and_starts_nothing(world: World) -> None:
    one = Process(world, world.plain)
    pool, _ = one.pools.values()
    world.quota(gpus_max=3)
    world.submit(pool, *names("e", 6))
    one.rounds()
    world.quota(gpus_max=1)
    one.rounds()
    assert 3 == len(world.running())

    world.end(one)
    one.rounds()
    assert 1 == len(world.running())
    world.set(world.org, "quota", "q", None)
    one.rounds()
    assert 3 == len(world.running()), "all that is left"


def test_a_new_pool_starts_nothing_before_it_has_its_slice(world: World) -> None:
    """Jobs name the quotas that count them, so the pool knows that it lacks a slice."""
    one = Process(world, world.plain)
    pool, _ = one.pools.values()
    world.quota(gpus_max=3)
    world.submit(pool, "named")
    one.schedule(pool.id)
    assert [] == world.running()

    one.rounds()
    assert 1 == len(world.running())


def test_a_decision_by_an_older_slice_is_denied(world: World) -> None:
    """The transaction that writes it knows the newer slice."""
    one = Process(world, world.plain)
    pool, _ = one.pools.values()
    world.quota(gpus_max=3)
    one.rounds()
    world.submit(pool, "job")
    epoch, now = pool.lead("one")
    assert epoch is not None
    follower, _ = pool.follow(POLICY, now)
    decisions = carry_out(follower.cluster, now).decisions
    assert 1 == len(decisions)
    world.quota(gpus_max=0)
    one.deal()

    assert (Denied.OVER_QUOTA,) == pool.write(epoch, decisions).denied
    assert [] == world.running()


def test_another_process_knows_slices_and_policies_as_soon_as_it_looks(
    world: World, database_url: str
) -> None:
    one = Process(world, world.plain)
    name, _ = world.pools
    world.quota(gpus_max=3)
    one.rounds()
    with connected(database_url) as connection:
        other = Process(world, connection)
        other.schedule(name)
        assert {"gpus": 3} == granted(other.pools[name], world.org)
        world.quota(gpus_max=2)
        world.set(DEPLOYMENT, POLICY_SETTING, name, {"tiers": {"paid": {"weight": 7}}})
        one.deal()
        other.schedule(name)
        follower, _ = other.pools[name].follow(POLICY, world.clock.now)

    assert {"gpus": 2} == granted(other.pools[name], world.org)
    assert [8, 7, 1] == [tier.weight for tier in follower.cluster.policy.tiers]
    [(quota, share)] = follower.cluster.policy.limits
    assert (f"quota {world.org}/q", ((("*", 2),))) == (quota, share.ceiling)


def granted(pool: PoolHandle, org: str) -> dict[str, int]:
    return pool.look(lambda kept: dict(kept.quota_usage.slices[org]["q"].granted))


def test_the_next_leader_knows_past_usage(world: World, database_url: str) -> None:
    """Both a standby and a new process (S3)."""
    one = Process(world, world.plain)
    name, _ = world.pools
    with connected(database_url) as connection:
        other = Process(world, connection)
        other.schedule(name)
        world.submit(one.pools[name], "job", quotas=())
        one.schedule(name)
        world.clock.now += 10 * SECOND
        world.end(one)
        one.schedule(name)
        world.clock.now += 4 * SECOND
        with connected(database_url) as fresh:
            found = {_used(process, name) for process in (one, other, Process(world, fresh))}

    [used] = found
    assert used > 0


def _used(process: Process, name: str) -> int:
    """What was used of a pool, by a cluster that is made anew."""
    pool = process.pools[name]
    pool.expire()
    pool.unfollow()
    follower, _ = pool.follow(POLICY, process.world.clock.now)
    tree = follower.cluster.tree
    return tree.usage.decayed_usage(tree.groups.root, process.world.clock.now)


def test_a_policy_that_is_not_understood_leaves_the_one_before(world: World) -> None:
    """As by a version that knows fewer words."""
    one = Process(world, world.plain)
    name, _ = world.pools
    world.set(DEPLOYMENT, POLICY_SETTING, name, {"policy": {"half_life": 9}})
    one.deal()
    world.set(DEPLOYMENT, POLICY_SETTING, name, {"policy": {"made_up": 9}})
    one.deal()

    in_force = one.pools[name].look(lambda pool: pool.policy)
    assert in_force is not None
    assert 9 == in_force.policy.half_life


def scene(world: World, process: Process) -> None:
    """A quota is set, used in one pool, wanted in the other, lowered and raised."""
    east, west = process.pools.values()
    world.submit(east, *names("e", 3))
    world.quota(gpus_max=3)
    process.rounds()
    world.submit(west, *names("w", 3))
    process.rounds()
    world.quota(gpus_max=2)
    process.rounds()
    world.quota(gpus_max=4)
    process.rounds()


def test_an_org_whose_quotas_cannot_be_divided_delays_no_other(
    world: World, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Another process has it locked: the orgs after it are served (B4)."""
    blocked = new_org(world.plain)
    world.quota(gpus_max=3)
    world.set(blocked, "quota", "q", {"account_id": "root", "gpus_max": 3})
    with (
        connected(database_url) as other,
        limited(database_url, Timeouts(lock_ms=100)) as own,
    ):
        one = Process(world, own)
        with other.transaction():
            lock_orgs(other, [blocked])
            one.dealer.divide_all([blocked, world.org])
        told = [
            pool.look(lambda known: len(known.quota_usage.slices)) for pool in one.pools.values()
        ]
    assert [1, 1] == told
    assert f"dividing the quotas of org {blocked} failed" in caplog.text


def test_a_pool_that_cannot_be_reached_holds_up_no_other(
    world: World, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It has to be told before others can be given more; what it is about to have, they can hear
    of all the same (B4)."""
    world.quota(gpus_max=3)
    limits, hasty = Limits(lanes=1, unreachable_s=0.2), Timeouts(lock_ms=100)
    with ExitStack() as stack:
        pools = {
            name: stack.enter_context(
                open_pool(
                    lambda: limited(database_url, hasty),
                    PoolReplica(name, NullListener(), world.clock),
                    limits,
                )
            )
            for name in world.pools
        }
        dealer = QuotaDistributor(world.plain, pools, world.clock)
        first, second = pools.values()
        for pool in pools.values():
            pool.expire()
        with connected(database_url) as other, other.transaction():
            lock_pool(other, first.id)
            dealer.divide(world.org)
        known = [len(pool.look(lambda seen: seen.quota_usage.slices)) for pool in (first, second)]
    assert [0, 1] == known
    assert f"pool {first.id}: quotas or policy not delivered" in caplog.text


def places(database_url: str) -> Iterator[int]:
    """Where the scene may end: at every statement about slices and the next, the first time."""
    with connected(database_url) as plain, connected(database_url) as real:
        world = World(plain)
        mortal = Mortal(real)
        scene(world, Process(world, mortal))
        for place in mortal.places_to_die():
            if any("slices" in sql for sql in mortal.places[place - 1]):
                yield place


def test_killed_anywhere_the_next_one_goes_on_and_no_quota_is_passed(database_url: str) -> None:
    """Never more than the quota, and all of it in the end (B4)."""
    died = 0
    for place in list(places(database_url)):
        with connected(database_url) as plain, connected(database_url) as real:
            world = World(plain)
            world.most = 4
            try:
                scene(world, Process(world, Mortal(real, place)))
            except Killed:
                died += 1
            world.clock.now += 4 * SECOND  # whoever led is followed by another
            after = Process(world, plain)
            for pool in after.pools.values():
                world.report(pool)
            world.quota(gpus_max=4)
            east, west = after.pools.values()
            known = {job for *_, job in plain.execute("select job_id from queue where org_id = %s",
                                                      [world.org])}  # fmt: skip
            world.submit(east, *sorted({*names("e", 3)} - known))
            world.submit(west, *sorted({*names("w", 3)} - known))
            for _ in range(2):
                after.rounds()
                world.clock.now += 10 * SECOND
                for pool in after.pools.values():
                    world.report(pool)
            assert 4 == len(world.running()), place
            assert [] == [one for check in SLICE_CHECKS for one in problems(plain, check)]

    assert died > 10
