"""What a grant may be spent on, how much of a hold it may carry, and what never comes back (L9).

A policy is honoured alike when credits are set aside, when a charge goes beyond them, and when
somebody asks what is spendable.
"""

import pytest

from bursar.core.ids import AccountId
from bursar.core.ledger.balance import balance
from bursar.core.ledger.quote import quote
from bursar.core.ledger.values import Context, CreditKind, GrantPolicy
from bursar.core.refusal import Code, Refusal
from tests.support import commands as ask
from tests.support.builders import PER_MS, Org, Parts, gpus, hours, moves, prices

NAMED = Context(gpu_types=("h100",), region="eu", job_kind="train", priority_class="batch")
CASES = {
    "gpu types": (GrantPolicy(gpu_types=frozenset({"h100", "a100"})), Context(gpu_types=("l4",))),
    "regions": (GrantPolicy(regions=frozenset({"eu"})), Context(region="us")),
    "job kinds": (GrantPolicy(job_kinds=frozenset({"train"})), Context(job_kind="serve")),
    "classes": (GrantPolicy(priority_classes=frozenset({"batch"})), Context(priority_class="prod")),
}
HALF = GrantPolicy(max_share_ppm=500_000)


def spendable(org: Org, context: Context, *, by: str = "project") -> int:
    """What a hold for the context could take now."""
    return balance(org.journal.books, AccountId(by), org.now, context=context).spendable


@pytest.mark.parametrize(("policy", "other"), CASES.values(), ids=CASES)
def test_a_restricted_dimension_must_contain_what_is_asked_for(
    policy: GrantPolicy, other: Context
) -> None:
    """Named and admitted: held. Named otherwise, or not named at all: refused (L9)."""
    org = Org()
    org.issue("promo", 100, kind=CreditKind.PROMO, policy=policy)
    none = Refusal(Code.INSUFFICIENT_CREDITS, {"asked": 60, "spendable": 0, "short": 60})

    assert none == org.refuses(org.asking("h1", 60, context=other))
    assert none == org.refuses(org.asking("h1", 60))
    org.reserve("h1", 60, context=NAMED)

    assert {"promo": 60} == org.draws("h1")
    assert (40, 0, 0) == (
        spendable(org, NAMED),
        spendable(org, other),
        spendable(org, Context()),
    )


@pytest.mark.parametrize(("policy", "other"), CASES.values(), ids=CASES)
def test_a_charge_beyond_its_hold_extends_into_admitted_grants_only(
    policy: GrantPolicy, other: Context
) -> None:
    """An overrun is paid by a grant that admits the hold's context, else owed (L9, L13)."""
    for context, owed in ((NAMED, 0), (other, 20)):
        org = Org()
        org.issue("base", 60)
        org.reserve("h1", 60, context=context)
        org.issue("promo", 100, kind=CreditKind.PROMO, policy=policy)

        org.charge("h1", 80)

        assert owed == org.owed("h1")
        assert Parts(available=80 + owed, spent=20 - owed) == org.parts("promo")


def test_all_acceptable_gpu_types_must_be_admitted() -> None:
    """A hold that may run on any of its types draws grants that admit every one (L9, M1)."""
    org = Org()
    org.issue("promo", 100, policy=GrantPolicy(gpu_types=frozenset({"h100", "a100"})))

    org.reserve("h1", 10, context=gpus("a100", "h100"))
    org.reserve("h2", 10, context=gpus("a100"))

    refusal = org.refuses(org.asking("h3", 10, context=gpus("h100", "l4")))
    assert Refusal(Code.INSUFFICIENT_CREDITS, {"asked": 10, "spendable": 0, "short": 10}) == refusal


def test_a_policy_for_accounts_admits_them_and_all_below() -> None:
    """A promotion of the org for one team serves its projects, not the org itself (L9)."""
    org = Org()
    org.issue("promo", 100, policy=GrantPolicy(accounts=frozenset({AccountId("team")})))

    org.reserve("h1", 10, by="project")
    org.reserve("h2", 10, by="team")

    refusal = org.refuses(org.asking("h3", 10, by="org"))
    assert Refusal(Code.INSUFFICIENT_CREDITS, {"asked": 10, "spendable": 0, "short": 10}) == refusal
    assert (80, 80, 0) == tuple(
        spendable(org, Context(), by=account) for account in ("project", "team", "org")
    )


def test_all_restricted_dimensions_must_admit() -> None:
    """One that does not is enough to refuse (L9)."""
    org = Org()
    org.issue(
        "promo", 100, policy=GrantPolicy(gpu_types=frozenset({"h100"}), regions=frozenset({"eu"}))
    )

    assert 100 == spendable(org, gpus("h100", region="eu"))
    assert 0 == spendable(org, gpus("h100", region="us"))
    assert 0 == spendable(org, gpus("l4", region="eu"))


