"""Usage that happened is never lost: who pays when a charge goes beyond its hold (L13).

In turn: what is available (an extension, within hard budgets); debt of the hold, up to a bound; the
operator. Debt blocks its account and all below until it is repaid, the oldest first, from whatever
eligible credits become available.
"""

from bursar.core.budgets.periods import PeriodKind
from bursar.core.ids import AccountId, BudgetId, ChargeId, DebtId, GrantId, HoldId
from bursar.core.instant import DAY
from bursar.core.ledger.commands import AddAccount
from bursar.core.ledger.events import (
    ChargeBooked,
    DebtAbsorbed,
    DebtBooked,
    DebtRepaid,
    Event,
    Paid,
)
from bursar.core.ledger.values import Context, CreditKind, Debt, Draw, GrantPolicy, OrgPolicy
from bursar.core.money import AMOUNT_MAX
from bursar.core.refusal import Code, Refusal
from tests.support import commands as ask
from tests.support.builders import T0, Org, Parts, hours, minutes, moves

EU = GrantPolicy(regions=frozenset({"eu"}))


def owing(
    amount: int, *, by: str = "project", hold: str = "h1", context: Context | None = None
) -> Org:
    """An org in which a hold without credits was charged an amount."""
    org = Org()
    owe(org, amount, by=by, hold=hold, context=context)
    return org


def owe(
    org: Org, amount: int, *, by: str = "project", hold: str, context: Context | None = None
) -> None:
    """Let a hold owe an amount: it is opened with one micro-credit that is then gone."""
    org.issue(f"one for {hold}", 1, to=by, priority=1)
    org.reserve(hold, 1, by=by, context=context or Context())
    org.charge(hold, 1 + amount)


def booked(events: tuple[Event, ...]) -> tuple[int, int, int]:
    """Of a charge: amount, owed, absorbed."""
    (found,) = (event for event in events if isinstance(event, ChargeBooked))
    return found.amount, found.owed, found.absorbed


def repaid(events: tuple[Event, ...]) -> list[tuple[str, int]]:
    """The debts that were repaid, in order, and how much of them."""
    return [(event.debt, event.amount) for event in events if isinstance(event, DebtRepaid)]


# Beyond the hold


def test_an_overrun_is_paid_by_what_is_available() -> None:
    """In spend order, spent at once: nobody's job is stopped for it (L13)."""
    org = Org()
    org.issue("g1", 50, kind=CreditKind.PROMO)
    org.reserve("h1", 50)
    org.issue("g2", 30, expires=hours(5))
    org.issue("g3", 100)

    events = org.charge("h1", 100)

    assert [
        ("g1", "held → spent", 50, T0),
        ("g2", "available → spent", 30, T0),
        ("g3", "available → spent", 20, T0),
    ] == moves(events)
    assert (100, 0, 0) == booked(events)
    assert (100, 0) == (org.hold("h1").used, org.hold("h1").open)
    assert {"g1": 50, "g2": 30, "g3": 20} == {
        draw.grant: draw.charged for draw in org.hold("h1").draws
    }
    org.rebuilds()


def test_usage_without_credits_is_debt_of_the_hold() -> None:
    """It belongs to the hold's account and has its context (L13)."""
    org = Org()
    org.issue("g1", 60)
    org.reserve("h1", 60, context=Context(region="eu"))
    org.later(minutes=1)

    events = org.charge("h1", 100)

    assert (100, 40, 0) == booked(events)
    assert Debt(
        id=DebtId("h1"),
        account=AccountId("project"),
        hold=HoldId("h1"),
        owed=40,
        booked_at=minutes(1),
    ) == org.journal.books.debts.get(DebtId("h1"))
    assert (100, 40, 0) == (
        org.hold("h1").used,
        org.hold("h1").owed,
        org.hold("h1").absorbed,
    )
    org.rebuilds()


