"""Usage that fades, in whole numbers (S3)."""

from itertools import pairwise

import pytest

from bursar.core.instant import HOUR, MINUTE, SECOND
from bursar.core.scheduling.model.usage import EPOCH_HALF_LIVES, TICK, UsageDecay, tick_of
from tests.support.scheduling_cases import T0

HALF_LIFE = 1_024 * MINUTE


def test_a_tick_is_a_whole_minute() -> None:
    assert MINUTE == TICK
    assert [T0, T0, T0 + MINUTE] == [tick_of(T0 + s * SECOND) for s in (0, 59, 60)]


@pytest.mark.parametrize("half_life_log2", [1, 5, 10])
def test_what_is_new_counts_twice_what_is_a_half_life_old(half_life_log2: int) -> None:
    """Exactly, at every tick; so old use counts half against it."""
    decay = UsageDecay(half_life_log2, T0)
    half_life = TICK << half_life_log2

    for tick in range(0, 3 * half_life, half_life // 2):
        at = T0 + tick
        assert 2 * decay.growth(at) == decay.growth(at + half_life)


def test_growth_is_steady() -> None:
    """A half of a half-life is a square root of two, to nine digits."""
    decay = UsageDecay(10, T0)
    now, then = decay.growth(T0), decay.growth(T0 + HALF_LIFE // 2)

    assert abs(then * then - 2 * now * now) * 10**9 < now * now


def test_growth_is_a_straight_line_within_a_tick() -> None:
    """So that a job of seconds has used something, in proportion."""
    decay = UsageDecay(10, T0)
    start, middle, end = (decay.growth(T0 + s * SECOND) for s in (0, 30, 60))

    assert start < middle < end
    assert abs((middle - start) - (end - middle)) <= 1


def test_usage_adds_up_however_it_is_split() -> None:
    """What ran from a to c used what it used from a to b and from b to c (S3)."""
    decay = UsageDecay(10, T0)
    cuts = [T0, T0 + SECOND, T0 + 90 * SECOND, T0 + HOUR, T0 + 5 * HOUR]
    parts = [decay.growth(b) - decay.growth(a) for a, b in pairwise(cuts)]

    assert decay.growth(cuts[-1]) - decay.growth(cuts[0]) == sum(parts)


def test_an_epoch_is_sixty_four_half_lives() -> None:
    """Growth starts from one again, so numbers stay small."""
    length = EPOCH_HALF_LIVES * HALF_LIFE
    epoch = UsageDecay(10, T0).epoch

    assert epoch <= T0 < epoch + length
    assert epoch == UsageDecay(10, epoch + length - 1).epoch
    assert epoch + length == UsageDecay(10, epoch + length).epoch
    assert UsageDecay(10, epoch).growth(epoch) == UsageDecay(10, epoch + length).growth(
        epoch + length
    )


def test_what_began_before_the_epoch_counts_less_than_one() -> None:
    """A job that runs over the border of epochs keeps its start."""
    decay = UsageDecay(10, T0)
    one = decay.growth(decay.epoch)

    assert one // 2 == decay.growth(decay.epoch - HALF_LIFE)
    assert one // 4 == decay.growth(decay.epoch - 2 * HALF_LIFE)
