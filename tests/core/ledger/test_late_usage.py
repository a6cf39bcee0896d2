"""Usage that became known late is booked as if it had been known in time, as far as it can (L12).

It is paid, in turn, by
1. the hold's own returned draws, available or lapsed since;
2. grants that were valid when it happened;
3. what is available now (an extension), then debt, then the operator (`test_debt`).
In 1 and 2 never more than a grant had free at every instant since: so every past view of the books
stays right, with no compartment negative.
"""

from collections.abc import Callable

import pytest

from bursar.core.budgets.periods import PeriodKind
from bursar.core.ids import AccountId, BudgetId, ChargeId, GrantId, HoldId
from bursar.core.instant import HOUR, Instant
from bursar.core.ledger.balance import balance
from bursar.core.ledger.commands import Command
from bursar.core.ledger.events import ChargeBooked, Event
from bursar.core.ledger.history import view_grants
from bursar.core.ledger.values import BudgetUsage, Context, CreditKind, Draw, GrantPolicy, OrgPolicy
from bursar.core.metering import Meter
from bursar.core.money import AMOUNT_MAX
from bursar.core.refusal import Code, Refusal
from tests.support import commands as ask
from tests.support.builders import PER_MS, T0, Org, Parts, days, gpus, hours, minutes, moves, prices

HALF = GrantPolicy(max_share_ppm=500_000)


def seen(org: Org, grant: str, at: Instant, known_at: Instant | None = None) -> Parts:
    """A grant as of an instant, as known at another (now, if not told)."""
    views = view_grants(org.journal.events, at, org.now if known_at is None else known_at)
    return Parts(**{part.value: found for part, found in views[GrantId(grant)].parts.items()})


def history_holds(org: Org) -> None:
    """Every view of every past instant adds up, whenever it is looked from; or `View` breaks."""
    instants = sorted(
        {event.at for event in org.journal.events}
        | {one.effective_at for event in org.journal.events for one in event.postings}
    )
    for at in instants:
        for known_at in instants:
            view_grants(org.journal.events, at, known_at)
            view_grants(org.journal.events, at - 1, known_at)
    org.rebuilds()


def booked(events: tuple[Event, ...]) -> ChargeBooked:
    """The charge among the events."""
    (found,) = (event for event in events if isinstance(event, ChargeBooked))
    return found


# 1. The hold's own returned draws


def test_late_usage_goes_first_to_what_its_hold_returned() -> None:
    """Effective when it came back, or when the usage was, if that is later (L12)."""
    org = Org()
    org.issue("g1", 100)
    org.reserve("h1", 60)
    org.at(hours(1))
    org.settle("h1", 20)
    org.at(hours(2))

    events = org.late("h1", 30, when=minutes(30), charge="late")

    assert [("g1", "available → spent", 30, hours(1))] == moves(events)
    assert (
        ChargeBooked(
            at=hours(2),
            charge=ChargeId("late"),
            hold=HoldId("h1"),
            used=50,
            amount=30,
            effective_at=minutes(30),
            own=((GrantId("g1"), 30),),
            late=True,
            postings=events[0].postings,
        ),
    ) == events
    hold = org.hold("h1")
    assert (50, 0, hours(1)) == (hold.used, hold.open, hold.closed_at)
    assert (
        Draw(grant=GrantId("g1"), drawn=60, charged=50, returned=10, returned_at=hours(1)),
    ) == hold.draws
    assert Parts(available=50, spent=50) == org.parts("g1")
    history_holds(org)


def test_usage_after_the_return_is_effective_when_it_happened() -> None:
    """The later of the two instants (L12)."""
    org = Org()
    org.issue("g1", 100)
    org.reserve("h1", 60)
    org.release("h1")
    org.at(hours(2))

    assert [("g1", "available → spent", 30, hours(1))] == moves(org.late("h1", 30, when=hours(1)))


