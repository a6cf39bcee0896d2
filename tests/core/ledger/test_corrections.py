"""Mistakes are corrected by new events, never by changing old ones (L11).

revoke     take back what is available; what is held stays and is revoked when it returns
void       undo a grant as never issued; refused once anything of it was used
extend     let a grant expire later
transfer   move credits to another account of the org, as a new grant on the same terms
reverse    undo a charge, or a part of it
"""

from dataclasses import replace

from bursar.core.budgets.periods import PeriodKind
from bursar.core.ids import AccountId, BudgetId, ChargeId, GrantId, derive_id
from bursar.core.instant import NEVER
from bursar.core.ledger.events import (
    ChargeReversed,
    CreditsMoved,
    GrantExtended,
    GrantRevoked,
    RecurrenceTurned,
)
from bursar.core.ledger.values import BudgetUsage, CreditKind, GrantPolicy, GrantTerms
from bursar.core.refusal import Code, Refusal
from tests.support import commands as ask
from tests.support.builders import PER_MS, T0, Org, Parts, days, gpus, hours, minutes, moves, prices

HOUR_MS = 3_600_000


# Revoke


def test_a_revocation_takes_what_is_available_and_leaves_what_is_held() -> None:
    """The hold goes on; what it returns goes to `revoked` (L11)."""
    org = Org()
    org.issue("g1", 100)
    org.reserve("h1", 60)
    org.later(minutes=1)

    events = org.does(ask.revoke("g1"))

    assert [("g1", "available → revoked", 40, minutes(1))] == moves(events)
    assert (
        GrantRevoked(at=minutes(1), grant=GrantId("g1"), voided=False, postings=events[0].postings),
    ) == events
    org.charge("h1", 25)
    org.release("h1")
    assert Parts(spent=25, revoked=75) == org.parts("g1")
    org.rebuilds()


def test_a_grant_of_which_nothing_is_available_can_be_revoked() -> None:
    """What returns later is still taken (L11)."""
    org = Org()
    org.issue("g1", 100)
    org.reserve("h1", 100)

    assert [] == moves(org.does(ask.revoke("g1")))
    org.refund("h1", 30)

    assert Parts(held=70, revoked=30) == org.parts("g1")


def test_a_revocation_after_the_expiry_finds_only_what_has_lapsed() -> None:
    """The lapse is written first; what lapsed stays lapsed (L3, L11)."""
    org = Org()
    org.issue("g1", 100, expires=hours(1))
    org.reserve("h1", 60)
    org.at(hours(1))

    events = org.does(ask.revoke("g1"))

    assert [("g1", "available → lapsed", 40, hours(1))] == moves(events)
    assert Parts(held=60, lapsed=40) == org.parts("g1")
    org.release("h1")
    assert Parts(lapsed=40, revoked=60) == org.parts("g1")


def test_a_grant_is_revoked_once() -> None:
    """And must exist (L11)."""
    org = Org()
    org.issue("g1", 100)
    org.does(ask.revoke("g1"))

    for command in (ask.revoke("g1"), ask.void("g1")):
        assert Refusal(Code.GRANT_REVOKED, {"grant": "g1"}) == org.refuses(command)
    for command in (ask.revoke("g9"), ask.void("g9")):
        assert Refusal(Code.GRANT_UNKNOWN, {"grant": "g9"}) == org.refuses(command)


def test_a_reversal_of_a_charge_on_a_revoked_grant_is_revoked() -> None:
    """Whatever else the grant is: non-refundable, expired (L11)."""
    for policy in (GrantPolicy(), GrantPolicy(refundable=False)):
        org = Org()
        org.issue("g1", 100, expires=hours(1), policy=policy)
        org.reserve("h1", 60)
        org.charge("h1", 60, "c")
        org.does(ask.revoke("g1"))
        org.at(hours(2))

        events = org.does(ask.reverse("c", reissue_until=hours(9)))

        assert [("g1", "spent → revoked", 60, hours(2))] == moves(events)


# Void


