"""Between orgs and pools: messages may be lost, repeated, overtaken, processes killed anywhere.

Whatever happens, in the end nothing is stranded (every hold of a job is closed), nothing is charged
twice or lost (each attempt pays exactly what is proven of its run), and `verify`, which compares
both sides, is silent.
"""

import random
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count

import pytest

from bursar.core.dispatch.reports import LeaseOrders, Reading
from bursar.core.dispatch.state import Exit, Lease
from bursar.core.ids import AccountId, HoldId, JobId, NodeId, UserId
from bursar.core.instant import DAY, SECOND
from bursar.core.jobs.pool_messages import key_of
from bursar.core.ledger.commands import AddUser, EndHold, Reserve, SetPolicy
from bursar.core.ledger.values import OrgPolicy
from bursar.core.messages import Withdraw
from bursar.core.refusal import Code, Refusal
from bursar.core.scheduling.model.nodes import Node
from bursar.core.value import replace
from bursar.service.jobs import Jobs, JobUnknown, Submission, run_asks_through
from bursar.service.jobs.pool_messages import message_of
from bursar.service.ledger.audit import Contradiction, verify
from bursar.service.ledger.batch import Answer, CommandRequest
from bursar.service.ledger.batcher import Busy, Limits
from bursar.service.ledger.ledger import Ledger
from bursar.service.pools.pool import NullListener, PoolHandle, PoolReplica, open_pool
from bursar.service.workers import relay
from bursar.service.workers.relay import Relay
from bursar.store.database import Timeouts
from bursar.store.database import connect as limited
from bursar.store.jobs.outbox import from_orgs, from_pool, message_text
from bursar.store.ledger.writer import freeze
from bursar.store.pools.loader import lock_pool
from bursar.store.sql.connection import Connection, money_time
from bursar.store.verify.ledger import problems
from bursar.store.verify.org_pool_agreement import SEAM_CHECKS
from tests.support.builders import T0, gpus
from tests.support.databases import connected, migrated
from tests.support.effort import sample
from tests.support.patience import eventually
from tests.support.pool_driver import (
    ISSUED,
    PRICES,
    Clock,
    Driver,
    Killed,
    Mortal,
    Plan,
    Try,
    World,
    ledger,
    short_jobs,
)
from tests.support.seam_chaos import Chaos

N1 = NodeId("n1")
NODES = (
    Node(id=N1, gpu_type="a100", gpus=2),
    Node(id=NodeId("n2"), gpu_type="h100", gpus=1),
)
_NUMBERS = count(1)


@pytest.fixture(scope="module")
def url(database_url: str) -> Iterator[str]:
    """A database of this file's own: it is verified as a whole."""
    with migrated(database_url) as address:
        yield address


@pytest.fixture
def connection(url: str) -> Iterator[Connection]:
    """A connection to it."""
    with connected(url) as found:
        yield found


def contradictions(connection: Connection) -> tuple[Contradiction, ...]:
    """What `verify` finds, asked when all stories begin: what some never deliver is not overdue."""
    connection.execute("analyze")  # what a server does by itself, at some time
    return verify(connection, clock=Clock())


def disagreements(connection: Connection) -> list[Contradiction]:
    """What it finds between orgs and pools alone: quicker, to be asked again and again."""
    checks = [check for check in SEAM_CHECKS if not check.timed]
    return [one for check in checks for one in problems(connection, check)]


def world(
    connection: Connection,
    plans: dict[str, Plan],
    clock: Clock,
    nodes: tuple[Node, ...] = NODES[:1],
) -> World:
    """An org and a pool of a test's own."""
    number = next(_NUMBERS)
    new = World(f"org-{number}", f"pool-{number}", plans, nodes, clock=clock)
    new.found(connection)
    return new


def parts(connection: Connection, org: str) -> tuple[int, int, int]:
    """What of the org's only grant is available, held, spent."""
    sql = "select available, held, spent from grants where org_id = %s"
    [found] = connection.execute(sql, [org]).fetchall()
    return found[0], found[1], found[2]


STORY = {
    "preempted": Plan(tries=(Try(5_000, kept_ms=3_000, preempted=True), Try(5_000)), requeues=1),
    "withdrawn": Plan(withdrawn=True),
    "lost": Plan(tries=(Try(5_000, None, kept_ms=2_000),), gpu_types=("h100",)),
}
SPENT = 3_000 + 5_000 + 3 * 2_000


