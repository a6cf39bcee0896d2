"""Setting credits aside before the work starts: all of it or nothing (L5, M1).

What is held is out of everybody else's reach until it is charged or returned.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest

from bursar.core.budgets.periods import PeriodKind
from bursar.core.ids import AccountId, GrantId, HoldId, JobId, PriceVersionId, UserId
from bursar.core.instant import DAY, HOUR, NEVER
from bursar.core.ledger.commands import Command, Reserve, SetTier
from bursar.core.ledger.events import HoldExtended, HoldOpened
from bursar.core.ledger.quote import Quote, quote
from bursar.core.ledger.values import (
    NO_CONTEXT,
    Context,
    Draw,
    GrantPolicy,
    Hold,
    HoldClaim,
    HoldTerms,
    OrgPolicy,
)
from bursar.core.money import AMOUNT_MAX, CREDIT
from bursar.core.pricing import PriceVersion, Rate
from bursar.core.refusal import Code, Refusal
from tests.support import commands as ask
from tests.support.builders import PER_MS, T0, Org, Parts, days, gpus, hours, moves, prices

JOB = Context(job=JobId("j1"))


def short(asked: int, spendable: int) -> Refusal:
    """That credits are missing."""
    figures = {"asked": asked, "spendable": spendable, "short": asked - spendable}
    return Refusal(Code.INSUFFICIENT_CREDITS, figures)


# All or nothing


def test_a_hold_sets_credits_aside() -> None:
    """What happened is told whole: who, for what, until when, from which grants (L5)."""
    org = Org()
    org.issue("g1", 100, expires=hours(20))
    org.issue("g2", 100)
    terms = HoldTerms(
        id=HoldId("h1"),
        account=AccountId("project"),
        user=UserId("ann"),
        context=JOB,
        opened_at=T0,
        for_job=True,
    )

    events = org.reserve("h1", 130, context=JOB, until=hours(3))

    assert [
        ("g1", "available → held", 100, T0),
        ("g2", "available → held", 30, T0),
    ] == moves(events)
    assert (
        HoldOpened(
            at=T0,
            hold=HoldId("h1"),
            open=130,
            terms=terms,
            expires_at=hours(3),
            rate=0,
            postings=events[0].postings,
        ),
    ) == events
    draws = (Draw(grant=GrantId("g1"), drawn=100), Draw(grant=GrantId("g2"), drawn=30))
    assert Hold(terms=terms, expires_at=hours(3), draws=draws, open=130, touched_at=T0) == org.hold(
        "h1"
    )
    assert HoldClaim(130, 0, 0, T0, hours(3), T0) == org.hold("h1").claim
    assert Parts(held=100) == org.parts("g1")
    assert Parts(available=70, held=30) == org.parts("g2")
    org.rebuilds()


def test_a_hold_is_all_or_nothing() -> None:
    """One micro-credit too few, and nothing is held (L5)."""
    org = Org()
    org.issue("g1", 60)
    org.issue("g2", 40)

    assert short(101, 100) == org.refuses(org.asking("h1", 101))
    assert Parts(available=60) == org.parts("g1")
    org.reserve("h1", 100)
    assert Parts(held=60) == org.parts("g1")


def test_twenty_callers_of_75_on_500_get_exactly_six_holds() -> None:
    """Holds never exceed what was granted, whoever asks how often (L5, IL3)."""
    org = Org()
    org.issue("g1", 500)

    outcomes = [org.asks(org.asking(f"h{caller}", 75)) for caller in range(20)]

    refusals = [outcome for outcome in outcomes if isinstance(outcome, Refusal)]
    assert 6 == len(outcomes) - len(refusals)
    assert [short(75, 50)] * 14 == refusals
    assert Parts(available=50, held=450) == org.parts("g1")


def test_no_other_hold_can_use_held_credits() -> None:
    """A hold is escrow (L5, D8)."""
    org = Org()
    org.issue("g1", 100)
    org.reserve("h1", 100)

    assert short(1, 0) == org.refuses(org.asking("h2", 1, by="org"))
    org.release("h1")
    org.reserve("h2", 1, by="org")


# What is refused before credits are looked at


def test_account_and_user_must_be_known() -> None:
    """Nobody else can hold anything (L5)."""
    org = Org()
    org.issue("g1", 100)

    assert Refusal(Code.ACCOUNT_UNKNOWN, {"account": "nobody"}) == org.refuses(
        org.asking("h1", 10, by="nobody")
    )
    assert Refusal(Code.USER_UNKNOWN, {"user": "eve"}) == org.refuses(
        org.asking("h1", 10, user="eve")
    )


def test_a_hold_id_is_used_once() -> None:
    """Even after the hold was closed (L7)."""
    org = Org()
    org.issue("g1", 100)
    org.reserve("h1", 10)
    org.release("h1")

    assert Refusal(Code.ALREADY_EXISTS, {"hold": "h1"}) == org.refuses(org.asking("h1", 10))


def test_the_limit_of_a_hold_is_after_now() -> None:
    """A hold that ends when it begins is none (L5)."""
    org = Org()
    org.issue("g1", 100)

    for until in (T0 - 1, T0):
        figures = {"expires_at": until, "now": T0}
        assert Refusal(Code.TIME_INVALID, figures) == org.refuses(org.asking("h1", 10, until=until))
    org.reserve("h1", 10, until=T0 + 1)


@pytest.mark.parametrize(("context", "longest"), [(Context(), DAY), (JOB, 60 * DAY)])
def test_holds_cannot_be_used_to_evade_expiry(context: Context, longest: int) -> None:
    """A raw hold lasts a day, a job's hold longer; to the microsecond (L10)."""
    org = Org()
    org.issue("g1", 100)

    refusal = org.refuses(org.asking("h1", 10, context=context, until=T0 + longest + 1))

    figures = {"expires_at": T0 + longest + 1, "latest": T0 + longest}
    assert Refusal(Code.HOLD_TOO_LONG, figures) == refusal
    org.reserve("h1", 10, context=context, until=T0 + longest)


