"""The three tiers as shipped: floors, ceilings, weights, targets, who makes room (S4, S5)."""

from collections import Counter

import pytest

from bursar.core.instant import HOUR, MINUTE, SECOND
from bursar.core.scheduling.decisions import Start
from bursar.core.scheduling.model.policy import ENTERPRISE, FREE, PAID, PoolPolicy
from bursar.core.scheduling.plan import make_plan
from tests.support.scheduling_cases import T0, Case
from tests.support.scheduling_checks import check

SHIPPED = PoolPolicy()

EVE = "/who=enterprise.big.x.eve"
FAY = "/who=free.solo.x.fay"
GUS = "/who=free.tiny.x.gus"
NEXT = "/who=paid.beta.x.bob"

# Of a pool of 20 GPUs enterprise has a floor of 14, paid of 2, free of 1 and a ceiling of 10.
CASES = {
    # ------------------------------------------------------------------ order
    "enterprise below its floor goes before paid that has its own": Case(
        nodes="n1=20xH100",
        running="p@n1:6/fixed",
        queued=f"a:14 e:14{EVE}",
        usage="enterprise.big.x.eve=1000",
        policy=SHIPPED,
        want="e -> n1:14; a waits needs=14 free=0 start=24h",
    ),
    "paid below its floor goes before enterprise that has its own": Case(
        nodes="n1=20xH100",
        running=f"e@n1:14{EVE}/fixed",
        queued=f"a:6 f:6{EVE}",
        usage="paid.acme.ml.ann=1000",
        policy=SHIPPED,
        want="a -> n1:6; f waits needs=6 free=0 start=1430m",
    ),
    "free below its floor goes before all that have theirs": Case(
        nodes="n1=20xH100",
        running=f"e@n1:15{EVE}/fixed p@n1:4@15/fixed",
        queued=f"a:1 f:1{FAY} g:1{EVE}",
        usage="free.solo.x.fay=1000",
        policy=SHIPPED,
        want="f -> n1:1; a waits needs=1 free=0 start=1430m; g waits needs=1 free=0 start=1430m",
    ),
    "above the floors eight to four to one": Case(
        nodes="n1=21xH100 n2=1xH100",
        running=f"e@n1:15{EVE}/fixed p@n1:4@15/fixed f@n1:2@19{FAY}/fixed",
        queued=f"a:1 g:1{EVE} h:1{FAY}",
        policy=SHIPPED,
        want="a -> n2:1; g waits needs=1 free=0 start=1430m; h waits needs=1 free=0 start=1430m",
    ),
    # ------------------------------------------------------------------ ceilings
    "free has at most half of the pool": Case(
        nodes="n1=20xH100",
        queued=f"f:10{FAY} g:1{GUS}",
        policy=SHIPPED,
        want="f -> n1:10; g waits ceiling at=free of=* used=10 most=10",
    ),
    "paid and enterprise may have all of it": Case(
        nodes="n1=20xH100",
        queued="a:20",
        policy=SHIPPED,
        want="a -> n1:20",
    ),
    "half of what is ready: nodes that are not do not count": Case(
        nodes="n1=20xH100 n2=20xH100/state=draining",
        queued=f"f:11{FAY}",
        policy=SHIPPED,
        want="f waits ceiling at=free of=* used=0 most=10",
    ),
    # ------------------------------------------------------------------ who makes room
    "enterprise takes its floor back from paid": Case(
        nodes="n1=20xH100",
        running="p@n1:14 q@n1:6@14",
        queued=f"e:10{EVE}",
        policy=SHIPPED,
        want="p preempted for=e by=floor; e waits on=n1:10",
    ),
    "but not what is the floor of paid": Case(
        nodes="n1=20xH100",
        running=f"p@n1:2 f@n1:9@2{EVE}/fixed g@n1:9@11{FAY}/fixed",
        queued=f"e:2{EVE}",
        policy=SHIPPED,
        want="e waits needs=2 free=0 start=1430m",
    ),
    "a job of paid that straddles its floor does not keep enterprise out": Case(
        nodes="n1=20xH100",
        running="p@n1:20",
        queued=f"e:10{EVE}",
        policy=SHIPPED,
        want="p preempted for=e by=floor; e waits on=n1:10",
    ),
    "enterprise takes its floor back from free": Case(
        nodes="n1=20xH100",
        running=f"p@n1:6 f@n1:4@6{FAY} g@n1:1@10{GUS} e@n1:9@11{EVE}/fixed",
        queued=f"d:1{EVE}",
        policy=SHIPPED,
        want="g preempted for=d by=floor; d waits on=n1:1",
    ),
    "paid takes its floor back from enterprise that borrows": Case(
        nodes="n1=20xH100",
        running=f"e@n1:14{EVE} f@n1:6@14{EVE}",
        queued="a:2",
        policy=SHIPPED,
        want="f preempted for=a by=floor; a waits on=n1:2",
    ),
    "paid takes nothing from enterprise that has its floor": Case(
        nodes="n1=20xH100",
        running=f"e@n1:10{EVE} f@n1:10@10{FAY}/fixed",
        queued="a:6",
        policy=SHIPPED,
        want="a waits needs=6 free=0 start=1430m",
    ),
    "free takes its floor back from whoever borrows": Case(
        nodes="n1=20xH100",
        running=f"p@n1:6 q@n1:1@6 e@n1:13@7{EVE}/fixed",
        queued=f"f:1{FAY}",
        policy=SHIPPED,
        want="q preempted for=f by=floor; f waits on=n1:1",
    ),
    "enterprise that has its floor takes nothing from free": Case(
        nodes="n1=20xH100",
        running=f"e@n1:14{EVE} f@n1:6@14{FAY}",
        queued=f"d:1{EVE}",
        policy=SHIPPED,
        want="d waits needs=1 free=0 start=1430m",
    ),
    "orgs of a tier ask each other by share alone": Case(
        nodes="n1=20xH100",
        running=f"p@n1:6 q@n1:4@6 e@n1:10@10{EVE}/fixed",
        queued=f"b:1{NEXT}",
        policy=SHIPPED,
        want="q preempted for=b by=share; b waits on=n1:1",
    ),
    # ------------------------------------------------------------------ aging
    "enterprise ages after an hour": Case(
        nodes="n1=20xH100",
        running="p@n1:20/ends=2h/fixed",
        queued=f"e:1{EVE}/waited=1h",
        policy=SHIPPED,
        want="e promised start=2h; e waits needs=1 free=0 start=2h",
    ),
    "paid after four": Case(
        nodes="n1=20xH100",
        running="p@n1:20/ends=2h/fixed",
        queued=f"a:1/waited=4h b:1{NEXT}/waited=3h",
        policy=SHIPPED,
        want="a promised start=2h; a waits needs=1 free=0 start=2h;"
        " b waits needs=1 free=0 start=2h",
    ),
    "free after twelve": Case(
        nodes="n1=20xH100",
        running="p@n1:20/ends=2h/fixed",
        queued=f"f:1{FAY}/waited=12h g:1{GUS}/waited=11h",
        policy=SHIPPED,
        want="f promised start=2h; f waits needs=1 free=0 start=2h;"
        " g waits needs=1 free=0 start=2h",
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_tiers(case: Case) -> None:
    """What a pool of 20 GPUs does without any setting."""
    check(case)


def test_what_the_tiers_are_by_default() -> None:
    """Start targets as required (S4), and all that goes with them."""
    tiers = (ENTERPRISE, PAID, FREE)

    assert tiers == SHIPPED.tiers
    assert ["enterprise", "paid", "free"] == [tier.name for tier in tiers]
    assert [30, 120, 1_800] == [tier.start_target // SECOND for tier in tiers]
    assert [700_000, 100_000, 50_000] == [tier.floor_ppm for tier in tiers]
    assert [1_000_000, 1_000_000, 500_000] == [tier.ceiling_ppm for tier in tiers]
    assert [8, 4, 1] == [tier.weight for tier in tiers]
    assert [1, 4, 12] == [tier.ages_after // HOUR for tier in tiers]
    assert [20_000, 10_000, 1_000] == [tier.queue_max for tier in tiers]
    assert [3_000, 1_200, 120] == [tier.rate_per_minute for tier in tiers]


def test_each_tier_makes_room_for_the_floors_of_the_others() -> None:
    """Whom it may preempt, and by whom it may be preempted (S4)."""
    names = {tier.name for tier in SHIPPED.tiers}

    assert all(set(tier.preempts) == names - {tier.name} for tier in SHIPPED.tiers)


def test_what_the_policy_is_by_default() -> None:
    """A fifth for the aged, three preemptions at most, half a minute of grace (S4, S5)."""
    assert (5, 3, 30 * SECOND) == (
        SHIPPED.aged_part,
        SHIPPED.preemptions_max,
        SHIPPED.preemption_grace,
    )
    assert (HOUR, 1_024 * MINUTE) == (SHIPPED.ahead, MINUTE << SHIPPED.half_life)
    assert ("least-work", 50) == (SHIPPED.inside_a_user, SHIPPED.turn_after)


def test_a_crowded_pool_is_shared_by_floors_and_weights() -> None:
    """Twenty GPUs, all tiers want more: floors of 14, 2 and 1, the other three by 8 : 4 : 1."""
    who = (EVE, "", FAY)
    queued = " ".join(f"{tier}{n}:1{path}" for tier, path in enumerate(who) for n in range(20))
    case = Case(nodes="n1=20xH100", queued=queued, policy=SHIPPED, want="")

    starts = [one for one in make_plan(case.cluster(), T0).decisions if isinstance(one, Start)]

    assert {"0": 14, "1": 4, "2": 2} == Counter(start.job[0] for start in starts)
