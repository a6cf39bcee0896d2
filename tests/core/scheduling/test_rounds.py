"""Many rounds in a row: nobody to and fro, fair over time, floods that move nobody (S3, S5)."""

from collections import Counter

import pytest

from bursar.core.ids import JobId
from bursar.core.instant import HOUR, MINUTE, SECOND
from bursar.core.scheduling.decisions import Preempt, Start
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.jobs import Job
from bursar.core.scheduling.model.nodes import NodeState
from bursar.core.scheduling.plan import make_plan
from bursar.core.value import replace
from tests.support.plan_text import render_plan
from tests.support.scheduling_cases import T0, Case
from tests.support.scheduling_rounds import Rounds


def jobs(text: str) -> list[Job]:
    """Jobs as a case writes them."""
    return list(Case(nodes="", queued=text, want="").snapshot().waiting)


@pytest.mark.parametrize("past", ["", "paid.acme.ml.ann=1000", "paid.beta.x.bob=1000"])
def test_two_equal_orgs_do_not_preempt_to_and_fro(past: str) -> None:
    """Both want the whole pool for hours: nobody is preempted twice, whoever used more before."""
    a = " ".join(f"a{n:02}:1/est=50m" for n in range(40))
    b = " ".join(f"b{n:02}:1/est=70m/who=paid.beta.x.bob" for n in range(40))
    rounds = Rounds.of(Case(nodes="n1=8xH100", usage=past, want=""))
    for job in jobs(a):
        rounds.arrive(T0, job)
    for job in jobs(b):
        rounds.arrive(T0 + 5 * MINUTE, job)

    rounds.run_until(T0 + 8 * HOUR, every=MINUTE)

    times = Counter(job for _, job, _ in rounds.preempted)
    assert [] == [job for job, count in times.items() if count > 1]
    assert len(rounds.done) >= 8 * 8 * 60 // 70 - 8, "the pool was not kept busy"


def test_a_victim_never_preempts_its_preemptor() -> None:
    """An org that came late gets room once; the other does not take it back in the same hour."""
    running = " ".join(f"b{n}@n1:1@{n}/who=paid.beta.x.bob/ran={n + 1}m" for n in range(8))
    rounds = Rounds.of(Case(nodes="n1=8xH100", running=running, queued="a0:1 a1:1 a2:1", want=""))

    rounds.run_until(T0 + HOUR, every=MINUTE)

    # Eight to nothing becomes five to three, the youngest first: then the parts are as near as
    # they can come, and nobody has the right to ask any more.
    assert ["b0", "b1", "b2"] == [job for _, job, _ in rounds.preempted]
    assert {"a0": 1, "a1": 1, "a2": 1} == {job: len(at) for job, at in rounds.started.items()}


def test_nor_does_a_victim_of_a_floor() -> None:
    """Also if jobs of both orgs straddle their floors, which together exceed the node."""
    a = " ".join(f"a{n}:6/limit=10h a{n}s:2/limit=10h" for n in range(3))
    b = " ".join(f"b{n}:3/limit=4h/who=paid.beta.x.bob" for n in range(12))
    shares = "paid.acme=floor5 paid.beta=floor5"
    rounds = Rounds.of(Case(nodes="n1=8xH100", shares=shares, want=""))
    for job in jobs(a):
        rounds.arrive(T0, job)
    for number, job in enumerate(jobs(b)):
        rounds.arrive(T0 + 10 * MINUTE + number * HOUR, job)

    rounds.run_until(T0 + 48 * HOUR, every=10 * MINUTE)

    pairs = {(victim, preemptor) for _, victim, preemptor in rounds.preempted}
    assert pairs
    assert set() == pairs & {(preemptor, victim) for victim, preemptor in pairs}


