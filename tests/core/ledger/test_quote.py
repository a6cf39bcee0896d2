"""What a hold would cost and what forbids it, before it is asked for (B1)."""

from dataclasses import replace

import pytest

from bursar.core.ids import HoldId, PriceVersionId
from bursar.core.instant import HOUR
from bursar.core.ledger.commands import Reserve
from bursar.core.ledger.events import ChargeBooked, HoldOpened
from bursar.core.ledger.journal import rebuild
from bursar.core.ledger.quote import Quote, quote
from bursar.core.ledger.values import GrantPolicy
from bursar.core.money import AMOUNT_MAX
from bursar.core.pricing import PriceBook, PriceVersion, Rate
from bursar.core.refusal import Code, Refusal
from tests.support import commands as ask
from tests.support.builders import T0, Org, days, gpus, hours, prices

HOUR_MS = 3_600_000


def quoted(org: Org, asked: Reserve, likely_ms: int | None = None) -> Quote:
    """A quote; asking for it changes nothing."""
    before = org.journal.books.facts()
    found = quote(org.journal.books, asked, org.now, likely_ms)
    assert before == org.journal.books.facts(), "a quote changed something"
    return found


def forbidden(org: Org, asked: Reserve) -> list[str]:
    """The codes of all that forbids a hold; the first is what would be answered."""
    found = quoted(org, asked).forbidden
    assert org.refuses(asked) == found[0]
    return [str(one.code) for one in found]


# What it would cost


def test_a_quote_tells_what_would_be_held_and_what_is_likely_charged() -> None:
    """Held: the longest run at the dearest rate; likely: the expected run on the preferred (B1)."""
    org = Org(prices(h100=1_000, l4=3_000))
    org.issue("g", 50_000)
    asked = org.asking("h", run_ms=8 * HOUR_MS, context=gpus("h100", "l4", count=2))

    assert Quote(
        held=48_000,
        likely=4_000,
        spendable=50_000,
        rates=(("h100", 1_000), ("l4", 3_000)),
        price_versions=(PriceVersionId("v1"), PriceVersionId("v1")),
        dropped=(),
        forbidden=(),
    ) == quoted(org, asked, 2 * HOUR_MS)


def test_without_an_expected_run_all_that_is_held_is_likely() -> None:
    """As it is for a hold that no run time can be charged to (B1)."""
    org = Org(prices(h100=1_000))
    org.issue("g", 50_000)
    metered = org.asking("h", run_ms=HOUR_MS, context=gpus("h100"))

    assert 1_000 == quoted(org, metered).likely
    assert 700 == quoted(org, org.asking("h", 700), HOUR_MS).likely
    assert 700 == quoted(org, org.asking("h", 700, context=gpus("h100", count=0)), HOUR_MS).likely


