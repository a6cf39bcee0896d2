"""Lost work given back, charges reversed, ends corrected."""

from bursar.core.instant import Instant
from bursar.core.ledger.commands import CorrectEnd, GiveBack, ReverseCharge
from bursar.core.messages import EndClass
from bursar.core.refusal import Code
from tests.support.model.charges import ChargeRules
from tests.support.model.values import ModelCharge, ModelGrant, ModelHold, ModelMeter, Stretch


class CorrectionRules(ChargeRules):
    """Takes back what was charged."""

    def _on_GiveBack(self, ask: GiveBack) -> Code | None:
        if ask.hold not in self.holds:
            return Code.HOLD_UNKNOWN
        hold = self.holds[ask.hold]
        meter = self.meter(hold, ask.attempt)
        if meter is None:
            return Code.ATTEMPT_UNKNOWN
        if ask.kept_ms >= meter.run_ms:
            return None
        stretch = Stretch(meter, ask.kept_ms, meter.run_ms)
        meter.run_ms = ask.kept_ms
        rest = lost = self._cost(stretch)

        from_debt = min(rest, hold.owed)
        hold.owed -= from_debt
        if from_debt:
            self.debts[self.names.hold_debt(hold.id)].owed -= from_debt
        rest -= from_debt
        from_absorbed = min(rest, hold.absorbed)
        hold.absorbed -= from_absorbed
        rest -= from_absorbed
        most = {id: draw.charged - draw.reversed for id, draw in hold.draws.items()}
        from_draws = min(rest, sum(most.values()))
        rest -= from_draws
        hold.used -= lost - rest

        has = {id: draw.reversed for id, draw in hold.draws.items()}
        keep = sum(most.values()) - from_draws
        spread = self._spread(hold, most, hold.used, keep, has)
        returned = {id: most[id] - spread[id] for id in most if most[id] > spread[id]}
        for id, amount in returned.items():
            grant, draw = self.grants[id], hold.draws[id]
            draw.charged -= amount
            if grant.policy.refundable:
                self._post(grant, "spent", "held", amount, self.now)
                draw.open += amount
                if hold.closed_at is not None:
                    self._return(hold, {id: amount}, self.now)
            else:
                self._post(grant, "spent", "forfeited", amount, self.now)
        self._take_from_charges(hold, returned, from_debt)
        self._uncount_usage(meter, lost - rest)
        hold.touched_at = self.now
        return None

    def _on_CorrectEnd(self, ask: CorrectEnd) -> Code | None:
        if ask.hold not in self.holds:
            return Code.HOLD_UNKNOWN
        hold = self.holds[ask.hold]
        meter = self.meter(hold, ask.attempt)
        if meter is None:
            return Code.ATTEMPT_UNKNOWN
        charged = ask.end_class in (EndClass.USER, EndClass.LIMIT)
        began = min(meter.started_at + meter.run_ms * 1000, self.now)
        if charged and began < max(self.now - self.policy.late_max, hold.opened_at):
            return Code.TIME_INVALID
        if hold.closed_at is None:
            return Code.HOLD_OPEN
        if hold.absorbed or any(draw.reversed for draw in hold.draws.values()):
            return Code.CHARGE_REVERSED
        drawn = [self.grants[id] for id in hold.draws]
        if charged and any(grant.withdrawn or not grant.policy.refundable for grant in drawn):
            return Code.CREDITS_GONE
        return None

    def _on_ReverseCharge(self, ask: ReverseCharge) -> Code | None:
        if ask.charge not in self.charges:
            return Code.CHARGE_UNKNOWN
        if ask.reissue_until is not None and ask.reissue_until <= self.now:
            return Code.TIME_INVALID
        charge = self.charges[ask.charge]
        hold = self.holds[charge.hold]
        from_debt = min(charge.owed, hold.owed)
        left = from_debt + sum(charge.spent.values())
        amount = left if ask.amount is None else ask.amount
        if amount > left or left == 0:
            return Code.EXCEEDS_CHARGE

        rest = amount
        from_debt = min(rest, from_debt)
        if from_debt:
            charge.owed -= from_debt
            hold.owed -= from_debt
            hold.absorbed += from_debt
            self.debts[self.names.hold_debt(hold.id)].owed -= from_debt
            rest -= from_debt
        for grant in reversed(self._in_spend_order(list(charge.spent), hold.account)):
            take = min(rest, charge.spent[grant.id])
            if take == 0:
                continue
            before = charge.spent[grant.id]
            charge.spent[grant.id] -= take
            hold.draws[grant.id].reversed += take
            rest -= take
            if grant.withdrawn:
                self._post(grant, "spent", "revoked", take, self.now)
            elif not grant.policy.refundable:
                self._post(grant, "spent", "forfeited", take, self.now)
            else:
                self._post(grant, "spent", "free", take, self.now)
                again = min(take, self._room())
                if grant.expires_at <= self.now and ask.reissue_until is not None and again:
                    name = self.names.reissued_grant(charge.id, grant.id, before)
                    self._reissue(name, grant, again, ask.reissue_until)
                    self._post(grant, "free", "forfeited", again, self.now)
        charge.usage = max(0, charge.usage - amount)  # work given back may have taken its usage
        self._uncount_charge(charge, amount)
        return None

    def _reissue(self, name: str, grant: ModelGrant, amount: int, until: Instant) -> None:
        self.grants[name] = ModelGrant(
            id=name,
            account=grant.account,
            amount=amount,
            kind=grant.kind,
            priority=grant.priority,
            policy=grant.policy,
            issued_at=self.now,
            starts_at=self.now,
            expires_at=until,
            parent=grant.id,
            begun=True,
        )

    def _take_from_charges(self, hold: ModelHold, returned: dict[str, int], from_debt: int) -> None:
        """What was given back cannot be reversed too: the latest charges lose it first."""
        for charge in reversed(self.charges.values()):
            if charge.hold == hold.id:
                for id in charge.spent:
                    take = min(returned.get(id, 0), charge.spent[id])
                    if take:
                        charge.spent[id] -= take
                        returned[id] -= take
                take = min(from_debt, charge.owed)
                charge.owed -= take
                from_debt -= take

    def _uncount_usage(self, meter: ModelMeter, amount: int) -> None:
        """Lost work comes off what budgets counted of the attempt's charges, the latest first."""
        for charge in reversed(self.charges.values()):
            if charge.meter is meter:
                take = min(amount, charge.usage)
                charge.usage -= take
                self._uncount_charge(charge, take)
                amount -= take

    def _uncount_charge(self, charge: ModelCharge, amount: int) -> None:
        rest = {count.budget: amount for count in charge.counts}
        for count in sorted(charge.counts, key=lambda count: count.start, reverse=True):
            take = min(rest[count.budget], count.left)
            count.left -= take
            rest[count.budget] -= take
            self._uncount(count, take)