# Share caps


def test_a_hold_of_100_draws_at_most_50_from_a_grant_capped_at_half() -> None:
    """Planning follows the share at the hold's total (L9)."""
    org = Org()
    org.issue("promo", 1_000, kind=CreditKind.PROMO, policy=HALF)
    org.issue("paid", 1_000)

    org.reserve("h1", 100)

    assert {"promo": 50, "paid": 50} == org.draws("h1")


def test_after_each_charge_the_share_holds() -> None:
    """Charged from the grant is at most floor(share × running total), each time (L9)."""
    org = Org()
    org.issue("promo", 1_000, kind=CreditKind.PROMO, policy=HALF)
    org.issue("paid", 1_000)
    org.reserve("h1", 100)

    steps = [
        [(grant, amount) for grant, _, amount, _ in moves(org.charge("h1", more))]
        for more in (1, 1, 3, 30, 65)
    ]

    assert [
        [("paid", 1)],  # of 1 in all: at most 0
        [("promo", 1)],  # of 2: 1
        [("promo", 1), ("paid", 2)],  # of 5: 2
        [("promo", 15), ("paid", 15)],  # of 35: 17
        [("promo", 33), ("paid", 32)],  # of 100: 50
    ] == steps
    assert 0 == org.hold("h1").open


def test_a_share_is_rounded_down() -> None:
    """A third of 100 is 33 (L9)."""
    org = Org()
    org.issue("promo", 1_000, kind=CreditKind.PROMO, policy=GrantPolicy(max_share_ppm=333_333))
    org.issue("paid", 1_000)

    org.reserve("h1", 100)

    assert {"promo": 33, "paid": 67} == org.draws("h1")


def test_spendable_counts_a_capped_grant_by_its_share() -> None:
    """With 30 free, half of the hold can come from the promotion: 60 in total (L8, L9)."""
    org = Org()
    org.issue("promo", 1_000, kind=CreditKind.PROMO, policy=HALF)
    assert 0 == spendable(org, Context())
    org.issue("paid", 30)

    assert 60 == spendable(org, Context())
    refusal = org.refuses(org.asking("h1", 61))
    assert Refusal(Code.INSUFFICIENT_CREDITS, {"asked": 61, "spendable": 60, "short": 1}) == refusal
    org.reserve("h1", 60)
    assert {"promo": 30, "paid": 30} == org.draws("h1")


def test_a_capped_grant_that_is_small_gives_what_it_has() -> None:
    """The cap is a bound, not a claim (L9)."""
    org = Org()
    org.issue("promo", 10, kind=CreditKind.PROMO, policy=HALF)
    org.issue("paid", 100)

    assert 110 == spendable(org, Context())
    org.reserve("h1", 110)
    assert {"promo": 10, "paid": 100} == org.draws("h1")


def test_two_capped_grants_together_can_carry_a_whole_hold() -> None:
    """Half and half (L9)."""
    org = Org()
    org.issue("a", 100, policy=HALF)
    org.issue("b", 100, policy=HALF)

    assert 200 == spendable(org, Context())
    org.reserve("h1", 200)
    assert {"a": 100, "b": 100} == org.draws("h1")


def test_the_rounding_remainder_of_two_capped_grants_is_an_overrun() -> None:
    """Of 3, each may pay floor(1.5) = 1: the third is owed until others can pay it (L9, L13)."""
    org = Org()
    org.issue("a", 50, policy=HALF)
    org.issue("b", 50, policy=HALF)
    org.reserve("h1", 100)

    assert [("a", "held → spent", 1, org.now), ("b", "held → spent", 1, org.now)] == moves(
        org.charge("h1", 3)
    )
    assert 1 == org.owed("h1")
    org.release("h1")
    assert 1 == org.owed("h1"), "their own return cannot pay it: the caps stand"

    org.issue("paid", 10)
    assert 0 == org.owed("h1")
    assert Parts(available=9, spent=1) == org.parts("paid")
    org.rebuilds()


def test_an_extension_of_a_hold_counts_what_it_has_against_the_share() -> None:
    """The cap looks at the hold's new total, and at all that came from the grant (L9)."""
    org = Org()
    org.issue("promo", 1_000, kind=CreditKind.PROMO, policy=HALF)
    org.issue("paid", 1_000)
    org.reserve("h1", 100)
    org.charge("h1", 40)

    events = org.does(ask.extend("h1", 20))

    assert [
        ("promo", "available → held", 10, org.now),
        ("paid", "available → held", 10, org.now),
    ] == moves(events)


def test_an_overrun_pays_from_a_capped_grant_up_to_its_share() -> None:
    """Caps hold in an extension too, at the new running total (L9, L13)."""
    org = Org()
    org.issue("paid", 60)
    org.reserve("h1", 60)
    org.issue("promo", 1_000, kind=CreditKind.PROMO, policy=GrantPolicy(max_share_ppm=250_000))

    org.charge("h1", 100)

    assert Parts(available=975, spent=25) == org.parts("promo")
    assert 15 == org.owed("h1")


