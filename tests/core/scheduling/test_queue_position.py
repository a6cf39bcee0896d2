"""The order of turn and the share tree, as `bursar prio` prints them (S3, S4)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar.core.ids import JobId
from bursar.core.instant import HOUR, MINUTE
from bursar.core.scheduling.decisions import Start
from bursar.core.scheduling.explain.queue_position import (
    GroupShare,
    QueueGroup,
    divide_by_weight,
    list_positions,
    list_shares,
    queue_order,
)
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.policy import ANY_TYPE, Share
from bursar.core.scheduling.order.share_group import ShareGroup
from bursar.core.scheduling.plan import make_plan
from bursar.core.value import replace
from tests.support.scheduling_cases import CREDIT, PLAIN, T0, Case, after


def near(expected: int, actual: int) -> bool:
    """Equal but for what fades in an hour: a twentieth at most."""
    return abs(expected - actual) <= expected // 20


def order(case: Case) -> list[str]:
    """The ids of all waiting jobs in turn."""
    before = case.snapshot()
    cluster = Cluster.from_snapshot(before)
    found = [one.job for one in list_positions(cluster, T0, limit=1_000)]
    assert before == cluster.snapshot(), "looking changed the cluster"
    return [str(job) for job in found]


def test_the_order_of_groups() -> None:
    """Kept first, then those that wait too long, then by turn, then those that back off."""
    before = Case(
        want="",
        nodes="n1=8xH100",
        running="old@n1:4/batch/ran=50m new@n1:4@4/batch/ran=5m",
        queued="u:4/prod",
    ).snapshot()
    cluster = Cluster.from_snapshot(after(before, make_plan(Cluster.from_snapshot(before), T0)))
    others = Case(
        want="",
        nodes="n1=8xH100",
        queued="aged:8/waited=48h/who=paid.b.b.b young:8/who=paid.b.b.b"
        " later:1/again=2m soon:1/again=1m/who=paid.zoe.ml.new turn:8/class=50",
    )
    for job in others.snapshot().waiting:
        cluster.enqueue(job)
    found = list_positions(cluster, T0)

    assert ["u", "aged", "young", "turn", "soon", "later"] == [one.job for one in found]
    groups = [
        QueueGroup.EARMARKED,
        QueueGroup.OVERDUE,
        QueueGroup.FAIR_SHARE,
        QueueGroup.FAIR_SHARE,
        QueueGroup.BACKING_OFF,
        QueueGroup.BACKING_OFF,
    ]
    assert groups == [one.group for one in found]
    assert [1, 2, 3, 4, 5, 6] == [one.position for one in found]
    assert ("paid", "zoe", "ml", "new") == found[4].ranks[-1].path, "known, if never in turn"
    assert 2 == len(list_positions(cluster, T0, limit=2))


def test_those_with_a_date_come_first_among_the_aged() -> None:
    """By when they got it; those without one by when they were due."""
    case = Case(
        want="",
        nodes="n1=8xH100",
        running="x@n1:8",
        queued="a:1/waited=50h/who=paid.a.a.a b:1/waited=49h/who=paid.b.b.b c:1/who=paid.c.c.c",
    )
    cluster = case.cluster()
    dated = replace(cluster.waiting[JobId("b")], promised_at=T0 + HOUR, promised_since=T0 - HOUR)
    cluster.withdraw(JobId("b"))
    cluster.enqueue(dated)

    assert ["b", "a", "c"] == [one.job for one in list_positions(cluster, T0)]


def test_the_oldest_that_can_start_is_the_one_that_is_aged() -> None:
    """As a plan takes them: one over a ceiling is passed over, users with a date do not count."""
    case = Case(
        want="",
        nodes="n1=8xH100",
        running="x@n1:2",
        queued="over:8/waited=50h/on=A100 old:1/waited=40h new:1/waited=30h"
        " z:1/waited=25h/who=paid.z.z.z"
        " kept:8/waited=60h/promised=1h,1h,n1:8/who=paid.b.b.b next:8/waited=50h/who=paid.b.b.b",
        shares="paid.acme=ceil1A100",
        policy=replace(PLAIN, looks=2),
    )
    found = list_positions(case.cluster(), T0)

    assert ["kept", "old", "z"] == [one.job for one in found if one.group is QueueGroup.OVERDUE]


def test_what_decided_is_told_from_the_tier_to_the_user() -> None:
    """Floors, then usage by weight at each level; then class, the policy's key and age (S3)."""
    case = Case(
        want="",
        nodes="n1=8xH100",
        running="x@n1:8/who=paid.big.ml.zoe/ran=60m",
        queued="a:8/who=paid.acme.ml.ann/used=3/waited=5m b:8/who=paid.acme.ml.bob/class=7",
        shares="paid.acme=w2,floor4",
        usage="paid.acme.ml.ann=12 paid.acme.ml.bob=4",
    )
    first, second = list_positions(case.cluster(), T0)

    assert ("b", "a") == (first.job, second.job)
    paid, acme, ml, bob = first.ranks
    assert [("paid",), ("paid", "acme"), ("paid", "acme", "ml")] == [
        rung.path for rung in first.ranks[:3]
    ]
    assert ["owed_below", "owed", "fair", "fair"] == [rung.rank for rung in first.ranks]
    assert near(4 * CREDIT, bob.usage)
    assert near(16 * CREDIT, ml.usage)
    assert near(8 * CREDIT, acme.usage), "by weight"
    assert near(32 * CREDIT, paid.usage), "8 GPUs for an hour, and one ahead"
    assert near(12 * CREDIT, second.ranks[-1].usage)
    assert (0, 7) == (second.priority_class, first.priority_class)
    assert ((3 * CREDIT,), T0 - 5 * MINUTE) == (second.user_order, second.queued_at)


