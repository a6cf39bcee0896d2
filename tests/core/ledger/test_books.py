"""The books: lanes in spend order, a clock that changes no fact, what was free when (L4, L16)."""

from collections.abc import Iterator
from copy import deepcopy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar.core.ids import AccountId, GrantId, HoldId, RecurrenceId, UserId
from bursar.core.instant import HOUR, NEVER, Instant
from bursar.core.ledger.books import (
    DEBTS,
    ENDING,
    EXPIRED,
    LIMITS,
    TURNS,
    WAITING,
    Books,
    FreeChange,
    GrantLane,
    free_of,
    history_of,
    lane_key,
    order_of,
    require,
)
from bursar.core.ledger.commands import AddAccount, AddUser, Issue, Reserve
from bursar.core.ledger.decide import decide
from bursar.core.ledger.events import HoldOpened, Posting
from bursar.core.ledger.journal import Journal, rebuild
from bursar.core.ledger.limits import budgets_on
from bursar.core.ledger.tables import Index, Key, MissingRow, Name, NotLoaded
from bursar.core.ledger.values import (
    Account,
    BudgetCounter,
    Compartment,
    Context,
    CreditKind,
    Grant,
    GrantPolicy,
    GrantTerms,
    OrgPolicy,
)
from bursar.core.ledger.verify import find_problems
from bursar.core.refusal import InvariantBroken, Refusal
from bursar.core.value import replace
from tests.support import commands as ask
from tests.support.builders import T0, Org, days, hours
from tests.support.partial_books import Loader

AVAILABLE, HELD, SPENT, LAPSED, REVOKED, MOVED = tuple(Compartment)
ORG = AccountId("org")


def listed(org: Org, by: str = "project", context: Context | None = None) -> list[str]:
    """The grants that an account could spend now, in spend order."""
    books = org.journal.books
    books.advance(org.now)
    path = books.path(AccountId(by))
    return [grant.terms.id for grant in books.spendable(path, context or Context())]


def keys(org: Org, name: Name) -> list[Key]:
    """What one of the orders holds."""
    return list(org.journal.books.index(name).since())


# Spend order


def test_spend_order_is_decided_by_the_first_difference() -> None:
    """Priority, expiry, policy, kind, nearness, issue, id: each counts before the next (L4)."""
    org = Org()
    eu = GrantPolicy(regions=frozenset({"eu"}))
    eu_job = GrantPolicy(regions=frozenset({"eu"}), job_kinds=frozenset({"train"}))
    paid, soon = CreditKind.PAID, days(10)

    org.issue("last: by id", 1, priority=9)
    org.issue("last: a", 1, priority=9)
    org.later(seconds=1)
    org.issue("h priority", 1, priority=1)
    org.issue("g expiry", 1, priority=2, expires=soon - 1)
    org.issue("f narrow", 1, priority=2, expires=soon, policy=eu_job)
    org.issue("e less narrow", 1, priority=2, expires=soon, policy=eu)
    org.issue("d promo", 1, priority=2, expires=soon, kind=CreditKind.PROMO)
    org.issue("c granted", 1, priority=2, expires=soon, kind=CreditKind.GRANT)
    org.issue("b near", 1, priority=2, expires=soon, kind=paid, to="project")
    org.issue("a team", 1, priority=2, expires=soon, kind=paid, to="team")
    org.issue("a org", 1, priority=2, expires=soon, kind=paid)
    org.later(seconds=1)
    org.issue("a issued later", 1, priority=2, expires=soon, kind=paid)
    org.issue("Z never", 1, priority=2)

    assert [
        "h priority",
        "g expiry",
        "f narrow",
        "e less narrow",
        "d promo",
        "c granted",
        "b near",
        "a team",
        "a org",
        "a issued later",
        "Z never",
        "last: a",
        "last: by id",
    ] == listed(org, context=Context(region="eu", job_kind="train"))


