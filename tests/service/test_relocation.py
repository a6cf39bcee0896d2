"""A job that has not begun goes to another pool: never lost, never in two, its hold stays (S10)."""

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import pytest

from bursar.core.ids import JobId, NodeId
from bursar.core.instant import SECOND
from bursar.core.messages import Enqueue, Leave, Left
from bursar.core.scheduling.model.nodes import Node
from bursar.service.jobs.queries import JobQueries
from bursar.service.jobs.relocation import ask_to_leave
from bursar.service.jobs.submission import Option
from bursar.service.ledger.audit import Contradiction, verify
from bursar.service.workers.relay import Relay, Round
from bursar.store.jobs.outbox import from_orgs, from_pool
from bursar.store.pools.loader import create_pool
from bursar.store.sql.connection import Connection
from bursar.store.verify.ledger import problems
from bursar.store.verify.org_pool_agreement import SEAM_CHECKS
from tests.support.builders import T0
from tests.support.databases import connected, migrated
from tests.support.effort import sample
from tests.support.pool_driver import ISSUED, Clock, Driver, Killed, Mortal, Plan, Try, World

_NUMBERS = count(1)
HERE = (Node(id=NodeId("h1"), gpu_type="a100", gpus=2),)
THERE = (Node(id=NodeId("t1"), gpu_type="a100", gpus=2),)
RUN_MS = 10_000  # of a job that runs, at a micro-credit a millisecond


@pytest.fixture(scope="module")
def url(database_url: str) -> Iterator[str]:
    """A database of this file's own: it is verified as a whole."""
    with migrated(database_url) as address:
        yield address


@pytest.fixture
def connection(url: str) -> Iterator[Connection]:
    with connected(url) as found:
        yield found


def disagreements(connection: Connection) -> list[Contradiction]:
    """What orgs and pools contradict each other in."""
    checks = [check for check in SEAM_CHECKS if not check.timed]
    return [one for check in checks for one in problems(connection, check)]


def contradictions(connection: Connection) -> tuple[Contradiction, ...]:
    connection.execute("analyze")
    return verify(connection, clock=Clock())


