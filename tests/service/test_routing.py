"""What a process knows of its pools, whom it lets in, and which jobs it moves (S8, S10)."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from bursar.core.dispatch.pool import set_node_state
from bursar.core.dispatch.state import Pool
from bursar.core.ids import JobId
from bursar.core.instant import HOUR, MINUTE, SECOND, Instant
from bursar.core.scheduling.advice.admission import Admitted, Rejected, RejectionCode, full_bucket
from bursar.core.scheduling.advice.routing import (
    MOVE_PATIENCE,
    MOVE_REST,
    Prospect,
    measure_prospect,
)
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.jobs import Job
from bursar.core.scheduling.model.nodes import NodeState
from bursar.core.scheduling.model.policy import FREE, PAID, PoolPolicy, Tier
from bursar.core.value import replace
from bursar.service.jobs import JobUnknown, routing
from bursar.service.jobs.routing import Moves, Router
from bursar.store.sql.connection import Connection
from tests.service.test_relocation import HERE, RUN_MS, THERE, Pair, disagreements, pair
from tests.support.databases import connected, migrated
from tests.support.dispatch_pool import N1, Trial, waiting
from tests.support.pool_driver import LEADER, POLICY, Plan, Try
from tests.support.scheduling_cases import T0, Case

Question = Callable[[Cluster, Instant], tuple[Prospect, float]]


class Scheduler:
    """A pool's scheduler that answers when it is told to."""

    def __init__(self, **case: Any) -> None:
        self.case = Case(**{"want": "", "nodes": "n1=8xH100", "policy": PoolPolicy(), **case})
        self.asked: list[tuple[Question, Future[tuple[Prospect, float]]]] = []
        self.waits = False
        self.is_resting = False
        self.pool = Pool()  # as its handle has it
        self.idle_for = 0  # since the last transaction of the pool

    def look_now(self, at: Callable[[Pool, Instant], Any]) -> Any:
        return at(self.pool, self.pool.now + self.idle_for)

    def ask(self, question: Question) -> "Future[tuple[Prospect, float]]":
        answer: Future[tuple[Prospect, float]] = Future()
        self.asked.append((question, answer))
        if not self.waits:
            self.answer()
        return answer

    def answer(self) -> None:
        """Say what there is."""
        for question, answer in self.asked:
            if not answer.done():
                answer.set_result(question(self.case.cluster(), T0))


@dataclass
class Pools:
    """Pools of this process."""

    found: dict[str, Scheduler]
    sent_to: list[str] = field(default_factory=list)

    @property
    def handles(self) -> Any:
        return self.found

    def leader_of(self, pool: str) -> Scheduler:
        return self.found[pool]

    def relay_from_org(self, org: str) -> None:
        self.sent_to.append(org)


def job_of(text: str) -> Job:
    return Case(want="", nodes="", queued=text).snapshot().waiting[0]


class Ticks:
    """A clock that runs on, to be moved by hand."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Ticks:
    return Ticks()


def test_the_scheduler_is_queried_at_intervals_and_only_on_demand(
    clock: Ticks,
) -> None:
    one = Scheduler()
    router = Router(Pools({"a": one}), clock)
    assert (0, False) == (len(one.asked), router.knows("a"))
    for _ in range(5):
        assert [] == router.look()
    assert (1, True) == (len(one.asked), router.knows("a"))
    clock.now += routing.FRESH_S
    router.look("a")
    assert 2 == len(one.asked)


def test_a_report_is_used_until_it_is_too_old(clock: Ticks) -> None:
    """Nobody waits for a scheduler that is busy, unless nothing can be relied on."""
    one = Scheduler()
    router = Router(Pools({"a": one}), clock)
    router.look()
    one.waits = True
    clock.now += routing.FRESH_S
    assert [] == router.look()
    clock.now += routing.OLD_S
    [awaited] = router.look()
    assert [awaited] == router.look(), "it is asked once"
    assert not awaited.done()
    one.answer()
    assert awaited.done()
    assert [] == router.look()


def test_the_long_forecast_is_taken_seldom(clock: Ticks, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a queue is: a twentieth of a scheduler's time at most."""

    def slow(*given: Any) -> Prospect:
        clock.now += 0.25
        return measure_prospect(*given)

    monkeypatch.setattr(routing, "measure_prospect", slow)
    one = Scheduler()
    router = Router(Pools({"a": one}), clock)
    for _ in range(100):
        router.look()
        clock.now += 0.1

    assert len(one.asked) <= 3