def test_naming_a_job_does_not_make_a_hold_last_longer() -> None:
    """Whoever submits a job says that a hold is for it; a context says what anybody likes (L10)."""
    org = Org()
    org.issue("g1", 100)

    refusal = org.refuses(org.asking("h1", 10, context=JOB, for_job=False, until=T0 + DAY + 1))

    figures = {"expires_at": T0 + DAY + 1, "latest": T0 + DAY}
    assert Refusal(Code.HOLD_TOO_LONG, figures) == refusal
    org.reserve("h1", 10, context=JOB, for_job=False, until=T0 + DAY)
    assert JOB == org.hold("h1").terms.context
    org.does(replace(lasting("h2", JOB), for_job=False))
    assert T0 + DAY == org.hold("h2").expires_at
    org.rebuilds()


def test_extending_goes_by_how_a_hold_was_opened() -> None:
    """A raw hold keeps the raw bound whatever it names, a job's the longer one (L10)."""
    org = Org()
    org.issue("g1", 100)
    org.reserve("raw", 10, context=JOB, for_job=False, until=hours(1))
    org.reserve("job", 10, context=JOB, until=hours(1))

    refusal = org.refuses(ask.extend("raw", until=T0 + DAY + 1))
    figures = {"expires_at": T0 + DAY + 1, "latest": T0 + DAY}
    assert Refusal(Code.HOLD_TOO_LONG, figures) == refusal
    org.does(ask.extend("raw", until=T0 + DAY))
    org.does(ask.extend("job", until=T0 + 60 * DAY))
    org.rebuilds()


def test_an_operator_sets_how_long_holds_last() -> None:
    """The bounds are the org's own (L10)."""
    org = Org()
    org.issue("g1", 100)
    org.does(ask.bounds(OrgPolicy(raw_hold_max=HOUR, job_hold_max=2 * HOUR)))

    org.reserve("h1", 10, until=hours(1))
    org.reserve("h2", 10, context=JOB, until=hours(2))

    for context, latest in ((Context(), hours(1)), (JOB, hours(2))):
        refusal = org.refuses(org.asking("h3", 10, context=context, until=latest + 1))
        figures = {"expires_at": latest + 1, "latest": latest}
        assert Refusal(Code.HOLD_TOO_LONG, figures) == refusal
    org.rebuilds()


# Holds by run time (M1)


def test_a_hold_by_run_time_covers_the_price_of_running_that_long() -> None:
    """Price × (maximum run + stop grace), at the rates in force now, which it keeps (M1, B1)."""
    org = Org(prices(version="v1", h100=3 * PER_MS))
    org.issue("g1", 10_000)

    events = org.reserve("h1", run_ms=1_000, context=gpus("h100", count=2))

    opened = events[0]
    assert isinstance(opened, HoldOpened)
    assert [("g1", "available → held", 6_000, T0)] == moves(events)
    assert (("h100", 3 * PER_MS),) == opened.terms.rates
    assert (("v1",), 3 * PER_MS, ()) == (
        opened.terms.price_versions,
        opened.rate,
        opened.dropped,
    )
    assert HoldClaim(6_000, 3 * PER_MS, 2_000, T0, hours(12), T0) == org.hold("h1").claim


def test_a_hold_is_sized_by_the_dearest_of_its_types() -> None:
    """Whatever it will run on, it is covered (M1)."""
    org = Org(prices(a100=2 * PER_MS, h100=5 * PER_MS, l4=PER_MS))
    org.issue("g1", 10_000)

    org.reserve("h1", run_ms=1_000, context=gpus("a100", "h100", "l4"))

    hold = org.hold("h1")
    assert (5_000, 5 * PER_MS) == (hold.open, hold.rate)
    assert ("a100", "h100", "l4") == hold.context.gpu_types
    assert (
        ("a100", 2 * PER_MS),
        ("h100", 5 * PER_MS),
        ("l4", PER_MS),
    ) == hold.terms.rates


def test_types_without_a_price_are_dropped_and_named() -> None:
    """They cannot be sized (M1)."""
    org = Org(prices(h100=PER_MS))
    org.issue("g1", 1_000)

    events = org.reserve("h1", run_ms=100, context=gpus("b200", "h100", "x1"))

    assert isinstance(events[0], HoldOpened)
    assert ("b200", "x1") == events[0].dropped
    assert ("h100",) == org.hold("h1").context.gpu_types


