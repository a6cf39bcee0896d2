"""API keys with a spend cap: their budgets count besides those of the hold's user (N1)."""

from bursar.core.budgets.periods import PeriodKind
from bursar.core.ids import AccountId, BudgetId, ChargeId, HoldId, UserId
from bursar.core.instant import HOUR
from bursar.core.ledger.commands import AddUser, Charge, Reserve, SetBudget
from bursar.core.ledger.values import BudgetTarget
from bursar.core.refusal import Code, Refusal
from tests.support import commands as ask
from tests.support.builders import Org

KEY = UserId("key")


def hold(name: str, amount: int, *, by: str | None = "key", user: str = "ann") -> Reserve:
    """A hold that a key asks for."""
    return Reserve(
        hold=HoldId(name),
        account=AccountId("team"),
        user=UserId(user),
        amount=amount,
        ttl=HOUR,
        capped_key=None if by is None else UserId(by),
    )


def cap(limit: int) -> SetBudget:
    """What the key may spend in all."""
    return SetBudget(
        budget=BudgetId("cap"),
        target=BudgetTarget(user=KEY),
        every=PeriodKind.LIFETIME,
        limit=limit,
        hard=True,
    )


def org_with_key(limit: int = 100) -> Org:
    """An org with credits and a key that may spend so much of them."""
    org = Org()
    org.does(ask.issue("g", 1_000))
    org.does(AddUser(user=KEY))
    org.does(AddUser(user=UserId("ben")))
    org.does(cap(limit))
    return org


def test_a_key_spends_no_more_than_its_cap_for_all_users_together() -> None:
    """Holds of several users count together for the key, and for nobody else."""
    org = org_with_key(100)

    org.does(hold("one", 60))
    refused = org.refuses(hold("two", 50, user="ben"))

    assert isinstance(refused, Refusal)
    assert Code.BUDGET_EXCEEDED is refused.code
    org.does(hold("three", 40, user="ben"))
    org.does(hold("four", 500, by=None))


def test_charges_of_a_key_count_against_its_cap() -> None:
    """A hold that is charged, extended or settled counts for the key that requested it."""
    org = org_with_key(100)
    org.does(hold("one", 60))

    org.does(Charge(charge=ChargeId("c"), hold=HoldId("one"), amount=30))
    assert Code.BUDGET_EXCEEDED is org.refuses(ask.extend("one", 50)).code
    org.does(ask.release("one"))

    assert Code.BUDGET_EXCEEDED is org.refuses(hold("two", 71)).code
    org.does(hold("two", 70))


def test_a_cap_set_later_counts_the_holds_that_are_open() -> None:
    """As every budget does."""
    org = Org()
    org.does(ask.issue("g", 1_000))
    org.does(AddUser(user=KEY))
    org.does(hold("one", 60))

    org.does(cap(100))

    assert Code.BUDGET_EXCEEDED is org.refuses(hold("two", 41)).code


def test_a_key_that_spends_for_itself_counts_once() -> None:
    """The key may be the user, too."""
    org = org_with_key(100)

    org.does(hold("one", 100, user="key"))

    assert Code.BUDGET_EXCEEDED is org.refuses(hold("two", 1, user="key")).code


def test_a_key_that_is_no_user_can_hold_nothing() -> None:
    """So that a key whose cap is not there yet is not one without a cap."""
    org = Org()
    org.does(ask.issue("g", 1_000))

    assert Refusal(Code.USER_UNKNOWN, {"user": "key"}) == org.refuses(hold("one", 1))