def test_a_late_charge_on_lapsed_credits_is_two_postings() -> None:
    """The lapse is undone at the expiry, then the credits are spent (L12)."""
    org = Org()
    org.issue("g1", 100, expires=hours(3))
    org.reserve("h1", 60)
    org.at(hours(1))
    org.settle("h1", 20)
    org.at(hours(5))

    events = org.late("h1", 30, when=minutes(30))

    assert [
        ("g1", "available → lapsed", 80, hours(3)),
        ("g1", "lapsed → available", 30, hours(3)),
        ("g1", "available → spent", 30, hours(1)),
    ] == moves(events)
    assert Parts(spent=50, lapsed=50) == org.parts("g1")
    assert Parts(available=50, spent=50) == seen(org, "g1", hours(3) - 1)
    assert Parts(spent=50, lapsed=50) == seen(org, "g1", hours(3))
    assert Parts(available=80, spent=20) == seen(org, "g1", hours(3) - 1, known_at=hours(4))
    assert Parts(spent=20, lapsed=80) == seen(org, "g1", hours(3), known_at=hours(4))
    history_holds(org)


def test_a_lapse_after_the_expiry_is_undone_when_the_credits_are_spent() -> None:
    """It lapsed on its return, later than the expiry; so does the undoing (L10, L12)."""
    org = Org()
    org.issue("g1", 100, expires=hours(3))
    org.reserve("h1", 60)
    org.at(hours(4))
    org.settle("h1", 20)
    org.at(hours(5))

    events = org.late("h1", 30, when=minutes(30))

    assert [
        ("g1", "lapsed → available", 30, hours(4)),
        ("g1", "available → spent", 30, hours(4)),
    ] == moves(events)
    assert Parts(spent=50, lapsed=50) == org.parts("g1")
    history_holds(org)


def test_returned_draws_pay_in_spend_order() -> None:
    """Each up to what it returned (L4, L12)."""
    org = Org()
    org.issue("a", 50)
    org.issue("b", 100)
    org.reserve("h1", 80)
    org.release("h1")

    events = org.late("h1", 70, when=T0)

    assert [("a", "available → spent", 50, T0), ("b", "available → spent", 20, T0)] == moves(events)
    assert ((GrantId("a"), 50), (GrantId("b"), 20)) == booked(events).own


def test_credits_that_another_hold_had_meanwhile_are_not_free() -> None:
    """Never more than was free at every instant since, though all of it is free now (L12)."""
    org = Org()
    org.issue("g1", 60)
    org.reserve("h1", 60)
    org.release("h1")
    org.at(hours(1))
    org.reserve("h2", 40)
    org.at(hours(2))
    org.release("h2")
    org.at(hours(3))

    events = org.late("h1", 50, when=T0)

    assert [
        ("g1", "available → spent", 20, T0),  # its own: 20 were free all the time
        ("g1", "available → spent", 30, hours(3)),  # an extension: what is available now
    ] == moves(events)
    assert ((GrantId("g1"), 20),) == booked(events).own
    assert Parts(spent=50, available=10) == org.parts("g1")
    history_holds(org)


# 2. Grants that were valid then


def test_then_come_grants_that_were_valid_when_it_happened() -> None:
    """Effective when it happened, expired or not, in spend order (L12)."""
    org = Org()
    org.issue("base", 10)
    org.reserve("h1", 10)
    org.issue("soon", 30, expires=hours(2))
    org.issue("never", 100)
    org.at(hours(1))
    org.settle("h1", 10)
    org.at(hours(3))

    events = org.late("h1", 50, when=minutes(30))

    assert [
        ("soon", "available → lapsed", 30, hours(2)),
        ("soon", "lapsed → available", 30, hours(2)),
        ("soon", "available → spent", 30, minutes(30)),
        ("never", "available → spent", 20, minutes(30)),
    ] == moves(events)
    assert () == booked(events).own
    assert Parts(spent=30) == org.parts("soon")
    assert Parts(available=80, spent=20) == org.parts("never")
    history_holds(org)


def test_a_grant_that_was_not_valid_then_can_only_extend() -> None:
    """Issued or started later, or expired before: it is not spent in the past (L12)."""
    org = Org()
    org.issue("base", 10, priority=1)
    org.reserve("h1", 10)
    org.settle("h1", 10)
    org.issue("expired before", 100, expires=minutes(20))
    org.issue("at its expiry", 100, expires=minutes(30))
    org.issue("came and went", 100, starts=minutes(31), expires=minutes(50))
    org.issue("starts later", 100, starts=minutes(30) + 1)
    org.at(hours(1))
    org.issue("issued later", 100, priority=1)

    events = org.late("h1", 150, when=minutes(30))

    assert [
        ("issued later", "available → spent", 100, hours(1)),
        ("starts later", "available → spent", 50, hours(1)),
    ] == moves(events)
    history_holds(org)