def test_without_any_price_there_is_no_hold_by_run_time() -> None:
    """The types are named (B1)."""
    org = Org()
    org.issue("g1", 1_000)

    refusal = org.refuses(org.asking("h1", run_ms=100, context=gpus("b200", "x1")))

    assert Refusal(Code.PRICE_UNKNOWN, {"gpu_types": ("b200", "x1")}) == refusal


def test_types_that_cannot_be_funded_alone_are_dropped_and_named() -> None:
    """The rest is held: refused only if none is left (M1)."""
    org = Org(prices(a100=2 * PER_MS, h100=5 * PER_MS))
    org.issue("g1", 2_000)

    events = org.reserve("h1", run_ms=1_000, context=gpus("h100", "a100"))

    assert isinstance(events[0], HoldOpened)
    assert ("h100",) == events[0].dropped
    assert (2_000, 2 * PER_MS) == (org.hold("h1").open, org.hold("h1").rate)
    assert (("a100", 2 * PER_MS),) == org.hold("h1").terms.rates


def test_types_that_no_grant_admits_together_are_dropped_dearest_first() -> None:
    """The hold draws grants that admit every remaining type (M1)."""
    org = Org(prices(a100=2 * PER_MS, h100=5 * PER_MS, l4=PER_MS))
    org.issue("for h100", 5_000, policy=GrantPolicy(gpu_types=frozenset({"h100"})))
    org.issue("for the rest", 2_000, policy=GrantPolicy(gpu_types=frozenset({"a100", "l4"})))

    events = org.reserve("h1", run_ms=1_000, context=gpus("h100", "a100", "l4"))

    assert isinstance(events[0], HoldOpened)
    assert ("h100",) == events[0].dropped
    assert {"for the rest": 2_000} == org.draws("h1")


def test_of_equally_dear_types_the_least_preferred_is_dropped() -> None:
    """The caller's order of preference breaks the tie (M1)."""
    org = Org(prices(a=PER_MS, b=PER_MS))
    org.issue("for a", 1_000, policy=GrantPolicy(gpu_types=frozenset({"a"})))
    org.issue("for b", 1_000, policy=GrantPolicy(gpu_types=frozenset({"b"})))

    first = org.reserve("h1", run_ms=100, context=gpus("a", "b"))
    second = org.reserve("h2", run_ms=100, context=gpus("b", "a"))

    assert isinstance(first[0], HoldOpened)
    assert isinstance(second[0], HoldOpened)
    assert ("b",) == first[0].dropped
    assert ("a",) == second[0].dropped
    assert ({"for a": 100}, {"for b": 100}) == (org.draws("h1"), org.draws("h2"))


def test_if_no_type_can_be_funded_the_refusal_is_that_of_the_cheapest() -> None:
    """Of equally cheap ones the first in preference (M1)."""
    org = Org(prices(a100=2 * PER_MS, h100=5 * PER_MS, b=2 * PER_MS))
    org.issue("for a100", 700, policy=GrantPolicy(gpu_types=frozenset({"a100"})))
    org.issue("for b", 900, policy=GrantPolicy(gpu_types=frozenset({"b"})))

    assert short(2_000, 700) == org.refuses(
        org.asking("h1", run_ms=1_000, context=gpus("h100", "a100", "b"))
    )
    assert short(2_000, 900) == org.refuses(
        org.asking("h1", run_ms=1_000, context=gpus("h100", "b", "a100"))
    )


def test_a_type_that_a_budget_forbids_is_dropped() -> None:
    """Budgets are part of what can be funded (M1, B3)."""
    org = Org(prices(a100=2 * PER_MS, h100=5 * PER_MS))
    org.issue("g1", 10_000)
    org.budget("b1", 3_000, account="team")

    events = org.reserve("h1", run_ms=1_000, context=gpus("h100", "a100"))

    assert isinstance(events[0], HoldOpened)
    assert ("h100",) == events[0].dropped


def test_a_free_price_holds_nothing_and_is_fine() -> None:
    """Even where there are no credits at all (M1)."""
    org = Org(prices(spare=0))

    events = org.reserve("h1", run_ms=1_000, context=gpus("spare"))

    assert [] == moves(events)
    assert (0, ()) == (org.hold("h1").open, org.hold("h1").draws)


def test_a_run_of_no_time_holds_nothing() -> None:
    """It costs nothing (M1, L14)."""
    org = Org(prices(h100=PER_MS))

    assert [] == moves(org.reserve("h1", run_ms=0, context=gpus("h100")))


