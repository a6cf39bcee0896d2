"""What an account owns, can spend, has used and owes (L8)."""

from dataclasses import asdict

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bursar.core.budgets.periods import PeriodKind
from bursar.core.ids import AccountId, GrantId, UserId
from bursar.core.instant import DAY, HOUR, NEVER, SECOND, Instant
from bursar.core.ledger.balance import (
    Balance,
    Burn,
    Expiring,
    Owned,
    balance,
    by_grant,
    expiring,
    sum_expiring,
    sum_views,
)
from bursar.core.ledger.books import BURN_SLOT
from bursar.core.ledger.decide import decide, view_at
from bursar.core.ledger.evolve import evolve
from bursar.core.ledger.history import view_grants
from bursar.core.ledger.spendable import spendable_credits
from bursar.core.ledger.tables import NotLoaded
from bursar.core.ledger.values import Context, CreditKind, GrantPolicy
from bursar.core.refusal import Refusal
from tests.support import commands as ask
from tests.support.builders import T0, Org, Parts, days, gpus, hours
from tests.support.partial_books import Loader

ORG = AccountId("org")


def seen(org: Org, account: str = "org", **more: object) -> Balance:
    """The balance of an account now."""
    return balance(org.journal.books, AccountId(account), org.now, **more)  # type: ignore[arg-type]


def owned(found: Owned) -> Parts:
    """Compartments in the words of the tests."""
    return Parts(**asdict(found))


def spendable(org: Org, account: str = "project", **more: object) -> int:
    """What an account can spend now."""
    return seen(org, account, **more).spendable


def coming(org: Org, within: int, account: str = "org") -> list[Expiring]:
    """What lapses within a span from now."""
    return list(expiring(org.journal.books, AccountId(account), org.now, within))


# Owned


def test_owned_credits_are_the_sum_of_the_accounts_own_grants() -> None:
    """Each micro-credit in one compartment, by kind and in total; not those above or below (L8)."""
    org = Org()
    org.issue("paid", 100)
    org.issue("promo", 50, kind=CreditKind.PROMO, expires=days(9))
    org.issue("grant", 30, kind=CreditKind.GRANT)
    org.issue("below", 1_000, to="team")
    org.reserve("h1", 70, by="org")
    org.charge("h1", 60)
    org.does(ask.transfer("paid", 5, to="team"))
    org.does(ask.revoke("grant"))

    found = seen(org)

    assert ("org", T0) == (found.account, found.at)
    assert {
        CreditKind.PROMO: Parts(spent=50),
        CreditKind.GRANT: Parts(spent=10, held=10, revoked=10),
        CreditKind.PAID: Parts(available=95, moved=5),
    } == {kind: owned(parts) for kind, parts in found.by_kind.items()}
    assert Parts(available=95, spent=60, held=10, revoked=10, moved=5) == owned(found.owned)
    assert Parts(available=1_005) == owned(seen(org, "team").owned)
    assert Parts() == owned(seen(org, "project").owned)


def test_expired_credits_are_shown_as_lapsed_before_the_lapse_is_recorded() -> None:
    """From the very instant; a sweep changes nothing that is shown (L8, L10, IL10)."""
    org = Org()
    org.issue("g1", 100, expires=hours(1))
    org.issue("g2", 7, kind=CreditKind.PROMO, expires=hours(1))
    org.reserve("h1", 30, by="org")

    org.at(hours(1) - 1)
    assert Parts(available=77, held=30) == owned(seen(org).owned)
    org.at(hours(1))
    unswept = seen(org)
    assert Parts(held=30, lapsed=77) == owned(unswept.owned)
    assert Parts(held=23, lapsed=77) == owned(unswept.by_kind[CreditKind.PAID])
    assert 0 == unswept.spendable
    org.does(ask.lapse())
    assert unswept == seen(org)


def test_credits_that_have_not_started_are_owned_but_not_spendable() -> None:
    """Until the instant they start (L3, L8)."""
    org = Org()
    org.issue("g", 100, starts=hours(1))

    assert Parts(available=100) == owned(seen(org).owned)
    assert 0 == spendable(org)
    org.at(hours(1) - 1)
    assert 0 == spendable(org)
    org.at(hours(1))
    assert 100 == spendable(org)


