"""Ledgers to import into any program: no server, no database, the standard library alone."""

from bursar.library._checks import InsufficientCredits
from bursar.library.credit import CreditLedger, Reservation

__all__ = ["CreditLedger", "InsufficientCredits", "Reservation"]
