"""Usage, on time and late (docs/ledger.md, §5 and §7)."""

from bursar.core.instant import Instant
from bursar.core.ledger.commands import BookLate, Charge, Settle
from bursar.core.refusal import Code
from tests.support.model.arithmetic import price
from tests.support.model.holds import HoldRules
from tests.support.model.values import (
    CLOCKS_DIFFER,
    DAY,
    LARGEST,
    ModelCharge,
    ModelDebt,
    ModelDraw,
    ModelGrant,
    ModelHold,
    ModelMeter,
    Stretch,
)


class ChargeRules(HoldRules):
    """Charges usage to holds."""

    def _on_Charge(self, ask: Charge) -> Code | None:
        if (code := self._unusable(ask)) is not None:
            return code
        hold = self.holds[ask.hold]
        meter = self.meter(hold, ask.attempt)
        stretch = self._reading(hold, ask.attempt, ask.run_ms)
        amount = self._cost(stretch) if ask.amount is None else ask.amount
        if hold.used + amount > LARGEST:
            return Code.AMOUNT_TOO_LARGE
        if hold.closed_at is not None:
            return Code.HOLD_CLOSED
        if ask.run_ms is None:
            self._use(hold, ask.charge, amount)
            return None
        assert meter is not None
        if meter.settled:
            return Code.ATTEMPT_SETTLED
        if stretch is not None:
            meter = stretch.meter
            self._advance(hold, ask.attempt, stretch)
            self._use(hold, ask.charge, amount, stretch=stretch)
        if ask.final:
            meter.settled = True
            hold.meters[ask.attempt] = meter
            hold.touched_at = self.now
        return None

    def _on_Settle(self, ask: Settle) -> Code | None:
        if (code := self._unusable(ask)) is not None:
            return code
        hold = self.holds[ask.hold]
        meter = self.meter(hold, ask.attempt)
        stretch = self._reading(hold, ask.attempt, ask.run_ms)
        amount = self._cost(stretch) if ask.total is None else max(0, ask.total - hold.used)
        if hold.used + amount > LARGEST:
            return Code.AMOUNT_TOO_LARGE
        if hold.closed_at is not None:
            return Code.HOLD_CLOSED
        if ask.run_ms is not None and meter is not None and meter.settled:
            return Code.ATTEMPT_SETTLED
        if stretch is not None:
            self._advance(hold, ask.attempt, stretch)
            self._use(hold, ask.charge, amount, stretch=stretch)
        elif amount:
            self._use(hold, ask.charge, amount)
        self._close(hold)
        return None

    def _on_BookLate(self, ask: BookLate) -> Code | None:
        if (code := self._unusable(ask)) is not None:
            return code
        hold = self.holds[ask.hold]
        stretch = self._reading(hold, ask.attempt, ask.run_ms)
        if ask.run_ms is not None and stretch is None:
            return None
        if stretch is None:
            assert ask.amount is not None
            assert ask.effective_at is not None
            amount, effective = ask.amount, ask.effective_at
        else:
            amount = self._cost(stretch)
            effective = min(stretch.meter.started_at + stretch.from_ms * 1000, self.now)
        earliest = max(self.now - self.policy.late_max, hold.opened_at)
        if not earliest <= effective <= self.now:
            return Code.TIME_INVALID
        if hold.used + amount > LARGEST:
            return Code.AMOUNT_TOO_LARGE
        if stretch is not None:
            self._advance(hold, ask.attempt, stretch)
        self._use(hold, ask.charge, amount, late_at=effective, stretch=stretch)
        return None

    def _unusable(self, ask: Charge | Settle | BookLate) -> Code | None:
        """Why usage is refused before its amount is known; the same checks for each command."""
        if ask.hold not in self.holds:
            return Code.HOLD_UNKNOWN
        hold = self.holds[ask.hold]
        meter = self.meter(hold, ask.attempt)
        if ask.run_ms is not None and hold.metered and meter is None:
            return Code.ATTEMPT_UNKNOWN
        if ask.charge in self.charges:
            return Code.ALREADY_EXISTS
        if ask.run_ms is not None and not hold.metered:
            return Code.NOT_METERED
        if meter is None or ask.run_ms is None:
            return None
        ran_until = meter.started_at + ask.run_ms * 1000
        if hold.for_job:  # a pool measured it
            return Code.TIME_INVALID if ran_until > self.now + DAY else None
        return Code.EXCEEDS_HOLD_AGE if ran_until > self.now + CLOCKS_DIFFER else None

    def meter(self, hold: ModelHold, attempt: int) -> ModelMeter | None:
        """An attempt's meter; with one type, the first attempt runs without having been started."""
        if not hold.metered:
            return None
        if not hold.meters and attempt == 1 and len(hold.rates) == 1:
            (rate,) = hold.rates.values()
            return ModelMeter(hold.opened_at, rate, hold.context.milli_gpus)
        return hold.meters.get(attempt)

    def _reading(self, hold: ModelHold, attempt: int, run_ms: int | None) -> Stretch | None:
        """What a reading adds to an attempt; None if nothing."""
        meter = self.meter(hold, attempt)
        if meter is None or run_ms is None or run_ms <= meter.run_ms:
            return None
        return Stretch(meter, meter.run_ms, run_ms)

    def _advance(self, hold: ModelHold, attempt: int, stretch: Stretch) -> None:
        stretch.meter.run_ms = stretch.to_ms
        hold.meters[attempt] = stretch.meter

    def _cost(self, stretch: Stretch | None) -> int:
        if stretch is None:
            return 0
        meter = stretch.meter
        to = price(meter.rate, meter.milli_gpus, stretch.to_ms)
        return to - price(meter.rate, meter.milli_gpus, stretch.from_ms)

    def _use(
        self,
        hold: ModelHold,
        charge: str,
        amount: int,
        *,
        late_at: Instant | None = None,
        stretch: Stretch | None = None,
    ) -> None:
        """Book usage that happened, whoever pays for it."""
        now = self.now
        headroom = self._headroom(hold.account, hold.user, now)
        may_extend = not self._owes(hold.account)
        hold.used += amount
        rest = amount
        spent: dict[str, int] = {}

        def pay(
            grant: ModelGrant, most: int, draw: ModelDraw, source: str, effective: Instant
        ) -> int:
            take = max(0, min(rest, most, self._cap(grant, hold.used) - draw.charged))
            if take:
                self._post(grant, source, "spent", take, effective)
                draw.charged += take
                hold.draws[grant.id] = draw
                spent[grant.id] = spent.get(grant.id, 0) + take
            return take

        for grant in self._in_spend_order(list(hold.draws), hold.account):
            draw = hold.draws[grant.id]
            take = pay(grant, draw.open, draw, "held", now)
            draw.open -= take
            rest -= take
        if late_at is not None:
            for grant in self._in_spend_order(list(hold.draws), hold.account):
                draw = hold.draws[grant.id]
                if draw.returned:
                    since = max(late_at, draw.returned_at)
                    most = min(draw.returned, grant.free_since(since))
                    take = pay(grant, most, draw, "free", since)
                    draw.returned -= take
                    rest -= take
            for grant in self._eligible(hold.account, hold.context, late_at):
                draw = hold.draws.get(grant.id, ModelDraw())
                rest -= pay(grant, grant.free_since(late_at), draw, "free", late_at)
        if may_extend:
            allowed = rest if headroom is None else headroom
            for grant in self._eligible(hold.account, hold.context, now):
                draw = hold.draws.get(grant.id, ModelDraw())
                take = pay(grant, min(allowed, self._available(grant, now)), draw, "free", now)
                allowed -= take
                rest -= take
        owed = max(0, min(rest, self.policy.debt_max - hold.owed))
        if owed:
            id = self.names.hold_debt(hold.id)
            debt = self.debts.setdefault(
                id, ModelDebt(id, hold.account, hold.id, total=0, owed=0, booked_at=now)
            )
            if debt.owed == 0:
                debt.booked_at = now
            debt.owed += owed
            hold.owed += owed
            rest -= owed
        hold.absorbed += rest
        if hold.closed_at is None:
            hold.touched_at = now
        counts = self._count(hold, amount, now if late_at is None else late_at, stretch)
        meter = stretch.meter if stretch else None
        self.charges[charge] = ModelCharge(charge, hold.id, spent, owed, counts, amount, meter)
