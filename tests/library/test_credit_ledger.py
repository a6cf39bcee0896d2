"""CreditLedger: what it promises, in small stories and against a naive model (L17)."""

import re
from collections.abc import Callable
from threading import Barrier, Thread

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from bursar import CreditLedger, InsufficientCredits, Reservation


def reserved(ledger: CreditLedger, amount: int, at: int, request_id: str = "r") -> Reservation:
    """A reservation for alice that must succeed."""
    reservation = ledger.try_reserve("alice", amount, at, request_id=request_id)
    assert reservation is not None
    return reservation


def test_credits_that_expire_first_are_spent_first() -> None:
    """The classic exercise (L17)."""
    ledger = CreditLedger()
    ledger.add_credits(20, expiry_time=50)
    ledger.add_credits(10, expiry_time=30)

    assert 15 == ledger.consume_credits(15, current_time=20)

    assert 15 == ledger.get_balance(current_time=30)
    assert 15 == ledger.get_balance(current_time=31), "all that ended at 30 was spent"
    assert 0 == ledger.get_balance(current_time=51)


def test_the_example_of_the_documentation() -> None:
    """Spend, take the rest, read the balance on the last valid instant (L17)."""
    ledger = CreditLedger()
    ledger.add_credits(100, expiry_time=50)

    assert 30 == ledger.consume_credits(30, current_time=10)
    assert 70 == ledger.consume_credits(500, current_time=10, partial=True)
    assert 0 == ledger.get_balance(current_time=50)


@pytest.mark.parametrize(("time", "want"), [(49, 100), (50, 100), (51, 0)])
def test_pack_is_valid_up_to_and_including_its_expiry(time: int, want: int) -> None:
    """The end is included, for balance, use, reservation and refund alike (L17, IL26)."""
    ledger = CreditLedger()
    ledger.add_credits(100, expiry_time=50, user="alice")

    assert want == ledger.get_balance(time, user="alice")
    assert bool(want) == (ledger.try_reserve("alice", 40, time, request_id="r") is not None)
    assert min(want, 60) == ledger.consume_credits(60, time, partial=True, user="alice")
    if want:
        assert 40 == ledger.refund(1, request_id="f")
        assert 40 == ledger.get_balance(time, user="alice")


def test_refused_spend_takes_nothing() -> None:
    """InsufficientCredits tells what was asked and what there is, and is no ValueError (L17)."""
    ledger = CreditLedger()
    ledger.add_credits(10, expiry_time=5)

    with pytest.raises(InsufficientCredits, match="11 credits requested, 10 available") as refused:
        ledger.consume_credits(11, current_time=5)

    assert (11, 10) == (refused.value.requested, refused.value.available)
    assert not isinstance(refused.value, ValueError)
    assert 10 == ledger.get_balance(5)


def test_unknown_user_has_no_credits() -> None:
    """A user nobody gave credits has none, and asking leaves no trace (L17)."""
    ledger = CreditLedger()

    assert 0 == ledger.get_balance(1, user="bob")
    assert 0 == ledger.consume_credits(5, 1, partial=True, user="bob")
    assert ledger.try_reserve("bob", 5, 1, request_id="r") is None
    with pytest.raises(InsufficientCredits):
        ledger.consume_credits(5, 1, user="bob")
    assert [] == ledger.top_k(5, 1)


def test_users_do_not_share_credits() -> None:
    """One user's credits are nobody else's; the default user is one of them (L17)."""
    ledger = CreditLedger()
    ledger.add_credits(10, 50, user="alice")
    ledger.add_credits(7, 50)
    ledger.consume_credits(3, 0, user="alice")

    assert (7, 7) == (ledger.get_balance(0, user="alice"), ledger.get_balance(0))


def test_credits_that_expired_before_the_latest_time_are_worth_nothing() -> None:
    """They are accepted, for news may be late, but time is past them (L17)."""
    ledger = CreditLedger()
    ledger.get_balance(10)
    ledger.add_credits(5, expiry_time=9)
    ledger.add_credits(5, expiry_time=10)

    assert 5 == ledger.get_balance(10)