def test_a_balance_sees_what_has_fallen_due() -> None:
    """A hold past its limit has given its credits back, though nobody wrote it down (L8)."""
    org = Org()
    org.issue("g", 100)
    org.reserve("h1", 60, until=hours(1))
    org.at(hours(1))

    assert Parts(available=100) == owned(seen(org).owned)
    assert 100 == spendable(org)
    assert org.journal.books.header.now < org.now


def test_each_grant_is_listed_with_its_compartments() -> None:
    """All that an account was ever issued, oldest first, expired ones as lapsed (L8)."""
    org = Org()
    org.issue("b", 10)
    org.issue("a", 20, expires=hours(1))
    org.issue("elsewhere", 5, to="team")
    org.later(seconds=1)
    org.issue("0", 30, starts=hours(9))
    org.reserve("h1", 15, by="org")
    org.charge("h1", 12)
    org.does(ask.transfer("b", 4, to="team"))
    org.at(hours(1))

    found = by_grant(org.journal.books, ORG, org.now)

    assert [
        ("a", Parts(spent=12, held=3, lapsed=5)),
        ("b", Parts(available=6, moved=4)),
        ("0", Parts(available=30)),
    ] == [(terms.id, owned(parts)) for terms, parts in found]
    org.does(ask.revoke("b"))
    [(_, parts)] = [one for one in by_grant(org.journal.books, ORG, org.now) if one[0].id == "b"]
    assert Parts(revoked=6, moved=4) == owned(parts)


# Spendable


def test_own_and_ancestors_credits_are_spendable() -> None:
    """Not those of accounts below or beside (L3, L8)."""
    org = Org()
    org.issue("g1", 1)
    org.issue("g2", 10, to="team")
    org.issue("g3", 100, to="project")

    assert (1, 11, 111) == tuple(spendable(org, one) for one in ("org", "team", "project"))


def test_spendable_is_at_most_the_headroom_of_hard_budgets() -> None:
    """Of those on the path, and of the user if one is named; soft ones do not count (L8, B3)."""
    org = Org()
    org.issue("g", 1_000)
    org.budget("team", 300, account="team")
    org.budget("soft", 1, account="org", hard=False)
    org.budget("each", 250, account="org", each_user=True)
    org.budget("ann", 40, user="ann")
    org.reserve("h1", 30, user="ann")
    org.charge("h1", 10)

    assert (250, 250) == (spendable(org, "project"), spendable(org, "org"))
    assert (10, 10) == tuple(spendable(org, one, user=UserId("ann")) for one in ("team", "org"))
    assert 250 == spendable(org, user=UserId("bob"))
    org.reserve("h2", 200, user="bob")
    assert 50 == spendable(org, user=UserId("bob"))
    assert 70 == spendable(org)
    org.does(ask.drop_budget("each"))
    assert (70, 770) == (spendable(org, "project"), spendable(org, "org"))


def test_nothing_is_spendable_while_the_account_or_one_above_owes() -> None:
    """A debt refuses every hold below it (L8, L13)."""
    org = Org()
    org.issue("g", 1_000, policy=GrantPolicy(regions=frozenset({"eu"})))
    org.does(ask.book_debt("d", 3, of="team"))
    context = Context(region="eu")

    found = seen(org, "team", context=context)

    assert (0, 3) == (found.spendable, found.debt)
    assert (0, 0) == (spendable(org, context=context), seen(org, "project").debt)
    assert 1_000 == spendable(org, "org", context=context)


def test_spendable_for_a_job_depends_on_the_policies_of_grants() -> None:
    """Credits that do not admit the job are not counted (L8, L9)."""
    org = Org()
    org.issue("any", 1)
    org.issue("h100", 10, policy=GrantPolicy(gpu_types=frozenset({"h100"})))
    org.issue("both", 100, policy=GrantPolicy(gpu_types=frozenset({"h100", "l4"})))
    org.issue("eu", 1_000, policy=GrantPolicy(regions=frozenset({"eu"})))

    assert 1 == spendable(org)
    assert 111 == spendable(org, context=gpus("h100"))
    assert 101 == spendable(org, context=gpus("h100", "l4"))
    assert 1_111 == spendable(org, context=gpus("h100", region="eu"))


