"""Who is let in: rates, bounds, what never fits, and who is turned away first (S8, B4)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar.core.instant import HOUR, MINUTE, SECOND
from bursar.core.scheduling.advice.admission import (
    RETRY_WITHOUT_NODES,
    SHED_AT,
    TIER_ORGS,
    Admitted,
    Bucket,
    Rejected,
    RejectionCode,
    admit,
    full_bucket,
)
from bursar.core.scheduling.advice.pool_load import (
    UNKNOWN_WAIT,
    OrgBacklog,
    PoolLoad,
    TierQueue,
    measure_load,
    predicted_wait,
    tasks_if_empty,
)
from bursar.core.scheduling.model.jobs import Job, Shape
from bursar.core.scheduling.model.nodes import Level
from bursar.core.scheduling.model.policy import ENTERPRISE, FREE, PAID, PoolPolicy, Tier
from bursar.core.value import replace
from tests.support.scheduling_cases import PLAIN, T0, Case, with_shares

POLICY = PoolPolicy()  # enterprise, paid, free as shipped
BIG = 2**40


def job_of(text: str) -> Job:
    """A job as cases write it."""
    return Case(want="", nodes="", queued=text).snapshot().waiting[0]


def pool(nodes: str = "n1=8xH100", **case: str) -> PoolLoad:
    """A pool as admission sees it."""
    return measure_load(Case(want="", nodes=nodes, **case).cluster(), T0)  # type: ignore[arg-type]


def asked(
    text: str,
    load: PoolLoad,
    policy: PoolPolicy = PLAIN,
    bucket: Bucket | None = None,
    count: int = 1,
) -> Admitted | Rejected:
    """The answer to one submission."""
    return admit(job_of(text), policy, (load,), bucket or Bucket(level=BIG, at=T0), T0, count)


def code(answer: Admitted | Rejected) -> str | None:
    """Why it was turned away, if it was."""
    return str(answer.code) if isinstance(answer, Rejected) else None


def figures(answer: Admitted | Rejected) -> dict[str, int | str]:
    """The figures of one that was turned away."""
    assert isinstance(answer, Rejected)
    return dict(answer.figures)


# --------------------------------------------------------------------------- rates


def test_a_minute_of_submissions_at_once_then_at_the_rate() -> None:
    """The bucket is exact: the wait that is told is enough and not a microsecond too long."""
    tier = Tier(name="paid", rate_per_minute=7)
    policy, load, job = replace(PLAIN, tiers=(tier,)), pool(), job_of("a:1")
    bucket = full_bucket(tier, T0)
    for _ in range(7):
        answer = admit(job, policy, (load,), bucket, T0)
        assert isinstance(answer, Admitted)
        bucket = answer.bucket
    refused = admit(job, policy, (load,), bucket, T0)

    assert isinstance(refused, Rejected)
    assert (RejectionCode.TOO_FAST, -(-MINUTE // 7)) == (refused.code, refused.retry_after)
    assert {"rate_per_minute": 7, "count": 1} == figures(refused)
    again = T0 + (refused.retry_after or 0)
    assert "too_fast" == code(admit(job, policy, (load,), refused.bucket, again - 1))
    assert isinstance(admit(job, policy, (load,), refused.bucket, again), Admitted)
    rested = admit(job, policy, (load,), refused.bucket, T0 + HOUR)
    assert 6 * MINUTE == rested.bucket.level, "full again, less this one"


def test_an_array_larger_than_the_bucket_goes_when_it_is_full() -> None:
    """It leaves a debt, so that in the long run the rate holds."""
    tier = Tier(name="paid", rate_per_minute=10)
    policy, load, job = replace(PLAIN, tiers=(tier,)), pool(), job_of("a:1")
    answer = admit(job, policy, (load,), full_bucket(tier, T0), T0, count=25)

    assert isinstance(answer, Admitted)
    assert -15 * MINUTE == answer.bucket.level
    later = admit(job, policy, (load,), answer.bucket, T0 + MINUTE)
    assert isinstance(later, Rejected)
    assert later.retry_after == 6 * MINUTE // 10


def test_a_clock_that_stands_still_gives_nothing() -> None:
    """An instant before the last one counts as that one."""
    tier = Tier(name="paid", rate_per_minute=10)
    policy = replace(PLAIN, tiers=(tier,))
    answer = admit(job_of("a:1"), policy, (pool(),), Bucket(level=0, at=T0 + HOUR), T0)

    assert "too_fast" == code(answer)


@pytest.mark.property
@given(
    st.integers(1, 5_000),
    st.lists(st.tuples(st.integers(0, 10 * SECOND), st.integers(1, 40)), max_size=40),
)
def test_no_more_than_the_rate_is_let_in(rate: int, asks: list[tuple[int, int]]) -> None:
    """In any span from the start: at most the rate for its length, a full bucket and one array."""
    tier = Tier(name="paid", rate_per_minute=rate)
    policy, load, job = replace(PLAIN, tiers=(tier,)), pool(), job_of("a:1")
    bucket, now, let_in, last = full_bucket(tier, T0), T0, 0, 0
    for span, count in asks:
        now += span
        answer = admit(job, policy, (load,), bucket, now, count)
        bucket = answer.bucket
        if isinstance(answer, Admitted):
            let_in, last = let_in + count, count

        assert (let_in - last) * MINUTE <= rate * (now - T0) + rate * MINUTE


# --------------------------------------------------------------------------- never


def test_what_alone_exceeds_a_ceiling_is_refused_with_what_would_fit() -> None:
    """A job over a quota waits; one that alone exceeds it is refused at submission (B4)."""
    policy = with_shares(PLAIN, "paid.acme=ceil6 paid.acme.ml=ceil4H100,ceil5A100 @ann=ceil3A100")
    load = pool("n1=8xH100 n2=8xA100")

    assert {
        "path": "paid.acme.ml",
        "needs_milli_gpus": 5_000,
        "would_fit_milli_gpus": 4_000,
    } == figures(asked("a:5", load, policy))
    assert isinstance(asked("a:5/on=H100,A100", load, policy), Admitted), "on the second type"
    counted = asked("a:5/on=H100,A100/counted=ann,other", load, policy)
    assert ("paid.acme.ml", 4_000) == (
        figures(counted)["path"],
        figures(counted)["would_fit_milli_gpus"],
    )
    assert ("ann", 3_000) == tuple(
        figures(asked("a:4/on=A100/counted=ann", load, policy))[name]
        for name in ("path", "would_fit_milli_gpus")
    )
    none = asked("a:1", load, with_shares(PLAIN, "paid.acme=jobs0"))
    assert ("exceeds_ceiling", 0) == (code(none), figures(none)["would_fit_milli_gpus"])
    assert isinstance(none, Rejected)
    assert none.retry_after is None, "it never will be let in as it is"


def test_a_tier_ceiling_counts_too() -> None:
    """A free org may have half of the pool at most; nodes on order are part of it."""
    assert "exceeds_ceiling" == code(asked("a:5/who=free.x.y.z", pool(), POLICY))
    grown = pool("n1=8xH100 n2=8xH100/ready=30m")
    assert isinstance(asked("a:5/who=free.x.y.z", grown, POLICY), Admitted)


def test_what_fits_no_pool_even_if_empty_is_refused_with_what_would_fit() -> None:
    """Judged by real fit, in the closest place that it asks for."""
    load = pool("n1=8xH100/rack=r1/labels=ib n2=8xH100/rack=r2 n3=4xA100/mem=40")
    answer = asked("a:2x5/within=rack", load)

    assert {
        "tasks": 2,
        "would_fit_tasks": 1,
        "within": "rack",
        "largest_node_gpus": 8,
        "most_memory_gib": 80,
        "labels": "ib",
        "regions": "",
    } == figures(answer)
    assert "never_fits" == code(answer)
    assert isinstance(asked("a:2x5", load), Admitted)
    assert "never_fits" == code(asked("a:1/on=A100/mem=80", load))
    missing = figures(asked("a:1/on=L4", load))
    assert (0, 0, 0, "") == tuple(
        missing[name]
        for name in ("would_fit_tasks", "largest_node_gpus", "most_memory_gib", "labels")
    )


def test_nodes_that_are_away_may_come_back() -> None:
    """What they alone could run is turned away for now; what they could not either, for good."""
    load = pool("n1=2xH100 n2=8xH100/state=draining n3=8xH100/state=dead")
    answer = asked("a:2x8", load)

    assert {"pools": 1, "tasks": 2, "would_fit_tasks": 0, "nodes_away": 2} == figures(answer)
    assert isinstance(answer, Rejected)
    assert ("no_nodes", RETRY_WITHOUT_NODES) == (code(answer), answer.retry_after)
    never = asked("a:3x5", load)
    assert ("never_fits", 2) == (code(never), figures(never)["would_fit_tasks"])


def test_a_pool_without_nodes_is_no_ceiling() -> None:
    """All nodes are dead: what can be run then is not known, a ceiling it is not."""
    dead = asked("a:1", pool("n1=8xH100/state=dead"))
    assert isinstance(dead, Rejected)
    assert ("no_nodes", UNKNOWN_WAIT) == (code(dead), dead.wait)
    assert "exceeds_ceiling" == code(asked("a:9", pool("n1=8xH100/state=dead"))), "nor ever could"


def test_without_any_pool_nobody_is_let_in() -> None:
    """Nobody knows for how long; the bucket counts it all the same."""
    bucket = full_bucket(PAID, T0)
    answer = admit(job_of("a:1"), POLICY, (), bucket, T0)

    assert isinstance(answer, Rejected)
    assert ("no_nodes", {"pools": 0}) == (code(answer), figures(answer))
    assert (RETRY_WITHOUT_NODES, UNKNOWN_WAIT) == (answer.retry_after, answer.wait)
    assert answer.bucket.level < bucket.level


def test_a_tier_that_the_policy_does_not_know() -> None:
    """It is told which there are; nothing is taken from any bucket."""
    bucket = Bucket(level=BIG, at=T0)
    answer = asked("a:1/who=gold.acme.ml.ann", pool(), POLICY, bucket)

    assert isinstance(answer, Rejected)
    assert {"tier": "gold", "known": "enterprise,paid,free"} == figures(answer)
    assert ("tier_unknown", None, bucket) == (code(answer), answer.retry_after, answer.bucket)


def test_pools_of_other_regions_do_not_count() -> None:
    """One that may run in Europe alone is refused where no pool stands there; told is where."""
    us, eu = pool("n1=8xH100/region=us-1 n2=1xH100"), pool("n1=8xH100/region=eu-1")
    job, bucket = job_of("a:1x8/region=eu-1"), Bucket(level=BIG, at=T0)
    answer = admit(job, PLAIN, (us,), bucket, T0)

    assert ("never_fits", "us-1") == (code(answer), figures(answer)["regions"])
    assert isinstance(admit(job, PLAIN, (us, eu), bucket, T0), Admitted)


def test_any_pool_will_do() -> None:
    """A job waits in one pool at a time, but is only refused if none could run it."""
    small, large = pool("n1=1xH100"), pool("n1=8xH100")

    assert isinstance(
        admit(job_of("a:1x8"), PLAIN, (small, large), Bucket(level=BIG, at=T0), T0), Admitted
    )


def test_tasks_lie_as_close_as_they_must() -> None:
    """On one node, in one island, in one rack, anywhere; nodes without an island stand alone."""
    sites = pool(
        "n1=8xH100/rack=r1/island=i1 n2=8xH100/rack=r1/island=i1 n3=8xH100/rack=r1"
        " n4=8xH100/rack=r1 n5=4xH100/rack=r2 n6=8xA100"
    ).sites
    fits = {
        level: tasks_if_empty(sites, Shape(types=("H100",), within=level), "H100")
        for level in Level
    }
    assert {Level.NODE: 8, Level.ISLAND: 16, Level.RACK: 32, Level.POOL: 36} == fits


# --------------------------------------------------------------------------- queues


def waiting(**jobs: int) -> PoolLoad:
    """A pool in which orgs of the tier paid have so many jobs waiting, an hour each."""
    orgs = {
        ("paid", org): OrgBacklog(1, count, count * HOUR * 1_000) for org, count in jobs.items()
    }
    return replace(
        pool(),
        orgs=orgs,
        tier_queues={"paid": TierQueue.from_backlogs(8_000, list(orgs.values()))},
        free=0,
    )


def test_a_flooder_meets_its_own_bound_first() -> None:
    """An org with a full queue is refused; its neighbour with nothing is let in at once (S8)."""
    policy = replace(PLAIN, tiers=(Tier(name="paid", queue_max=100, start_target=HOUR),))
    load = waiting(flood=100, mild=3)
    flooder = asked("a:1/who=paid.flood.x.y", load, policy)
    neighbour = asked("a:1/who=paid.mild.x.y", load, policy)

    assert {"path": "paid.flood", "queued": 100, "queue_max": 100} == figures(flooder)
    assert "queue_full" == code(flooder)
    assert isinstance(neighbour, Admitted)
    assert 6 * HOUR // 8 == neighbour.wait, "its own three and as many of the other"
    assert flooder.wait == 103 * HOUR // 8
    assert isinstance(flooder, Rejected)
    assert flooder.retry_after == 103 * HOUR // 8 // 100, "when one of its own has started"
    assert isinstance(asked("a:1/who=paid.new.x.y", load, policy), Admitted)


def test_an_array_counts_as_many() -> None:
    """All of it fits into the queue or none."""
    policy = replace(PLAIN, tiers=(Tier(name="paid", queue_max=10),))

    assert isinstance(asked("a:1", pool(), policy, count=10), Admitted)
    answer = asked("a:1/who=paid.x.y.z", waiting(x=4), policy, count=9)
    assert isinstance(answer, Rejected)
    wait = 4 * HOUR // 8
    assert ("queue_full", wait) == (code(answer), answer.wait)
    assert wait * 3 // 4 == answer.retry_after, "when three of the four have started"


def test_an_array_that_is_more_than_the_queue_is_not_told_to_come_again() -> None:
    """However long it waits there is no room for it: what would be let in is told (S8)."""
    policy = replace(PLAIN, tiers=(Tier(name="paid", queue_max=10),))
    answer = asked("a:1", pool(), policy, count=11)

    assert isinstance(answer, Rejected)
    assert ("queue_full", None) == (code(answer), answer.retry_after)
    assert 10 == figures(answer)["queue_max"]


def test_a_full_tier_refuses_those_with_their_equal_part() -> None:
    """Who has less than an equal part of the tier's queue is let in even then."""
    policy = replace(PLAIN, tiers=(Tier(name="paid", queue_max=10, start_target=BIG),))
    most = 10 * TIER_ORGS
    load = waiting(**{f"o{at}": 9 for at in range(11)}, small=2)
    answer = asked("a:1/who=paid.o1.x.y", load, policy)

    assert 11 * 9 + 2 > most
    assert {"path": "paid", "queued": 101, "queue_max": most, "equal_part": most // 12} == figures(
        answer
    )
    assert "tier_full" == code(answer)
    assert isinstance(asked("a:1/who=paid.small.x.y", load, policy), Admitted)
    assert isinstance(asked("a:1/who=paid.new.x.y", load, policy), Admitted)