def test_prices_look_at_region_tier_and_class() -> None:
    """The most specific rate that matches the context is held (B1)."""
    version = PriceVersion(
        id=PriceVersionId("v1"),
        effective_at=0,
        rates=(
            Rate(gpu_type="h100", micros_per_gpu_hour=9 * PER_MS),
            Rate(gpu_type="h100", region="eu", micros_per_gpu_hour=3 * PER_MS),
            Rate(gpu_type="h100", tier="gold", micros_per_gpu_hour=4 * PER_MS),
            Rate(gpu_type="h100", priority_class="batch", micros_per_gpu_hour=5 * PER_MS),
        ),
    )
    org = Org(version)
    org.issue("g1", 10_000)

    contexts = {
        "any": gpus("h100"),
        "eu": gpus("h100", region="eu"),
        "batch": gpus("h100", priority_class="batch"),
    }
    held = []
    for name, context in contexts.items():
        org.reserve(name, run_ms=100, context=context)
        held.append(org.hold(name).open)
    org.does(SetTier(tier="gold"))
    org.reserve("gold", run_ms=100, context=gpus("h100"))

    assert [900, 300, 500, 400] == [*held, org.hold("gold").open]


def test_an_orgs_own_price_goes_before_the_deployments() -> None:
    """And its version is the one named (B1)."""
    org = Org(prices(version="list", h100=5 * PER_MS))
    org.issue("g1", 10_000)
    org.price(prices(version="own", effective_at=T0, h100=3 * PER_MS))

    org.reserve("h1", run_ms=1_000, context=gpus("h100"))

    assert (3_000, ("own",)) == (org.hold("h1").open, org.hold("h1").terms.price_versions)
    org.rebuilds()


def test_a_hold_of_an_amount_keeps_the_rates_that_are_known() -> None:
    """Run time can be charged to it; the dearest known rate is its own. No type is dropped (M1)."""
    org = Org(prices(a100=2 * PER_MS, h100=5 * PER_MS))
    org.issue("g1", 10_000)

    events = org.reserve("h1", 700, context=gpus("a100", "h100", "x1"))

    assert isinstance(events[0], HoldOpened)
    assert () == events[0].dropped
    hold = org.hold("h1")
    assert (700, 5 * PER_MS) == (hold.open, hold.rate)
    assert ("a100", "h100", "x1") == hold.context.gpu_types
    assert (("a100", 2 * PER_MS), ("h100", 5 * PER_MS)) == hold.terms.rates
    assert hold.terms.metered


@pytest.mark.parametrize(
    "context",
    [Context(), gpus("x1"), Context(gpu_types=("h100",))],
    ids=["no GPUs", "no price", "no number of GPUs"],
)
def test_a_hold_without_prices_or_gpus_is_not_metered(context: Context) -> None:
    """Only amounts can be charged to it."""
    org = Org(prices(h100=PER_MS))
    org.issue("g1", 100)
    org.reserve("h1", 10, context=context)

    assert not org.hold("h1").terms.metered
    assert HoldClaim(10, org.hold("h1").rate, 0, T0, hours(12), T0) == org.hold("h1").claim
    assert Refusal(Code.NOT_METERED, {"hold": "h1"}) == org.refuses(ask.read("h1", 5))


# How long


def lasting(hold: str, context: Context = NO_CONTEXT, ttl: int | None = None) -> Reserve:
    """A hold of one micro-credit that lasts so long, or as long as it may."""
    return Reserve(
        hold=HoldId(hold),
        account=AccountId("org"),
        user=UserId("ann"),
        amount=1,
        ttl=ttl,
        context=context,
        for_job=context is JOB,
    )


def test_a_hold_may_say_how_long_it_lasts() -> None:
    """Counted from when it is opened, and told as an instant (L5)."""
    org = Org()
    org.issue("g1", 100)
    org.later(hours=1)

    [opened] = org.does(lasting("h1", ttl=2 * HOUR))

    assert isinstance(opened, HoldOpened)
    assert hours(3) == opened.expires_at == org.hold("h1").expires_at
    org.at(hours(3) - 1)
    assert org.hold("h1").closed_at is None
    org.at(hours(3))
    assert hours(3) == org.hold("h1").closed_at
    org.rebuilds()


@pytest.mark.parametrize(("context", "most"), [(NO_CONTEXT, DAY), (JOB, 60 * DAY)])
def test_a_hold_lasts_as_long_as_allowed_by_default(context: Context, most: int) -> None:
    """A job's longer than another; a microsecond more would be refused (L5)."""
    org = Org()
    org.issue("g1", 100)

    org.does(lasting("h1", context))
    org.does(lasting("h2", context, ttl=most))

    assert T0 + most == org.hold("h1").expires_at == org.hold("h2").expires_at
    figures = {"expires_at": T0 + most + 1, "latest": T0 + most}
    assert Refusal(Code.HOLD_TOO_LONG, figures) == org.refuses(lasting("h3", context, most + 1))


def test_bounds_that_change_change_how_long_a_hold_lasts_by_itself() -> None:
    """The org's bounds are read when it is opened, and not again (L5)."""
    org = Org()
    org.issue("g1", 100)
    org.does(lasting("h1"))
    org.does(ask.bounds(OrgPolicy(raw_hold_max=HOUR, job_hold_max=2 * HOUR)))

    org.does(lasting("h2"))
    org.does(lasting("h3", JOB))

    limits = [org.hold(hold).expires_at for hold in ("h1", "h2", "h3")]
    assert [days(1), hours(1), hours(2)] == limits


