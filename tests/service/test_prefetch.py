"""However many commands a batch has, what they look at is loaded in as many rounds (D3)."""

from collections.abc import Callable

import pytest

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
from bursar.core.ledger.commands import (
    AddAccount,
    AddUser,
    BookDebt,
    BookLate,
    ChangeBudget,
    Charge,
    Command,
    DropBudget,
    ExtendGrant,
    ExtendHold,
    Issue,
    Refund,
    Release,
    Reserve,
    ReverseCharge,
    RevokeGrant,
    SetBudget,
    SetSetting,
    Settle,
    StartRecurrence,
    StopRecurrence,
    Transfer,
    VoidGrant,
)
from bursar.core.ledger.events import Event
from bursar.core.ledger.values import BudgetTarget, Context, CreditKind
from bursar.core.refusal import Code, Refusal
from bursar.core.value import replace
from bursar.store.sql.connection import Connection
from tests.support.builders import T0, days, hours
from tests.support.org_desk import Desk

FEW, MANY = 3, 30
ROOT = AccountId("root")


def account(n: int) -> AccountId:
    """The n-th account below the root."""
    return AccountId(f"a{n}")


def furnish(desk: Desk, many: int) -> None:
    """So many accounts, each with a user, a grant, an open hold, a charge, a budget, …"""
    every = range(many)
    desk.asks(AddAccount(account=ROOT, parent=None, name="root"))
    outcomes = desk.outcomes(
        *(AddAccount(account=account(n), parent=ROOT, name="a") for n in every),
        *(AddUser(user=UserId(f"u{n}")) for n in every),
        *(issue(n, f"g{n}", 10_000) for n in every),
        *(issue(n, f"spare{n}", 10_000) for n in every),
        *(budget(n) for n in every),
        *(reserve(n, f"h{n}") for n in every),
        *(Charge(charge=ChargeId(f"c{n}"), hold=HoldId(f"h{n}"), amount=10) for n in every),
        *(reserve(n, f"past{n}") for n in every),
        *(Settle(charge=ChargeId(f"s{n}"), hold=HoldId(f"past{n}"), total=5) for n in every),
        *(recurrence(n, f"r{n}") for n in every),
        *(setting(n, before=0) for n in every),
    )
    assert all(isinstance(outcome, tuple) for outcome in outcomes)


def issue(n: int, grant: str, amount: int) -> Issue:
    """Credits for the n-th account."""
    return Issue(
        grant=GrantId(grant),
        account=account(n),
        amount=amount,
        kind=CreditKind.PAID,
        expires_at=days(10),
        external_ref=f"paid-{grant}",
    )


def reserve(n: int, hold: str) -> Reserve:
    """A hold of the n-th account and user."""
    return Reserve(
        hold=HoldId(hold),
        account=account(n),
        user=UserId(f"u{n}"),
        context=Context(),
        expires_at=hours(3),
        amount=100,
    )


def budget(n: int, name: str = "b") -> SetBudget:
    """A budget of the n-th account."""
    return SetBudget(
        budget=BudgetId(f"{name}{n}"),
        target=BudgetTarget(account=account(n)),
        every=PeriodKind.DAY,
        limit=10**9,
        hard=True,
    )


def recurrence(n: int, name: str) -> StartRecurrence:
    """Credits for the n-th account, every month."""
    return StartRecurrence(
        recurrence=RecurrenceId(name),
        account=account(n),
        amount=5,
        kind=CreditKind.GRANT,
        every=PeriodKind.MONTH,
    )


def setting(n: int, before: int | None = None) -> SetSetting:
    """The n-th setting."""
    return SetSetting(kind="key", id=SettingId(f"s{n}"), body=f"{n}", before=before)


