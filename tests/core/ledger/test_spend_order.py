"""Which credits are spent first (L4).

    priority · expiry · restricted dimensions · kind · distance to the owner · issued_at · id

The first difference decides. Each test makes two grants that differ in one criterion (and in all
later ones the other way round, where that can be), and asks a hold that either could pay.
"""

from itertools import permutations

from bursar.core.ids import AccountId, GrantId
from bursar.core.instant import NEVER
from bursar.core.ledger.commands import Issue
from bursar.core.ledger.values import CreditKind, GrantPolicy
from tests.support import commands as ask
from tests.support.builders import Org, Parts, gpus, hours, moves

EU = frozenset({"eu"})
H100 = frozenset({"h100"})


def test_the_lower_priority_number_goes_first() -> None:
    """Priority decides before anything else (L4)."""
    org = Org()
    org.issue("first", 100, priority=1, kind=CreditKind.PAID)
    org.issue("a", 100, priority=2, kind=CreditKind.PROMO, expires=hours(1), to="project")

    org.reserve("h1", 130)

    assert {"first": 100, "a": 30} == org.draws("h1")


def test_the_earlier_expiry_is_spent_first() -> None:
    """Among equal priorities; grants that never expire are last (L4)."""
    org = Org()
    org.issue("never", 100, kind=CreditKind.PROMO, to="project", policy=GrantPolicy(regions=EU))
    org.issue("later", 100, expires=hours(3), policy=GrantPolicy(regions=EU))
    org.issue("sooner", 100, expires=hours(2))

    org.reserve("h1", 250, context=gpus(region="eu"))

    assert {"sooner": 100, "later": 100, "never": 50} == org.draws("h1")


def test_the_more_restricted_goes_first() -> None:
    """Among equal expiries the grant that can be spent on less decides (L4, L9)."""
    org = Org()
    org.issue("open", 100, kind=CreditKind.PROMO, to="project")
    org.issue("one", 100, kind=CreditKind.GRANT, policy=GrantPolicy(regions=EU))
    org.issue("two", 100, kind=CreditKind.PAID, policy=GrantPolicy(regions=EU, gpu_types=H100))

    org.reserve("h1", 250, context=gpus("h100", region="eu"))

    assert {"two": 100, "one": 100, "open": 50} == org.draws("h1")


def test_all_five_dimensions_count_as_restrictions() -> None:
    """GPU types, regions, accounts, job kinds, priority classes; not a share or a refund (L4)."""
    org = Org()
    context = gpus("h100", region="eu", job_kind="train", priority_class="batch")
    policies = {
        "0": GrantPolicy(max_share_ppm=900_000, refundable=False),
        "1": GrantPolicy(gpu_types=H100),
        "2": GrantPolicy(gpu_types=H100, regions=EU),
        "3": GrantPolicy(gpu_types=H100, regions=EU, accounts=frozenset({AccountId("org")})),
        "4": GrantPolicy(
            gpu_types=H100,
            regions=EU,
            accounts=frozenset({AccountId("org")}),
            job_kinds=frozenset({"train"}),
        ),
        "5": GrantPolicy(
            gpu_types=H100,
            regions=EU,
            accounts=frozenset({AccountId("org")}),
            job_kinds=frozenset({"train"}),
            priority_classes=frozenset({"batch"}),
        ),
    }
    for name, policy in policies.items():
        assert int(name) == policy.scopes
        org.issue(name, 10, policy=policy)

    events = org.reserve("h1", 60, context=context)

    assert ["5", "4", "3", "2", "1", "0"] == [grant for grant, *_ in moves(events)]


def test_promotions_go_before_grants_and_grants_before_what_was_paid() -> None:
    """Among equally restricted ones the kind decides (L4)."""
    org = Org()
    org.issue("paid", 100, kind=CreditKind.PAID, to="project")
    org.issue("grant", 100, kind=CreditKind.GRANT, to="team")
    org.issue("promo", 100, kind=CreditKind.PROMO, to="org")

    org.reserve("h1", 250)

    assert {"promo": 100, "grant": 100, "paid": 50} == org.draws("h1")


def test_the_nearest_owner_pays_first() -> None:
    """Among equal kinds the account's own credits go before its ancestors' (L4)."""
    org = Org()
    org.issue("a", 100, to="org")
    org.issue("b", 100, to="team")
    org.later(minutes=1)
    org.issue("c", 100, to="project")

    org.reserve("h1", 250)

    assert {"c": 100, "b": 100, "a": 50} == org.draws("h1")