class Pair:
    """An org, its jobs, and two pools that they may be in."""

    def __init__(self, name: str, plans: dict[str, Plan], connection: Any, clock: Clock) -> None:
        self.here = World(name, f"{name}-here", plans, HERE, clock=clock)
        self.there = World(name, f"{name}-there", plans, THERE, clock=clock)
        self.connection, self.clock = connection, clock
        self.drivers = {world.pool: Driver(world, connection) for world in (self.here, self.there)}
        self.jobs = self.drivers[self.here.pool].jobs
        pools = {pool: driver.pool for pool, driver in self.drivers.items()}
        self.relay = Relay(connection, self.jobs, pools, clock)

    @property
    def org(self) -> str:
        return self.here.org

    def found(self) -> "Pair":
        """Begin all of it."""
        self.here.found(self.connection)
        create_pool(self.connection, self.there.pool)
        for node in THERE:
            self.drivers[self.there.pool].pool.register(node)
        return self

    def submit(self, job: str) -> None:
        """Ask for a job that names no pool: the router has sent it here."""
        option = Option(self.here.pool, ("a100",), "here it starts first")
        ask = self.here.submission(job)._replace(routes=(option,), request="{}")
        answer = self.jobs.submit(self.org, f"submit {job}", ask)
        assert isinstance(answer.outcome, tuple), answer

    def leave(self, job: str, to: str = "there", here: str = "here") -> bool:
        """Let a job wait in the other pool."""
        way = f"{self.org}-{here}", f"{self.org}-{to}", "there it starts at once"
        return ask_to_leave(self.connection, self.clock, self.org, JobId(job), way)

    def work(self, *names: str) -> bool:
        """A turn of pools; whether somebody there is busy."""
        busy = False
        for driver in (self.drivers[f"{self.org}-{name}"] for name in names):
            busy = driver.work() or busy
            busy = driver.schedule() or busy
            driver.pool.expire()
        return busy

    def finish(self, *names: str) -> None:
        """Let everything come to its end in some pools."""
        for _ in range(60):
            self.relay.round()
            busy = self.work(*names)
            self.relay.round()
            if self.is_over():
                return
            self.clock.now += 5 * SECOND if busy else 40 * SECOND
        raise AssertionError("it does not come to an end")

    def is_over(self) -> bool:
        sql = """
            select (select count(*) from jobs where org_id = %s and ended_at is null),
                   (select count(*) from org_outbox where org_id = %s and acked_at is null),
                   (select count(*) from pool_outbox where org_id = %s and acked_at is null)
        """
        return bool((0, 0, 0) == self.connection.execute(sql, [self.org] * 3).fetchone())

    def stands(self, job: str = "job") -> tuple[str, str, str]:
        """Where a job is as its org says, how it stands there, and why."""
        seen = JobQueries(self.connection).job(self.org, job).value
        assert seen is not None
        return seen.pool.rpartition("-")[2], seen.state, seen.why

    def queued_in(self, job: str = "job") -> list[str]:
        """The pools in which a job is not over."""
        sql = """
            select pool_id from queue
             where org_id = %s and job_id = %s
               and state not in ('succeeded', 'failed', 'cancelled', 'expired', 'moved')
        """
        found = self.connection.execute(sql, [self.org, job]).fetchall()
        return [pool.rpartition("-")[2] for (pool,) in found]

    def held(self, job: str = "job") -> tuple[int, int, bool]:
        """What a job has used and holds, and whether its hold is closed."""
        sql = "select used, open, closed_at is not null from holds where org_id = %s and hold_id=%s"
        [found] = self.connection.execute(sql, [self.org, job]).fetchall()
        return found[0], found[1], found[2]

    def spent(self) -> tuple[int, int]:
        sql = "select held, spent from grants where org_id = %s"
        [found] = self.connection.execute(sql, [self.org]).fetchall()
        return found[0], found[1]


def pair(connection: Connection, plans: dict[str, Plan] | None = None) -> Pair:
    """An org and two pools of a test's own."""
    plans = plans or {"job": Plan(tries=(Try(RUN_MS),))}
    return Pair(f"org{next(_NUMBERS)}", plans, connection, Clock()).found()


def submitted(connection: Connection) -> Pair:
    """A job that waits here, and its pool knows."""
    found = pair(connection)
    found.submit("job")
    found.relay.round()
    return found


def test_a_job_moves_with_its_hold(connection: Connection) -> None:
    """In one pool before, in none on the way, in the other afterwards; each step is told."""
    one = submitted(connection)
    before = one.held()
    assert one.leave("job")
    assert ("here", "queued", "submitted") == one.stands()
    one.relay.from_orgs(Round())
    assert [] == one.queued_in()
    assert [] == disagreements(connection), "while it is on its way"
    one.relay.from_pool(one.here.pool, Round())
    assert (("there", "queued", "moved"), []) == (one.stands(), one.queued_in())
    assert [] == disagreements(connection), "before the other pool has it"
    one.relay.round()
    assert (["there"], before) == (one.queued_in(), one.held())
    one.finish("there", "here")

    assert ("there", "succeeded", "finished") == one.stands()
    assert (RUN_MS, 0, True) == one.held()
    steps = JobQueries(connection).steps(one.org, "job", 0, 10).value.items
    assert ["submitted", "moved", "started", "finished"] == [step.why for step in steps]
    routes = JobQueries(connection).routes(one.org, "job").value
    assert [("here", "here it starts first"), ("there", "there it starts at once")] == [
        (route.pool.rpartition("-")[2], route.why) for route in routes
    ]
    assert () == contradictions(connection)


def test_a_job_goes_to_a_pool_once(connection: Connection) -> None:
    """Not back and forth; nor twice at a time, nor without a route of its own."""
    one = submitted(connection)
    assert not one.leave("job", "here")
    assert one.leave("job")
    assert not one.leave("job", "elsewhere"), "it is on its way"
    one.relay.round()
    one.relay.round()
    assert not one.leave("job"), "it is not here any more"
    assert not one.leave("job", "here", "there"), "it was there before"
    assert not one.leave("none")
    one.finish("there", "here")