def test_jobs_of_several_shapes_are_merged_in_a_user() -> None:
    """Inside a user the policy's key decides, whatever the shapes."""
    case = Case(
        want="",
        nodes="n1=8xH100",
        running="x@n1:8",
        queued="a:1/used=3 b:2/used=1 c:1/used=2 d:2/used=0 e:4/class=1/used=9",
    )
    assert ["e", "d", "b", "c", "a"] == order(case)


@pytest.mark.property
@given(st.lists(st.integers(0, 5), min_size=1, max_size=8), st.integers(0, 3))
def test_a_plan_starts_jobs_in_this_order(used: list[int], org: int) -> None:
    """With one GPU free and jobs alike, the plan starts whoever stands first (S3)."""
    queued = " ".join(
        f"j{at}:1/who=paid.o{at % (org + 1)}.t.u{at % 2}/used={one}/waited={one}m"
        for at, one in enumerate(used)
    )
    usage = " ".join(f"paid.o{at}.t.u{at % 2}={at * 3 + 1}" for at in range(org + 1))
    case = Case(want="", nodes="n1=1xH100", queued=queued, usage=usage)
    starts = [one for one in make_plan(case.cluster(), T0).decisions if isinstance(one, Start)]

    assert [starts[0].job] == order(case)[:1]
    assert sorted(order(case)) == sorted(f"j{at}" for at in range(len(used)))


# --------------------------------------------------------------------------- shares


def held(case: Case) -> dict[str, GroupShare]:
    """What each place has, by its name."""
    before = case.snapshot()
    cluster = Cluster.from_snapshot(before)
    found = list_shares(cluster, T0)
    assert before == cluster.snapshot(), "looking changed the cluster"
    return {".".join(one.path): one for one in found}