def test_a_grant_that_was_not_used_can_be_undone() -> None:
    """As never issued (L11)."""
    org = Org()
    org.issue("g1", 100)
    org.reserve("h1", 60)
    org.release("h1")

    events = org.does(ask.void("g1"))

    assert [("g1", "available → revoked", 100, T0)] == moves(events)
    assert (
        GrantRevoked(at=T0, grant=GrantId("g1"), voided=True, postings=events[0].postings),
    ) == events
    assert Parts(revoked=100) == org.parts("g1")
    assert org.grant("g1").withdrawn
    org.rebuilds()


def test_a_grant_in_use_cannot_be_undone() -> None:
    """Held, spent or moved: each is enough. A charge-back is revoke + debt (L11)."""
    org = Org()
    org.issue("held", 100)
    org.reserve("h1", 60)
    org.issue("spent", 100, priority=1)
    org.reserve("h2", 60)
    org.settle("h2", 10)
    org.issue("gone", 100)
    org.does(ask.transfer("gone", 30, to="team"))

    def used(grant: str, *, held: int = 0, spent: int = 0, moved: int = 0) -> Refusal:
        figures = {"grant": grant, "held": held, "spent": spent, "moved": moved}
        return Refusal(Code.GRANT_IN_USE, figures)

    assert used("held", held=60) == org.refuses(ask.void("held"))
    assert used("spent", spent=10) == org.refuses(ask.void("spent"))
    assert used("gone", moved=30) == org.refuses(ask.void("gone"))


def test_an_expired_grant_can_be_undone_too() -> None:
    """What has lapsed is as never issued (L11)."""
    org = Org()
    org.issue("g1", 100, expires=hours(1))
    org.at(hours(2))

    events = org.does(ask.void("g1"))

    assert [
        ("g1", "available → lapsed", 100, hours(1)),
        ("g1", "lapsed → revoked", 100, hours(2)),
    ] == moves(events)


def test_forfeited_credits_stay_lapsed() -> None:
    """They were used once; only the rest is undone (L9, L11)."""
    org = Org()
    org.issue("g1", 100, policy=GrantPolicy(refundable=False))
    org.reserve("h1", 60)
    org.charge("h1", 20, "c")
    org.does(ask.reverse("c"))
    org.release("h1")

    assert [("g1", "available → revoked", 80, T0)] == moves(org.does(ask.void("g1")))
    assert Parts(lapsed=20, revoked=80) == org.parts("g1")


# Extend


def test_a_grant_can_expire_later() -> None:
    """What it has, and what comes back to it, lives longer (L11)."""
    org = Org()
    org.issue("g1", 100, expires=hours(1))
    org.reserve("h1", 60)
    org.at(hours(1) - 1)

    events = org.does(ask.extend_grant("g1", until=hours(3)))

    assert (GrantExtended(at=hours(1) - 1, grant=GrantId("g1"), expires_at=hours(3)),) == events
    org.at(hours(2))
    org.release("h1")
    assert Parts(available=100) == org.parts("g1")
    org.at(hours(3))
    assert Parts(lapsed=100) == org.parts("g1")
    org.rebuilds()


def test_a_grant_can_be_made_to_never_expire() -> None:
    """Never is later than any instant (L11)."""
    org = Org()
    org.issue("g1", 100, expires=hours(1))

    org.does(ask.extend_grant("g1", until=NEVER))

    org.at(days(9_999))
    assert Parts(available=100) == org.parts("g1")


def test_an_expiry_moves_to_later_only() -> None:
    """Neither to earlier nor to where it is; that is asked first (L11)."""
    org = Org()
    org.issue("g1", 100, expires=hours(1))
    org.issue("g2", 100, expires=hours(1))
    org.does(ask.revoke("g2"))

    for grant in ("g1", "g2"):
        for until in (hours(1) - 1, hours(1)):
            figures = {"expires_at": until, "present_expires_at": hours(1)}
            assert Refusal(Code.TIME_INVALID, figures) == org.refuses(
                ask.extend_grant(grant, until=until)
            )
    assert Refusal(Code.GRANT_UNKNOWN, {"grant": "g9"}) == org.refuses(
        ask.extend_grant("g9", until=hours(2))
    )


