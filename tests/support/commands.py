"""Commands in plain words: ids are plain text, and what a test does not care about is left out.

org.does(ask.revoke("g1"))
assert Refusal(Code.GRANT_REVOKED, {"grant": "g1"}) == org.refuses(ask.revoke("g1"))
"""

from bursar.core.budgets.periods import PeriodKind
from bursar.core.ids import (
    AccountId,
    BudgetId,
    ChargeId,
    DebtId,
    GrantId,
    HoldId,
    RecurrenceId,
    SettingId,
    UserId,
)
from bursar.core.instant import NEVER, Instant
from bursar.core.ledger.commands import (
    AbsorbDebt,
    BookDebt,
    BookLate,
    Charge,
    CorrectEnd,
    DropBudget,
    EndHold,
    ExtendGrant,
    ExtendHold,
    GiveBack,
    Issue,
    Lapse,
    Redraw,
    Refund,
    Release,
    RepayDebt,
    Reserve,
    ReverseCharge,
    RevokeGrant,
    SetPolicy,
    SetSetting,
    Settle,
    StartRecurrence,
    StopRecurrence,
    Transfer,
    VoidGrant,
)
from bursar.core.ledger.values import (
    NO_CONTEXT,
    NO_POLICY,
    Context,
    CreditKind,
    GrantPolicy,
    OrgPolicy,
)
from bursar.core.messages import EndClass

# Grants


def issue(
    grant: str,
    amount: int,
    *,
    to: str = "org",
    starts: Instant | None = None,
    expires: Instant = NEVER,
    policy: GrantPolicy = NO_POLICY,
    external_ref: str | None = None,
    source: str = "",
) -> Issue:
    """Create paid credits."""
    return Issue(
        grant=GrantId(grant),
        account=AccountId(to),
        amount=amount,
        kind=CreditKind.PAID,
        source=source,
        starts_at=starts,
        expires_at=expires,
        policy=policy,
        external_ref=external_ref,
    )


def extend_grant(grant: str, *, until: Instant) -> ExtendGrant:
    """Let a grant expire later."""
    return ExtendGrant(grant=GrantId(grant), expires_at=until)


def revoke(grant: str) -> RevokeGrant:
    """Take back what is available."""
    return RevokeGrant(grant=GrantId(grant))


def void(grant: str) -> VoidGrant:
    """Undo a grant as never issued."""
    return VoidGrant(grant=GrantId(grant))


def transfer(grant: str, amount: int, *, to: str, new: str = "moved") -> Transfer:
    """Move credits to an account, as a grant called `new`."""
    return Transfer(
        grant=GrantId(grant), to_grant=GrantId(new), account=AccountId(to), amount=amount
    )


def lapse(most: int = 1_000) -> Lapse:
    """What a sweeper asks: write down expiries."""
    return Lapse(most=most)


def recur(
    recurrence: str,
    amount: int,
    every: PeriodKind = PeriodKind.MONTH,
    *,
    to: str = "org",
    roll_over: int = 0,
    starts: Instant | None = None,
    kind: CreditKind = CreditKind.GRANT,
    priority: int = 100,
    policy: GrantPolicy = NO_POLICY,
) -> StartRecurrence:
    """Issue again every period."""
    return StartRecurrence(
        recurrence=RecurrenceId(recurrence),
        account=AccountId(to),
        amount=amount,
        kind=kind,
        every=every,
        roll_over_max=roll_over,
        starts_at=starts,
        priority=priority,
        policy=policy,
    )


def stop(recurrence: str) -> StopRecurrence:
    """Issue nothing more."""
    return StopRecurrence(recurrence=RecurrenceId(recurrence))


# Holds


def reserve(
    hold: str,
    amount: int | None = None,
    *,
    until: Instant,
    run_ms: int | None = None,
    context: Context = NO_CONTEXT,
    by: str = "team",
    user: str = "ann",
) -> Reserve:
    """Hold an amount, or what a run costs."""
    return Reserve(
        hold=HoldId(hold),
        account=AccountId(by),
        user=UserId(user),
        amount=amount,
        run_ms=run_ms,
        context=context,
        expires_at=until,
    )