@pytest.mark.parametrize(
    ("free", "capped", "want"),
    [
        (0, [(100, 500_000)], 0),
        (50, [(100, 500_000)], 100),
        (49, [(100, 500_000)], 98),
        (1_000, [(100, 500_000)], 1_100),
        (0, [(100, 500_000), (100, 500_000)], 200),
        (0, [(100, 500_000), (99, 500_000)], 198),
        (0, [(3, 400_000), (1, 999_999)], 0),
        (0, [(38, 300_000), (23, 700_000)], 30),
        (1, [(10**15, 999_999)], 1_000_000),
        (0, [(10**12, 333_333), (10**12, 333_333), (10**12, 333_333)], 0),
        (10, [(10**12, 333_333), (10**12, 333_333), (10**12, 333_333)], 10_000_000),
    ],
)
def test_a_capped_grant_carries_its_share_of_what_is_sought(
    free: int, capped: list[tuple[int, int]], want: int
) -> None:
    """The most a hold could take is found, however large the amounts (L8, L9)."""
    org = Org()
    if free:
        org.issue("free", free)
    for index, (amount, ppm) in enumerate(capped):
        org.issue(f"g{index}", amount, policy=GrantPolicy(max_share_ppm=ppm))

    found = spendable(org)

    assert (want, int) == (found, type(found))


def accepted(org: Org, amount: int, context: Context | None = None) -> bool:
    """Whether a hold of that amount would be granted."""
    asked = org.asking("h", amount, context=context or Context())
    return not isinstance(decide(org.journal.books, asked, org.now), Refusal)


GRANTS = st.lists(
    st.tuples(
        st.integers(1, 30),
        st.sampled_from([1_000_000, 1_000_000, 500_000, 333_333, 999_999, 250_000, 1, 700_000]),
        st.sampled_from(["org", "team", "project"]),
        st.sampled_from([None, "eu", "us"]),
        st.sampled_from([0, 1, 2]),
    ),
    max_size=4,
)


@pytest.mark.property
@given(GRANTS, st.sampled_from([None, "eu"]), st.sampled_from([None, 5, 30]))
@example(
    grants=[(50, 500_000, "org", None, 0), (50, 500_000, "org", None, 1)], region=None, room=None
)
def test_spendable_is_the_largest_amount_that_can_be_held(
    grants: list[tuple[int, int, str, str | None, int]], region: str | None, room: int | None
) -> None:
    """Compared with trying every amount: policies, share caps and hard budgets included (L8)."""
    org = Org()
    for index, (amount, ppm, account, where, priority) in enumerate(grants):
        scope = frozenset({where} if where else ())
        policy = GrantPolicy(max_share_ppm=ppm, regions=scope)
        org.issue(f"g{index}", amount, to=account, policy=policy, priority=priority)
    context = Context(region=region)
    books = org.journal.books
    most = sum(amount for amount, *_ in grants) + 1

    largest = max((one for one in range(1, most) if accepted(org, one, context)), default=0)

    path = books.path(AccountId("project"))
    with view_at(books, org.now) as view:
        assert largest == spendable_credits(view, path, context)
    assert largest == spendable(org, context=context, user=UserId("ann"))
    if room is not None:
        org.budget("b", room, account="org")
        assert min(room, largest) == spendable(org, context=context)


# Used, owed


def test_used_is_what_the_account_and_those_below_were_charged() -> None:
    """Whichever account owned the credits; reversed charges do not count (L8)."""
    org = Org()
    org.issue("g1", 50)
    org.issue("g2", 50, to="team")
    org.reserve("h1", 70, by="project")
    org.charge("h1", 65, "c")
    org.reserve("h2", 10, by="org")
    org.charge("h2", 10)

    def used() -> tuple[int, ...]:
        return tuple(seen(org, one).used for one in ("org", "team", "project"))

    assert (75, 65, 65) == used()
    org.does(ask.reverse("c", 20))
    assert (55, 45, 45) == used()