def test_only_lanes_whose_policy_admits_the_context_are_read() -> None:
    """Own and ancestors' grants; not a child's, nor those restricted to other work (L3, L9)."""
    org = Org()
    org.issue("own", 1, to="team")
    org.issue("above", 1)
    org.issue("below", 1, to="project")
    org.issue("eu", 1, policy=GrantPolicy(regions=frozenset({"eu"})))
    org.issue("elsewhere", 1, policy=GrantPolicy(accounts=frozenset({AccountId("project")})))

    assert ["own", "above"] == listed(org, by="team")
    assert ["eu", "own", "above"] == listed(org, by="team", context=Context(region="eu"))
    assert ["elsewhere", "below", "own", "above"] == listed(org, by="project")
    assert ["above"] == listed(org, by="org")


def test_grants_of_equal_priority_and_policy_share_a_lane() -> None:
    """One lane for each owner, priority and policy, with the sum of what it has (L16)."""
    org = Org()
    capped = GrantPolicy(max_share_ppm=500_000)
    org.issue("g1", 10, expires=days(2))
    org.issue("g2", 20, expires=days(1), kind=CreditKind.PROMO)
    org.issue("g3", 40, priority=1)
    org.issue("g4", 80, policy=capped)
    org.issue("g5", 160, to="team")
    books = org.journal.books
    lane = GrantLane(ORG, 100, GrantPolicy())

    assert (
        lane,
        GrantLane(ORG, 1, GrantPolicy()),
        GrantLane(ORG, 100, capped),
    ) == books.lanes_of.get(ORG)
    assert 30 == books.lane_totals.get(lane)
    assert 40 == books.lane_totals.get(GrantLane(ORG, 1, GrantPolicy()))
    assert 80 == books.lane_totals.get(GrantLane(ORG, 100, capped))
    assert 160 == books.lane_totals.get(GrantLane(AccountId("team"), 100, GrantPolicy()))
    assert [(days(1), 0, T0, "g2"), (days(2), 2, T0, "g1")] == list(
        books.index(order_of(lane)).since()
    )


def test_a_lane_follows_what_its_grants_have_available() -> None:
    """Used up, given back, extended: each grant is where it belongs, once (L4)."""
    org = Org()
    org.issue("g1", 10, expires=days(1))
    org.issue("g2", 20, expires=days(2))
    org.issue("g3", 30, expires=days(3))

    org.reserve("h1", 15)
    assert ["g2", "g3"] == listed(org)
    assert 45 == org.journal.books.lane_totals.get(GrantLane(ORG, 100, GrantPolicy()))
    org.release("h1")
    assert ["g1", "g2", "g3"] == listed(org)
    org.does(ask.extend_grant("g1", until=NEVER))
    assert ["g2", "g3", "g1"] == listed(org)
    assert 60 == org.journal.books.lane_totals.get(GrantLane(ORG, 100, GrantPolicy()))
    assert [(days(2), "g2"), (days(3), "g3"), (NEVER, "g1")] == keys(org, ENDING)
    org.does(ask.revoke("g2"))
    assert ["g3", "g1"] == listed(org)


def test_a_grant_stands_in_a_lane_as_in_the_whole_order() -> None:
    """The key of a lane is the part of the spend key that can differ within it (L4)."""
    org = Org()
    policy = GrantPolicy(regions=frozenset({"eu"}), gpu_types=frozenset({"h100"}))
    org.issue("g", 1, kind=CreditKind.GRANT, expires=days(3), priority=7, policy=policy)
    books = org.journal.books
    terms = org.grant("g").terms

    path = books.path(AccountId("project"))
    assert (7, days(3), -2, 1, 2, T0, "g") == books.spend_key(terms, path)
    assert (days(3), 1, T0, "g") == lane_key(terms)


# Time