def test_an_extension_stays_within_the_hard_budgets() -> None:
    """The smallest headroom as it was before; the charge is booked whole, and flagged (L13)."""
    org = Org()
    org.issue("g1", 1_000)
    org.budget("wide", 500, account="org")
    org.budget("narrow", 100, account="team")
    org.budget("soft", 1, account="project", hard=False)
    org.reserve("h1", 60)

    events = org.charge("h1", 120)

    assert [
        ("g1", "held → spent", 60, T0),
        ("g1", "available → spent", 40, T0),
    ] == moves(events)
    charge = events[0]
    assert isinstance(charge, ChargeBooked)
    assert (120, 20, 0) == booked(events)
    assert (BudgetId("narrow"),) == charge.over
    org.rebuilds()


def test_a_budget_without_headroom_allows_no_extension() -> None:
    """Nothing less than nothing (L13)."""
    org = Org()
    org.issue("g1", 1_000)
    org.reserve("h1", 60)
    org.budget("b1", 10, PeriodKind.LIFETIME, account="team")

    events = org.charge("h1", 100)

    assert [("g1", "held → spent", 60, T0)] == moves(events)
    assert 40 == org.owed("h1")


def test_no_extension_while_the_account_or_an_ancestor_owes() -> None:
    """What it uses now is debt too; the debt of a child does not matter (L13)."""
    for account, owed in (("project", 40), ("org", 40), (None, 0)):
        org = Org()
        org.issue("g1", 1_000)
        org.reserve("h1", 60, by="team" if account is None else "project")
        org.does(ask.book_debt("d1", 7, of=account or "project"))

        org.charge("h1", 100)

        assert owed == org.owed("h1")


def test_the_debt_of_a_hold_is_bounded_and_the_operator_pays_beyond() -> None:
    """In all, not for each charge (L13)."""
    org = Org()
    org.does(ask.bounds(OrgPolicy(debt_max=50)))
    org.issue("g1", 10)
    org.reserve("h1", 10)

    assert (40, 30, 0) == booked(org.charge("h1", 40))
    assert (40, 20, 20) == booked(org.charge("h1", 40))
    assert (5, 0, 5) == booked(org.charge("h1", 5))
    assert (85, 50, 25) == (org.hold("h1").used, org.hold("h1").owed, org.hold("h1").absorbed)
    assert 50 == org.owed("h1")
    org.rebuilds()


def test_the_debt_of_an_account_stays_countable() -> None:
    """At most 2^53−1 in total; the operator absorbs what cannot be counted (L13, L14)."""
    org = Org()
    org.issue("g1", 10)
    org.reserve("h1", 10)
    org.does(ask.book_debt("old", AMOUNT_MAX - 5, of="project"))

    assert (17, 5, 2) == booked(org.charge("h1", 17))
    assert AMOUNT_MAX == org.journal.books.owed.get(AccountId("project"))


def test_a_lower_bound_takes_nothing_off_a_debt() -> None:
    """It bounds what comes after (L13)."""
    org = owing(40)
    org.does(ask.bounds(OrgPolicy(debt_max=10)))

    assert (5, 0, 5) == booked(org.charge("h1", 5))
    assert 40 == org.owed("h1")


# Who is blocked


def test_debt_blocks_its_account_and_all_below() -> None:
    """Not what stands beside it or above (L13)."""
    org = Org()
    org.does(AddAccount(account=AccountId("other"), parent=AccountId("org"), name="o"))
    org.issue("g1", 1_000)
    org.reserve("before", 10)
    org.does(ask.book_debt("d1", 7, of="team"))

    blocked = Refusal(Code.DEBT_OUTSTANDING, {"account": "team", "owed": 7})
    assert blocked == org.refuses(org.asking("h1", 1, by="team"))
    assert blocked == org.refuses(org.asking("h1", 1, by="project"))
    assert blocked == org.refuses(ask.extend("before", 1))
    org.reserve("h1", 1, by="org")
    org.reserve("h2", 1, by="other")
    org.charge("before", 5)
    org.release("before")


# Repaying


def test_new_credits_repay_debt_first() -> None:
    """At once, in the same step; then holds are allowed again (L13, IL14)."""
    org = owing(40)
    org.later(minutes=1)

    events = org.issue("g1", 100)

    repayment = events[1]
    assert isinstance(repayment, DebtRepaid)
    assert (minutes(1), "h1", 40) == (repayment.at, repayment.debt, repayment.amount)
    assert [
        ("g1", "new → available", 100, minutes(1)),
        ("g1", "available → spent", 40, minutes(1)),
    ] == moves(events)
    assert Parts(available=60, spent=40) == org.parts("g1")
    hold = org.hold("h1")
    assert (41, 0, 0) == (hold.used, hold.owed, hold.absorbed)
    assert Draw(grant=GrantId("g1"), drawn=40, charged=40) == hold.draws[1]
    org.reserve("h2", 60)
    org.rebuilds()


