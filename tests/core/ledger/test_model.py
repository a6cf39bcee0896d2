"""The reference model says what `docs/ledger.md` says: its examples, worked by hand.

A model that is wrong in the same way as the core would prove nothing, so it is checked by itself.
"""

from dataclasses import replace
from typing import Any

import pytest

from bursar.core.budgets.periods import PeriodKind
from bursar.core.ids import (
    AccountId,
    BudgetId,
    ChargeId,
    DebtId,
    GrantId,
    HoldId,
    JobId,
    PriceVersionId,
    RecurrenceId,
    SettingId,
    UserId,
)
from bursar.core.instant import DAY, HOUR, NEVER, Instant
from bursar.core.ledger.commands import (
    AddAccount,
    AddUser,
    BookDebt,
    BookLate,
    Charge,
    Command,
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
    SetBudget,
    SetPolicy,
    SetPrice,
    SetSetting,
    SetTier,
    Settle,
    StartRecurrence,
    Transfer,
    VoidGrant,
)
from bursar.core.ledger.values import BudgetTarget, Context, CreditKind, GrantPolicy, OrgPolicy
from bursar.core.pricing import PriceBook, PriceVersion, Rate
from bursar.core.refusal import Code
from tests.support.model.arithmetic import calendar_period, largest_carried
from tests.support.model.ledger import Model
from tests.support.strategies import instant

T0 = instant("2026-06-10T09:00")
PRICES = PriceBook(
    versions=(
        PriceVersion(
            id=PriceVersionId("d1"),
            effective_at=0,
            rates=(
                Rate(gpu_type="a100", micros_per_gpu_hour=3_600),  # one a second
                Rate(gpu_type="h100", micros_per_gpu_hour=7_200),
                Rate(gpu_type="h100", region="eu", micros_per_gpu_hour=10_800),
                Rate(gpu_type="h100", tier="paid", micros_per_gpu_hour=5_400),
            ),
        ),
        PriceVersion(
            id=PriceVersionId("d2"),
            effective_at=T0 + DAY,
            rates=(
                Rate(gpu_type="a100", micros_per_gpu_hour=1_800),
                Rate(gpu_type="h100", micros_per_gpu_hour=36_000),
            ),
        ),
    )
)
A100 = Context(gpu_types=("a100",), milli_gpus=1_000)
JOB = replace(A100, job=JobId("j"))  # a pool measures its run time
EITHER = Context(gpu_types=("h100", "a100"), milli_gpus=1_000)


class Org:
    """A root `r` in Berlin with a team `t` and a project `p` below, and the users `u` and `v`."""

    def __init__(self) -> None:
        self.model = Model(PRICES)
        self.now = T0
        self.charges = 0
        root, team, project = AccountId("r"), AccountId("t"), AccountId("p")
        self.do(AddAccount(account=root, parent=None, name="", time_zone="Europe/Berlin"))
        self.do(AddAccount(account=team, parent=root, name=""))
        self.do(AddAccount(account=project, parent=team, name=""))
        self.do(AddUser(user=UserId("u")))
        self.do(AddUser(user=UserId("v")))

    def ask(self, command: Command, at: Instant = 0) -> Code | None:
        self.now = max(self.now, T0 + at)
        return self.model.answer(command, self.now)

    def do(self, command: Command, at: Instant = 0) -> None:
        assert self.ask(command, at) is None

    def issue(self, id: str, amount: int, *, account: str = "r", **more: Any) -> None:
        more.setdefault("kind", CreditKind.PAID)
        self.do(Issue(grant=GrantId(id), account=AccountId(account), amount=amount, **more))

    def reserve(self, id: str, amount: int | None = None, **more: Any) -> Code | None:
        limit = T0 + more.pop("limit") if "limit" in more else self.now + HOUR
        account, user = AccountId(more.pop("account", "p")), UserId(more.pop("user", "u"))
        command = Reserve(
            hold=HoldId(id), account=account, user=user, expires_at=limit, amount=amount, **more
        )
        return self.ask(command)

    def charge(self, hold: str, amount: int | None = None, **more: Any) -> None:
        self.charges += 1
        id = ChargeId(f"c{self.charges}")
        self.do(Charge(charge=id, hold=HoldId(hold), amount=amount, **more))

    def grant(self, id: str) -> tuple[int, ...]:
        """available, held, spent, lapsed, revoked, moved"""
        return tuple(self.model.shown(self.now)[id].values())

    def draws(self, hold: str) -> dict[str, tuple[int, int, int]]:
        draws: dict[str, tuple[int, int, int]]
        draws = self.model.snapshot(self.now)["holds"][hold]["draws"]
        return draws


