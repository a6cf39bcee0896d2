"""The tree of accounts, and the users who spend in it (B2)."""

from dataclasses import replace

import pytest

from bursar.core.budgets.periods import PeriodKind
from bursar.core.ids import AccountId, BudgetId, PriceVersionId, UserId
from bursar.core.instant import DAY, HOUR
from bursar.core.ledger.commands import (
    AddAccount,
    AddUser,
    SetBudget,
    SetPolicy,
    SetPrice,
    SetTier,
)
from bursar.core.ledger.events import AccountAdded, PolicySet, PriceSet, UserAdded
from bursar.core.ledger.journal import Journal
from bursar.core.ledger.values import Account, BudgetTarget, OrgPolicy
from bursar.core.refusal import Code, Refusal
from tests.support.builders import PER_MS, T0, Org, gpus, hours, minutes, prices

ORG, TEAM, PROJECT = AccountId("org"), AccountId("team"), AccountId("project")


def add(account: str, parent: str | None, time_zone: str | None = None) -> AddAccount:
    """An account to be added."""
    return AddAccount(
        account=AccountId(account),
        parent=None if parent is None else AccountId(parent),
        name=account.title(),
        time_zone=time_zone,
    )


def limit(target: BudgetTarget) -> SetBudget:
    """A budget to be set."""
    return SetBudget(budget=BudgetId("b"), target=target, every=PeriodKind.DAY, limit=1, hard=True)


def test_the_first_account_is_the_root() -> None:
    """It has no parent, and counts days in UTC if not told otherwise (B2)."""
    journal = Journal()

    outcome = journal.do(add("org", None), T0)

    account = Account(id=ORG, parent=None, name="Org", time_zone="UTC")
    assert (AccountAdded(at=T0, account=account),) == outcome
    assert ORG == journal.books.header.root
    assert account == journal.books.accounts.get(ORG)


def test_accounts_form_a_tree_of_any_depth() -> None:
    """The path of an account leads to the root (B2)."""
    org = Org()
    for depth in range(20):
        org.does(add(f"a{depth}", "project" if depth == 0 else f"a{depth - 1}"))

    path = org.journal.books.path(AccountId("a19"))

    assert (*(f"a{depth}" for depth in range(19, -1, -1)), "project", "team", "org") == path
    assert (ORG,) == org.journal.books.path(ORG)
    assert ORG == org.journal.books.header.root


def test_an_account_without_a_parent_is_refused_once_there_is_a_root() -> None:
    """An org has one tree (B2)."""
    assert Refusal(Code.ALREADY_EXISTS, {"root": "org"}) == Org().refuses(add("other", None))


@pytest.mark.parametrize("parent", ["org", "team", None])
def test_an_account_is_added_once(parent: str | None) -> None:
    """Under the same parent, another one, or as a root: the id is taken (B2)."""
    exists = Refusal(Code.ALREADY_EXISTS, {"account": "team"})

    assert exists == Org().refuses(add("team", parent))


def test_a_parent_must_exist() -> None:
    """An unknown parent is named before anything else (B2)."""
    unknown = Refusal(Code.ACCOUNT_UNKNOWN, {"account": "nobody"})

    assert unknown == Org().refuses(add("new", "nobody"))
    assert unknown == Org().refuses(add("team", "nobody", "Moon/Crater"))


def test_an_account_has_the_zone_of_its_parent_unless_it_names_one() -> None:
    """Budgets count days and months in it (B3)."""
    org = Org(time_zone="Europe/Berlin")
    org.does(add("tokyo", "team", "Asia/Tokyo"))
    org.does(add("below", "tokyo"))

    zones = {account.id: account.time_zone for _, account in org.journal.books.accounts.items()}

    assert {
        "org": "Europe/Berlin",
        "team": "Europe/Berlin",
        "project": "Europe/Berlin",
        "tokyo": "Asia/Tokyo",
        "below": "Asia/Tokyo",
    } == zones


@pytest.mark.parametrize("zone", ["Moon/Crater", "europe/berlin", "+01:00"])
def test_an_account_with_an_unknown_time_zone_is_refused(zone: str) -> None:
    """A budget could not know when its days end (B3)."""
    invalid = Refusal(Code.TIME_INVALID, {"time_zone": zone})

    assert invalid == Org().refuses(add("new", "org", zone))
    assert invalid == Journal().do(add("org", None, zone), T0)


