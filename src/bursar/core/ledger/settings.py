"""Manages accounts, users, settings, policies, tiers, prices and budgets."""

from bursar.core.budgets.periods import SLOTS_PER_WINDOW, PeriodKind, Window, is_zone, period_at
from bursar.core.budgets.tiers import TIERS
from bursar.core.ids import BudgetId, UserId
from bursar.core.instant import MINUTE
from bursar.core.ledger.books import LIMITS, require
from bursar.core.ledger.commands import (
    AddAccount,
    AddUser,
    ChangeBudget,
    DropBudget,
    SetBudget,
    SetPolicy,
    SetPrice,
    SetSetting,
    SetTier,
)
from bursar.core.ledger.draft import Draft
from bursar.core.ledger.due_events import new_id
from bursar.core.ledger.events import (
    AccountAdded,
    BudgetDropped,
    BudgetSet,
    PolicySet,
    PriceSet,
    SettingSet,
    TierSet,
    UserAdded,
)
from bursar.core.ledger.limits import NO_CLAIM, BudgetClaim, claim_of
from bursar.core.ledger.values import Account, Budget, BudgetTarget, ClaimChange, Hold
from bursar.core.refusal import Code, Refusal
from bursar.core.value import replace


def add_account(draft: Draft, ask: AddAccount) -> Refusal | None:
    """Add an account to the tree."""
    books = draft.books
    parent = None if ask.parent is None else books.accounts.get(ask.parent)
    if ask.parent is not None and parent is None:
        return Refusal(Code.ACCOUNT_UNKNOWN, {"account": ask.parent})
    if books.accounts.get(ask.account) is not None:
        return Refusal(Code.ALREADY_EXISTS, {"account": ask.account})
    if parent is None and books.header.root is not None:
        return Refusal(Code.ALREADY_EXISTS, {"root": books.header.root})
    zone = ask.time_zone or (parent.time_zone if parent else "UTC")
    if not is_zone(zone):
        return Refusal(Code.TIME_INVALID, {"time_zone": zone})
    account = Account(id=ask.account, parent=ask.parent, name=ask.name, time_zone=zone)
    draft.record(AccountAdded(at=draft.now, account=account))
    return None


def add_user(draft: Draft, ask: AddUser) -> Refusal | None:
    """Add a user to the org."""
    if draft.books.users.get(ask.user) is not None:
        return Refusal(Code.ALREADY_EXISTS, {"user": ask.user})
    draft.record(UserAdded(at=draft.now, user=ask.user))
    return None


def set_setting(draft: Draft, ask: SetSetting) -> Refusal | None:
    """Store or delete a setting, if the caller knows its current version."""
    named = {"kind": ask.kind, "id": ask.id}
    old = draft.books.settings.get((ask.kind, ask.id))
    if ask.before == 0 and old is not None:
        return Refusal(Code.ALREADY_EXISTS, named)
    if ask.before != 0 and (old is None or old.body is None):
        return Refusal(Code.SETTING_UNKNOWN, named)
    if ask.before and old is not None and ask.before != old.number:
        return Refusal(Code.CHANGED_SINCE, {**named, "number": old.number})
    draft.record(SettingSet(at=draft.now, kind=ask.kind, id=ask.id, body=ask.body))
    return None


def set_policy(draft: Draft, ask: SetPolicy) -> Refusal | None:
    """Set the org's limits."""
    draft.record(PolicySet(at=draft.now, policy=ask.policy))
    return None


def set_price(draft: Draft, ask: SetPrice) -> Refusal | None:
    """Add a version to the org's own prices."""
    books = (draft.books.header.prices, draft.books.deployment)
    if any(book.version(ask.version.id) is not None for book in books):
        return Refusal(Code.ALREADY_EXISTS, {"version": ask.version.id})
    version = replace(ask.version, effective_at=draft.now) if ask.from_now else ask.version
    own = draft.books.header.prices
    in_force = own.in_force(draft.now)
    if in_force is not None and version.effective_at < in_force.effective_at:
        # It would change what a version that has been in force keeps of the one before it.
        figures = {"effective_at": version.effective_at, "earliest": in_force.effective_at}
        return Refusal(Code.TIME_INVALID, figures)
    before = own.in_force(version.effective_at) if version.keeps_others else None
    in_full = None if before is None else version.after(before)
    draft.record(PriceSet(at=draft.now, version=version, in_full=in_full))
    return None


def set_tier(draft: Draft, ask: SetTier) -> Refusal | None:
    """Set the org's tier; its default budgets replace those of the previous tier."""
    root = draft.books.header.root
    if root is None:
        return Refusal(Code.ACCOUNT_UNKNOWN, {"account": None})
    if ask.tier == draft.books.header.tier:
        return None  # its budgets go on counting
    target = BudgetTarget(account=root, each_user=True)
    for old in draft.books.budgets_of.get(target.key) or ():
        if require(draft.books.budgets, old).tier is not None:
            draft.record(BudgetDropped(at=draft.now, budget=old))
    draft.record(TierSet(at=draft.now, tier=ask.tier))
    zone = require(draft.books.accounts, root).time_zone
    for default in TIERS.get(ask.tier, ()):
        label = f"{ask.tier}/{default.every}/{draft.now}"
        budget = Budget(
            id=BudgetId(new_id(draft.books.budgets, root, label)),
            target=target,
            window=Window(every=default.every, time_zone=zone),
            limit=default.limit,
            hard=True,
            tier=ask.tier,
        )
        _set_new(draft, budget)
    return None


