"""Money is rounded in one place, down, on running totals."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar.core.money import (
    AMOUNT_MAX,
    CREDIT,
    PPM,
    run_ms_for,
    share_of,
    usage_price,
    usage_price_up,
)
from bursar.core.refusal import InvariantBroken

RATES = st.integers(0, AMOUNT_MAX)
MILLI_GPUS = st.integers(0, 1_000_000)
SPANS_MS = st.integers(0, 10**11)


def test_units_are_what_clients_rely_on() -> None:
    """A credit is a million micro-credits, and an amount fits what JSON can carry (L14)."""
    assert 1_000_000 == CREDIT
    assert 1_000_000 == PPM
    assert 9_007_199_254_740_991 == AMOUNT_MAX


@pytest.mark.parametrize(
    ("rate", "milli_gpus", "run_ms", "want"),
    [
        (2 * CREDIT, 1_000, 3_600_000, 2 * CREDIT),  # one GPU for an hour
        (2 * CREDIT, 8_000, 3_600_000, 16 * CREDIT),  # eight of them
        (2 * CREDIT, 250, 3_600_000, CREDIT // 2),  # a quarter of one
        (2_500_000, 1_000, 60_000, 41_666),  # a minute, rounded down
        (1, 1, 3_599_999_999, 0),
        (1, 1, 3_600_000_000, 1),
        (1, 1, 7_199_999_999, 1),
        (0, 1_000, 3_600_000, 0),
        (CREDIT, 0, 3_600_000, 0),
        (CREDIT, 1_000, 0, 0),
        (AMOUNT_MAX, 1_000, 3_600_000, AMOUNT_MAX),  # no figure in between is cut off
    ],
)
def test_usage_is_priced_to_the_micro_credit(
    rate: int, milli_gpus: int, run_ms: int, want: int
) -> None:
    """Price times milli-GPUs times milliseconds, rounded down once (L14)."""
    assert want == usage_price(rate, milli_gpus, run_ms)


@given(rate=RATES, milli_gpus=MILLI_GPUS, cuts=st.lists(SPANS_MS, min_size=1, max_size=20))
def test_metering_often_or_seldom_comes_to_the_same(
    rate: int, milli_gpus: int, cuts: list[int]
) -> None:
    """The differences of running totals add up to the total, and none is negative (L14)."""
    totals = [usage_price(rate, milli_gpus, ms) for ms in (0, *sorted(cuts))]
    parts = [later - earlier for earlier, later in pairwise(totals)]

    assert usage_price(rate, milli_gpus, max(cuts)) == sum(parts)
    assert 0 <= min(parts)


@given(rate=RATES, milli_gpus=MILLI_GPUS, run_ms=SPANS_MS)
def test_the_price_is_short_of_the_exact_one_by_less_than_a_micro_credit(
    rate: int, milli_gpus: int, run_ms: int
) -> None:
    """Rounding is down and happens once (L14)."""
    exact = rate * milli_gpus * run_ms
    price = usage_price(rate, milli_gpus, run_ms)

    assert price * 3_600_000_000 <= exact < (price + 1) * 3_600_000_000


@pytest.mark.parametrize("usage", [(-1, 1, 1), (1, -1, 1), (1, 1, -1)])
def test_usage_cannot_be_negative(usage: tuple[int, int, int]) -> None:
    """A negative rate, size or time is a bug, not a refund."""
    with pytest.raises(InvariantBroken, match=rf"^usage cannot be negative \(rate={usage[0]}\)$"):
        usage_price(*usage)


@given(st.integers(1, 10**9), st.integers(1, 64_000), st.integers(0, 10**12))
def test_credits_last_as_long_as_they_cover_the_price(
    rate: int, milli_gpus: int, amount: int
) -> None:
    """And not a millisecond longer (M1)."""
    run_ms = run_ms_for(rate, milli_gpus, amount)

    assert usage_price(rate, milli_gpus, run_ms) <= amount
    assert usage_price(rate, milli_gpus, run_ms + 1) > amount


@pytest.mark.parametrize("asked", [(0, 1, 1), (1, 0, 1), (1, 1, -1)])
def test_a_rate_of_zero_can_run_forever(asked: tuple[int, int, int]) -> None:
    with pytest.raises(InvariantBroken, match=rf"^no bound to how long \(rate={asked[0]}\)$"):
        run_ms_for(*asked)


@pytest.mark.parametrize(
    ("total", "ppm", "want"),
    [
        (10, 0, 0),
        (10, PPM, 10),
        (3, PPM // 2, 1),
        (1_000_000, 1, 1),
        (999_999, 1, 0),
        (AMOUNT_MAX, PPM, AMOUNT_MAX),
    ],
)
def test_a_share_is_rounded_down(total: int, ppm: int, want: int) -> None:
    """A limited source never carries more than its part (L9)."""
    assert want == share_of(total, ppm)


@given(st.integers(0, 10**9), st.integers(0, 64_000), st.integers(0, 10**9), st.integers(0, 10**9))
def test_a_stretch_never_costs_more_than_its_price_rounded_up(
    rate: int, milli_gpus: int, before: int, length: int
) -> None:
    """Wherever it begins; and the bound is tight: never a whole micro-credit too high (B5)."""
    whole = usage_price(rate, milli_gpus, before + length) - usage_price(rate, milli_gpus, before)
    bound = usage_price_up(rate, milli_gpus, length)

    assert whole <= bound <= usage_price(rate, milli_gpus, length) + 1
