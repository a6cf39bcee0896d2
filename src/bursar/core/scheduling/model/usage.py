"""Usage that decays with a half-life, in integers.

Usage counts less the longer ago it was: half after a half-life. To decay every group at every tick
would cost time for each group that exists, not for each that changed, and round every time.

So past usage stays as it is, and new usage counts more instead (forward decay). A unit used at
instant t counts `growth(t)`, which doubles with every half-life. Only comparisons matter, and these
come out the same. A job with a constant rate from a to b has used `rate * (growth(b) - growth(a))`,
which is exact however the time is split. Between two ticks growth is linear, so short jobs count.

Growth starts from 1 at every epoch of 64 half-lives, when all usage is halved 64 times.
"""

from functools import lru_cache
from math import isqrt
from typing import Final

from bursar.core.instant import MINUTE, Instant

TICK: Final = MINUTE
EPOCH_HALF_LIVES: Final = 64  # half-lives in an epoch
_FRACTION_BITS: Final = 64  # of the fraction of growth

# _ROOTS[i] is 2 ** (1 / 2**i), with 64 bits of fraction
_ROOTS: Final = [2 << _FRACTION_BITS]
while len(_ROOTS) < 32:
    _ROOTS.append(isqrt(_ROOTS[-1] << _FRACTION_BITS))


def tick_of(at: Instant) -> Instant:
    """The last tick at or before an instant."""
    return at - at % TICK


class UsageDecay:
    """How fast usage decays: by half in 2 ** `half_life_log2` ticks."""

    __slots__ = ("epoch", "half_life_log2")

    def __init__(self, half_life_log2: int, at: Instant) -> None:
        self.half_life_log2 = half_life_log2
        self.epoch = self.epoch_of(at)

    def epoch_of(self, at: Instant) -> Instant:
        """The start of the epoch of an instant."""
        length = EPOCH_HALF_LIVES * TICK << self.half_life_log2
        return at - at % length

    def growth(self, at: Instant) -> int:
        """What a unit of usage at an instant counts, relative to one at the start of the epoch."""
        ticks, rest = divmod(at - self.epoch, TICK)
        here = _growth(ticks, self.half_life_log2)
        return here + (_growth(ticks + 1, self.half_life_log2) - here) * rest // TICK


@lru_cache(maxsize=4_096)
def _growth(ticks: int, half_life_log2: int) -> int:
    whole, part = divmod(ticks, 1 << half_life_log2)
    grown = 1 << _FRACTION_BITS
    for i in range(half_life_log2):
        if part >> (half_life_log2 - 1 - i) & 1:
            grown = grown * _ROOTS[i + 1] >> _FRACTION_BITS
    return grown << whole if whole >= 0 else grown >> -whole
