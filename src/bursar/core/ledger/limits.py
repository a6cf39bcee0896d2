"""What budgets count, and what they refuse (B3, B5).

In each period a budget counts what was charged and what open holds can still spend. The second part
changes as time passes, and summing it over all holds would make each decision cost as much as there
are holds. So the claim of a hold is computed only when the hold changes:

    full    min(open, the price of the longest period the budget can have)
    relief  how much less than that it can spend before *this* period ends

`claims` holds the sum of the full claims of all open holds, for all periods. The tally of a period
holds the sum of the reliefs of the holds that changed in it. Claims less relief is what holds can
spend: exact for each hold that changed in the period, and never too small for the others. The event
that changes a hold contains both differences.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

from bursar.core.budgets.periods import Period, claim_horizon, period_at, slots_inside
from bursar.core.ids import AccountId, BudgetId, UserId
from bursar.core.instant import NEVER, Instant, whole_ms
from bursar.core.ledger.books import ApplicableBudget, Books, TallyKey, require
from bursar.core.ledger.events import ThresholdCrossed
from bursar.core.ledger.values import (
    NO_COUNT,
    Budget,
    BudgetCounter,
    BudgetUsage,
    ClaimChange,
    Hold,
    HoldClaim,
    TargetKey,
)
from bursar.core.metering import Usage
from bursar.core.money import PPM, Micros, usage_price_up
from bursar.core.refusal import Code, Refusal


def budgets_on(
    books: Books, account: AccountId, user: UserId, capped_key: UserId | None = None
) -> list[ApplicableBudget]:
    """The budgets that apply to usage of `user` in `account`, in the order they are checked.

    If the request was made with a capped key, the budgets of that key apply as well.
    """
    whose = (account, user, capped_key)
    applying = books.applying.get(whose)
    if applying is None:
        applying = books.applying[whose] = _find_budgets(books, account, user, capped_key)
    return applying


def _find_budgets(
    books: Books, account: AccountId, user: UserId, capped_key: UserId | None
) -> list[ApplicableBudget]:
    applying: list[ApplicableBudget] = []
    for ancestor in books.path(account):
        _gather(books, (ancestor, None, False), None, applying)
        _gather(books, (ancestor, None, True), user, applying)
        _gather(books, (ancestor, user, False), None, applying)
    _gather(books, (None, user, False), None, applying)
    if capped_key is not None and capped_key != user:
        _gather(books, (None, capped_key, False), None, applying)
    return applying


def _gather(
    books: Books, target: TargetKey, user: UserId | None, applying: list[ApplicableBudget]
) -> None:
    for budget in books.budgets_of.get(target) or ():
        applying.append(ApplicableBudget(require(books.budgets, budget), user))


class BudgetClaim(NamedTuple):
    """What a hold can spend of a budget in its longest period, and how much less in this one."""

    full: Micros
    relief: Micros


NO_CLAIM: Final = BudgetClaim(0, 0)


def claim_of(budget: Budget, hold: HoldClaim, period: Period) -> BudgetClaim:
    """The claim of a hold, with its relief in `period`, the current one.

    The relief is 0 until the hold changes in the period. Unpaid run time counts from its beginning,
    if that is within the period.
    """
    if hold.milli_gpus == 0:
        return BudgetClaim(hold.open, 0)
    horizon = min(claim_horizon(budget.window), hold.expires_at - hold.since)
    full = _spendable_within(hold, horizon)
    if not budget.calendar or hold.touched_at < period.start:
        return BudgetClaim(full, 0)
    span = min(period.end, hold.expires_at) - max(hold.since, period.start)
    return BudgetClaim(full, full - _spendable_within(hold, span))


def claim_changes(
    applying: list[ApplicableBudget], old: Hold | None, new: Hold
) -> tuple[ClaimChange, ...]:
    """The changes of a hold's claims on budgets when the hold changes from `old` to `new`."""
    if not applying:
        return ()
    if not new.terms.by_time:
        more = new.open - (0 if old is None else old.open)
        return _untimed_claim_changes(applying, more, new.touched_at) if more else ()
    was, now = None if old is None else old.claim, new.claim
    changes: list[ClaimChange] = []
    for budget, user in applying:
        period = period_at(budget.window, now.touched_at)
        after = claim_of(budget, now, period)
        before = NO_CLAIM if was is None else claim_of(budget, was, period)
        if after != before:
            full, relief = after.full - before.full, after.relief - before.relief
            start = period.start
            changes.append(
                ClaimChange(budget=budget.id, user=user, start=start, full=full, relief=relief)
            )
    return tuple(changes)