def test_the_clock_lists_grants_that_start_and_takes_out_those_that_end() -> None:
    """At the very instant; a grant that starts and ends meanwhile is never listed (L3)."""
    org = Org()
    org.issue("now", 1, expires=hours(3))
    org.issue("later", 2, starts=hours(2), expires=hours(4))
    org.issue("between", 4, starts=hours(1), expires=hours(2), kind=CreditKind.PROMO)
    books = org.journal.books
    lane = GrantLane(ORG, 100, GrantPolicy())
    assert ["now"] == listed(org)
    assert [(hours(1), "between"), (hours(2), "later")] == keys(org, WAITING)
    assert [(hours(3), "now")] == keys(org, ENDING)

    org.at(hours(1) - 1)
    assert ["now"] == listed(org)
    org.at(hours(2) - 1)
    assert ["between", "now"] == listed(org)
    org.at(hours(2))
    assert ["now", "later"] == listed(org)
    assert [(hours(2), "between")] == keys(org, EXPIRED)
    assert 4 == books.overdue.get((ORG, CreditKind.PROMO))
    org.at(hours(3) - 1)
    assert ["now", "later"] == listed(org)
    assert 3 == books.lane_totals.get(lane)
    org.at(hours(3))
    assert ["later"] == listed(org)
    assert 2 == books.lane_totals.get(lane)
    org.at(hours(9))
    assert [] == listed(org)
    assert [] == keys(org, WAITING)
    assert [] == keys(org, ENDING)
    assert [(hours(2), "between"), (hours(3), "now"), (hours(4), "later")] == keys(org, EXPIRED)
    assert (3, 4) == (
        books.overdue.get((ORG, CreditKind.PAID)),
        books.overdue.get((ORG, CreditKind.PROMO)),
    )
    assert 0 == books.lane_totals.get(lane)


def test_a_written_lapse_is_no_longer_overdue() -> None:
    """Nothing of it is available any more; what is free of it stays known (L10)."""
    org = Org()
    org.issue("g", 5, expires=hours(1))
    org.at(hours(1))
    org.does(ask.lapse())

    assert [] == keys(org, EXPIRED)
    assert not org.journal.books.overdue.get((ORG, CreditKind.PAID))
    assert [(hours(1), "g")] == keys(org, free_of(ORG))


def test_a_grant_that_waits_or_has_expired_keeps_its_place_when_it_changes() -> None:
    """Moved in part, extended, revoked: it is where its new state belongs (L11)."""
    org = Org()
    org.issue("g", 5, starts=hours(1), expires=hours(2))
    org.does(ask.transfer("g", 2, to="team", new="t"))
    assert [(hours(1), "g"), (hours(1), "t")] == keys(org, WAITING)
    org.does(ask.revoke("t"))
    assert [(hours(1), "g")] == keys(org, WAITING)
    org.does(ask.extend_grant("g", until=hours(3)))
    assert [(hours(3), "g")] == keys(org, free_of(ORG))
    org.at(hours(3))
    assert [] == listed(org)
    assert [(hours(3), "g")] == keys(org, EXPIRED)


def test_time_does_not_go_back() -> None:
    """Advancing to an earlier instant, or the same, does nothing."""
    org = Org()
    org.issue("g", 1, expires=hours(1))
    books = org.journal.books
    books.advance(hours(1))

    books.advance(hours(0))

    assert hours(1) == books.clock
    assert [] == list(books.spendable((ORG,), Context()))


def test_books_with_different_clocks_are_equal() -> None:
    """The clock of the indexes is no fact; events are (L1)."""
    one, two = Org(), Org()
    for org in (one, two):
        org.issue("g", 10, expires=hours(1))
        org.issue("later", 10, starts=hours(1))
    one.journal.books.advance(hours(5))
    assert 1 == len(keys(one, EXPIRED))

    assert two.journal.books == one.journal.books
    two.issue("more", 1)
    assert two.journal.books != one.journal.books
    assert one.journal.books != "books"
    with pytest.raises(TypeError, match="unhashable"):
        hash(one.journal.books)


def test_a_sum_of_nothing_is_as_good_as_none() -> None:
    """A counter that went up and down again equals one that never was touched (L1)."""
    one, two = Books(), Books()
    one.used.put(ORG, 0)
    one.claims.put(("b", None), 0)  # type: ignore[arg-type]  # a plain id will do
    one.tallies.put(("b", None, T0), BudgetCounter())  # type: ignore[arg-type]

    assert one == two
    one.used.put(ORG, 1)
    assert one != two
    two.used.put(ORG, 1)
    two.header.number += 1
    assert one != two