def test_nothing_lasts_beyond_never() -> None:
    """However long it may last, or says that it does (L5, L14)."""
    org = Org()
    org.issue("g1", 100)
    org.does(ask.bounds(OrgPolicy(raw_hold_max=NEVER, job_hold_max=NEVER - T0)))

    for hold, context, ttl in (
        ("h1", NO_CONTEXT, None),
        ("h2", JOB, None),
        ("h3", NO_CONTEXT, NEVER),
        ("h4", JOB, NEVER - T0),
        ("h5", JOB, NEVER),
    ):
        org.does(lasting(hold, context, ttl))
        assert NEVER == org.hold(hold).expires_at
    org.rebuilds()


def test_where_a_hold_may_not_last_at_all_none_is_opened() -> None:
    """Its limit would be the instant at which it is opened (L5)."""
    org = Org()
    org.issue("g1", 100)
    org.does(ask.bounds(OrgPolicy(raw_hold_max=0)))

    ended = Refusal(Code.TIME_INVALID, {"expires_at": T0, "now": T0})
    assert ended == org.refuses(lasting("h1"))
    too_long = Refusal(Code.HOLD_TOO_LONG, {"expires_at": T0 + 1, "latest": T0})
    assert too_long == org.refuses(lasting("h1", ttl=1))
    org.does(lasting("h1", JOB))


@pytest.mark.parametrize("ttl", [None, 6 * HOUR])
def test_how_long_a_hold_lasts_bounds_what_it_claims(ttl: int | None) -> None:
    """As a limit does: it can run no longer than that (B3)."""
    org = Org(prices(h100=PER_MS))
    org.issue("g1", 10**12)
    org.budget("b", 10**12, PeriodKind.LIFETIME, account="org")
    org.does(ask.bounds(OrgPolicy(raw_hold_max=6 * HOUR)))
    run_ms = 7 * 3_600_000

    org.does(replace(lasting("h1", gpus("h100"), ttl), amount=None, run_ms=run_ms))

    assert run_ms == org.hold("h1").open
    assert 6 * 3_600_000 + 1 >= org.counted("b") >= 6 * 3_600_000


# Extending


def test_an_open_hold_can_have_more_and_last_longer() -> None:
    """Under the same checks as a new one (L6)."""
    org = Org()
    org.issue("g1", 100)
    org.reserve("h1", 30, until=hours(3))
    org.later(hours=1)

    events = org.does(ask.extend("h1", 20, until=hours(5)))

    assert (
        HoldExtended(
            at=hours(1),
            hold=HoldId("h1"),
            open=50,
            expires_at=hours(5),
            postings=events[0].postings,
        ),
    ) == events
    assert [("g1", "available → held", 20, hours(1))] == moves(events)
    hold = org.hold("h1")
    assert (50, hours(5), hours(1)) == (hold.open, hold.expires_at, hold.touched_at)
    org.rebuilds()


def test_an_extension_may_bring_only_credits_or_only_time() -> None:
    """What is not named stays (L6)."""
    org = Org()
    org.issue("g1", 100)
    org.reserve("h1", 30, until=hours(3))

    org.does(ask.extend("h1", 20))
    assert (50, hours(3)) == (org.hold("h1").open, org.hold("h1").expires_at)
    assert [] == moves(org.does(ask.extend("h1", until=hours(4))))
    assert (50, hours(4)) == (org.hold("h1").open, org.hold("h1").expires_at)


def test_an_extension_is_all_or_nothing() -> None:
    """What could have been had is told (L5)."""
    org = Org()
    org.issue("g1", 100)
    org.reserve("h1", 30)

    assert short(71, 70) == org.refuses(ask.extend("h1", 71))
    org.does(ask.extend("h1", 70))


def test_an_extension_never_draws_expired_grants() -> None:
    """What the hold has of them stays usable; more is not to be had (L10)."""
    org = Org()
    org.issue("old", 100, expires=hours(1))
    org.issue("new", 100)
    org.reserve("h1", 30)
    org.at(hours(1))

    org.does(ask.extend("h1", 20))

    assert {"old": 30, "new": 20} == org.draws("h1")
    assert short(81, 80) == org.refuses(ask.extend("h1", 81))


def test_a_limit_moves_to_later_only() -> None:
    """Never before the present one (L6)."""
    org = Org()
    org.issue("g1", 100)
    org.reserve("h1", 30, until=hours(3))

    figures = {"expires_at": hours(3) - 1, "present_expires_at": hours(3)}
    assert Refusal(Code.TIME_INVALID, figures) == org.refuses(ask.extend("h1", until=hours(3) - 1))
    org.does(ask.extend("h1", until=hours(3)))


def test_a_limit_cannot_be_moved_to_this_very_instant() -> None:
    """That it is no time is told before that the hold has just ended (L6)."""
    org = Org()
    org.issue("g1", 100)
    org.reserve("h1", 30, until=hours(3))
    org.at(hours(3))

    figures = {"expires_at": hours(3), "present_expires_at": hours(3)}
    assert Refusal(Code.TIME_INVALID, figures) == org.refuses(ask.extend("h1", until=hours(3)))