def test_a_job_that_names_its_pool_stays(connection: Connection) -> None:
    one = pair(connection)
    one.jobs.submit(one.org, "k", one.here.submission("job"))

    assert not one.leave("job")
    one.finish("here", "there")
    assert "here" == one.stands()[0]


def test_a_job_with_an_attempt_stays(connection: Connection) -> None:
    """Its org had asked before it knew."""
    one = submitted(connection)
    one.work("here")  # its nodes are heard of
    one.work("here")  # it starts
    assert one.leave("job")
    one.relay.round()
    assert ["here"] == one.queued_in()
    assert [] == disagreements(connection)
    one.finish("here", "there")

    assert ("here", "succeeded", "finished") == one.stands()
    assert not one.leave("job")
    [_, route] = JobQueries(connection).routes(one.org, "job").value
    assert route.arrived_at is None
    assert () == contradictions(connection)


def test_a_job_that_is_cancelled_on_its_way_goes_nowhere(connection: Connection) -> None:
    """Whichever its pool hears of first; it is over once, and holds nothing."""
    for crossed in (False, True):
        one = submitted(connection)
        one.leave("job")
        if crossed:
            one.relay.from_orgs(Round())  # it is given back
        one.jobs.cancel(one.org, JobId("job"))
        assert not one.leave("job")
        one.relay.from_pool(one.here.pool, Round())
        assert [] == disagreements(connection)
        one.finish("there", "here")

        assert ("here", "cancelled", "cancelled") == one.stands()
        assert (0, 0, True) == one.held()
        assert [] == list(from_pool(connection, one.there.pool, None, 10))
    assert () == contradictions(connection)


def test_a_moved_job_that_is_cancelled_ends_in_its_new_pool(connection: Connection) -> None:
    one = submitted(connection)
    one.leave("job")
    one.relay.round()
    one.jobs.cancel(one.org, JobId("job"))
    one.finish("there", "here")

    assert ("there", "cancelled", "cancelled") == one.stands()
    assert () == contradictions(connection)


def test_a_hold_that_grows_during_a_move_is_reported_once(connection: Connection) -> None:
    """To the old pool, to the new one, or with the `Enqueue`: never lost, never twice (M1)."""
    one = submitted(connection)
    one.jobs.extend(one.org, "first", JobId("job"), 1_000)
    one.leave("job")
    one.jobs.extend(one.org, "second", JobId("job"), 2_000)
    one.relay.from_orgs(Round())
    one.jobs.extend(one.org, "third", JobId("job"), 4_000)
    one.relay.from_pool(one.here.pool, Round())
    one.jobs.extend(one.org, "fourth", JobId("job"), 8_000)
    one.relay.round()

    _, open, _ = one.held()
    assert one.here.plans["job"].run_ms + 15_000 == open
    handle = one.drivers[one.there.pool].pool
    assert [open] == handle.look(lambda pool: [job.hold_micros for job in pool.jobs.values()])
    assert [] == disagreements(connection)
    one.finish("there", "here")
    assert () == contradictions(connection)


def test_a_hold_that_ends_on_the_way_ends_the_job(connection: Connection) -> None:
    one = pair(connection, {"job": Plan(tries=(Try(RUN_MS),), hold_for=60 * SECOND)})
    one.submit("job")
    one.leave("job")
    one.relay.from_orgs(Round())
    one.clock.now += 100 * SECOND
    one.finish("there")

    assert ("there", "expired", "hold_ended") == one.stands()
    assert (0, 0, True) == one.held()
    assert () == contradictions(connection)


