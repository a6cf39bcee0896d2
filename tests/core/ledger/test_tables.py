"""Rows and orders: whole, partly loaded, and in layers (D2)."""

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar.core.ledger.tables import FIRST, Key, NotLoaded, Order, Row, Stretch, Table

NUMBERS = ("numbers",)


def table(**rows: int) -> Table[str, int]:
    """A whole table with these rows."""
    made: Table[str, int] = Table("numbers")
    for key, row in rows.items():
        made.put(key, row)
    return made


def order(*keys: int, complete: bool = True, through: Key = FIRST) -> Order:
    """An order of one-part keys."""
    made = Order(NUMBERS, complete=complete)
    made.through = through
    for key in keys:
        made.add((key,))
    return made


def told(found: Order, since: Key = FIRST, bound: Key | None = None) -> list[int]:
    """The keys that an order tells, as numbers."""
    return [key[0] for key in found.since(since, bound)]


def lacking(found: Order, since: Key = FIRST, bound: Key | None = None) -> tuple[list[int], Key]:
    """The keys that an order tells before it lacks some, and after which key it does."""
    seen: list[int] = []
    with pytest.raises(NotLoaded) as missing:
        note(found, since, bound, seen)
    assert isinstance(missing.value.what, Stretch)
    assert NUMBERS == missing.value.what.order
    return seen, missing.value.what.after


def note(found: Order, since: Key, bound: Key | None, seen: list[int]) -> None:
    """Go over an order and note each key as it comes."""
    for key in found.since(since, bound):
        seen.append(key[0])


# Tables


def test_a_whole_table_knows_what_is_not_in_it() -> None:
    """A row that is not here does not exist (D2)."""
    rows = table(a=1)
    rows.put("a", 2)
    rows.put("b", 3)

    assert (2, 3, None) == (rows.get("a"), rows.get("b"), rows.get("c"))
    assert {"a": 2, "b": 3} == dict(rows.items())


def test_a_part_names_the_row_that_it_lacks() -> None:
    """Until the row is put, or is known not to exist (D2)."""
    part: Table[str, int] = Table("numbers", complete=False)

    with pytest.raises(NotLoaded) as missing:
        part.get("a")
    assert Row("numbers", "a") == missing.value.what
    assert (Row("numbers", "a"),) == missing.value.args

    part.mark_absent("a")
    assert part.get("a") is None
    part.put("a", 0)
    assert 0 == part.get("a")
    with pytest.raises(NotLoaded):
        part.get("b")


def test_a_layer_reads_through_and_keeps_its_writes() -> None:
    """The table below never sees them; layers may lie on layers (D2)."""
    below = table(a=1, b=2)
    layer = below.layered()
    top = layer.layered()
    layer.put("b", 20)
    layer.put("c", 30)
    top.put("a", 100)

    assert (1, 20, 30, None) == tuple(layer.get(key) for key in "abcd")
    assert (100, 20, 30, None) == tuple(top.get(key) for key in "abcd")
    assert (1, 2, None) == tuple(below.get(key) for key in "abc")
    assert [("a", 1), ("b", 20), ("c", 30)] == sorted(layer.items())
    assert [("a", 100), ("b", 20), ("c", 30)] == sorted(top.items())
    assert {"a": 1, "b": 2} == dict(below.items())
    assert "numbers" == top.name


def test_a_layer_over_a_part_lacks_what_the_part_lacks() -> None:
    """But not what was written in the layer; a row loaded below is seen at once (D2)."""
    part: Table[str, int] = Table("numbers", complete=False)
    layer = part.layered()
    layer.put("a", 1)

    assert 1 == layer.get("a")
    with pytest.raises(NotLoaded) as missing:
        layer.get("b")
    assert Row("numbers", "b") == missing.value.what
    part.put("b", 2)
    assert 2 == layer.get("b")


# Orders


def test_an_order_tells_its_keys_from_one_on_and_before_another() -> None:
    """From `key` (itself included) up to `bound` (itself excluded), ascending."""
    found = order(3, 1, 2, 5)
    found.discard((2,))
    found.add((3,))
    found.discard((9,))

    assert [1, 3, 5] == told(found)
    assert [3, 5] == told(found, (3,))
    assert [1, 3] == told(found, bound=(5,))
    assert [1, 3, 5] == told(found, bound=(6,))
    assert [3] == told(found, (2,), (5,))
    assert [] == told(found, (4,), (5,))


def test_an_order_is_read_lazily() -> None:
    """A reader that stops lacks nothing of what it did not ask for (D2)."""
    part = order(1, 2, complete=False, through=(2,))
    keys = part.since()

    assert [(1,), (2,)] == [next(keys), next(keys)]
    with pytest.raises(NotLoaded):
        next(keys)


def test_a_part_of_an_order_ends_where_nothing_more_is_loaded() -> None:
    """It tells what it has, then names the stretch that it lacks (D2)."""
    assert ([], FIRST) == lacking(order(complete=False))
    assert ([1, 2], (2,)) == lacking(order(1, 2, complete=False, through=(2,)))
    assert ([2], (2,)) == lacking(order(1, 2, complete=False, through=(2,)), (2,))
    assert ([], (2,)) == lacking(order(1, 2, complete=False, through=(2,)), (3,))


