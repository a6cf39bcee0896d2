"""Credit ledgers to import into any program; the service behind them is never imported here."""

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
