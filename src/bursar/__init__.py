"""Credit ledgers for any program. The service is not imported.

The library is imported on first use, because the command line starts here too and does not need it.
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

if not TYPE_CHECKING:  # otherwise a type checker would accept every name

    def __getattr__(name: str) -> object:
        """Import a name of the library on first use."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module("bursar.library"), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