def test_a_user_is_added_once() -> None:
    """A user is a principal of the org, in no particular account (B2)."""
    org = Org()

    assert (UserAdded(at=T0, user=UserId("carl")),) == org.does(AddUser(user=UserId("carl")))

    exists = Refusal(Code.ALREADY_EXISTS, {"user": "carl"})
    assert exists == org.refuses(AddUser(user=UserId("carl")))
    org.issue("g", 10)
    org.reserve("h1", 5, by="org", user="carl")
    org.reserve("h2", 5, by="project", user="carl")


def test_a_hold_needs_a_known_account_and_user() -> None:
    """The account is named first (B2)."""
    org = Org()
    org.issue("g", 10)

    nobody = org.asking("h", 1, by="nobody", user="nobody")
    assert Refusal(Code.ACCOUNT_UNKNOWN, {"account": "nobody"}) == org.refuses(nobody)
    stranger = org.asking("h", 1, user="nobody")
    assert Refusal(Code.USER_UNKNOWN, {"user": "nobody"}) == org.refuses(stranger)


def test_a_budget_needs_a_known_account_and_user() -> None:
    """The account is named first (B3)."""
    org = Org()
    account, user = AccountId("nowhere"), UserId("nobody")

    unknown = Refusal(Code.ACCOUNT_UNKNOWN, {"account": "nowhere"})
    assert unknown == org.refuses(limit(BudgetTarget(account=account, user=user)))
    assert unknown == org.refuses(limit(BudgetTarget(account=account, each_user=True)))
    stranger = Refusal(Code.USER_UNKNOWN, {"user": "nobody"})
    assert stranger == org.refuses(limit(BudgetTarget(account=ORG, user=user)))
    assert stranger == org.refuses(limit(BudgetTarget(user=user)))


def test_an_org_without_accounts_has_no_budgets_and_no_tier() -> None:
    """There is nothing yet that they could limit (B3)."""
    journal = Journal()
    journal.do(AddUser(user=UserId("ann")), T0)
    unknown = Refusal(Code.ACCOUNT_UNKNOWN, {"account": None})

    assert unknown == journal.do(limit(BudgetTarget(user=UserId("ann"))), T0)
    assert unknown == journal.do(SetTier(tier="free"), T0)


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ({}, "a budget needs a target"),
        ({"each_user": True}, "a budget needs a target"),
        ({"user": UserId("ann"), "each_user": True}, "a budget needs a target"),
        ({"account": ORG, "user": UserId("ann"), "each_user": True}, "one user or each"),
        ({"account": ""}, "account is 1 to 255 bytes long"),
        ({"account": ORG, "user": ""}, "user is 1 to 255 bytes long"),
    ],
)
def test_a_budget_needs_a_target(target: dict[str, object], why: str) -> None:
    """An account, a user, the pair, or each user below an account (B3)."""
    with pytest.raises(ValueError, match=why):
        BudgetTarget(**target)  # type: ignore[arg-type]  # wrong on purpose


def test_an_operator_sets_the_bounds_of_an_org() -> None:
    """The longest life of a hold is one of them (L5)."""
    org = Org()
    org.issue("g", 10)
    policy = OrgPolicy(raw_hold_max=HOUR)

    assert (PolicySet(at=T0, policy=policy),) == org.does(SetPolicy(policy=policy))

    assert policy == org.journal.books.header.policy
    assert Refusal(
        Code.HOLD_TOO_LONG, {"expires_at": T0 + DAY, "latest": T0 + HOUR}
    ) == org.refuses(org.asking("h", 1, until=T0 + DAY))


def test_a_price_version_of_an_org_is_set_once() -> None:
    """A version is never changed, only followed (B1)."""
    org = Org(prices("v1", h100=5))
    mine = prices("mine", h100=3)

    assert (PriceSet(at=T0, version=mine),) == org.price(mine)

    assert mine == org.journal.books.header.prices.version(PriceVersionId("mine"))
    for known in ("mine", "v1"):  # a hold names versions, whoever's they are
        assert Refusal(Code.ALREADY_EXISTS, {"version": known}) == org.refuses(
            SetPrice(version=prices(known, h100=4))
        )


