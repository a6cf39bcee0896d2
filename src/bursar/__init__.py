"""Credit ledgers to import into any program; the service behind them is never imported here.

The library itself is imported when something of it is asked for: the command line, which begins
here as well, needs none of it to answer.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bursar.library import (
        CausalLedger,
        CreditLedger,
        InsufficientCredits,
        Reservation,
        TimelineLedger,
        VectorClock,
    )

__all__ = [
    "CausalLedger",
    "CreditLedger",
    "InsufficientCredits",
    "Reservation",
    "TimelineLedger",
    "VectorClock",
    "__version__",
]

__version__ = "0.1.0"

if not TYPE_CHECKING:  # a type checker would take every name for one of ours

    def __getattr__(name: str) -> object:
        """Something of the library, the first time that it is asked for."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module("bursar.library"), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
