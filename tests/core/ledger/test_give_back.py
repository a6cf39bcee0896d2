"""Work that was lost through no fault of the user is given back (M3).

When a platform end or a preemption for another org loses the work since the last checkpoint, the
attempt's meter goes back to what was kept, and what it was charged beyond goes back to the hold, on
the same draws. The job can use it again.
"""

from bursar.core.budgets.periods import PeriodKind
from bursar.core.ids import BudgetId, ChargeId, GrantId, HoldId
from bursar.core.ledger.events import Shrunk, WorkGivenBack
from bursar.core.ledger.values import BudgetUsage, CreditKind, GrantPolicy, OrgPolicy
from bursar.core.metering import Meter
from bursar.core.refusal import Code, Refusal
from tests.support import commands as ask
from tests.support.builders import PER_MS, T0, Org, Parts, gpus, hours, minutes, moves, prices

HALF = GrantPolicy(max_share_ppm=500_000)


def running(*grants: tuple[str, int], held: int) -> Org:
    """An org with a hold at one micro-credit a millisecond."""
    org = Org(prices(h100=PER_MS))
    for grant, amount in grants:
        org.issue(grant, amount)
    org.reserve("h1", held, context=gpus("h100", job="j"), until=hours(24))
    return org


def test_lost_work_goes_from_spent_to_held() -> None:
    """The meter stands at the last checkpoint, as if it had run no longer (M3)."""
    org = running(("g1", 200), held=150)
    org.reading("h1", 120, final=True)
    org.later(minutes=1)

    events = org.does(ask.give_back("h1", kept_ms=70))

    assert [("g1", "spent → held", 50, minutes(1))] == moves(events)
    meter = Meter(
        gpu_type="h100",
        started_at=T0,
        rate=PER_MS,
        milli_gpus=1_000,
        run_ms=70,
        charged=70,
        settled=True,
    )
    assert (
        WorkGivenBack(
            at=minutes(1),
            hold=HoldId("h1"),
            open=80,
            used=70,
            attempt=1,
            meter=meter,
            amount=50,
            forgiven=0,
            absorbed=0,
            shrunk=(Shrunk(charge=ChargeId("c1"), usage=50, spent=((GrantId("g1"), 50),)),),
            ran_ms=120,
            postings=events[0].postings,
        ),
    ) == events
    hold = org.hold("h1")
    assert (70, 80, ((1, meter),), minutes(1)) == (
        hold.used,
        hold.open,
        hold.meters,
        hold.touched_at,
    )
    assert Parts(available=50, held=80, spent=70) == org.parts("g1")
    org.rebuilds()


def test_the_next_attempt_can_use_what_was_given_back() -> None:
    """Preemption settles the attempt, not the hold (M3)."""
    org = running(("g1", 100), held=100)
    org.starts("h1", "h100", run_ms=100)
    org.reading("h1", 90, final=True)
    org.does(ask.give_back("h1", kept_ms=40))

    org.starts("h1", "h100", run_ms=60, attempt=2)
    org.reading("h1", 60, attempt=2)

    assert Parts(spent=100) == org.parts("g1")
    assert (100, 0) == (org.hold("h1").used, org.hold("h1").open)


def test_an_attempt_that_goes_on_is_charged_from_its_checkpoint() -> None:
    """Readings count again from what was kept (D6)."""
    org = running(("g1", 200), held=150)
    org.reading("h1", 120)
    org.does(ask.give_back("h1", kept_ms=70))

    assert () == org.reading("h1", 70)
    assert [("g1", "held → spent", 10, T0)] == moves(org.reading("h1", 80))


def test_only_the_attempt_that_lost_work_is_set_back() -> None:
    """Others keep what they were charged (M3)."""
    org = running(("g1", 200), held=150)
    org.starts("h1", "h100", run_ms=150)
    org.reading("h1", 50, final=True)
    org.starts("h1", "h100", run_ms=100, attempt=2)
    org.reading("h1", 30, attempt=2)

    org.does(ask.give_back("h1", attempt=1, kept_ms=0))

    hold = org.hold("h1")
    assert [(1, 0), (2, 30)] == sorted((number, meter.run_ms) for number, meter in hold.meters)
    assert (30, 120) == (hold.used, hold.open)