def test_what_each_place_has_and_is_entitled_to() -> None:
    """Weight, floor, ceiling, GPUs by type, faded usage, and the parts of the pool (S3)."""
    case = Case(
        want="",
        nodes="n1=8xH100 n2=8xA100",
        running="x@n1:4/who=paid.acme.ml.ann/ran=60m y@n2:2/who=paid.acme.ml.ann"
        " z@n2:2@2/who=free.one.two.bob",
        queued="w:1/who=paid.big.ml.zoe",
        shares="paid=w3 paid.acme=w2,floor4,ceil12,jobs9 free=ceil3",
    )
    found = held(case)
    acme = found["paid.acme"]

    assert (2, ((ANY_TYPE, 4),), ((ANY_TYPE, 12),), 9) == (
        acme.weight,
        acme.floor,
        acme.ceiling,
        acme.jobs_max,
    )
    assert (2, 0, (("A100", 2_000), ("H100", 4_000))) == (
        acme.running_jobs,
        acme.waiting_jobs,
        acme.used_milli_gpus,
    )
    assert near(4 * CREDIT + CREDIT // 3, acme.usage)
    assert 375_000 == acme.current_share_ppm
    assert 1 == found["paid.big"].waiting_jobs
    # free has 3 of 16 at most, the rest is paid's: 13 GPUs, 12 at most for acme by 2 : 1
    assert (812_500, 187_500) == (
        found["paid"].entitled_share_ppm,
        found["free"].entitled_share_ppm,
    )
    assert 13_000 * 2 // 3 * 1_000_000 // 16_000 == acme.entitled_share_ppm
    assert list(found) == sorted(found), "each before those below it"
    assert list(found)[:3] == ["free", "free.one", "free.one.two"]


def test_a_place_that_wants_nothing_is_entitled_to_nothing_now() -> None:
    """Its part is lent while it is not used."""
    case = Case(want="", nodes="n1=8xH100", queued="a:1", usage="free.x.y.z=5")
    found = held(case)

    assert (1_000_000, 0) == (found["paid"].entitled_share_ppm, found["free"].entitled_share_ppm)
    assert near(5 * CREDIT, found["free.x"].usage)


def test_an_empty_pool_has_no_parts() -> None:
    """No GPUs, nothing to divide."""
    case = Case(want="", nodes="n1=8xH100/state=dead", queued="a:1")

    assert {0} == {one.current_share_ppm + one.entitled_share_ppm for one in held(case).values()}


def place(**share: object) -> ShareGroup:
    """A place with a share of its own."""
    return ShareGroup(("x",), "x", None, Share(**share))  # type: ignore[arg-type]


def test_floors_first_then_weights_up_to_ceilings() -> None:
    """Nobody below its floor, nobody above its ceiling, the rest by weight."""
    floors = [place(floor=((ANY_TYPE, 6),)), place(), place(weight=3)]
    by_type = [place(floor=(("H100", 4), ("A100", 4))), place()]
    ceilings = [place(ceiling=((ANY_TYPE, 2),)), place(), place(ceiling=((ANY_TYPE, 9),))]
    capped = [place(floor=((ANY_TYPE, 6),), ceiling=((ANY_TYPE, 3),)), place()]
    too_many = [place(floor=((ANY_TYPE, 8),)), place(floor=((ANY_TYPE, 9),)), place()]

    assert [6_000, 1_000, 3_000] == divide_by_weight(10_000, floors)
    assert [8_000, 2_000] == divide_by_weight(10_000, by_type)
    assert [2_000, 4_000, 4_000] == divide_by_weight(10_000, ceilings)
    assert [3_000, 7_000] == divide_by_weight(10_000, capped)
    assert [8_000, 9_000, 0] == divide_by_weight(10_000, too_many)
    assert [10_000, 0] == divide_by_weight(10_000, [place(floor=((ANY_TYPE, 99),)), place()])
    both = [
        place(floor=((ANY_TYPE, 4),)),
        place(weight=6, ceiling=((ANY_TYPE, 5),)),
        place(weight=3),
    ]
    assert [4_000, 4_000, 2_000] == divide_by_weight(10_000, both)
    assert [] == divide_by_weight(10_000, [])


def test_in_turn_is_lazy_enough_to_stop() -> None:
    """The first can be had without the rest."""
    cluster = Case(want="", nodes="n1=1xH100", queued="a:1 b:1", policy=PLAIN).cluster()

    assert "a" == next(queue_order(cluster))[1].id


def test_whoever_outlasts_all_stands_first() -> None:
    """The order that is printed is the one in which a plan looks (S3)."""
    queued = "short:4/est=1h pole:1/est=9h also:1/est=8h next:4/est=2h"
    case = Case(nodes="n1=8xH100", queued=queued, want="")

    assert ["pole", "also", "short", "next"] == [
        one.job for one in list_positions(case.cluster(), T0)
    ]
