"""Which pool a job waits in, and when it should wait in another (S1, S10)."""

import random
from dataclasses import dataclass
from typing import Any

import pytest

from bursar.core.ids import JobId
from bursar.core.instant import HOUR, MINUTE, SECOND
from bursar.core.scheduling.advice.admission import (
    Admitted,
    Rejected,
    RejectionCode,
    admit,
    full_bucket,
)
from bursar.core.scheduling.advice.autoscale import CapacityOffer
from bursar.core.scheduling.advice.pool_load import UNKNOWN_WAIT, measure_load
from bursar.core.scheduling.advice.routing import (
    MOVE_PATIENCE,
    MOVE_REST,
    MOVE_SAVES_MIN,
    PoolBid,
    PoolMove,
    Prospect,
    WaitingJob,
    find_better_pool,
    measure_prospect,
    rank_pools,
    with_job,
    with_offers,
)
from bursar.core.scheduling.model.jobs import Job
from bursar.core.scheduling.model.policy import FREE, PoolPolicy
from bursar.core.scheduling.plan import carry_out
from bursar.core.value import replace
from tests.support.scheduling_cases import T0, Case


def job_of(text: str) -> Job:
    """A job as cases write it."""
    return Case(want="", nodes="", queued=text).snapshot().waiting[0]


def pool(name: str, nodes: str, running: str = "", queued: str = "", shares: str = "") -> Prospect:
    """A pool as a router sees it."""
    case = Case(want="", nodes=nodes, running=running, queued=queued, shares=shares)
    return measure_prospect(name, case.cluster(), T0)


@dataclass(frozen=True)
class Two:
    """Two pools, and which of them a job goes to."""

    a: tuple[str, str, str]  # nodes, running, queued
    b: tuple[str, str, str]
    job: str
    want: str


