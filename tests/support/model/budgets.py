"""Limits on spending per period (docs/ledger.md, §10)."""

from bursar.core.budgets.periods import PeriodKind
from bursar.core.ids import AccountId, BudgetId
from bursar.core.instant import NEVER, Instant
from bursar.core.ledger.commands import ChangeBudget, DropBudget, SetBudget, SetTier
from bursar.core.ledger.values import BudgetTarget
from bursar.core.refusal import Code
from bursar.core.value import replace
from tests.support.model.arithmetic import begun_ms, calendar_period, price
from tests.support.model.state import ModelState
from tests.support.model.values import (
    LONGEST,
    MILLION,
    MINUTE,
    TIER_BUDGETS,
    ModelBudget,
    ModelCount,
    ModelHold,
    Stretch,
)


def fill_in(
    ask: SetBudget,
    hard: bool | None = True,
    thresholds_ppm: tuple[int, ...] | None = (500_000, 800_000, 1_000_000),
) -> SetBudget:
    """A budget with the fields that a command leaves open."""
    return replace(
        ask,
        hard=hard if ask.hard is None else ask.hard,
        thresholds_ppm=thresholds_ppm if ask.thresholds_ppm is None else ask.thresholds_ppm,
    )


class BudgetRules(ModelState):
    """Counts usage and claims against budgets."""

    def counting(self, budget: ModelBudget) -> list[str | None]:
        """For whom a budget counts: each user apart, or nobody in particular."""
        return list(self.users) if budget.ask.target.each_user else [None]

    def _applies(self, target: BudgetTarget, account: str, user: str) -> bool:
        if target.account is not None and target.account not in self.path(account):
            return False
        return target.user is None or target.user == user

    def period(self, budget: ModelBudget, at: Instant) -> tuple[Instant, Instant]:
        """The period, or slot, of a budget in which `at` lies."""
        every = budget.ask.every
        if every == PeriodKind.LIFETIME:
            return 0, NEVER
        if every == PeriodKind.ROLLING:
            slot = budget.ask.rolling // 24
            return at // slot * slot, at // slot * slot + slot
        return calendar_period(every, budget.zone, at)

    def charged_in(self, budget: ModelBudget, user: str | None, now: Instant) -> int:
        """Usage that counts at `now`."""
        total = 0
        for (whose, start), charged in budget.charged.items():
            if whose == user and self._counts(budget, start, now):
                total += charged
        return total

    def _counts(self, budget: ModelBudget, start: Instant, now: Instant) -> bool:
        if budget.ask.every == PeriodKind.ROLLING:
            last = start + budget.ask.rolling // 24 - 1
            return start <= now and last > now - budget.ask.rolling
        return start == self.period(budget, now)[0]

    def claim(self, budget: ModelBudget, hold: ModelHold, now: Instant) -> int:
        """What an open hold can still spend in the period of `now`."""
        if not hold.by_time:
            return hold.open
        every = budget.ask.every
        since = self._unpaid_since(hold)
        span = hold.limit - since
        if every == PeriodKind.ROLLING:
            span = min(span, budget.ask.rolling)
        elif every != PeriodKind.LIFETIME:
            start, end = self.period(budget, now)
            if start <= hold.touched_at:
                span = min(hold.limit, end) - max(since, start)
            else:
                span = min(span, LONGEST[every])
        parts = hold.rate * hold.context.milli_gpus * hold.at_once * begun_ms(span)
        return min(hold.open, -(-parts // (1000 * 3_600_000)))  # begun micro-credits

    def _unpaid_since(self, hold: ModelHold) -> Instant:
        """From when on the run time of a hold has not been charged."""
        since = hold.touched_at
        for meter in hold.meters.values():
            if not meter.settled:
                since = min(since, meter.started_at + meter.run_ms * 1_000)
        if not hold.meters and len(hold.rates) == 1 and not hold.array:
            since = min(since, hold.opened_at)
        return since

    def counted(
        self,
        budget: ModelBudget,
        user: str | None,
        now: Instant,
        instead: ModelHold | None = None,
    ) -> int:
        """Charged and claimed at `now`, with the hold `instead` in place of the one of its id."""
        holds = {hold.id: hold for hold in self.holds.values()}
        if instead is not None:
            holds[instead.id] = instead
        claims = 0
        for hold in holds.values():
            if (
                hold.closed_at is None
                and self._applies(budget.ask.target, hold.account, hold.user)
                and (user is None or user == hold.user)
            ):
                claims += self.claim(budget, hold, now)
        return self.charged_in(budget, user, now) + claims

    def _whose(self, budget: ModelBudget, user: str) -> str | None:
        return user if budget.ask.target.each_user else None

    def _budgets_over(self, hold: ModelHold, now: Instant) -> int:
        """How many hard budgets would be exceeded with `hold` as it is meant to be."""
        over = 0
        for budget in self.budgets.values():
            if budget.ask.hard and self._applies(budget.ask.target, hold.account, hold.user):
                counted = self.counted(budget, self._whose(budget, hold.user), now, hold)
                over += counted > budget.ask.limit
        return over

    def _headroom(self, account: str, user: str, now: Instant) -> int | None:
        """The smallest that a hard budget leaves; None if there is no such budget."""
        rooms = [
            budget.ask.limit - self.counted(budget, self._whose(budget, user), now)
            for budget in self.budgets.values()
            if budget.ask.hard and self._applies(budget.ask.target, account, user)
        ]
        return max(0, min(rooms)) if rooms else None

    def _by_period(self, budget: ModelBudget, stretch: Stretch) -> list[tuple[Instant, int]]:
        meter, parts, from_ms = stretch.meter, [], stretch.from_ms
        while from_ms < stretch.to_ms:
            start, end = self.period(budget, meter.started_at + from_ms * 1000)
            to_ms = min(stretch.to_ms, begun_ms(end - meter.started_at))
            cost = price(meter.rate, meter.milli_gpus, to_ms)
            parts.append((start, cost - price(meter.rate, meter.milli_gpus, from_ms)))
            from_ms = to_ms
        return parts

    def _count(
        self, hold: ModelHold, amount: int, effective: Instant, stretch: Stretch | None
    ) -> list[ModelCount]:
        counts = []
        for id, budget in self.budgets.items():
            if not self._applies(budget.ask.target, hold.account, hold.user):
                continue
            user = self._whose(budget, hold.user)
            if stretch is None:
                parts = [(self.period(budget, effective)[0], amount)]
            else:
                parts = self._by_period(budget, stretch)
                if budget.ask.every == PeriodKind.ROLLING:  # what is ahead of the clock counts now
                    parts = [
                        (min(start, self.period(budget, self.now)[0]), part)
                        for start, part in parts
                    ]
            parts = [
                (start, part)
                for start, part in parts
                if part and not self._gone(budget, start, self.now)
            ]
            for start, part in parts:
                place = (user, start)
                budget.charged[place] = budget.charged.get(place, 0) + part
                counts.append(ModelCount(id, user, start, part))
            self._report(budget, user, [start for start, _ in parts])
        return counts

    def _gone(self, budget: ModelBudget, start: Instant, now: Instant) -> bool:
        """Whether a slot has left its rolling window, so that nothing more is counted in it."""
        rolling = budget.ask.every == PeriodKind.ROLLING
        return rolling and start <= now and not self._counts(budget, start, now)

    def _report(self, budget: ModelBudget, user: str | None, starts: list[Instant]) -> None:
        """Remember how many thresholds are reached: in each period, or in the slot of now."""
        for start in starts:
            charged = budget.charged[user, start]
            if budget.ask.every == PeriodKind.ROLLING:
                start = self.period(budget, self.now)[0]
                charged = self.charged_in(budget, user, self.now)
            passed = 0
            for ppm in budget.ask.thresholds_ppm or ():
                if charged * MILLION >= ppm * budget.ask.limit:
                    passed += 1
            reported = budget.crossed.get((user, start), 0)
            if budget.ask.every == PeriodKind.ROLLING:
                reported = self.thresholds(budget, user, self.now)
            if passed > reported:
                budget.crossed[user, start] = passed

    def thresholds(self, budget: ModelBudget, user: str | None, now: Instant) -> int:
        """How many thresholds have been reported in the period of `now`."""
        return max(
            (
                count
                for (whose, start), count in budget.crossed.items()
                if whose == user and self._counts(budget, start, now)
            ),
            default=0,
        )

    def _uncount(self, place: ModelCount, amount: int) -> None:
        budget = self.budgets.get(place.budget)
        if budget is not None:
            key = (place.user, place.start)
            budget.charged[key] = max(0, budget.charged.get(key, 0) - amount)

    def _on_SetTier(self, ask: SetTier) -> Code | None:
        if not self.parents:
            return Code.ACCOUNT_UNKNOWN  # of the root, below which each user is limited
        if ask.tier == self.tier:
            return None
        for id in [id for id, budget in self.budgets.items() if budget.of_tier]:
            self._drop(id)
        self.tier = ask.tier
        root = self._root()
        for every, limit in TIER_BUDGETS.get(ask.tier, ()):
            id = self.names.tier_budget(self.tier_budgets)
            target = BudgetTarget(account=AccountId(root), each_user=True)
            brought = SetBudget(
                budget=BudgetId(id), target=target, every=every, limit=limit, hard=True
            )
            self.budgets[id] = ModelBudget(fill_in(brought), self.zones[root], of_tier=True)
            self.tier_budgets += 1
        return None

    def _on_SetBudget(self, ask: SetBudget) -> Code | None:
        if ask.target.account is not None and ask.target.account not in self.parents:
            return Code.ACCOUNT_UNKNOWN
        if not self.parents:
            return Code.ACCOUNT_UNKNOWN  # of the root, whose days count
        if ask.target.user is not None and ask.target.user not in self.users:
            return Code.USER_UNKNOWN
        if ask.budget in self.dropped:
            return Code.ALREADY_EXISTS
        rolling = ask.every == PeriodKind.ROLLING
        if ask.rolling and (not rolling or ask.rolling < 24 * MINUTE or ask.rolling % 24):
            return Code.TIME_INVALID
        if rolling and not ask.rolling:
            return Code.TIME_INVALID
        if ask.budget in self.budgets:
            budget = self.budgets[ask.budget]
            now, then = ask, budget.ask
            if (now.target, now.every, now.rolling) != (then.target, then.every, then.rolling):
                return Code.BUDGET_DIFFERS
            self._change(budget, fill_in(now, then.hard, then.thresholds_ppm))
            return None
        zone = self.zones[ask.target.account or self._root()]
        new = fill_in(ask)
        for other in self.budgets.values():
            if not other.of_tier and replace(other.ask, budget=new.budget) == new:
                return Code.ALREADY_EXISTS
        self.budgets[ask.budget] = ModelBudget(new, zone)
        return None

    def _on_ChangeBudget(self, ask: ChangeBudget) -> Code | None:
        if ask.budget not in self.budgets:
            return Code.BUDGET_UNKNOWN
        budget = self.budgets[ask.budget]
        names = ("limit", "hard", "thresholds_ppm")
        named = {name: getattr(ask, name) for name in names if getattr(ask, name) is not None}
        self._change(budget, replace(budget.ask, **named))
        return None

    def _change(self, budget: ModelBudget, now: SetBudget) -> None:
        then = budget.ask
        if (now.limit, now.thresholds_ppm) != (then.limit, then.thresholds_ppm):
            budget.crossed.clear()  # what was reported was reported of other amounts
        budget.ask = now

    def _on_DropBudget(self, ask: DropBudget) -> Code | None:
        if ask.budget not in self.budgets:
            return Code.BUDGET_UNKNOWN
        self._drop(ask.budget)
        return None

    def _drop(self, budget: str) -> None:
        del self.budgets[budget]
        self.dropped.append(budget)
