"""What the library accepts as an amount and as a time, and how it says no.

Each public method makes the cheap test itself, because a call costs more than the test, and
comes here only to say what is wrong.
"""

from typing import Final

MAX_TIME: Final = 2**63 - 1


class InsufficientCredits(Exception):
    """There is less to spend than was asked for; nothing was taken.

    Not a ValueError: the call was right, and may succeed at another time.
    """

    def __init__(self, requested: int, available: int) -> None:
        super().__init__(requested, available)
        self.requested = requested
        self.available = available

    def __str__(self) -> str:
        return f"{self.requested} credits asked, {self.available} available"


def bad_amount(name: str, amount: object) -> Exception:
    """The exception for something that is no whole number from 1 on."""
    if type(amount) is not int:
        return TypeError(f"{name} must be an int, not {type(amount).__name__}")
    return ValueError(f"{name} must be at least 1, not {amount}")


def bad_time(name: str, time: object) -> Exception:
    """The exception for something that is no whole number from 0 to 2^63 - 1."""
    if type(time) is not int:
        return TypeError(f"{name} must be an int, not {type(time).__name__}")
    return ValueError(f"{name} must be from 0 to 2**63 - 1, not {time}")