def test_a_part_is_repaid_if_there_is_no_more() -> None:
    """The rest stays owed, as old as it was (L13)."""
    org = owing(40)
    org.later(minutes=1)

    assert [("h1", 15)] == repaid(org.issue("g1", 15))

    debt = org.journal.books.debts.get(DebtId("h1"))
    assert debt is not None
    assert (25, T0) == (debt.owed, debt.booked_at)
    assert [("h1", 25)] == repaid(org.issue("g2", 100))


def test_the_oldest_debt_is_repaid_first() -> None:
    """By when it was booked, then by id; one after the other (L13)."""
    org = Org()
    org.does(ask.book_debt("z", 10))
    org.later(minutes=1)
    org.does(ask.book_debt("b", 10, of="team"))
    org.does(ask.book_debt("a", 10))

    assert [("z", 10), ("a", 10), ("b", 5)] == repaid(org.issue("g1", 25))
    assert (0, 0, 5) == (org.owed("z"), org.owed("a"), org.owed("b"))


def test_a_debt_is_as_old_as_when_it_was_last_zero() -> None:
    """Growing does not make it younger; growing again from zero does (L13)."""
    org = owing(10, hold="h1")
    org.later(minutes=1)
    org.does(ask.book_debt("d1", 10))
    org.later(minutes=1)
    org.charge("h1", 5)
    assert [("h1", 15), ("d1", 4)] == repaid(org.issue("g1", 19))

    org.charge("h1", 5)
    assert [("d1", 6), ("h1", 5)] == repaid(org.issue("g2", 20))


def test_credits_returned_by_a_hold_repay_debt() -> None:
    """Released, refunded, settled, or expired: effective when they returned (L13)."""
    org = Org()
    org.issue("g1", 100)
    for hold in ("refunded", "released", "settled"):
        org.reserve(hold, 20, until=hours(9))
    org.reserve("limit", 40, until=hours(1))
    org.does(ask.book_debt("d1", 75))

    assert [("d1", 5)] == repaid(org.refund("refunded", 5))
    assert [("d1", 20)] == repaid(org.release("released"))
    assert [("d1", 8)] == repaid(org.settle("settled", 12))
    org.at(hours(2))
    events = org.does(ask.lapse())

    assert [
        ("g1", "held → available", 40, hours(1)),
        ("g1", "available → spent", 40, hours(1)),
    ] == moves(events)
    assert 2 == org.owed("d1")
    org.rebuilds()


def test_reversed_credits_repay_debt() -> None:
    """Credits that become available repay debt (L11, L13)."""
    org = Org()
    org.issue("g1", 100)
    org.reserve("h1", 100)
    org.charge("h1", 60, "c")
    org.does(ask.book_debt("d1", 25))

    events = org.does(ask.reverse("c"))

    assert [
        ("g1", "spent → available", 60, T0),
        ("g1", "available → spent", 25, T0),
    ] == moves(events)


def test_a_grant_that_starts_repays_debt_at_its_start() -> None:
    """Whenever somebody next asks, effective at its start (L13)."""
    org = owing(40)
    org.issue("g1", 100, starts=hours(1))
    org.issue("g2", 100, starts=hours(3))
    assert 40 == org.owed("h1")
    org.at(hours(1) - 1)
    assert 40 == org.owed("h1")
    org.at(hours(1))
    assert 0 == org.owed("h1")
    org.at(hours(4))

    events = org.does(ask.lapse())

    assert [("g1", "available → spent", 40, hours(1))] == moves(events)
    assert hours(4) == events[0].at
    assert Parts(available=100) == org.parts("g2")
    org.rebuilds()


