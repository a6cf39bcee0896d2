"""A stand-in for scheduler and workers, for tests of what lies between orgs and pools.

It works from what is stored and from a plan of what each attempt of a job will do, and remembers
nothing: killed at any point and started again, it goes on where things stand.

    python seam_driver.py URL ORG POOL NODE JOBS BEGAN_AT

plays with real time in a process of its own, to be killed from outside.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import psycopg

from bursar.core.dispatch.audit_stream import AuditRecord
from bursar.core.dispatch.reports import LeaseOrders, NodeReport, Reading
from bursar.core.dispatch.state import Exit, Lease, Pool, cluster_name
from bursar.core.ids import AccountId, GrantId, HoldId, JobId, NodeId, UserId
from bursar.core.instant import DAY, NEVER, SECOND, Instant
from bursar.core.ledger.books import Books
from bursar.core.ledger.commands import AddAccount, AddUser, Command, Issue, Reserve, SetPolicy
from bursar.core.ledger.values import Context, CreditKind, OrgPolicy
from bursar.core.messages import JobSpec
from bursar.core.pricing import PriceBook
from bursar.core.scheduling.decisions import Preempt
from bursar.core.scheduling.model.jobs import Shape
from bursar.core.scheduling.model.nodes import Node
from bursar.core.scheduling.model.policy import PAID, PoolPolicy
from bursar.core.scheduling.plan import carry_out
from bursar.service.jobs import Answers, Jobs, RunAsks, Submission
from bursar.service.ledger.batch import Batch, CommandRequest
from bursar.service.pools.pool import NullListener, PoolHandle, PoolReplica, pool_on_connection
from bursar.service.workers.relay import Relay
from bursar.store.ledger.writer import create_org
from bursar.store.pools.loader import create_pool
from bursar.store.sql.connection import Connection, money_time
from tests.support.builders import PER_MS, T0, prices

# One GPU costs a micro-credit for each millisecond, or three.
PRICES: Final = PriceBook().with_version(prices(h100=3 * PER_MS, a100=PER_MS))
ISSUED: Final = 10**12
LEADER: Final = "driver"  # whoever drives, so that none waits for another's term to end
POLICY: Final = PoolPolicy(tiers=(PAID,))
FOR_EVER: Final = OrgPolicy(
    raw_hold_max=NEVER, job_hold_max=NEVER, late_max=365 * DAY, debt_max=10**15
)


@dataclass
class Clock:
    """A database's clock that stands still until it is moved."""

    now: Instant = T0

    def __call__(self, _: Connection) -> Instant:
        return self.now


class Killed(BaseException):
    """The process is gone, as far as the database can tell."""


_BOUNDS: Final = ("begin", "commit", "committed")


