"""Exceptions for invalid amounts and times.

Each public method makes the cheap check itself, because a call would cost more than the check, and
calls these functions only to build the exception.
"""

from typing import Final

MAX_TIME: Final = 2**63 - 1


class InsufficientCredits(Exception):
    """Fewer credits are available than requested; nothing was taken.

    Not a ValueError: the call is valid and may succeed later.
    """

    def __init__(self, requested: int, available: int) -> None:
        super().__init__(requested, available)
        self.requested = requested
        self.available = available

    def __str__(self) -> str:
        return f"{self.requested} credits requested, {self.available} available"


def bad_amount(name: str, amount: object) -> Exception:
    """The exception for an amount that is not an int of at least 1."""
    if type(amount) is not int:
        return TypeError(f"{name} must be an int, not {type(amount).__name__}")
    return ValueError(f"{name} must be at least 1, not {amount}")


def bad_time(name: str, time: object) -> Exception:
    """The exception for a time that is not an int from 0 to 2^63 - 1."""
    if type(time) is not int:
        return TypeError(f"{name} must be an int, not {type(time).__name__}")
    return ValueError(f"{name} must be from 0 to 2**63 - 1, not {time}")