def test_grants_that_start_one_after_the_other_repay_one_after_the_other() -> None:
    """Each what it can (L13)."""
    org = owing(150)
    org.issue("g2", 100, starts=hours(2))
    org.issue("g1", 100, starts=hours(1))
    org.at(hours(3))

    events = org.does(ask.lapse())

    assert [
        ("g1", "available → spent", 100, hours(1)),
        ("g2", "available → spent", 50, hours(2)),
    ] == moves(events)


def test_a_transfer_repays_the_debt_of_where_it_goes() -> None:
    """The credits were out of reach before (L11, L13)."""
    org = Org()
    org.does(AddAccount(account=AccountId("other"), parent=AccountId("org"), name="o"))
    org.issue("g1", 100, to="other")
    org.does(ask.book_debt("d1", 40, of="team"))
    assert 40 == org.owed("d1")

    events = org.does(ask.transfer("g1", 70, to="team", new="g2"))

    assert ("g2", "available → spent", 40, T0) == moves(events)[-1]
    assert Parts(available=30, spent=40) == org.parts("g2")


def test_debt_is_repaid_from_credits_its_account_may_spend() -> None:
    """Its own and its ancestors', never a child's or a sibling's (L13, B2)."""
    org = owing(40, by="team")

    assert [] == repaid(org.issue("below", 100, to="project"))
    assert [("h1", 40)] == repaid(org.issue("above", 100, to="org"))


def test_debt_is_repaid_from_credits_that_admit_its_context() -> None:
    """A promotion pays what it would have paid (L9, L13)."""
    for region, owed in (("eu", 0), ("us", 40)):
        org = owing(40, context=Context(region=region))
        org.issue("g1", 100, policy=EU)
        assert owed == org.owed("h1")


def test_shares_count_when_debt_is_repaid() -> None:
    """Of the hold's running total, and what it was charged from the grant before (L9, L13)."""
    org = Org()
    org.issue("promo", 500, kind=CreditKind.PROMO, policy=GrantPolicy(max_share_ppm=500_000))
    org.issue("paid", 10)
    org.reserve("h1", 20)
    org.does(ask.book_debt("block", 1, of="team"))
    org.charge("h1", 60)
    assert 40 == org.owed("h1")
    org.does(ask.absorb("block"))

    events = org.does(ask.repay())

    assert [("promo", "available → spent", 20, T0)] == moves(events)
    assert 20 == org.owed("h1")


def test_debt_can_be_repaid_when_asked() -> None:
    """From what is available now; nothing to repay is no event (L13)."""
    org = Org()
    org.issue("g1", 100)
    assert () == org.does(ask.repay())
    org.does(ask.book_debt("d1", 40))
    assert 40 == org.owed("d1"), "booking a debt takes nothing by itself"
    org.later(minutes=1)

    events = org.does(ask.repay())

    assert [("d1", 40)] == repaid(events)
    assert [("g1", "available → spent", 40, minutes(1))] == moves(events)
    assert () == org.does(ask.repay())


def test_a_reversed_charge_returns_the_credits_that_repaid_its_debt() -> None:
    """The credits go back, the debt does not return (L11, L13)."""
    org = Org()
    org.issue("g0", 1)
    org.reserve("h1", 1)
    org.charge("h1", 41, "c")
    org.issue("g1", 100)
    assert Parts(available=60, spent=40) == org.parts("g1")

    events = org.does(ask.reverse("c", 30))

    assert [("g1", "spent → available", 30, T0)] == moves(events)
    assert 0 == org.owed("h1")
    assert Refusal(Code.EXCEEDS_CHARGE, {"reversible": 11, "asked": 12}) == org.refuses(
        ask.reverse("c", 12)
    )
    org.rebuilds()


def test_a_grant_that_paid_a_charge_twice_gets_both_back() -> None:
    """At once from what was held, and later what was owed (L11, L13)."""
    org = Org()
    org.issue("g1", 100)
    org.reserve("other", 60)
    org.reserve("h1", 40)
    org.charge("h1", 70, "c")
    org.release("other")
    assert Parts(available=30, spent=70) == org.parts("g1")

    assert [("g1", "spent → available", 70, T0)] == moves(org.does(ask.reverse("c")))