ASKED: dict[str, Callable[[int], Command]] = {
    "AddAccount": lambda n: AddAccount(account=AccountId(f"n{n}"), parent=account(n), name="n"),
    "AddUser": lambda n: AddUser(user=UserId(f"new{n}")),
    "SetBudget": lambda n: replace(budget(n, "more"), limit=10**8),
    "ChangeBudget": lambda n: ChangeBudget(budget=BudgetId(f"b{n}"), limit=10**8),
    "DropBudget": lambda n: DropBudget(budget=BudgetId(f"b{n}")),
    "Issue": lambda n: issue(n, f"new{n}", 7),
    "StartRecurrence": lambda n: recurrence(n, f"new{n}"),
    "StopRecurrence": lambda n: StopRecurrence(recurrence=RecurrenceId(f"r{n}")),
    "ExtendGrant": lambda n: ExtendGrant(grant=GrantId(f"g{n}"), expires_at=days(20)),
    "RevokeGrant": lambda n: RevokeGrant(grant=GrantId(f"g{n}")),
    "VoidGrant": lambda n: VoidGrant(grant=GrantId(f"spare{n}")),
    "Transfer": lambda n: Transfer(
        grant=GrantId(f"spare{n}"), to_grant=GrantId(f"t{n}"), account=ROOT, amount=5
    ),
    "Reserve": lambda n: reserve(n, f"new{n}"),
    "ExtendHold": lambda n: ExtendHold(hold=HoldId(f"h{n}"), amount=5),
    "Release": lambda n: Release(hold=HoldId(f"h{n}")),
    "Refund": lambda n: Refund(hold=HoldId(f"h{n}"), amount=5),
    "Charge": lambda n: Charge(charge=ChargeId(f"new{n}"), hold=HoldId(f"h{n}"), amount=5),
    "Settle": lambda n: Settle(charge=ChargeId(f"new{n}"), hold=HoldId(f"h{n}"), total=50),
    "BookLate": lambda n: BookLate(
        charge=ChargeId(f"new{n}"), hold=HoldId(f"past{n}"), amount=5, effective_at=T0
    ),
    "ReverseCharge": lambda n: ReverseCharge(charge=ChargeId(f"c{n}")),
    "SetSetting": lambda n: setting(n),
    "BookDebt": lambda n: BookDebt(debt=DebtId(f"d{n}"), account=account(n), amount=5),
}


@pytest.mark.parametrize("name", ASKED)
def test_many_commands_are_loaded_in_as_many_round_trips_as_few(
    connection: Connection, name: str
) -> None:
    """Each round brings what all commands lack, not what one of them does."""
    rounds: list[int] = []
    for many in (FEW, MANY):
        desk = Desk(connection)
        furnish(desk, many)
        desk.cache.clear()
        outcomes = desk.outcomes(*(ASKED[name](n) for n in range(many)), now=T0 + 1)
        assert all(isinstance(outcome, tuple) for outcome in outcomes)
        rounds.append(desk.rounds)

    few, plenty = rounds
    assert plenty <= few + 2  # reading on in an order takes a round more, or two
    assert few <= 10


@pytest.mark.parametrize(("name", "rounds"), [("Reserve", 3), ("Charge", 4)])
def test_rows_of_the_most_frequent_commands_are_prefetched(
    connection: Connection, name: str, rounds: int
) -> None:
    """Names (of a hold, then its account), whose budgets and credits, what is counted there."""
    desk = Desk(connection)
    furnish(desk, 1)
    desk.cache.clear()
    [outcome] = desk.outcomes(ASKED[name](0), now=T0 + 1)

    assert isinstance(outcome, tuple)
    assert rounds == desk.rounds


@pytest.mark.parametrize("accounts", [1, MANY])
def test_accounts_that_do_not_exist_are_loaded_in_one_round_trip(
    connection: Connection, accounts: int
) -> None:
    """However many commands of a batch name one, or each another: all are told ahead."""
    desk = Desk(connection)
    furnish(desk, 1)
    desk.cache.clear()
    nowhere = (
        replace(reserve(0, f"new{n}"), account=AccountId(f"no{n % accounts}")) for n in range(MANY)
    )
    outcomes = desk.outcomes(*nowhere, now=T0 + 1)

    assert [Code.ACCOUNT_UNKNOWN] * MANY == [_code(outcome) for outcome in outcomes]
    assert 1 == desk.rounds


def test_an_account_is_prefetched_once_it_exists(
    connection: Connection,
) -> None:
    """That nothing was missing while it was unknown is not remembered of it."""
    late = AccountId("late")
    rounds: list[int] = []
    for asked_before in (False, True):
        desk = Desk(connection)
        furnish(desk, 1)
        if asked_before:
            refused = replace(reserve(0, "early"), account=late)
            for _ in range(2):  # the second time it is known that there is none
                assert [Code.ACCOUNT_UNKNOWN] == [_code(one) for one in desk.outcomes(refused)]
        desk.asks(AddAccount(account=late, parent=account(0), name="late"))
        [outcome] = desk.outcomes(replace(reserve(0, "new"), account=late))
        assert isinstance(outcome, tuple)
        rounds.append(desk.rounds)

    first, again = rounds
    assert again <= first


def _code(outcome: tuple[Event, ...] | Refusal) -> Code | None:
    return outcome.code if isinstance(outcome, Refusal) else None
