"""In-process ledgers. They need no server or database, and only the standard library."""

from bursar.core.clocks import VectorClock
from bursar.library._checks import InsufficientCredits
from bursar.library.causal import CausalLedger
from bursar.library.credit import CreditLedger, Reservation
from bursar.library.timeline import TimelineLedger

__all__ = [
    "CausalLedger",
    "CreditLedger",
    "InsufficientCredits",
    "Reservation",
    "TimelineLedger",
    "VectorClock",
]
