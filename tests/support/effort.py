"""How thorough a test is: a sample of its cases by default, all of them with BURSAR_EXHAUSTIVE=1.

Some tests kill a process at each of a hundred places. In every run they take an evenly spread
sample, the same each time; `make exhaustive` runs all cases. Such tests have the mark `sampled`.
"""

import os
from collections.abc import Sequence
from typing import Final, TypeVar

EXHAUSTIVE: Final = os.environ.get("BURSAR_EXHAUSTIVE") == "1"

T = TypeVar("T")


def sample(cases: Sequence[T], size: int) -> list[T]:
    """At most `size` of the cases, the first and the last included; all when exhaustive."""
    if EXHAUSTIVE or len(cases) <= size:
        return list(cases)
    return [cases[index * (len(cases) - 1) // (size - 1)] for index in range(size)]