def test_a_grant_that_expires_while_held_pays_and_its_refund_lapses() -> None:
    """§5, §6: exact to the microsecond, swept or not."""
    org = Org()
    org.issue("g", 100, expires_at=T0 + 10)
    assert org.reserve("h", 60) is None
    org.do(Charge(charge=ChargeId("c"), hold=HoldId("h"), amount=20), at=10)
    assert org.grant("g") == (0, 40, 20, 40, 0, 0)
    org.do(Lapse(most=10))
    org.do(Release(hold=HoldId("h")))
    assert org.grant("g") == (0, 0, 20, 80, 0, 0)


@pytest.mark.parametrize(("at", "lands"), [(9, "available"), (10, "lapsed"), (11, "lapsed")])
def test_a_refund_lands_by_the_instant_of_expiry(at: int, lands: str) -> None:
    """§6."""
    org = Org()
    org.issue("g", 100, expires_at=T0 + 10)
    assert org.reserve("h", 60) is None
    org.do(Release(hold=HoldId("h")), at=at)
    assert org.model.shown(org.now)["g"][lands] == 100


def test_spend_order_takes_the_first_difference() -> None:
    """§3."""
    org = Org()
    org.issue("never", 10)
    org.issue("late", 10, expires_at=T0 + 2 * DAY)
    org.issue("paid", 10, expires_at=T0 + DAY)
    org.issue("promo", 10, expires_at=T0 + DAY, kind=CreditKind.PROMO)
    org.issue("near", 10, expires_at=T0 + DAY, account="t")
    org.issue(
        "narrow", 10, expires_at=T0 + DAY, policy=GrantPolicy(accounts=frozenset({AccountId("t")}))
    )
    org.issue("first", 10, priority=1)
    order = ["first", "narrow", "promo", "near", "paid", "late", "never"]
    for count in range(1, 8):
        assert org.reserve(f"h{count}", 10 * count - 1) is None
        assert set(org.draws(f"h{count}")) == set(order[:count])
        org.do(Release(hold=HoldId(f"h{count}")))


def test_a_capped_grant_pays_its_share_of_the_running_total() -> None:
    """§3: a hold of 100 draws at most 50 from a grant capped at a half."""
    org = Org()
    org.issue("promo", 100, expires_at=T0 + DAY, policy=GrantPolicy(max_share_ppm=500_000))
    org.issue("paid", 100)
    assert org.reserve("h", 100) is None
    assert org.draws("h") == {"promo": (50, 0, 0), "paid": (50, 0, 0)}
    org.charge("h", 3)
    assert org.draws("h") == {"promo": (49, 1, 0), "paid": (48, 2, 0)}
    org.do(Refund(hold=HoldId("h"), amount=60))
    assert org.draws("h") == {"promo": (19, 1, 0), "paid": (18, 2, 0)}
    assert org.reserve("j", 161) is Code.INSUFFICIENT_CREDITS
    assert org.reserve("j", 160) is None


def test_types_that_cannot_be_funded_are_dropped() -> None:
    """§4: the dearest goes first; what stays is sized by the dearest that is left."""
    org = Org()
    org.issue("g", 100)
    assert org.reserve("h", run_ms=80_000, context=EITHER) is None
    hold = org.model.holds["h"]
    assert (hold.context.gpu_types, hold.open, hold.rate) == (("a100",), 80, 3_600)
    assert org.model.meter(hold, 1) is not None
    assert org.reserve("i", run_ms=21_000, context=EITHER) is Code.INSUFFICIENT_CREDITS
    unknown = Context(gpu_types=("l4",), milli_gpus=1_000)
    assert org.reserve("i", run_ms=1, context=unknown) is Code.PRICE_UNKNOWN
    assert org.reserve("i", 1, context=unknown) is None