def set_budget(draft: Draft, ask: SetBudget) -> Refusal | None:
    """Create a budget, or change the given fields of an existing one."""
    if refusal := _unknown_target(draft, ask.target):
        return refusal
    old = draft.books.budgets.get(ask.budget)
    if old is not None and old.dropped:
        return Refusal(Code.ALREADY_EXISTS, {"budget": ask.budget})
    if not _is_window(ask):
        return Refusal(Code.TIME_INVALID, {"every": ask.every, "rolling": ask.rolling})
    budget = Budget(
        id=ask.budget,
        target=ask.target,
        window=Window(every=ask.every, time_zone=_zone(draft, ask.target), length=ask.rolling),
        limit=ask.limit,
        hard=True,
    )
    if old is not None and (old.target, old.window) != (budget.target, budget.window):
        return Refusal(Code.BUDGET_DIFFERS, {"budget": ask.budget})
    if old is not None:
        draft.record(BudgetSet(at=draft.now, budget=_change(old, ask)))
        return None
    budget = replace(_change(budget, ask), revision=0)
    if twin := _find_identical(draft, budget):
        return Refusal(Code.ALREADY_EXISTS, {"budget": twin})
    _set_new(draft, budget)
    return None


def change_budget(draft: Draft, ask: ChangeBudget) -> Refusal | None:
    """Change what the command names of an existing budget."""
    old = draft.books.budgets.get(ask.budget)
    if old is None or old.dropped:
        return Refusal(Code.BUDGET_UNKNOWN, {"budget": ask.budget})
    draft.record(BudgetSet(at=draft.now, budget=_change(old, ask)))
    return None


def _change(old: Budget, ask: SetBudget | ChangeBudget) -> Budget:
    """A budget with what a command names. Thresholds at other amounts are reported anew."""
    new = replace(
        old,
        limit=old.limit if ask.limit is None else ask.limit,
        hard=old.hard if ask.hard is None else ask.hard,
        thresholds_ppm=old.thresholds_ppm if ask.thresholds_ppm is None else ask.thresholds_ppm,
    )
    same = (old.limit, old.thresholds_ppm) == (new.limit, new.thresholds_ppm)
    return new if same else replace(new, revision=old.revision + 1)


def _find_identical(draft: Draft, budget: Budget) -> BudgetId | None:
    """The budget with the same target, period, limit and thresholds; not one of a tier."""
    for id in draft.books.budgets_of.get(budget.target.key) or ():
        other = require(draft.books.budgets, id)
        if replace(other, id=budget.id, revision=0) == budget:
            return id
    return None


def _is_window(ask: SetBudget) -> bool:
    """Whether the length is valid: only rolling windows have one, at least a minute per slot."""
    if ask.every is not PeriodKind.ROLLING:
        return ask.rolling == 0
    return ask.rolling >= SLOTS_PER_WINDOW * MINUTE and ask.rolling % SLOTS_PER_WINDOW == 0


def drop_budget(draft: Draft, ask: DropBudget) -> Refusal | None:
    """Delete a budget."""
    budget = draft.books.budgets.get(ask.budget)
    if budget is None or budget.dropped:
        return Refusal(Code.BUDGET_UNKNOWN, {"budget": ask.budget})
    draft.record(BudgetDropped(at=draft.now, budget=ask.budget))
    return None


def _unknown_target(draft: Draft, target: BudgetTarget) -> Refusal | None:
    account = draft.books.header.root if target.account is None else target.account
    if account is None or draft.books.accounts.get(account) is None:
        return Refusal(Code.ACCOUNT_UNKNOWN, {"account": account})
    if target.user is not None and draft.books.users.get(target.user) is None:
        return Refusal(Code.USER_UNKNOWN, {"user": target.user})
    return None


def _zone(draft: Draft, target: BudgetTarget) -> str:
    """The time zone of the target account; that of the root for a user's own budget."""
    account = draft.books.header.root if target.account is None else target.account
    return require(draft.books.accounts, account).time_zone


def _set_new(draft: Draft, budget: Budget) -> None:
    """Create a budget and the claims of all open holds on it."""
    period = period_at(budget.window, draft.now)
    claims: dict[UserId | None, BudgetClaim] = {}
    for _, hold_id in draft.books.index(LIMITS).since():
        hold = require(draft.books.holds, hold_id)
        if _concerns(draft, budget.target, hold):
            user = hold.terms.user if budget.target.each_user else None
            full, relief = claims.get(user, NO_CLAIM)
            more = claim_of(budget, hold.claim, period)
            claims[user] = BudgetClaim(full + more.full, relief + more.relief)
    changes = tuple(
        ClaimChange(budget=budget.id, user=user, start=period.start, full=full, relief=relief)
        for user, (full, relief) in sorted(claims.items(), key=lambda claim: claim[0] or "")
    )
    draft.record(BudgetSet(at=draft.now, budget=budget, claims=changes))


def _concerns(draft: Draft, target: BudgetTarget, hold: Hold) -> bool:
    if target.account is None:
        return target.user in (hold.terms.user, hold.terms.capped_key)
    above = target.account in draft.books.path(hold.terms.account)
    return above and target.user in (None, hold.terms.user)