def test_time_does_not_go_back() -> None:
    """A time before the latest one seen is refused, whoever saw it (L17)."""
    ledger = CreditLedger()
    ledger.add_credits(5, 50, user="alice")
    ledger.get_balance(10, user="bob")

    calls: list[Callable[[], object]] = [
        lambda: ledger.get_balance(9, user="alice"),
        lambda: ledger.consume_credits(1, 9, user="alice"),
        lambda: ledger.try_reserve("alice", 1, 9, request_id="r"),
        lambda: ledger.top_k(1, 9),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="TimelineLedger"):
            call()
    assert 5 == ledger.get_balance(10, user="alice")


def test_a_reservation_is_committed_in_parts_and_the_rest_refunded() -> None:
    """What is reserved is neither in the balance nor spent until it is told (L17)."""
    ledger = CreditLedger()
    ledger.add_credits(100, 50, user="alice")
    held = reserved(ledger, 60, 10)

    assert 40 == ledger.get_balance(10, user="alice")
    assert 25 == ledger.commit(held.id, 25, request_id="c1")
    assert 35 == ledger.remaining(held.id)
    assert 10 == ledger.refund(held.id, 10, request_id="f1")
    assert 25 == ledger.commit(held.id, request_id="c2")
    assert 0 == ledger.refund(held.id, request_id="f2"), "nothing is left"
    assert 0 == ledger.commit(held.id, request_id="c3")
    assert 50 == ledger.get_balance(10, user="alice")


def test_a_refund_goes_back_to_the_packs_it_came_from_in_reverse_order() -> None:
    """What was spent last comes back first (L17)."""
    ledger = CreditLedger()
    ledger.add_credits(10, 20, user="alice")
    ledger.add_credits(10, 40, user="alice")
    held = reserved(ledger, 16, 5)

    assert ((20, 10), (40, 6)) == held.draws
    assert 8 == ledger.refund(held.id, 8, request_id="f")
    assert 12 == ledger.get_balance(20, user="alice"), "6 of 40, then 2 of 20"
    assert 10 == ledger.get_balance(21, user="alice")


def test_reservation_outlives_its_pack_but_a_refund_does_not() -> None:
    """A hold stays usable after expiry; a refund after expiry lapses at once (L10, L17)."""
    ledger = CreditLedger()
    ledger.add_credits(10, 20, user="alice")
    ledger.add_credits(10, 40, user="alice")
    held = reserved(ledger, 15, 5)
    ledger.get_balance(30)

    assert 4 == ledger.commit(held.id, 4, request_id="c")
    assert 5 == ledger.refund(held.id, request_id="f"), "6 of those that ended at 20 are gone"
    assert 10 == ledger.get_balance(30, user="alice")


def test_commit_beyond_the_rest_of_a_reservation_is_refused() -> None:
    """Neither commit nor refund makes credits (L17)."""
    ledger = CreditLedger()
    ledger.add_credits(10, 20, user="alice")
    held = reserved(ledger, 6, 5)

    with pytest.raises(InsufficientCredits, match="7 credits requested, 6 available"):
        ledger.commit(held.id, 7, request_id="c")
    with pytest.raises(InsufficientCredits):
        ledger.refund(held.id, 7, request_id="c")
    with pytest.raises(LookupError):
        ledger.commit(99, request_id="c")
    assert 6 == ledger.commit(held.id, 6, request_id="c"), "a refused request may come again"


def test_a_repeated_request_gets_its_first_answer_again() -> None:
    """Also when the answer was no, also at another time; nothing is done twice (L17)."""
    ledger = CreditLedger()
    assert ledger.try_reserve("alice", 10, 5, request_id="early") is None
    ledger.add_credits(100, 50, user="alice")
    held = reserved(ledger, 10, 5)
    ledger.commit(held.id, 3, request_id="c")
    ledger.refund(held.id, 2, request_id="f")
    ledger.get_balance(30)

    assert ledger.try_reserve("alice", 10, 30, request_id="early") is None
    assert held == ledger.try_reserve("alice", 10, 5, request_id="r")
    assert 3 == ledger.commit(held.id, 3, request_id="c")
    assert 2 == ledger.refund(held.id, 2, request_id="f")
    assert (5, 92) == (ledger.remaining(held.id), ledger.get_balance(30, user="alice"))


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda it: it.try_reserve("bob", 9, 5, request_id="r"), "user"),
        (lambda it: it.try_reserve("alice", 9, 5, request_id="r"), "amount"),
        (lambda it: it.commit(1, request_id="r"), "operation"),
        (lambda it: it.commit(2, 9, request_id="c"), "reservation_id"),
        (lambda it: it.commit(1, request_id="c"), "amount"),
        (lambda it: it.refund(1, 3, request_id="c"), "operation"),
    ],
)
def test_a_request_id_used_for_something_else_is_refused(
    call: Callable[[CreditLedger], object], field: str
) -> None:
    """The message names the first field that differs (L17)."""
    ledger = CreditLedger()
    ledger.add_credits(100, 50, user="alice")
    held = reserved(ledger, 10, 5)
    ledger.commit(held.id, 3, request_id="c")

    with pytest.raises(ValueError, match=rf"used before with another {field}:"):
        call(ledger)
    assert 7 == ledger.remaining(held.id)