def test_distance_is_counted_from_the_account_of_the_request() -> None:
    """The same grants are spent in another order by another account (L4)."""
    org = Org()
    org.issue("a", 100, to="org")
    org.issue("b", 100, to="team")

    org.reserve("h1", 130, by="team")
    org.reserve("h2", 50, by="org")

    assert {"b": 100, "a": 30} == org.draws("h1")
    assert {"a": 50} == org.draws("h2")


def test_the_earlier_issue_is_spent_first() -> None:
    """Among equally near grants (L4)."""
    org = Org()
    org.issue("z", 100)
    org.later(us=1)
    org.issue("a", 100)

    org.reserve("h1", 130)

    assert {"z": 100, "a": 30} == org.draws("h1")


def test_the_id_decides_when_nothing_else_does() -> None:
    """So the order is total, and the same on every machine (L4, IL8)."""
    for names in permutations(("a", "b", "c")):
        org = Org()
        for name in names:
            org.issue(name, 100)

        org.reserve("h1", 250)

        assert {"a": 100, "b": 100, "c": 50} == org.draws("h1")


def test_the_order_in_which_grants_came_does_not_matter() -> None:
    """Equal inputs give equal draws, in whatever order they were put in (IL8)."""
    grants = (
        ("by priority", 1, NEVER, CreditKind.PAID),
        ("by expiry", 100, hours(3), CreditKind.PAID),
        ("by kind", 100, NEVER, CreditKind.PROMO),
        ("by id", 100, NEVER, CreditKind.PAID),
    )
    for shuffled in permutations(grants):
        org = Org()
        for name, priority, expires, kind in shuffled:
            org.issue(name, 10, priority=priority, expires=expires, kind=kind)

        events = org.reserve("h1", 40)

        assert [name for name, *_ in grants] == [grant for grant, *_ in moves(events)]


def test_an_extended_grant_moves_back_in_the_order() -> None:
    """Terms are read as they are now, also for charges of holds opened before (L4, L11)."""
    org = Org()
    org.issue("short", 100, expires=hours(2))
    org.issue("long", 100, expires=hours(4))
    org.reserve("h1", 150)

    org.does(ask.extend_grant("short", until=hours(6)))

    org.reserve("h2", 20)
    assert {"long": 20} == org.draws("h2")
    org.charge("h1", 60)
    assert {"short": 90} == org.draws("h1")
    assert Parts(held=90, spent=10) == org.parts("short")
    assert Parts(available=30, held=20, spent=50) == org.parts("long")


def test_credits_of_other_branches_are_not_spent() -> None:
    """An account spends its own credits and its ancestors', never a child's (B2)."""
    org = Org()
    org.issue("below", 100, to="project")
    org.issue("own", 100, to="team")

    org.reserve("h1", 100, by="team")

    assert {"own": 100} == org.draws("h1")


def test_charges_follow_the_order_over_all_draws_whenever_they_were_added() -> None:
    """A draw that was added later but stands earlier in the order is charged first (L4)."""
    org = Org()
    org.issue("later", 100, expires=hours(5))
    org.reserve("h1", 100)
    org.issue("sooner", 100, expires=hours(4))
    org.does(ask.extend("h1", 50))

    events = org.charge("h1", 70)

    assert [
        ("sooner", "held → spent", 50, org.now),
        ("later", "held → spent", 20, org.now),
    ] == moves(events)


def test_refunds_go_in_reverse() -> None:
    """What is spent last is returned first (L4, L6)."""
    org = Org()
    org.issue("g1", 100, expires=hours(4))
    org.issue("g2", 100, expires=hours(5))
    org.issue("g3", 100)
    org.reserve("h1", 250)

    events = org.release("h1")

    assert [
        ("g3", "held → available", 50, org.now),
        ("g2", "held → available", 100, org.now),
        ("g1", "held → available", 100, org.now),
    ] == moves(events)
    org.rebuilds()


def test_many_grants_are_drawn_one_after_the_other_until_it_is_enough() -> None:
    """A hold touches the grants it draws and no others (L16)."""
    org = Org()
    for number in range(50):
        org.does(
            Issue(
                grant=GrantId(f"g{number:02}"),
                account=AccountId("org"),
                amount=10,
                kind=CreditKind.PAID,
                expires_at=hours(100 - number),
            )
        )

    org.reserve("h1", 25)

    assert {"g49": 10, "g48": 10, "g47": 5} == org.draws("h1")
