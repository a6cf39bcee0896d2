"""Credits come into being by being issued, and in no other way (L2).

A grant is spendable from `starts_at` (or from when it was issued, if that is later) until just
before `expires_at`. A payment that is reported twice is one grant.
"""

from bursar.core.ids import AccountId, GrantId
from bursar.core.instant import NEVER
from bursar.core.ledger.commands import Issue
from bursar.core.ledger.events import GrantIssued
from bursar.core.ledger.values import CreditKind, Grant, GrantPolicy, GrantTerms
from bursar.core.refusal import Code, Refusal
from tests.support import commands as ask
from tests.support.builders import T0, Org, Parts, hours, minutes, moves


def test_a_grant_is_what_was_asked_for_and_all_of_it_is_available() -> None:
    """Amount, source, kind, start, expiry, priority, policy and reference are kept (L2)."""
    org = Org()
    command = ask.issue(
        "g1",
        100,
        to="team",
        starts=minutes(5),
        expires=hours(1),
        policy=GrantPolicy(regions=frozenset({"eu"})),
        external_ref="invoice 7",
        source="card",
    )
    terms = GrantTerms(
        id=GrantId("g1"),
        account=AccountId("team"),
        kind=CreditKind.PAID,
        source="card",
        priority=100,
        issued_at=T0,
        starts_at=minutes(5),
        expires_at=hours(1),
        amount=100,
        policy=GrantPolicy(regions=frozenset({"eu"})),
        external_ref="invoice 7",
    )

    events = org.does(command)

    assert [("g1", "new → available", 100, T0)] == moves(events)
    assert GrantIssued(at=T0, terms=terms, postings=events[0].postings) == events[0]
    assert Grant(terms=terms, available=100) == org.grant("g1")
    org.rebuilds()


def test_a_grant_starts_now_and_never_expires_by_default() -> None:
    """Start and expiry may be omitted (L2)."""
    org = Org()
    org.does(ask.issue("g1", 100))

    terms = org.grant("g1").terms

    assert (T0, T0, NEVER) == (terms.issued_at, terms.starts_at, terms.expires_at)


def test_kind_and_priority_are_kept() -> None:
    """They decide when the grant is spent (L2, L4)."""
    org = Org()
    org.issue("g1", 100, kind=CreditKind.PROMO, priority=7)

    terms = org.grant("g1").terms

    assert (CreditKind.PROMO, 7) == (terms.kind, terms.priority)


def test_a_grant_that_starts_in_the_future_is_there_but_cannot_be_spent_yet() -> None:
    """It is spendable from its start on, to the microsecond (L2, L3)."""
    org = Org()
    org.issue("g1", 100, starts=hours(1))

    org.at(hours(1) - 1)
    assert Parts(available=100) == org.parts("g1")
    assert Refusal(
        Code.INSUFFICIENT_CREDITS, {"asked": 60, "spendable": 0, "short": 60}
    ) == org.refuses(org.asking("h1", 60))

    org.at(hours(1))
    org.reserve("h1", 60)
    assert Parts(available=40, held=60) == org.parts("g1")


def test_a_grant_issued_with_a_start_in_the_past_counts_from_when_it_was_issued() -> None:
    """Its start is kept as told, but it was not there before it was issued (L3, L12)."""
    org = Org()
    org.at(hours(2))
    org.does(ask.issue("g1", 100, starts=hours(1), expires=hours(3)))

    terms = org.grant("g1").terms

    assert (hours(1), hours(2)) == (terms.starts_at, terms.valid_from)
    assert not terms.valid_at(hours(2) - 1)
    assert terms.valid_at(hours(2))
    assert terms.valid_at(hours(3) - 1)
    assert not terms.valid_at(hours(3))


def test_a_payment_reported_twice_is_one_grant() -> None:
    """An external reference is unique in its org, whatever the grant's id (L2)."""
    org = Org()
    org.does(ask.issue("g1", 100, external_ref="invoice 7"))

    again = org.refuses(ask.issue("g2", 100, external_ref="invoice 7"))

    figures = {"external_ref": "invoice 7", "grant": "g1"}
    assert Refusal(Code.EXTERNAL_REF_EXISTS, figures) == again
    org.does(ask.issue("g2", 100, external_ref="invoice 8"))
    org.does(ask.issue("g3", 100))
    org.does(ask.issue("g4", 100))
    org.rebuilds()


def test_a_grant_id_is_used_once() -> None:
    """A second issue under the same id is refused, before its reference is looked at (L7)."""
    org = Org()
    org.does(ask.issue("g1", 100, external_ref="invoice 7"))

    again = org.refuses(ask.issue("g1", 100, external_ref="invoice 7"))

    assert Refusal(Code.ALREADY_EXISTS, {"grant": "g1"}) == again


def test_only_a_known_account_can_own_a_grant() -> None:
    """The owner must exist (L2)."""
    org = Org()

    assert Refusal(Code.ACCOUNT_UNKNOWN, {"account": "nobody"}) == org.refuses(
        ask.issue("g1", 100, to="nobody")
    )


def test_a_policy_can_only_name_known_accounts() -> None:
    """The first unknown one, by name, is told; the owner goes before them (L9)."""
    org = Org()
    accounts = frozenset(AccountId(name) for name in ("zoe", "team", "max"))

    refusal = org.refuses(ask.issue("g1", 100, policy=GrantPolicy(accounts=accounts)))

    assert Refusal(Code.ACCOUNT_UNKNOWN, {"account": "max"}) == refusal


def test_a_grant_must_end_after_it_starts_and_after_now() -> None:
    """A grant that could never be spent is refused (L2)."""
    org = Org()

    for starts, expires in ((hours(1), hours(1)), (hours(2), hours(1)), (hours(-2), T0)):
        figures = {"starts_at": starts, "expires_at": expires}
        assert Refusal(Code.TIME_INVALID, figures) == org.refuses(
            ask.issue("g1", 100, starts=starts, expires=expires)
        )

    figures = {"starts_at": T0, "expires_at": T0}
    assert Refusal(Code.TIME_INVALID, figures) == org.refuses(ask.issue("g1", 100, expires=T0))
    org.does(ask.issue("g1", 100, starts=hours(1), expires=hours(1) + 1))
    org.does(ask.issue("g2", 100, starts=hours(-2), expires=T0 + 1))


def test_precedence_of_refusals_of_an_issue() -> None:
    """Unknown account, known id, known reference, wrong times, too much: in that order (L2)."""
    org = Org()
    org.does(ask.issue("g1", 100, external_ref="invoice 7"))
    too_much = 2**53 - 1

    def code(command: Issue) -> Code:
        return org.refuses(command).code

    assert Code.ACCOUNT_UNKNOWN == code(ask.issue("g1", 100, to="nobody"))
    assert Code.EXTERNAL_REF_EXISTS == code(
        ask.issue("g2", 100, expires=T0, external_ref="invoice 7")
    )
    assert Code.TIME_INVALID == code(ask.issue("g2", too_much, expires=T0))
    assert Code.AMOUNT_TOO_LARGE == code(ask.issue("g2", too_much))
