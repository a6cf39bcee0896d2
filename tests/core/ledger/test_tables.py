"""Rows and orders: whole or partly loaded, and put back as they were (D2)."""

from collections.abc import Callable
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar.core.ids import AccountId
from bursar.core.ledger.books import Books
from bursar.core.ledger.tables import (
    FIRST,
    Index,
    Key,
    MissingRange,
    MissingRow,
    NotLoaded,
    Table,
    Undo,
)

NUMBERS = ("numbers",)


def table(**rows: int) -> Table[str, int]:
    """A whole table with these rows."""
    made: Table[str, int] = Table("numbers")
    for key, row in rows.items():
        made.put(key, row)
    return made


def order(*keys: int, complete: bool = True, through: Key = FIRST) -> Index:
    """An order of one-part keys."""
    made = Index(NUMBERS, complete=complete)
    made.through = through
    for key in keys:
        made.add((key,))
    return made


def told(found: Index, since: Key = FIRST, bound: Key | None = None) -> list[int]:
    """The keys that an order tells, as numbers."""
    return [key[0] for key in found.since(since, bound)]


def lacking(found: Index, since: Key = FIRST, bound: Key | None = None) -> tuple[list[int], Key]:
    """The keys that an order tells before it lacks some, and after which key it does."""
    seen: list[int] = []
    with pytest.raises(NotLoaded) as missing:
        note(found, since, bound, seen)
    assert isinstance(missing.value.what, MissingRange)
    assert NUMBERS == missing.value.what.order
    return seen, missing.value.what.after


def note(found: Index, since: Key, bound: Key | None, seen: list[int]) -> None:
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
    assert MissingRow("numbers", "a") == missing.value.what
    assert (MissingRow("numbers", "a"),) == missing.value.args

    part.mark_absent("a")
    assert part.get("a") is None
    part.put("a", 0)
    assert 0 == part.get("a")
    with pytest.raises(NotLoaded):
        part.get("b")


def test_a_table_is_put_back_as_it_was_at_a_mark() -> None:
    """Replaced, new, replaced again: the last first; and only since the mark (D2)."""
    undo = Undo()
    rows: Table[str, int] = Table("numbers", undo=undo)
    rows.put("a", 1)
    outer = undo.mark()
    rows.put("a", 2)
    rows.put("b", 3)
    inner = undo.mark()
    rows.put("b", 4)
    rows.put("c", 5)
    rows.put("c", 6)

    undo.back_to(inner)
    assert {"a": 2, "b": 3} == dict(rows.items())
    undo.back_to(outer)
    assert {"a": 1} == dict(rows.items())
    undo.end()
    rows.put("a", 9)
    undo.back_to(outer)
    assert {"a": 9} == dict(rows.items()), "nothing is noted any more"


def test_loading_is_no_change() -> None:
    """It is not undone, and not listed as replaced (D2)."""
    undo = Undo()
    part: Table[str, int] = Table("numbers", complete=False, undo=undo)
    mark = undo.mark()
    part.load("a", 1)
    assert [] == list(undo.replaced(mark))

    undo.back_to(mark)

    assert 1 == part.get("a")


def test_a_part_knows_what_was_loaded_put_or_found_missing() -> None:
    """What it knows it can answer without looking further (D2)."""
    part: Table[str, int] = Table("numbers", complete=False)
    part.load("a", 1)
    part.put("b", 2)
    part.mark_absent("c")

    assert [True, True, True, False] == [part.knows(key) for key in "abcd"]
    assert ["d", "e"] == part.unknown("adceb")
    assert table(a=1).knows("z")
    assert [] == table(a=1).unknown("az")


def test_a_part_lacks_again_what_it_forgets() -> None:
    """A stored row, and keys that were known to have none (D2)."""
    part: Table[str, int] = Table("numbers", complete=False)
    part.mark_absent("a")
    part.put("a", 1)
    part.mark_absent("b")
    part.load("c", 3)

    part.forget("a")
    part.forget("never seen")
    assert part.get("a") is None, "until the absent keys are forgotten too"
    part.forget_absent()

    assert [False, False, True] == [part.knows(key) for key in "abc"]