def test_a_higher_class_that_comes_later_takes_the_room_and_keeps_it() -> None:
    """The batch job makes room once, waits, and starts again when the urgent one is over."""
    rounds = Rounds.of(Case(nodes="n1=4xH100", queued="low:4/batch/limit=2h", want=""))
    (urgent,) = jobs("urgent:4/prod/limit=1h")
    rounds.arrive(T0 + 10 * MINUTE, urgent)

    rounds.run_until(T0 + 4 * HOUR, every=MINUTE)

    assert [T0 + 10 * MINUTE + 30 * SECOND] == rounds.started[JobId("urgent")]
    assert [T0, T0 + 70 * MINUTE + 30 * SECOND] == rounds.started[JobId("low")]
    assert [(T0 + 10 * MINUTE, "low", "urgent")] == rounds.preempted


def test_a_customer_of_weight_two_gets_twice() -> None:
    """Over a day of jobs of an hour both get GPU time by their weights (S3)."""
    a = " ".join(f"a{n:03}:1/est=1h/fixed" for n in range(200))
    b = " ".join(f"b{n:03}:1/est=1h/fixed/who=paid.beta.x.bob" for n in range(200))
    rounds = Rounds.of(Case(nodes="n1=6xH100", queued=f"{a} {b}", shares="paid.beta=w2", want=""))

    rounds.run_until(T0 + 24 * HOUR - 1)

    starts = Counter(job[0] for job in rounds.started)
    assert {"a": 48, "b": 96} == starts


def test_usage_that_has_decayed_no_longer_counts() -> None:
    """Who used much a week ago and who used nothing come out even."""
    case = Case(nodes="n1=2xH100", usage="paid.acme.ml.ann=1000", want="")
    cluster = case.cluster()
    cluster.advance_to(T0 + 7 * 24 * HOUR)
    acme = cluster.tree.groups.find_group(("paid", "acme"))
    assert acme is not None

    # Half after 1,024 minutes: in a week nearly ten times by half, to about one.
    assert 900_000 < cluster.tree.usage.decayed_usage(acme, cluster.now) < 1_100_000


def test_fair_share_makes_up_for_past_usage() -> None:
    """Who used more waits until the other has used as much, then both take turns."""
    a = " ".join(f"a{n}:1/est=1h" for n in range(9))
    b = " ".join(f"b{n}:1/est=1h/who=paid.beta.x.bob" for n in range(9))
    rounds = Rounds.of(
        Case(nodes="n1=1xH100", queued=f"{a} {b}", usage="paid.acme.ml.ann=3", want="")
    )

    rounds.run_until(T0 + 8 * HOUR - 1)

    order = sorted(rounds.started, key=lambda job: rounds.started[job])
    assert ["b0", "b1", "b2", "a0", "b3", "a1", "b4", "a2"] == order


