"""Amounts are integers up to 2^53−1, and values refuse to exist in a wrong state (L14, D7, IL22).

2^53−1 is what every client can carry exactly. The credits of an org together stay below it, too.
"""

from dataclasses import replace

import pytest

from bursar.core.ids import AccountId, DebtId, GrantId, HoldId, UserId
from bursar.core.instant import NEVER
from bursar.core.ledger.commands import BookDebt
from bursar.core.ledger.events import (
    ChargeReversed,
    Event,
    GrantIssued,
    GrantLapsed,
    HoldReduced,
    Posting,
    issued_by,
)
from bursar.core.ledger.evolve import evolve
from bursar.core.ledger.hold_state import hold_after
from bursar.core.ledger.values import (
    BudgetCounter,
    BudgetTarget,
    Compartment,
    Context,
    CreditKind,
    Debt,
    Draw,
    Grant,
    GrantTerms,
    Hold,
    HoldTerms,
    OrgPolicy,
)
from bursar.core.money import AMOUNT_MAX
from bursar.core.refusal import Code, InvariantBroken, Refusal
from bursar.core.value import value
from tests.support import commands as ask
from tests.support.builders import PER_MS, T0, Org, Parts, gpus, hours, moves, prices


def too_large(amount: int, most: int) -> Refusal:
    """That an amount is too large, and what would not be."""
    return Refusal(Code.AMOUNT_TOO_LARGE, {"amount": amount, "most": most})


# Amounts


def test_an_org_has_at_most_so_many_credits() -> None:
    """All that was ever issued counts, spent and lapsed too (L14)."""
    assert 9_007_199_254_740_991 == AMOUNT_MAX
    org = Org()
    org.issue("g1", AMOUNT_MAX - 10, expires=hours(1))
    org.at(hours(2))

    assert too_large(11, 10) == org.refuses(ask.issue("g2", 11))
    org.issue("g2", 10)
    assert too_large(1, 0) == org.refuses(ask.issue("g3", 1))


def test_a_transfer_creates_nothing_and_is_always_possible() -> None:
    """Though the org has all it may have (L11, L14)."""
    org = Org()
    org.issue("g1", AMOUNT_MAX)

    org.does(ask.transfer("g1", AMOUNT_MAX, to="team"))

    assert Parts(available=AMOUNT_MAX) == org.parts("moved")
    assert AMOUNT_MAX == org.journal.books.header.issued


def test_the_largest_amount_goes_through_a_whole_life() -> None:
    """Held, charged, reversed, without loss (IL22)."""
    org = Org()
    org.issue("g1", AMOUNT_MAX)
    org.reserve("h1", AMOUNT_MAX)
    org.charge("h1", AMOUNT_MAX, "c")
    assert Parts(spent=AMOUNT_MAX) == org.parts("g1")
    assert too_large(1, 0) == org.refuses(ask.charge("h1", 1, "more"))

    org.does(ask.reverse("c"))

    assert Parts(available=AMOUNT_MAX) == org.parts("g1")
    org.rebuilds()


def test_a_hold_by_run_time_has_a_bound() -> None:
    """What its price comes to is told (M1, L14)."""
    org = Org(prices(h100=PER_MS))
    org.issue("g1", AMOUNT_MAX)

    too_long = org.asking("h1", run_ms=2**52, context=gpus("h100", count=2))
    assert too_large(AMOUNT_MAX + 1, AMOUNT_MAX) == org.refuses(too_long)

    org.reserve("h1", run_ms=AMOUNT_MAX, context=gpus("h100"))
    assert Parts(held=AMOUNT_MAX) == org.parts("g1")


def test_a_hold_stays_within_the_bound_when_it_is_extended() -> None:
    """Used and open together (L14)."""
    org = Org()
    org.issue("g1", 100)
    org.reserve("h1", 100)
    org.charge("h1", 40)

    refusal = org.refuses(ask.extend("h1", AMOUNT_MAX - 99))
    assert too_large(AMOUNT_MAX - 99, AMOUNT_MAX - 100) == refusal
    figures = {"asked": AMOUNT_MAX - 100, "spendable": 0, "short": AMOUNT_MAX - 100}
    assert Refusal(Code.INSUFFICIENT_CREDITS, figures) == org.refuses(
        ask.extend("h1", AMOUNT_MAX - 100)
    )