def test_no_more_than_is_held_is_likely() -> None:
    """However long the run is expected to take (B1)."""
    org = Org(prices(h100=1_000))
    org.issue("g", 50_000)

    assert [0, 500, 1_000, 1_000] == [
        quoted(org, org.asking("h", run_ms=HOUR_MS, context=gpus("h100")), likely_ms).likely
        for likely_ms in (0, HOUR_MS // 2, HOUR_MS, 2 * HOUR_MS)
    ]


def test_a_quote_for_an_amount_has_the_rates_it_would_keep() -> None:
    """If prices are known for its types, run time can be charged to it (B1)."""
    org = Org(prices(h100=1_000))
    org.issue("g", 50_000)
    asked = org.asking("h", 300, context=gpus("h100", "unknown"))

    found = quoted(org, asked, HOUR_MS // 5)

    assert (300, 200) == (found.held, found.likely)
    assert (("h100", 1_000),) == found.rates


def test_a_quote_has_the_spendable_credits_for_the_job() -> None:
    """By its grant policies and its user's budgets (B1, L8)."""
    org = Org(prices(h100=1_000))
    org.issue("any", 5_000)
    org.issue("eu", 50_000, policy=GrantPolicy(regions=frozenset({"eu"})))
    org.budget("ann", 20_000, user="ann")

    def spendable(region: str, user: str) -> int:
        context = gpus("h100", region=region)
        return quoted(org, org.asking("h", 1, context=context, user=user)).spendable

    assert [5_000, 20_000, 5_000, 55_000] == [
        spendable("us", "ann"),
        spendable("eu", "ann"),
        spendable("us", "bob"),
        spendable("eu", "bob"),
    ]


def test_types_that_cannot_be_priced_or_funded_are_dropped() -> None:
    """In the order of preference; the hold is sized by those that are left (M1, B1)."""
    org = Org(prices(h100=9_000, a100=5_000, l4=1_000))
    org.issue("g", 5_000)
    asked = org.asking("h", run_ms=HOUR_MS, context=gpus("h100", "new", "l4", "a100"))

    found = quoted(org, asked)

    assert (5_000, ("h100", "new")) == (found.held, found.dropped)
    assert (("l4", 1_000), ("a100", 5_000)) == found.rates
    assert () == found.forbidden


def test_a_quote_sees_what_falls_due() -> None:
    """Credits of a hold past its limit can be quoted again; it may name the same hold (B1)."""
    org = Org()
    org.issue("g", 100)
    org.reserve("h1", 100, until=hours(1))

    assert [str(Code.INSUFFICIENT_CREDITS)] == forbidden(org, org.asking("h2", 100))
    org.at(hours(1))
    assert (100, ()) == (
        quoted(org, org.asking("h2", 100)).held,
        quoted(org, org.asking("h2", 100)).forbidden,
    )


# The price shown is the price charged


def test_the_price_shown_is_the_price_charged() -> None:
    """A price that rises after the hold was opened does not matter to it (B1)."""
    org = Org(prices("v1", h100=1_000), prices("v2", effective_at=hours(1), h100=2_000))
    org.issue("g", 50_000)
    asked = org.asking("h", run_ms=3 * HOUR_MS, context=gpus("h100"))
    shown = quoted(org, asked, 3 * HOUR_MS)
    [opened] = org.does(asked)
    assert isinstance(opened, HoldOpened)

    org.at(hours(3))
    [charged] = org.reading("h", 3 * HOUR_MS)

    assert isinstance(charged, ChargeBooked)
    assert (3_000, 3_000, 3_000) == (shown.held, shown.likely, charged.amount)
    assert (shown.rates, ("v1",)) == (opened.terms.rates, opened.terms.price_versions)
    assert ("v1",) == shown.price_versions


@pytest.mark.parametrize(
    ("at", "rate"),
    [(hours(1) - 1, 1_000), (hours(1), 2_000), (hours(2) - 1, 2_000), (hours(2), 500)],
)
def test_a_version_counts_from_its_effective_date(at: int, rate: int) -> None:
    """To the microsecond (B1)."""
    org = Org(
        prices("v1", h100=1_000),
        prices("v2", effective_at=hours(1), h100=2_000),
        prices("v3", effective_at=hours(2), h100=500),
    )
    org.issue("g", 50_000)
    org.at(at)

    found = quoted(org, org.asking("h", run_ms=HOUR_MS, context=gpus("h100")))

    assert (rate, (("h100", rate),)) == (found.held, found.rates)


def test_an_attempt_that_starts_when_it_is_cheaper_pays_less_than_was_shown() -> None:
    """Never more (B1)."""
    org = Org(prices("v1", h100=1_000), prices("v2", effective_at=hours(1), h100=400))
    org.issue("g", 50_000)
    asked = org.asking("h", run_ms=HOUR_MS, context=gpus("h100"))
    assert 1_000 == quoted(org, asked).likely
    org.does(asked)
    org.at(hours(1))
    org.starts("h", "h100", run_ms=HOUR_MS)
    org.later(hours=1)

    [charged] = org.reading("h", HOUR_MS)

    assert isinstance(charged, ChargeBooked)
    assert 400 == charged.amount


def test_a_change_of_the_deployments_prices_is_no_event_of_the_org() -> None:
    """It counts from then on; what happened before, and what rebuilds it, stays (L1, B1)."""
    org = Org(prices("list", h100=1_000))
    org.issue("g", 50_000)
    org.reserve("before", run_ms=HOUR_MS, context=gpus("h100"))
    facts = org.journal.books.facts()

    org.journal.books.deployment = PriceBook(versions=(prices("next", h100=3_000),))

    assert facts == org.journal.books.facts()
    assert (("h100", 3_000),) == quoted(
        org, org.asking("h", run_ms=HOUR_MS, context=gpus("h100"))
    ).rates
    org.reserve("after", run_ms=HOUR_MS, context=gpus("h100"))
    assert [("list",), ("next",)] == [
        org.hold(name).terms.price_versions for name in ("before", "after")
    ]
    assert facts != org.journal.books.facts() == rebuild(org.journal.events).facts()


def test_prices_of_the_org_go_before_those_of_the_deployment() -> None:
    """Where they have a matching rate, from when they are effective (B1)."""
    org = Org(prices("all", h100=1_000, l4=100))
    org.issue("g", 50_000)
    org.price(prices("mine", effective_at=hours(1), h100=700))
    org.price(
        PriceVersion(
            id=prices("eu").id,
            effective_at=hours(2),
            rates=(
                Rate(gpu_type="h100", region="eu", micros_per_gpu_hour=600),
                Rate(gpu_type="h100", micros_per_gpu_hour=800),
            ),
        )
    )

    def rates(region: str | None = None) -> tuple[tuple[str, int], ...]:
        context = gpus("h100", "l4", region=region)
        return quoted(org, org.asking("h", run_ms=1, context=context)).rates

    assert (("h100", 1_000), ("l4", 100)) == rates()
    org.at(hours(1))
    assert (("h100", 700), ("l4", 100)) == rates(region="eu")
    org.at(hours(2))
    assert (("h100", 600), ("l4", 100)) == rates(region="eu")
    assert (("h100", 800), ("l4", 100)) == rates(region="us")


# What forbids it


def test_a_quote_lists_all_refusals_in_order() -> None:
    """Debt, each hard budget on the path, credits: with the figures of each (B1)."""
    org = Org(prices(h100=1_000))
    org.issue("g", 600, policy=GrantPolicy(regions=frozenset({"eu"})))
    org.budget("team", 900, account="team")
    org.budget("fine", 5_000, account="team")
    org.budget("soft", 1, account="team", hard=False)
    org.budget("org", 999, account="org")
    org.budget("user", 0, user="ann")
    org.does(ask.book_debt("d1", 7, of="team"))
    org.does(ask.book_debt("d2", 9, of="org"))
    asked = org.asking("h", run_ms=HOUR_MS, context=gpus("h100", region="eu"))

    found = quoted(org, asked)

    assert (0, 0, 0) == (found.held, found.likely, found.spendable)
    assert ((("h100", 1_000),), ()) == (found.rates, found.dropped)
    assert org.refuses(asked) == found.forbidden[0]
    debt, team, root, user, short = found.forbidden
    assert Refusal(Code.DEBT_OUTSTANDING, {"account": "team", "owed": 7}) == debt
    assert [("team", 900), ("org", 999), ("user", 0)] == [
        (one.figures["budget"], one.figures["headroom"]) for one in (team, root, user)
    ]
    assert {Code.BUDGET_EXCEEDED} == {one.code for one in (team, root, user)}
    assert (
        Refusal(Code.INSUFFICIENT_CREDITS, {"asked": 1_000, "spendable": 600, "short": 400})
        == short
    )


def test_an_unknown_account_forbids_all_else() -> None:
    """Nothing more can be said (B1)."""
    org = Org(prices(h100=1_000))
    asked = org.asking("h", run_ms=HOUR_MS, context=gpus("h100"), by="nobody", user="nobody")

    found = quoted(org, asked)

    assert (Refusal(Code.ACCOUNT_UNKNOWN, {"account": "nobody"}),) == found.forbidden
    assert (0, 0, 0, (("h100", 1_000),)) == (
        found.held,
        found.likely,
        found.spendable,
        found.rates,
    )


def test_a_quote_lists_errors_of_the_request_and_missing_credits() -> None:
    """An unknown user, a hold that exists, an expiry in the past or too far (B1)."""
    org = Org()
    org.issue("g", 10)
    org.reserve("h1", 1)
    short = str(Code.INSUFFICIENT_CREDITS)

    assert [str(Code.USER_UNKNOWN), short] == forbidden(org, org.asking("h2", 10, user="nobody"))
    assert [str(Code.ALREADY_EXISTS), short] == forbidden(org, org.asking("h1", 10))
    assert [str(Code.TIME_INVALID), short] == forbidden(org, org.asking("h2", 10, until=T0))
    far = org.asking("h2", 10, until=days(1) + 1)
    assert [str(Code.HOLD_TOO_LONG), short] == forbidden(org, far)
    assert [str(Code.HOLD_TOO_LONG)] == forbidden(org, replace(far, amount=9))


def test_a_run_without_a_price_is_forbidden() -> None:
    """Its cost is not known, so nothing can be said of budgets and credits (B1)."""
    org = Org(prices(h100=1_000))
    org.budget("b", 0, account="org")
    asked = org.asking("h", run_ms=HOUR_MS, context=gpus("new", "newer"))

    found = quoted(org, asked)

    unknown = Refusal(Code.PRICE_UNKNOWN, {"gpu_types": ("new", "newer")})
    assert (unknown,) == found.forbidden
    assert ((), 0) == (found.rates, found.held)
    late = replace(asked, expires_at=T0)
    assert [str(Code.TIME_INVALID), str(Code.PRICE_UNKNOWN)] == forbidden(org, late)


def test_more_than_there_can_be_is_forbidden() -> None:
    """An amount beyond 2^53 − 1 (B1)."""
    org = Org(prices(h100=AMOUNT_MAX))
    asked = org.asking("h", run_ms=HOUR_MS + 1, context=gpus("h100"))

    found = quoted(org, asked)

    amount = AMOUNT_MAX * (HOUR_MS + 1) // HOUR_MS
    assert (
        Refusal(Code.AMOUNT_TOO_LARGE, {"amount": amount, "most": AMOUNT_MAX}),
        Refusal(Code.INSUFFICIENT_CREDITS, {"asked": amount, "spendable": 0, "short": amount}),
    ) == found.forbidden
    assert [str(Code.INSUFFICIENT_CREDITS)] == forbidden(org, replace(asked, run_ms=HOUR_MS))


def test_of_several_types_the_cheapest_tells_what_forbids() -> None:
    """The first in preference among equals; what the dearer lack as well is not told (B1, M1)."""
    org = Org(prices(h100=9_000, l4=1_000, t4=1_000))
    org.issue("g", 500)
    org.issue("l4", 100, policy=GrantPolicy(gpu_types=frozenset({"l4"})))
    org.issue("t4", 200, policy=GrantPolicy(gpu_types=frozenset({"t4"})))
    asked = org.asking("h", run_ms=HOUR_MS, context=gpus("h100", "l4", "t4"))

    found = quoted(org, asked)

    short = {"asked": 1_000, "spendable": 600, "short": 400}
    assert (Refusal(Code.INSUFFICIENT_CREDITS, short),) == found.forbidden
    assert org.refuses(asked) == found.forbidden[0]
    assert (("h100", 9_000), ("l4", 1_000), ("t4", 1_000)) == found.rates
    assert 500 == found.spendable


def test_exactly_enough_credits_are_not_refused() -> None:
    """All spendable credits can be held; one more cannot (B1)."""
    org = Org()
    org.issue("g", 100)
    org.budget("b", 100, account="org")

    assert () == quoted(org, org.asking("h", 100)).forbidden
    assert [str(Code.BUDGET_EXCEEDED), str(Code.INSUFFICIENT_CREDITS)] == forbidden(
        org, org.asking("h", 101)
    )


def test_a_quote_asks_for_a_hold_of_its_own_length() -> None:
    """A metered hold claims of a budget only what it can spend before its limit (B1, B5)."""
    org = Org(prices(h100=1_000))
    org.issue("g", 50_000)
    org.budget("b", 2_000, account="org")
    asked = org.asking("h", run_ms=9 * HOUR_MS, context=gpus("h100"), until=T0 + 2 * HOUR)

    assert (9_000, ()) == (quoted(org, asked).held, quoted(org, asked).forbidden)
    longer = replace(asked, hold=HoldId("h2"), expires_at=T0 + 2 * HOUR + 3_600_000)
    assert [str(Code.BUDGET_EXCEEDED)] == forbidden(org, longer)


def test_a_quote_tells_every_fault_of_the_request() -> None:
    """Not only the first, so that all can be mended at once (B1)."""
    org = Org()
    org.issue("g", 100)
    org.reserve("h", 1)
    asked = org.asking("h", 1, user="nobody", until=T0)

    told = [one.code for one in quote(org.journal.books, asked, org.now).forbidden]

    assert [Code.USER_UNKNOWN, Code.ALREADY_EXISTS, Code.TIME_INVALID] == told