def test_a_debt_is_shown_where_it_is_owed() -> None:
    """Usage that nobody paid is not used credits yet; repaid, it is (L8, L13)."""
    org = Org()
    org.issue("g", 10)
    org.reserve("h1", 10, by="team")
    org.charge("h1", 25)

    assert (15, 10) == (seen(org, "team").debt, seen(org, "team").used)
    assert (0, 0) == (seen(org, "org").debt, seen(org, "project").debt)
    org.issue("more", 100)
    assert (0, 25) == (seen(org, "team").debt, seen(org, "team").used)
    assert 85 == spendable(org)


# Burn


def test_an_account_that_spends_nothing_never_runs_out() -> None:
    """There is no rate to tell (L8)."""
    org = Org()
    org.issue("g", 100)

    assert Burn(per_day=0, runs_out_at=NEVER) == seen(org).burn


def test_the_rate_is_that_of_the_last_seven_days() -> None:
    """700 used on one day are 100 a day; 300 are left, which last three days (L8)."""
    org = Org()
    org.issue("g", 1_000)
    org.reserve("h1", 700)
    org.charge("h1", 700)
    org.release("h1")

    assert Burn(per_day=100, runs_out_at=days(3)) == seen(org).burn
    assert seen(org).burn == seen(org, "project").burn
    org.at(days(2) + 5)
    assert Burn(per_day=100, runs_out_at=days(5) + 5) == seen(org).burn