def test_a_failing_scheduler_leaves_the_last_report(clock: Ticks) -> None:
    one = Scheduler()
    router = Router(Pools({"a": one}), clock)
    router.look()
    one.waits = True
    clock.now += routing.OLD_S + 1
    [awaited] = router.look()
    one.asked[-1][1].set_exception(RuntimeError("it is led by nobody"))

    assert awaited.done()
    assert router.knows("a")


def test_an_idle_pool_is_not_woken(clock: Ticks) -> None:
    """Its nodes are in memory, and nothing else is there; if something is, or nothing is known,
    its scheduler is asked."""
    trial = waiting()
    one = Scheduler()
    one.is_resting, one.pool = True, trial.pool
    router = Router(Pools({"a": one}), clock)
    router.look()
    assert 1 == len(one.asked), "a job waits there"

    resting = Trial()
    resting.report(node=N1)
    one.pool = resting.pool
    clock.now += routing.FRESH_S
    router.look()
    assert 1 == len(one.asked)
    [found] = router.prospects()
    assert (4, 2_000) == (found.load.gpus, found.stocks["H100"].free), "one node is silent"

    one.idle_for = 20 * SECOND
    clock.now += routing.FRESH_S
    router.look()
    [found] = router.prospects()
    assert {} == found.stocks, "no node has reported since"

    one.pool = Pool()
    clock.now += routing.FRESH_S
    router.look()
    assert 2 == len(one.asked), "nothing is known of it"


def test_a_burst_is_spread_and_counted(clock: Ticks) -> None:
    """Before any scheduler has seen a job of it."""
    router = Router(
        Pools({"a": Scheduler(nodes="n1=2xH100"), "b": Scheduler(nodes="n1=2xH100")}), clock
    )
    router.look()
    sent = []
    for _ in range(4):
        bid = router.routed(job_of("j:1")).bids[0]
        router.send(job_of("j:1"), bid)
        sent.append(bid.pool)

    assert ["a", "a", "b", "b"] == sorted(sent)


def admitted(router: Router, text: str, jobs: int = 1) -> RejectionCode | None:
    """Why jobs are turned away by pool `a`, if they are; those that are not are sent there."""
    job = job_of(text)
    bucket = full_bucket(router.tier("a", job.path[0]), T0)
    answer = router.admit("a", job, bucket, T0, jobs)
    if isinstance(answer, Rejected):
        return answer.code
    assert isinstance(answer, Admitted)
    router.send(job, router.routed(job).bids[0], jobs)
    return None


BOUNDED = PoolPolicy(tiers=(PAID, replace(FREE, queue_max=3)))


def test_the_limit_of_an_org_does_not_affect_other_orgs(clock: Ticks) -> None:
    """What is on its way counts; a look counts anew (S8)."""
    busy = Scheduler(running="x@n1:8/ends=9h", queued="q:1/who=free.acme.u.v", policy=BOUNDED)
    router = Router(Pools({"a": busy}), clock)
    router.look()

    flood = [admitted(router, "j:1/who=free.acme.u.v") for _ in range(3)]
    assert [None, None, RejectionCode.QUEUE_FULL] == flood
    assert admitted(router, "j:1/who=free.bee.u.v") is None
    assert admitted(router, "j:1/who=paid.acme.u.v") is None
    clock.now += routing.FRESH_S
    router.look()
    assert admitted(router, "j:1/who=free.acme.u.v") is None