def test_the_dead_are_not_revived() -> None:
    """Revoked is asked before expired; the expiry counts to the microsecond (L11)."""
    org = Org()
    org.issue("g1", 100, expires=hours(1))
    org.issue("g2", 100, expires=hours(1))
    org.does(ask.revoke("g2"))
    org.at(hours(1))

    expired = Refusal(Code.GRANT_EXPIRED, {"grant": "g1", "expires_at": hours(1)})
    revoked = Refusal(Code.GRANT_REVOKED, {"grant": "g2"})
    assert expired == org.refuses(ask.extend_grant("g1", until=hours(2)))
    assert revoked == org.refuses(ask.extend_grant("g2", until=hours(2)))
    assert expired == org.refuses(ask.transfer("g1", 1, to="team"))
    assert revoked == org.refuses(ask.transfer("g2", 1, to="team"))


# Transfer


def test_a_transfer_is_a_new_grant_on_the_same_terms() -> None:
    """It names its parent and keeps kind, priority, start, expiry and policy (L11)."""
    org = Org()
    policy = GrantPolicy(regions=frozenset({"eu"}), max_share_ppm=500_000, refundable=False)
    org.issue(
        "g1",
        100,
        kind=CreditKind.PROMO,
        priority=7,
        starts=minutes(5),
        expires=hours(9),
        policy=policy,
    )
    org.later(minutes=1)

    events = org.does(ask.transfer("g1", 30, to="team", new="g2"))

    terms = GrantTerms(
        id=GrantId("g2"),
        account=AccountId("team"),
        kind=CreditKind.PROMO,
        source="transfer",
        priority=7,
        issued_at=minutes(1),
        starts_at=minutes(5),
        expires_at=hours(9),
        amount=30,
        policy=policy,
        parent=GrantId("g1"),
    )
    assert (
        CreditsMoved(at=minutes(1), grant=GrantId("g1"), terms=terms, postings=events[0].postings),
    ) == events
    assert [
        ("g1", "available → moved", 30, minutes(1)),
        ("g2", "new → available", 30, minutes(1)),
    ] == moves(events)
    assert Parts(available=70, moved=30) == org.parts("g1")
    assert Parts(available=30) == org.parts("g2")
    org.rebuilds()


def test_a_transfer_keeps_neither_the_reference_nor_the_recurrence() -> None:
    """Those belong to the grant that was issued (L2, L20)."""
    org = Org()
    org.does(ask.issue("g1", 100, external_ref="invoice 7", source="card"))
    (started,) = (
        event.issued[0].id
        for event in org.does(ask.recur("r1", 50))
        if isinstance(event, RecurrenceTurned)
    )

    org.does(ask.transfer("g1", 30, to="team", new="g2"))
    org.does(ask.transfer(started, 30, to="team", new="g3"))

    assert (None, "g1") == (org.grant("g2").terms.external_ref, org.grant("g2").terms.parent)
    assert (None, started) == (org.grant("g3").terms.recurrence, org.grant("g3").terms.parent)


def test_a_transfer_creates_and_destroys_nothing() -> None:
    """All of it can be moved, down and up and to the side (IL2)."""
    org = Org()
    org.issue("g1", 100, to="project")

    org.does(ask.transfer("g1", 100, to="org", new="g2"))
    org.does(ask.transfer("g2", 40, to="team", new="g3"))

    assert Parts(moved=100) == org.parts("g1")
    assert Parts(available=60, moved=40) == org.parts("g2")
    assert 100 == org.journal.books.header.issued
    org.reserve("h1", 60, by="org")
    org.reserve("h2", 40, by="team")


def test_only_what_is_available_can_be_moved() -> None:
    """What is held stays where it is (L11)."""
    org = Org()
    org.issue("g1", 100)
    org.reserve("h1", 60)

    refusal = org.refuses(ask.transfer("g1", 41, to="team"))

    assert Refusal(Code.EXCEEDS_GRANT, {"available": 40, "asked": 41}) == refusal


def test_precedence_of_refusals_of_a_transfer() -> None:
    """Account, grant, new id, dead grant, amount: in that order (L11)."""
    org = Org()
    org.issue("g1", 100)
    org.issue("g2", 100)
    org.does(ask.revoke("g2"))

    def refusal(grant: str, to: str, new: str) -> Refusal:
        return org.refuses(ask.transfer(grant, 101, to=to, new=new))

    assert Refusal(Code.ACCOUNT_UNKNOWN, {"account": "nobody"}) == refusal("g9", "nobody", "g1")
    assert Refusal(Code.GRANT_UNKNOWN, {"grant": "g9"}) == refusal("g9", "team", "g1")
    assert Refusal(Code.ALREADY_EXISTS, {"grant": "g1"}) == refusal("g2", "team", "g1")
    assert Refusal(Code.GRANT_REVOKED, {"grant": "g2"}) == refusal("g2", "team", "g3")