# --------------------------------------------------------------------------- overload


def late(**hours: int) -> PoolLoad:
    """A pool in which each tier has so many hours of work waiting, of two orgs."""
    lines = {
        tier: TierQueue.from_backlogs(1_000, [OrgBacklog(1, 1, count * HOUR * 500)] * 2)
        for tier, count in hours.items()
    }
    return replace(pool(), tier_queues=lines)


@pytest.mark.parametrize(
    ("hours", "shed"),
    [
        ({"free": 1}, []),
        ({"free": 2}, ["free"]),  # 30 minutes, four times
        ({"paid": 1}, ["free", "paid"]),  # 2 minutes: 30 times too late, 8 are enough
        ({"enterprise": 1}, ["free", "paid", "enterprise"]),
        ({"free": 999}, ["free"]),
    ],
)
def test_the_lowest_tier_is_turned_away_first(hours: dict[str, int], shed: list[str]) -> None:
    """A tier is turned away when it or one above is late; each higher one twice as late (S8)."""
    load = late(**hours)
    answers = {
        t.name: asked(f"a:1/who={t.name}.new.x.y", load, POLICY) for t in (FREE, PAID, ENTERPRISE)
    }

    assert shed == [name for name, answer in answers.items() if code(answer) == "overloaded"]


@pytest.mark.parametrize(
    ("minutes", "shed"), [(7, []), (8, ["free"]), (15, ["free"]), (16, ["free", "paid"])]
)
def test_a_higher_tier_may_be_twice_as_late(minutes: int, shed: list[str]) -> None:
    """Jobs of the tier paid should start in 2 minutes: four times that sheds those below it."""
    line = TierQueue.from_backlogs(1_000, [OrgBacklog(1, 1, minutes * MINUTE * 500)] * 2)
    load = replace(pool(), tier_queues={"paid": line})
    answers = {t.name: asked(f"a:1/who={t.name}.new.x.y", load, POLICY) for t in (FREE, PAID)}

    assert shed == [name for name, answer in answers.items() if code(answer) == "overloaded"]