def test_a_table_tells_how_much_it_keeps() -> None:
    """Rows, and keys that are known to have none; books add their orders."""
    part: Table[str, int] = Table("numbers", complete=False)
    part.load("a", 1)
    part.put("b", 2)
    part.mark_absent("c")
    assert [2, 1] == [len(kept) for kept in part.parts]

    books = Books()
    before = books.size
    books.used.put(AccountId("a"), 5)
    books.index(("limits",))
    assert before + 2 == books.size


def test_each_replaced_row_is_listed_once_as_it_was_at_the_mark() -> None:
    """New rows with None; indexes have no rows (D3)."""
    undo = Undo()
    rows: Table[str, int] = Table("numbers", undo=undo)
    other: Table[str, int] = Table("others", undo=undo)
    keys = Index(NUMBERS, undo=undo)
    rows.put("old", 1)
    undo.mark()
    rows.put("before", 1)
    mark = undo.mark()
    rows.put("new", 5)
    rows.put("old", 2)
    keys.add((3,))
    other.put("old", 7)
    rows.put("old", 3)
    rows.put("new", 6)

    assert {rows: {"new": None, "old": 1}, other: {"old": None}} == undo.replaced(mark)
    undo.end()
    assert {} == undo.replaced(0)


def test_a_row_that_is_known_not_to_exist_is_so_again() -> None:
    """Though one was put there for a while (D2)."""
    undo = Undo()
    part: Table[str, int] = Table("numbers", complete=False, undo=undo)
    part.mark_absent("a")
    mark = undo.mark()
    part.put("a", 1)

    undo.back_to(mark)

    assert part.get("a") is None
    with pytest.raises(NotLoaded):
        part.get("b")


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


def test_an_order_is_untouched_until_something_is_loaded() -> None:
    """What was added here does not count: it may have unknown keys before it (D2)."""
    part = Index(NUMBERS, complete=False)
    part.add((5,))
    assert part.untouched
    assert not Index(NUMBERS).untouched

    part.load([(1,)], through=(1,))
    assert not part.untouched
    part.load([], through=None)
    assert not part.untouched


def test_a_key_beyond_the_loaded_range_is_not_returned() -> None:
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


CHANGES = st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=15)


@given(st.sets(st.integers(0, 9)), CHANGES, CHANGES)
def test_an_order_is_put_back_as_it_was_at_a_mark(
    keys: set[int], first: list[tuple[bool, int]], second: list[tuple[bool, int]]
) -> None:
    """Whatever is added and taken out, in whatever order (D2)."""
    undo = Undo()
    found = Index(NUMBERS, undo=undo)
    for key in keys:
        found.add((key,))
    want = set(keys)
    outer = undo.mark()
    change(found, first, want)
    inner, between = undo.mark(), sorted(want)
    change(found, second, want)

    assert sorted(want) == told(found)
    undo.back_to(inner)
    assert between == told(found)
    undo.back_to(outer)
    assert sorted(keys) == told(found)


def change(found: Index, changes: list[tuple[bool, int]], want: set[int]) -> None:
    """Add keys to an order and take some out; also in a plain set."""
    for adds, key in changes:
        (found.add if adds else found.discard)((key,))
        (want.add if adds else want.discard)(key)


@given(st.sets(st.integers(0, 9)), st.integers(0, 9), CHANGES, CHANGES)
def test_a_part_of_an_order_loads_the_same_after_it_was_put_back(
    stored: set[int],
    through: int,
    first: list[tuple[bool, int]],
    second: list[tuple[bool, int]],
) -> None:
    """What was tried and put back leaves no trace in what is loaded later (D2)."""
    orders = [Index(NUMBERS, complete=False, undo=Undo()) for _ in range(2)]
    want = set(stored)
    for one in orders:
        one.load([(key,) for key in sorted(stored) if key <= through], (through,))
        change(one, first, want)
    tried = orders[1]
    mark = tried._undo.mark()
    change(tried, second, set())
    tried._undo.back_to(mark)

    for one in orders:
        one.load([(key,) for key in sorted(stored) if key > through], None)

    assert sorted(want) == told(orders[0]) == told(tried)


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