# Reverse


def test_a_reversed_charge_goes_back_to_its_grants() -> None:
    """Last in spend order first; available again while the grant lives (L11)."""
    org = Org()
    org.issue("g1", 50, expires=hours(5))
    org.issue("g2", 100)
    org.reserve("h1", 120)
    org.charge("h1", 80, "c")
    org.later(minutes=1)

    events = org.does(ask.reverse("c"))

    assert [
        ("g2", "spent → available", 30, minutes(1)),
        ("g1", "spent → available", 50, minutes(1)),
    ] == moves(events)
    assert (
        ChargeReversed(
            at=minutes(1),
            charge=ChargeId("c"),
            amount=80,
            forgiven=0,
            postings=events[0].postings,
        ),
    ) == events
    assert Parts(available=50) == org.parts("g1")
    assert Parts(available=60, held=40) == org.parts("g2")
    org.rebuilds()


def test_a_reversal_is_not_un_usage() -> None:
    """Running total, meters and shares stay; the hold gets nothing back (L11)."""
    org = Org(prices(h100=PER_MS))
    org.issue("promo", 100, kind=CreditKind.PROMO, policy=GrantPolicy(max_share_ppm=500_000))
    org.issue("paid", 100)
    org.reserve("h1", 100, context=gpus("h100"))
    org.does(ask.read("h1", 40, "c"))

    org.does(ask.reverse("c"))

    hold = org.hold("h1")
    assert (40, 60) == (hold.used, hold.open)
    assert (40, 40) == (hold.meters[0][1].run_ms, hold.meters[0][1].charged)
    assert [(20, 20), (20, 20)] == [(draw.charged, draw.undone) for draw in hold.draws]
    assert () == org.reading("h1", 40)
    org.reading("h1", 60)
    assert Parts(available=70, held=20, spent=10) == org.parts("promo")
    assert Parts(available=70, held=20, spent=10) == org.parts("paid")


def test_a_part_can_be_reversed_and_then_the_rest_but_not_more() -> None:
    """At most what is left of the charge; twice is once (L11, IL15)."""
    org = Org()
    org.issue("g1", 50, expires=hours(5))
    org.issue("g2", 100)
    org.reserve("h1", 120)
    org.charge("h1", 80, "c")
    org.charge("h1", 10, "other")

    assert [("g2", "spent → available", 20, T0)] == moves(org.does(ask.reverse("c", 20)))
    assert [("g2", "spent → available", 10, T0), ("g1", "spent → available", 15, T0)] == moves(
        org.does(ask.reverse("c", 25))
    )
    assert Refusal(Code.EXCEEDS_CHARGE, {"reversible": 35, "asked": 36}) == org.refuses(
        ask.reverse("c", 36)
    )
    assert [("g1", "spent → available", 35, T0)] == moves(org.does(ask.reverse("c")))
    for amount, asked in ((None, 0), (1, 1)):
        assert Refusal(Code.EXCEEDS_CHARGE, {"reversible": 0, "asked": asked}) == org.refuses(
            ask.reverse("c", amount)
        )
    assert Parts(available=60, held=30, spent=10) == org.parts("g2")
    org.rebuilds()


def test_a_charge_of_a_closed_hold_can_be_reversed() -> None:
    """It must only be known (L11)."""
    org = Org()
    org.issue("g1", 100)
    org.reserve("h1", 60)
    org.charge("h1", 20, "c")
    org.release("h1")

    org.does(ask.reverse("c"))

    assert Parts(available=100) == org.parts("g1")
    assert Refusal(Code.CHARGE_UNKNOWN, {"charge": "c9"}) == org.refuses(
        ask.reverse("c9", reissue_until=T0)
    )


