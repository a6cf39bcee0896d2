"""Names of things: opaque text, UUIDv7 when made by the service, made outside the core."""

from typing import NewType
from uuid import NAMESPACE_OID, uuid5

AccountId = NewType("AccountId", str)
UserId = NewType("UserId", str)
GrantId = NewType("GrantId", str)
HoldId = NewType("HoldId", str)
ChargeId = NewType("ChargeId", str)
DebtId = NewType("DebtId", str)
BudgetId = NewType("BudgetId", str)
RecurrenceId = NewType("RecurrenceId", str)
JobId = NewType("JobId", str)
PriceVersionId = NewType("PriceVersionId", str)


def derived_id(parent: str, label: str) -> str:
    """The id of what follows from `parent` without being asked for: the same on every replay."""
    return str(uuid5(NAMESPACE_OID, f"{parent}/{label}"))
