"""Deciding on a part of the books (D2): the same answer, and only what was asked for is loaded."""

import pytest
from hypothesis import given, settings

from bursar.core.ids import AccountId, ChargeId, GrantId, HoldId, UserId
from bursar.core.instant import DAY
from bursar.core.ledger.books import Books
from bursar.core.ledger.commands import (
    AddAccount,
    AddUser,
    Charge,
    Command,
    Issue,
    Reserve,
    Settle,
)
from bursar.core.ledger.decide import decide
from bursar.core.ledger.events import HoldOpened
from bursar.core.ledger.evolve import evolve
from bursar.core.ledger.journal import Journal
from bursar.core.ledger.values import CreditKind
from bursar.core.refusal import Refusal
from bursar.core.value import replace
from tests.support.partial_books import Loader
from tests.support.strategies import History, histories

T0 = 1_770_000_000_000_000
# Each step is decided once for each row that it loads, so that 200 histories take a while.
FEWER = settings(max_examples=settings().max_examples * 2 // 5)


@pytest.mark.property
@FEWER
@given(histories())
def test_a_part_decides_as_the_whole_does(history: History) -> None:
    """`decide` on partly loaded books gives the same events or the same refusal (D2)."""
    whole = Books(history.prices)
    for now, command in history.steps:
        on_part = Loader(whole).decide(command, now)
        on_whole = decide(whole, command, now)

        assert on_whole == on_part
        if not isinstance(on_whole, Refusal):
            for event in on_whole:
                evolve(whole, event)


@pytest.mark.property
@FEWER
@given(histories())
def test_a_part_goes_on_from_what_it_decided(history: History) -> None:
    """A part that evolves by its own decisions goes on deciding as the whole does (D2, D3).

    What it loads later is older than what it knows, as rows in a database are that a batch has not
    written yet.
    """
    journal = Journal(history.prices)
    for begin in range(0, len(history.steps), 7):
        loader = Loader(journal.books)
        answers = []
        for now, command in history.steps[begin : begin + 7]:
            outcome = loader.decide(command, now)
            answers.append(outcome)
            if not isinstance(outcome, Refusal):
                for event in outcome:
                    evolve(loader.part, event)

        assert answers == [journal.do(ask, at) for at, ask in history.steps[begin : begin + 7]]


@pytest.mark.property
@FEWER
@given(histories())
def test_a_part_that_forgets_finished_work_decides_as_the_whole_does(history: History) -> None:
    """Closed holds and charges are dropped when they are stored, and loaded again (D2, D3)."""
    journal = Journal(history.prices)
    loader = Loader(journal.books)
    for begin in range(0, len(history.steps), 3):
        steps = history.steps[begin : begin + 3]
        with loader.part.trial() as trial:
            answers = []
            for now, command in steps:
                answers.append(loader.decide(command, now))
                if not isinstance(answers[-1], Refusal):
                    for event in answers[-1]:
                        evolve(loader.part, event)
            finished = trial.finished()
            trial.keep()

        assert answers == [journal.do(command, now) for now, command in steps]
        loader.part.forget(finished)


def org_with(grants: int) -> Journal:
    """An org of one account that owns that many equal grants."""
    journal = Journal()
    journal.do(AddAccount(account=AccountId("org"), parent=None, name="org"), T0)
    journal.do(AddUser(user=UserId("u")), T0)
    for index in range(grants):
        issue = Issue(
            grant=GrantId(f"g{index:06}"),
            account=AccountId("org"),
            amount=10,
            kind=CreditKind.PAID,
            expires_at=T0 + DAY + index,
        )
        journal.do(issue, T0)
    return journal


def reserve(amount: int) -> Reserve:
    """A hold of that amount."""
    return Reserve(
        hold=HoldId("h"),
        account=AccountId("org"),
        user=UserId("u"),
        amount=amount,
        expires_at=T0 + DAY,
    )


def test_the_loaded_rows_do_not_grow_with_the_number_of_grants() -> None:
    """A hold loads the grants it draws and a limited number of others (L16)."""
    few, many = Loader(org_with(200).books), Loader(org_with(2_000).books)
    outcomes = [loader.decide(reserve(35), T0 + 1) for loader in (few, many)]

    assert outcomes[0] == outcomes[1]
    assert not isinstance(outcomes[1], Refusal)
    assert isinstance(outcomes[1][-1], HoldOpened)
    assert 4 == len(outcomes[1][-1].postings)
    assert few.rows == many.rows


def test_books_do_not_grow_with_finished_holds() -> None:
    """A unit of work leaves nothing in memory once it is stored; what is owed for stays (D3)."""
    journal = org_with(1)
    loader = Loader(journal.books)
    sizes = []
    for number in range(4):
        for command in unit_of_work(HoldId(f"h{number}")):
            with loader.part.trial() as trial:
                events = loader.decide(command, T0 + 1)
                assert not isinstance(events, Refusal)
                for event in events:
                    evolve(loader.part, event)
                finished = trial.finished()
                trial.keep()
            journal.do(command, T0 + 1)
            loader.part.forget(finished)
        sizes.append(loader.part.size)

    assert sizes[1:] == sizes[:-1]
    assert not loader.part.holds.knows(HoldId("h0"))
    assert not loader.part.charges.knows(ChargeId("h0/1"))


def unit_of_work(hold: HoldId) -> list[Command]:
    """Commands that open, charge and settle a hold."""
    return [
        replace(reserve(2), hold=hold),
        Charge(charge=ChargeId(f"{hold}/1"), hold=hold, amount=1),
        Settle(charge=ChargeId(f"{hold}/2"), hold=hold),
    ]