def test_an_attempt_pays_the_lower_of_two_prices_and_draws_for_its_type_alone() -> None:
    """§4, §11."""
    org = Org()
    org.issue("any", 1_000)
    org.issue("slow", 1_000, policy=GrantPolicy(gpu_types=frozenset({"a100"})))
    assert org.reserve("h", run_ms=100_000, context=EITHER, limit=DAY) is None
    assert org.draws("h") == {"any": (200, 0, 0)}
    redraw = Redraw(hold=HoldId("h"), attempt=1, gpu_type="a100", run_ms=50_000)
    org.do(redraw, at=DAY - 1)
    assert org.draws("h") == {"slow": (50, 0, 0)}
    assert org.ask(redraw) is Code.ALREADY_EXISTS
    org.charge("h", run_ms=1_999)
    org.charge("h", run_ms=1_999)
    org.charge("h", run_ms=1_000)
    assert org.draws("h") == {"slow": (49, 1, 0)}
    assert org.reserve("i", run_ms=10_000, context=EITHER, limit=2 * DAY - 1) is None
    org.do(Redraw(hold=HoldId("i"), attempt=1, gpu_type="h100", run_ms=10_000), at=DAY)
    assert org.model.holds["i"].meters[1].rate == 7_200, "the held rate is the cheaper one"
    org.do(Redraw(hold=HoldId("i"), attempt=2, gpu_type="a100", run_ms=10_000))
    assert org.model.holds["i"].meters[2].rate == 1_800, "the rate in force is the cheaper one"