def moved(connection: Connection, org: str, job: str) -> list[tuple[str, str, int, int]]:
    """What a job's events moved: (event, "from → to", amount, seconds since the beginning)."""
    sql = """
        select e.kind, p.source || ' → ' || p.target, p.amount, p.effective_at
          from events e join postings p on p.org_id = e.org_id and p.number = e.number
         where e.org_id = %s and e.body ->> 'hold' = %s
         order by p.number, p.place
    """
    found = connection.execute(sql, [org, job]).fetchall()
    return [(kind, way, amount, (at - T0) // SECOND) for kind, way, amount, at in found]


def envelopes(connection: Connection, pool: str) -> list[str]:
    """What a pool has told, in order: the kind of each message."""
    sql = "select body ->> 0 from pool_outbox where pool_id = %s order by org_id, job_id, n"
    return [kind for (kind,) in connection.execute(sql, [pool])]


def waiting(pool: PoolHandle) -> int:
    """How many jobs wait there."""
    return pool.look(lambda known: len(known.hold_ends))


class Stage:
    """One job of a 1,000 s run on a GPU at one micro-credit a millisecond, done by hand."""

    def __init__(self, connection: Connection, plan: Plan | None = None) -> None:
        self.clock = Clock()
        self.plan = plan or Plan(run_ms=1_000_000)
        self.world = world(connection, {"job": self.plan}, self.clock)
        self.driver = Driver(self.world, connection)
        self.pool, self.jobs, self.relay = (
            self.driver.pool,
            self.driver.jobs,
            self.driver.relay,
        )
        self.connection = connection
        self.driver.submit()

    def lease(self) -> Lease:
        """Bring the job to its pool and give it a lease."""
        self.relay.round()
        self.driver.report(N1)
        self.driver.schedule()
        [lease] = self.pool.look(lambda pool: [pool.leases[fence] for fence in pool.live])
        return lease

    def later(self, seconds: int) -> None:
        """Let time pass."""
        self.clock.now += seconds * SECOND

    def reports(
        self, fence: int, run_ms: int, exit: Exit | None = None, saved: int = 0
    ) -> LeaseOrders:
        """The node reports."""
        reading = Reading(fence=fence, run_ms=run_ms, exit=exit, saved_ms=saved)
        return self.driver.report(N1, reading)

    def runs(self, fence: int, seconds: int) -> None:
        """The job runs so long, reporting every ten seconds."""
        for second in range(0, seconds + 1, 10):
            assert self.reports(fence, second * 1_000).leases
            if second < seconds:
                self.later(10)

    def ends(self, fence: int, exit: Exit, run_ms: int, saved: int = 0) -> None:
        """The attempt ends."""
        assert () == self.reports(fence, run_ms, exit, saved).leases

    def used(self) -> int:
        """What the job was charged."""
        sql = "select used from holds where org_id = %s and hold_id = 'job'"
        [(used,)] = self.connection.execute(sql, [self.world.org]).fetchall()
        return int(used)

    def state(self) -> tuple[str, str | None]:
        """What the org says of the job, and why it ended."""
        sql = "select state, end_class from jobs where org_id = %s and job_id = 'job'"
        [(state, why)] = self.connection.execute(sql, [self.world.org]).fetchall()
        return ("over" if why else "waiting" if state == "queued" else state), why

    def is_sound(self) -> None:
        """All messages are delivered, and both sides agree."""
        self.relay.round()
        assert (0, 0) == (self.relay.round().sent, len(contradictions(self.connection)))


def test_only_a_submitted_job_has_a_hold_that_lasts_as_long_as_jobs_may(
    connection: Connection,
) -> None:
    """The bound is that of the way by which it was asked for, also when it is extended (L10)."""
    stage = Stage(connection)
    org, jobs = stage.world.org, stage.jobs
    ask = ledger(connection, stage.clock)
    ask([CommandRequest(org, "usual bounds", SetPolicy(policy=OrgPolicy()))])
    reserve = replace(
        stage.world.submission("job").reserve,
        hold=HoldId("other"),
        context=gpus("a100", job="other"),
        expires_at=T0 + 2 * DAY,
    )

    [raw] = ask([CommandRequest(org, "raw", reserve)])
    submitted = jobs.submit(
        org, "job", Submission(stage.world.pool, reserve, stage.world.submission("job").spec)
    )
    longer = [
        jobs.extend(org, f"longer {days}", JobId("other"), 0, T0 + days * DAY) for days in (60, 61)
    ]

    assert isinstance(raw, Answer)
    figures = {"expires_at": T0 + 2 * DAY, "latest": T0 + DAY}
    assert Refusal(Code.HOLD_TOO_LONG, figures) == raw.outcome
    assert isinstance(submitted.outcome, tuple)
    assert isinstance(longer[0].outcome, tuple)
    figures = {"expires_at": T0 + 61 * DAY, "latest": T0 + 60 * DAY}
    assert Refusal(Code.HOLD_TOO_LONG, figures) == longer[1].outcome
    assert (True,) == connection.execute(
        "select for_job from holds where org_id = %s and hold_id = 'other'", [org]
    ).fetchone()
    stage.is_sound()


def test_from_hold_to_settlement(connection: Connection) -> None:
    """Hold, lease, readings, charges at the stated cadence, end, settlement (M1–M3, D4, D6).

    The hold is a million; a hundredth of it is ten seconds of run time.
    """
    stage = Stage(connection)
    lease = stage.lease()
    assert (1, 1, 1_000_000) == (lease.fence, lease.attempt, lease.run_ms_max)
    stage.later(2)  # it takes two seconds to start
    stage.runs(lease.fence, 30)
    stage.later(5)
    stage.ends(lease.fence, Exit.DONE, 33_500)
    assert ["Started", "RanSoFar", "RanSoFar", "RanSoFar", "Ended"] == envelopes(
        connection, stage.world.pool
    )
    stage.relay.round()

    assert [
        ("HoldOpened", "available → held", 1_000_000, 0),
        ("ChargeBooked", "held → spent", 10_000, 37),
        ("ChargeBooked", "held → spent", 10_000, 37),
        ("ChargeBooked", "held → spent", 10_000, 37),
        ("ChargeBooked", "held → spent", 3_500, 37),
        ("HoldClosed", "held → available", 966_500, 37),
    ] == moved(connection, stage.world.org, "job")
    assert ("over", "user") == stage.state()
    sql = "select meters -> 0 -> 1 ->> 'started_at' from holds where org_id = %s"
    assert [(str(T0 + 2 * SECOND),)] == connection.execute(sql, [stage.world.org]).fetchall()
    stage.is_sound()


def test_readings_between_two_charges_are_stored_and_not_sent(connection: Connection) -> None:
    """So that running jobs write few events; what is proven is durable all the same (D4)."""
    stage = Stage(connection)
    lease = stage.lease()
    for _ in range(9):
        stage.later(1)
        stage.reports(lease.fence, 9_999)  # clamped to what can be true

    assert ["Started"] == envelopes(connection, stage.world.pool)
    sql = """
        select p.run_ms, l.reported_ms, l.clamped
          from leases l join lease_parts p on p.pool_id = l.pool_id and p.fence = l.fence
         where l.pool_id = %s
    """
    assert [(9_000, 0, True)] == connection.execute(sql, [stage.world.pool]).fetchall()
    stage.later(2)
    stage.reports(lease.fence, 9_999)
    assert ["Started"] == envelopes(connection, stage.world.pool)
    stage.reports(lease.fence, 10_000)
    assert ["Started", "RanSoFar"] == envelopes(connection, stage.world.pool)
    stage.later(9)
    stage.reports(lease.fence, 19_999)  # counted from what was told last
    assert ["Started", "RanSoFar"] == envelopes(connection, stage.world.pool)
    stage.reports(lease.fence, 20_000)
    assert ["Started", "RanSoFar", "RanSoFar"] == envelopes(connection, stage.world.pool)


def test_the_pool_processes_messages_of_a_job_in_order(connection: Connection) -> None:
    """It is neither handled nor acknowledged before; repeats are acknowledged again (D4)."""
    stage = Stage(connection, Plan(withdrawn=True))
    enqueue, withdraw = from_orgs(connection, None, 10, stage.world.org)

    assert [] == stage.pool.receive([withdraw])
    assert [enqueue] == stage.pool.receive([enqueue])
    assert 1 == waiting(stage.pool)
    assert [enqueue, withdraw] == stage.pool.receive([withdraw, enqueue, withdraw])
    assert 0 == waiting(stage.pool)
    assert [withdraw] == stage.pool.receive([withdraw])
    assert ["Dropped"] == envelopes(connection, stage.world.pool)
    stage.relay.round()
    assert (("over", "user"), 0) == (stage.state(), stage.used())
    stage.is_sound()


def test_the_org_processes_messages_of_a_job_in_order(connection: Connection) -> None:
    """An end is not handled before its start; each message once (D4, M3)."""
    stage = Stage(connection)
    lease = stage.lease()
    stage.runs(lease.fence, 10)
    stage.ends(lease.fence, Exit.DONE, 10_000)
    started, ran, ended = from_pool(connection, stage.world.pool, None, 10)

    assert [] == stage.jobs.receive([ended, ran])
    assert [started] == stage.jobs.receive([ended, started])
    assert "running" == stage.state()[0]
    assert [started, ran, ended] == stage.jobs.receive([ended, ran, started])
    assert [ran, ended] == stage.jobs.receive([ended, ran])
    assert 10_000 == stage.used()
    stage.is_sound()


def test_a_job_is_cancelled_while_it_runs(connection: Connection) -> None:
    """The worker is asked to stop; until it has, hold and lease go on (M4)."""
    stage = Stage(connection)
    lease = stage.lease()
    stage.reports(lease.fence, 0)
    stage.jobs.cancel(stage.world.org, JobId("job"))
    stage.jobs.cancel(stage.world.org, JobId("job"))
    told = from_orgs(connection, None, 10, stage.world.org)
    assert [Withdraw()] == [envelope.message for envelope in told]  # told once
    stage.relay.round()
    stage.later(5)

    [order] = stage.reports(lease.fence, 5_000).leases
    assert (True, 20 * SECOND) == (order.stop, order.ttl_us)
    assert "stopping" == stage.state()[0]
    stage.ends(lease.fence, Exit.STOPPED, 5_000)
    stage.relay.round()
    assert (("over", "user"), 5_000) == (stage.state(), stage.used())
    stage.is_sound()


def test_usage_that_a_silent_node_reports_later_is_charged(connection: Connection) -> None:
    """It was withdrawn, so the job pays for its run: what was proven at once, the rest when it is
    heard of again, up to the end of its lease (M4)."""
    stage = Stage(connection)
    lease = stage.lease()
    stage.runs(lease.fence, 10)
    stage.jobs.cancel(stage.world.org, JobId("job"))
    stage.relay.round()
    stage.later(29)
    assert 0 == stage.pool.expire()  # run out, but its GPUs rest for a while
    stage.later(1)
    assert 1 == stage.pool.expire()
    stage.relay.round()
    assert (("over", "user"), 10_000) == (stage.state(), stage.used())

    assert () == stage.reports(lease.fence, 99_000).leases
    stage.relay.round()
    assert 30_000 == stage.used()
    stage.is_sound()


def test_lost_work_is_refunded_and_not_reported_again(connection: Connection) -> None:
    """By an end that was not the job's own; then the job goes on with what is left (M3)."""
    stage = Stage(connection, Plan(run_ms=100_000, requeues=1))
    first = stage.lease()
    stage.runs(first.fence, 10)
    stage.later(1)
    stage.ends(first.fence, Exit.GONE, 10_000, saved=4_000)
    assert () == stage.reports(first.fence, 11_000).leases
    stage.relay.round()
    assert (("waiting", None), 4_000) == (stage.state(), stage.used())

    second = stage.lease()
    assert (2, 2, 96_000) == (second.fence, second.attempt, second.run_ms_max)
    stage.runs(second.fence, 10)
    stage.ends(second.fence, Exit.FAILED, 10_000)  # its own end: nothing is given back
    stage.relay.round()
    assert (("over", "user"), 14_000) == (stage.state(), stage.used())
    assert (ISSUED - 14_000, 0, 14_000) == parts(connection, stage.world.org)
    stage.is_sound()


def test_a_job_out_of_requeues_is_finished(connection: Connection) -> None:
    """Lost work is given back, and then the hold is released (M3)."""
    stage = Stage(connection)
    lease = stage.lease()
    stage.runs(lease.fence, 10)
    stage.ends(lease.fence, Exit.GONE, 10_000)
    stage.relay.round()

    assert (("over", "platform"), 0) == (stage.state(), stage.used())
    assert (ISSUED, 0, 0) == parts(connection, stage.world.org)
    stage.is_sound()


def test_usage_reported_after_the_end_of_the_hold_is_charged(
    connection: Connection,
) -> None:
    """Nobody delivered for an hour; the hold had ended by itself (L12, L13, D8)."""
    stage = Stage(
        connection, Plan(run_ms=100_000, hold_for=30 * SECOND, gpu_types=("a100", "h100"))
    )
    lease = stage.lease()
    stage.runs(lease.fence, 20)
    [order] = stage.reports(lease.fence, 20_000).leases
    assert (10 * SECOND, True) == (order.ttl_us, order.stop)
    stage.later(20)
    assert 1 == stage.pool.expire()
    stage.later(3_600)
    late = stage.relay.round().late

    assert len(late) == len(envelopes(connection, stage.world.pool)) > 3
    assert (("over", "limit"), 20_000) == (stage.state(), stage.used())
    assert (ISSUED - 20_000, 0, 20_000) == parts(connection, stage.world.org)
    stage.is_sound()


@pytest.mark.parametrize("swept", [False, True])
def test_a_job_that_waits_longer_than_its_hold_is_dropped(
    connection: Connection, swept: bool
) -> None:
    """Without credits it has no right to start (D8, IS9).

    If its hold was ended before, the ledger has nothing left to do; the step is told all the same.
    """
    stage = Stage(connection, Plan(hold_for=30 * SECOND))
    stage.relay.round()
    stage.later(30)

    stage.driver.report(N1)
    assert 1 == waiting(stage.pool)
    stage.driver.schedule()
    assert 1 == stage.pool.expire()
    assert [] == stage.pool.look(lambda pool: list(pool.live))
    if swept:
        end = CommandRequest(stage.world.org, "sweep", EndHold(hold=HoldId("job")))
        [ended] = ledger(connection, stage.clock)([end])
        assert isinstance(ended, Answer)
        assert isinstance(ended.outcome, tuple)
        short = Reserve(
            hold=HoldId("short"), account=AccountId("team"), user=UserId("ann"), amount=5,
            ttl=SECOND,
        )  # fmt: skip
        [held] = ledger(connection, stage.clock)([CommandRequest(stage.world.org, "short", short)])
        assert isinstance(held, Answer)
        stage.later(2)
    stage.relay.round()
    assert ("over", "limit") == stage.state()
    told = "select body ->> 'why' from events where org_id = %s and kind = 'JobStepped'"
    steps = [why for (why,) in connection.execute(told, [stage.world.org])]
    assert ["submitted", "hold_ended"] == sorted(steps, reverse=True)
    if swept:
        last = "select kind from events where org_id = %s order by number desc limit 2"
        kinds = [kind for (kind,) in connection.execute(last, [stage.world.org])]
        assert ["JobStepped", "HoldClosed"] == kinds, "what was due comes first"
    stage.is_sound()


def test_a_lease_lasts_longer_when_its_hold_grows(connection: Connection) -> None:
    """The pool is told with the extension itself, twice in one round too (D4, D8)."""
    stage = Stage(connection, Plan(run_ms=100_000, hold_for=30 * SECOND))
    lease = stage.lease()
    stage.runs(lease.fence, 20)
    for number in (1, 2):
        until = T0 + (30 + 30 * number) * SECOND
        stage.jobs.extend(stage.world.org, f"more-{number}", JobId("job"), 100_000, until)
    stage.jobs.extend(stage.world.org, "more-2", JobId("job"), 100_000, until)  # a replay
    stage.relay.round()
    stage.reports(lease.fence, 20_000)
    stage.later(15)

    [order] = stage.reports(lease.fence, 35_000).leases
    assert 20 * SECOND == order.ttl_us
    sql = "select hold_micros, hold_until, received from queue where pool_id = %s"
    grown = (300_000, T0 + 90 * SECOND, 3)
    assert [grown] == connection.execute(sql, [stage.world.pool]).fetchall()
    sql = "select report_interval_ms from leases where pool_id = %s"
    assert [(3_000,)] == connection.execute(sql, [stage.world.pool]).fetchall()
    stage.ends(lease.fence, Exit.DONE, 35_000)
    stage.is_sound()


def test_jobs_go_through_the_ledger_that_others_use(url: str, connection: Connection) -> None:
    """Its lanes, its batches; an org that takes no commands holds up no other's messages (D3)."""
    clock = Clock()
    plans = {"job": Plan(tries=(Try(5_000),))}
    good, frozen = world(connection, plans, clock), world(connection, plans, clock)
    drivers = [Driver(one, connection) for one in (good, frozen)]
    pools = {one.world.pool: one.pool for one in drivers}
    with Ledger(lambda: connected(url), PRICES) as lanes:
        jobs = Jobs(connection, run_asks_through(lanes))
        post = Relay(connection, jobs, pools)
        for one in (good, frozen):
            one.began_at = money_time(connection)
            answer = jobs.submit(one.org, "submit", one.submission("job"))
            assert isinstance(answer.outcome, tuple)
            assert jobs.submit(one.org, "submit", one.submission("job")).replayed
        post.round()
        for driver in drivers:
            driver.work()
            driver.schedule()
        clock.now += 5 * SECOND
        for driver in drivers:
            driver.work()
        freeze(connection, frozen.org, "for a test")
        done = post.round()

        assert (4, 2) == (done.sent, done.acknowledged)
        assert (ISSUED - 5_000, 0, 5_000) == parts(connection, good.org)
        connection.execute("update orgs set frozen = null where org_id = %s", [frozen.org])
        assert 2 == post.round().acknowledged
        assert (ISSUED - 5_000, 0, 5_000) == parts(connection, frozen.org)
    assert () == contradictions(connection)


def test_a_refused_submission_writes_nothing(connection: Connection) -> None:
    """No job, no message, and no pool hears of it (M1)."""
    stage = Stage(connection)
    stage.world.plans = {"big": Plan(run_ms=2 * ISSUED)}

    answer = stage.jobs.submit(stage.world.org, "big", stage.world.submission("big"))

    assert isinstance(answer.outcome, Refusal)
    sql = "select job_id from jobs where org_id = %s"
    assert [("job",)] == connection.execute(sql, [stage.world.org]).fetchall()
    with pytest.raises(JobUnknown):
        stage.jobs.cancel(stage.world.org, JobId("big"))
    with pytest.raises(JobUnknown):
        stage.jobs.extend(stage.world.org, "more", JobId("big"), 1)
    stage.is_sound()


def test_a_submission_is_by_run_time_and_names_its_job(connection: Connection) -> None:
    """A job without a bound, or another's hold, is no job (M1)."""
    stage = Stage(connection)
    ask = stage.world.submission("job")
    for wrong in (
        replace(ask.reserve, run_ms=None, amount=5),
        replace(ask.reserve, hold=HoldId("another")),
    ):
        with pytest.raises(ValueError, match="a job's hold"):
            stage.jobs.submit(stage.world.org, "k", ask._replace(reserve=wrong))


def test_an_invalid_message_blocks_only_its_own_job(
    connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """A bug of one side is not the other jobs' problem, and is told (D4)."""
    clock = Clock()
    plans = {name: Plan(tries=(Try(5_000),)) for name in ("bad", "good", "odd")}
    here = world(connection, plans, clock)
    driver = Driver(here, connection)
    driver.submit()
    swap = "update org_outbox set body = %s where org_id = %s and job_id = %s"
    [(good,)] = connection.execute(
        "select body::text from org_outbox where org_id = %s and job_id = 'bad'", [here.org]
    ).fetchall()
    connection.execute(swap, [message_text(Withdraw()), here.org, "bad"])

    done = driver.relay.round()
    assert (3, 2) == (done.sent, done.acknowledged)
    assert 2 == waiting(driver.pool)
    assert "a message cannot be handled" in caplog.text
    driver.work()
    driver.schedule()
    driver.work()
    clock.now += 5 * SECOND
    driver.work()
    spoil = "update pool_outbox set body = %s where pool_id = %s and job_id = 'odd' and n = 1"
    [(odd,)] = connection.execute(
        "select body::text from pool_outbox where pool_id = %s and job_id = 'odd' and n = 1",
        [here.pool],
    ).fetchall()
    connection.execute(spoil, [message_text(Withdraw()), here.pool])
    driver.relay.round()
    sql = "select job_id from jobs where org_id = %s and ended_at is not null"
    assert [("good",)] == connection.execute(sql, [here.org]).fetchall()

    connection.execute(swap, [good, here.org, "bad"])
    connection.execute(spoil, [odd, here.pool])
    driver.play(clock)
    assert (ISSUED - 15_000, 0, 15_000) == parts(connection, here.org)
    assert () == contradictions(connection)


def test_an_unreachable_pool_does_not_delay_messages_of_other_pools(
    url: str, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody else has its row: the next pool's messages are delivered in the same round (D4)."""
    clock = Clock()
    first, second = (world(connection, {"job": Plan()}, clock) for _ in range(2))
    hasty, limits = Timeouts(lock_ms=100), Limits(lanes=1, unreachable_s=0.2)
    with ExitStack() as stack:
        pools = {
            one.pool: stack.enter_context(
                open_pool(
                    lambda: limited(url, hasty),
                    PoolReplica(one.pool, NullListener(), clock),
                    limits,
                )
            )
            for one in (first, second)
        }
        assert first.pool < second.pool
        for one in (first, second):
            Driver(one, connection).submit()
        post = Relay(connection, Jobs(connection, ledger(connection, clock), clock), pools, clock)
        with connected(url) as other, other.transaction():
            lock_pool(other, first.pool)
            done = post.round()
        assert (2, 1) == (done.sent, done.acknowledged)
        assert f"messages of pool {first.pool} are delayed" in caplog.text
        assert (1, 1) == (waiting(pools[second.pool]), post.round().acknowledged)


def test_messages_of_stopped_processes_are_delivered_under_load(
    monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    """Who is called without a pause looks at everything in time all the same (D4)."""
    monkeypatch.setattr(relay, "POLL_INTERVAL_S", 0.01)
    carried: deque[str | None] = deque()

    def carry(_: Relay, who: str | None) -> None:
        carried.append(who)
        worker.wake("busy")

    def relays(connection: Connection) -> Relay:
        return Relay(connection, Jobs(connection, ledger(connection, Clock())), {})

    worker = relay.relay_worker("busy", lambda: connected(url), relays, carry)
    worker.wake("busy")
    worker.start()
    try:
        eventually(lambda: carried.count(None) > 3, "it has looked")
    finally:
        worker.stop()


def test_a_cancelled_job_whose_worker_is_lost_does_not_run_again(connection: Connection) -> None:
    """Though it could be requeued: it was cancelled (M3)."""
    stage = Stage(connection, Plan(requeues=1))
    lease = stage.lease()
    stage.reports(lease.fence, 0)
    stage.jobs.cancel(stage.world.org, JobId("job"))
    stage.relay.round()
    stage.ends(lease.fence, Exit.GONE, 0)
    stage.relay.round()

    assert 0 == waiting(stage.pool)
    assert ("over", "user") == stage.state()
    stage.is_sound()


def test_messages_about_unknown_jobs_wait(connection: Connection) -> None:
    """A message about an unknown job is not handled, and harms nobody."""
    stage = Stage(connection)
    lease = stage.lease()
    stage.reports(lease.fence, 0)
    [envelope] = from_pool(connection, stage.world.pool, None, 10)

    assert [] == stage.jobs.receive([envelope._replace(job=JobId("other"))])
    assert [envelope] == stage.jobs.receive([envelope])


def test_an_attempt_that_never_reported_pays_nothing(connection: Connection) -> None:
    """Its start is where its lease began, and its end comes with it (M4)."""
    stage = Stage(connection, Plan(requeues=1))
    stage.lease()
    stage.later(30)
    assert 1 == stage.pool.expire()
    assert ["Started", "Ended"] == envelopes(connection, stage.world.pool)
    stage.later(2)  # it is tried again a moment later
    quiet = stage.lease()
    stage.later(30)
    assert 1 == stage.pool.expire()
    stage.relay.round()

    assert (("over", "platform"), 0) == (stage.state(), stage.used())
    sql = "select started_at - leased_at from leases where pool_id = %s and fence = %s"
    given = [stage.world.pool, quiet.fence]
    assert [(0,)] == connection.execute(sql, given).fetchall()
    stage.is_sound()


def test_more_than_one_page_of_messages(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is waiting is delivered, however much it is."""
    monkeypatch.setattr(relay, "MOST", 2)
    clock = Clock()
    plans = {f"job-{number}": Plan(withdrawn=True) for number in range(5)}
    here = world(connection, plans, clock)
    driver = Driver(here, connection)
    driver.submit()

    done = driver.relay.round()

    assert (15, 15) == (done.sent, done.acknowledged)
    assert driver.is_over()


def test_a_busy_ledger_leaves_messages_for_later(url: str, connection: Connection) -> None:
    """Nothing is lost when too much is asked (S8)."""
    stage = Stage(connection)
    lease = stage.lease()
    stage.ends(lease.fence, Exit.DONE, 0)
    with Ledger(lambda: connected(url), PRICES, Limits(waiting=0)) as lanes:
        busy = Jobs(connection, run_asks_through(lanes), stage.clock)
        assert [] == busy.receive(from_pool(connection, stage.world.pool, None, 10))
        with pytest.raises(Busy):
            busy.submit(stage.world.org, "k", stage.world.submission("job"))
    stage.relay.round()
    assert ("over", "user") == stage.state()
    stage.is_sound()


def test_a_tenant_cannot_use_the_request_keys_of_the_pools_charges(connection: Connection) -> None:
    """Whoever has taken the key of a message before gets no free run: it waits and is told (L7)."""
    stage = Stage(connection)
    lease = stage.lease()
    stage.reports(lease.fence, 0)
    [started] = from_pool(connection, stage.world.pool, None, 10)
    taken = CommandRequest(
        stage.world.org, key_of(message_of(started), 1), AddUser(user=UserId("eve"))
    )
    ledger(connection, stage.clock)([taken])

    assert [] == stage.jobs.receive([started])
    stage.later(31)
    late = [one for one in stage.relay.round().late if one.org == stage.world.org]
    assert [started] == late


def test_a_run_without_faults(connection: Connection) -> None:
    """Preempted and run again, withdrawn, lost: each pays what it ran, no more (M3, M4)."""
    clock = Clock()
    here = world(connection, STORY, clock, NODES)

    Driver(here, connection).play(clock)

    assert (ISSUED - SPENT, 0, SPENT) == parts(connection, here.org)
    assert () == contradictions(connection)


@pytest.mark.slow
@pytest.mark.sampled
def test_a_process_killed_between_any_two_statements(url: str, connection: Connection) -> None:
    """Whoever died where: started again, the very same comes out (D4, S11, IS14)."""
    clock = Clock()
    with connected(url) as real:
        whole = Mortal(real)
        Driver(world(connection, STORY, clock, NODES), whole).play(clock)
    places = whole.places_to_die()
    assert len(places) > 100
    steps = sample(places, 40)

    with ThreadPoolExecutor(2) as both:
        spent = list(both.map(lambda step: killed_at(url, step), steps))

    assert dict.fromkeys(steps, (ISSUED - SPENT, 0, SPENT)) == dict(zip(steps, spent, strict=True))
    assert () == contradictions(connection)


def killed_at(url: str, step: int) -> tuple[int, int, int]:
    """What became of the credits when a process was killed at a step, and another went on."""
    clock = Clock()
    with connected(url) as connection, connected(url) as doomed:
        here = world(connection, STORY, clock, NODES)
        with pytest.raises(Killed):
            Driver(here, Mortal(doomed, step)).play(clock)
        if step % 4 == 0:  # it looks at all worlds so far
            assert [] == disagreements(connection), "with something half done"
        clock.now += SECOND
        Driver(here, connection).play(clock)
        return parts(connection, here.org)


SEEDS = (0, 3, 5, 20)  # gangs, lost work, late readings, jobs out of credits


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_under_any_faults_each_job_pays_its_proven_usage(url: str, seed: int) -> None:
    """Messages lost, repeated, overtaken, processes and nodes that die or hang, clocks that are
    wrong: both sides agree at any time, and in the end every credit is where it belongs (M2-M4)."""
    with migrated(url) as address, connected(address) as connection:
        chaos = Chaos(seed, connection)
        while not (chaos.steps % 8 == 0 and chaos.is_settled):
            chaos.step()
            if chaos.steps % 40 == 0:
                assert [] == disagreements(connection), "with messages on their way"

        sql = "select org_id, hold_id, used, closed_at is not null from holds"
        found = connection.execute(sql).fetchall()
        assert chaos.wanted() == {(org, job): used for org, job, used, _ in found}
        assert all(closed for *_, closed in found)
        assert sum(chaos.wanted().values()) > 0
        sql = "select coalesce(sum(held), 0)::bigint, sum(spent)::bigint from grants"
        assert (0, sum(chaos.wanted().values())) == connection.execute(sql).fetchone()
        assert () == contradictions(connection)


@pytest.mark.slow
def test_processes_killed_at_any_time(url: str, connection: Connection) -> None:
    """Two at once play scheduler, worker and relay, and are killed with -9 again and again (F1)."""
    chance, jobs = random.Random(7), 40
    began_at = money_time(connection)
    here = World("killed", "killed-pool", short_jobs(jobs), began_at=began_at, clock=money_time)
    here.found(connection)
    killed = 0

    def started(node: str) -> "subprocess.Popen[bytes]":
        given = [url, here.org, here.pool, node, str(jobs), str(began_at)]
        return subprocess.Popen([sys.executable, "-m", "tests.support.pool_driver", *given])

    for _ in range(4):
        both = [started(node) for node in ("n1", "n2")]
        wait_for_a_change(connection, here.pool, both)
        time.sleep(chance.uniform(0, 0.3))
        for one in both:
            killed += one.poll() is None
            one.kill()
            one.wait(30)
    assert [0, 0] == [one.wait(120) for one in [started(node) for node in ("n1", "n2")]]

    assert killed > 4
    sql = "select sum(used)::bigint, count(*), count(closed_at) from holds where org_id = 'killed'"
    [(used, holds, closed)] = connection.execute(sql).fetchall()
    sql = """
        select sum(case l.gpu_type when 'h100' then 3 else 1 end
                   * coalesce(l.kept_ms, l.reported_ms))::bigint
          from leases l
         where l.pool_id = 'killed-pool'
    """
    assert [(used,)] == connection.execute(sql).fetchall()
    assert (jobs, jobs) == (holds, closed)
    assert (ISSUED - used, 0, used) == parts(connection, here.org)
    assert () == contradictions(connection)


def wait_for_a_change(
    connection: Connection, pool: str, processes: list["subprocess.Popen[bytes]"]
) -> None:
    """Wait until one of the processes has worked in a pool, or all have ended."""
    sql = "select now from pools where pool_id = %s"
    before = connection.execute(sql, [pool]).fetchall()
    eventually(
        lambda: (
            before != connection.execute(sql, [pool]).fetchall()
            or all(process.poll() is not None for process in processes)
        ),
        "a change in the pool",
    )


def test_a_message_for_a_pool_without_a_server_is_reported(connection: Connection) -> None:
    """After half a minute, by whoever delivers: it must not wait in silence (D4)."""
    stage = Stage(connection)
    nobody = Relay(connection, stage.jobs, {}, stage.clock)
    assert [] == [late for late in nobody.round().late if late.org == stage.world.org]

    stage.later(30)
    done = nobody.round()

    assert [1] == [late.n for late in done.late if late.org == stage.world.org]
    assert 0 == done.sent
    stage.lease()
