"""The default budgets of tiers (B3)."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from bursar.core.budgets.periods import PeriodKind
from bursar.core.money import CREDIT, Micros
from bursar.core.value import value


@value
class DefaultBudget:
    """A hard budget for each user of the org."""

    every: PeriodKind
    limit: Micros


TIERS: Final[Mapping[str, tuple[DefaultBudget, ...]]] = MappingProxyType(
    {
        "free": (DefaultBudget(every=PeriodKind.DAY, limit=5 * CREDIT),),
        "paid": (),
        "enterprise": (),
    }
)