def test_top_k_lists_the_largest_balances_and_ties_by_name() -> None:
    """It follows uses, reservations, refunds and expiries (L15, L17)."""
    ledger = CreditLedger()
    for user, amount, expiry in [("dan", 30, 10), ("bob", 20, 50), ("amy", 20, 50), ("cat", 5, 9)]:
        ledger.add_credits(amount, expiry, user=user)

    assert [("dan", 30), ("amy", 20), ("bob", 20), ("cat", 5)] == ledger.top_k(9, 0)
    assert [("dan", 30), ("amy", 20)] == ledger.top_k(2, 0)
    assert [] == ledger.top_k(0, 0)

    ledger.consume_credits(15, 10, user="dan")
    held = ledger.try_reserve("amy", 19, 10, request_id="r")
    assert held is not None
    assert [("bob", 20), ("dan", 15), ("amy", 1)] == ledger.top_k(4, 10), "cat's ended at 9"

    ledger.refund(held.id, request_id="f")
    assert [("amy", 20), ("bob", 20)] == ledger.top_k(4, 11), "dan's ended at 10"
    assert [] == ledger.top_k(4, 51)


def test_a_million_small_packs_of_one_day_are_one_entry() -> None:
    """Equal expiries are joined, so their number costs nothing (L16, L17)."""
    ledger = CreditLedger()
    for number in range(20_000):
        ledger.add_credits(1, expiry_time=number % 3)

    assert 3 == len(ledger._accounts["default"].packs)
    assert 20_000 == ledger.consume_credits(20_000, 0)


def test_credits_may_be_more_than_any_machine_word() -> None:
    """Totals are whole numbers of any size (L17)."""
    ledger = CreditLedger()
    ledger.add_credits(2**200, 2**63 - 1)

    assert 2**200 == ledger.consume_credits(2**200, 2**63 - 1)