def test_facts_are_what_does_not_hang_on_the_clock() -> None:
    """What is one of its kind, and every table but those that follow from the instant (L1)."""
    facts = Org().journal.books.facts()

    assert {"singles", "grants", "holds", "totals"} <= set(facts)
    assert {"overdue", "lanes_of", "lane_totals"}.isdisjoint(facts)


def test_books_made_from_events_stand_where_those_stand_that_made_them() -> None:
    """Also when the last thing that happened was due long before it was recorded (L1)."""
    org = Org()
    org.issue("g1", 10, expires=hours(1))
    org.issue("short", 50, expires=hours(2))
    org.reserve("h1", 10, until=hours(1))
    org.at(hours(3))

    org.does(ask.end("h1"))

    rebuilt = rebuild(org.journal.events)
    books = org.journal.books
    assert hours(3) == books.clock == rebuilt.clock
    for one in (books, rebuilt):
        assert 50 == one.overdue.get((ORG, CreditKind.PAID))
        assert [] == find_problems(one)


def test_a_tree_may_be_deep() -> None:
    """Deeper than calls can be nested (B2)."""
    journal = Journal()
    parent = None
    for level in range(1_500):
        account = AccountId(f"a{level}")
        journal.do(AddAccount(account=account, parent=parent, name=""), T0)
        parent = account

    assert 1_500 == len(journal.books.path(AccountId("a1499")))


def test_a_trial_undoes_its_changes() -> None:
    """Rows, indexes, sums, header and clock (D2)."""
    org = Org()
    org.issue("g1", 10, expires=hours(1))
    org.issue("g2", 10, starts=hours(1))
    books = org.journal.books
    before, clock = deepcopy(books.facts()), books.clock

    with books.trial():
        try_changes(books)
        with books.trial():
            books.header.number += 1
            books.put_grant(replace(require(books.grants, "g2"), available=0, revoked=10))
        assert 4 == books.lane_totals.get(GrantLane(ORG, 100, GrantPolicy()))

    assert (before, clock) == (books.facts(), books.clock)
    assert ["g1"] == listed(org)
    assert [] == find_problems(books)


def try_changes(books: Books) -> None:
    """Change something of each kind."""
    books.advance(hours(2))
    books.put_grant(replace(require(books.grants, "g2"), available=4, revoked=6))
    books.header.number += 1
    books.header.issued = 7
    assert ["g2"] == [grant.terms.id for grant in books.spendable((ORG,), Context())]


def test_a_trial_tells_the_header_as_it_was_before() -> None:
    """A store writes the org's settings only if they have changed (D3)."""
    books = Org().journal.books
    policy = books.header.policy

    with books.trial() as trial:
        books.header.policy = OrgPolicy(debt_max=7)
        books.header.tier = "gold"
        before = trial.header_before()

    assert (policy, None) == (before.policy, before.tier)
    assert books.header == before, "the trial was not kept"


def test_a_trial_lists_the_rows_it_replaced() -> None:
    """Also a grant that only changed its place in the indexes, which a store writes (D3)."""
    org = Org()
    org.issue("g1", 10, expires=hours(1))
    org.issue("g2", 10, starts=hours(1))
    books = org.journal.books

    with books.trial() as trial:
        books.advance(hours(2))
        replaced = {table.name: rows for table, rows in trial.replaced().items()}
        with books.trial() as inner:
            books.used.put(ORG, 5)
            books.used.put(ORG, 6)
            assert {books.used: {ORG: None}} == inner.replaced()

    assert {"g1", "g2"} == set(replaced["grants"])
    assert org.grant("g1").terms == replaced["grants"]["g1"].terms
    assert 10 == replaced["lane_totals"][GrantLane(ORG, 100, GrantPolicy())]
    assert {} == trial.replaced()


def test_a_failed_trial_undoes_its_changes() -> None:
    """After any error, at any depth (D2)."""
    org = Org()
    org.issue("g2", 10, starts=hours(1))
    books = org.journal.books
    before = deepcopy(books.facts())

    def fail() -> None:
        with books.trial(), books.trial() as inner:
            try_changes(books)
            inner.keep()
            raise NotLoaded(MissingRow("grants", "g9"))

    with pytest.raises(NotLoaded):
        fail()

    assert before == books.facts()