def test_the_largest_rate_and_time_multiply_without_loss() -> None:
    """Integers have no width; the bound is on the result (IL22)."""
    org = Org(prices(h100=AMOUNT_MAX))
    org.issue("g1", AMOUNT_MAX)

    org.reserve("h1", run_ms=3_600_000, context=gpus("h100"))
    org.later(hours=1)
    org.reading("h1", 3_599_999)

    spent = AMOUNT_MAX * 3_599_999 // 3_600_000
    assert Parts(held=AMOUNT_MAX - spent, spent=spent) == org.parts("g1")


def test_a_reversal_issues_again_only_what_the_bound_leaves() -> None:
    """Credits that cannot be issued again lapse (L11, L14)."""
    org = Org()
    org.issue("a", 50, expires=hours(1))
    org.issue("b", 50, expires=hours(1))
    org.reserve("h1", 100)
    org.charge("h1", 100, "c")
    org.at(hours(2))
    org.issue("rest", AMOUNT_MAX - 100 - 70)

    (event,) = org.does(ask.reverse("c", reissue_until=hours(9)))

    assert isinstance(event, ChargeReversed)
    assert [50, 20] == [terms.amount for terms in event.issued]
    assert AMOUNT_MAX == org.journal.books.header.issued
    org.rebuilds()


def test_nothing_is_issued_again_when_the_bound_is_reached() -> None:
    """The charge is reversed all the same (L11, L14)."""
    org = Org()
    org.issue("a", 50, expires=hours(1))
    org.reserve("h1", 50)
    org.charge("h1", 50, "c")
    org.at(hours(2))
    org.issue("rest", AMOUNT_MAX - 50)

    events = org.does(ask.reverse("c", reissue_until=hours(9)))

    assert [("a", "spent → lapsed", 50, hours(2))] == moves(events)


def test_the_debt_of_an_account_is_limited() -> None:
    """Debts of one account add up (L13, L14)."""
    org = Org()
    command = BookDebt(debt=DebtId("d1"), account=AccountId("team"), amount=AMOUNT_MAX)
    org.does(command)

    assert too_large(1, 0) == org.refuses(replace(command, debt=DebtId("d2"), amount=1))


# Values that cannot be wrong

TERMS = GrantTerms(
    id=GrantId("g1"),
    account=AccountId("org"),
    kind=CreditKind.PAID,
    source="",
    priority=1,
    issued_at=T0,
    starts_at=T0,
    expires_at=NEVER,
    amount=100,
)
HOLD = HoldTerms(
    id=HoldId("h1"),
    account=AccountId("org"),
    user=UserId("ann"),
    context=Context(),
    opened_at=T0,
)


def test_a_grant_adds_up_and_has_no_negative_compartment() -> None:
    """Checked whenever one is made (D7, IL1)."""
    Grant(terms=TERMS, available=95, lapsed=5, forfeited=5)
    with pytest.raises(InvariantBroken, match=r"compartments do not add up .*g1"):
        Grant(terms=TERMS, available=99)
    with pytest.raises(InvariantBroken, match=r"a compartment is negative .*g1.*-1"):
        Grant(terms=TERMS, available=101, held=-1)
    for forfeited in (-1, 6):
        with pytest.raises(InvariantBroken, match="more forfeited than lapsed"):
            Grant(terms=TERMS, available=95, lapsed=5, forfeited=forfeited)


def test_every_compartment_counts() -> None:
    """All of a grant can be in any of them (D7)."""
    for grant in (
        Grant(terms=TERMS, available=100),
        Grant(terms=TERMS, available=0, held=100),
        Grant(terms=TERMS, available=0, spent=100),
        Grant(terms=TERMS, available=0, lapsed=100),
        Grant(terms=TERMS, available=0, revoked=100),
        Grant(terms=TERMS, available=0, moved=100),
    ):
        with pytest.raises(InvariantBroken, match="compartments do not add up"):
            replace(grant, terms=replace(TERMS, amount=99))


def test_a_draw_has_no_negative_part() -> None:
    """Neither open, nor returned, nor reversed, nor charged and not reversed (D7, IL5)."""
    grant = GrantId("g1")
    assert 0 == Draw(grant=grant, drawn=10, charged=4, undone=4, returned=6).open
    for parts in (
        {"drawn": 1, "charged": 2},
        {"drawn": 1, "charged": 1, "undone": 2},
        {"drawn": 1, "returned": -1},
        {"drawn": 1, "charged": 1, "undone": -1},
    ):
        with pytest.raises(InvariantBroken, match=r"a draw is negative .*g1"):
            Draw(grant=grant, **parts)