def _untimed_claim_changes(
    applying: list[ApplicableBudget], more: Micros, now: Instant
) -> tuple[ClaimChange, ...]:
    """The changes for a hold without a rate, whose open amount changes by `more`."""
    return tuple(
        [
            ClaimChange(
                budget=budget.id,
                user=user,
                start=period_at(budget.window, now).start,
                full=more,
                relief=0,
            )
            for budget, user in applying
        ]
    )


def _spendable_within(hold: HoldClaim, span: int) -> Micros:
    return min(hold.open, usage_price_up(hold.rate, hold.milli_gpus, whole_ms(span)))


def counted_in(books: Books, applying: ApplicableBudget, now: Instant) -> Micros:
    """What a budget counts at `now`: the charges of its period and the claims of open holds."""
    budget, user = applying
    claims = books.claims.get((budget.id, user)) or 0
    relief = 0
    if budget.calendar:
        start = period_at(budget.window, now).start
        relief = (books.tallies.get((budget.id, user, start)) or NO_COUNT).relief
    return charged_in(books, applying, now) + claims - relief


def charged_in(books: Books, applying: ApplicableBudget, now: Instant) -> Micros:
    """The charges of the period, or of the slots of the rolling window, at `now`."""
    budget, user = applying
    charged = 0
    for start in slots_inside(budget.window, now):
        charged += (books.tallies.get((budget.id, user, start)) or NO_COUNT).charged
    return charged


def first_over(
    books: Books,
    applying: list[ApplicableBudget],
    before: HoldClaim | None,
    after: HoldClaim,
) -> Refusal | None:
    """The refusal by the first hard budget that the change of a hold exceeds, if any."""
    return next(all_over(books, applying, before, after), None)


def all_over(
    books: Books,
    applying: list[ApplicableBudget],
    before: HoldClaim | None,
    after: HoldClaim,
) -> Iterator[Refusal]:
    """The refusals by all hard budgets that the change of a hold exceeds, in order."""
    now = after.touched_at
    for applicable in applying:
        if applicable.budget.hard:
            counted = counted_in(books, applicable, now)
            period = period_at(applicable.budget.window, now)
            claimed = _claims_at(applicable.budget, after, period)
            if before is not None:
                claimed -= _claims_at(applicable.budget, before, period)
            if counted + claimed > applicable.budget.limit:
                yield Refusal(
                    Code.BUDGET_EXCEEDED, _figures(applicable.budget, counted, claimed, period)
                )


def _claims_at(budget: Budget, hold: HoldClaim, period: Period) -> Micros:
    """What `counted_in` counts of a hold in the current period."""
    full, relief = claim_of(budget, hold, period)
    return full - relief


def _figures(budget: Budget, counted: Micros, claimed: Micros, period: Period) -> dict[str, object]:
    return {
        "budget": budget.id,
        "limit": budget.limit,
        "counted": counted,
        "asked": claimed,
        "headroom": max(budget.limit - counted, 0),
        "period_start": period.start,
        "period_end": period.end,
    }


def headroom(books: Books, applying: list[ApplicableBudget], now: Instant) -> Micros | None:
    """The least that the hard budgets still allow; None if no hard budget applies."""
    rooms = [
        max(applicable.budget.limit - counted_in(books, applicable, now), 0)
        for applicable in applying
        if applicable.budget.hard
    ]
    return min(rooms, default=None)


def count_usage(
    applying: list[ApplicableBudget], usage: Usage, now: Instant
) -> tuple[BudgetUsage, ...]:
    """How budgets count metered usage: in the periods in which its milliseconds fall.

    Usage before a rolling window is not counted, because the window never contains it again. Usage
    after now (a reading ahead of the clock) counts in the current slot, so that the window contains
    it.
    """
    counted: dict[TallyKey, Micros] = {}
    for budget, user in applying:
        newest = NEVER if budget.calendar else period_at(budget.window, now).start
        for start, amount in usage.by_period(budget.window, since=_oldest(budget, now)):
            key = (budget.id, user, min(start, newest))
            counted[key] = counted.get(key, 0) + amount
    return tuple(
        BudgetUsage(budget=budget, user=user, start=start, amount=amount)
        for (budget, user, start), amount in counted.items()
    )


def _oldest(budget: Budget, now: Instant) -> Instant:
    return 0 if budget.calendar else slots_inside(budget.window, now)[0]