def test_an_unknown_tier_is_the_lowest(clock: Ticks) -> None:
    """It is let in as others are, and turned away first."""
    router = Router(Pools({"a": Scheduler()}), clock)
    router.look()

    assert Tier(name="gold") == router.tier("a", "gold")
    assert PAID == router.tier("a", "paid")
    assert admitted(router, "j:1/who=gold.acme.u.v") is None
    late = " ".join(f"q{n}:8/limit=9h/who=free.org{n}.u.v" for n in range(5))
    slow = Router(Pools({"a": Scheduler(running="x@n1:8/ends=9h", queued=late)}), clock)
    slow.look()
    assert RejectionCode.OVERLOADED is admitted(slow, "j:1/who=gold.acme.u.v")
    assert admitted(slow, "j:1/who=enterprise.acme.u.v") is None


def test_a_pool_without_nodes_is_not_overloaded(clock: Ticks) -> None:
    """Jobs may wait there for nodes to come, as many as its bounds allow."""
    queued = " ".join(f"q{n}:8/who=free.org{n}.u.v" for n in range(5))
    router = Router(Pools({"a": Scheduler(nodes="", queued=queued, policy=BOUNDED)}), clock)
    router.look()

    flood = [admitted(router, "j:1/who=free.org1.u.v") for _ in range(3)]
    assert [None, None, RejectionCode.QUEUE_FULL] == flood


# --------------------------------------------------------------------------- moving, on a database


@pytest.fixture(scope="module")
def url(database_url: str) -> Iterator[str]:
    """A database of this file's own: rounds walk over all orgs."""
    with migrated(database_url) as address:
        yield address


@pytest.fixture
def connection(url: str) -> Iterator[Connection]:
    with connected(url) as found:
        yield found


class Kept:
    """Two real pools whose schedulers answer at once, from what the pools keep."""

    def __init__(self, one: Pair) -> None:
        self._one = one
        self.handles = {name: driver.pool for name, driver in one.drivers.items()}
        self.posted: list[str] = []

    def leader_of(self, pool: str) -> Any:
        return Answering(self._one, pool)

    def relay_from_org(self, org: str) -> None:
        self.posted.append(org)


@dataclass
class Answering:
    one: Pair
    pool: str
    is_resting: bool = False

    def ask(self, question: Any) -> "Future[Any]":
        now = self.one.clock.now
        follower, _ = self.handle.follow(POLICY, now)
        answer: Future[Any] = Future()
        answer.set_result(question(follower.cluster, now))
        return answer

    @property
    def handle(self) -> Any:
        return self.one.drivers[self.pool].pool


@dataclass
class Stage:
    """A pair of pools, and somebody who moves jobs between them."""

    one: Pair
    ticks: Ticks

    def __post_init__(self) -> None:
        self.pools = Kept(self.one)
        self.moves = Moves(
            self.one.connection, self.pools, Router(self.pools, self.ticks), self.one.clock
        )

    def later(self, span: int) -> None:
        self.one.clock.now += span
        self.ticks.now += span / SECOND

    def heard(self, *names: str) -> None:
        """Nodes of pools report."""
        for name in names:
            driver = self.one.drivers[f"{self.one.org}-{name}"]
            driver.pool.lead(LEADER)
            for node in HERE if name == "here" else THERE:
                driver.report(node.id)

    def round(self) -> int:
        found = self.moves.round()
        self.one.relay.round()
        self.one.relay.round()
        return found

    def end(self) -> None:
        """Cancel all that waits, so that the next test's rounds find nothing of it."""
        for job in self.one.here.plans:
            with suppress(JobUnknown):
                self.one.jobs.cancel(self.one.org, JobId(job))
        self.one.finish("here", "there")


