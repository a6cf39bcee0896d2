"""Between orgs and pools: messages may be lost, repeated, overtaken, processes killed anywhere.

Whatever happens, in the end nothing is stranded (every hold of a job is closed), nothing is charged
twice or lost (each attempt pays exactly what is proven of its run), and `verify`, which compares
both sides, is silent.
"""

import random
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest

from bursar.core.ids import HoldId, JobId, UserId
from bursar.core.instant import DAY, SECOND
from bursar.core.leases import Denied
from bursar.core.ledger.commands import AddUser, SetPolicy
from bursar.core.ledger.values import OrgPolicy
from bursar.core.messages import EndClass, Withdraw
from bursar.core.refusal import Code, Refusal
from bursar.core.value import altered
from bursar.service import relay
from bursar.service.audit import Problem, verify
from bursar.service.batch import Answer, Ask
from bursar.service.jobs import Jobs, JobUnknown, Submission, key_of, through
from bursar.service.lanes import Busy, Limits
from bursar.service.ledger import Ledger
from bursar.service.pool import End, Lease, Placement, Pool, Renewed, Report
from bursar.service.relay import Relay
from bursar.store.outbox import from_orgs, from_pool, message_text
from bursar.store.pool import NewNode, PoolUnknown
from bursar.store.reading import Connection, money_time
from bursar.store.verifying import problems
from bursar.store.verifying_seam import SEAM_CHECKS
from bursar.store.writing import freeze
from tests.builders import T0, gpus
from tests.databases import connected, migrated
from tests.service.seam_chaos import Chaos
from tests.service.seam_driver import (
    ISSUED,
    LOST,
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

NODES = (NewNode("n1", "a100", (1_000, 1_000)), NewNode("n2", "h100", (1_000, 1_000)))
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


def contradictions(connection: Connection) -> tuple[Problem, ...]:
    """What `verify` finds, asked when all stories begin: what some never deliver is not overdue."""
    return verify(connection, clock=Clock())


def disagreements(connection: Connection) -> list[Problem]:
    """What it finds between orgs and pools alone: quicker, to be asked again and again."""
    checks = [check for check in SEAM_CHECKS if not check.timed]
    return [one for check in checks for one in problems(connection, check)]


def world(
    connection: Connection,
    plans: dict[str, Plan],
    clock: Clock,
    nodes: tuple[NewNode, ...] = NODES[:1],
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
    "preempted": Plan(
        tries=(Try(5_000, EndClass.PREEMPTION, kept_ms=3_000), Try(5_000)), requeues=1
    ),
    "withdrawn": Plan(withdrawn=True),
    "lost": Plan(tries=(Try(5_000, LOST),)),
}
SPENT = 3_000 + 5_000 + 5_000


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


def letters(connection: Connection, pool: str) -> list[str]:
    """What a pool has told, in order: the kind of each message."""
    sql = "select body ->> 0 from pool_outbox where pool_id = %s order by org_id, job_id, n"
    return [kind for (kind,) in connection.execute(sql, [pool])]


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

    def lease(self, slot: int = 0) -> Lease:
        """Bring the job to its pool and give it a lease."""
        self.relay.round()
        [given] = self.pool.lease([Placement(self.world.org, JobId("job"), "n1", (slot,))])
        assert isinstance(given, Lease), given
        return given

    def later(self, seconds: int) -> None:
        """Let time pass."""
        self.clock.now += seconds * SECOND

    def reports(self, fence: int, run_ms: int) -> Renewed | Denied:
        """The node reports."""
        [answer] = self.pool.report("n1", [Report(fence, run_ms)])
        return answer

    def runs(self, fence: int, seconds: int, since: int = 0) -> None:
        """The job runs so long, reporting every ten seconds."""
        for second in range(since, since + seconds + 1, 10):
            assert isinstance(self.reports(fence, second * 1_000), Renewed)
            if second < since + seconds:
                self.later(10)

    def ends(self, fence: int, end_class: EndClass, run_ms: int, kept: int | None = None) -> None:
        """The attempt ends."""
        assert [None] == self.pool.end("n1", [End(fence, end_class, run_ms, kept)])

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
    ask([Ask(org, "usual bounds", SetPolicy(policy=OrgPolicy()))])
    reserve = altered(
        stage.world.submission("job").reserve,
        hold=HoldId("other"),
        context=gpus("a100", job="other"),
        expires_at=T0 + 2 * DAY,
    )

    [raw] = ask([Ask(org, "raw", reserve)])
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
    assert Lease(1, 1, T0 + 20 * SECOND, 1_000_000) == lease
    stage.later(2)  # it takes two seconds to start
    stage.runs(lease.fence, 30)
    stage.later(5)
    stage.ends(lease.fence, EndClass.USER, 33_500)
    assert ["Started", "RanSoFar", "RanSoFar", "RanSoFar", "Ended"] == letters(
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


def test_readings_between_two_charges_are_kept_and_not_told(connection: Connection) -> None:
    """So that running jobs write few events; what is proven is durable all the same (D4)."""
    stage = Stage(connection)
    lease = stage.lease()
    for _ in range(9):
        stage.later(1)
        stage.reports(lease.fence, 9_999)  # clamped to what can be true

    assert ["Started"] == letters(connection, stage.world.pool)
    sql = "select run_ms, told_ms, clamped from readings where pool_id = %s"
    assert [(9_000, 0, True)] == connection.execute(sql, [stage.world.pool]).fetchall()
    stage.later(2)
    stage.reports(lease.fence, 9_999)
    assert ["Started"] == letters(connection, stage.world.pool)
    stage.reports(lease.fence, 10_000)
    assert ["Started", "RanSoFar"] == letters(connection, stage.world.pool)
    stage.later(9)
    stage.reports(lease.fence, 19_999)  # counted from what was told last
    assert ["Started", "RanSoFar"] == letters(connection, stage.world.pool)
    stage.reports(lease.fence, 20_000)
    assert ["Started", "RanSoFar", "RanSoFar"] == letters(connection, stage.world.pool)


def test_a_message_that_has_overtaken_another_waits_for_it(connection: Connection) -> None:
    """It is neither handled nor acknowledged before; repeats are acknowledged again (D4)."""
    stage = Stage(connection, Plan(withdrawn=True))
    enqueue, withdraw = from_orgs(connection, None, 10, stage.world.org)

    assert [] == stage.pool.receive([withdraw])
    assert [enqueue] == stage.pool.receive([enqueue])
    assert 1 == len(stage.pool.waiting())
    assert [enqueue, withdraw] == stage.pool.receive([withdraw, enqueue, withdraw])
    assert [] == stage.pool.waiting()
    assert [withdraw] == stage.pool.receive([withdraw])
    assert ["Dropped"] == letters(connection, stage.world.pool)
    stage.relay.round()
    assert (("over", "user"), 0) == (stage.state(), stage.used())
    stage.is_sound()


def test_the_orgs_side_waits_for_what_was_overtaken_too(connection: Connection) -> None:
    """An end is not handled before its start; each message once (D4, M3)."""
    stage = Stage(connection)
    lease = stage.lease()
    stage.runs(lease.fence, 10)
    stage.ends(lease.fence, EndClass.USER, 10_000)
    started, ran, ended = from_pool(connection, stage.world.pool, None, 10)

    assert [] == stage.jobs.receive([ended, ran])
    assert [started] == stage.jobs.receive([ended, started])
    assert "running" == stage.state()[0]
    assert [started, ran, ended] == stage.jobs.receive([ended, ran, started])
    assert [ran, ended] == stage.jobs.receive([ended, ran])
    assert 10_000 == stage.used()
    stage.is_sound()


def test_a_job_is_withdrawn_while_it_runs(connection: Connection) -> None:
    """The worker is asked to stop; until it has, hold and lease go on (M4)."""
    stage = Stage(connection)
    lease = stage.lease()
    stage.reports(lease.fence, 0)
    stage.jobs.withdraw(stage.world.org, JobId("job"))
    stage.jobs.withdraw(stage.world.org, JobId("job"))
    told = from_orgs(connection, None, 10, stage.world.org)
    assert [Withdraw()] == [letter.message for letter in told]  # told once
    stage.relay.round()
    stage.later(5)

    assert Renewed(stage.clock.now + 20 * SECOND, True) == stage.reports(lease.fence, 5_000)
    assert "stopping" == stage.state()[0]
    stage.ends(lease.fence, EndClass.USER, 5_000)
    stage.relay.round()
    assert (("over", "user"), 5_000) == (stage.state(), stage.used())
    stage.is_sound()


def test_a_lost_worker_pays_what_is_proven_and_may_prove_more(connection: Connection) -> None:
    """Settled at the last proven usage; a stale fence renews nothing, its usage counts (M4)."""
    stage = Stage(connection, Plan(run_ms=1_000_000, requeues=1))
    lost = stage.lease()
    stage.runs(lost.fence, 10)
    stage.later(29)
    assert 0 == stage.pool.expire()  # run out, but its slots rest for a while
    assert 1 == stage.pool.slots(["n1"])["n1"][0].taken
    stage.later(1)
    assert 1 == stage.pool.expire()
    second = stage.lease()
    assert (2, 2) == second[:2]
    assert 10_000 == stage.used()
    stage.later(15)

    # Now the first worker is heard of again: it had gone on until its lease ended.
    assert Denied.FENCE_STALE == stage.reports(lost.fence, 99_000)
    assert [Denied.FENCE_STALE] == stage.pool.end("n1", [End(lost.fence, EndClass.USER, 1)])
    stage.relay.round()
    assert 30_000 == stage.used()
    stage.reports(second.fence, 15_000)
    stage.ends(second.fence, EndClass.USER, 15_000)
    stage.relay.round()
    assert (("over", "user"), 45_000) == (stage.state(), stage.used())
    stage.is_sound()


def test_lost_work_is_given_back_and_not_reported_again(connection: Connection) -> None:
    """By an end that was not the job's own; then the job goes on with what is left (M3)."""
    stage = Stage(connection, Plan(run_ms=100_000, requeues=1))
    first = stage.lease()
    stage.runs(first.fence, 10)
    stage.later(1)
    stage.ends(first.fence, EndClass.PLATFORM, 10_000, kept=4_000)
    assert Denied.FENCE_STALE == stage.reports(first.fence, 11_000)
    stage.relay.round()
    assert (("waiting", None), 4_000) == (stage.state(), stage.used())

    second = stage.lease()
    stage.runs(second.fence, 10)
    stage.ends(second.fence, EndClass.USER, 10_000, kept=0)  # its own end: nothing is given back
    stage.relay.round()
    sql = "select run_ms_max from leases where pool_id = %s order by fence"
    assert [(100_000,), (96_000,)] == connection.execute(sql, [stage.world.pool]).fetchall()
    assert (("over", "user"), 14_000) == (stage.state(), stage.used())
    assert (ISSUED - 14_000, 0, 14_000) == parts(connection, stage.world.org)
    stage.is_sound()


def test_a_job_out_of_requeues_is_over(connection: Connection) -> None:
    """Lost work is given back, and then the hold is released (M3)."""
    stage = Stage(connection)
    lease = stage.lease()
    stage.runs(lease.fence, 10)
    stage.ends(lease.fence, EndClass.PREEMPTION, 10_000, kept=0)
    stage.relay.round()

    assert (("over", "preemption"), 0) == (stage.state(), stage.used())
    assert (ISSUED, 0, 0) == parts(connection, stage.world.org)
    stage.is_sound()


def test_usage_told_after_the_hold_has_ended_is_charged_all_the_same(
    connection: Connection,
) -> None:
    """Nobody delivered for an hour; the hold had ended by itself (L12, L13, D8)."""
    stage = Stage(
        connection, Plan(run_ms=100_000, hold_for=30 * SECOND, gpu_types=("a100", "h100"))
    )
    lease = stage.lease()
    stage.runs(lease.fence, 20)
    assert T0 + 30 * SECOND == stage.reports(lease.fence, 20_000).until  # type: ignore[union-attr]
    stage.later(20)
    assert 1 == stage.pool.expire()
    stage.later(3_600)
    late = stage.relay.round().late

    assert len(late) == len(letters(connection, stage.world.pool)) > 3
    assert (("over", "limit"), 20_000) == (stage.state(), stage.used())
    assert (ISSUED - 20_000, 0, 20_000) == parts(connection, stage.world.org)
    stage.is_sound()


def test_a_job_that_waits_longer_than_its_hold_is_dropped(connection: Connection) -> None:
    """Without credits it has no right to start (D8, IS9)."""
    stage = Stage(connection, Plan(hold_for=30 * SECOND))
    stage.relay.round()
    stage.later(30)

    place = Placement(stage.world.org, JobId("job"), "n1", (0,))
    assert [Denied.HOLD_ENDED] == stage.pool.lease([place])
    assert 1 == stage.pool.expire()
    assert [Denied.NOT_QUEUED] == stage.pool.lease([place])
    stage.relay.round()
    assert ("over", "limit") == stage.state()
    stage.is_sound()


def test_a_hold_that_grew_lets_its_lease_last(connection: Connection) -> None:
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

    assert Renewed(T0 + 55 * SECOND, False) == stage.reports(lease.fence, 35_000)
    sql = "select hold_micros, hold_until, received from queue where pool_id = %s"
    grown = (300_000, T0 + 90 * SECOND, 3)
    assert [grown] == connection.execute(sql, [stage.world.pool]).fetchall()
    sql = "select every_ms from readings where pool_id = %s"
    assert [(3_000,)] == connection.execute(sql, [stage.world.pool]).fetchall()
    stage.ends(lease.fence, EndClass.USER, 35_000)
    stage.is_sound()


def test_jobs_go_through_the_ledger_that_others_use(url: str, connection: Connection) -> None:
    """Its lanes, its batches; an org that takes no commands holds up no other's messages (D3)."""
    clock = Clock()
    plans = {"job": Plan(tries=(Try(5_000),))}
    good, frozen = world(connection, plans, clock), world(connection, plans, clock)
    pools = {one.pool: Pool(connection, one.pool, clock) for one in (good, frozen)}
    with Ledger(lambda: connected(url), PRICES) as lanes:
        jobs = Jobs(connection, through(lanes))
        post = Relay(connection, jobs, pools)
        for one in (good, frozen):
            one.began_at = money_time(connection)
            answer = jobs.submit(one.org, "submit", one.submission("job"))
            assert isinstance(answer.outcome, tuple)
            assert jobs.submit(one.org, "submit", one.submission("job")).replayed
        post.round()
        for one in (good, frozen):
            [lease] = pools[one.pool].lease([Placement(one.org, JobId("job"), "n1", (0,))])
            assert isinstance(lease, Lease)
            clock.now += 5 * SECOND
            pools[one.pool].end("n1", [End(lease.fence, EndClass.USER, 5_000)])
        freeze(connection, frozen.org, "for a test")
        done = post.round()

        assert (4, 2) == (done.sent, done.acknowledged)
        assert (ISSUED - 5_000, 0, 5_000) == parts(connection, good.org)
        connection.execute("update orgs set frozen = null where org_id = %s", [frozen.org])
        assert 2 == post.round().acknowledged
        assert (ISSUED - 5_000, 0, 5_000) == parts(connection, frozen.org)
    assert () == contradictions(connection)


def test_a_refused_submission_leaves_nothing(connection: Connection) -> None:
    """No job, no message, and no pool hears of it (M1)."""
    stage = Stage(connection)
    stage.world.plans = {"big": Plan(run_ms=2 * ISSUED)}

    answer = stage.jobs.submit(stage.world.org, "big", stage.world.submission("big"))

    assert isinstance(answer.outcome, Refusal)
    sql = "select job_id from jobs where org_id = %s"
    assert [("job",)] == connection.execute(sql, [stage.world.org]).fetchall()
    with pytest.raises(JobUnknown):
        stage.jobs.withdraw(stage.world.org, JobId("big"))
    with pytest.raises(JobUnknown):
        stage.jobs.extend(stage.world.org, "more", JobId("big"), 1)
    stage.is_sound()


def test_a_submission_is_by_run_time_and_names_its_job(connection: Connection) -> None:
    """A job without a bound, or another's hold, is no job (M1)."""
    stage = Stage(connection)
    ask = stage.world.submission("job")
    for wrong in (
        altered(ask.reserve, run_ms=None, amount=5),
        altered(ask.reserve, hold=HoldId("another")),
    ):
        with pytest.raises(ValueError, match="a job's hold"):
            stage.jobs.submit(stage.world.org, "k", ask._replace(reserve=wrong))


def test_a_message_that_makes_no_sense_holds_up_its_own_job_only(
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
    assert ["good", "odd"] == [job.job for job in driver.pool.waiting()]
    assert "a message cannot be handled" in caplog.text
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


def test_a_pool_denies_what_cannot_be(connection: Connection) -> None:
    """With a reason for each (D9, N4)."""
    stage = Stage(connection, Plan(milli_gpus=2_000))
    stage.relay.round()
    org, job = stage.world.org, JobId("job")
    for place, want in (
        (Placement(org, JobId("other"), "n1", (0, 1)), Denied.JOB_UNKNOWN),
        (Placement("other", job, "n1", (0, 1)), Denied.JOB_UNKNOWN),
        (Placement(org, job, "n9", (0, 1)), Denied.NODE_UNKNOWN),
        (Placement(org, job, "n1", (0, 9)), Denied.SLOT_UNKNOWN),
        (Placement(org, job, "n1", (0,)), Denied.WRONG_SIZE),
        (Placement(org, job, "n1", (0, 0)), Denied.WRONG_SIZE),
        (Placement(org, job, "n1", ()), Denied.WRONG_SIZE),
        (Placement(org, job, "n1", (1, 0)), Lease(1, 1, T0 + 20 * SECOND, 3_600_000)),
        (Placement(org, job, "n1", (1, 0)), Denied.NOT_QUEUED),
    ):
        assert [want] == stage.pool.lease([place])
    assert [Denied.FENCE_UNKNOWN] * 2 == stage.pool.report("n2", [Report(1, 5), Report(9, 5)])
    assert [Denied.FENCE_UNKNOWN] == stage.pool.end("n2", [End(1, EndClass.USER, 5)])
    with pytest.raises(PoolUnknown):
        Pool(connection, "nowhere").expire()


def test_a_slot_is_in_one_lease_at_a_time(connection: Connection) -> None:
    """Whether both are asked for at once or one after the other; when it is free, it is (D9)."""
    plans = {name: Plan() for name in ("a", "b", "c")}
    here = world(connection, plans, Clock())
    driver = Driver(here, connection)
    driver.submit()
    driver.relay.round()
    first, second, third = (Placement(here.org, JobId(name), "n1", (0,)) for name in plans)

    lease, at_once = driver.pool.lease([first, second])
    assert isinstance(lease, Lease)
    assert Denied.SLOT_TAKEN == at_once
    assert [Denied.SLOT_TAKEN] == driver.pool.lease([third])
    assert [None] == driver.pool.end("n1", [End(lease.fence, EndClass.USER, 0)])
    assert [Lease(2, 1, T0 + 20 * SECOND, 3_600_000)] == driver.pool.lease([second])


def test_a_lease_lasts_until_just_before_its_end(connection: Connection) -> None:
    """A report in the last instant renews it, one at its end comes too late (M4)."""
    stage = Stage(connection)
    lease = stage.lease()
    stage.clock.now = lease.until - 1
    assert Renewed(lease.until - 1 + 20 * SECOND, False) == stage.reports(lease.fence, 0)
    stage.clock.now = lease.until - 1 + 20 * SECOND

    assert Denied.FENCE_STALE == stage.reports(lease.fence, 0)
    assert [Denied.FENCE_STALE] == stage.pool.end("n1", [End(lease.fence, EndClass.USER, 0)])


def test_a_withdrawn_job_whose_worker_is_lost_does_not_run_again(connection: Connection) -> None:
    """Though it could: nobody wants it any more (M3)."""
    stage = Stage(connection, Plan(requeues=1))
    lease = stage.lease()
    stage.reports(lease.fence, 0)
    stage.jobs.withdraw(stage.world.org, JobId("job"))
    stage.relay.round()
    stage.ends(lease.fence, EndClass.PLATFORM, 0)
    stage.relay.round()

    assert [] == stage.pool.waiting()
    assert ("over", "platform") == stage.state()
    stage.is_sound()


def test_jobs_that_nobody_asked_for_wait(connection: Connection) -> None:
    """A message about an unknown job is not handled, and harms nobody."""
    stage = Stage(connection)
    lease = stage.lease()
    stage.reports(lease.fence, 0)
    [letter] = from_pool(connection, stage.world.pool, None, 10)

    assert [] == stage.jobs.receive([letter._replace(job=JobId("other"))])
    assert [letter] == stage.jobs.receive([letter])


def test_a_worker_that_never_reported_pays_nothing(connection: Connection) -> None:
    """Its start is where its lease began, and its end comes with it; then it proves more (M4)."""
    stage = Stage(connection, Plan(requeues=1))
    silent = stage.lease()
    stage.later(25)
    assert Denied.FENCE_STALE == stage.reports(silent.fence, 4_000)
    stage.later(5)
    assert 1 == stage.pool.expire()
    assert ["Started", "Ended"] == letters(connection, stage.world.pool)
    quiet = stage.lease()
    stage.later(30)
    assert 1 == stage.pool.expire()
    stage.relay.round()

    assert (("over", "platform"), 4_000) == (stage.state(), stage.used())
    sql = "select started_at - leased_at from readings where pool_id = %s and fence = %s"
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
    stage.ends(lease.fence, EndClass.USER, 0)
    with Ledger(lambda: connected(url), PRICES, Limits(waiting=0)) as lanes:
        busy = Jobs(connection, through(lanes), stage.clock)
        assert [] == busy.receive(from_pool(connection, stage.world.pool, None, 10))
        with pytest.raises(Busy):
            busy.submit(stage.world.org, "k", stage.world.submission("job"))
    stage.relay.round()
    assert ("over", "user") == stage.state()
    stage.is_sound()


def test_a_tenant_cannot_make_the_pools_charges_its_own(connection: Connection) -> None:
    """Whoever has taken the key of a message before gets no free run: it waits and is told (L7)."""
    stage = Stage(connection)
    lease = stage.lease()
    stage.reports(lease.fence, 0)
    [started] = from_pool(connection, stage.world.pool, None, 10)
    taken = Ask(stage.world.org, key_of(started, 1), AddUser(user=UserId("eve")))
    ledger(connection, stage.clock)([taken])

    assert [] == stage.jobs.receive([started])
    stage.later(31)
    late = [one for one in stage.relay.round().late if one.org == stage.world.org]
    assert [started] == late


def test_a_story_without_faults(connection: Connection) -> None:
    """Preempted and run again, withdrawn, lost: each pays what it ran, no more (M3, M4)."""
    clock = Clock()
    here = world(connection, STORY, clock)

    Driver(here, connection).play(clock)

    assert (ISSUED - SPENT, 0, SPENT) == parts(connection, here.org)
    assert () == contradictions(connection)


@pytest.mark.slow
def test_a_process_killed_between_any_two_statements(url: str, connection: Connection) -> None:
    """Whoever died where: started again, the very same comes out (D4, S11, IS14)."""
    clock = Clock()
    with connected(url) as real:
        whole = Mortal(real)
        Driver(world(connection, STORY, clock), whole).play(clock)
    steps = whole.places_to_die()
    assert len(steps) > 100

    with ThreadPoolExecutor(2) as both:
        spent = list(both.map(lambda step: killed_at(url, step), steps))

    assert dict.fromkeys(steps, (ISSUED - SPENT, 0, SPENT)) == dict(zip(steps, spent, strict=True))
    assert () == contradictions(connection)


def killed_at(url: str, step: int) -> tuple[int, int, int]:
    """What became of the credits when a process was killed at a step, and another went on."""
    clock = Clock()
    with connected(url) as connection, connected(url) as doomed:
        here = world(connection, STORY, clock)
        with pytest.raises(Killed):
            Driver(here, Mortal(doomed, step)).play(clock)
        assert [] == disagreements(connection), "with something half done"
        clock.now += SECOND
        Driver(here, connection).play(clock)
        return parts(connection, here.org)


SEEDS = (*range(6), 108)  # the last one had two messages of one hold in one round


@pytest.mark.slow
def test_whatever_happens_each_job_pays_what_is_proven(connection: Connection) -> None:
    """Messages lost, repeated, overtaken; stale fences, double leases, lost workers (M2–M4)."""
    for seed in SEEDS:
        clock = Clock()
        here = world(connection, {}, clock, NODES)
        chaos = Chaos(here, connection, clock, seed)
        for _ in range(250):
            chaos.step()
        assert [] == disagreements(connection), "with messages on their way"
        chaos.settle_down()

        sql = "select hold_id, used from holds where org_id = %s"
        paid: dict[str, int] = dict(connection.execute(sql, [here.org]).fetchall())
        assert chaos.wanted() == paid, seed
        total = sum(paid.values())
        assert total > 0
        assert (ISSUED - total, 0, total) == parts(connection, here.org), seed
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
        return subprocess.Popen([sys.executable, "-m", "tests.service.seam_driver", *given])

    for _ in range(4):
        both = [started(node) for node in ("n1", "n2")]
        wait_for_a_change(connection, here.pool)
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
        select sum(case l.gpu_type when 'h100' then 3 else 1 end * r.run_ms)::bigint
          from leases l join readings r on r.pool_id = l.pool_id and r.fence = l.fence
         where l.pool_id = 'killed-pool'
    """
    assert [(used,)] == connection.execute(sql).fetchall()
    assert (jobs, jobs) == (holds, closed)
    assert (ISSUED - used, 0, used) == parts(connection, here.org)
    assert () == contradictions(connection)


def wait_for_a_change(connection: Connection, pool: str) -> None:
    """Wait until somebody works in a pool."""
    sql = "select now from pools where pool_id = %s"
    before = connection.execute(sql, [pool]).fetchall()
    deadline = time.monotonic() + 60
    while before == connection.execute(sql, [pool]).fetchall() and time.monotonic() < deadline:
        time.sleep(0.01)


def test_an_attempt_is_not_renewed_beyond_its_longest_run(connection: Connection) -> None:
    """Though its hold lasts for a day: it is told to stop, and ends by its limit (M1, M3)."""
    stage = Stage(connection, Plan(run_ms=30_000))
    lease = stage.lease()
    assert 30_000 == lease.run_ms_max
    stage.runs(lease.fence, 20)
    end = T0 + 30 * SECOND
    assert Renewed(end, stop=False) == stage.reports(lease.fence, 20_000)
    stage.later(9)
    assert Renewed(end, stop=False) == stage.reports(lease.fence, 29_000)
    stage.later(1)
    assert Denied.FENCE_STALE is stage.reports(lease.fence, 30_000)

    stage.later(100)
    assert Denied.FENCE_STALE is stage.reports(lease.fence, 130_000)
    stage.pool.expire()

    stage.is_sound()
    assert ("over", "limit") == stage.state()
    assert 30_000 == stage.used()


def test_a_message_for_a_pool_that_nobody_serves_is_told(connection: Connection) -> None:
    """After half a minute, by whoever delivers: it must not wait in silence (D4)."""
    stage = Stage(connection)
    nobody = Relay(connection, stage.jobs, {}, stage.clock)
    assert [] == [late for late in nobody.round().late if late.org == stage.world.org]

    stage.later(30)
    done = nobody.round()

    assert [1] == [late.n for late in done.late if late.org == stage.world.org]
    assert 0 == done.sent
    stage.lease()