def test_a_key_beyond_what_is_loaded_is_not_told() -> None:
    """One that was added here may have unknown keys before it (D2)."""
    part = order(1, 2, 9, complete=False, through=(4,))

    assert ([1, 2], (4,)) == lacking(part)
    assert ([1, 2], (4,)) == lacking(part, bound=(10,))
    assert [1, 2] == told(part, bound=(4,))
    part.through = (9,)
    assert ([1, 2, 9], (9,)) == lacking(part)
    part.complete = True
    assert [1, 2, 9] == told(part)


@pytest.mark.parametrize(
    ("bound", "lacks"), [(3, False), (4, False), (5, True)], ids=["before", "exactly", "after"]
)
def test_a_part_lacks_nothing_before_a_bound_that_is_loaded(bound: int, lacks: bool) -> None:
    """All keys up to `through` are here: a bound at it needs no more (D2)."""
    part = order(1, 4, complete=False, through=(4,))

    if lacks:
        assert ([1, 4], (4,)) == lacking(part, bound=(bound,))
    else:
        assert [1] == told(part, bound=(bound,))


def test_a_layer_of_an_order_adds_and_takes_out() -> None:
    """A key taken out and added again is there, once; the order below does not change (D2)."""
    below = order(1, 3, 5)
    layer = below.layered()
    layer.add((2,))
    layer.add((3,))
    layer.discard((5,))
    layer.discard((1,))
    layer.add((1,))
    layer.add((7,))
    layer.discard((7,))

    assert [1, 2, 3] == told(layer)
    assert [2, 3] == told(layer, (2,))
    assert [1, 2] == told(layer, bound=(3,))
    assert [1, 3, 5] == told(below)
    top = layer.layered()
    top.discard((2,))
    top.add((6,))
    assert [1, 3, 6] == told(top)
    assert [1, 2, 3] == told(layer)
    assert NUMBERS == top.name


def test_a_layer_over_a_part_of_an_order_lacks_what_the_part_lacks() -> None:
    """Also before a key of its own that lies beyond what is loaded (D2)."""
    part = order(1, 2, complete=False, through=(2,))
    layer = part.layered()
    layer.add((9,))
    layer.discard((1,))

    assert ([2], (2,)) == lacking(layer)
    assert [] == told(layer, bound=(2,))
    part.add((4,))
    part.through, part.complete = (4,), True
    assert [2, 4, 9] == told(layer)


CHANGES = st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=15)


@given(st.sets(st.integers(0, 9)), CHANGES, CHANGES, st.integers(0, 10), st.integers(0, 10))
def test_layers_of_an_order_are_what_their_changes_make_of_it(
    keys: set[int],
    first: list[tuple[bool, int]],
    second: list[tuple[bool, int]],
    since: int,
    bound: int,
) -> None:
    """Whatever is added and taken out, in whatever order; also from a key and before one (D2)."""
    below = order(*keys)
    layer = below.layered()
    top = layer.layered()
    want = set(keys)
    for found, changes in ((layer, first), (top, second)):
        for adds, key in changes:
            (found.add if adds else found.discard)((key,))
            (want.add if adds else want.discard)(key)

    assert sorted(want) == told(top)
    assert [key for key in sorted(want) if since <= key < bound] == told(top, (since,), (bound,))
    assert sorted(keys) == told(below)


@given(st.sets(st.integers(0, 9)), st.integers(0, 9), st.integers(0, 9), st.integers(0, 11))
def test_a_part_tells_nothing_else_than_the_whole(
    keys: set[int], through: int, since: int, bound: int
) -> None:
    """What a part tells before it lacks something is how the whole begins (D2)."""
    loaded = {key for key in keys if key <= through}
    part = order(*loaded, complete=False, through=(through,))
    want = [key for key in sorted(keys) if since <= key < bound]

    seen: list[int] = []
    try:
        note(part, (since,), (bound,), seen)
    except NotLoaded:
        assert through < bound
        assert want[: len(seen)] == seen
        assert [key for key in want if key <= through] == seen
    else:
        assert bound <= through
        assert want == seen


def test_what_was_taken_out_is_not_loaded_again() -> None:
    """What is stored is older than what is known here (D2)."""
    order = Order(("limits",), complete=False)
    order.load([(1, "a")], through=(1, "a"))
    order.discard((1, "a"))
    order.discard((3, "c"))
    order.discard((4, "d"))
    order.add((4, "d"))

    order.load([(2, "b"), (3, "c"), (4, "d")], through=(4, "d"))

    assert [(2, "b"), (4, "d")] == _taken(order, 2)
    order.load([(5, "e")], through=None)
    assert [(2, "b"), (4, "d"), (5, "e")] == list(order.since())


def _taken(order: Order, count: int) -> list[Key]:
    """The first keys of an order that is not all loaded."""
    return list(islice(order.since(), count))