def test_the_rate_counts_slots_of_six_hours_while_any_part_is_inside() -> None:
    """A use leaves the rate when the whole slot has left the last seven days (L8)."""
    org = Org()
    org.at(BURN_SLOT * (T0 // BURN_SLOT + 1))
    slot = org.now
    org.issue("g", 10_000)
    org.later(hours=5)
    org.reserve("h1", 700)
    org.charge("h1", 700)
    org.release("h1")

    org.at(slot + 7 * DAY)
    assert 100 == seen(org).burn.per_day
    org.at(slot + 7 * DAY + 6 * HOUR - 2)
    assert 100 == seen(org).burn.per_day
    org.at(slot + 7 * DAY + 6 * HOUR)
    assert Burn(per_day=0, runs_out_at=NEVER) == seen(org).burn


def test_uses_of_different_days_add_up_to_the_rate() -> None:
    """Rounded down, like all money; what is left is divided by the exact rate (L8)."""
    org = Org()
    org.issue("g", 1_000)
    for amount in (25, 25, 25, 26):
        org.reserve(f"h{org.now}", amount)
        org.settle(f"h{org.now}", amount)
        org.later(days=1)

    assert Burn(per_day=14, runs_out_at=org.now + 899 * 7 * DAY // 101) == seen(org).burn


def test_a_reversal_after_a_week_does_not_make_the_rate_negative() -> None:
    """The reversal counts when it happens; nothing is being spent then (L8, L11)."""
    org = Org()
    org.issue("g", 1_000)
    org.reserve("h1", 700)
    org.charge("h1", 700, "c")
    org.release("h1")
    org.later(days=8)
    org.does(ask.reverse("c"))

    assert Burn(per_day=0, runs_out_at=NEVER) == seen(org).burn
    assert 0 == seen(org).used


def test_a_balance_that_outlasts_time_runs_out_never() -> None:
    """The instant is never later than NEVER (L8)."""
    org = Org()
    org.issue("g", 2**52)
    org.reserve("h1", 1)
    org.settle("h1", 1)

    assert Burn(per_day=0, runs_out_at=NEVER) == seen(org).burn


def test_an_account_with_nothing_left_runs_out_now() -> None:
    """Runway is what is spendable over the rate (L8)."""
    org = Org()
    org.issue("g", 70)
    org.reserve("h1", 70)
    org.settle("h1", 70)

    assert Burn(per_day=10, runs_out_at=T0) == seen(org).burn


# Expirations


def test_expiring_credits_are_listed_earliest_first() -> None:
    """Within a day, a week, a month, or ever; available credits of the account's own (L8)."""
    org = Org()
    for name, amount, expires in (
        ("day", 1, days(1)),
        ("day+1", 2, days(1) + 1),
        ("week", 4, days(7)),
        ("month", 8, days(30)),
        ("far", 16, NEVER - 1),
        ("never", 32, NEVER),
    ):
        org.issue(name, amount, expires=expires)
    org.issue("waits", 64, starts=hours(2), expires=hours(3))
    org.issue("below", 128, to="team", expires=hours(1))
    org.reserve("h1", 2, by="org")

    def names(within: int) -> list[str]:
        return [one.grant for one in coming(org, within)]

    # The hold drew all of `day` and half of `day+1`.
    assert ["waits"] == names(DAY)
    assert ["waits", "day+1"] == names(DAY + 1)
    assert ["waits", "day+1", "week"] == names(7 * DAY)
    assert ["waits", "day+1", "week", "month"] == names(30 * DAY)
    assert ["waits", "day+1", "week", "month", "far"] == names(NEVER)
    assert [
        Expiring(grant=GrantId("waits"), expires_at=hours(3), amount=64),
        Expiring(grant=GrantId("day+1"), expires_at=days(1) + 1, amount=1),
    ] == coming(org, DAY + 1)
    assert ["below"] == [one.grant for one in coming(org, DAY, "team")]


def test_expired_credits_are_not_listed_as_expiring() -> None:
    """At its very expiry a grant has lapsed, recorded or not (L8)."""
    org = Org()
    org.issue("g1", 10, expires=hours(1))
    org.issue("g2", 10, expires=hours(2))

    org.at(hours(1) - 1)
    assert ["g1", "g2"] == [one.grant for one in coming(org, DAY)]
    org.at(hours(1))
    assert ["g2"] == [one.grant for one in coming(org, DAY)]
    org.does(ask.lapse())
    assert ["g2"] == [one.grant for one in coming(org, DAY)]


def test_a_stale_index_key_is_not_listed_as_expiring() -> None:
    """A part of an index may be loaded after the grant was used up (D2)."""
    org = Org()
    org.issue("g1", 10, expires=hours(1))
    org.issue("g2", 10, expires=hours(2))
    loader = Loader(org.journal.books)
    events = loader.decide(org.asking("h1", 10), T0 + SECOND)
    assert not isinstance(events, Refusal)
    for event in events:
        evolve(loader.part, event)

    assert ["g2"] == [one.grant for one in read(loader, T0 + SECOND)]


def read(loader: Loader, now: Instant) -> list[Expiring]:
    """What expires within a day, as a part tells it once it has been given all it asks for."""
    while True:
        try:
            return list(expiring(loader.part, ORG, now, DAY))
        except NotLoaded as missing:
            loader._load(missing.what)


@pytest.mark.parametrize(
    ("until", "is_cut", "total"),
    [
        (T0, False, 0),
        (T0 + 1, False, 10),
        (T0 + 2, False, 30),
        (T0 + 1, True, 10),
        (T0 + 2, True, None),
        (T0 + 9, True, None),
    ],
)
def test_sum_of_expiring_credits_is_unknown_beyond_the_end_of_a_cut_list(
    until: Instant, is_cut: bool, total: int | None
) -> None:
    """The last instant of a cut list may have more credits than are listed."""
    listed = [
        Expiring(grant=GrantId("g1"), expires_at=T0 + 1, amount=10),
        Expiring(grant=GrantId("g2"), expires_at=T0 + 2, amount=20),
    ]

    assert total == sum_expiring(listed, until, is_cut=is_cut)


def test_past_views_sum_to_what_was_owned() -> None:
    """Each compartment is summed over the grants; no grants own nothing."""
    org = Org()
    org.issue("g1", 100)
    org.issue("g2", 50)
    org.reserve("h1", 120)
    views = view_grants(org.journal.events, org.now, NEVER, account=ORG)

    assert seen(org).owned == sum_views(views.values())
    assert Parts() == owned(sum_views([]))


def test_a_rolling_budget_frees_what_leaves_its_window() -> None:
    """Headroom comes back with time alone, and a balance sees it (L8, B5)."""
    org = Org()
    org.issue("g", 1_000)
    org.budget("b", 100, PeriodKind.ROLLING, account="org", rolling=DAY)
    org.reserve("h1", 80)
    org.settle("h1", 80)

    assert 20 == spendable(org)
    org.at(hours(25))
    assert 100 == spendable(org)
