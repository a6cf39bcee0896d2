"""TimelineLedger: told in any order, answered as in time order; against replaying everything."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar import InsufficientCredits, TimelineLedger
from bursar.library import timeline

pytestmark = pytest.mark.property


def test_the_example_of_the_documentation() -> None:
    """A late use must not uncover a later one; with more credits it fits (L18)."""
    ledger = TimelineLedger()
    ledger.add_credits(10, start_time=0, expiry_time=20)
    ledger.consume_credits(8, at=15)

    with pytest.raises(InsufficientCredits, match="5 credits requested, 2 available"):
        ledger.consume_credits(5, at=10)

    ledger.add_credits(5, start_time=5, expiry_time=12)
    assert 5 == ledger.consume_credits(5, at=10)
    assert 2 == ledger.get_balance(15)


def test_a_late_pack_takes_over_uses_of_packs_that_end_later() -> None:
    """The use at 5 turns out to have taken the pack that ends first (L18)."""
    ledger = TimelineLedger()
    ledger.add_credits(10, 0, 100)
    ledger.consume_credits(10, 5)
    assert 0 == ledger.get_balance(50)

    ledger.add_credits(10, 0, 6)

    assert 10 == ledger.get_balance(5)
    assert 10 == ledger.get_balance(50), "those that end at 100 are free again"


def test_late_spend_takes_credits_that_would_have_lapsed() -> None:
    """Credits that nobody wanted before they ended serve a use told later (L18)."""
    ledger = TimelineLedger()
    ledger.add_credits(10, 0, 6)
    ledger.add_credits(10, 0, 100)
    ledger.consume_credits(10, 50)

    ledger.consume_credits(10, 3)

    assert (10, 10, 0) == (ledger.get_balance(6), ledger.get_balance(49), ledger.get_balance(50))


@pytest.mark.parametrize(("time", "want"), [(9, 0), (10, 7), (11, 7), (19, 7), (20, 7), (21, 0)])
def test_both_ends_of_a_pack_are_included(time: int, want: int) -> None:
    """Usable at t when start <= t <= expiry, for balance and use, inside and at the end (L18)."""
    for others in ([], [1, 30]):
        ledger = TimelineLedger()
        for start in others:
            ledger.add_credits(1, start, start)
        ledger.add_credits(7, 10, 20)

        assert want == ledger.get_balance(time)
        if want:
            assert 7 == ledger.consume_credits(7, time)
        else:
            with pytest.raises(InsufficientCredits):
                ledger.consume_credits(1, time)


def test_credits_that_start_at_the_instant_of_a_use_serve_it() -> None:
    """At one instant packs start, then uses happen, then balances are read (L18)."""
    ledger = TimelineLedger()
    ledger.add_credits(5, 10, 10)
    ledger.consume_credits(3, 10)
    ledger.add_credits(2, 10, 90)
    ledger.consume_credits(2, 10)

    assert 2 == ledger.get_balance(10)
    assert 2 == ledger.get_balance(11), "the five that end at 10 went first"


def test_a_refused_use_leaves_no_trace() -> None:
    """No balance changes, and the latest time does not move (L18)."""
    ledger = TimelineLedger()
    ledger.add_credits(10, 0, 20)
    ledger.add_credits(4, 5, 9)
    ledger.consume_credits(9, 15)
    before = [ledger.get_balance(time) for time in range(30)]

    for amount, time in [(6, 5), (2, 12), (2, 15), (1, 21), (2, 20)]:
        with pytest.raises(InsufficientCredits):
            ledger.consume_credits(amount, time)

    assert before == [ledger.get_balance(time) for time in range(30)]
    ledger._check()


def test_available_is_the_most_that_would_be_accepted() -> None:
    """Several later uses may set the bound, each its own (L18)."""
    ledger = TimelineLedger()
    ledger.add_credits(10, 0, 50)
    ledger.consume_credits(4, 20)
    ledger.add_credits(1, 30, 50)
    ledger.consume_credits(5, 40)

    with pytest.raises(InsufficientCredits) as refused:
        ledger.consume_credits(10, 10)

    assert 2 == refused.value.available
    assert 2 == ledger.consume_credits(2, 10)


def test_a_pack_that_ends_before_it_starts_is_refused() -> None:
    """It could never serve anybody: surely a mistake (L18)."""
    with pytest.raises(ValueError, match="start_time 6 is after expiry_time 5"):
        TimelineLedger().add_credits(1, 6, 5)


INTS: list[object] = [True, 1.0, float("nan"), "1", None]
BAD: list[tuple[str, Callable[[Any, Any], object], list[object]]] = [
    ("amount added", lambda it, x: it.add_credits(x, 1, 9), [*INTS, 0, -1]),
    ("start", lambda it, x: it.add_credits(5, x, 9), [*INTS, -1, 2**63]),
    ("expiry", lambda it, x: it.add_credits(5, 1, x), [*INTS, -1, 2**63]),
    ("amount used", lambda it, x: it.consume_credits(x, 3), [*INTS, 0, -1]),
    ("time of use", lambda it, x: it.consume_credits(1, x), [*INTS, -1, 2**63]),
    ("time of balance", lambda it, x: it.get_balance(x), [*INTS, -1, 2**63]),
]


@pytest.mark.parametrize(
    ("call", "bad"), [(call, x) for _, call, bad in BAD for x in bad], ids=lambda x: repr(x)[:12]
)
def test_bad_input_is_refused_and_changes_nothing(
    call: Callable[[TimelineLedger, object], object], bad: object
) -> None:
    """The wrong kind is a TypeError, the wrong size a ValueError (L18)."""
    ledger = TimelineLedger()
    ledger.add_credits(10, 0, 20)

    with pytest.raises(ValueError if type(bad) is int else TypeError):
        call(ledger, bad)

    assert [10] * 21 + [0] == [ledger.get_balance(time) for time in range(22)]


class Replay:
    """All that was told, in lists; everything is worked out anew for each answer."""

    def __init__(self) -> None:
        self.packs: list[tuple[int, int, int]] = []  # (start, expiry, amount)
        self.uses: list[tuple[int, int]] = []  # (time, amount), as accepted

    def balance(self, at: int, more: tuple[tuple[int, int], ...] = ()) -> int | None:
        """What is left at a time; None when a use up to then is not covered."""
        uses = sorted((*self.uses, *more), key=lambda use: use[0])
        left = [amount for _, _, amount in self.packs]
        by_expiry = sorted(range(len(left)), key=lambda i: self.packs[i][1])
        for time, amount in uses:
            if time > at:
                break
            for i in by_expiry:
                start, expiry, _ = self.packs[i]
                if start <= time <= expiry:
                    part = min(left[i], amount)
                    left[i] -= part
                    amount -= part
            if amount:
                return None
        alive = [i for i in by_expiry if self.packs[i][0] <= at <= self.packs[i][1]]
        return sum(left[i] for i in alive)

    def most(self, amount: int, at: int) -> int:
        """The most, up to `amount`, that can be used at a time with all uses covered."""
        while amount and self.balance(10**9, ((at, amount),)) is None:
            amount -= 1
        return amount


def play(steps: list[tuple[str, int, int, int]]) -> None:
    """Tell both the same and compare every answer, then every balance."""
    ledger, model = TimelineLedger(), Replay()
    for kind, amount, time, life in steps:
        if kind == "add":
            ledger.add_credits(amount, time, time + life)
            model.packs.append((time, time + life, amount))
        elif kind == "use":
            most = model.most(amount, time)
            if most == amount:
                model.uses.append((time, amount))
                assert amount == ledger.consume_credits(amount, time)
            else:
                with pytest.raises(InsufficientCredits) as refused:
                    ledger.consume_credits(amount, time)
                assert (amount, most) == (refused.value.requested, refused.value.available)
        else:
            assert model.balance(time + life) == ledger.get_balance(time + life)
        ledger._check()
    last = max((time + life for _, _, time, life in steps), default=0) + 2
    assert [model.balance(time) for time in range(last)] == [
        ledger.get_balance(time) for time in range(last)
    ]


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, int, int, int]]:
    """Many ties: few instants, small amounts, packs of every length of life."""
    horizon = draw(st.sampled_from([3, 8, 20]))
    longest = draw(st.sampled_from([0, 2, horizon, 2 * horizon]))
    kinds = st.sampled_from(["add", "add", "add", "use", "use", "use", "use", "balance"])
    step = st.tuples(kinds, st.integers(1, 6), st.integers(0, horizon), st.integers(0, longest))
    return draw(st.lists(step, max_size=draw(st.sampled_from([6, 40]))))


@given(histories())
def test_answers_are_those_of_replaying_everything(steps: list[tuple[str, int, int, int]]) -> None:
    """Whatever is told, in whatever order (L18)."""
    play(steps)


@given(
    histories(), st.sampled_from([2, 3, 5]), st.sampled_from([0, 4, 100]), st.sampled_from([0, 2])
)
def test_many_small_blocks_give_the_same_answers(
    steps: list[tuple[str, int, int, int]], longest: int, eager: int, small: int
) -> None:
    """Where blocks end and how much is put off until later is not seen from outside (L18)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timeline, "_LONGEST", longest)
        patch.setattr(timeline, "_EAGER", eager)
        patch.setattr(timeline, "_SMALL", small)
        patch.setattr(timeline, "_WORTH", small // 2)
        play(steps)


@pytest.mark.parametrize("life", [3, 40, 400])
@pytest.mark.parametrize(("longest", "eager", "small"), [(36, 192, 64), (4, 8, 4), (4, -1, 0)])
def test_a_longer_shuffled_history_agrees_too(
    life: int, longest: int, eager: int, small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many blocks, some with their state forgotten, uses refused far from their own time (L18)."""
    monkeypatch.setattr(timeline, "_LONGEST", longest)
    monkeypatch.setattr(timeline, "_EAGER", eager)
    monkeypatch.setattr(timeline, "_SMALL", small)
    monkeypatch.setattr(timeline, "_WORTH", 16 if small == 64 else 0)
    chance = Random(life)

    play(
        [
            (
                chance.choice(["add", "use", "use", "balance"]),
                chance.randrange(1, 9),
                chance.randrange(200),
                chance.randrange(life + 1),
            )
            for _ in range(160)
        ]
    )


def test_late_unused_packs_pass_through_every_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are in every later balance, whether or not a block still keeps its state (L18)."""
    monkeypatch.setattr(timeline, "_LONGEST", 4)
    monkeypatch.setattr(timeline, "_SMALL", 4)
    monkeypatch.setattr(timeline, "_WORTH", 0)
    in_order = [("add", 5, time, 3) if time % 2 else ("use", 1, time, 0) for time in range(1, 60)]
    late = [("add", 7, time, 100 + time) for time in range(12)]

    play(in_order + late)


@given(histories(), st.randoms(use_true_random=False))
def test_balances_do_not_depend_on_the_order_of_events(
    steps: list[tuple[str, int, int, int]], random: Any
) -> None:
    """The same packs and accepted uses, told otherwise, give the same balances (L18)."""
    told: list[tuple[str, int, int, int]] = []
    one = TimelineLedger()
    for kind, amount, time, life in steps:
        if kind == "add":
            one.add_credits(amount, time, time + life)
        elif kind == "use":
            try:
                one.consume_credits(amount, time)
            except InsufficientCredits:
                continue
        told.append((kind, amount, time, life))
    packs = [step for step in told if step[0] == "add"]
    uses = [step for step in told if step[0] == "use"]
    random.shuffle(packs)
    random.shuffle(uses)

    two = TimelineLedger()
    for _, amount, time, life in packs:
        two.add_credits(amount, time, time + life)
    for _, amount, time, _ in uses:
        two.consume_credits(amount, time)

    assert [one.get_balance(t) for t in range(70)] == [two.get_balance(t) for t in range(70)]