def test_a_hold_is_the_sum_of_its_draws_and_accounts_for_its_usage() -> None:
    """Checked whenever one is made (D7)."""
    draws = (Draw(grant=GrantId("g1"), drawn=10, charged=4),)
    Hold(terms=HOLD, expires_at=NEVER, draws=draws, open=6, used=9, owed=3, absorbed=2)

    with pytest.raises(InvariantBroken, match=r"a hold is not the sum of its draws .*h1"):
        Hold(terms=HOLD, expires_at=NEVER, draws=draws, open=5, used=4)
    with pytest.raises(InvariantBroken, match=r"usage is not accounted for .*h1"):
        Hold(terms=HOLD, expires_at=NEVER, draws=draws, open=6, used=5)
    for owed, absorbed in ((-1, 1), (1, -1)):
        with pytest.raises(InvariantBroken, match=r"a debt is negative .*h1"):
            Hold(
                terms=HOLD,
                expires_at=NEVER,
                draws=draws,
                open=6,
                used=4,
                owed=owed,
                absorbed=absorbed,
            )
    with pytest.raises(InvariantBroken, match=r"a closed hold keeps credits .*h1"):
        Hold(terms=HOLD, expires_at=NEVER, draws=draws, open=6, used=4, closed_at=T0)


def test_a_debt_is_not_negative() -> None:
    """Nobody owes less than nothing (D7)."""
    debt = Debt(
        id=DebtId("d1"),
        account=AccountId("org"),
        hold=None,
        owed=0,
        booked_at=T0,
    )
    with pytest.raises(InvariantBroken, match=r"a debt is negative .*d1"):
        replace(debt, owed=-1)


def test_a_budget_without_a_target_cannot_be_made() -> None:
    """An account, a user, both, or each user of an account (B3)."""
    org, ann = AccountId("org"), UserId("ann")
    assert (org, ann, False) == BudgetTarget(account=org, user=ann).key
    assert (None, ann, False) == BudgetTarget(user=ann).key
    assert (org, None, True) == BudgetTarget(account=org, each_user=True).key
    for account, user, each_user in ((None, None, False), (None, ann, True), (None, None, True)):
        told = "^a budget needs a target: an account, a user, or both$"
        with pytest.raises(ValueError, match=told):
            BudgetTarget(account=account, user=user, each_user=each_user)
    with pytest.raises(ValueError, match=r"^a budget limits one user or each, not both$"):
        BudgetTarget(account=org, user=ann, each_user=True)


@pytest.mark.parametrize("field", ["raw_hold_max", "job_hold_max", "late_max", "debt_max"])
def test_the_bounds_of_an_org_are_bounds(field: str) -> None:
    """Spans and amounts, not less than nothing (L5, L12, L13)."""
    most = AMOUNT_MAX if field == "debt_max" else NEVER
    for good in (0, most):
        assert good == getattr(OrgPolicy(**{field: good}), field)
    for bad in (-1, most + 1):
        with pytest.raises(ValueError, match=f"^{field} is 0 to {most}, not {bad}$"):
            OrgPolicy(**{field: bad})
    with pytest.raises(TypeError, match=f"^{field} is a whole number"):
        OrgPolicy(**{field: 0.5})  # type: ignore[arg-type]