def extend(hold: str, amount: int = 0, *, until: Instant | None = None) -> ExtendHold:
    """Hold more, longer, or both."""
    return ExtendHold(hold=HoldId(hold), amount=amount, expires_at=until)


def start(hold: str, gpu_type: str, *, run_ms: int, attempt: int = 1) -> Redraw:
    """Start an attempt on a GPU type."""
    return Redraw(hold=HoldId(hold), attempt=attempt, gpu_type=gpu_type, run_ms=run_ms)


def refund(hold: str, amount: int) -> Refund:
    """Return a part of what is open."""
    return Refund(hold=HoldId(hold), amount=amount)


def release(hold: str) -> Release:
    """Return all that is open and close."""
    return Release(hold=HoldId(hold))


def end(hold: str) -> EndHold:
    """End a hold at its limit."""
    return EndHold(hold=HoldId(hold))


# Charges


def charge(hold: str, amount: int, charge: str = "c") -> Charge:
    """Charge an amount."""
    return Charge(charge=ChargeId(charge), hold=HoldId(hold), amount=amount)


def read(
    hold: str, run_ms: int, charge: str = "c", *, attempt: int = 1, final: bool = False
) -> Charge:
    """Charge what an attempt has run so far."""
    return Charge(
        charge=ChargeId(charge), hold=HoldId(hold), attempt=attempt, run_ms=run_ms, final=final
    )


def settle(
    hold: str,
    charge: str = "c",
    *,
    total: int | None = None,
    run_ms: int | None = None,
    attempt: int = 1,
) -> Settle:
    """Charge up to a total or a last reading, return the rest, close."""
    return Settle(
        charge=ChargeId(charge), hold=HoldId(hold), total=total, run_ms=run_ms, attempt=attempt
    )


def late(hold: str, amount: int, *, when: Instant, charge: str = "late") -> BookLate:
    """Book usage of a past instant."""
    return BookLate(charge=ChargeId(charge), hold=HoldId(hold), amount=amount, effective_at=when)


def late_reading(hold: str, run_ms: int, *, attempt: int = 1, charge: str = "late") -> BookLate:
    """Book what an attempt is now known to have run in all."""
    return BookLate(charge=ChargeId(charge), hold=HoldId(hold), attempt=attempt, run_ms=run_ms)


def reverse(
    charge: str, amount: int | None = None, *, reissue_until: Instant | None = None
) -> ReverseCharge:
    """Undo a charge or a part of it."""
    return ReverseCharge(charge=ChargeId(charge), amount=amount, reissue_until=reissue_until)


def give_back(hold: str, *, kept_ms: int, attempt: int = 1) -> GiveBack:
    """Give back the work an attempt lost since `kept_ms`."""
    return GiveBack(hold=HoldId(hold), attempt=attempt, kept_ms=kept_ms)


def correct_end(hold: str, end_class: EndClass, *, attempt: int = 1) -> CorrectEnd:
    """Say who answers for the end of an attempt."""
    return CorrectEnd(hold=HoldId(hold), attempt=attempt, end_class=end_class)


# Debts, bounds and budgets


def book_debt(debt: str, amount: int, *, of: str = "org") -> BookDebt:
    """Owe an amount that no hold covers."""
    return BookDebt(debt=DebtId(debt), account=AccountId(of), amount=amount)


def absorb(debt: str, amount: int | None = None) -> AbsorbDebt:
    """Write a debt off, or a part of it."""
    return AbsorbDebt(debt=DebtId(debt), amount=amount)


def repay() -> RepayDebt:
    """Repay what can be repaid now."""
    return RepayDebt()


def bounds(policy: OrgPolicy) -> SetPolicy:
    """Set the org's bounds."""
    return SetPolicy(policy=policy)


def keep(
    kind: str, setting: str, body: str | None = "{}", *, before: int | None = None
) -> SetSetting:
    """Keep something; it must be there already, unless it is new: `before` is 0."""
    return SetSetting(kind=kind, id=SettingId(setting), body=body, before=before)


def drop_budget(budget: str) -> DropBudget:
    """Forget a budget."""
    return DropBudget(budget=BudgetId(budget))