def test_the_last_in_spend_order_is_given_back_first() -> None:
    """The draws keep what they would have been charged for less (L4)."""
    org = running(("a", 40), ("b", 50), ("c", 100), held=150)
    org.reading("h1", 120)

    events = org.does(ask.give_back("h1", kept_ms=60))

    assert [("c", "spent → held", 30, T0), ("b", "spent → held", 30, T0)] == moves(events)


def given_back(org: Org, *, kept_ms: int, attempt: int = 1) -> WorkGivenBack:
    """Give back what was lost, and tell what became of it."""
    (event,) = org.does(ask.give_back("h1", kept_ms=kept_ms, attempt=attempt))
    assert isinstance(event, WorkGivenBack)
    return event


def test_lost_work_comes_off_the_latest_charges_until_it_adds_up() -> None:
    """Charges that lose nothing are not named (M3)."""
    org = running(("g1", 200), held=150)
    for run_ms in (40, 60, 100):
        org.reading("h1", run_ms)

    event = given_back(org, kept_ms=50)

    assert [("c3", 40), ("c2", 10)] == [(one.charge, one.usage) for one in event.shrunk]


def test_lost_work_comes_off_the_charges_that_each_grant_paid() -> None:
    """What the later charge did not spend, the earlier one gives back whole (L11, M3)."""
    org = running(("a", 40), ("b", 100), held=120)
    org.reading("h1", 40)
    org.reading("h1", 80)

    event = given_back(org, kept_ms=20)

    assert [("c2", (("b", 40),)), ("c1", (("a", 20),))] == [
        (one.charge, one.spent) for one in event.shrunk
    ]


def test_usage_comes_off_the_charges_of_the_attempt_that_lost_it() -> None:
    """Another attempt's charge gives up credits, since they are the same, but no usage (M3)."""
    org = running(("g1", 200), held=150)
    org.starts("h1", "h100", run_ms=150)
    org.reading("h1", 50, final=True)
    org.starts("h1", "h100", run_ms=100, attempt=2)
    org.reading("h1", 30, attempt=2)

    event = given_back(org, attempt=1, kept_ms=20)

    assert [("c2", 0), ("c1", 30)] == [(one.charge, one.usage) for one in event.shrunk]


def test_nothing_lost_nothing_happens() -> None:
    """A checkpoint at the end, or beyond it, gives back nothing; no event (M3)."""
    org = running(("g1", 200), held=150)
    org.reading("h1", 120)

    assert () == org.does(ask.give_back("h1", kept_ms=120))
    assert () == org.does(ask.give_back("h1", kept_ms=999))
    assert [("g1", "spent → held", 120, T0)] == moves(org.does(ask.give_back("h1", kept_ms=0)))