def test_a_reversal_forgives_only_the_debt_of_its_own_charge() -> None:
    """The older charge was paid first: its credits come back, the other stays owed (L11, L13)."""
    org = Org()
    org.issue("g0", 1)
    org.reserve("h1", 1)
    org.charge("h1", 21, "older")
    org.charge("h1", 20, "newer")
    org.issue("g1", 20)
    assert 20 == org.owed("h1")

    events = org.does(ask.reverse("older", 20))

    assert ("g1", "spent → available", 20, T0) == moves(events)[0]
    assert 0 == org.owed("h1")  # what came back repaid the newer charge
    assert Parts(spent=20) == org.parts("g1")
    org.rebuilds()


def test_a_repayment_pays_the_oldest_charges_first() -> None:
    """Each charge records the grants that finally paid for it (L11, L13)."""
    org = Org()
    org.issue("g0", 1, priority=1)
    org.issue("g1", 20, priority=2)
    org.issue("g2", 30, priority=3)
    org.budget("b1", 1, account="team")
    org.reserve("h1", 1)
    org.charge("h1", 21, "older")
    org.charge("h1", 20, "newer")

    (event,) = org.does(ask.repay())

    assert isinstance(event, DebtRepaid)
    assert (
        Paid(charge=ChargeId("older"), owed=20, spent=((GrantId("g1"), 20),)),
        Paid(charge=ChargeId("newer"), owed=20, spent=((GrantId("g2"), 20),)),
    ) == event.paid
    org.does(ask.reverse("newer"))
    assert Parts(available=30) == org.parts("g2")
    org.rebuilds()


def test_a_debt_and_a_hold_cannot_have_one_id() -> None:
    """A hold's debt has the hold's id (L13)."""
    org = owing(40)

    assert Refusal(Code.ALREADY_EXISTS, {"debt": "h1"}) == org.refuses(ask.book_debt("h1", 5))
    org.does(ask.book_debt("d1", 5))
    refusal = org.refuses(org.asking("d1", 5))
    assert Refusal(Code.ALREADY_EXISTS, {"hold": "d1"}) == refusal


def test_a_debt_cannot_have_the_id_of_a_hold_that_owes_nothing() -> None:
    """It may come to owe something (L13)."""
    org = Org()
    org.issue("g1", 100)
    org.reserve("h1", 40)

    assert Refusal(Code.ALREADY_EXISTS, {"debt": "h1"}) == org.refuses(ask.book_debt("h1", 5))


def test_repaying_counts_in_no_budget_again() -> None:
    """Usage counts when it happens, paid or not (L13, B5)."""
    org = Org()
    org.budget("b1", 100, account="team")
    owe(org, 40, hold="h1")

    org.issue("g1", 1_000)

    refusal = org.refuses(org.asking("h2", 60))
    assert {
        "budget": "b1",
        "limit": 100,
        "counted": 41,
        "asked": 60,
        "headroom": 59,
        "period_start": T0,
        "period_end": T0 + DAY,
    } == refusal.figures
    org.reserve("h2", 59)
    org.rebuilds()


# Debts without a hold


def test_a_payment_charged_back_is_a_revocation_and_a_debt() -> None:
    """What is left of the grant is taken, what was used of it is owed (L11, L13)."""
    org = Org()
    org.does(ask.issue("bought", 100, to="team", external_ref="invoice 7"))
    org.reserve("h1", 80)
    org.charge("h1", 30)
    assert Code.GRANT_IN_USE == org.refuses(ask.void("bought")).code

    org.does(ask.revoke("bought"))
    events = org.does(ask.book_debt("charge-back", 30, of="team"))

    debt = Debt(
        id=DebtId("charge-back"),
        account=AccountId("team"),
        hold=None,
        owed=30,
        booked_at=T0,
        total=30,
    )
    assert (DebtBooked(at=T0, debt=debt),) == events
    assert Parts(held=50, spent=30, revoked=20) == org.parts("bought")
    assert {"account": "team", "owed": 30} == org.refuses(org.asking("h2", 1)).figures
    org.release("h1")
    assert Parts(spent=30, revoked=70) == org.parts("bought")
    org.issue("again", 100, to="team")
    assert Parts(available=70, spent=30) == org.parts("again")
    assert (Draw(grant=GrantId("again"), drawn=30, charged=30),) == charged_back(org).draws
    org.rebuilds()


