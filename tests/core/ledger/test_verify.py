"""Checking the books against themselves: right books are silent, each corruption is named (L1)."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from bursar.core.budgets.periods import PeriodKind
from bursar.core.ids import AccountId, BudgetId, DebtId, GrantId, HoldId, UserId
from bursar.core.ledger.books import (
    DEBTS,
    LIMITS,
    TURNS,
    WAITING,
    Books,
    GrantLane,
    free_of,
    history_of,
    lane_key,
    order_of,
    require,
)
from bursar.core.ledger.values import CreditKind, Draw, Grant, GrantPolicy
from bursar.core.ledger.verify import find_problems
from tests.support import commands as ask
from tests.support.builders import T0, Org, days, gpus, hours, prices

ORG, TEAM, PROJECT = AccountId("org"), AccountId("team"), AccountId("project")
LANE = GrantLane(ORG, 100, GrantPolicy())


def right() -> Books:
    """Books with something of everything in them, all of it right."""
    org = Org(prices(h100=1_000))
    org.issue("paid", 1_000)
    org.issue("promo", 200, kind=CreditKind.PROMO, expires=hours(2))
    org.issue("later", 50, to="team", starts=days(2))
    org.issue("gone", 7, to="team", expires=hours(1))
    org.does(ask.recur("r", 10, PeriodKind.DAY, to="team"))
    org.budget("all", 10_000, account="org")
    org.budget("each", 10_000, account="team", each_user=True)
    org.budget("dropped", 20_000, account="org")
    org.reserve("h1", 300)
    org.charge("h1", 250)
    org.does(ask.drop_budget("dropped"))
    org.reserve("h2", run_ms=360_000, context=gpus("h100"), by="org", user="bob")
    org.reserve("h3", 20, by="team")
    org.settle("h3", 20)
    org.does(ask.transfer("paid", 30, to="project"))
    org.at(hours(3))
    org.does(ask.book_debt("d", 5_000, of="org"))
    assert [] == find_problems(org.journal.books)
    return org.journal.books


def grant(books: Books, name: str) -> Grant:
    """A grant."""
    return require(books.grants, GrantId(name))


def put_grant(books: Books, changed: Grant) -> None:
    """Change a grant's row behind the back of all sums and orders."""
    books.grants.put(changed.terms.id, changed)


Plant = Callable[[Books], None]


def spend_what_is_held(books: Books) -> None:
    found = grant(books, "paid")
    put_grant(books, replace(found, held=found.held - 1, spent=found.spent + 1))


def charge_a_draw_more(books: Books) -> None:
    debt = require(books.debts, DebtId("d"))
    books.debts.put(debt.id, replace(debt, draws=(Draw(grant=GrantId("paid"), drawn=3),)))


def change_a_sum(books: Books) -> None:
    available, *rest = require(books.totals, (ORG, CreditKind.PROMO))
    books.totals.put((ORG, CreditKind.PROMO), (available + 1, *rest))


def sum_up_nothing(books: Books) -> None:
    books.totals.put((PROJECT, CreditKind.PROMO), (1, 0, 0, 0, 0, 0))


def create_credits(books: Books) -> None:
    terms = replace(
        grant(books, "paid").terms,
        id=GrantId("forged"),
        account=PROJECT,
        kind=CreditKind.GRANT,
        amount=5,
    )
    books.put_grant(Grant(terms=terms, available=5))


def count_more_issued(books: Books) -> None:
    books.header.issued += 1


def use_more(books: Books) -> None:
    books.used.put(TEAM, require(books.used, TEAM) + 1)


def forget_what_was_used(books: Books) -> None:
    books.used.put(PROJECT, 0)


def owe_more(books: Books) -> None:
    books.owed.put(TEAM, 1)


def let_a_hold_owe(books: Books) -> None:
    hold = require(books.holds, HoldId("h1"))
    books.holds.put(hold.terms.id, replace(hold, owed=2, used=hold.used + 2))


def claim_more(books: Books) -> None:
    key = (BudgetId("all"), None)
    books.claims.put(key, require(books.claims, key) + 1)


def claim_for_nobody(books: Books) -> None:
    books.claims.put((BudgetId("each"), UserId("bob")), 4)


def forget_a_limit(books: Books) -> None:
    books.index(LIMITS).discard((require(books.holds, HoldId("h1")).expires_at, "h1"))


def end_a_closed_hold(books: Books) -> None:
    books.index(LIMITS).add((require(books.holds, HoldId("h3")).expires_at, "h3"))


def turn_twice(books: Books) -> None:
    books.index(TURNS).add((T0, "r"))


def forget_a_turn(books: Books) -> None:
    books.index(TURNS).discard((days(1), "r"))


def forget_a_debt(books: Books) -> None:
    [key] = books.index(DEBTS).since()
    books.index(DEBTS).discard(key)


def repay_a_debt_twice(books: Books) -> None:
    books.index(DEBTS).add((T0, "d"))


def hide_a_free_grant(books: Books) -> None:
    found = grant(books, "later").terms
    books.index(free_of(TEAM)).discard((found.expires_at, "later"))


def free_a_spent_grant(books: Books) -> None:
    books.index(free_of(PROJECT)).add((T0, "paid"))


def change_the_sum_of_a_lane(books: Books) -> None:
    books.lane_totals.put(LANE, require(books.lane_totals, LANE) + 1)


def lose_a_place_in_a_lane(books: Books) -> None:
    books.index(order_of(LANE)).discard(lane_key(grant(books, "paid").terms))


def list_what_does_not_exist(books: Books) -> None:
    books.index(order_of(LANE)).add((T0, 0, T0, "nothing"))
    books.index(order_of(LANE)).discard(lane_key(grant(books, "paid").terms))