def test_a_grant_valid_exactly_then_pays() -> None:
    """Its start is inclusive (L3, L12)."""
    org = Org()
    org.issue("g1", 100, starts=minutes(30), expires=minutes(30) + 1)
    org.at(minutes(1))
    org.issue("g2", 5)
    org.reserve("h1", 5)
    org.release("h1")
    org.at(hours(1))

    events = org.late("h1", 20, when=minutes(30))

    assert [("g2", 5), ("g1", 15)] == [
        (grant, amount) for grant, how, amount, _ in moves(events) if how == "available → spent"
    ]


def test_a_grant_that_has_expired_just_now_pays_for_what_was_before() -> None:
    """At the very instant of its expiry it is gone, and was free until then (L12)."""
    org = Org()
    org.issue("own", 10, priority=1)
    org.issue("then", 50, expires=hours(3))
    org.reserve("h1", 10)
    org.settle("h1", 10)
    org.at(hours(3))

    events = org.late("h1", 20, when=hours(1))

    assert [
        ("then", "available → lapsed", 50, hours(3)),
        ("then", "lapsed → available", 20, hours(3)),
        ("then", "available → spent", 20, hours(1)),
    ] == moves(events)


def test_the_last_micro_credit_is_paid_by_what_was_valid_then_too() -> None:
    """Be it what one grant leaves for the next, or all there is to pay (L12)."""
    org = Org()
    org.issue("own", 10, priority=1)
    org.issue("a", 20, expires=hours(2))
    org.issue("b", 20, expires=hours(2))
    org.reserve("h1", 10)
    org.charge("h1", 10)
    org.at(hours(3))

    org.late("h1", 21, when=hours(1))
    org.late("h1", 1, when=hours(1))

    assert Parts(spent=20) == org.parts("a")
    assert Parts(spent=2, lapsed=18) == org.parts("b")
    assert 0 == org.owed("h1")


def test_an_expired_grant_of_named_accounts_pays_for_those_below_them() -> None:
    """Its policy is asked as it would have been then (L9, L12)."""
    org = Org()
    org.issue("own", 10, priority=1)
    for name in ("team", "project"):
        policy = GrantPolicy(accounts=frozenset({AccountId(name)}))
        org.issue(name, 50, expires=hours(2), policy=policy)
    org.reserve("h1", 10, by="team")
    org.charge("h1", 10)
    org.at(hours(3))

    org.late("h1", 70, when=hours(1))

    assert (50, 0) == (org.parts("team").spent, org.parts("project").spent)
    assert 20 == org.owed("h1")


def test_only_what_was_free_at_every_instant_since_is_spent_then() -> None:
    """What was held, moved or spent in between was not free (L12)."""
    org = Org()
    org.issue("base", 10, priority=1)
    org.reserve("h1", 10)
    org.issue("g1", 100)
    org.at(hours(1))
    org.reserve("other", 70)
    org.at(hours(2))
    org.release("other")

    events = org.late("h1", 50, when=minutes(30))

    assert [
        ("base", "held → spent", 10, hours(2)),
        ("g1", "available → spent", 30, minutes(30)),
        ("g1", "available → spent", 10, hours(2)),
    ] == moves(events)
    assert Parts(available=60, spent=40) == org.parts("g1")
    history_holds(org)


def test_the_same_grant_can_pay_as_an_own_draw_and_as_one_valid_then() -> None:
    """What was decided in the first step counts in the second (L12)."""
    org = Org()
    org.issue("g1", 100)
    org.reserve("h1", 60)
    org.at(hours(1))
    org.release("h1")
    org.at(hours(2))
    org.issue("not yet", 100, starts=days(1))

    events = org.late("h1", 90, when=minutes(30), charge="late")

    assert [
        ("g1", "available → spent", 60, hours(1)),
        ("g1", "available → spent", 30, minutes(30)),
    ] == moves(events)
    assert ((GrantId("g1"), 60),) == booked(events).own
    assert Parts(available=10, spent=90) == org.parts("g1")
    assert Parts(available=10, held=60, spent=30) == seen(org, "g1", minutes(45))
    history_holds(org)
    assert [("g1", "spent → available", 90, hours(2))] == moves(org.does(ask.reverse("late")))