@pytest.fixture
def stage(connection: Connection, clock: Ticks) -> Iterator[Stage]:
    plans = {name: Plan(tries=(Try(RUN_MS),), run_ms=3_600_000) for name in "abcd"}
    found = Stage(pair(connection, plans), clock)
    yield found
    found.end()


def submitted(stage: Stage, *jobs: str) -> None:
    for job in jobs:
        stage.one.submit(job)
    stage.one.relay.round()


def test_jobs_go_where_they_start_at_once_and_no_more_of_them(stage: Stage) -> None:
    """Here two run for an hour and two wait; there is room for two, and later for none."""
    stage.heard("here", "there")
    submitted(stage, *"abcd")
    stage.one.work("here")
    assert 0 == stage.round(), "they have not waited long"
    stage.later(MOVE_PATIENCE)
    stage.heard("here", "there")
    for driver in stage.one.drivers.values():
        driver.schedule()

    assert 2 == stage.round()
    where = [stage.one.stands(job)[0] for job in "abcd"]
    assert 2 == where.count("here") == where.count("there")
    assert [stage.one.org] * 2 == stage.pools.posted
    assert 0 == stage.round()
    assert [] == disagreements(stage.one.connection)


def test_jobs_leave_a_pool_that_has_lost_what_they_need(stage: Stage) -> None:
    """Not at once: its nodes may be back in a moment."""
    stage.heard("here", "there")
    submitted(stage, "a")
    here = stage.one.drivers[stage.one.here.pool].pool
    assert here.change(lambda work: set_node_state(work, HERE[0].id, NodeState.DRAINING))
    stage.later(HOUR)
    stage.heard("here", "there")
    assert 0 == stage.round()
    stage.later(MOVE_PATIENCE)
    stage.heard("here", "there")
    assert 1 == stage.round()
    assert ("there", "queued", "moved") == stage.one.stands("a")
    stage.later(MOVE_REST + MINUTE)
    stage.heard("here")
    assert 0 == stage.round(), "it does not go back"


def test_a_job_moves_only_where_its_org_may_use_its_tier(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The org, or the policy of the other pool, may have changed since the submission (S4)."""
    stage.heard("here", "there")
    submitted(stage, "a")
    here = stage.one.drivers[stage.one.here.pool].pool
    assert here.change(lambda work: set_node_state(work, HERE[0].id, NodeState.DRAINING))
    for _ in range(3):
        stage.later(MOVE_PATIENCE)
        stage.heard("here", "there")
        with monkeypatch.context() as patch:
            patch.setattr(routing, "tier_of", lambda *_: "bronze")
            assert 0 == stage.round()
    assert 1 == stage.round()


def test_a_pool_that_is_back_in_time_keeps_its_jobs(stage: Stage) -> None:
    stage.heard("here", "there")
    submitted(stage, "a")
    stage.later(MOVE_PATIENCE)
    stage.heard("there")  # here, nobody was heard of for so long
    assert 0 == stage.round()
    stage.later(MINUTE)
    stage.heard("here", "there")
    assert 0 == stage.round()
    stage.later(MINUTE)
    stage.heard("there")
    assert 0 == stage.round(), "it has lacked something for a moment only"


def test_all_jobs_are_read_page_by_page(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round looks at so many, the next goes on behind them."""
    monkeypatch.setattr(routing, "PAGE", 1)
    monkeypatch.setattr(routing, "PAGES", 2)
    stage.heard("there")
    submitted(stage, *"abcd")
    seen = []
    for _ in range(6):
        stage.later(MOVE_PATIENCE)
        stage.heard("there")
        seen.append(stage.round())

    assert 4 == sum(seen)
    assert max(seen) <= 2
    assert {"there"} == {stage.one.stands(job)[0] for job in "abcd"}


def test_rounds_are_bounded(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "MOVES_MOST", 1)
    submitted(stage, *"ab")
    stage.heard("there")
    assert 0 == stage.round()
    stage.later(MOVE_PATIENCE)
    stage.heard("there")

    assert 1 == stage.round()
