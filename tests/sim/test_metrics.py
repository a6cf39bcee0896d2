"""Figures of merit, on numbers that can be checked by hand."""

import pytest

from bursar.sim.metrics import (
    finish_time_fairness,
    jain,
    mean,
    percentile,
    share_met,
    slowdown,
)


@pytest.mark.parametrize(
    ("percent", "want"), [(1, 1), (50, 5), (51, 6), (90, 9), (90.1, 10), (99, 10), (100, 10)]
)
def test_a_percentile_is_the_value_at_its_rank(percent: float, want: int) -> None:
    """At least so many percent are no larger; nothing is interpolated."""
    assert want == percentile([10, 2, 3, 9, 5, 6, 7, 8, 4, 1], percent)


def test_a_percentile_is_not_moved_by_the_way_numbers_are_stored() -> None:
    """99.9 % of 1,000 values are 999 of them, though the product is a hair above."""
    assert 999 == percentile(list(range(1, 1_001)), 99.9)


def test_percentiles_of_nothing_and_impossible_ones() -> None:
    assert 0 == percentile([], 99)
    for percent in (0, 100.5):
        with pytest.raises(ValueError, match="percentile"):
            percentile([1], percent)


def test_jain_index_is_1_for_equals_and_1_over_n_for_a_single_winner() -> None:
    assert 1 == jain([3, 3, 3])
    assert 0.25 == jain([0, 8, 0, 0])
    assert 0.9 == pytest.approx(jain([1, 2]))
    assert 1 == jain([]) == jain([0, 0])


def test_slowdown_counts_short_runs_as_longer_than_they_are() -> None:
    assert 3 == slowdown(30, 10)
    assert 6 == slowdown(60, 1, least=10)
    assert 1 == slowdown(2, 1, least=10), "nothing is faster than its run"


def test_finish_time_fairness_is_against_an_equal_part() -> None:
    """A job of 100 s that took 300 s while GPUs were wanted twice over: half as slow again."""
    assert 1.5 == finish_time_fairness(300, 100, 2)
    assert 3 == finish_time_fairness(300, 100, 0.5), "more than all that it asked for is no use"


def test_mean_and_share_of_nothing() -> None:
    assert 0 == mean([])
    assert 2 == mean([1, 3])
    assert 100 == share_met([], 1)
    assert 50 == share_met([1, 2, 3, 4], 2)
