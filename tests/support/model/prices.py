"""Prices per GPU-hour (docs/ledger.md, §11)."""

from dataclasses import replace

from bursar.core.instant import Instant
from bursar.core.ledger.commands import SetPrice
from bursar.core.ledger.values import Context
from bursar.core.pricing import PriceVersion
from bursar.core.refusal import Code
from tests.support.model.state import ModelState


class PriceRules(ModelState):
    """Looks up prices."""

    def _in_force(self, versions: list[PriceVersion], at: Instant) -> PriceVersion | None:
        """The version in force, with all that it keeps of those before it."""
        full = None
        for version in sorted(versions, key=lambda it: it.effective_at):  # then by arrival
            if version.effective_at > at:
                continue
            rates = {rate.key: rate for rate in version.rates}
            if version.keeps_others and full is not None:
                rates = {rate.key: rate for rate in full.rates} | rates
            full = replace(version, rates=tuple(rates.values()))
        return full

    def _rate(self, gpu_type: str, context: Context, at: Instant) -> int | None:
        """The price of a type; a tier is the customer's, and `free` without one."""
        tier = "free" if self.tier is None else self.tier
        for versions in (self.overrides, self.deployment):
            version = self._in_force(versions, at)
            matching = []
            for rate in version.rates if version else ():
                if (
                    rate.gpu_type == gpu_type
                    and rate.region in (None, context.region)
                    and rate.tier in (None, tier)
                    and rate.priority_class in (None, context.priority_class)
                ):
                    named = (
                        rate.region is not None,
                        rate.tier is not None,
                        rate.priority_class is not None,
                    )
                    matching.append((sum(named), named, rate.micros_per_gpu_hour))
            if matching:
                return max(matching)[2]
        return None

    def _known_rates(self, context: Context) -> dict[str, int]:
        """The prices that are known now of a context's types, in order of preference."""
        rates = {name: self._rate(name, context, self.now) for name in context.gpu_types}
        return {name: rate for name, rate in rates.items() if rate is not None}

    def _cheapest(self, known: dict[str, int]) -> str:
        return min(known, key=lambda gpu_type: known[gpu_type])  # the first among equals

    def _on_SetPrice(self, ask: SetPrice) -> Code | None:
        if any(version.id == ask.version.id for version in self.overrides):
            return Code.ALREADY_EXISTS
        at = self.now if ask.from_now else ask.version.effective_at
        if any(at < version.effective_at <= self.now for version in self.overrides):
            return Code.TIME_INVALID
        self.overrides.append(replace(ask.version, effective_at=at))
        return None
