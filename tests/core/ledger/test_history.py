"""The books as they were: as of one instant, as known at another (L12)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar.core.ids import AccountId, GrantId
from bursar.core.instant import HOUR, NEVER, Instant
from bursar.core.ledger.balance import balance
from bursar.core.ledger.events import CreditsMoved, issued_by
from bursar.core.ledger.history import GrantView, fold_grants, sum_owned, view_grants
from bursar.core.ledger.journal import Journal
from bursar.core.ledger.values import Compartment, CreditKind, GrantPolicy
from bursar.core.refusal import InvariantBroken, Refusal
from tests.support import commands as ask
from tests.support.builders import T0, Org, Parts, days, gpus, hours, minutes, prices
from tests.support.strategies import History, histories

AVAILABLE, HELD, SPENT, LAPSED, REVOKED, MOVED = tuple(Compartment)


def parts(found: GrantView) -> Parts:
    """Compartments in the words of the tests."""
    return Parts(**{part.value: amount for part, amount in found.parts.items()})


def as_of(org: Org, at: Instant, known_at: Instant = NEVER) -> dict[str, Parts]:
    """What was in every grant at an instant, as known at another."""
    found = view_grants(org.journal.events, at, known_at)
    assert all(grant == one.terms.id for grant, one in found.items())
    return {grant: parts(one) for grant, one in found.items()}


def test_a_past_balance_is_what_had_taken_effect_by_then() -> None:
    """To the microsecond of each posting (L12)."""
    org = Org()
    org.at(hours(1))
    org.issue("g", 100)
    org.at(hours(2))
    org.reserve("h1", 60)
    org.at(hours(3))
    org.charge("h1", 20)
    org.at(hours(4))
    org.release("h1")

    assert {} == as_of(org, hours(1) - 1)
    assert {"g": Parts(available=100)} == as_of(org, hours(1))
    assert {"g": Parts(available=100)} == as_of(org, hours(2) - 1)
    assert {"g": Parts(available=40, held=60)} == as_of(org, hours(2))
    assert {"g": Parts(available=40, held=40, spent=20)} == as_of(org, hours(4) - 1)
    assert {"g": Parts(available=80, spent=20)} == as_of(org, hours(4))


def test_a_fold_of_the_events_can_go_on_from_an_earlier_one() -> None:
    """All events give the same grants as the first few and then the rest (L12)."""
    org = Org()
    org.issue("g", 100, expires=hours(3))
    org.reserve("h1", 60)
    org.at(hours(1))
    org.settle("h1", 20)
    events = org.journal.events
    whole = fold_grants(events)

    assert {"g": Parts(available=80, spent=20)} == {id: parts(view) for id, view in whole.items()}
    for number in range(len(events)):
        assert whole == fold_grants(events[number:], fold_grants(events[:number]))


def test_a_past_view_contains_what_was_recorded_by_then() -> None:
    """Late usage changes the past, but not what was known of it (L12)."""
    org = Org()
    org.issue("g", 100, expires=hours(3))
    org.reserve("h1", 60)
    org.at(hours(1))
    org.settle("h1", 20)
    org.at(hours(5))
    org.late("h1", 30, when=minutes(30))

    assert {"g": Parts(available=40, held=60)} == as_of(org, hours(1) - 1, hours(5) - 1)
    assert {"g": Parts(available=80, spent=20)} == as_of(org, hours(2), hours(5) - 1)
    assert {"g": Parts(lapsed=80, spent=20)} == as_of(org, hours(4), hours(5) - 1)
    # Known now: it was spent when its hold had given it back, and so did not lapse.
    assert {"g": Parts(available=40, held=60)} == as_of(org, hours(1) - 1)
    assert {"g": Parts(available=50, spent=50)} == as_of(org, hours(1))
    assert {"g": Parts(lapsed=50, spent=50)} == as_of(org, hours(4))
    assert {"g": Parts(lapsed=50, spent=50)} == as_of(org, hours(5))


def test_a_grant_is_there_from_when_it_was_issued() -> None:
    """Though it may start later; what was not known then is not seen (L12)."""
    org = Org()
    org.at(hours(1))
    org.issue("g", 100, starts=hours(9))

    assert {} == as_of(org, hours(1) - 1)
    assert {} == as_of(org, hours(5), known_at=hours(1) - 1)
    assert {"g": Parts(available=100)} == as_of(org, hours(1), known_at=hours(1))


def test_an_expiry_is_seen_whether_or_not_it_was_written_down() -> None:
    """From its very instant; the sweep changes no past view (L12, IL10)."""
    org = Org()
    org.issue("g", 100, expires=hours(1))
    org.reserve("h1", 30)
    before = [as_of(org, hours(1) - 1), as_of(org, hours(1)), as_of(org, hours(2))]
    org.at(hours(3))
    org.does(ask.lapse())

    assert [
        {"g": Parts(available=70, held=30)},
        {"g": Parts(lapsed=70, held=30)},
        {"g": Parts(lapsed=70, held=30)},
    ] == before
    assert before == [as_of(org, hours(1) - 1), as_of(org, hours(1)), as_of(org, hours(2))]


def test_credits_that_return_to_an_expired_grant_lapse_on_return() -> None:
    """Not at the expiry, when they were still held (L10, L12)."""
    org = Org()
    org.issue("g", 100, expires=hours(1))
    org.reserve("h1", 30)
    org.at(hours(2))
    org.release("h1")

    assert {"g": Parts(lapsed=70, held=30)} == as_of(org, hours(2) - 1)
    assert {"g": Parts(lapsed=100)} == as_of(org, hours(2))


def test_an_extension_counts_from_when_it_was_made() -> None:
    """Before, the grant was to expire earlier; known before, it did (L11, L12)."""
    org = Org()
    org.issue("g", 100, expires=hours(2))
    org.at(hours(1))
    org.does(ask.extend_grant("g", until=hours(4)))

    def expires(at: Instant, known_at: Instant = NEVER) -> Instant:
        found = view_grants(org.journal.events, at, known_at)
        return found[GrantId("g")].terms.expires_at

    assert (hours(2), hours(4)) == (expires(hours(1) - 1), expires(hours(1)))
    assert hours(2) == expires(hours(1), hours(1) - 1)
    assert {"g": Parts(available=100)} == as_of(org, hours(3))
    assert {"g": Parts(lapsed=100)} == as_of(org, hours(3), known_at=hours(1) - 1)
    assert {"g": Parts(lapsed=100)} == as_of(org, hours(4))


def test_a_transfer_is_seen_in_both_accounts_at_once() -> None:
    """Nothing is made and nothing lost by it at any instant (L11, L12, IL2)."""
    org = Org()
    org.issue("g", 100)
    org.issue("other", 5, to="team")
    org.at(hours(1))
    org.does(ask.transfer("g", 30, to="team"))

    assert {"g": Parts(available=100), "other": Parts(available=5)} == as_of(org, hours(1) - 1)
    found = view_grants(org.journal.events, hours(1), NEVER)
    assert {
        "g": Parts(available=70, moved=30),
        "other": Parts(available=5),
        "moved": Parts(available=30),
    } == {grant: parts(one) for grant, one in found.items()}
    for account in ("org", "team", "project"):
        own = view_grants(org.journal.events, org.now, org.now, account=AccountId(account))
        assert own == {grant: one for grant, one in found.items() if one.terms.account == account}
    team = sum_owned(found, AccountId("team"))
    assert {AVAILABLE: 35, HELD: 0, SPENT: 0, LAPSED: 0, REVOKED: 0, MOVED: 0} == team
    assert 70 == sum_owned(found, AccountId("org"))[AVAILABLE]
    assert 30 == sum_owned(found, AccountId("org"))[MOVED]
    assert dict.fromkeys(Compartment, 0) == sum_owned(found, AccountId("project"))


def test_a_recurrence_is_seen_turning_when_it_was_due() -> None:
    """Though it was written down days later (L12, L20)."""
    org = Org()
    org.does(ask.recur("r", 10, roll_over=4))
    [first] = as_of(org, T0)
    org.at(days(40))
    org.does(ask.lapse())

    assert {first: Parts(available=10)} == as_of(org, days(31) - 1)
    later = as_of(org, days(31))
    assert Parts(lapsed=10) == later.pop(first)
    assert [4, 10] == sorted(one.available for one in later.values())
    assert [first] == list(as_of(org, days(35), known_at=days(40) - 1))


def test_a_reversal_with_reissue_shows_two_grants() -> None:
    """What lapses and what is issued for it, from the instant of the reversal (L11, L12)."""
    org = Org()
    org.issue("g", 100, expires=hours(1))
    org.reserve("h1", 60)
    org.charge("h1", 60, "c")
    org.at(hours(2))
    org.does(ask.reverse("c", reissue_until=days(9)))

    assert {"g": Parts(spent=60, lapsed=40)} == as_of(org, hours(2) - 1)
    found = as_of(org, hours(2))
    assert Parts(lapsed=100) == found.pop("g")
    assert [Parts(available=60)] == list(found.values())


def test_the_present_view_is_the_balance() -> None:
    """As of now, as known now (L8, L12)."""
    org = Org(prices(h100=1_000))
    org.issue("g1", 10_000, expires=hours(5))
    org.issue("g2", 500, kind=CreditKind.PROMO, policy=GrantPolicy(refundable=False))
    org.reserve("h1", run_ms=3_600_000, context=gpus("h100"), by="org")
    org.later(minutes=30)
    org.reading("h1", 1_800_000)
    org.later(minutes=5)
    org.does(ask.give_back("h1", kept_ms=600_000))
    org.at(hours(5))
    org.settle("h1")

    found = sum_owned(view_grants(org.journal.events, org.now, org.now), AccountId("org"))

    shown = balance(org.journal.books, AccountId("org"), org.now).owned
    assert {part.value: amount for part, amount in found.items()} == {
        part.value: getattr(shown, part.value) for part in Compartment
    }


@pytest.mark.property
@given(histories(), st.data())
def test_every_past_view_adds_up_and_stays_as_it_was(history: History, data: st.DataObject) -> None:
    """As of any instant, as known at any: it is all there that was ever created (L12, IL2).

    Asked again after more has happened, the answer is the same (IL20).
    """
    journal = Journal(history.prices)
    cut = data.draw(st.integers(0, len(history.steps)))
    for now, command in history.steps[:cut]:
        journal.do(command, now)
    before = list(journal.events)
    known_at = before[-1].at if before else 0
    for now, command in history.steps[cut:]:
        journal.do(command, now)
    later = [event for event in journal.events[len(before) :] if event.at > known_at]
    instants = sorted(
        {posting.effective_at for event in journal.events for posting in event.postings}
    )
    chosen = data.draw(st.sets(st.sampled_from(instants), max_size=3)) if instants else set()
    for at in sorted(chosen | {known_at, *(now for now, _ in history.steps[-1:])}):
        for known in (known_at, NEVER):
            created = sum(
                terms.amount
                for event in journal.events
                if event.at <= known and not isinstance(event, CreditsMoved)
                for terms in issued_by(event)
                if terms.issued_at <= at
            )
            assert created == sum(
                amount
                for one in view_grants(journal.events, at, known).values()
                for part, amount in one.parts.items()
                if part is not MOVED
            )
        assert view_grants(before, at, known_at) == view_grants([*before, *later], at, known_at)


def test_views_follow_each_other_without_a_gap() -> None:
    """From one instant to the next only what takes effect there moves (L12)."""
    org = Org()
    org.issue("g", 100, expires=hours(9))
    for hour in range(1, 5):
        org.at(hours(hour))
        org.reserve(f"h{hour}", 10 * hour, until=hours(8))
    org.at(hours(6))
    org.late("h1", 5, when=hours(3))

    held = [as_of(org, T0 + hour * HOUR)["g"].held for hour in range(10)]

    assert [0, 10, 30, 60, 100, 100, 95, 95, 95, 95] == held
    assert all(
        100 == one.available + one.held + one.spent + one.lapsed
        for one in (as_of(org, T0 + hour * HOUR)["g"] for hour in range(10))
    )


def test_a_view_that_does_not_add_up_is_a_bug() -> None:
    """Nor one with less than nothing in a compartment (D7)."""
    org = Org()
    org.issue("g", 100)
    terms = org.grant("g").terms
    nothing = dict.fromkeys(Compartment, 0)

    GrantView(terms=terms, parts={**nothing, SPENT: 100})
    with pytest.raises(
        InvariantBroken, match=r"^a past view does not add up \(grant='g', parts=\{"
    ):
        GrantView(terms=terms, parts={**nothing, SPENT: 99})
    with pytest.raises(
        InvariantBroken, match=r"^a past compartment is negative \(grant='g', parts=\{"
    ):
        GrantView(terms=terms, parts={**nothing, SPENT: 101, AVAILABLE: -1})


def test_a_refused_command_leaves_no_trace_in_the_past() -> None:
    """There is no event of it (IL18)."""
    org = Org()
    org.issue("g", 10)
    before = as_of(org, NEVER)

    assert isinstance(org.asks(org.asking("h", 11)), Refusal)

    assert before == as_of(org, NEVER)