class Mortal:
    """A connection whose process dies at its k-th step: before a statement, or around a commit."""

    def __init__(self, real: Connection, dies_at: int = 0) -> None:
        self._real = real
        self._dies_at = dies_at
        self._trail: tuple[str, ...] = ()  # what the transaction has come to so far
        self.places: list[tuple[str, ...]] = []  # where each step was

    def _step(self, what: str) -> None:
        self._trail = (*self._trail, what)
        self.places.append(self._trail if what in _BOUNDS else self._trail[-2:])
        if len(self.places) == self._dies_at:
            self._real.close()
            raise Killed

    def execute(self, sql: str, *given: Any) -> Any:
        """Run a statement, unless the last hour has come."""
        self._step(sql)
        return self._real.execute(sql, *given)

    def pipeline(self) -> Any:
        """Statements are sent one after the other, and answered later."""
        return self._real.pipeline()

    @property
    def info(self) -> Any:
        """How the connection stands."""
        return self._real.info

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A transaction; death comes before it, before its commit, or right after."""
        self._step("begin")
        self._trail = ()
        with self._real.transaction():
            yield
            self._step("commit")
        self._step("committed")

    def places_to_die(self) -> list[int]:
        """Between each two statements that ever follow each other, the first time they do; and
        around the end of each kind of transaction.
        """
        return [self.places.index(place) + 1 for place in dict.fromkeys(self.places)]


class Try(NamedTuple):
    """What an attempt will do: run so long, then end; as what it has saved, if not all is."""

    run_ms: int
    exit: Exit | None = Exit.DONE  # None: its node falls silent
    kept_ms: int = 0  # where its last checkpoint is
    preempted: bool = False  # it runs on until it is asked to make room for another org


@dataclass
class Plan:
    """What a job will do."""

    tries: Sequence[Try] = (Try(10_000),)
    gpu_types: tuple[str, ...] = ("a100",)
    milli_gpus: int = 1_000
    tasks: int = 1
    run_ms: int = 3_600_000
    hold_ms: int | None = None  # it has credits for so long, if not for all of it
    requeues: int = 0
    withdrawn: bool = False  # as soon as it is submitted
    hold_for: int = DAY


@dataclass
class World:
    """An org, a pool, and what its jobs will do."""

    org: str
    pool: str
    plans: Mapping[str, Plan]
    nodes: Sequence[Node] = (
        Node(id=NodeId("n1"), gpu_type="a100", gpus=2),
        Node(id=NodeId("n2"), gpu_type="h100", gpus=1),
    )
    began_at: Instant = T0
    clock: Callable[[Connection], Instant] = field(default_factory=Clock)

    def kept(self, connection: Any) -> PoolHandle:
        """The pool, kept on a connection."""
        return pool_on_connection(connection, PoolReplica(self.pool, NullListener(), self.clock))

    def found(self, connection: Connection) -> None:
        """Begin the org and the pool."""
        create_org(connection, self.org)
        create_pool(connection, self.pool)
        pool = self.kept(connection)
        for node in self.nodes:
            pool.register(node)
        first: list[Command] = [
            AddAccount(account=AccountId("org"), parent=None, name="o"),
            AddAccount(account=AccountId("team"), parent=AccountId("org"), name="t"),
            AddUser(user=UserId("ann")),
            SetPolicy(policy=FOR_EVER),
            Issue(
                grant=GrantId("g"), account=AccountId("org"), amount=ISSUED, kind=CreditKind.PAID
            ),
        ]
        asks = [
            CommandRequest(self.org, f"first-{place}", command)
            for place, command in enumerate(first)
        ]
        for answer in ledger(connection, self.clock)(asks):
            assert not isinstance(answer, Exception)
            assert isinstance(answer.outcome, tuple), answer

    def submission(self, job: str) -> Submission:
        """What is asked for a job: always the same."""
        plan = self.plans[job]
        reserve = Reserve(
            hold=HoldId(job),
            account=AccountId("team"),
            user=UserId("ann"),
            expires_at=self.began_at + plan.hold_for,
            run_ms=plan.hold_ms or plan.run_ms,
            context=Context(
                gpu_types=plan.gpu_types,
                milli_gpus=plan.milli_gpus * plan.tasks,
                job=JobId(job),
            ),
        )
        shape = Shape(types=plan.gpu_types, tasks=plan.tasks, gpus=plan.milli_gpus // 1_000)
        spec = JobSpec(shape=shape, requeues=plan.requeues)
        return Submission(self.pool, reserve, spec, run_ms=plan.run_ms)


def ledger(connection: Connection, clock: Callable[[Connection], Instant]) -> RunAsks:
    """A ledger that runs what it is asked in one batch, on this connection."""
    cache: dict[str, Books] = {}

    def ask(asks: Sequence[CommandRequest]) -> Answers:
        return Batch(connection, PRICES, cache, clock).run(asks)

    return ask


class Driver:
    """Submits jobs, carries messages, schedules, and runs what was scheduled."""

    def __init__(self, world: World, connection: Any, only_node: str | None = None) -> None:
        clock = world.clock
        self.world = world
        self.jobs = Jobs(connection, ledger(connection, clock), clock)
        self.pool = world.kept(connection)
        self.relay = Relay(connection, self.jobs, {world.pool: self.pool}, clock)
        self._connection = connection
        self._nodes = [one.id for one in world.nodes if only_node in (None, one.id)]
        self._noted = 0

    def submit(self) -> None:
        """Ask for all jobs, and withdraw those that shall be."""
        for job, plan in self.world.plans.items():
            answer = self.jobs.submit(self.world.org, f"submit {job}", self.world.submission(job))
            assert isinstance(answer.outcome, tuple), answer
            if plan.withdrawn:
                self.jobs.cancel(self.world.org, JobId(job))

    def turn(self) -> bool:
        """One turn of everybody; whether somebody still has something to do by itself."""
        self.relay.round()
        working = self.work()
        placed = self.schedule()
        if self.pool.expire():
            self.relay.round()
        return working or placed

    def schedule(self) -> bool:
        """Lead, decide, and write it; whether something was decided."""
        epoch, now = self.pool.lead(LEADER)
        assert epoch is not None
        follower, _ = self.pool.follow(POLICY, now)
        if not follower.recorder.is_open:
            follower.recorder.begin_window()
        decisions = carry_out(follower.cluster, now).decisions
        follower.recorder.record_decisions(decisions)
        if decisions:
            noted = AuditRecord(follower.recorder.take(), self._noted)
            written = self.pool.write(epoch, decisions, noted)
            self._noted = written.audit_events
            follower.add_leases(written.placed)
            if written.denied:
                self.pool.unfollow()
        return bool(decisions)

    def work(self) -> bool:
        """Let all nodes report; whether anything goes on there."""
        epoch, now = self.pool.lead(LEADER)
        assert epoch is not None
        working = False
        for node in self._nodes:
            found = self.pool.look(lambda pool, node=node: _leases(pool, node))  # type: ignore[misc]
            readings = [self._reading(lease, now) for lease in found]
            if None in readings:
                continue  # it is silent
            self.report(node, *filter(None, readings))
            working = working or bool(readings)
            room = [_room(lease, now) for lease in found if self._makes_room(lease, now)]
            self.pool.write(epoch, room)
        return working

    def report(self, node: NodeId, *readings: Reading) -> LeaseOrders:
        """A node's next report, and its answer."""
        n = self.pool.look(lambda pool: pool.machines[node].n) + 1
        told = NodeReport(node=node, boot=1, number=n, at=0, answered_at=None, readings=readings)
        orders = self.pool.report(told).result()
        assert orders is not None
        return orders

    def _makes_room(self, lease: Lease, now: Instant) -> bool:
        plan = self._try(lease)
        ran_ms = (now - lease.leased_at) // 1_000
        return plan.preempted and lease.stop_reason is None and ran_ms >= plan.run_ms

    def _try(self, lease: Lease) -> Try:
        return self.world.plans[lease.job].tries[lease.attempt - 1]

    def _reading(self, lease: Lease, now: Instant) -> Reading | None:
        """What a node has to say of an attempt; None if it says nothing of anything any more."""
        plan = self._try(lease)
        run_ms = min((now - lease.leased_at) // 1_000, plan.run_ms)
        saved_ms = min(run_ms, plan.kept_ms)
        exited = plan.exit if run_ms == plan.run_ms and not plan.preempted else None
        if lease.stop_reason is not None and plan.exit is not None:
            exited = Exit.STOPPED
        elif run_ms == plan.run_ms and plan.exit is None and lease.run_ms == run_ms:
            return None
        code = 0 if exited is Exit.DONE else None
        return Reading(
            fence=lease.fence, run_ms=run_ms, saved_ms=saved_ms, exit=exited, exit_code=code
        )

    def is_over(self) -> bool:
        """Whether all jobs are over, and everybody knows."""
        sql = """
            select (select count(*) from jobs where org_id = %s and ended_at is not null),
                   (select count(*) from org_outbox where org_id = %s and acked_at is null),
                   (select count(*) from pool_outbox where pool_id = %s and acked_at is null)
        """
        given = [self.world.org, self.world.org, self.world.pool]
        found = self._connection.execute(sql, given).fetchone()
        return bool(found == (len(self.world.plans), 0, 0))

    def play(self, clock: Clock, turns: int = 60) -> None:
        """Play until all is over, five seconds a turn, faster when nobody has anything to say."""
        self.submit()
        for _ in range(turns):
            busy = self.turn()
            if self.is_over():
                return
            clock.now += 5 * SECOND if busy else 40 * SECOND
        raise AssertionError("it does not come to an end")


def _room(lease: Lease, now: Instant) -> Preempt:
    """That an attempt shall make room for another org's job."""
    wanted_by = JobId("another/job")
    return Preempt(
        job=cluster_name(lease.key), wanted_by=wanted_by, right="share", lost=0, stops_at=now
    )


def _leases(pool: Pool, node: NodeId) -> list[Lease]:
    return [
        lease
        for lease in (pool.leases[fence] for fence in pool.on_node.get(node, ()))
        if (part := lease.part_on(node)) is not None and part.exit is None
    ]


def short_jobs(count: int) -> dict[str, Plan]:
    """Jobs of some milliseconds, on any GPU."""
    return {
        f"job-{number}": Plan(tries=(Try(20 + 7 * number),), gpu_types=("a100", "h100"))
        for number in range(count)
    }


def main(url: str, org: str, pool: str, node: str, count: int, began_at: Instant) -> None:
    """Play one node with real time until all is over."""
    with psycopg.connect(url, autocommit=True) as connection:
        world = World(org, pool, short_jobs(count), began_at=began_at, clock=money_time)
        driver = Driver(world, connection, node)
        driver.submit()
        while not driver.is_over():
            driver.turn()


if __name__ == "__main__":
    url, org, pool, node, count, began_at = sys.argv[1:]
    main(url, org, pool, node, int(count), int(began_at))
