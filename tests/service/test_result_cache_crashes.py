"""Jobs that share results, with real pools: whatever happens and whoever is killed where (S13).

At any time at most one of those that are alike leads; whoever is over holds nothing; a result that
was given is that of a job which ran and succeeded; no credit is lost or made. In the end all are
over, and `verify`, which compares both sides, is silent.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest

from bursar.core.dispatch.state import Exit
from bursar.core.ids import JobId, NodeId, PriceVersionId
from bursar.core.instant import MINUTE, SECOND, Instant
from bursar.core.ledger.commands import SetPrice
from bursar.core.scheduling.model.nodes import Node
from bursar.core.value import replace
from bursar.service.jobs import Submission
from bursar.service.jobs.cache_followers import Followers
from bursar.service.jobs.result_cache import Sharing
from bursar.service.ledger.audit import verify
from bursar.service.ledger.batch import CommandRequest
from bursar.store.sql.connection import Connection
from bursar.store.verify.ledger import problems
from bursar.store.verify.org_pool_agreement import SEAM_CHECKS
from tests.support.builders import PER_MS, prices
from tests.support.databases import connected, migrated
from tests.support.effort import sample
from tests.support.pool_driver import (
    ISSUED,
    Clock,
    Driver,
    Killed,
    Mortal,
    Plan,
    Try,
    World,
    ledger,
)

NODES = (Node(id=NodeId("n1"), gpu_type="a100", gpus=2),)
PRICE_PPM = 250_000
_NUMBERS = count(1)


@pytest.fixture(scope="module")
def url(database_url: str) -> Iterator[str]:
    """A database of this file's own: it is verified as a whole."""
    with migrated(database_url) as address:
        yield address


@pytest.fixture
def connection(url: str) -> Iterator[Connection]:
    with connected(url) as found:
        yield found


@dataclass
class Shared(World):
    """A world in which jobs share results: by which digest, and how old one may be."""

    alike: Mapping[str, tuple[str, int]] = field(default_factory=dict)

    def submission(self, job: str) -> Submission:
        return super().submission(job)._replace(sharing=Sharing(*self.alike[job]))


def world(
    connection: Connection, jobs: Mapping[str, tuple[Plan, str, int]], clock: Clock
) -> Shared:
    """An org and a pool of a test's own; a result costs a quarter of its run."""
    number = next(_NUMBERS)
    new = Shared(
        f"org-{number}",
        f"pool-{number}",
        {job: plan for job, (plan, _, _) in jobs.items()},
        NODES,
        clock=clock,
        alike={job: (alike, max_age) for job, (_, alike, max_age) in jobs.items()},
    )
    new.found(connection)
    version = replace(
        prices(h100=3 * PER_MS, a100=PER_MS),
        id=PriceVersionId("own"),
        cache_hit_ppm=PRICE_PPM,
    )
    ledger(connection, clock)(
        [CommandRequest(new.org, "price", SetPrice(version=version, from_now=True))]
    )
    return new


class Sharer(Driver):
    """Submits, cancels and plays jobs one by one, and looks after those that follow."""

    def __init__(self, world: Shared, connection: Any) -> None:
        super().__init__(world, connection)
        self.followers = Followers(connection, ledger(connection, world.clock), world.clock)

    def ask(self, job: str) -> None:
        answer = self.jobs.submit(self.world.org, f"submit {job}", self.world.submission(job))
        assert isinstance(answer.outcome, tuple), answer

    def cancel(self, job: str) -> None:
        self.jobs.cancel(self.world.org, JobId(job))

    def go_on(self) -> None:
        self.turn()
        self.followers.round()


def check(connection: Connection, org: str) -> None:
    """What is so at any time."""
    sql = """
        select result_digest, count(*) from jobs
         where org_id = %s and result_digest is not null and not follows and ended_at is null
         group by result_digest having count(*) > 1
    """
    assert [] == connection.execute(sql, [org]).fetchall(), "two lead"
    sql = """
        select j.job_id from jobs j join holds h on h.org_id = j.org_id and h.hold_id = j.job_id
         where j.org_id = %s and (j.ended_at is null) <> (h.closed_at is null)
    """
    assert [] == connection.execute(sql, [org]).fetchall(), "a hold without its job, or none"
    sql = """
        select j.job_id, j.cached_from from jobs j
          left join jobs s on s.org_id = j.org_id and s.job_id = j.cached_from
         where j.org_id = %s and j.cached_from is not null
           and (s.state = 'succeeded' and s.attempt > 0
                and s.result_digest = j.result_digest) is not true
    """
    assert [] == connection.execute(sql, [org]).fetchall(), "a result that nobody has left"
    sql = "select sum(available + held + spent) from grants where org_id = %s"
    assert [(ISSUED,)] == connection.execute(sql, [org]).fetchall()


