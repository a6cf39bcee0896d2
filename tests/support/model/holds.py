"""Holds, and the lots of an array's hold (docs/ledger.md, §4)."""

from collections.abc import Iterable
from dataclasses import replace

from bursar.core.instant import NEVER, Instant
from bursar.core.ledger.commands import (
    DropLots,
    EndHold,
    ExtendHold,
    Redraw,
    Refund,
    Release,
    Reserve,
    TakeLots,
)
from bursar.core.refusal import Code
from tests.support.model.arithmetic import price
from tests.support.model.budgets import BudgetRules
from tests.support.model.debts import DebtRules
from tests.support.model.prices import PriceRules
from tests.support.model.values import LARGEST, ModelDraw, ModelHold, ModelMeter


class HoldRules(DebtRules, BudgetRules, PriceRules):
    """Opens, changes and closes holds."""

    def _hold_max(self, whose: "Reserve | ModelHold") -> int:
        return self.policy.job_hold_max if whose.for_job else self.policy.raw_hold_max

    def limit(self, ask: Reserve) -> Instant:
        """When a hold that is opened now ends: then, after so long, or as late as it may."""
        if ask.expires_at is not None:
            return ask.expires_at
        if ask.ttl is not None:
            return min(NEVER, self.now + ask.ttl)
        return min(NEVER, self.now + self._hold_max(ask))

    def _opened(
        self, ask: Reserve, types: tuple[str, ...], rates: dict[str, int], open: int
    ) -> ModelHold:
        """The hold as it would be, with one nameless draw, to see what budgets say of it."""
        context = replace(ask.context, gpu_types=types)
        hold = ModelHold(
            id=ask.hold,
            account=ask.account,
            user=ask.user,
            context=context,
            opened_at=self.now,
            limit=self.limit(ask),
            rates=rates,
            rate=max(rates.values(), default=0),
            touched_at=self.now,
            by_time=ask.run_ms is not None,
            for_job=ask.for_job,
            array=ask.element_count is not None,
            lots=ask.element_count or 0,
            at_once=ask.at_once or ask.element_count or 1,
            lot=open // ask.element_count if ask.element_count else 0,
        )
        if not hold.metered:
            hold.rate = 0
        hold.draws = {"": ModelDraw(open=open)}
        return hold

    def _funded(self, hold: ModelHold) -> dict[str, int] | Code:
        if self._budgets_over(hold, self.now):
            return Code.BUDGET_EXCEEDED
        plan = self._planned(hold)
        return Code.INSUFFICIENT_CREDITS if plan is None else plan

    def _planned(self, hold: ModelHold) -> dict[str, int] | None:
        return self._plan(hold.account, hold.context, hold.open, hold.open, {}, self.now)

    def _faults(self, ask: Reserve) -> list[Code]:
        """What is wrong with the request itself."""
        codes = []
        if ask.account not in self.parents:
            codes.append(Code.ACCOUNT_UNKNOWN)
        if ask.user not in self.users:
            codes.append(Code.USER_UNKNOWN)
        if ask.hold in self.holds or ask.hold in self.debts:
            codes.append(Code.ALREADY_EXISTS)
        if self.limit(ask) <= self.now:
            codes.append(Code.TIME_INVALID)
        if self.limit(ask) - self.now > self._hold_max(ask):
            codes.append(Code.HOLD_TOO_LONG)
        return codes

    def _on_Reserve(self, ask: Reserve) -> Code | None:
        if faults := self._faults(ask):
            return faults[0]
        known = self._known_rates(ask.context)

        def cost(types: Iterable[str]) -> int:
            assert ask.run_ms is not None
            dearest = max(known[gpu_type] for gpu_type in types)
            return price(dearest, ask.context.milli_gpus, ask.run_ms) * (ask.element_count or 1)

        if ask.amount is not None:
            too_large = ask.amount > LARGEST
        else:
            too_large = bool(known) and min(cost([name]) for name in known) > LARGEST
        if ask.run_ms is not None and not known:
            return Code.PRICE_UNKNOWN
        if too_large:
            return Code.AMOUNT_TOO_LARGE
        if self._owes(ask.account):
            return Code.DEBT_OUTSTANDING

        if ask.amount is not None:
            hold = self._opened(ask, ask.context.gpu_types, known, ask.amount)
            plan = self._funded(hold)
            if isinstance(plan, Code):
                return plan
        else:
            alone: dict[str, dict[str, int] | Code] = {
                name: self._funded(self._opened(ask, (name,), {name: known[name]}, cost([name])))
                for name in known
            }
            types = [name for name in known if not isinstance(alone[name], Code)]
            if not types:
                refused = alone[self._cheapest(known)]
                assert isinstance(refused, Code)
                return refused
            while True:
                rates = {name: known[name] for name in types}
                hold = self._opened(ask, tuple(types), rates, cost(types))
                plan = self._funded(hold)
                if not isinstance(plan, Code):
                    break
                dearest = max(rates.values())
                types.remove([name for name in types if rates[name] == dearest][-1])
        hold.draws = {}
        self._hold_more(hold, plan)
        if hold.metered and len(hold.rates) == 1:  # it may be running on that type already
            hold.context = replace(hold.context, gpu_types=tuple(hold.rates))
        self.holds[hold.id] = hold
        return None

    def _hold_more(self, hold: ModelHold, plan: dict[str, int]) -> None:
        for id, amount in plan.items():
            self._post(self.grants[id], "free", "held", amount, self.now)
            hold.draw(id).open += amount

    def _on_ExtendHold(self, ask: ExtendHold) -> Code | None:
        if ask.hold not in self.holds:
            return Code.HOLD_UNKNOWN
        hold = self.holds[ask.hold]
        limit = hold.limit if ask.expires_at is None else ask.expires_at
        if ask.expires_at is not None and (limit <= self.now or limit < hold.limit):
            return Code.TIME_INVALID
        total = hold.used + hold.open + ask.amount
        if limit - hold.opened_at > self._hold_max(hold):
            return Code.HOLD_TOO_LONG
        if total > LARGEST:
            return Code.AMOUNT_TOO_LARGE
        if hold.closed_at is not None:
            return Code.HOLD_CLOSED
        if self._owes(hold.account):
            return Code.DEBT_OUTSTANDING
        meant = replace(hold, limit=limit, touched_at=self.now)
        meant.draws = {"": ModelDraw(open=hold.open + ask.amount)}
        if self._budgets_over(meant, self.now):
            return Code.BUDGET_EXCEEDED
        has = {id: draw.charged + draw.open for id, draw in hold.draws.items()}
        plan = self._plan(hold.account, hold.context, ask.amount, total, has, self.now)
        if plan is None:
            return Code.INSUFFICIENT_CREDITS
        self._hold_more(hold, plan)
        hold.limit = limit
        hold.touched_at = self.now
        return None

    def _on_Redraw(self, ask: Redraw) -> Code | None:
        if ask.hold not in self.holds:
            return Code.HOLD_UNKNOWN
        hold = self.holds[ask.hold]
        if ask.attempt in hold.meters:
            return Code.ALREADY_EXISTS
        if ask.gpu_type not in hold.rates:
            return Code.TYPE_NOT_HELD
        if not hold.metered:
            return Code.NOT_METERED
        if hold.closed_at is not None:
            return Code.HOLD_CLOSED

        in_force = self._rate(ask.gpu_type, hold.context, self.now)
        rate = hold.rates[ask.gpu_type]
        if in_force is not None:
            rate = min(rate, in_force)
        milli_gpus = hold.context.milli_gpus
        hold.context = replace(hold.context, gpu_types=(ask.gpu_type,))
        hold.meters[ask.attempt] = ModelMeter(self.now, rate, milli_gpus)
        hold.touched_at = self.now

        target = min(hold.open, price(rate, milli_gpus, ask.run_ms))
        old = {id: draw.open for id, draw in hold.draws.items() if draw.open}
        pool = dict(old)
        for grant in self._eligible(hold.account, hold.context, self.now):
            pool[grant.id] = pool.get(grant.id, 0) + self._available(grant, self.now)
        new = dict.fromkeys(pool, 0)
        missing = target
        for grant in self._in_spend_order(pool, hold.account):
            charged = hold.draws[grant.id].charged if grant.id in hold.draws else 0
            room = self._cap(grant, hold.used + target) - charged
            take = max(0, min(missing, pool[grant.id], room))
            new[grant.id] += take
            missing -= take
        for grant in self._in_spend_order(old, hold.account):
            take = max(0, min(missing, old[grant.id] - new[grant.id]))
            new[grant.id] += take
            missing -= take
        assert missing == 0
        self._hold_more(
            hold, {id: new[id] - old.get(id, 0) for id in pool if new[id] > old.get(id, 0)}
        )
        self._return(hold, {id: old[id] - new[id] for id in old}, self.now)
        return None

    def _on_Refund(self, ask: Refund) -> Code | None:
        if ask.hold not in self.holds:
            return Code.HOLD_UNKNOWN
        hold = self.holds[ask.hold]
        if hold.closed_at is not None:
            return Code.HOLD_CLOSED
        if ask.amount > hold.open:
            return Code.EXCEEDS_HOLD
        keep = hold.open - ask.amount
        most = {id: draw.open for id, draw in hold.draws.items()}
        has = {id: draw.charged for id, draw in hold.draws.items()}
        spread = self._spread(hold, most, hold.used + keep, keep, has)
        self._return(hold, {id: most[id] - spread[id] for id in most}, self.now)
        hold.touched_at = self.now
        return None

    def _on_Release(self, ask: Release) -> Code | None:
        if ask.hold not in self.holds:
            return Code.HOLD_UNKNOWN
        hold = self.holds[ask.hold]
        if hold.closed_at is not None:
            return Code.HOLD_CLOSED
        self._close(hold)
        return None

    def _on_EndHold(self, ask: EndHold) -> Code | None:
        if ask.hold not in self.holds:
            return Code.HOLD_UNKNOWN
        hold = self.holds[ask.hold]
        if hold.closed_at is None:
            return Code.TIME_INVALID
        return None if hold.end_unwritten else Code.HOLD_CLOSED

    def _close(self, hold: ModelHold) -> None:
        self._return(hold, {id: draw.open for id, draw in hold.draws.items()}, self.now)
        hold.closed_at = self.now

    def _on_TakeLots(self, ask: TakeLots) -> Code | None:
        if ask.hold not in self.holds:
            return Code.HOLD_UNKNOWN
        hold = self.holds[ask.hold]
        if hold.closed_at is not None:
            return Code.HOLD_CLOSED
        if ask.first < hold.taken:
            return Code.ALREADY_EXISTS
        if ask.first > hold.taken or ask.first + ask.count > hold.lots:
            return Code.EXCEEDS_HOLD
        if ask.count * hold.lot > hold.open:
            return Code.EXCEEDS_HOLD
        for number in range(ask.first, ask.first + ask.count):
            self._take_lot(hold, number)
        hold.taken += ask.count
        hold.touched_at = self.now
        return None

    def _on_DropLots(self, ask: DropLots) -> Code | None:
        if ask.hold not in self.holds:
            return Code.HOLD_UNKNOWN
        hold = self.holds[ask.hold]
        if hold.closed_at is not None:
            return Code.HOLD_CLOSED
        if not hold.array:
            return None
        if hold.open or hold.taken < hold.lots:
            hold.touched_at = self.now
        hold.lots = hold.taken
        self._return(hold, {id: draw.open for id, draw in hold.draws.items()}, self.now)
        return None

    def _take_lot(self, hold: ModelHold, number: int) -> None:
        """A new hold with the first of what the array's has, under the caps of its own total."""
        most = {id: draw.open for id, draw in hold.draws.items()}
        parts = self._spread(hold, most, hold.lot, hold.lot, {})
        types = tuple(hold.rates)
        lot = ModelHold(
            id=self.names.lot(hold.id, number),
            account=hold.account,
            user=hold.user,
            context=replace(hold.context, gpu_types=types),
            opened_at=self.now,
            limit=hold.limit,
            rates=dict(hold.rates),
            rate=hold.rate,
            touched_at=self.now,
            by_time=True,
            for_job=True,
            draws={id: ModelDraw(open=amount) for id, amount in parts.items() if amount},
            lot_of=hold.id,
        )
        for id, amount in parts.items():
            hold.draws[id].open -= amount
        self.holds[lot.id] = lot