def count_amount(
    applying: list[ApplicableBudget], amount: Micros, at: Instant, now: Instant
) -> tuple[BudgetUsage, ...]:
    """How budgets count an amount: in the period of `at`, unless a rolling window is past it."""
    if amount == 0:
        return ()
    return tuple(
        [
            BudgetUsage(budget=budget.id, user=user, start=start, amount=amount)
            for budget, user in applying
            if (start := period_at(budget.window, at).start) >= _oldest(budget, now)
        ]
    )


def uncount(
    books: Books, counted: tuple[BudgetUsage, ...], amount: Micros
) -> tuple[BudgetUsage, ...]:
    """What to take off the counters when `amount` of usage is undone: the latest period first.

    Deleted budgets are skipped.
    """
    remaining: dict[tuple[BudgetId, UserId | None], Micros] = {}
    off: list[BudgetUsage] = []
    for usage in sorted(counted, key=lambda usage: -usage.start):
        if require(books.budgets, usage.budget).dropped:
            continue
        key = (usage.budget, usage.user)
        part = min(remaining.get(key, amount), usage.amount)
        remaining[key] = remaining.get(key, amount) - part
        if part:
            off.append(
                BudgetUsage(budget=usage.budget, user=usage.user, start=usage.start, amount=part)
            )
    return tuple(off)


CountedIn: TypeAlias = list[tuple[ApplicableBudget, list[BudgetUsage]]]


def over_limit(books: Books, counted_in: CountedIn, now: Instant) -> tuple[BudgetId, ...]:
    """The hard budgets that are over their limit after a charge."""
    return tuple(
        [
            applicable.budget.id
            for applicable, parts in counted_in
            if applicable.budget.hard and _is_over(books, applicable, parts, now)
        ]
    )


def by_budget(applying: list[ApplicableBudget], counted: tuple[BudgetUsage, ...]) -> CountedIn:
    """The budgets that count a charge, each with its parts of the charge."""
    parts: dict[tuple[BudgetId, UserId | None], list[BudgetUsage]] = {}
    for part in counted:
        parts.setdefault((part.budget, part.user), []).append(part)
    return [
        (applicable, parts[key])
        for applicable in applying
        if (key := (applicable.budget.id, applicable.user)) in parts
    ]


def _is_over(
    books: Books, applying: ApplicableBudget, parts: list[BudgetUsage], now: Instant
) -> bool:
    """Whether a period that the charge counts in exceeds the limit."""
    budget, user = applying
    if not budget.calendar:
        inside = slots_inside(budget.window, now)
        added = sum(part.amount for part in parts if part.start in inside)
        return added > 0 and charged_in(books, applying, now) + added > budget.limit
    for part in parts:
        tally = books.tallies.get((budget.id, user, part.start)) or NO_COUNT
        if tally.charged + part.amount > budget.limit:
            return True
    return False


def crossings(books: Books, counted_in: CountedIn, now: Instant) -> list[ThresholdCrossed]:
    """The thresholds that a charge reached and that were not reported before."""
    return [
        crossing
        for applicable, parts in counted_in
        for start in _starts(applicable.budget, parts, now)
        if (crossing := _crossing(books, applicable, start, now)) is not None
    ]


def _starts(budget: Budget, parts: list[BudgetUsage], now: Instant) -> list[Instant]:
    """The periods in which a charge may have reached a threshold; the slot of a rolling window."""
    if not budget.calendar:
        return [period_at(budget.window, now).start]
    return [parts[0].start] if len(parts) == 1 else sorted(part.start for part in parts)


def _crossing(
    books: Books, applying: ApplicableBudget, start: Instant, now: Instant
) -> ThresholdCrossed | None:
    budget, user = applying
    starts = (start,) if budget.calendar else slots_inside(budget.window, now)
    charged = reported = 0
    for slot in starts:
        tally = books.tallies.get((budget.id, user, slot)) or NO_COUNT
        charged += tally.charged
        reported = max(reported, _reported_thresholds(budget, tally))
    reached = reported
    for ppm in budget.thresholds_ppm[reported:]:
        if charged * PPM < budget.limit * ppm:
            break
        reached += 1
    if reached == reported:
        return None
    return ThresholdCrossed(
        at=now,
        budget=budget.id,
        user=user,
        start=start,
        crossed=reached,
        revision=budget.revision,
        charged=charged,
        limit=budget.limit,
    )


def _reported_thresholds(budget: Budget, tally: BudgetCounter) -> int:
    """How many thresholds of the current revision of a budget were reported."""
    return tally.crossed if tally.revision == budget.revision else 0