def test_a_trial_can_be_kept() -> None:
    """And is then no longer recorded (D2)."""
    org = Org()
    org.issue("g2", 10, starts=hours(1))
    books = org.journal.books

    with books.trial() as trial:
        try_changes(books)
        trial.keep()

    assert (hours(2), 7) == (books.clock, books.header.issued)
    assert 4 == require(books.grants, "g2").available
    with books.trial():
        books.header.issued = 8
    assert (hours(2), 7) == (books.clock, books.header.issued)


# Rows with an order beside them


def test_a_row_that_must_exist_and_does_not_is_a_bug() -> None:
    """It is told with the table and the key (D7)."""
    with pytest.raises(InvariantBroken, match=r"a row is missing \(table='grants', key='g'\)"):
        require(Books().grants, GrantId("g"))


def test_open_holds_stand_in_the_order_of_their_limits() -> None:
    """Extended: at the new limit; closed: no more (L5)."""
    org = Org()
    org.issue("g", 100)
    org.reserve("h1", 10, until=hours(3))
    org.reserve("h2", 10, until=hours(2))
    assert [(hours(2), "h2"), (hours(3), "h1")] == keys(org, LIMITS)

    org.does(ask.extend("h2", until=hours(4)))
    assert [(hours(3), "h1"), (hours(4), "h2")] == keys(org, LIMITS)
    org.charge("h1", 1, "c")
    org.release("h1")
    org.does(ask.reverse("c"))
    assert [(hours(4), "h2")] == keys(org, LIMITS)


def test_debts_stand_in_the_order_in_which_they_were_booked() -> None:
    """Repaid, they are gone from it; their account owes what is left (L13)."""
    org = Org()
    org.does(ask.book_debt("d2", 30))
    org.later(seconds=1)
    org.does(ask.book_debt("d1", 12))
    assert [(T0, "d2"), (org.now, "d1")] == keys(org, DEBTS)
    assert 42 == org.journal.books.owed.get(ORG)
    assert 42 == org.journal.books.owed_on((AccountId("team"), ORG))
    assert 0 == org.journal.books.owed_on((AccountId("team"),))

    org.issue("g", 32)
    assert [(org.now, "d1")] == keys(org, DEBTS)
    assert 10 == org.journal.books.owed.get(ORG)
    org.does(ask.absorb("d1"))
    assert [] == keys(org, DEBTS)
    assert 0 == org.journal.books.owed.get(ORG)
    org.does(ask.book_debt("d3", 1, of="team"))
    assert 1 == org.journal.books.owed_on((AccountId("team"), ORG))


def test_recurrences_stand_in_the_order_of_their_turns() -> None:
    """Each is due once: when its next period begins (L20)."""
    org = Org()
    org.does(ask.recur("r", 5, roll_over=1))
    assert [(days(31), "r")] == keys(org, TURNS)

    org.does(ask.stop("r"))
    assert [(NEVER, "r")] == keys(org, TURNS)
    assert NEVER == require(org.journal.books.recurrences, RecurrenceId("r")).next_at


def test_a_posting_moves_something() -> None:
    """Nothing, or less, is a bug (D7)."""
    org = Org()
    org.issue("g", 5)
    nothing = Posting(grant=GrantId("g"), source=AVAILABLE, target=HELD, amount=0, effective_at=T0)

    with pytest.raises(InvariantBroken, match="a posting moves nothing"):
        org.journal.books.post(nothing, 0)


# What was free when


def test_free_since_is_the_least_of_all_instants() -> None:
    """Credits that were held for a while were not free at every instant (L12)."""
    org = Org()
    org.issue("g", 100)
    org.at(hours(1))
    org.reserve("h1", 30)
    org.at(hours(2))
    org.reserve("h2", 50)
    org.at(hours(3))
    org.release("h2")
    books, grant = org.journal.books, org.grant("g")

    def since(at: Instant) -> int:
        return books.least_free_since(grant, at, [])

    assert [20, 20, 20, 20] == [since(at) for at in (T0, hours(1), hours(2), hours(3) - 1)]
    assert [70, 70] == [since(hours(3)), since(hours(9))]
    assert [
        (hours(1), 7, 0, -30),
        (hours(2), 8, 0, -50),
        (hours(3), 9, 0, 50),
    ] == keys(org, history_of(GrantId("g")))