def test_twenty_threads_cannot_reserve_more_than_there_is() -> None:
    """Of twenty reservations of 75 on 500 exactly six succeed, whatever the timing (L17)."""
    ledger = CreditLedger()
    ledger.add_credits(500, 50, user="alice")
    start = Barrier(20)
    got: list[Reservation | None] = []

    def ask(number: int) -> None:
        start.wait()
        got.append(ledger.try_reserve("alice", 75, 1, request_id=f"r{number}"))

    threads = [Thread(target=ask, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    won = [one for one in got if one is not None]
    assert (20, 6) == (len(got), len(won))
    assert 6 == len({one.id for one in won})
    assert 50 == ledger.get_balance(1, user="alice")


class Watched(CreditLedger):
    """One that fails where it looks at itself, or changes, while another thread could too."""

    def __getattribute__(self, name: str) -> object:
        if name in ("_now", "_accounts", "_open", "_answers", "_reserve", "_part", "_rank_again"):
            assert object.__getattribute__(self, "_lock").locked(), name
        return super().__getattribute__(name)


def test_nothing_is_read_or_changed_without_the_lock() -> None:
    """Threads that collide are too rare to count on: the lock itself is watched (L17)."""
    ledger = Watched()
    ledger.add_credits(500, 50, user="alice")
    taken = reserved(ledger, 75, 1)

    assert 25 == ledger.commit(taken.id, 25, request_id="c")
    assert 25 == ledger.refund(taken.id, 25, request_id="b")
    assert 25 == ledger.remaining(taken.id)
    assert 25 == ledger.consume_credits(25, 2, user="alice")
    assert 425 == ledger.get_balance(2, user="alice")
    assert [("alice", 425)] == ledger.top_k(1, 2)


BAD_INTS: list[object] = [True, 1.0, float("nan"), "1", None, [1]]
BAD_AMOUNTS = [*BAD_INTS, 0, -1]
BAD_TIMES = [*BAD_INTS, -1, 2**63]
BAD_TEXTS: list[object] = [None, 1, b"x", ["x"]]


def bad_calls() -> list[tuple[str, Callable[[CreditLedger], object]]]:
    """Every argument of every method, with everything it must not be."""
    calls: list[tuple[str, Callable[[CreditLedger], object]]] = []

    def table(name: str, bad: list[object], call: Callable[..., object]) -> None:
        calls.extend((f"{name}={x!r}", lambda it, x=x: call(it, x)) for x in bad)  # type: ignore[misc]

    table("add amount", BAD_AMOUNTS, lambda it, x: it.add_credits(x, 60))
    table("add expiry", BAD_TIMES, lambda it, x: it.add_credits(5, x))
    table("add user", BAD_TEXTS, lambda it, x: it.add_credits(5, 60, user=x))
    table("consume amount", BAD_AMOUNTS, lambda it, x: it.consume_credits(x, 9))
    table("consume time", BAD_TIMES, lambda it, x: it.consume_credits(5, x))
    table("consume partial", [1, None, "yes"], lambda it, x: it.consume_credits(5, 9, x))
    table("consume user", BAD_TEXTS, lambda it, x: it.consume_credits(5, 9, user=x))
    table("balance time", BAD_TIMES, lambda it, x: it.get_balance(x))
    table("balance user", BAD_TEXTS, lambda it, x: it.get_balance(9, user=x))
    table("reserve user", BAD_TEXTS, lambda it, x: it.try_reserve(x, 5, 9, request_id="n"))
    table("reserve amount", BAD_AMOUNTS, lambda it, x: it.try_reserve("a", x, 9, request_id="n"))
    table("reserve time", BAD_TIMES, lambda it, x: it.try_reserve("a", 5, x, request_id="n"))
    table("reserve id", BAD_TEXTS, lambda it, x: it.try_reserve("a", 5, 9, request_id=x))
    table("commit which", BAD_INTS, lambda it, x: it.commit(x, request_id="n"))
    table("commit amount", BAD_AMOUNTS[:4], lambda it, x: it.commit(1, x, request_id="n"))
    table("commit amount", [0, -1], lambda it, x: it.commit(1, x, request_id="n"))
    table("commit id", BAD_TEXTS, lambda it, x: it.commit(1, request_id=x))
    table("refund which", BAD_INTS, lambda it, x: it.refund(x, request_id="n"))
    table("refund amount", [1.5, "1", 0], lambda it, x: it.refund(1, x, request_id="n"))
    table("refund id", BAD_TEXTS, lambda it, x: it.refund(1, request_id=x))
    table("remaining", BAD_INTS, lambda it, x: it.remaining(x))
    table("top k", [*BAD_INTS, -1], lambda it, x: it.top_k(x, 9))
    table("top time", BAD_TIMES, lambda it, x: it.top_k(1, x))
    return calls


@pytest.mark.parametrize(("name", "call"), bad_calls(), ids=lambda x: x if type(x) is str else "")
def test_bad_input_is_refused_and_changes_nothing(
    name: str, call: Callable[[CreditLedger], object]
) -> None:
    """The wrong kind is a TypeError, the wrong size a ValueError (L17)."""
    ledger = CreditLedger()
    ledger.add_credits(10, 50)
    ledger.add_credits(10, 50, user="a")
    ledger.try_reserve("a", 4, 3, request_id="r")
    wrong_size = re.search(r"=(-1|0|9223372036854775808)$", name)

    with pytest.raises(ValueError if wrong_size else TypeError):
        call(ledger)

    assert [("default", 10), ("a", 6)] == ledger.top_k(9, 3), "the time has not moved either"
    assert 4 == ledger.remaining(1)
    assert {"r"} == set(ledger._answers)


class Naive:
    """Packs in a list, sorted when needed; each pack is [expiry, left]. Written from L17."""

    def __init__(self) -> None:
        self.packs: dict[str, list[list[int]]] = {}
        self.holds: dict[int, list[list[int]]] = {}

    def balance(self, user: str, now: int) -> int:
        return sum(left for expiry, left in self.packs.get(user, []) if expiry >= now)

    def take(self, user: str, amount: int, now: int) -> list[list[int]]:
        draws = []
        for pack in sorted(self.packs.get(user, []), key=lambda pack: pack[0]):
            if pack[0] >= now and amount:
                part = min(amount, pack[1])
                pack[1] -= part
                amount -= part
                draws += [[pack[0], 1] for _ in range(part)]
        return draws


USERS = st.sampled_from(["amy", "bob", "default"])
AMOUNTS = st.integers(1, 12)


class AgainstTheNaive(RuleBasedStateMachine):
    """Any sequence of calls gives what the naive model gives, and credits are conserved (L17)."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = CreditLedger()
        self.model = Naive()
        self.now = 0
        self.requests = 0
        self.owner: dict[int, str] = {}

    def request(self) -> str:
        self.requests += 1
        return f"q{self.requests}"

    @rule(user=USERS, amount=AMOUNTS, ahead=st.integers(-1, 6))
    def add(self, user: str, amount: int, ahead: int) -> None:
        expiry = max(0, self.now + ahead)
        self.ledger.add_credits(amount, expiry, user=user)
        if expiry >= self.now:
            self.model.packs.setdefault(user, []).append([expiry, amount])

    @rule(step=st.integers(1, 2))
    def wait(self, step: int) -> None:
        self.now += step

    @rule(user=USERS, amount=AMOUNTS, partial=st.booleans())
    def consume(self, user: str, amount: int, partial: bool) -> None:
        there = self.model.balance(user, self.now)
        if there < amount and not partial:
            with pytest.raises(InsufficientCredits):
                self.ledger.consume_credits(amount, self.now, user=user)
            return
        self.model.take(user, min(amount, there), self.now)
        assert min(amount, there) == self.ledger.consume_credits(
            amount, self.now, partial, user=user
        )

    @rule(user=USERS, amount=AMOUNTS)
    def reserve(self, user: str, amount: int) -> None:
        there = self.model.balance(user, self.now)
        got = self.ledger.try_reserve(user, amount, self.now, request_id=self.request())
        assert (there >= amount) == (got is not None)
        if got is not None:
            self.model.holds[got.id] = self.model.take(user, amount, self.now)
            self.owner[got.id] = user

    @precondition(lambda self: self.model.holds)
    @rule(data=st.data(), back=st.booleans(), whole=st.booleans())
    def end(self, data: st.DataObject, back: bool, whole: bool) -> None:
        which = data.draw(st.sampled_from(sorted(self.model.holds)))
        units = self.model.holds[which]
        if not units:
            return
        amount = len(units) if whole else data.draw(st.integers(1, len(units)))
        asked = None if whole else amount
        if not back:
            assert amount == self.ledger.commit(which, asked, request_id=self.request())
            del units[:amount]
            return
        # The ledger knows the time only by what it was told.
        self.ledger.get_balance(self.now)
        returned = [unit for unit in units[-amount:] if unit[0] >= self.now]
        assert len(returned) == self.ledger.refund(which, asked, request_id=self.request())
        self.model.packs.setdefault(self.owner[which], []).extend(returned)
        del units[-amount:]

    @rule(k=st.integers(0, 4))
    def rank(self, k: int) -> None:
        balances = [(user, self.model.balance(user, self.now)) for user in self.model.packs]
        best = sorted((x for x in balances if x[1]), key=lambda x: (-x[1], x[0]))
        assert best[:k] == self.ledger.top_k(k, self.now)

    @invariant()
    def balances_agree(self) -> None:
        for user in ("amy", "bob", "default"):
            want = self.model.balance(user, self.now)
            assert want == self.ledger.get_balance(self.now, user=user)
        for which, units in self.model.holds.items():
            assert len(units) == self.ledger.remaining(which)


TestAgainstTheNaive = AgainstTheNaive.TestCase
TestAgainstTheNaive.settings = settings(stateful_step_count=20)


@given(st.lists(st.tuples(AMOUNTS, st.integers(0, 9)), max_size=12), st.integers(0, 10))
def test_the_order_of_adding_does_not_matter(packs: list[tuple[int, int]], now: int) -> None:
    """Spend order is a matter of expiry alone (L4, L17)."""
    one, two = CreditLedger(), CreditLedger()
    for amount, expiry in packs:
        one.add_credits(amount, expiry)
    for amount, expiry in reversed(packs):
        two.add_credits(amount, expiry)
    one.consume_credits(5, 0, partial=True)
    two.consume_credits(5, 0, partial=True)

    assert one.get_balance(now) == two.get_balance(now)
