"""The budgets a tier brings by default (B3)."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from bursar.core.budgets.periods import Every
from bursar.core.money import CREDIT, Micros
from bursar.core.value import value


@value
class DefaultBudget:
    """A hard budget for each user of the org."""

    every: Every
    limit: Micros


TIERS: Final[Mapping[str, tuple[DefaultBudget, ...]]] = MappingProxyType(
    {
        "free": (DefaultBudget(every=Every.DAY, limit=5 * CREDIT),),
        "paid": (),
        "enterprise": (),
    }
)