def test_three_steps_on_one_grant_never_take_more_than_it_has() -> None:
    """Returned, valid then, available now: the sum is what there is (L12, L13)."""
    org = Org()
    org.issue("g1", 100)
    org.reserve("h1", 60)
    org.at(hours(1))
    org.release("h1")
    org.reserve("h2", 30)
    org.at(hours(2))
    org.release("h2")

    events = org.late("h1", 120, when=minutes(30))

    assert [
        ("g1", "available → spent", 60, hours(1)),
        ("g1", "available → spent", 10, minutes(30)),
        ("g1", "available → spent", 30, hours(2)),
    ] == moves(events)
    assert 20 == org.owed("h1")
    history_holds(org)


def test_policies_count_for_late_usage_too() -> None:
    """A grant that does not admit the hold's context pays nothing, expired or not (L9, L12)."""
    org = Org()
    eu = GrantPolicy(regions=frozenset({"eu"}))
    org.issue("gone", 100, expires=minutes(45), policy=eu)
    org.issue("alive", 100, policy=eu)
    org.issue("base", 10)
    org.reserve("h1", 10, context=Context(region="us"))
    org.at(hours(1))

    org.late("h1", 30, when=minutes(30))

    assert Parts(lapsed=100) == org.parts("gone")
    assert Parts(available=100) == org.parts("alive")
    assert 20 == org.owed("h1")


def test_shares_hold_in_every_step() -> None:
    """At the new running total: half of 100 (L9, L12)."""
    org = Org()
    org.issue("promo", 500, kind=CreditKind.PROMO, policy=HALF)
    org.issue("paid", 500)
    org.reserve("h1", 80)
    org.at(hours(1))
    org.settle("h1", 20)
    org.at(hours(2))

    org.late("h1", 80, when=minutes(30))

    assert Parts(available=450, spent=50) == org.parts("promo")
    assert Parts(available=450, spent=50) == org.parts("paid")
    history_holds(org)


# 3. What nobody can pay


def test_debt_stops_an_extension_but_not_what_was_free_then() -> None:
    """The past is paid from the past; only step 3 asks about debts (L12, L13)."""
    org = Org()
    org.issue("g1", 50)
    org.reserve("h1", 30)
    org.release("h1")
    org.at(hours(1))
    org.issue("new", 50)
    org.does(ask.book_debt("d1", 500))

    org.late("h1", 70, when=T0)

    assert Parts(spent=50) == org.parts("g1")
    assert Parts(available=50) == org.parts("new")
    assert 20 == org.owed("h1")


def test_late_usage_that_comes_in_time_is_as_if_it_had_been_known() -> None:
    """If nothing else wanted the credits, the compartments are the same (IL21)."""

    def org_with(*, late: bool) -> Org:
        org = Org()
        org.issue("a", 50, expires=hours(2))
        org.issue("b", 100)
        org.reserve("h1", 80)
        org.at(hours(1))
        org.settle("h1", 10 if late else 70)
        org.at(hours(4))
        if late:
            org.late("h1", 60, when=minutes(30))
        return org

    late, on_time = org_with(late=True), org_with(late=False)

    assert [on_time.parts(grant) for grant in ("a", "b")] == [
        late.parts(grant) for grant in ("a", "b")
    ]
    assert Parts(spent=50) == late.parts("a")
    history_holds(late)


# Open holds and readings


def test_on_an_open_hold_the_open_draws_pay_first() -> None:
    """They were set aside for it (L12)."""
    org = Org()
    org.issue("a", 50)
    org.issue("b", 50)
    org.reserve("h1", 80)
    org.refund("h1", 50)
    org.at(hours(1))

    events = org.late("h1", 70, when=T0)

    assert [
        ("a", "held → spent", 30, hours(1)),
        ("a", "available → spent", 20, T0),
        ("b", "available → spent", 20, T0),
    ] == moves(events)
    assert ((GrantId("a"), 20), (GrantId("b"), 20)) == booked(events).own
    assert 0 == org.hold("h1").open