def charged_back(org: Org) -> Debt:
    """The charge-back as it is now."""
    found = org.journal.books.debts.get(DebtId("charge-back"))
    assert found is not None
    return found


def test_a_debt_without_a_hold_has_no_context() -> None:
    """Only credits that admit anything repay it; a capped one its share of what is owed (L13)."""
    org = Org()
    org.does(ask.book_debt("d1", 40))

    assert [] == repaid(org.issue("eu", 100, policy=EU))
    assert [("d1", 20)] == repaid(org.issue("half", 100, policy=GrantPolicy(max_share_ppm=500_000)))


def test_precedence_of_refusals_of_a_debt() -> None:
    """Account, id, amount: in that order (L13)."""
    org = Org()
    org.does(ask.book_debt("d1", 7))

    assert Refusal(Code.ACCOUNT_UNKNOWN, {"account": "nobody"}) == org.refuses(
        ask.book_debt("d1", 1, of="nobody")
    )
    assert Refusal(Code.ALREADY_EXISTS, {"debt": "d1"}) == org.refuses(
        ask.book_debt("d1", AMOUNT_MAX)
    )
    assert Code.AMOUNT_TOO_LARGE == org.refuses(ask.book_debt("d2", AMOUNT_MAX - 6)).code
    org.does(ask.book_debt("d2", AMOUNT_MAX - 7))
    org.does(ask.book_debt("d3", AMOUNT_MAX, of="team"))


# Writing off


def test_a_debt_can_be_written_off() -> None:
    """A part or all, at the operator's cost; nothing moves in the grants (L13)."""
    org = owing(40)

    events = org.does(ask.absorb("h1", 15))

    paid = (Paid(charge=ChargeId("c1"), owed=15),)
    assert (DebtAbsorbed(at=T0, debt=DebtId("h1"), amount=15, paid=paid),) == events
    assert (41, 25, 15) == (
        org.hold("h1").used,
        org.hold("h1").owed,
        org.hold("h1").absorbed,
    )
    org.does(ask.absorb("h1"))
    assert 0 == org.owed("h1")
    figures = {"asked": 1, "spendable": 0, "short": 1}
    assert Refusal(Code.INSUFFICIENT_CREDITS, figures) == org.refuses(org.asking("h2", 1))
    org.rebuilds()


def test_a_write_off_covers_the_oldest_charges() -> None:
    """And no more than its amount (L13)."""
    org = owing(20)
    org.charge("h1", 20)

    (event,) = org.does(ask.absorb("h1", 30))

    assert isinstance(event, DebtAbsorbed)
    assert (
        Paid(charge=ChargeId("c1"), owed=20),
        Paid(charge=ChargeId("c2"), owed=10),
    ) == event.paid


def test_a_debt_without_a_hold_can_be_written_off() -> None:
    """There is no hold to tell (L13)."""
    org = Org()
    org.does(ask.book_debt("d1", 40))

    org.does(ask.absorb("d1"))

    assert 0 == org.owed("d1")


def test_no_more_is_written_off_than_is_owed() -> None:
    """And only of a debt that is known (L13)."""
    org = owing(40)

    assert Refusal(Code.DEBT_UNKNOWN, {"debt": "h9"}) == org.refuses(ask.absorb("h9"))
    assert Refusal(Code.EXCEEDS_DEBT, {"owed": 40, "asked": 41}) == org.refuses(
        ask.absorb("h1", 41)
    )
    org.does(ask.absorb("h1"))
    assert Refusal(Code.EXCEEDS_DEBT, {"owed": 0, "asked": 0}) == org.refuses(ask.absorb("h1"))


def test_a_debt_is_repaid_to_its_last_micro_credit_charge_by_charge() -> None:
    """Each charge that owes has its part, the last one though it is the smallest there is (L13)."""
    org = Org()
    org.issue("g1", 1)
    org.reserve("h1", 1)
    org.charge("h1", 11, "c1")
    org.charge("h1", 1, "c2")

    _, repaid = org.issue("g2", 50)

    assert isinstance(repaid, DebtRepaid)
    assert [("c1", 10), ("c2", 1)] == [(paid.charge, paid.owed) for paid in repaid.paid]
    assert 0 == org.owed("h1")