def test_messages_that_come_again_change_nothing(connection: Connection) -> None:
    """Of both pools, also when the job is long elsewhere (D4)."""
    one = submitted(connection)
    one.leave("job")
    [leave] = from_orgs(connection, None, 10, one.org)
    assert isinstance(leave.message, Leave)
    here, there = (one.drivers[world.pool].pool for world in (one.here, one.there))
    assert [leave] == here.receive([leave]) == here.receive([leave])
    [left] = from_pool(connection, one.here.pool, None, 10)
    assert isinstance(left.message, Left)
    assert [] == one.jobs.receive([left._replace(n=2)]), "it has overtaken another"
    assert [] == one.jobs.receive([left._replace(job=JobId("none"))])
    assert [left] == one.jobs.receive([left]) == one.jobs.receive([left])
    enqueue = next(iter(from_orgs(connection, leave, 10, one.org)))
    assert isinstance(enqueue.message, Enqueue)
    assert (one.there.pool, 3) == (enqueue.pool, enqueue.n)
    assert [enqueue] == there.receive([enqueue]) == there.receive([enqueue])
    one.finish("there", "here")
    one.drivers[one.here.pool].pool.acknowledge([left])

    assert [left] == one.jobs.receive([left])
    assert ("there", "succeeded", "finished") == one.stands()
    assert () == contradictions(connection)


# --------------------------------------------------------------------------- killed anywhere

PLANS = {
    "moves": Plan(tries=(Try(RUN_MS),)),
    "cancelled": Plan(tries=(Try(RUN_MS),)),
}


def submit_all(one: Pair) -> None:
    for job in PLANS:
        one.submit(job)
    one.relay.round()


def move_all(one: Pair) -> None:
    """Two jobs move, and one of them is cancelled on its way. It may be told again from the start,
    whoever was killed in it."""
    for job in PLANS:
        one.leave(job)
    one.jobs.extend(one.org, "more", JobId("moves"), 1_000)
    one.relay.from_orgs(Round())
    one.jobs.cancel(one.org, JobId("cancelled"))
    one.relay.round()
    one.relay.from_orgs(Round())


def killed_at(url: str, step: int) -> str:
    """An org whose jobs were on their way when a process was killed at a step."""
    clock, name = Clock(), f"org{next(_NUMBERS)}"
    with connected(url) as connection, connected(url) as doomed:
        submit_all(Pair(name, PLANS, connection, clock).found())
        with pytest.raises(Killed):
            move_all(Pair(name, PLANS, Mortal(doomed, step), clock))
    return name


def gone_on(url: str, name: str) -> tuple[tuple[int, int], list[tuple[str, str, str]]]:
    """What becomes of an org's credits and jobs when another process goes on."""
    with connected(url) as connection:
        again = Pair(name, PLANS, connection, Clock(T0 + SECOND))
        move_all(again)
        again.finish("there")
        return again.spent(), [again.stands(job) for job in PLANS]


@pytest.mark.slow
@pytest.mark.sampled
def test_a_process_killed_between_any_two_statements_of_a_move(
    url: str, connection: Connection
) -> None:
    """Started again, each job has the end that it would have had: once, paid once (S10, IS14)."""
    clock, name = Clock(), f"org{next(_NUMBERS)}"
    with connected(url) as real:
        whole = Mortal(real)
        submit_all(Pair(name, PLANS, connection, clock).found())
        move_all(Pair(name, PLANS, whole, clock))
    one = Pair(name, PLANS, connection, clock)
    assert (["there"], []) == (one.queued_in("moves"), one.queued_in("cancelled"))
    one.finish("there")
    places = whole.places_to_die()
    assert len(places) > 60
    steps = sample(places, 20)

    with ThreadPoolExecutor(2) as both:
        names = list(both.map(lambda step: killed_at(url, step), steps))
        connection.execute("analyze")
        assert [] == disagreements(connection), "with something half done"
        found = list(both.map(lambda name: gone_on(url, name), names))

    for step, (credits, stands) in zip(steps, found, strict=True):
        # Where it was cancelled hangs on what was delivered before: here, or there.
        assert (0, RUN_MS) == credits, step
        assert ("there", "succeeded", "finished") == stands[0], step
        assert ("cancelled", "cancelled") == stands[1][1:], step
    assert () == contradictions(connection)


