"""The sorted set that keeps spend order agrees with a plain sorted list, whatever is done to it."""

from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from bursar.core import sorted_set
from bursar.core.sorted_set import SortedSet

KEYS = st.integers(0, 40)


class AgainstASortedList(RuleBasedStateMachine):
    """Every method answers as a plain list that is sorted after each change (L16)."""

    def __init__(self) -> None:
        super().__init__()
        self.order: SortedSet[int] = SortedSet()
        self.model: list[int] = []
        self._chunk = sorted_set.CHUNK_SIZE

    @initialize(chunk=st.integers(2, 8))
    def with_small_chunks(self, chunk: int) -> None:
        """Small chunks, so that a few keys are split and joined often."""
        sorted_set.CHUNK_SIZE = chunk  # type: ignore[misc]

    def teardown(self) -> None:
        sorted_set.CHUNK_SIZE = self._chunk  # type: ignore[misc]

    @rule(key=KEYS)
    def add(self, key: int) -> None:
        self.order.add(key)
        self.model = sorted({*self.model, key})

    @rule(keys=st.lists(KEYS, min_size=5, max_size=30))
    def add_many(self, keys: list[int]) -> None:
        for key in keys:
            self.order.add(key)
        self.model = sorted({*self.model, *keys})

    @rule(key=KEYS)
    def discard(self, key: int) -> None:
        self.order.discard(key)
        self.model = [other for other in self.model if other != key]

    @rule(key=st.integers(-1, 41))
    def discard_after(self, key: int) -> None:
        self.order.discard_after(key)
        self.model = [other for other in self.model if other <= key]

    @rule()
    def pop_first(self) -> None:
        if self.model:
            assert self.model.pop(0) == self.order.pop_first()
        else:
            with pytest.raises(IndexError):
                self.order.pop_first()

    @rule(key=st.integers(-1, 41))
    def look(self, key: int) -> None:
        assert (key in self.model) == (key in self.order)
        assert [other for other in self.model if other >= key] == list(self.order.since(key))

    @invariant()
    def agree(self) -> None:
        self.order._check()
        assert self.model == list(self.order)
        assert len(self.model) == len(self.order)
        assert (self.model[0] if self.model else None) == self.order.first()


TestAgainstASortedList = AgainstASortedList.TestCase
TestAgainstASortedList.settings = settings(stateful_step_count=20)


@pytest.fixture
def ten_thousand() -> Iterator[SortedSet[tuple[int, str]]]:
    order: SortedSet[tuple[int, str]] = SortedSet()
    for number in range(10_000):
        order.add((number * 7_919 % 10_000, "x"))
    yield order
    order._check()


def test_keys_are_read_in_order_whatever_the_order_of_adding(
    ten_thousand: SortedSet[tuple[int, str]],
) -> None:
    """Full chunks of the real size split right (L16)."""
    assert [(number, "x") for number in range(10_000)] == list(ten_thousand)


def test_discarding_here_and_there_leaves_no_crowd_of_tiny_chunks(
    ten_thousand: SortedSet[tuple[int, str]],
) -> None:
    """What one million discarded keys leave behind is as small as what is left (L16)."""
    for number in range(10_000):
        if number % 100:
            ten_thousand.discard((number, "x"))

    assert 100 == len(ten_thousand)
    assert len(ten_thousand._chunks) <= 2


def test_popping_from_the_front_empties_the_set_in_order(
    ten_thousand: SortedSet[tuple[int, str]],
) -> None:
    """Keys leave smallest first, and the set is usable again when it is empty (L16)."""
    popped = [ten_thousand.pop_first() for _ in range(10_000)]

    assert [(number, "x") for number in range(10_000)] == popped
    assert ten_thousand.first() is None
    ten_thousand.add((5, "y"))
    assert "Ordered([(5, 'y')])" == repr(ten_thousand)