def test_a_key_removed_before_loading_stays_removed_after_an_undone_trial() -> None:
    """Added on trial and undone, it stays removed; removed on trial, it returns (D2)."""
    part = Index(NUMBERS, complete=False, undo=Undo())
    part.load([(1,)], through=(1,))
    part.discard((5,))
    mark = part._undo.mark()
    part.add((5,))
    part.discard((6,))

    part._undo.back_to(mark)
    part.load([(5,), (6,)], through=None)

    assert [1, 6] == told(part)


def test_a_key_removed_twice_stays_removed_when_the_second_removal_is_undone() -> None:
    """It was removed before that (D2)."""
    part = Index(NUMBERS, complete=False, undo=Undo())
    part.discard((5,))
    mark = part._undo.mark()
    part.discard((5,))

    part._undo.back_to(mark)
    part.load([(5,)], through=None)

    assert [] == told(part)


def test_a_removed_key_is_not_loaded_again() -> None:
    """The stored keys are older than the memory (D2)."""
    order = Index(("limits",), complete=False)
    order.load([(1, "a")], through=(1, "a"))
    order.discard((1, "a"))
    order.discard((3, "c"))
    order.discard((4, "d"))
    order.add((4, "d"))

    order.load([(2, "b"), (3, "c"), (4, "d")], through=(4, "d"))

    assert [(2, "b"), (4, "d")] == _taken(order, 2)
    order.load([(5, "e")], through=None)
    assert [(2, "b"), (4, "d"), (5, "e")] == list(order.since())


def _taken(order: Index, count: int) -> list[Key]:
    """The first keys of an order that is not all loaded."""
    return list(islice(order.since(), count))


@given(
    st.sets(st.integers(0, 9)),
    st.one_of(st.none(), st.integers(0, 9)),
    st.one_of(st.none(), st.integers(0, 11)),
)
def test_the_first_key_is_what_reading_would_begin_with(
    keys: set[int], through: int | None, bound: int | None
) -> None:
    """Of a whole order and of a part; or the same is lacking."""
    found = order(*keys, complete=through is None, through=FIRST if through is None else (through,))
    end = None if bound is None else (bound,)

    assert outcome(lambda: next(found.since(bound=end), None)) == outcome(lambda: found.first(end))


def outcome(asked: Callable[[], Key | None]) -> Key | MissingRow | MissingRange | None:
    """What is told, or what is lacking."""
    try:
        return asked()
    except NotLoaded as lacks:
        return lacks.what


def test_an_index_forgets_what_it_has_not_loaded() -> None:
    """Keys that were added or taken out behind the loaded ones come from the store again (D2)."""
    part = order(complete=False)
    part.load([(1,), (3,)], (3,))
    part.add((2,))
    part.add((7,))
    part.discard((5,))

    part.forget_unloaded()

    assert ([1, 2, 3], (3,)) == lacking(part)
    part.load([(5,), (7,)], None)
    assert [1, 2, 3, 5, 7] == told(part)
    part.forget_unloaded()
    assert [1, 2, 3, 5, 7] == told(part), "a complete index has loaded everything"


def test_an_undo_tells_the_indexes_that_were_changed() -> None:
    """Since the mark; rows are no indexes (D3)."""
    undo = Undo()
    before, added, discarded = (Index((name,), undo=undo) for name in "abc")
    rows: Table[str, int] = Table("numbers", undo=undo)
    discarded.add((1,))
    undo.mark()
    before.add((1,))
    mark = undo.mark()
    rows.put("a", 1)
    added.add((1,))
    discarded.discard((1,))

    assert {added, discarded} == undo.indexes(mark)
    undo.end()
    assert set() == undo.indexes(0)