def test_a_time_that_cost_nothing_goes_back_too() -> None:
    """The meter is set back though no micro-credit moves (L14)."""
    org = Org(prices(h100=PER_MS // 4))
    org.issue("g1", 100)
    org.reserve("h1", 50, context=gpus("h100"))
    org.reading("h1", 7)

    assert [] == moves(org.does(ask.give_back("h1", kept_ms=4)))
    assert 4 == org.hold("h1").meters[0][1].run_ms


# Debt, operator's cost, reversals


def test_debt_goes_first_then_what_was_absorbed_then_the_draws() -> None:
    """What nobody paid is not given to anybody (M3, L13)."""
    org = running(("g1", 50), held=50)
    org.does(ask.bounds(OrgPolicy(debt_max=20)))
    org.reading("h1", 100)
    assert (20, 30) == (org.hold("h1").owed, org.hold("h1").absorbed)

    def back(kept_ms: int) -> tuple[int, int, int]:
        event = org.does(ask.give_back("h1", kept_ms=kept_ms))[0]
        assert isinstance(event, WorkGivenBack)
        return event.amount, event.forgiven, event.absorbed

    assert (15, 15, 0) == back(85)
    assert 5 == org.owed("h1")
    assert (25, 5, 20) == back(60)
    assert (50, 0, 10) == back(10)
    assert Parts(held=40, spent=10) == org.parts("g1")
    org.rebuilds()


def test_a_debt_that_was_refunded_no_longer_blocks_holds() -> None:
    """It never happened (M3, L13)."""
    org = running(("g1", 50), held=50)
    org.reading("h1", 60)
    assert Code.DEBT_OUTSTANDING == org.refuses(org.asking("h2", 1)).code

    org.does(ask.give_back("h1", kept_ms=50))

    figures = {"asked": 1, "spendable": 0, "short": 1}
    assert Refusal(Code.INSUFFICIENT_CREDITS, figures) == org.refuses(org.asking("h2", 1))


def test_reversed_charges_are_not_refunded_again() -> None:
    """Never more than what is charged and not reversed; the draws keep that much (L11, M3)."""
    org = running(("a", 60), ("b", 60), held=120)
    org.does(ask.read("h1", 100, "c"))
    org.does(ask.reverse("c", 70))  # b: 40, a: 30

    events = org.does(ask.give_back("h1", kept_ms=10))

    assert [("a", "spent → held", 30, T0)] == moves(events)
    event = events[0]
    assert isinstance(event, WorkGivenBack)
    assert 30 == event.amount
    hold = org.hold("h1")
    assert (70, 50, 10) == (hold.used, hold.open, hold.meters[0][1].run_ms)
    assert Parts(available=30, held=30) == org.parts("a")
    assert Parts(available=40, held=20) == org.parts("b")
    org.rebuilds()


def test_a_charge_keeps_what_was_not_given_back() -> None:
    """A debt that is given back is off the charge that made it, too (L11, M3)."""
    org = running(("g1", 50), held=50)
    org.does(ask.read("h1", 60, "c1"))
    org.does(ask.read("h1", 80, "c2"))
    org.does(ask.give_back("h1", kept_ms=55))

    for charge, left in (("c1", 55), ("c2", 0)):
        assert {"reversible": left, "asked": 99} == org.refuses(ask.reverse(charge, 99)).figures


# Shares and dead grants


def test_shares_are_taken_of_the_smaller_total() -> None:
    """Half of 60 (L9)."""
    org = Org(prices(h100=PER_MS))
    org.issue("promo", 100, kind=CreditKind.PROMO, policy=HALF)
    org.issue("paid", 100)
    org.reserve("h1", 120, context=gpus("h100"))
    org.reading("h1", 100)

    events = org.does(ask.give_back("h1", kept_ms=60))

    assert [("paid", "spent → held", 20, T0), ("promo", "spent → held", 20, T0)] == moves(events)


def test_a_refund_keeps_credits_beyond_share_caps_if_needed() -> None:
    """Half of 33 is 16, twice; 33 stay charged nevertheless (L9)."""
    org = Org(prices(h100=PER_MS))
    org.issue("a", 50, policy=HALF)
    org.issue("b", 50, policy=HALF)
    org.reserve("h1", 100, context=gpus("h100"))
    org.reading("h1", 100)

    events = org.does(ask.give_back("h1", kept_ms=33))

    assert [("b", "spent → held", 34, T0), ("a", "spent → held", 33, T0)] == moves(events)


def test_reversed_credits_still_count_against_a_share_cap() -> None:
    """Half of 140 less the 20 that were reversed: 50 of the promotion stay charged (L9, L11)."""
    org = Org(prices(h100=PER_MS))
    org.issue("promo", 200, kind=CreditKind.PROMO, policy=HALF)
    org.issue("paid", 200)
    org.reserve("h1", 240, context=gpus("h100"))
    org.does(ask.read("h1", 100, "c1"))
    org.does(ask.read("h1", 200, "c2"))
    org.does(ask.reverse("c1", 70))  # paid: 50, promo: 20

    events = org.does(ask.give_back("h1", kept_ms=140))

    assert [("paid", "spent → held", 30, T0), ("promo", "spent → held", 30, T0)] == moves(events)


def test_work_of_an_expired_grant_goes_back_to_the_hold() -> None:
    """It stays usable by that hold, and lapses when the hold ends (L10)."""
    org = Org(prices(h100=PER_MS))
    org.issue("g1", 100, expires=hours(1))
    org.reserve("h1", 60, context=gpus("h100"))
    org.reading("h1", 50)
    org.at(hours(2))

    events = org.does(ask.give_back("h1", kept_ms=20))

    assert [
        ("g1", "available → lapsed", 40, hours(1)),
        ("g1", "spent → held", 30, hours(2)),
    ] == moves(events)
    org.release("h1")
    assert Parts(spent=20, lapsed=80) == org.parts("g1")


# Budgets and refusals


def test_lost_work_leaves_the_budgets_where_it_was_counted() -> None:
    """By where its milliseconds fell (B5)."""
    org = running(("g1", 20_000_000), held=18_000_000)
    org.budget("b1", 90_000_000, PeriodKind.DAY, account="team")
    org.at(hours(23))
    org.starts("h1", "h100", run_ms=18_000_000, attempt=2)
    org.does(ask.extend("h1", until=hours(24)))
    org.at(hours(24) - 1)
    org.reading("h1", 3_600_000, attempt=2)

    event = org.does(ask.give_back("h1", attempt=2, kept_ms=3_000_000))[0]

    assert isinstance(event, WorkGivenBack)
    counted = [one for shrunk in event.shrunk for one in shrunk.counted]
    assert [BudgetUsage(budget=BudgetId("b1"), user=None, start=T0, amount=600_000)] == counted
    org.rebuilds()


def test_lost_work_at_the_operators_cost_comes_off_the_budgets_too() -> None:
    """Nobody paid for it and nobody owes it, but it was counted (M3, B5)."""
    org = running(("g1", 50), held=50)
    org.does(ask.bounds(OrgPolicy(debt_max=0)))
    org.budget("b1", 1_000, account="team")
    org.reading("h1", 80)

    org.does(ask.give_back("h1", kept_ms=60))

    assert 60 == charged(org, "b1")


def test_what_can_be_refused() -> None:
    """A known attempt of a known hold (M3)."""
    org = running(("g1", 100), held=50)
    org.reading("h1", 10)

    assert Refusal(Code.HOLD_UNKNOWN, {"hold": "h9"}) == org.refuses(ask.give_back("h9", kept_ms=0))
    org.release("h1")
    assert Refusal(Code.ATTEMPT_UNKNOWN, {"hold": "h1", "attempt": 2}) == org.refuses(
        ask.give_back("h1", attempt=2, kept_ms=0)
    )


def test_a_closed_hold_returns_what_it_is_given_back() -> None:
    """To the very grants, as if it had never been charged; a late reading takes it again (M3)."""
    org = running(("g1", 100), ("g2", 100), held=150)
    org.budget("b1", 1_000, account="team")
    org.reading("h1", 130, final=True)
    org.release("h1")
    org.later(minutes=1)

    events = org.does(ask.give_back("h1", kept_ms=90))

    assert [
        ("g2", "spent → held", 30, minutes(1)),
        ("g1", "spent → held", 10, minutes(1)),
        ("g2", "held → available", 30, minutes(1)),
        ("g1", "held → available", 10, minutes(1)),
    ] == moves(events)
    assert Parts(available=10, spent=90) == org.parts("g1")
    assert Parts(available=100) == org.parts("g2")
    assert 90 == charged(org, "b1")

    org.does(ask.late_reading("h1", 130))

    assert Parts(spent=100) == org.parts("g1")
    assert Parts(available=70, spent=30) == org.parts("g2")


def test_a_refund_of_a_closed_hold_lands_where_its_refund_would() -> None:
    """Expired, revoked and non-refundable grants get no spendable credits (L9, L10, L11)."""
    org = Org(prices(h100=PER_MS))
    org.issue("g1", 50, expires=hours(1))
    org.issue(
        "g2", 50, kind=CreditKind.PROMO, expires=hours(2), policy=GrantPolicy(refundable=False)
    )
    org.issue("g3", 50, expires=hours(3))
    org.reserve("h1", 150, context=gpus("h100"), until=hours(24))
    org.reading("h1", 150, final=True)
    org.release("h1")
    org.does(ask.revoke("g3"))
    org.later(minutes=61)

    org.does(ask.give_back("h1", kept_ms=0))

    assert Parts(lapsed=50) == org.parts("g1")
    assert Parts(lapsed=50) == org.parts("g2")
    assert Parts(revoked=50) == org.parts("g3")


def test_lost_work_that_was_reversed_comes_off_the_budgets_once() -> None:
    """What a reversal took off the counters, given-back work does not take off again (IB1)."""
    org = running(("g1", 200_000), held=100_000)
    org.budget("b1", 10**9, account="org")
    org.reserve("other", 50_000)
    org.charge("other", 50_000)
    org.does(ask.read("h1", 60_000, "c"))
    org.does(ask.reverse("c", 40_000))

    org.does(ask.give_back("h1", kept_ms=0))

    assert 50_000 == sum(tally.charged for _, tally in org.journal.books.tallies.items())
    org.rebuilds()


def test_lost_work_comes_off_only_those_budgets_that_counted_it() -> None:
    """A budget counts from when it is set: older usage that is given back is not its own (B5)."""
    org = running(("g1", 200_000), held=100_000)
    org.reading("h1", 60_000)
    org.budget("b1", 10**9, account="org")
    org.reserve("other", 50_000)
    org.charge("other", 50_000)

    org.does(ask.give_back("h1", kept_ms=0))

    assert 50_000 == sum(tally.charged for _, tally in org.journal.books.tallies.items())
    org.rebuilds()


def test_what_was_given_back_cannot_be_reversed_as_well() -> None:
    """The attempt's later usage is paid for by the same grant, and stays (L11, M3)."""
    org = running(("g1", 200), held=100)
    org.does(ask.read("h1", 60, "first"))
    org.does(ask.give_back("h1", kept_ms=0))
    org.does(ask.read("h1", 50, "again"))

    assert Code.EXCEEDS_CHARGE == org.refuses(ask.reverse("first")).code
    org.does(ask.reverse("again"))
    assert Parts(available=150, held=50) == org.parts("g1")


def test_an_attempt_that_was_never_read_has_nothing_to_give_back() -> None:
    """With one type attempt 1 runs from when the hold was opened (M3)."""
    org = running(("g1", 200), held=100)

    assert () == org.does(ask.give_back("h1", kept_ms=0))


def test_work_given_back_after_a_reversal_comes_off_the_budget_once() -> None:
    """What was reversed of a charge had been counted off; no more is than was lost (M3, B5)."""
    org = Org(prices(h100=PER_MS))
    org.budget("b", 1_000, account="team")
    org.issue("last", 100)
    org.reserve("h", 100, context=gpus("h100"))
    org.does(ask.read("h", 100, charge="c1"))
    org.issue("first", 100, expires=hours(9))
    org.does(ask.read("h", 200, charge="c2"))
    org.does(ask.give_back("h", kept_ms=140))
    org.does(ask.reverse("c2"))
    assert 100 == charged(org, "b")

    org.does(ask.give_back("h", kept_ms=130))

    assert 90 == charged(org, "b")


def charged(org: Org, budget: str) -> int:
    """What a budget has counted as charged."""
    return sum(
        tally.charged for (id, *_), tally in org.journal.books.tallies.items() if id == budget
    )