def test_the_longest_life_of_a_hold_counts_from_when_it_was_opened() -> None:
    """Extending again and again does not go around it (L10)."""
    org = Org()
    org.issue("g1", 100)
    org.reserve("h1", 30)
    org.later(hours=6)

    figures = {"expires_at": days(1) + 1, "latest": days(1)}
    assert Refusal(Code.HOLD_TOO_LONG, figures) == org.refuses(ask.extend("h1", until=days(1) + 1))
    org.does(ask.extend("h1", until=days(1)))


def test_an_extension_of_an_unknown_or_closed_hold_is_refused() -> None:
    """There is nothing to extend (L6)."""
    org = Org()
    org.issue("g1", 100)
    org.reserve("h1", 30)
    org.release("h1")

    assert Refusal(Code.HOLD_UNKNOWN, {"hold": "h9"}) == org.refuses(ask.extend("h9", 1))
    assert Refusal(Code.HOLD_CLOSED, {"hold": "h1", "closed_at": T0}) == org.refuses(
        ask.extend("h1", 1)
    )


# Debts and budgets


def test_debt_refuses_holds_and_extensions() -> None:
    """The account that owes is named: the nearest one (L13)."""
    org = Org()
    org.issue("g1", 100)
    org.reserve("h1", 30)
    org.does(ask.book_debt("d1", 7, of="org"))
    owing = Refusal(Code.DEBT_OUTSTANDING, {"account": "org", "owed": 7})

    assert owing == org.refuses(org.asking("h2", 1))
    assert owing == org.refuses(ask.extend("h1", 1))

    org.does(ask.book_debt("d2", 5, of="team"))
    owing = Refusal(Code.DEBT_OUTSTANDING, {"account": "team", "owed": 5})
    assert owing == org.refuses(org.asking("h2", 1))


def exceeded(budget: str, limit: int, counted: int, asked: int) -> Refusal:
    """That a budget of the day of T0 would be exceeded."""
    figures = {
        "budget": budget,
        "limit": limit,
        "counted": counted,
        "asked": asked,
        "headroom": limit - counted,
        "period_start": T0,
        "period_end": T0 + DAY,
    }
    return Refusal(Code.BUDGET_EXCEEDED, figures)


def test_a_hard_budget_refuses_holds_and_extensions() -> None:
    """What is held counts in full, so holds cannot slip past a limit together (L5, B3)."""
    org = Org()
    org.issue("g1", 1_000)
    org.budget("b1", 100, account="team")
    org.reserve("h1", 60)

    assert exceeded("b1", 100, 60, 41) == org.refuses(org.asking("h2", 41))
    assert exceeded("b1", 100, 60, 41) == org.refuses(ask.extend("h1", 41))
    org.does(ask.extend("h1", 10))
    org.reserve("h2", 30)
    assert exceeded("b1", 100, 100, 1) == org.refuses(org.asking("h3", 1))
    org.does(ask.drop_budget("b1"))
    org.reserve("h3", 800)
    org.rebuilds()


def test_a_hold_of_yesterday_counts_today() -> None:
    """An open hold claims its part of every period until it ends (B5)."""
    org = Org(prices(h100=PER_MS))
    org.issue("g1", 1_000)
    org.budget("b1", 100, account="team")
    org.reserve("h1", 60, context=gpus("h100"), until=hours(24))
    org.later(hours=23)
    org.charge("h1", 10)
    org.at(hours(24) - 1)
    org.does(ask.bounds(OrgPolicy(raw_hold_max=3 * DAY)))
    org.does(ask.extend("h1", until=hours(30)))

    org.at(hours(25))
    refusal = org.refuses(org.asking("h2", 51))

    assert Code.BUDGET_EXCEEDED == refusal.code
    assert (50, 51, 50) == tuple(refusal.figures[name] for name in ("counted", "asked", "headroom"))
    org.charge("h1", 10)
    org.reserve("h2", 50)
    org.rebuilds()


def test_a_soft_budget_refuses_nothing() -> None:
    """It tells when thresholds are crossed (B3)."""
    org = Org()
    org.issue("g1", 1_000)
    org.budget("b1", 100, account="team", hard=False)

    org.reserve("h1", 500)
    events = org.charge("h1", 500)

    assert ["ChargeBooked", "ThresholdCrossed"] == [type(event).__name__ for event in events]
    org.rebuilds()


def test_a_tier_brings_a_budget_for_each_user() -> None:
    """The free tier allows each user five credits a day; another tier takes that away (B3)."""
    org = Org()
    org.issue("g1", 20 * CREDIT)
    org.reserve("h1", 2 * CREDIT, user="ann")
    org.does(SetTier(tier="free"))

    refusal = org.refuses(org.asking("h2", 3 * CREDIT + 1, user="ann"))

    assert (Code.BUDGET_EXCEEDED, 3 * CREDIT) == (refusal.code, refusal.figures["headroom"])
    org.reserve("h2", 5 * CREDIT, user="bob")
    org.does(SetTier(tier="paid"))
    org.reserve("h3", 6 * CREDIT, user="ann")
    org.rebuilds()