def test_a_share_is_more_than_nothing_and_at_most_all() -> None:
    """A policy refuses to exist with a share out of range (D7)."""
    assert not GrantPolicy(max_share_ppm=1_000_000).capped
    assert GrantPolicy(max_share_ppm=1).capped
    for ppm in (0, 1_000_001):
        with pytest.raises(ValueError, match=f"^max_share_ppm is 1 to 1000000, not {ppm}$"):
            GrantPolicy(max_share_ppm=ppm)
    with pytest.raises(TypeError, match=r"^max_share_ppm is a whole number"):
        GrantPolicy(max_share_ppm=0.5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "field", ["gpu_types", "regions", "accounts", "job_kinds", "priority_classes"]
)
def test_a_policy_names_what_it_admits(field: str) -> None:
    """Empty text is no name (L9)."""
    with pytest.raises(ValueError, match=f"^{field} is 1 to 255 bytes long, not 0$"):
        GrantPolicy(**{field: frozenset({""})})  # type: ignore[arg-type]


def test_policies_are_equal_by_what_they_say() -> None:
    """And have equal hashes then: lanes of grants go by them (L16)."""
    one, two = GrantPolicy(regions=frozenset({"eu"})), GrantPolicy(regions=frozenset({"eu"}))

    assert one == two
    assert hash(one) == hash(two)
    assert 5 == len(
        {one, two, HALF, GrantPolicy(), GrantPolicy(refundable=False), GrantPolicy(max_share_ppm=1)}
    )


# Non-refundable


def test_the_never_charged_part_of_a_non_refundable_grant_always_returns() -> None:
    """Setting aside is not spending (L9, IL7)."""
    org = Org()
    org.issue("promo", 100, policy=GrantPolicy(refundable=False))
    org.reserve("h1", 80)
    org.charge("h1", 30)
    org.refund("h1", 10)
    org.release("h1")

    assert Parts(available=70, spent=30) == org.parts("promo")


def test_a_reversal_of_a_non_refundable_grant_lapses() -> None:
    """What was spent once is never available again (L9, L11, IL7)."""
    org = Org()
    org.issue("promo", 100, policy=GrantPolicy(refundable=False))
    org.reserve("h1", 80)
    org.charge("h1", 30, "c")

    events = org.does(ask.reverse("c", reissue_until=hours(5)))

    assert [("promo", "spent → lapsed", 30, org.now)] == moves(events)
    assert Parts(available=20, held=50, lapsed=30) == org.parts("promo")
    assert 30 == org.grant("promo").forfeited
    assert 20 == org.grant("promo").free


def test_given_back_work_of_a_non_refundable_grant_lapses() -> None:
    """The hold does not get it back either (L9, M3)."""
    org = Org(prices(h100=PER_MS))
    org.issue("promo", 100, kind=CreditKind.PROMO, policy=GrantPolicy(refundable=False))
    org.issue("paid", 100)
    org.reserve("h1", run_ms=150, context=gpus("h100"))
    org.reading("h1", 120)

    events = org.does(ask.give_back("h1", kept_ms=70))

    assert [
        ("paid", "spent → held", 20, org.now),
        ("promo", "spent → lapsed", 30, org.now),
    ] == moves(events)
    assert Parts(spent=70, lapsed=30) == org.parts("promo")
    assert Parts(available=50, held=50) == org.parts("paid")
    assert (70, 50) == (org.hold("h1").used, org.hold("h1").open)


def test_forfeited_credits_pay_no_late_usage() -> None:
    """They are not free: never usable again (L9, L12)."""
    org = Org()
    org.issue("promo", 100, policy=GrantPolicy(refundable=False))
    org.reserve("h1", 100)
    org.charge("h1", 60, "c")
    org.does(ask.reverse("c"))
    org.release("h1")
    org.later(minutes=1)

    org.late("h1", 70, when=org.now)

    assert Parts(spent=40, lapsed=60) == org.parts("promo")
    assert 30 == org.owed("h1")
    org.rebuilds()


def test_a_refusal_under_caps_tells_what_is_missing_for_that_very_amount() -> None:
    """Two halves of three are one each: 200 could be held, three cannot (L9)."""
    org = Org()
    half = GrantPolicy(max_share_ppm=500_000)
    org.issue("a", 100, policy=half)
    org.issue("b", 100, policy=half)

    refusal = org.refuses(org.asking("h1", 3))

    assert {"asked": 3, "spendable": 2, "short": 1} == refusal.figures
    assert (refusal,) == quote(org.journal.books, org.asking("h1", 3), org.now).forbidden
    org.reserve("h1", 200)