def test_a_late_reading_is_effective_where_its_new_stretch_begins() -> None:
    """A settled attempt takes it, the meter goes on (L12, M2)."""
    org = Org(prices(h100=PER_MS))
    org.issue("g1", 1_000)
    org.reserve("h1", run_ms=500, context=gpus("h100"))
    org.at(T0 + 400_000)
    org.does(ask.settle("h1", run_ms=100))
    org.at(hours(1))

    events = org.does(ask.late_reading("h1", 150))

    meter = Meter(
        gpu_type="h100",
        started_at=T0,
        rate=PER_MS,
        milli_gpus=1_000,
        run_ms=150,
        charged=150,
        settled=True,
    )
    charge = booked(events)
    assert (50, T0 + 100_000, 1, meter) == (
        charge.amount,
        charge.effective_at,
        charge.attempt,
        charge.meter,
    )
    assert [("g1", "available → spent", 50, T0 + 400_000)] == moves(events)
    assert 150 == org.hold("h1").used
    history_holds(org)


def test_a_late_reading_that_brings_nothing_new_does_nothing() -> None:
    """However late it is (M2, L12)."""
    org = Org(prices(h100=PER_MS))
    org.issue("g1", 1_000)
    org.reserve("h1", run_ms=500, context=gpus("h100"))
    org.does(ask.settle("h1", run_ms=100))
    for instant in (hours(1), days(99)):
        org.at(instant)
        assert () == org.does(ask.late_reading("h1", 100))
        assert () == org.does(ask.late_reading("h1", 0))


def test_a_reading_ahead_of_the_clock_is_effective_now() -> None:
    """The new stretch cannot begin in the future (L12)."""
    org = Org(prices(h100=PER_MS))
    org.issue("g1", 1_000)
    org.reserve("h1", run_ms=500, context=gpus("h100"))
    org.does(ask.settle("h1", run_ms=100))

    assert T0 == booked(org.does(ask.late_reading("h1", 150))).effective_at


def test_a_late_reading_of_an_attempt_that_was_never_read_counts_from_its_start() -> None:
    """A hold for one type has attempt 1 from when it was opened, closed or not (L12)."""
    org = Org(prices(h100=PER_MS))
    org.issue("g1", 1_000)
    org.reserve("h1", run_ms=500, context=gpus("h100"))
    org.release("h1")
    org.at(hours(1))

    charge = booked(org.does(ask.late_reading("h1", 150)))

    assert ("late", 150, T0) == (charge.charge, charge.amount, charge.effective_at)
    assert not org.hold("h1").meters[0][1].settled


def test_a_late_reading_of_no_time_books_nothing() -> None:
    """An attempt that was never read has run for no time yet (L12, M2)."""
    org = Org(prices(h100=PER_MS))
    org.issue("g1", 1_000)
    org.reserve("h1", run_ms=500, context=gpus("h100"))
    org.later(hours=1)

    assert () == org.does(ask.late_reading("h1", 0))


# Budgets


def test_late_usage_counts_in_the_budgets_where_it_was_effective() -> None:
    """Not where it became known (B5, L12)."""
    org = Org()
    org.issue("g1", 1_000)
    org.budget("b1", 100, PeriodKind.DAY, account="team")
    org.reserve("h1", 50)
    org.release("h1")
    org.at(days(2))

    events = org.late("h1", 120, when=hours(5))

    charge = booked(events)
    assert (BudgetUsage(budget=BudgetId("b1"), user=None, start=T0, amount=120),) == charge.counted
    assert (BudgetId("b1"),) == charge.over
    org.reserve("h2", 100)
    org.rebuilds()


def test_a_late_reading_counts_where_its_milliseconds_fell() -> None:
    """An hour on each side of midnight, as if it had come in time (B5, L12)."""
    org = Org(prices(h100=1_000))
    org.issue("g1", 10_000)
    org.budget("b1", 10_000, PeriodKind.DAY, account="team")
    org.at(hours(23))
    org.reserve("h1", run_ms=10_800_000, context=gpus("h100"))
    org.at(hours(30))
    org.release("h1")

    charge = booked(org.does(ask.late_reading("h1", 7_200_000)))

    assert [(T0, 1_000), (days(1), 1_000)] == [(one.start, one.amount) for one in charge.counted]