CORRUPTIONS: dict[str, tuple[Plant, list[str]]] = {
    "a grant has spent what its draws hold": (
        spend_what_is_held,
        [
            "grant paid: 149 held, but draws have 150 open",
            "grant paid: 54 spent, but draws charged 53",
            "account org, paid: (767, 150, 53, 0, 0, 30), but grants have (767, 149, 54, 0, 0, 30)",
        ],
    ),
    "a draw has credits that its grant does not hold": (
        charge_a_draw_more,
        ["grant paid: 150 held, but draws have 153 open"],
    ),
    "a sum of an account is not that of its grants": (
        change_a_sum,
        ["account org, promo: (1, 0, 200, 0, 0, 0), but grants have (0, 0, 200, 0, 0, 0)"],
    ),
    "an account has a sum but no grants": (
        sum_up_nothing,
        ["account project, promo: (1, 0, 0, 0, 0, 0), but grants have None"],
    ),
    "credits that nobody issued": (
        create_credits,
        [
            "account project, grant: grants but no sum",
            "1267 issued, but grants have 1272",
            "index grants of project: its keys do not match the rows",
        ],
    ),
    "more issued than there are credits": (
        count_more_issued,
        ["1268 issued, but grants have 1267"],
    ),
    "an account has used more than it was charged": (
        use_more,
        ["account team: 271 used, but 270 charged"],
    ),
    "an account has forgotten what it used": (
        forget_what_was_used,
        ["account project: 0 used, but 250 charged"],
    ),
    "an account owes what no debt says": (owe_more, ["account team: 1 owed, but debts of 0"]),
    "a hold owes what no debt says": (let_a_hold_owe, ["hold h1: 2 owed, but a debt of 0"]),
    "a budget counts more than holds can spend": (
        claim_more,
        ["budget all, user None: 151 claimed, but holds claim 150"],
    ),
    "a budget counts a user who holds nothing": (
        claim_for_nobody,
        ["budget each, user bob: 4 claimed, but holds claim 0"],
    ),
    "a hold that will never end": (
        forget_a_limit,
        ["index limits: its keys do not match the rows"],
    ),
    "a closed hold that will end": (
        end_a_closed_hold,
        ["index limits: its keys do not match the rows"],
    ),
    "a recurrence that turns twice": (turn_twice, ["index turns: its keys do not match the rows"]),
    "a recurrence that never turns": (
        forget_a_turn,
        ["index turns: its keys do not match the rows"],
    ),
    "a debt that is never repaid": (forget_a_debt, ["index debts: its keys do not match the rows"]),
    "a debt that is repaid twice": (
        repay_a_debt_twice,
        ["index debts: its keys do not match the rows"],
    ),
    "a free grant that is not found": (
        hide_a_free_grant,
        ["index free of team: its keys do not match the rows"],
    ),
    "a grant that is found free and is not": (
        free_a_spent_grant,
        ["index free of project: its keys do not match the rows"],
    ),
    "a lane has another sum than its grants": (
        change_the_sum_of_a_lane,
        ["lane of org: 768 recorded, but its grants have 767"],
    ),
    "a lane has lost a grant": (
        lose_a_place_in_a_lane,
        ["index lane of org: its keys do not match the rows"],
    ),
    "a lane lists what does not exist": (
        list_what_does_not_exist,
        ["index lane of org: its keys do not match the rows"],
    ),
}


def relieve_more(books: Books) -> None:
    key = (BudgetId("all"), None, T0)
    tally = require(books.tallies, key)
    books.tallies.put(key, replace(tally, relief=tally.relief + 1))


def forge_the_past(books: Books) -> None:
    books.index(history_of(GrantId("paid"))).add((T0, 0, 0, 5))


def forget_a_reference(books: Books) -> None:
    found = grant(books, "paid")
    put_grant(books, replace(found, terms=replace(found.terms, external_ref="invoice")))


def forget_what_is_overdue(books: Books) -> None:
    books.overdue.put((TEAM, CreditKind.PAID), 1)


def wait_for_nothing(books: Books) -> None:
    books.index(WAITING).add((days(9), "nobody"))


CORRUPTIONS |= {
    "a hold that can spend less than budgets think": (
        relieve_more,
        ["budget all, user None: relief 1, but holds have 0"],
    ),
    "a past that did not happen": (
        forge_the_past,
        ["grant paid: its history adds up to -228, not -233"],
    ),
    "a payment that could be reported twice": (
        forget_a_reference,
        ["grant paid: its external reference invoice is not indexed"],
    ),
    "an expiry that is not written and not known": (
        forget_what_is_overdue,
        ["account team, paid: 1 overdue, but grants have 0"],
    ),
    "a grant that does not exist and will start": (
        wait_for_nothing,
        ["index waiting: its keys do not match the rows"],
    ),
}


@pytest.mark.parametrize(("plant", "want"), CORRUPTIONS.values(), ids=CORRUPTIONS)
def test_a_corruption_is_named(plant: Plant, want: list[str]) -> None:
    """With its figures, and nothing else is (L1, IL1, IL2, IL5, IB1)."""
    books = right()

    plant(books)

    assert want == find_problems(books)


def test_empty_books_are_right() -> None:
    """There is nothing that could be wrong (L1)."""
    assert [] == find_problems(Books())


def test_a_dropped_budget_is_not_looked_at() -> None:
    """Nobody keeps its counters up any more (B3)."""
    books = right()
    books.claims.put((BudgetId("dropped"), None), 12_345)

    assert [] == find_problems(books)


def test_books_stay_right_when_time_passes() -> None:
    """Listing starts and expiries changes no sum but those that follow from the clock (L10)."""
    books = right()

    for at in (hours(1), hours(2), days(2), days(99)):
        books.advance(at)
        assert [] == find_problems(books)