def test_a_context_names_what_can_be_run() -> None:
    """A number of GPUs, each type once, names that are names (M1)."""
    assert 10**9 == Context(milli_gpus=10**9).milli_gpus
    for wrong, why in (
        ({"milli_gpus": -1}, "^milli_gpus is 0 to 1000000000, not -1$"),
        ({"milli_gpus": 10**9 + 1}, "^milli_gpus is 0 to"),
        ({"gpu_types": ("a", "b", "a")}, "^a GPU type is named twice: "),
        ({"gpu_types": ("",)}, "^gpu_types is 1 to 255"),
        *(
            ({field: ""}, f"^{field} is 1 to 255")
            for field in ("region", "job_kind", "priority_class", "job")
        ),
    ):
        with pytest.raises(ValueError, match=why):
            Context(**wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^milli_gpus is a whole number"):
        Context(milli_gpus=333.3)  # type: ignore[arg-type]


# Events that contradict the books


def test_an_event_without_a_function_is_a_bug() -> None:
    """Not something to be passed over (L1)."""

    @value
    class Invented(Event):
        """Nothing we know of."""

    org = Org()
    assert () == issued_by(Invented(at=T0))
    with pytest.raises(InvariantBroken, match=r"no function applies this event .*Invented"):
        evolve(org.journal.books, Invented(at=T0))


def test_an_event_from_before_the_last_one_is_a_bug() -> None:
    """Recorded time never goes back (IL19)."""
    org = Org()
    with pytest.raises(InvariantBroken, match="time went back"):
        evolve(org.journal.books, GrantLapsed(at=T0 - 1, grant=GrantId("g1")))


def test_a_grant_is_created_once() -> None:
    """Whatever an event says (IL2)."""
    org = Org()
    org.issue("g1", 100)
    with pytest.raises(InvariantBroken, match=r"a grant exists already .*g1"):
        evolve(org.journal.books, GrantIssued(at=T0, terms=TERMS))


def test_a_posting_moves_something_that_is_there() -> None:
    """No event can take more out of a compartment than is in it (IL1)."""
    org = Org()
    org.issue("g1", 100)
    org.reserve("h1", 60)

    for amount, grant, message in (
        (61, "g1", "a compartment is negative"),
        (0, "g1", "a posting moves nothing"),
        (1, "g9", "a row is missing"),
    ):
        posting = Posting(
            grant=GrantId(grant),
            source=Compartment.HELD,
            target=Compartment.AVAILABLE,
            amount=amount,
            effective_at=T0,
        )
        with pytest.raises(InvariantBroken, match=message):
            evolve(org.journal.books, HoldReduced(at=T0, hold=HoldId("h1"), postings=(posting,)))


def test_a_hold_changes_after_it_was_opened_and_is_opened_once() -> None:
    """An event that says otherwise contradicts the books (D7)."""
    org = Org()
    org.issue("g1", 10)
    [opened] = org.reserve("h1", 10)
    lost = HoldReduced(at=T0, hold=HoldId("nobody"))

    with pytest.raises(InvariantBroken, match=r"a hold is missing .*nobody"):
        evolve(org.journal.books, lost)
    with pytest.raises(InvariantBroken, match=r"a hold exists already .*h1"):
        hold_after(opened, org.hold("h1"))  # type: ignore[arg-type]


def test_a_counter_is_not_negative() -> None:
    """What comes off it was counted before (D7)."""
    assert -5 == BudgetCounter(relief=-5).relief
    with pytest.raises(InvariantBroken, match=r"^a counter is negative \(charged=-1\)$"):
        BudgetCounter(charged=-1)


def test_time_does_not_go_back() -> None:
    """Neither in what is decided nor in what happened; both instants are told (D5)."""
    org = Org()
    org.at(hours(2))
    [issued] = org.issue("g1", 10)
    books = org.journal.books

    with pytest.raises(InvariantBroken, match=rf"^time went back \(now={T0}, last={hours(2)}\)$"):
        org.journal.do(ask.revoke("g1"), T0)
    with pytest.raises(InvariantBroken, match=rf"^time went back \(at={T0}, now={hours(2)}\)$"):
        evolve(books, replace(issued, at=T0))


def test_a_contradiction_tells_its_figures() -> None:
    """So that it can be found without a debugger (D7)."""
    org = Org()
    org.issue("g1", 10)
    nothing = Posting(
        grant=GrantId("g1"),
        source=Compartment.AVAILABLE,
        target=Compartment.HELD,
        amount=0,
        effective_at=T0,
    )
    with pytest.raises(InvariantBroken, match=r"^a posting moves nothing \(grant='g1'\)$"):
        org.journal.books.post(nothing, 0)
    with pytest.raises(InvariantBroken, match=r"parts=\(-1, 0, 0, 0\)"):
        Draw(grant=GrantId("g1"), charged=-1, drawn=-1)
    with pytest.raises(InvariantBroken, match=r"^more forfeited than lapsed \(grant='g1'\)$"):
        replace(org.grant("g1"), forfeited=1)
    with pytest.raises(InvariantBroken, match=r"figures=\(1, 0, 0, 0\)"):
        Hold(terms=HOLD, expires_at=NEVER, used=1)