def test_a_reversal_lapses_where_the_grant_has_expired() -> None:
    """To the microsecond (L11)."""
    for instant, lands in ((hours(1) - 1, "available"), (hours(1), "lapsed")):
        org = Org()
        org.issue("g1", 100, expires=hours(1))
        org.reserve("h1", 60)
        org.charge("h1", 60, "c")
        org.at(instant)

        events = org.does(ask.reverse("c"))

        assert ("g1", f"spent → {lands}", 60, instant) == moves(events)[-1]


def test_reversed_credits_of_an_expired_grant_can_be_issued_again() -> None:
    """A new grant with the same owner, kind, priority and policy, for each expired one (L11)."""
    org = Org()
    policy = GrantPolicy(regions=frozenset({"eu"}))
    org.issue(
        "old", 50, to="team", kind=CreditKind.PROMO, priority=3, expires=hours(1), policy=policy
    )
    org.issue("alive", 100, expires=hours(9))
    org.reserve("h1", 80, context=gpus(region="eu"))
    org.charge("h1", 80, "c")
    org.at(hours(2))

    events = org.does(ask.reverse("c", 60, reissue_until=hours(20)))

    reversed_ = events[-1]
    assert isinstance(reversed_, ChargeReversed)
    (new,) = reversed_.issued
    assert [
        ("alive", "spent → available", 30, hours(2)),
        ("old", "spent → lapsed", 30, hours(2)),
        (new.id, "new → available", 30, hours(2)),
    ] == moves(events)
    old = org.grant("old").terms
    assert (
        replace(
            old,
            id=new.id,
            source="re-issue",
            issued_at=hours(2),
            starts_at=hours(2),
            expires_at=hours(20),
            amount=30,
            parent=GrantId("old"),
        )
        == new
    )
    assert Parts(available=30) == org.parts(new.id)
    assert 180 == org.journal.books.header.issued

    again = org.does(ask.reverse("c", 20, reissue_until=hours(20)))[-1]
    assert isinstance(again, ChargeReversed)
    assert new.id != again.issued[0].id
    assert 20 == again.issued[0].amount
    org.rebuilds()


def test_reissued_credits_keep_neither_reference_nor_recurrence() -> None:
    """Those belong to the original grant (L2, L11, L20)."""
    org = Org()
    org.does(ask.issue("g1", 30, expires=hours(1), external_ref="invoice 7"))
    org.does(ask.recur("r1", 50, PeriodKind.DAY))
    org.reserve("h1", 80)
    org.charge("h1", 80, "c")
    org.at(days(2))

    event = org.does(ask.reverse("c", reissue_until=days(9)))[-1]

    assert isinstance(event, ChargeReversed)
    assert [(50, None, None), (30, None, None)] == [
        (terms.amount, terms.external_ref, terms.recurrence) for terms in event.issued
    ]
    org.rebuilds()


def test_the_id_of_what_is_issued_again_follows_from_the_charge() -> None:
    """And from what the grant had left of it: the same on every replay (L1, L11)."""
    org = Org()
    org.issue("g1", 100, expires=hours(1))
    org.reserve("h1", 60)
    org.charge("h1", 60, "c")
    org.at(hours(2))

    event = org.does(ask.reverse("c", reissue_until=hours(9)))[-1]

    assert isinstance(event, ChargeReversed)
    assert [derive_id("c", "reissued/g1/60")] == [terms.id for terms in event.issued]


def test_credits_are_issued_again_until_some_time_after_now() -> None:
    """Asked before it is looked at what is left of the charge (L11)."""
    org = Org()
    org.issue("g1", 100)
    org.reserve("h1", 60)
    org.charge("h1", 60, "c")

    for until in (T0 - 1, T0):
        figures = {"reissue_until": until, "now": T0}
        assert Refusal(Code.TIME_INVALID, figures) == org.refuses(
            ask.reverse("c", 999, reissue_until=until)
        )
    events = org.does(ask.reverse("c", reissue_until=T0 + 1))
    assert [("g1", "spent → available", 60, T0)] == moves(events)