CASES = {
    "where GPUs are free": Two(
        a=("n1=8xH100", "long@n1:8/ends=4h", ""), b=("n1=8xH100", "", ""), job="j:1", want="b"
    ),
    "where more is free, if both have enough": Two(
        a=("n1=8xH100 n2=8xA100", "", ""), b=("n1=8xH100 n2=8xH100", "", ""), job="j:1", want="b"
    ),
    "by name, if all else is equal": Two(
        a=("n1=8xH100", "", ""), b=("n1=8xH100", "", ""), job="j:1", want="a"
    ),
    "the more welcome type, if both start at once": Two(
        a=("n1=8xA100", "", ""), b=("n1=4xH100", "", ""), job="j:1/on=H100,A100", want="b"
    ),
    "a less welcome type that is free": Two(
        a=("n1=8xA100", "", ""),
        b=("n1=8xH100", "long@n1:8/ends=4h", ""),
        job="j:1/on=H100,A100",
        want="a",
    ),
    "what ends sooner": Two(
        a=("n1=8xH100", "long@n1:8/ends=9h", ""),
        b=("n1=8xH100", "brief@n1:8/ends=1h", ""),
        job="j:1",
        want="b",
    ),
    "what has less waiting": Two(
        a=("n1=8xH100", "x@n1:8/ends=1h", "q:8/limit=10h/who=paid.bee.x.y"),
        b=("n1=8xH100", "x@n1:8/ends=2h", ""),
        job="j:1",
        want="b",
    ),
    "not behind one's own": Two(
        a=("n1=8xH100", "x@n1:8/ends=1h", "q:8/limit=20h/on=A100 r:8/limit=20h/on=A100"),
        b=("n1=8xH100", "x@n1:8/ends=2h", ""),
        job="j:1",
        want="b",
    ),
    "not where others wait for what is free": Two(
        a=("n1=8xH100", "", "gang:2x8/who=paid.bee.x.y"),
        b=("n1=8xH100", "x@n1:8/ends=1h", ""),
        job="j:1",
        want="b",
    ),
    "where the free GPUs lie together": Two(
        a=("n1=8xH100 n2=8xH100", "x@n1:4/ends=4h y@n2:4/ends=4h", ""),
        b=("n1=8xH100", "", ""),
        job="j:1x8",
        want="b",
    ),
    "where a gang lies within a rack": Two(
        a=("n1=8xH100/rack=r1 n2=8xH100/rack=r2", "", ""),
        b=("n1=8xH100/rack=r1 n2=8xH100/rack=r1", "", ""),
        job="j:2x8/within=rack",
        want="b",
    ),
    "where tasks share an island": Two(
        a=("n1=4xH100 n2=4xH100", "", ""),
        b=("n1=4xH100/island=i n2=4xH100/island=i", "", ""),
        job="j:2x4/within=island",
        want="b",
    ),
    "where one node has all of it": Two(
        a=("n1=4xH100 n2=4xH100 n3=4xH100", "", ""),
        b=("n1=8xH100", "", ""),
        job="j:2x4/within=node",
        want="b",
    ),
    "not where nodes are dead": Two(
        a=("n1=8xH100/state=dead n2=8xH100/state=draining", "", ""),
        b=("n1=8xH100", "x@n1:8/ends=9h", ""),
        job="j:1",
        want="b",
    ),
    "where nodes are away, if nothing else has them": Two(
        a=("n1=8xA100", "", ""), b=("n1=8xH100/state=draining", "", ""), job="j:1", want="b"
    ),
    "where nodes are on order": Two(
        a=("n1=8xA100", "", ""), b=("n1=8xH100/ready=10m", "", ""), job="j:1", want="b"
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_job_goes(case: Two) -> None:
    """To the pool where it starts first (S1)."""
    found = rank_pools(job_of(case.job), (pool("a", *case.a), pool("b", *case.b)))

    assert case.want == found.bids[0].pool
    assert found == rank_pools(job_of(case.job), (pool("b", *case.b), pool("a", *case.a)))


def test_a_choice_says_why() -> None:
    free, busy = pool("a", "n1=8xH100"), pool("b", "n1=8xH100", "x@n1:8/ends=1h")
    away, on_order = pool("c", "n1=8xH100/state=dead"), pool("d", "n1=8xH100/ready=10m")

    told = {
        bid.pool: bid.render for bid in rank_pools(job_of("j:1"), (free, busy, away, on_order)).bids
    }
    assert {
        "a": "H100 is free",
        "b": "it starts first there, on H100: in about 7 min 30 s",
        "c": "the H100 nodes that it needs are not ready; it waits for them",
        "d": "it starts first there, on H100: start time unknown",
    } == told


TOO_LARGE = (
    "No H100 node can run a task, even when empty. A task needs 16 GPUs, 0 CPUs and 0 MiB of"
    " memory; the largest node has 8 GPUs."
)
LACKS = {
    "j:1/on=B200": "No node has B200.",
    "j:1/region=eu": "No H100 node is in region eu.",
    "j:1/mem=141": "H100 has at most 80 GiB of GPU memory; this job needs 141 GiB.",
    "j:1/label=ib": "No H100 node has the label ib.",
    "j:1/label=fast,ssd": "No H100 node has all of: fast, ssd, 0 GiB.",
    "j:0.001": "0.001 GPUs of H100 is not a whole number of slots (slots per GPU: 1 or 4). Possible"
    " instead: 0.25 GPUs.",
    "j:0.25/label=ssd": "No H100 node has all of: ssd, 0 GiB, slots of 0.25 GPU.",
    "j:1x16": TOO_LARGE,
    "j:4x8": "Even without other jobs, only 2 of 4 tasks would fit on H100 within one pool.",
    "j:1x16/on=B200,H100": TOO_LARGE,
}


@pytest.mark.parametrize("job", LACKS)
def test_a_pool_that_never_runs_it_says_the_nearest_thing_that_it_lacks(job: str) -> None:
    nodes = "n1=8xH100/labels=fast/slots=4/region=us n2=8xH100/labels=ssd/region=us/state=dead"
    found = rank_pools(job_of(job), (pool("p", nodes),))

    assert ((), [f"p: {LACKS[job]}"]) == (found.bids, [lack.render for lack in found.lacks])
    assert RejectionCode.NEVER_FITS is found.lacks[0].code


def test_a_ceiling_forbids_a_pool() -> None:
    capped = pool("a", "n1=8xH100", shares="paid.acme=ceiling2")
    found = rank_pools(job_of("j:4"), (capped, pool("b", "n1=8xA100")))

    assert () == found.bids
    assert [
        "a: paid.acme may use at most 2 GPUs; this job needs 4 GPUs.",
        "b: No node has H100.",
    ] == [lack.render for lack in found.lacks]
    assert RejectionCode.EXCEEDS_CEILING is found.lacks[0].code


def test_nobody_says_never_before_there_are_nodes() -> None:
    found = rank_pools(job_of("j:1"), (pool("b", ""), pool("a", "")))

    assert ["a", "b"] == [bid.pool for bid in found.bids]
    assert all(bid.away for bid in found.bids)
    assert ((), ()) == rank_pools(job_of("j:1"), ())


def test_what_can_be_ordered_is_waited_for() -> None:
    """As many nodes as can be had at once, of the kind that is offered; all others are refused."""
    node = Case(want="", nodes="n=8xH100").snapshot().nodes[0]
    offers = (
        CapacityOffer(node=node, price=1, delay=MINUTE, most=2),
        CapacityOffer(node=replace(node, gpu_type="B200"), price=1, delay=MINUTE, most=0),
    )
    plain = pool("a", "n1=8xA100")
    offering = with_offers(plain, offers)

    def bids(job: str) -> list[tuple[str, bool]]:
        found = rank_pools(job_of(job), (offering, pool("b", "n1=8xA100")))
        return [(bid.pool, bid.away) for bid in found.bids]

    assert [("a", True)] == bids("j:2x8")
    assert [] == bids("j:3x8") == bids("j:1/on=B200")
    assert [("a", False), ("b", False)] == bids("j:1/on=A100")
    assert plain == with_offers(plain, ())


def test_what_was_sent_counts_until_the_scheduler_tells_anew() -> None:
    """So a burst spreads over the pools, and then goes where the queue is shorter."""
    pools = {"a": pool("a", "n1=2xH100"), "b": pool("b", "n1=3xH100")}
    sent = []
    for _ in range(8):
        bid = rank_pools(job_of("j:1"), [*pools.values()]).bids[0]
        sent.append(bid.pool)
        pools[bid.pool] = with_job(pools[bid.pool], job_of("j:1"), bid)

    assert "babab" == "".join(sent[:5])
    assert {"a", "b"} == set(sent[5:])


def test_a_pool_of_a_type_that_is_not_there_counts_it_as_ahead() -> None:
    bid = PoolBid(pool="a", wait=UNKNOWN_WAIT, gpu_type="H100", types=("H100",), away=True)
    known = with_job(pool("a", "n1=8xA100"), job_of("j:2/limit=2h"), bid)

    assert 2_000 * HOUR == known.stocks["H100"].waiting


# --------------------------------------------------------------------------- moving


def waits(job: str = "j:1", **changes: Any) -> WaitingJob:
    """A job that has waited in pool `a` for an hour."""
    one = WaitingJob(job_of(job), "a", T0 - HOUR, 0, frozenset({"a"}))
    return one._replace(**changes)


BUSY = ("a", "n1=8xH100", "x@n1:8/ends=4h", "j:1")
IDLE = ("b", "n1=8xH100", "", "")


def test_a_job_moves_to_where_it_starts_at_once() -> None:
    found = find_better_pool(waits(), (pool(*BUSY), pool(*IDLE)), T0)

    assert isinstance(found, PoolMove)
    assert ("b", 0) == (found.to.pool, found.to.wait)
    assert "it would wait 30 min in a; in b, H100 is free" == found.reason


STAYS = {
    "it has not waited long": (waits(since=T0 - MOVE_PATIENCE + 1), BUSY, IDLE),
    "it has moved a moment ago": (waits(since=T0 - MOVE_REST + 1, moves=1), BUSY, IDLE),
    "it was there": (waits(been=frozenset({"a", "b"})), BUSY, IDLE),
    "it is next here": (waits(), ("a", "n1=8xH100", "x@n1:8/ends=30m", "j:1"), IDLE),
    "it would wait there, too": (waits(), BUSY, ("b", "n1=8xH100", "x@n1:8/ends=1h", "")),
    "the other cannot run it": (waits(), BUSY, ("b", "n1=8xA100", "", "")),
    "the other's nodes are away": (waits(), BUSY, ("b", "n1=8xH100/state=dead", "", "")),
    "nobody knows its pool": (waits(pool="c"), BUSY, IDLE),
    "its pool may be back in a moment": (
        waits(lacking_since=T0 - MOVE_PATIENCE + 1),
        ("a", "n1=8xH100/state=dead", "", "j:1"),
        IDLE,
    ),
    "its pool has lacked something for a moment": (
        waits(),
        ("a", "n1=8xH100/state=dead", "", "j:1"),
        IDLE,
    ),
}


@pytest.mark.parametrize(("one", "here", "there"), STAYS.values(), ids=STAYS)
def test_a_job_stays_if(
    one: WaitingJob, here: tuple[str, str, str, str], there: tuple[str, str, str, str]
) -> None:
    """Moves are few and calm."""
    assert find_better_pool(one, (pool(*here), pool(*there)), T0) is None


@pytest.mark.parametrize("nodes", ["n1=8xH100/state=dead", "n1=8xH100/state=draining", "n1=8xA100"])
def test_a_job_moves_when_its_pool_has_lost_what_it_needs(nodes: str) -> None:
    """Also to where it has to wait."""
    there = pool("b", "n1=8xH100", "x@n1:8/ends=1h")
    found = find_better_pool(
        waits(lacking_since=T0 - MOVE_PATIENCE), (pool("a", nodes, "", "j:1"), there), T0
    )

    assert found is not None
    assert found.reason.startswith("a has lost what it needs; in b, it starts first there")


def test_a_job_is_not_behind_itself() -> None:
    """Its own work does not count as what it waits for, nor does its own place in the line."""
    alone = pool("a", "n1=8xH100", "x@n1:8/ends=10m", "j:8/limit=40h")
    crowd = pool("a", "n1=8xH100", "x@n1:8/ends=10m", "j:8/limit=40h k:8/limit=40h")
    other = pool(*IDLE)

    assert (
        find_better_pool(waits("j:8/limit=40h"), (alone, other), T0) is not None
    )  # 10 min for all of it
    assert find_better_pool(waits("j:1/limit=40h"), (alone, other), T0) is not None
    assert find_better_pool(waits("j:8/limit=40h"), (crowd, other), T0) is not None
    brief = pool("a", "n1=8xH100", "x@n1:8/ends=4m", "j:8/limit=40h")
    assert find_better_pool(waits("j:8/limit=40h"), (brief, other), T0) is None


def test_nobody_can_say_how_long_if_nothing_runs_that_could_end() -> None:
    """A pool whose other nodes are on order, without a job that could make room."""
    here = pool("a", "n1=4xH100 n2=4xH100/ready=9h", "", "j:1x8")
    there = pool("b", "n1=8xH100")

    assert find_better_pool(waits("j:2x4"), (here, there), T0) is not None
    found = find_better_pool(waits("j:2x4"), (here, there), T0)
    assert found is not None
    assert "for an unknown time" in found.reason


def test_bounds_are_as_documented() -> None:
    assert (2 * MINUTE, 5 * MINUTE, 10 * MINUTE) == (MOVE_PATIENCE, MOVE_SAVES_MIN, MOVE_REST)


# --------------------------------------------------------------------------- a pool that is named


def test_who_names_a_pool_may_wait_for_what_it_lacks() -> None:
    """But not beyond its bounds."""
    load = pool("a", "n1=8xA100").load
    tier = FREE
    bucket = full_bucket(tier, T0)
    job = job_of("j:64/who=free.acme.x.y")

    assert isinstance(admit(job, PoolPolicy(), (load,), bucket, T0), Rejected)
    assert isinstance(
        admit(job, PoolPolicy(), (load,), bucket, T0, allow_unplaceable=True), Admitted
    )
    empty = admit(
        job, PoolPolicy(), (load,), full_bucket(tier, T0), T0, 121, allow_unplaceable=True
    )
    assert isinstance(empty, Admitted)
    spent = admit(
        job, PoolPolicy(), (load,), empty.bucket, T0 + SECOND // 2, allow_unplaceable=True
    )
    assert isinstance(spent, Rejected)
    assert RejectionCode.TOO_FAST is spent.code


# --------------------------------------------------------------------------- counted as it comes


@pytest.mark.parametrize("seed", range(20))
def test_what_waits_is_counted_as_a_scan_would(seed: int) -> None:
    """However jobs come, start, are kept GPUs for and go: no count hangs on the queue's length."""
    chance = random.Random(seed)
    names = [f"j{n}" for n in range(12)]
    told = (
        f"{name}:{chance.choice((1, 2, 4, 8))}/limit={chance.randrange(1, 9)}h"
        f"/on={chance.choice(('H100', 'A100', 'A100,H100'))}"
        f"/who={chance.choice(('paid.acme.x.y', 'free.bee.x.y', 'enterprise.cee.x.y'))}"
        f"{chance.choice(('', '/est=30m', '/again=5m', '/prod'))}"
        for name in names
    )
    running = f"x@n1:{chance.randrange(1, 8)}/who=free.bee.x.y y@n2:8/ends=1h/who=paid.acme.x.y"
    case = Case(
        want="",
        nodes="n1=8xH100 n2=8xA100",
        running=running,
        queued=" ".join(told),
        policy=PoolPolicy(),
    )
    cluster = case.cluster()
    for minute in range(4):
        now = T0 + minute * 3 * MINUTE
        carry_out(cluster, now)
        job = cluster.waiting.get(JobId(chance.choice(names)))
        if job is not None and job.id not in cluster.earmarks:
            cluster.withdraw(job.id)
        load = measure_load(cluster, now)
        found: dict[tuple[str, ...], tuple[int, int]] = {}
        ahead: dict[str, int] = {}
        for job in cluster.waiting.values():
            work = job.shape.milli_gpus * job.likely_run
            jobs, sum_of_work = found.get(job.path[:2], (0, 0))
            found[job.path[:2]] = jobs + 1, sum_of_work + work
            if job.not_before <= now:
                ahead[job.shape.types[0]] = ahead.get(job.shape.types[0], 0) + work

        assert found == {org: (one.jobs, one.work) for org, one in load.orgs.items()}
        assert ahead == cluster.backlog.likely_waiting_work