def test_changing_a_limit_keeps_what_was_counted() -> None:
    """Also what open holds claim (B3)."""
    org = Org()
    org.issue("g1", 1_000)
    org.reserve("h1", 30)
    org.budget("b1", 100, account="team")
    org.charge("h1", 10)

    org.budget("b1", 50, account="team")

    assert exceeded("b1", 50, 30, 21) == org.refuses(org.asking("h2", 21))
    org.reserve("h2", 20)
    org.rebuilds()


# Asking before


def test_a_quote_tells_what_a_hold_would_be() -> None:
    """The same figures that the hold would have; nothing is changed (B1)."""
    org = Org(prices(a100=2 * PER_MS, h100=5 * PER_MS))
    org.issue("g1", 2_000)
    question = org.asking("h1", run_ms=1_000, context=gpus("h100", "a100"))

    answer = quote(org.journal.books, question, org.now)

    assert (
        Quote(
            held=2_000,
            likely=2_000,
            spendable=2_000,
            rates=(("a100", 2 * PER_MS),),
            price_versions=(PriceVersionId("v1"),),
            dropped=("h100",),
            forbidden=(),
        )
        == answer
    )
    org.does(question)
    assert 2_000 == org.hold("h1").open


def test_a_quote_tells_everything_that_stands_against_a_hold() -> None:
    """In the order of precedence; of several types, of the cheapest (B1)."""
    org = Org(prices(a100=2 * PER_MS, h100=5 * PER_MS))
    org.issue("g1", 300)
    org.budget("b1", 100, account="team")
    org.budget("b2", 200, account="org")
    org.does(ask.book_debt("d1", 7, of="team"))
    question = org.asking("h1", run_ms=200, context=gpus("h100", "a100"), until=T0)

    answer = quote(org.journal.books, question, org.now)

    debt = Refusal(Code.DEBT_OUTSTANDING, {"account": "team", "owed": 7})
    assert (0, 0) == (answer.held, answer.spendable)
    assert (
        Refusal(Code.TIME_INVALID, {"expires_at": T0, "now": T0}),
        debt,
        short(400, 300),
    ) == answer.forbidden
    answer = quote(org.journal.books, replace(question, expires_at=hours(1)), org.now)
    assert (
        debt,
        exceeded("b1", 100, 0, 400),
        exceeded("b2", 200, 0, 400),
        short(400, 300),
    ) == answer.forbidden


def test_a_quote_does_not_tell_what_stands_in_nobodys_way() -> None:
    """There are credits enough; only the debt forbids it (B1)."""
    org = Org()
    org.issue("g1", 300)
    org.does(ask.book_debt("d1", 7, of="team"))

    answer = quote(org.journal.books, org.asking("h1", 300), org.now)

    debt = Refusal(Code.DEBT_OUTSTANDING, {"account": "team", "owed": 7})
    assert (debt,) == answer.forbidden


def test_a_quote_of_an_amount_looks_at_all_types() -> None:
    """A grant must admit every one of them (L9, B1)."""
    org = Org(prices(a100=2 * PER_MS, h100=5 * PER_MS))
    org.issue("g1", 300, policy=GrantPolicy(gpu_types=frozenset({"a100"})))

    answer = quote(org.journal.books, org.asking("h1", 10, context=gpus("h100", "a100")), org.now)

    assert (short(10, 0),) == answer.forbidden


def test_a_quote_for_types_without_a_price_stops_there() -> None:
    """What it would come to is not known (B1)."""
    org = Org()
    question = org.asking("h1", run_ms=200, context=gpus("x1"), until=days(9))

    answer = quote(org.journal.books, question, org.now)

    assert (
        Refusal(Code.HOLD_TOO_LONG, {"expires_at": days(9), "latest": days(1)}),
        Refusal(Code.PRICE_UNKNOWN, {"gpu_types": ("x1",)}),
    ) == answer.forbidden


# Which refusal wins

Setup = Callable[[Org], Command]


def in_debt(org: Org) -> None:
    """Let the team owe something."""
    org.does(ask.book_debt("d1", 7, of="team"))


def known_hold(org: Org) -> Command:
    org.reserve("h1", 1)
    return org.asking("h1", 1, until=T0)


def long_known_hold(org: Org) -> Command:
    org.reserve("h1", 1)
    return org.asking("h1", 1, until=days(9))


def known_hold_of_unknown_user(org: Org) -> Command:
    org.reserve("h1", 1)
    return org.asking("h1", 1, user="eve")