def p95_of_others(flood: int) -> int:
    """Seconds that nearly all jobs of three customers wait beside so many of a fourth."""
    rounds = Rounds.of(Case(nodes="n1=24xH100", want=""))
    (one,) = jobs("a:1/est=20m")
    for n in range(flood):
        rounds.cluster.enqueue(replace(one, id=JobId(f"a{n:05}")))
    arrived = {}
    for org in ("beta", "cora", "dino"):
        names = (f"{org}{n:02}:1/est=20m/who=paid.{org}.x.u" for n in range(40))
        for n, job in enumerate(jobs(" ".join(names))):
            arrived[job.id] = T0 + n * 3 * MINUTE
            rounds.arrive(arrived[job.id], job)
    rounds.run_until(T0 + 4 * HOUR)
    waits = sorted((rounds.started[job][0] - at) // SECOND for job, at in arrived.items())
    return waits[len(waits) * 95 // 100]


@pytest.mark.slow
def test_a_flood_of_one_customer_delays_no_other() -> None:
    """Ten thousand jobs of one customer, against just as many as keep it busy (S3).

    The others' 95th percentile moves by less than a tenth.
    """
    calm, flooded = p95_of_others(60), p95_of_others(10_000)

    assert 0 < calm
    assert flooded * 10 < calm * 11, (calm, flooded)


def test_a_node_dies_under_a_gang() -> None:
    """The owner ends the gang everywhere, takes the node away and queues it again as a whole."""
    case = Case(nodes="n1=8xH100 n2=8xH100 n3=4xH100", queued="gang:2x8 small:4", want="")
    cluster = case.cluster()
    for decision in make_plan(cluster, T0).decisions:
        cluster.apply(decision)
    cluster.advance_to(T0 + 10 * MINUTE)

    gang = cluster.remove_running(JobId("gang"))
    cluster.add_node(replace(cluster.nodes.by_id[gang.pieces[0].node].node, state=NodeState.DEAD))
    cluster.enqueue(replace(gang.job, queued_at=gang.job.queued_at))

    lost = make_plan(cluster, T0 + 10 * MINUTE)
    assert "gang waits never_fits needs=16 free=8" == render_plan(lost)
    assert ["small"] == sorted(cluster.running), "somebody else was hurt"

    cluster.add_node(replace(cluster.nodes.by_id[gang.pieces[0].node].node, state=NodeState.READY))
    assert "gang -> n1:8+n2:8" == render_plan(make_plan(cluster, T0 + 11 * MINUTE))


def test_a_gang_starts_again_before_new_jobs_after_a_death() -> None:
    """A gang that fell out keeps its place by age among the jobs of its user."""
    case = Case(nodes="n1=8xH100 n2=8xH100", queued="gang:16/waited=1h", want="")
    cluster = case.cluster()
    for decision in make_plan(cluster, T0).decisions:
        cluster.apply(decision)
    cluster.advance_to(T0 + MINUTE)
    gang = cluster.remove_running(JobId("gang"))
    cluster.enqueue(gang.job)
    for job in jobs("new:16"):
        cluster.enqueue(replace(job, queued_at=T0 + MINUTE))

    first = make_plan(cluster, T0 + MINUTE).decisions[0]

    assert isinstance(first, Start)
    assert "gang" == first.job


def test_a_failing_start_backs_off_and_lets_others_pass() -> None:
    """It is out of turn until its time, then it is first again."""
    cluster = Case(nodes="n1=4xH100", queued="bad:4/waited=9m/again=30s good:4", want="").cluster()

    assert "good -> n1:4" == render_plan(make_plan(cluster, T0))
    assert "good -> n1:4" == render_plan(make_plan(cluster, T0 + 30 * SECOND - 1))
    assert render_plan(make_plan(cluster, T0 + 30 * SECOND)).startswith("bad -> n1:4")


def test_freed_gpus_go_to_the_job_they_were_freed_for() -> None:
    """Though a better turn came meanwhile, and the victim left before its grace was over."""
    case = Case(nodes="n1=4xH100", running="low@n1:4/batch", queued="urgent:4/prod", want="")
    cluster = case.cluster()
    for decision in make_plan(cluster, T0).decisions:
        cluster.apply(decision)
    cluster.advance_to(T0 + 5 * SECOND)
    low = cluster.remove_running(JobId("low"))
    cluster.enqueue(replace(low.job, preemptions=1))
    for job in jobs("better:4/who=enterprise.big.x.eve"):
        cluster.enqueue(job)

    assert render_plan(make_plan(cluster, cluster.now)).startswith("urgent -> n1:4 freed; ")


def test_earmarked_gpus_of_a_withdrawn_job_are_free_again() -> None:
    """Whoever comes next in turn gets them when the victim has left."""
    case = Case(
        nodes="n1=4xH100",
        running="low@n1:4/batch/stops=20s",
        queued="urgent:4/prod other:4",
        kept="urgent@n1:4/from=low",
        want="",
    )
    cluster = case.cluster()
    cluster.withdraw(JobId("urgent"))

    assert "other waits needs=4 free=0 start=20s" == render_plan(make_plan(cluster, T0))
    cluster.remove_running(JobId("low"))
    assert "other -> n1:4" == render_plan(make_plan(cluster, T0))
    assert cluster.snapshot() == Cluster.from_snapshot(cluster.snapshot()).snapshot()


def test_a_group_has_the_first_claim_on_what_stays_free_of_its_floor() -> None:
    """q1 loses a job that straddles its floor. Of the GPUs that stay free, q1 gets its floor before
    others, whatever they have used; nothing more is preempted (S3)."""
    rounds = Rounds.of(
        Case(
            nodes="n1=8xH100",
            running="big@n1:5/who=paid.q1.x.ann has@n1:3@5/fixed/who=paid.q2.x.bob",
            queued="m:1x2/who=paid.q2.x.bob/limit=20h"
            " k:1x3/who=paid.q1.x.ann/limit=9h z:1x3/who=paid.q3.x.cat/limit=9h",
            shares="paid.q1=floor4 paid.q2=floor5",
            usage="paid.q1.x.ann=1000",
            want="",
        )
    )
    rounds.run_until(T0 + HOUR, every=MINUTE)

    assert [("big", "m")] == [(victim, job) for _, victim, job in rounds.preempted]
    assert {"m", "k"} == set(rounds.started)


@pytest.mark.parametrize("size", [1, 4, 8, 32])
def test_equal_shares_are_reached_once_and_stay(size: int) -> None:
    """One org has all GPUs when another of the same weight asks for half of them: so many jobs stop
    as make room for that half, once, and nothing stops in the day after (S5)."""
    gpus = f"1x{size}" if size <= 8 else f"{size // 8}x8"
    rounds = Rounds.of(Case(nodes=" ".join(f"n{n}=8xH100" for n in range(8)), want=""))
    ends = "limit=100h/ckpt=10m,20s"
    for job in jobs(" ".join(f"a{n:02}:{gpus}/{ends}" for n in range(96 // size))):
        rounds.arrive(T0, job)
    for job in jobs(" ".join(f"b{n:02}:{gpus}/{ends}/who=paid.b.x.bob" for n in range(64 // size))):
        rounds.arrive(T0 + HOUR, job)
    rounds.run_until(T0 + 24 * HOUR, every=30 * MINUTE)

    tier = rounds.cluster.tree.groups.find_group(("paid",))
    assert tier is not None
    used = {name: org.used["*"] for name, org in tier.children.items()}
    assert {"acme/": 32_000, "b/": 32_000} == used
    by_share = [(victim, job) for _, victim, job in rounds.preempted if victim[0] != job[0]]
    assert 32 // size == len(by_share)
    assert {("a", "b")} == {(victim[0], job[0]) for victim, job in by_share}


def test_no_more_jobs_stop_than_start() -> None:
    """An org that runs nothing asks for its share. The org with the most gives first, so that those
    who give do not take from others in turn: one job stops for each that starts (S5)."""
    running = [f"a{n:02}@n{n // 8}:1@{n % 8}/ran=2h" for n in range(17)]
    running += [f"b{n:02}@n{n // 8}:1@{n % 8}/ran=1h/who=paid.b.x.bob" for n in range(17, 32)]
    waiting = [f"c{n}:1/who=paid.c.x.cat" for n in range(10)]
    waiting += [f"{org}w{n}:1/who=paid.{org}.x.bob" for org in ("b", "acme") for n in range(3)]
    case = Case(
        nodes=" ".join(f"n{n}=8xH100" for n in range(4)),
        running=" ".join(running),
        queued=" ".join(waiting),
        want="",
    )
    stops = [one for one in make_plan(case.cluster(), T0).decisions if isinstance(one, Preempt)]

    assert {f"c{n}" for n in range(10)} == {one.wanted_by for one in stops}
    assert 10 == len(stops)
    assert (6, 4) == (
        sum(one.job.startswith("a") for one in stops),
        sum(one.job.startswith("b") for one in stops),
    )
