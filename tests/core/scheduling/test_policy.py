"""Weights, floors, ceilings and tiers: what cannot be, and what they come to (S3, S4)."""

from typing import Any

import pytest

from bursar.core.scheduling.model.policy import (
    ANY_TYPE,
    FREE,
    PAID,
    PoolPolicy,
    Share,
    Tier,
    to_milli_gpus,
)
from bursar.core.value import replace
from tests.support.scheduling_cases import T0, Case


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"weight": 0}, "weight is 1 to 1000000"),
        ({"floor": (("", 1),)}, "gpu_type is 1 to 255 bytes"),
        ({"floor": ((ANY_TYPE, -1),)}, "gpus is 0"),
        ({"ceiling": ((ANY_TYPE, -1),)}, "gpus is 0"),
    ],
)
def test_a_share_that_makes_no_sense_is_refused(wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Share(**wrong)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"name": ""}, "tier is 1 to 255 bytes"),
        ({"weight": 0}, "weight is 1 to 1000000"),
        ({"floor_ppm": 1_000_001}, "floor_ppm is 0 to 1000000"),
        ({"ceiling_ppm": -1}, "ceiling_ppm is 0 to 1000000"),
        ({"start_target": 0}, "start_target is 1"),
        ({"ages_after": 0}, "ages_after is 1"),
        ({"queue_max": 0}, "queue_max is 1"),
        ({"rate_per_minute": 0}, "rate_per_minute is 1"),
    ],
)
def test_a_tier_that_makes_no_sense_is_refused(wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        replace(PAID, **wrong)


def test_a_policy_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match=r"inside_a_user is one of balance, .* not 'fifo'"):
        PoolPolicy(inside_a_user="fifo")
    with pytest.raises(ValueError, match="half_life is 1 to 30, not 0"):
        PoolPolicy(half_life=0)
    with pytest.raises(ValueError, match="turn_after is 0 to 1000000, not -1"):
        PoolPolicy(turn_after=-1)


@pytest.mark.parametrize(
    ("tier", "gpus", "floor", "ceiling"),
    [
        (PAID, 100, ((ANY_TYPE, 10),), ()),
        (PAID, 3, ((ANY_TYPE, 0),), ()),  # rounded down
        (FREE, 100, ((ANY_TYPE, 5),), ((ANY_TYPE, 50),)),
        (Tier(name="any"), 100, (), ()),
        (Tier(name="none", ceiling_ppm=0), 100, (), ((ANY_TYPE, 0),)),
    ],
)
def test_what_a_tier_is_entitled_to(
    tier: Tier, gpus: int, floor: tuple[tuple[str, int], ...], ceiling: tuple[tuple[str, int], ...]
) -> None:
    """Parts of the pool, in whole GPUs; no ceiling if it may have all."""
    share = PoolPolicy().tier_share(tier, gpus)

    assert (tier.weight, floor, ceiling) == (share.weight, share.floor, share.ceiling)


@pytest.mark.parametrize(
    ("policy", "want"),
    [
        ("least-work", ["urgent", "z", "cheap", "b-old", "a"]),
        ("least-attained", ["urgent", "cheap", "b-old", "a", "z"]),
        ("oldest", ["urgent", "b-old", "a", "cheap", "z"]),
        ("smallest-remaining", ["urgent", "z", "b-old", "a", "cheap"]),
        ("balance", ["urgent", "a", "b-old", "cheap", "z"]),
    ],
)
def test_the_order_inside_a_user(policy: str, want: list[str]) -> None:
    """Class, then what the policy says, then age, then id: a total order (S3)."""
    queued = (
        "urgent:1/prod/used=9 cheap:1/used=1 b-old:1/used=2/waited=1m a:1/used=2/balance=1"
        " z:1/used=2/est=1m"
    )
    waiting = Case(nodes="", queued=queued, want="").snapshot().waiting

    rule = PoolPolicy(inside_a_user=policy)
    assert want == [job.id for job in sorted(waiting, key=lambda job: rule.order_key(job, T0))]


def test_gpus_in_thousandths() -> None:
    assert {ANY_TYPE: 2_000, "H100": 1_000} == to_milli_gpus(((ANY_TYPE, 2), ("H100", 1)))