def test_decided_but_unposted_credits_are_not_free() -> None:
    """From the instant at which they take effect on (L12)."""
    org = Org()
    org.issue("g", 100)
    org.at(hours(2))
    org.reserve("h1", 50)
    org.at(hours(4))
    org.release("h1")
    books, grant = org.journal.books, org.grant("g")
    taken = [FreeChange(hours(1), 99, 0, -20), FreeChange(hours(3), 99, 1, -5)]

    def since(at: Instant) -> int:
        return books.least_free_since(grant, at, taken)

    assert [25, 25, 25, 75] == [since(at) for at in (T0, hours(1), hours(3), hours(4))]


PARTS = (AVAILABLE, HELD, SPENT, LAPSED, REVOKED, MOVED)


@given(
    st.lists(st.tuples(st.integers(0, 8), st.sampled_from(PARTS), st.integers(1, 40)), max_size=12),
    st.lists(st.tuples(st.integers(0, 8), st.integers(1, 20)), max_size=3),
    st.integers(0, 9),
    st.booleans(),
)
def test_free_since_agrees_with_replaying_every_change(
    moves: list[tuple[int, Compartment, int]],
    takes: list[tuple[int, int]],
    since: int,
    refundable: bool,
) -> None:
    """Whatever moved, in whatever order it became known, including decided changes (L12)."""
    books = Books()
    terms = GrantTerms(
        id=GrantId("g"),
        account=ORG,
        kind=CreditKind.PAID,
        source="",
        priority=1,
        issued_at=0,
        starts_at=0,
        expires_at=NEVER,
        amount=100,
        policy=GrantPolicy(refundable=refundable),
    )
    books.put_grant(Grant(terms=terms, available=100))
    changes: list[Key] = []
    for number, (at, target, amount) in enumerate(moves):
        grant = require(books.grants, GrantId("g"))
        source = max(PARTS, key=lambda part: int(getattr(grant, part.value)))
        if source in (target, LAPSED):  # what was forfeited cannot come back
            continue
        books.header.number = number
        most = min(amount, int(getattr(grant, source.value)))
        moved = Posting(grant=terms.id, source=source, target=target, amount=most, effective_at=at)
        books.post(moved, 0)
        changes.append((at, number, 0, require(books.grants, terms.id).free - grant.free))
    taken = [FreeChange(at, 99, index, -amount) for index, (at, amount) in enumerate(takes)]

    free = [100]
    for at, _, _, change in sorted([*changes, *taken]):
        free = [*(free if at > since else []), free[-1] + change]

    assert min(free) == books.least_free_since(require(books.grants, terms.id), since, taken)


# Many grants


class Counting(Index):
    """An order that counts the keys it tells."""

    told = 0

    def since(self, key: Key = (), bound: Key | None = None) -> Iterator[Key]:
        for found in super().since(key, bound):
            Counting.told += 1
            yield found


def owning(grants: int) -> Journal:
    """An org of one account with that many grants, in three lanes; a third has expired."""
    journal = Journal()
    journal.do(AddAccount(account=ORG, parent=None, name="org"), T0)
    journal.do(AddUser(user=UserId("ann")), T0)
    for index in range(grants):
        issue = Issue(
            grant=GrantId(f"g{index:06}"),
            account=ORG,
            amount=10,
            kind=CreditKind.PAID,
            priority=index % 3,
            expires_at=hours(1) + index % 3 * HOUR + index,
        )
        journal.do(issue, T0)
    return journal


def reserve(amount: int) -> Reserve:
    """A hold to be asked for."""
    return Reserve(
        hold=HoldId("h"), account=ORG, user=UserId("ann"), amount=amount, expires_at=hours(9)
    )