def test_come_again_when_the_backlog_is_gone() -> None:
    """As long as it takes until the threshold is reached again, if nobody else comes."""
    answer = asked("a:1/who=free.new.x.y", late(free=3), POLICY)

    assert isinstance(answer, Rejected)
    assert {
        "late_tier": "free",
        "wait_us": 3 * HOUR,
        "pressure_percent": 600,
        "shed_at_percent": SHED_AT,
    } == figures(answer)
    assert HOUR == answer.retry_after
    edge = asked("a:1/who=free.new.x.y", late(free=2), POLICY)
    assert isinstance(edge, Rejected)
    assert SECOND == edge.retry_after


@pytest.mark.property
@given(st.tuples(*[st.integers(0, 50_000)] * 3))
def test_whenever_a_tier_is_turned_away_all_below_are(hours: tuple[int, int, int]) -> None:
    """Whatever the backlog (S8)."""
    load = late(enterprise=hours[0], paid=hours[1], free=hours[2])
    shed = [
        code(asked(f"a:1/who={tier.name}.new.x.y", load, POLICY)) == "overloaded"
        for tier in (ENTERPRISE, PAID, FREE)
    ]
    assert sorted(shed) == shed


# --------------------------------------------------------------------------- what is known


def test_what_a_pool_tells() -> None:
    """What waits by org, what runs, and the tiers' parts; looking changes nothing."""
    case = Case(
        want="",
        nodes="n1=8xH100 n2=8xH100/ready=30m",
        running="r@n1:2/ends=1h",
        queued="a:1/limit=2h b:2/limit=2h/est=30m c:1/who=free.x.y.z/again=10m/limit=4h",
        shares="paid.acme=w3",
    )
    cluster = case.cluster()
    before = cluster.snapshot()
    load = measure_load(cluster, T0)

    assert before == cluster.snapshot()
    assert {
        ("paid", "acme"): OrgBacklog(3, 2, HOUR * 1_000 + HOUR // 2 * 2_000),
        ("free", "x"): OrgBacklog(1, 1, 2 * HOUR * 1_000),
    } == load.orgs
    assert (16, 6_000, 2_000, HOUR // 2 * 2_000) == (
        load.gpus,
        load.free,
        load.running,
        load.remaining,
    )
    assert {"paid": 4_000, "free": 4_000} == {
        t: line.milli_gpus for t, line in load.tier_queues.items()
    }
    assert 30 * MINUTE == load.tier_queues["free"].wait(load.orgs["free", "x"])
    assert {"paid": 2, "free": 1} == {t: line.jobs for t, line in load.tier_queues.items()}


def test_a_tier_that_is_not_known_has_its_part_all_the_same() -> None:
    """Jobs that wait there are counted as those of any other, with a weight of one."""
    case = Case(
        want="",
        nodes="n1=8xH100",
        queued="a:1 b:1/who=gold.x.y.z/limit=2h",
        policy=replace(PLAIN, tiers=(replace(PAID, weight=3, floor_ppm=0),)),
    )
    load = measure_load(case.cluster(), T0)

    assert {"paid": 6_000, "gold": 2_000} == {
        t: line.milli_gpus for t, line in load.tier_queues.items()
    }
    assert HOUR // 2 == predicted_wait(load, job_of("c:1/who=gold.x.y.z"))


def test_likely_spans() -> None:
    """An estimate, within the bound; else half of the bound."""
    assert [HOUR, 30 * MINUTE, 2 * HOUR] == [
        job_of(f"a:1/limit=2h{est}").likely_run for est in ("", "/est=30m", "/est=9h")
    ]


def test_predicted_waits() -> None:
    """Work before it by the tier's part; with none, until GPUs are free; never more than far."""
    job = job_of("a:4")
    full = pool(running="r@n1:8/ends=4h")

    assert 0 == predicted_wait(pool(), job)
    assert 4_000 * 2 * 2 * HOUR // 8_000 == predicted_wait(full, job)
    assert UNKNOWN_WAIT == predicted_wait(pool("n1=8xH100/state=dead"), job), (
        "nothing runs, nothing ends"
    )
    stuck = TierQueue.from_backlogs(0, [OrgBacklog(1, 1, 5)])
    assert (
        UNKNOWN_WAIT
        == stuck.wait(OrgBacklog(1, 1, 5))
        == predicted_wait(replace(waiting(acme=5), tier_queues={"paid": stuck}), job)
    )


def test_one_flooder_does_not_make_a_tier_late() -> None:
    """The org in the middle does not wait for it; when most flood, it does (S8)."""
    little, much = OrgBacklog(1, 1, 1_000), OrgBacklog(1, 9, 9_000_000)

    assert (
        0
        == TierQueue.from_backlogs(1, []).usual_wait()
        == TierQueue.from_backlogs(1, [much]).usual_wait()
    )
    assert 2_000 == TierQueue.from_backlogs(1, [little, much]).usual_wait()
    assert 2_000 == TierQueue.from_backlogs(1, [much, little, little]).usual_wait() - 1_000
    assert (
        18_000_000 + 1_000
        == TierQueue.from_backlogs(1, [little, much, much, much]).usual_wait() - 9_000_000
    )


def test_weights_count_on_both_sides() -> None:
    """Half as much again of one that weighs 3 goes before one that weighs 2."""
    mine, other = OrgBacklog(2, 1, 1_000), OrgBacklog(3, 1, 9_000)

    assert 1_000 + 1_500 == TierQueue.from_backlogs(1, [mine, other]).wait(mine)
    assert 1_000 + 9_000 == TierQueue.from_backlogs(1, [mine, other]).wait(other)


@pytest.mark.property
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 10**9)), min_size=1, max_size=12))
def test_waits_are_the_sum_of_what_goes_before(orgs: list[tuple[int, int]]) -> None:
    """Of every org as much by weight as the own one has, if it has so much."""
    queued = [OrgBacklog(weight, 1, work) for weight, work in orgs]
    line = TierQueue.from_backlogs(1, queued)
    for own in queued:
        ahead = sum(min(one.work, own.work * one.weight / own.weight) for one in queued)
        assert abs(ahead - line.wait(own)) <= 1 + ahead // 10**5