def test_a_price_may_be_in_force_from_when_it_is_set() -> None:
    """Whatever the version says; what was opened before keeps what it has (B1)."""
    org = Org(prices("v1", h100=PER_MS))
    org.issue("g", 10_000)
    org.reserve("before", run_ms=1_000, context=gpus("h100"))
    org.later(minutes=5)
    mine, soon = prices("mine", hours(9), h100=2 * PER_MS), prices("soon", hours(9), h100=0)

    events = org.does(SetPrice(version=mine, from_now=True))
    org.does(SetPrice(version=soon, from_now=False))
    org.reserve("after", run_ms=1_000, context=gpus("h100"))

    now = replace(mine, effective_at=minutes(5))
    assert (PriceSet(at=minutes(5), version=now),) == events
    assert soon == org.journal.books.header.prices.version(PriceVersionId("soon"))
    assert (1_000, 2_000) == (org.hold("before").open, org.hold("after").open)
    again = SetPrice(version=mine, from_now=True)
    assert Refusal(Code.ALREADY_EXISTS, {"version": "mine"}) == org.refuses(again)
    org.rebuilds()


def test_a_price_change_keeps_the_rates_that_it_does_not_name() -> None:
    """If it is asked to; the event has them all, for those who read no other (B1)."""
    org = Org()
    org.price(prices("old", a100=1, h100=3))
    new = replace(prices("new", hours(1), a100=2), keeps_others=True)

    [event] = org.does(SetPrice(version=new))

    assert isinstance(event, PriceSet)
    assert new == event.version
    assert replace(prices("new", hours(1), a100=2, h100=3), keeps_others=True) == event.in_full
    org.rebuilds()


def test_a_price_set_today_stays_after_a_version_that_was_scheduled_before() -> None:
    """A scheduled version names what it changes; all else is as it is by then (B1)."""
    org = Org(prices("list", l4=9 * PER_MS))
    org.issue("g", 10**6)
    org.price(prices("first", a100=PER_MS, h100=PER_MS))
    org.does(
        SetPrice(version=replace(prices("later", hours(9), a100=2 * PER_MS), keeps_others=True))
    )
    org.does(
        SetPrice(
            version=replace(prices("today", h100=5 * PER_MS), keeps_others=True), from_now=True
        )
    )

    def held(kind: str, name: str) -> tuple[int, str]:
        org.reserve(name, run_ms=1, context=gpus(kind))
        return org.hold(name).open, org.hold(name).terms.price_versions[0]

    assert [(1, "today"), (5, "today"), (9, "list")] == [
        held(kind, f"{kind} now") for kind in ("a100", "h100", "l4")
    ]
    org.later(hours=9)
    assert [(2, "later"), (5, "later"), (9, "list")] == [
        held(kind, f"{kind} later") for kind in ("a100", "h100", "l4")
    ]
    org.rebuilds()


def test_a_price_before_the_one_in_force_is_refused() -> None:
    """A version that has been in force stays as it was shown, whatever it keeps (B1)."""
    org = Org()
    org.later(hours=2)
    org.price(prices("first", hours(1), h100=PER_MS))
    org.does(SetPrice(version=replace(prices("second", hours(2), a100=1), keeps_others=True)))
    org.price(prices("third", hours(9), a100=1))

    for keeps in (False, True):
        early = replace(prices("early", hours(2) - 1, h100=9), keeps_others=keeps)
        figures = {"effective_at": hours(2) - 1, "earliest": hours(2)}
        assert Refusal(Code.TIME_INVALID, figures) == org.refuses(SetPrice(version=early))
    org.price(prices("same", hours(2), h100=9))
    org.price(prices("between", hours(5), h100=9))


def test_the_machines_own_zone_is_not_a_zone() -> None:
    """It would mean something else on another machine (B3)."""
    org = Org()
    ask = AddAccount(
        account=AccountId("x"), parent=AccountId("org"), name="x", time_zone="localtime"
    )

    assert Refusal(Code.TIME_INVALID, {"time_zone": "localtime"}) == org.refuses(ask)