def check_end(connection: Connection, org: str) -> None:
    """What is so when all are over: nothing is held, and each has paid what it should."""
    check(connection, org)
    sql = "select count(*) from jobs where org_id = %s and ended_at is null"
    assert [(0,)] == connection.execute(sql, [org]).fetchall()
    sql = """
        select j.job_id, h.used, g.used from jobs j
          join holds h on h.org_id = j.org_id and h.hold_id = j.job_id
          join holds g on g.org_id = j.org_id and g.hold_id = j.cached_from
         where j.org_id = %s
         order by j.job_id
    """
    for job, paid, cost in connection.execute(sql, [org]).fetchall():
        assert (job, cost * PRICE_PPM // 1_000_000) == (job, paid)
    checks = [one for one in SEAM_CHECKS if not one.timed]
    assert [] == [one for check in checks for one in problems(connection, check) if one.org == org]


def play_out(driver: Sharer, clock: Clock, turns: int = 80) -> None:
    """Let all come to their ends."""
    for _ in range(turns):
        driver.go_on()
        if driver.is_over():
            return
        clock.now += 5 * SECOND
    raise AssertionError("it does not come to an end")


# Whatever is asked

WAYS = {
    "done": Try(6_000),
    "failed": Try(4_000, Exit.FAILED),
    "lost": Try(3_000, None),
}


def drawn(chance: random.Random, many: int) -> dict[str, tuple[Plan, str, int]]:
    """Jobs of three kinds that are alike, and what each would do if it ran."""
    return {
        f"j{number:02}": (
            Plan(
                tries=(chance.choice([*WAYS.values(), WAYS["done"]]),),
                hold_for=chance.choice([100 * SECOND, 60 * MINUTE]) if number < 5 else 60 * MINUTE,
            ),
            chance.choice("xyz"),
            chance.choice([0, 30 * SECOND, 60 * MINUTE]),
        )
        for number in range(many)
    }


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_whatever_is_asked_one_leads_and_nothing_is_stranded(
    connection: Connection, seed: int
) -> None:
    """Submissions, cancellations, ends of all kinds, in any order (S13, M1–M4)."""
    chance, clock = random.Random(seed), Clock()
    jobs = drawn(chance, 16)
    here = world(connection, jobs, clock)
    driver = Sharer(here, connection)
    waiting, asked = list(jobs), list[str]()
    while waiting:
        for job in [waiting.pop(0) for _ in range(min(chance.randint(1, 3), len(waiting)))]:
            driver.ask(job)
            asked.append(job)
        if chance.random() < 0.4:
            driver.cancel(chance.choice(asked))
        check(connection, here.org)
        for _ in range(chance.randint(0, 3)):
            driver.turn() if chance.random() < 0.5 else driver.go_on()
            clock.now += chance.randint(1, 8) * SECOND
            check(connection, here.org)
    play_out(driver, clock)

    check_end(connection, here.org)
    served = "select count(*) from jobs where org_id = %s and cached_from is not null"
    [(many,)] = connection.execute(served, [here.org]).fetchall()
    assert many >= 3, "too little came of it to tell"


# Whoever is killed where

STORY: dict[str, tuple[Plan, str, int]] = {
    "a": (Plan(tries=(Try(5_000, Exit.FAILED),)), "same", 60 * MINUTE),
    "b": (Plan(tries=(Try(5_000),)), "same", 60 * MINUTE),
    "c": (Plan(), "same", 60 * MINUTE),
    "gone": (Plan(withdrawn=True), "same", 60 * MINUTE),
}
STATES = {"a": "failed", "b": "succeeded", "c": "succeeded", "d": "succeeded", "gone": "cancelled"}
LATER = {"d": (Plan(), "same", 60 * MINUTE)}  # comes when a result is there


def tell(driver: Sharer, clock: Clock, later: Callable[[], bool]) -> None:
    """A leader that fails, one that takes over, one served, one let go, and one that comes late."""
    for job, plan in driver.world.plans.items():
        if job not in LATER:
            driver.ask(job)
            if plan.withdrawn:
                driver.cancel(job)
    for _ in range(80):
        driver.go_on()
        if later():
            driver.ask("d")
        if driver.is_over():
            return
        clock.now += 5 * SECOND
    raise AssertionError("it does not come to an end")


def told(connection: Connection, clock: Clock, dies_at: int = 0, url: str = "") -> Sequence[int]:
    """Tell the story, by one that is killed at a step and one that goes on; the places to die."""
    here = world(connection, STORY | LATER, clock)

    def later() -> bool:
        sql = "select state = 'succeeded' from jobs where org_id = %s and job_id = 'b'"
        return connection.execute(sql, [here.org]).fetchall() == [(True,)]

    places: Sequence[int] = ()
    with connected(url) as real:
        doomed = Mortal(real, dies_at)
        try:
            tell(Sharer(here, doomed), clock, later)
            places = doomed.places_to_die()
        except Killed:
            check(connection, here.org)
            clock.now += SECOND
            tell(Sharer(here, connection), clock, later)
    check_end(connection, here.org)
    sql = "select job_id, state from jobs where org_id = %s"
    assert STATES == dict(connection.execute(sql, [here.org]).fetchall())
    return places


@pytest.mark.slow
@pytest.mark.sampled
def test_a_process_killed_between_two_statements_strands_no_job(
    url: str, connection: Connection
) -> None:
    """The next process finds the same work to do (D4, S13)."""
    places = told(connection, Clock(), url=url)
    assert len(places) > 100

    for place in sample(places, 16):
        told(connection, Clock(), place, url)


def test_verify_has_nothing_to_say_of_all_that(connection: Connection) -> None:
    """Whole: books, rebuilt books, both sides (O1); the last test of this file."""

    def began(_: Connection) -> Instant:
        return Clock().now

    assert () == verify(connection, clock=began)
