"""Instants are whole microseconds, and begun milliseconds count."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar.core.instant import DAY, HOUR, MILLISECOND, MINUTE, NEVER, SECOND, whole_ms


def test_spans_are_in_microseconds() -> None:
    """Every span of time inside the rules has the same unit."""
    assert 1_000 == MILLISECOND
    assert 1_000_000 == SECOND
    assert 60_000_000 == MINUTE
    assert 3_600_000_000 == HOUR
    assert 86_400_000_000 == DAY


def test_never_is_the_last_instant_a_database_can_hold() -> None:
    """NEVER is after every instant and fits 64 bits with a sign."""
    assert 2**63 - 1 == NEVER


@pytest.mark.parametrize(
    ("span", "want"),
    [(-1_001, 0), (-1, 0), (0, 0), (1, 1), (999, 1), (1_000, 1), (1_001, 2), (2_000, 2)],
)
def test_a_begun_millisecond_is_a_millisecond(span: int, want: int) -> None:
    """Milliseconds are counted up, and nothing is less than zero long."""
    assert want == whole_ms(span)


@given(st.integers(1, NEVER))
def test_whole_milliseconds_cover_the_span_and_no_more_than_one_is_begun(span: int) -> None:
    """The count is the least that covers the span, exact for the longest one too."""
    assert (whole_ms(span) - 1) * MILLISECOND < span <= whole_ms(span) * MILLISECOND