# The window


def invalid(when: Instant, earliest: Instant, latest: Instant) -> Refusal:
    """That usage lies outside of the window."""
    figures = {"effective_at": when, "earliest": earliest, "latest": latest}
    return Refusal(Code.TIME_INVALID, figures)


def test_late_usage_lies_between_the_opening_of_its_hold_and_now() -> None:
    """Both inclusive (L12)."""
    org = Org()
    org.issue("g1", 1_000)
    org.at(hours(1))
    org.reserve("h1", 50)
    org.at(hours(2))

    for when in (hours(1) - 1, hours(2) + 1):
        assert invalid(when, hours(1), hours(2)) == org.refuses(ask.late("h1", 5, when=when))
    org.late("h1", 5, when=hours(1))
    org.late("h1", 5, when=hours(2))


def test_late_usage_lies_within_what_the_operator_allows() -> None:
    """To the microsecond (L12, IL19)."""
    org = Org()
    org.issue("g1", 1_000)
    org.reserve("h1", 50)
    org.does(ask.bounds(OrgPolicy(late_max=HOUR)))
    org.at(hours(5))

    refusal = org.refuses(ask.late("h1", 5, when=hours(4) - 1))

    assert invalid(hours(4) - 1, hours(4), hours(5)) == refusal
    org.late("h1", 5, when=hours(4))


def test_a_late_reading_must_begin_within_the_window() -> None:
    """Its new stretch began too long ago (L12)."""
    org = Org(prices(h100=PER_MS))
    org.issue("g1", 1_000)
    org.reserve("h1", run_ms=500, context=gpus("h100"))
    org.release("h1")
    org.at(days(36))

    assert invalid(T0, days(1), days(36)) == org.refuses(ask.late_reading("h1", 5))


# What is asked wrongly


def test_what_can_be_refused() -> None:
    """Each with its figures (L12)."""
    org = Org(prices(h100=PER_MS, a100=PER_MS))
    org.issue("g1", 1_000)
    org.reserve("raw", 50)
    org.reserve("two", 50, context=gpus("h100", "a100"))
    org.charge("raw", 10, "c")

    assert Refusal(Code.HOLD_UNKNOWN, {"hold": "h9"}) == org.refuses(ask.late("h9", 5, when=T0))
    assert Refusal(Code.ATTEMPT_UNKNOWN, {"hold": "two", "attempt": 1}) == org.refuses(
        ask.late_reading("two", 5)
    )
    assert Refusal(Code.ALREADY_EXISTS, {"charge": "c"}) == org.refuses(
        ask.late("raw", 5, when=T0, charge="c")
    )
    assert Refusal(Code.NOT_METERED, {"hold": "raw"}) == org.refuses(ask.late_reading("raw", 5))
    figures = {"amount": AMOUNT_MAX - 9, "most": AMOUNT_MAX - 10}
    assert Refusal(Code.AMOUNT_TOO_LARGE, figures) == org.refuses(
        ask.late("raw", AMOUNT_MAX - 9, when=T0)
    )


Setup = Callable[[Org], Command]
CASES: dict[str, tuple[Setup, Code]] = {
    "an unknown attempt before a known charge": (
        lambda org: ask.late_reading("h1", 5, attempt=2, charge="c"),
        Code.ATTEMPT_UNKNOWN,
    ),
    "a known charge before a time outside": (
        lambda org: ask.late("raw", 5, when=T0 - 1, charge="c"),
        Code.ALREADY_EXISTS,
    ),
    "a known charge before a hold not metered": (
        lambda org: ask.late_reading("raw", 5, charge="c"),
        Code.ALREADY_EXISTS,
    ),
    "a time outside before an amount too large": (
        lambda org: ask.late("raw", AMOUNT_MAX, when=T0 - 1),
        Code.TIME_INVALID,
    ),
}