# --------------------------------------------------------------------------- whatever happens


class Chance:
    """Two pools that both work, and callers, posts and routers that do what chance says."""

    def __init__(self, seed: int, connection: Connection) -> None:
        self.chance = random.Random(seed)
        names = [f"job-{number}" for number in range(8)]
        plans = {name: Plan(tries=(Try(self.chance.randrange(1_000, 90_000)),)) for name in names}
        self.one = Pair(f"chance{seed}", plans, connection, Clock()).found()
        self.waiting = list(plans)
        self.seen: set[str] = set()  # what has come to pass

    def step(self) -> None:
        one, chance = self.one, self.chance
        job = chance.choice(list(one.here.plans))
        match chance.randrange(10):
            case 0 if self.waiting:
                one.submit(self.waiting.pop())
            case 1 if job not in self.waiting:
                if one.leave(job):
                    self.seen.add("asked")
            case 2 if job not in self.waiting and chance.random() < 0.2:
                one.jobs.cancel(one.org, JobId(job))
            case 3 if job not in self.waiting and chance.random() < 0.3:
                key = f"extend {len(self.seen)} {chance.random()}"
                one.jobs.extend(one.org, key, JobId(job), chance.randrange(1, 1_000))
            case 4 | 5:
                self._post_of_the_org()
            case 6 | 7:
                self._post_of_a_pool(chance.choice(list(one.drivers)))
            case _:
                one.work(chance.choice(["here", "there"]))
                one.clock.now += chance.randrange(5) * SECOND

    def _post_of_the_org(self) -> None:
        """Some messages arrive, in any order; that they did may be forgotten."""
        envelopes = from_orgs(self.one.connection, None, 100, self.one.org)
        for envelope in self.chance.sample(envelopes, self.chance.randrange(len(envelopes) + 1)):
            handled = self.one.relay.pools[envelope.pool].receive([envelope])
            if self.chance.random() < 0.7:
                self.one.jobs.acknowledge(handled)

    def _post_of_a_pool(self, pool: str) -> None:
        envelopes = from_pool(self.one.connection, pool, None, 100)
        for envelope in self.chance.sample(envelopes, self.chance.randrange(len(envelopes) + 1)):
            handled = self.one.jobs.receive([envelope])
            if handled and isinstance(envelope.message, Left):
                self.seen.add("left")
            if self.chance.random() < 0.7:
                self.one.relay.pools[pool].acknowledge(handled)


TWICE = """
    select job_id from queue
     where state not in ('succeeded', 'failed', 'cancelled', 'expired', 'moved')
     group by job_id having count(*) > 1
"""


@pytest.mark.parametrize("seed", [1, 2])
def test_whatever_happens_a_job_is_in_one_pool_and_ends_once(url: str, seed: int) -> None:
    """Moves, cancels, top-ups, starts and ends cross; posts are lost, repeated, out of order."""
    with migrated(url) as address, connected(address) as connection:
        world = Chance(seed, connection)
        for number in range(400):
            world.step()
            assert [] == connection.execute(TWICE).fetchall()
            if number % 40 == 0:
                assert [] == disagreements(connection)
        for job in world.waiting:
            world.one.submit(job)
        world.one.finish("here", "there")

        assert {"asked", "left"} == world.seen
        assert () == contradictions(connection)
        ends = connection.execute(
            "select job_id, count(*) from job_steps where state in"
            " ('succeeded', 'failed', 'cancelled', 'expired') group by job_id"
        ).fetchall()
        assert dict.fromkeys(world.one.here.plans, 1) == dict(ends)
        held, spent = world.one.spent()
        [(ran,)] = connection.execute(
            "select coalesce(sum(coalesce(kept_ms, reported_ms)), 0)::bigint from leases"
        ).fetchall()
        assert (0, ran) == (held, spent)
        assert 0 < spent < ISSUED
        again = connection.execute("select count(*) from leases group by org_id, job_id").fetchall()
        assert all(attempts == 1 for (attempts,) in again)
