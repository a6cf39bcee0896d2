"""Vector clocks: the order they make, and what they refuse (L19)."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar.core.clocks import VectorClock

CLOCKS = st.dictionaries(st.sampled_from("abc"), st.integers(0, 3)).map(VectorClock)


def test_a_clock_has_the_counts_it_was_made_with() -> None:
    """Regions that are not named count 0, and equal those with a count of 0 (L19)."""
    clock = VectorClock({"us": 2, "eu": 1, "ap": 0})

    assert (2, 0, 0) == (clock["us"], clock["ap"], clock["nowhere"])
    assert ["eu", "us"] == list(clock)
    assert [("eu", 1), ("us", 2)] == list(clock.items())
    assert (2, 3) == (len(clock), clock.total)
    assert "us" in clock
    assert "ap" not in clock
    assert "VectorClock({'eu': 1, 'us': 2})" == repr(clock)
    assert VectorClock({"eu": 1, "us": 2}) == clock
    assert 0 == len(VectorClock())


@given(CLOCKS, CLOCKS)
def test_the_order_is_that_of_all_counts(one: VectorClock, two: VectorClock) -> None:
    """At or before: no count is larger. Concurrent: neither is (L19)."""
    below = all(one[region] <= two[region] for region in "abc")
    above = all(one[region] >= two[region] for region in "abc")

    assert below == (one <= two) == (two >= one)
    assert (below and not above) == (one < two) == (two > one)
    assert (below and above) == (one == two)
    assert (not below and not above) == one.concurrent(two)
    if one == two:
        assert hash(one) == hash(two)
    if one < two:
        assert one.total < two.total


@given(CLOCKS, CLOCKS, CLOCKS)
def test_a_join_is_the_least_clock_that_is_not_before_either(
    one: VectorClock, two: VectorClock, other: VectorClock
) -> None:
    """So joining knows no order and no number of times (L19)."""
    joined = one.join(two)

    assert one <= joined
    assert two <= joined
    assert (one <= other and two <= other) == (joined <= other)
    assert joined == two.join(one) == joined.join(one)


@given(CLOCKS, st.sampled_from("abcd"))
def test_a_tick_is_one_step_of_one_region(clock: VectorClock, region: str) -> None:
    """The clock itself stays as it was (L19)."""
    before = dict(clock.items())
    after = clock.tick(region)

    assert clock < after
    assert clock[region] + 1 == after[region]
    assert clock.total + 1 == after.total
    assert before == dict(clock.items())


@pytest.mark.parametrize(
    ("counts", "error"),
    [
        ({1: 1}, TypeError),
        ({"a": True}, TypeError),
        ({"a": 1.0}, TypeError),
        ({"a": None}, TypeError),
        ({"a": -1}, ValueError),
        ({"a": 2**63}, ValueError),
    ],
)
def test_a_wrong_count_is_refused(counts: Any, error: type[Exception]) -> None:
    """Counts are whole numbers from 0 to 2^63 - 1 (L19)."""
    with pytest.raises(error):
        VectorClock(counts)


def test_a_clock_cannot_tick_past_the_end() -> None:
    """The largest count has no successor (L19)."""
    with pytest.raises(ValueError, match="the count of a"):
        VectorClock({"a": 2**63 - 1}).tick("a")


def test_a_clock_is_not_compared_with_something_else() -> None:
    """It is unequal to it, and before or after is a mistake (L19)."""
    clock: Any = VectorClock({"a": 1})

    assert clock != {"a": 1}
    with pytest.raises(TypeError):
        clock <= 1  # noqa: B015
    with pytest.raises(TypeError):
        clock < 1  # noqa: B015