@pytest.mark.parametrize(("setup", "code"), CASES.values(), ids=CASES)
def test_the_first_applicable_refusal_of_late_usage_is_answered(setup: Setup, code: Code) -> None:
    """When several apply, the first in the order of `Code` wins (L12)."""
    org = Org(prices(h100=PER_MS))
    org.issue("g1", 1_000)
    org.reserve("raw", 50)
    org.reserve("h1", 50, context=gpus("h100"))
    org.charge("raw", 10, "c")

    assert code == org.refuses(setup(org)).code


def test_own_draws_and_the_rest_of_the_same_grant_pay_each_since_their_instant() -> None:
    """What the hold returned pays from its return on, the rest from the usage on (L12).

    The return is the very last event: what is decided now comes after it, not before.
    """
    org = Org()
    org.issue("g1", 100)
    org.reserve("h1", 60)
    org.at(hours(1))
    org.release("h1")
    org.at(hours(2))

    assert [
        ("g1", "available → spent", 60, hours(1)),
        ("g1", "available → spent", 30, minutes(30)),
    ] == moves(org.late("h1", 90, when=minutes(30)))
    org.rebuilds()


def test_forfeited_work_is_not_what_the_hold_returned() -> None:
    """Late usage takes grants in spend order; what was forfeited gives no claim to the rest."""
    org = Org(prices(h100=PER_MS))
    org.issue("kept", 100, expires=hours(30), policy=GrantPolicy(refundable=False))
    org.reserve("h1", 40, context=gpus("h100"))
    org.reading("h1", 40)
    org.does(ask.give_back("h1", kept_ms=0))
    org.release("h1")
    org.issue("first", 100, priority=1)
    org.later(minutes=1)

    assert [("first", "available → spent", 40, T0)] == moves(org.late("h1", 40, when=T0))


def test_rolled_over_credits_are_not_spent_by_late_usage_too() -> None:
    """What was issued again is gone from where it was: credits exist once (L12, L20)."""
    org = Org()
    org.does(ask.recur("r1", 1_000, PeriodKind.DAY, roll_over=1_000))
    org.at(hours(1))
    org.reserve("h1", 500)
    org.release("h1")
    org.at(hours(25))

    event = org.late("h1", 1_000, when=hours(3))

    spendable = balance(org.journal.books, AccountId("org"), org.now).spendable
    spent = balance(org.journal.books, AccountId("org"), org.now).owned.spent
    assert 2_000 == spendable + spent
    assert isinstance(event[-1], ChargeBooked)
    org.rebuilds()


def test_reissued_credits_are_not_spent_by_late_usage_too() -> None:
    """What was issued again is gone from where it was (L11, L12)."""
    org = Org()
    org.issue("old", 100, expires=hours(1))
    org.reserve("h1", 60)
    org.charge("h1", 60, "c")
    org.settle("h1")
    org.at(hours(2))
    org.does(ask.reverse("c", reissue_until=hours(9)))

    org.late("h1", 70, when=minutes(30))

    assert Parts(spent=40, lapsed=60) == org.parts("old")
    assert 0 == org.owed("h1")  # the rest was taken from what was issued again
    org.rebuilds()


def test_reissued_credits_are_not_what_a_hold_returned() -> None:
    """What it returned has gone elsewhere; what lapsed since was issued again (L11, L12)."""
    org = Org()
    org.issue("old", 100, expires=hours(1))
    org.reserve("h1", 60)
    org.charge("h1", 60, "c")
    org.reserve("h2", 40)
    org.release("h2")
    org.at(hours(2))
    org.does(ask.reverse("c", reissue_until=hours(9)))
    org.late("h1", 40, when=minutes(30))

    org.late("h2", 40, when=hours(2))

    assert Parts(spent=40, lapsed=60) == org.parts("old")
    assert 0 == org.owed("h2")  # what was issued again paid for it
    history_holds(org)


def test_a_grant_that_starts_at_the_instant_a_hold_ends_repays() -> None:
    """Each thing that is due at one instant happens (L13)."""
    org = Org()
    org.issue("g1", 5, starts=hours(1))
    org.issue("g2", 10)
    org.reserve("h1", 5, until=hours(1))
    org.does(ask.revoke("g2"))
    org.charge("h1", 6)
    org.at(hours(2))

    org.does(ask.lapse())

    assert Parts(available=4, spent=1) == org.parts("g1")