def test_a_reversal_takes_off_first_the_debt_that_the_charge_made() -> None:
    """As far as it is still owed; the operator absorbs it, the running total stays (L11, L13)."""
    org = Org()
    org.issue("g1", 100)
    org.reserve("h1", 100)
    org.charge("h1", 130, "c")

    events = org.does(ask.reverse("c", 50))

    assert [("g1", "spent → available", 20, T0)] == moves(events)
    reversed_ = events[0]
    assert isinstance(reversed_, ChargeReversed)
    assert (50, 30) == (reversed_.amount, reversed_.forgiven)
    hold = org.hold("h1")
    assert (130, 0, 30) == (hold.used, hold.owed, hold.absorbed)
    org.settle("h1", 130)
    assert 0 == org.owed("h1")
    assert Refusal(Code.EXCEEDS_CHARGE, {"reversible": 80, "asked": 81}) == org.refuses(
        ask.reverse("c", 81)
    )
    org.rebuilds()


def test_a_part_of_the_debt_can_be_reversed_alone() -> None:
    """Nothing moves in the grants (L11, L13)."""
    org = Org()
    org.issue("g1", 100)
    org.reserve("h1", 100)
    org.charge("h1", 130, "c")

    assert [] == moves(org.does(ask.reverse("c", 12)))
    assert 18 == org.owed("h1")
    org.does(ask.absorb("h1", 10))
    assert [("g1", "spent → available", 2, T0)] == moves(org.does(ask.reverse("c", 10)))
    assert 0 == org.owed("h1")


def test_what_was_given_back_cannot_be_reversed_as_well() -> None:
    """The hold's charges, the latest first, have that much less left (L11, M3)."""
    org = Org(prices(h100=PER_MS))
    org.issue("g1", 200)
    org.reserve("h1", 150, context=gpus("h100"))
    org.does(ask.read("h1", 60, "c1"))
    org.does(ask.read("h1", 100, "c2"))
    org.does(ask.give_back("h1", kept_ms=45))

    for charge, left in (("c2", 0), ("c1", 45)):
        assert Refusal(Code.EXCEEDS_CHARGE, {"reversible": left, "asked": 46}) == org.refuses(
            ask.reverse(charge, 46)
        )
    assert [("g1", "spent → available", 45, T0)] == moves(org.does(ask.reverse("c1")))
    assert Parts(available=95, held=105) == org.parts("g1")
    org.rebuilds()


def test_reversing_takes_usage_off_the_budgets_the_latest_period_first() -> None:
    """A charge over midnight counted on two days; what is undone leaves the second first (L11)."""
    org = Org(prices(h100=PER_MS))
    org.issue("g1", 10 * HOUR_MS)
    org.budget("b1", 10 * HOUR_MS, PeriodKind.DAY, account="team")
    org.at(hours(23))
    org.reserve("h1", 3 * HOUR_MS, context=gpus("h100"))
    org.at(hours(25))
    org.does(ask.read("h1", 2 * HOUR_MS, "c"))

    def off(amount: int) -> tuple[BudgetUsage, ...]:
        event = org.does(ask.reverse("c", amount))[0]
        assert isinstance(event, ChargeReversed)
        return event.counted

    def on(start: int, amount: int) -> BudgetUsage:
        return BudgetUsage(budget=BudgetId("b1"), user=None, start=start, amount=amount)

    assert (on(days(1), HOUR_MS), on(T0, 400_000)) == off(HOUR_MS + 400_000)
    assert (on(T0, HOUR_MS - 400_000),) == off(HOUR_MS - 400_000)
    org.rebuilds()


def test_a_budget_has_room_again_after_a_reversal() -> None:
    """Its counter goes down (L11, B3)."""
    org = Org()
    org.issue("g1", 1_000)
    org.budget("b1", 100, account="team")
    org.reserve("h1", 100)
    org.charge("h1", 100, "c")
    org.refuses(org.asking("h2", 1))

    org.does(ask.reverse("c", 40))

    org.reserve("h2", 40)
    org.refuses(org.asking("h3", 1))


def test_the_last_micro_credit_of_a_charge_leaves_the_budget_too() -> None:
    """A charge knows where it counts until nothing of it is left (L11, B5)."""
    org = Org()
    org.issue("g1", 1_000)
    org.budget("b1", 100, account="team")
    org.reserve("h1", 60)
    org.charge("h1", 60, "c")

    org.does(ask.reverse("c", 59))
    assert 1 == org.counted("b1")
    org.does(ask.reverse("c", 1))
    assert 0 == org.counted("b1")
    left = org.journal.books.charges.get(ChargeId("c"))
    assert left is not None
    assert () == left.counted