def too_large(org: Org) -> Reserve:
    return org.asking("h1", run_ms=AMOUNT_MAX // 9 + 1, context=gpus("h100", count=9))


def ended_and_too_large(org: Org) -> Command:
    return replace(too_large(org), expires_at=T0)


def too_long_without_price(org: Org) -> Command:
    return org.asking("h1", run_ms=1, context=gpus("x1"), until=days(9))


def no_price_in_debt(org: Org) -> Command:
    in_debt(org)
    return org.asking("h1", run_ms=1, context=gpus("x1"))


def too_large_in_debt(org: Org) -> Command:
    in_debt(org)
    return too_large(org)


def in_debt_over_budget(org: Org) -> Command:
    in_debt(org)
    org.budget("b1", 0, account="org", every=PeriodKind.LIFETIME)
    return org.asking("h1", 1)


def over_budget_without_credits(org: Org) -> Command:
    org.budget("b1", 0, account="org", every=PeriodKind.LIFETIME)
    return org.asking("h1", 101)


RESERVE: dict[str, tuple[Setup, Code]] = {
    "account before user": (
        lambda org: org.asking("h1", 1, by="nobody", user="eve"),
        Code.ACCOUNT_UNKNOWN,
    ),
    "user before a known id": (known_hold_of_unknown_user, Code.USER_UNKNOWN),
    "a known id before a limit that has passed": (known_hold, Code.ALREADY_EXISTS),
    "a known id before a limit too far": (long_known_hold, Code.ALREADY_EXISTS),
    "a limit that has passed before an amount too large": (
        ended_and_too_large,
        Code.TIME_INVALID,
    ),
    "a limit too far before a missing price": (too_long_without_price, Code.HOLD_TOO_LONG),
    "a limit too far before an amount too large": (
        lambda org: replace(too_large(org), expires_at=days(9)),
        Code.HOLD_TOO_LONG,
    ),
    "a missing price before debt": (no_price_in_debt, Code.PRICE_UNKNOWN),
    "an amount too large before debt": (too_large_in_debt, Code.AMOUNT_TOO_LARGE),
    "debt before budgets": (in_debt_over_budget, Code.DEBT_OUTSTANDING),
    "budgets before credits": (over_budget_without_credits, Code.BUDGET_EXCEEDED),
}


@pytest.mark.parametrize(("setup", "code"), RESERVE.values(), ids=RESERVE)
def test_the_first_applicable_refusal_of_a_hold_is_answered(setup: Setup, code: Code) -> None:
    """When several apply, the first in the order of `Code` wins (L5)."""
    org = Org(prices(h100=PER_MS))
    org.issue("g1", 100)

    assert code == org.refuses(setup(org)).code


def sooner_and_too_large(org: Org) -> Command:
    return ask.extend("h1", AMOUNT_MAX, until=hours(1))


def sooner_and_closed(org: Org) -> Command:
    org.release("h1")
    return ask.extend("h1", 1, until=hours(1))


def too_long_and_too_large(org: Org) -> Command:
    return ask.extend("h1", AMOUNT_MAX, until=days(9))


def too_large_and_closed(org: Org) -> Command:
    org.charge("h1", 1)
    org.release("h1")
    return ask.extend("h1", AMOUNT_MAX)


def too_long_and_closed(org: Org) -> Command:
    org.release("h1")
    return ask.extend("h1", 1, until=days(9))


def closed_in_debt(org: Org) -> Command:
    org.release("h1")
    in_debt(org)
    return ask.extend("h1", 1)


def extended_in_debt_over_budget(org: Org) -> Command:
    in_debt_over_budget(org)
    return ask.extend("h1", 1)


def extended_over_budget_without_credits(org: Org) -> Command:
    over_budget_without_credits(org)
    return ask.extend("h1", 101)


EXTEND: dict[str, tuple[Setup, Code]] = {
    "an earlier limit before an amount too large": (sooner_and_too_large, Code.TIME_INVALID),
    "an earlier limit before a closed hold": (sooner_and_closed, Code.TIME_INVALID),
    "a limit too far before an amount too large": (too_long_and_too_large, Code.HOLD_TOO_LONG),
    "a limit too far before a closed hold": (too_long_and_closed, Code.HOLD_TOO_LONG),
    "an amount too large before a closed hold": (too_large_and_closed, Code.AMOUNT_TOO_LARGE),
    "a closed hold before debt": (closed_in_debt, Code.HOLD_CLOSED),
    "debt before budgets": (extended_in_debt_over_budget, Code.DEBT_OUTSTANDING),
    "budgets before credits": (extended_over_budget_without_credits, Code.BUDGET_EXCEEDED),
}


@pytest.mark.parametrize(("setup", "code"), EXTEND.values(), ids=EXTEND)
def test_the_first_applicable_refusal_of_an_extension_is_answered(setup: Setup, code: Code) -> None:
    """When several apply, the first in the order of `Code` wins (L6)."""
    org = Org()
    org.issue("g1", 100)
    org.reserve("h1", 10, until=hours(2))

    assert code == org.refuses(setup(org)).code


def test_the_price_of_a_tier_is_for_orgs_of_that_tier() -> None:
    """An org without a tier is of the lowest (B1)."""
    rates = {None: 9, "enterprise": 1, "free": 8}
    version = PriceVersion(
        id=PriceVersionId("v1"),
        effective_at=0,
        rates=tuple(
            Rate(gpu_type="h100", tier=tier, micros_per_gpu_hour=rate * PER_MS)
            for tier, rate in rates.items()
        ),
    )
    org = Org(version)
    org.issue("g1", 1_000)

    held = []
    for tier in (None, "paid", "enterprise"):
        if tier is not None:
            org.does(SetTier(tier=tier))
        org.reserve(f"of {tier}", run_ms=10, context=gpus("h100"))
        held.append(org.hold(f"of {tier}").open)

    assert [80, 90, 10] == held