def test_an_overrun_is_extension_then_debt_then_absorbed() -> None:
    """§7, §8: and new credits repay the debt first."""
    org = Org()
    org.do(SetPolicy(policy=OrgPolicy(debt_max=10)))
    org.issue("g", 100)
    assert org.reserve("h", 60) is None
    org.charge("h", 120)
    hold = org.model.holds["h"]
    assert (hold.used, hold.owed, hold.absorbed) == (120, 10, 10)
    assert org.reserve("i", 1) is Code.DEBT_OUTSTANDING
    assert org.reserve("i", 1, account="t") is Code.INSUFFICIENT_CREDITS
    org.issue("later", 100, starts_at=T0 + HOUR // 2)
    assert hold.owed == 10
    assert (
        org.ask(ExtendHold(hold=HoldId("h"), amount=1), at=HOUR // 2 - 1) is Code.DEBT_OUTSTANDING
    )
    org.do(ExtendHold(hold=HoldId("h"), amount=1), at=HOUR // 2)
    assert hold.owed == 0
    assert org.grant("later") == (89, 1, 10, 0, 0, 0)


def test_booked_debt_waits_for_credits_that_become_available() -> None:
    """§8: by the letter, what is available already is not asked."""
    org = Org()
    org.issue("g", 100)
    org.do(BookDebt(debt=DebtId("d"), account=AccountId("r"), amount=30))
    assert org.model.debts["d"].owed == 30
    org.do(RepayDebt())
    assert org.grant("g") == (70, 0, 30, 0, 0, 0)


def test_late_usage_takes_what_its_hold_returned_then_what_was_valid_then() -> None:
    """§7: lapsed or available, never more than was free at every instant since."""
    org = Org()
    org.issue("own", 100, expires_at=T0 + 100)
    assert org.reserve("h", 60) is None
    org.do(Settle(charge=ChargeId("c"), hold=HoldId("h"), total=20), at=50)
    org.issue("other", 50, expires_at=T0 + 200)
    late = BookLate(charge=ChargeId("l"), hold=HoldId("h"), amount=130, effective_at=T0 + 60)
    org.do(late, at=1000)
    assert org.grant("own") == (0, 0, 100, 0, 0, 0)
    assert org.grant("other") == (0, 0, 50, 0, 0, 0)
    assert org.model.view(T0 + 59, org.now)["own"]["spent"] == 20
    assert org.model.view(T0 + 60, org.now)["own"]["spent"] == 100
    assert org.model.view(T0 + 60, org.now - 1)["own"]["spent"] == 20
    assert org.model.view(T0 + 100, org.now - 1)["own"]["lapsed"] == 80


def test_a_reversal_lands_by_the_grant() -> None:
    """§6: revoked, forfeited, lapsed and issued again, or available."""
    org = Org()
    org.issue("dead", 10, expires_at=T0 + 10)
    org.issue("gone", 10, expires_at=T0 + 20)
    org.issue("promo", 10, expires_at=T0 + 30, policy=GrantPolicy(refundable=False))
    org.issue("good", 10)
    assert org.reserve("h", 40) is None
    org.charge("h", 40)
    org.do(RevokeGrant(grant=GrantId("gone")))
    reverse = ReverseCharge(charge=ChargeId("c1"), amount=15, reissue_until=NEVER)
    org.do(reverse, at=10)
    assert org.grant("good") == (10, 0, 0, 0, 0, 0)
    assert org.grant("promo") == (0, 0, 5, 5, 0, 0)
    org.do(ReverseCharge(charge=ChargeId("c1"), reissue_until=NEVER))
    assert org.grant("promo") == (0, 0, 0, 10, 0, 0)
    assert org.grant("gone") == (0, 0, 0, 0, 10, 0)
    assert org.grant("dead") == (0, 0, 0, 10, 0, 0)
    (again,) = [grant for grant in org.model.grants.values() if grant.parent == "dead"]
    assert (again.amount, again.expires_at) == (10, NEVER)
    assert org.ask(ReverseCharge(charge=ChargeId("c1"), amount=1)) is Code.EXCEEDS_CHARGE


def test_lost_work_comes_back_to_the_hold() -> None:
    """§6: to the same draws, or forfeited."""
    org = Org()
    org.issue("promo", 10, kind=CreditKind.PROMO, policy=GrantPolicy(refundable=False))
    org.issue("paid", 90)
    assert org.reserve("h", run_ms=50_000, context=JOB, for_job=True) is None
    org.charge("h", run_ms=30_000, final=True)
    assert org.draws("h") == {"promo": (0, 10, 0), "paid": (20, 20, 0)}
    org.do(GiveBack(hold=HoldId("h"), attempt=1, kept_ms=5_000))
    assert org.draws("h") == {"promo": (0, 5, 0), "paid": (40, 0, 0)}
    assert org.grant("promo") == (0, 0, 5, 5, 0, 0)
    assert org.model.holds["h"].used == 5


def test_a_recurrence_rolls_over_what_is_left() -> None:
    """§9: 700 left of 1,000, at most 500 carried over; three months asleep turn three times."""
    org = Org()
    org.do(
        StartRecurrence(
            recurrence=RecurrenceId("m"),
            account=AccountId("r"),
            amount=1_000,
            kind=CreditKind.GRANT,
            every=PeriodKind.MONTH,
            roll_over_max=500,
        )
    )
    assert org.reserve("h", 300, limit=DAY) is None
    org.charge("h", 300)
    july, august = instant("2026-06-30T22:00"), instant("2026-07-31T22:00")
    org.do(RepayDebt(), at=july - T0)
    live = [g for g in org.model.grants.values() if g.spendable_at(july)]
    assert sorted(grant.amount for grant in live) == [500, 1_000]
    assert {grant.expires_at for grant in live} == {august}
    org.do(RepayDebt(), at=instant("2026-10-01T00:00") - T0)
    assert len(org.model.grants) == 1 + 4 * 2
    assert org.model.recurrences["m"].next_at == instant("2026-10-31T23:00")


def test_a_budget_counts_charges_and_what_holds_can_spend_in_the_period() -> None:
    """§10: the day ends at 22:00 in Berlin's summer; three hours of a hold lie before it."""
    org = Org()
    org.issue("g", 1_000_000)
    day = SetBudget(
        budget=BudgetId("b"),
        target=BudgetTarget(account=AccountId("t")),
        every=PeriodKind.DAY,
        limit=3 * 3_600 + 100,
        hard=True,
    )
    org.do(day)
    evening = instant("2026-06-10T19:00") - T0
    org.do(RepayDebt(), at=evening)
    ten_hours = {"run_ms": 10 * 3_600_000, "limit": evening + 10 * HOUR}
    assert org.reserve("h", context=JOB, for_job=True, **ten_hours) is None
    counts = org.model.snapshot(org.now)["counts"]["b"]
    assert counts == {None: 3 * 3_600}
    assert org.reserve("i", 101) is Code.BUDGET_EXCEEDED
    assert org.reserve("i", 101, account="r") is None
    org.charge("h", run_ms=4 * 3_600_000)
    start = instant("2026-06-09T22:00")
    assert org.model.budgets["b"].charged == {
        (None, start): 3 * 3_600,
        (None, start + DAY): 3_600,
    }
    assert org.reserve("j", 100) is Code.BUDGET_EXCEEDED, "the claim is worked out anew"


def test_a_tier_brings_a_budget_and_takes_that_of_the_tier_before() -> None:
    """B3: five credits a day for each user of the free tier; changed or not, it goes with it."""
    org = Org()
    org.issue("g", 20_000_000)
    assert org.reserve("h", 2_000_000) is None
    org.do(SetTier(tier="free"))
    assert org.reserve("i", 3_000_001) is Code.BUDGET_EXCEEDED
    assert org.reserve("i", 5_000_000, account="r", user="v") is None
    (brought,) = org.model.budgets
    org.do(replace(org.model.budgets[brought].ask, limit=2_000_001))
    assert org.reserve("j", 2) is Code.BUDGET_EXCEEDED
    org.do(SetTier(tier="free"))
    assert brought in org.model.budgets
    org.do(SetTier(tier="gold"))
    assert {} == org.model.budgets
    assert org.reserve("j", 10_000_000) is None


def test_the_tier_of_the_org_decides_the_price() -> None:
    """§11, B1: an org without a tier is of the lowest."""
    org = Org()
    org.issue("g", 100_000)
    h100 = Context(gpu_types=("h100",), milli_gpus=1_000)
    assert org.reserve("h", run_ms=3_600_000, context=h100) is None
    org.do(SetTier(tier="paid"))
    assert org.reserve("j", run_ms=3_600_000, context=h100) is None
    org.do(SetTier(tier="gold"))
    assert org.reserve("k", run_ms=3_600_000, context=h100) is None
    assert [7_200, 5_400, 7_200] == [hold.open for hold in org.model.holds.values()]


@pytest.mark.parametrize(
    ("parts", "most"),
    [
        ([], 0),
        ([(70, 1_000_000), (30, 1_000_000)], 100),
        ([(50, 1_000_000), (1_000, 500_000)], 100),  # half of 101 is 50 again
        ([(50, 1_000_000), (20, 500_000)], 70),
        ([(1_000, 999_999)], 0),
        ([(3, 500_000), (5, 500_000)], 6),  # 7 would be 3 + 3, and 8 would be 3 + 4
        ([(9, 333_333), (9, 333_333), (9, 333_333)], 0),
        ([(1, 1_000_000), (9, 333_333), (9, 333_333), (9, 333_333)], 28),  # but not 27
        ([(3, 1_000_000), (9, 333_333), (9, 333_333), (9, 333_333)], 30),
    ],
)
def test_the_most_that_shares_can_carry(parts: list[tuple[int, int]], most: int) -> None:
    """§3, §12: of the very amount that is sought, each share rounded down."""
    every = range(sum(available for available, _ in parts) + 1)
    fitting = [a for a in every if a <= sum(min(have, ppm * a // 10**6) for have, ppm in parts)]
    assert most == max(fitting) == largest_carried(parts)


def test_spendable_is_limited_by_debt_and_hard_budgets() -> None:
    """§12: the headroom of those that apply; of each user's budget, that of the user named."""
    org = Org()
    org.issue("g", 1_000)
    org.issue("eu", 50, account="p", policy=GrantPolicy(regions=frozenset({"eu"})))
    target = BudgetTarget(account=AccountId("t"), each_user=True)
    limit = SetBudget(
        budget=BudgetId("b"), target=target, every=PeriodKind.DAY, limit=400, hard=True
    )
    org.do(limit)
    assert org.reserve("h", 100) is None

    def spendable(account: str, user: str | None = None, region: str | None = None) -> int:
        return org.model.spendable(account, org.now, Context(region=region), user)

    assert [900, 400, 300, 400] == [spendable("r"), *(spendable("p", u) for u in (None, "u", "v"))]
    org.do(replace(limit, hard=False))
    assert (900, 950) == (spendable("p"), spendable("p", region="eu"))
    org.do(BookDebt(debt=DebtId("d"), account=AccountId("t"), amount=5))
    assert (900, 0, 0) == (spendable("r"), spendable("t"), spendable("p"))


def test_all_refusals_of_a_hold_are_listed() -> None:
    """§4, §11: in the order of `Code`, each budget separately, for the cheapest type of a run."""
    org = Org()
    org.issue("g", 10)
    for id, limit in (("b", 3_598), ("c", 3_599)):
        target = BudgetTarget(account=AccountId("t"))
        org.do(
            SetBudget(
                budget=BudgetId(id), target=target, every=PeriodKind.DAY, limit=limit, hard=True
            )
        )
    org.do(BookDebt(debt=DebtId("d"), account=AccountId("t"), amount=5))
    ask = Reserve(
        hold=HoldId("d"),
        account=AccountId("p"),
        user=UserId("nobody"),
        expires_at=org.now + HOUR,
        run_ms=3_600_000,
        context=EITHER,
    )
    assert [
        Code.USER_UNKNOWN,
        Code.ALREADY_EXISTS,
        Code.DEBT_OUTSTANDING,
        Code.BUDGET_EXCEEDED,
        Code.BUDGET_EXCEEDED,
        Code.INSUFFICIENT_CREDITS,
    ] == org.model.forbidding(ask, org.now)
    elsewhere = replace(ask, account=AccountId("x"))
    assert [Code.ACCOUNT_UNKNOWN] == org.model.forbidding(elsewhere, org.now)


def test_given_back_work_and_reversals_do_not_take_the_same_count_twice() -> None:
    """§6: a charge that lost its usage is reversed in full; ten lost milliseconds count as ten."""
    org = Org()
    target = BudgetTarget(account=AccountId("t"))
    org.do(
        SetBudget(budget=BudgetId("b"), target=target, every=PeriodKind.DAY, limit=1, hard=False)
    )
    org.issue("last", 100)
    assert org.reserve("h", 100, context=JOB, for_job=True) is None
    org.charge("h", run_ms=100_000)
    org.issue("first", 100, expires_at=T0 + DAY)
    org.charge("h", run_ms=200_000)
    counts = org.model.budgets["b"].charged

    def give_back(kept_ms: int) -> list[int]:
        org.do(GiveBack(hold=HoldId("h"), attempt=1, kept_ms=kept_ms))
        return list(counts.values())

    assert [140] == give_back(140_000)
    org.do(ReverseCharge(charge=ChargeId("c2")))
    assert [100] == list(counts.values())
    assert [90] == give_back(130_000)


def test_usage_before_a_rolling_window_is_not_counted_in_it() -> None:
    """§10: whether it is an amount or a reading."""
    org = Org()
    org.issue("g", 1_000)
    assert org.reserve("h", 500, context=A100, limit=DAY) is None
    target = BudgetTarget(account=AccountId("t"))
    every, rolling = PeriodKind.ROLLING, 24 * HOUR // 60
    budget = BudgetId("b")
    org.do(
        SetBudget(budget=budget, target=target, every=every, rolling=rolling, limit=100, hard=False)
    )
    late = BookLate(charge=ChargeId("c"), hold=HoldId("h"), amount=7, effective_at=T0)
    org.do(late, at=HOUR)
    org.do(BookLate(charge=ChargeId("d"), hold=HoldId("h"), attempt=1, run_ms=60_000))
    assert {} == org.model.budgets["b"].charged


def test_days_with_a_clock_change_last_23_and_25_hours() -> None:
    """§10."""
    spring = calendar_period(PeriodKind.DAY, "Europe/Berlin", instant("2026-03-29T12:00"))
    autumn = calendar_period(PeriodKind.DAY, "Europe/Berlin", instant("2026-10-25T12:00"))
    assert (23 * HOUR, 25 * HOUR) == (spring[1] - spring[0], autumn[1] - autumn[0])


def test_a_transfer_moves_and_a_void_undoes() -> None:
    """§8: a void is refused once anything is held, spent or moved."""
    org = Org()
    org.issue("g", 100, expires_at=T0 + DAY)
    move = Transfer(grant=GrantId("g"), to_grant=GrantId("n"), account=AccountId("p"), amount=40)
    org.do(move)
    assert org.grant("g") == (60, 0, 0, 0, 0, 40)
    assert org.grant("n") == (40, 0, 0, 0, 0, 0)
    assert org.ask(VoidGrant(grant=GrantId("g"))) is Code.GRANT_IN_USE
    org.do(VoidGrant(grant=GrantId("n")))
    assert org.grant("n") == (0, 0, 0, 0, 40, 0)
    assert org.ask(VoidGrant(grant=GrantId("n"))) is Code.GRANT_REVOKED


def test_a_hold_that_names_no_limit_lasts_so_long_or_as_long_as_it_may() -> None:
    """docs/ledger.md §4: `ttl`, or the org's bounds."""
    org = Org()
    org.issue("g", 100)
    common: Any = {"account": AccountId("p"), "user": UserId("u"), "amount": 1}
    org.do(Reserve(hold=HoldId("so long"), ttl=HOUR, **common))
    org.do(Reserve(hold=HoldId("may"), **common))
    org.do(Reserve(hold=HoldId("job"), for_job=True, context=Context(job=JobId("j")), **common))
    org.do(Reserve(hold=HoldId("named"), context=Context(job=JobId("j")), **common))

    limits = {id: hold.limit for id, hold in org.model.holds.items()}
    raw = T0 + DAY
    assert {"so long": T0 + HOUR, "may": raw, "job": T0 + 60 * DAY, "named": raw} == limits
    too_long = Reserve(hold=HoldId("h"), ttl=DAY + 1, **common)
    assert Code.HOLD_TOO_LONG == org.ask(too_long)
    org.do(SetPolicy(policy=OrgPolicy(raw_hold_max=NEVER)))
    org.do(replace(too_long, ttl=NEVER))
    assert NEVER == org.model.holds["h"].limit


def test_a_price_from_now_on_is_in_force_at_once() -> None:
    """docs/ledger.md §11: whatever the version says."""
    org = Org()
    rates = (Rate(gpu_type="a100", micros_per_gpu_hour=9),)
    later = PriceVersion(id=PriceVersionId("v"), effective_at=T0 + DAY, rates=rates)

    org.do(SetPrice(version=later))
    assert 3_600 == org.model._rate("a100", A100, T0)
    org.do(SetPrice(version=replace(later, id=PriceVersionId("w")), from_now=True))
    assert 9 == org.model._rate("a100", A100, T0)


def test_a_setting_is_new_or_known_or_gone_for_good() -> None:
    """docs/ledger.md §14."""
    org = Org()

    def keep(body: str | None, before: int | None = None) -> Code | None:
        return org.ask(SetSetting(kind="key", id=SettingId("s"), body=body, before=before))

    assert Code.SETTING_UNKNOWN == keep("1")
    assert keep("1", before=0) is None
    assert Code.ALREADY_EXISTS == keep("2", before=0)
    assert Code.CHANGED_SINCE == keep("2", before=2)
    assert keep("2", before=1) is None
    assert keep(None) is None
    assert Code.SETTING_UNKNOWN == keep("3")
    assert Code.ALREADY_EXISTS == keep("3", before=0)
    assert {("key", "s"): None} == org.model.snapshot(T0)["settings"]
