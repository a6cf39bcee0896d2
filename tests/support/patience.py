"""Waiting for something that another thread, process or machine does.

No test measures how long that takes: a test machine may be slow and busy. The only limit is
`PATIENCE_S`, after which a test fails instead of hanging.
"""

import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

PATIENCE_S: Final = 120.0
_PAUSE_S_MIN: Final = 0.002
_PAUSE_S_MAX: Final = 0.05


class Stuck(AssertionError):
    """Something that had to happen did not."""


def eventually(
    look: Callable[[], T | None],
    what: str | Callable[[], object] = "",
    patience_s: float = PATIENCE_S,
) -> T:
    """Look again and again until the answer is true, and return it.

    Raises `Stuck` with `what` should have been the case, or with the last answer.
    """
    give_up_at = time.monotonic() + patience_s
    pause_s = _PAUSE_S_MIN
    while True:
        if answer := look():
            return answer
        if time.monotonic() > give_up_at:
            expected = what() if callable(what) else what
            raise Stuck(f"not within {patience_s:.0f} s: {expected or answer}")
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _PAUSE_S_MAX)