def test_a_hold_looks_at_the_grants_it_draws_and_not_at_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The number of keys looked at is the same with thirty grants and with three thousand (L16)."""
    monkeypatch.setattr("bursar.core.ledger.books.Index", Counting)
    looked = []
    for grants in (30, 3_000):
        journal = owning(grants)
        journal.books.advance(hours(1) + HOUR // 2)  # each grant passes its end once, not here
        Counting.told = 0

        outcome = decide(journal.books, reserve(45), hours(1) + HOUR // 2)

        looked.append(Counting.told)
        assert not isinstance(outcome, Refusal)
        assert isinstance(outcome[-1], HoldOpened)
        assert [10, 10, 10, 10, 5] == [posting.amount for posting in outcome[-1].postings]

    assert looked[0] == looked[1]
    assert 5 <= looked[0] <= 5 + 2  # five grants drawn, and the head of each of two lanes


def test_late_usage_looks_at_what_has_expired_since_and_not_at_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither at what had expired before nor at all that is still alive (L12, L16)."""
    monkeypatch.setattr("bursar.core.ledger.books.Index", Counting)
    then = hours(2) + HOUR // 2  # two thirds of the grants had expired then
    looked = []
    for grants in (30, 300):
        journal = owning(grants)
        journal.do(reserve(10), T0)
        journal.do(ask.settle("h", total=10), T0)
        journal.books.advance(then + 1)
        Counting.told = 0

        outcome = decide(journal.books, ask.late("h", 25, when=then), then + 1)

        looked.append(Counting.told)
        assert not isinstance(outcome, Refusal)
        assert [10, 10, 5] == [posting.amount for posting in outcome[-1].postings]

    assert looked[0] == looked[1]


def test_a_part_loads_the_grants_it_draws_and_not_the_others() -> None:
    """Nor what has expired long ago, once that has been written down (L16, D2)."""
    loaders = []
    for grants in (300, 3_000):
        journal = owning(grants)
        journal.do(ask.lapse(grants), hours(1) + HOUR // 2)
        loaders.append(Loader(journal.books))

    outcomes = [loader.decide(reserve(45), hours(1) + HOUR // 2) for loader in loaders]

    assert [5, 5] == [
        len(outcome[-1].postings) for outcome in outcomes if not isinstance(outcome, Refusal)
    ]
    assert loaders[0].rows == loaders[1].rows


def test_an_empty_lane_is_forgotten() -> None:
    """A decision does not look at what has nothing (L16)."""
    org = Org()
    org.issue("g1", 10, priority=1)
    org.issue("g2", 10)
    lanes = org.journal.books.lanes_of
    assert 2 == len(lanes.get(ORG) or ())

    org.reserve("h1", 10)

    assert [100] == [lane.priority for lane in lanes.get(ORG) or ()]


def test_nothing_is_noted_outside_a_trial() -> None:
    """Or the notes would grow for ever (D2)."""
    org = Org()
    org.issue("g1", 10)

    assert org.journal.books._undo.steps is None
    with org.journal.books.trial():
        assert org.journal.books._undo.steps is not None
    assert org.journal.books._undo.steps is None


def test_a_key_put_back_before_it_was_loaded_is_added_again() -> None:
    """Taken out and added again before anything was loaded, it is there, once (D2)."""
    order = Index(("limits",), complete=False)
    order.discard((5, "a"))
    order.add((5, "a"))

    order.load([(5, "a")], through=None)
    order.discard((5, "a"))
    order.load([(5, "a")], through=None)

    assert [(5, "a")] == list(order.since())


def test_a_budget_of_an_undone_trial_does_not_apply() -> None:
    """The cache of applicable budgets is cleared after the trial (B3)."""
    org = Org()
    org.budget("b", 100, account="project")
    books, project, ann = org.journal.books, AccountId("project"), UserId("ann")
    before = budgets_on(books, project, ann)
    [applying] = before

    with books.trial():
        books.put_budget(replace(applying.budget, limit=5))
        assert [5] == [one.budget.limit for one in budgets_on(books, project, ann)]

    assert before == budgets_on(books, project, ann)


def test_accounts_in_a_circle_are_a_contradiction() -> None:
    """And no way to go on for ever."""
    books = Books()
    books.accounts.put(ORG, Account(id=ORG, parent=ORG, name="o", time_zone="UTC"))

    with pytest.raises(InvariantBroken, match="an account is above itself"):
        books.path(ORG)
