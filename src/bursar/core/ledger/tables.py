"""Tables and sorted indexes of the books. Changes can be undone; contents can be partly loaded.

`decide` must not change the books, but the steps of a command build on each other. So a decision
changes the books and undoes the changes: while an `Undo` is active, every write records what it
replaced. If books are partly loaded, reading a row or a range of an index that is not loaded raises
`NotLoaded`, which names it. The service loads it and decides again (D2).
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sized
from itertools import islice
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from bursar.core.sorted_set import SortedSet

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
Key: TypeAlias = tuple[Any, ...]  # of one order: its keys compare with each other and end in an id
Name: TypeAlias = tuple[Hashable, ...]  # of an order, such as ("limits",) or ("lane", lane)

FIRST: Final[Key] = ()  # stands before every key


class MissingRow(NamedTuple):
    """A row that is not loaded."""

    table: str
    key: Hashable


class MissingRange(NamedTuple):
    """The keys of an index after `after`, which are not loaded; `FIRST` for all keys."""

    order: Name
    after: Key


class NotLoaded(Exception):
    """The books lack what a decision reads; load it and decide again."""

    def __init__(self, what: MissingRow | MissingRange) -> None:
        super().__init__(what)
        self.what: Final = what


class Undo:
    """The replaced values, in order, so that changes can be undone."""

    __slots__ = ("steps",)

    def __init__(self) -> None:
        self.steps: list[tuple[Table[Any, Any] | Index, Any, Any]] | None = None

    def mark(self) -> int:
        """Start recording, and return the current position."""
        if self.steps is None:
            self.steps = []
        return len(self.steps)

    def back_to(self, mark: int) -> bool:
        """Undo the changes since the mark, last first; return whether there were any."""
        steps = self.steps or []
        any_steps = len(steps) > mark
        while len(steps) > mark:
            changed, key, old = steps.pop()
            changed.put_back(key, old)
        return any_steps

    def replaced(self, mark: int) -> "Replaced":
        """The rows that were changed since the mark, as they were at the mark."""
        replaced: Replaced = defaultdict(dict)
        for changed, key, old in islice(self.steps or (), mark, None):
            if isinstance(changed, Table):
                replaced[changed].setdefault(key, old)
        return replaced

    def indexes(self, mark: int) -> "set[Index]":
        """The indexes that were changed since the mark."""
        steps = islice(self.steps or (), mark, None)
        return {changed for changed, _, _ in steps if isinstance(changed, Index)}

    def end(self) -> None:
        """Stop recording and discard the record."""
        self.steps = None


class Table(Generic[K, V]):
    """Rows by key."""

    __slots__ = ("_absent", "_rows", "_undo", "complete", "name")

    def __init__(self, name: str, *, complete: bool = True, undo: Undo | None = None) -> None:
        self.name = name
        self.complete = complete  # whether a row that is not here does not exist
        self._rows: dict[K, V] = {}
        self._absent: set[K] = set()
        self._undo = undo or Undo()

    def get(self, key: K) -> V | None:
        """The row, or None if there is none."""
        row = self._rows.get(key)
        if row is None and not self.complete and key not in self._absent:
            raise NotLoaded(MissingRow(self.name, key))
        return row

    def knows(self, key: K) -> bool:
        """Whether `get` can answer without loading."""
        return self.complete or key in self._rows or key in self._absent

    def unknown(self, keys: Iterable[K]) -> list[K]:
        """The keys for which `get` would raise `NotLoaded`."""
        if self.complete:
            return []
        return [key for key in keys if key not in self._rows and key not in self._absent]

    @property
    def parts(self) -> tuple[Sized, Sized]:
        """The containers in memory: the rows, and the keys known to be absent."""
        return self._rows, self._absent

    def put(self, key: K, row: V) -> None:
        """Set the row."""
        if (steps := self._undo.steps) is not None:
            steps.append((self, key, self._rows.get(key)))
        self._rows[key] = row

    def load(self, key: K, row: V) -> None:
        """Add a stored row; this is no change and is not undone."""
        self._rows[key] = row

    def put_back(self, key: K, row: V | None) -> None:
        """Restore the previous row; None if there was none."""
        if row is None:
            del self._rows[key]
        else:
            self._rows[key] = row

    def forget(self, key: K) -> None:
        """Drop a stored row from memory: it is loaded again when it is needed."""
        self._rows.pop(key, None)

    def forget_absent(self) -> None:
        """Drop the keys that are known to have no row."""
        self._absent.clear()

    def mark_absent(self, key: K) -> None:
        """Record that the row does not exist."""
        self._absent.add(key)

    def items(self) -> Iterator[tuple[K, V]]:
        """All rows in memory, in no particular order."""
        return iter(self._rows.items())


Replaced: TypeAlias = dict[Table[Any, Any], dict[Any, Any]]  # table → key → row; None if new


class Index:
    """Keys in ascending order; if partly loaded, all keys up to `through` are in memory."""

    __slots__ = ("_gone", "_keys", "_undo", "complete", "name", "through")

    def __init__(self, name: Name, *, complete: bool = True, undo: Undo | None = None) -> None:
        self.name = name
        self.complete = complete
        self.through: Key = FIRST
        self._keys: SortedSet[Key] = SortedSet()
        self._gone: set[Key] = set()  # taken out before they were loaded
        self._undo = undo or Undo()

    def add(self, key: Key) -> None:
        """Add a key."""
        if gone := key in self._gone:
            self._gone.discard(key)
        if self._keys.add(key) and (steps := self._undo.steps) is not None:
            steps.append((self, key, (False, gone)))

    def discard(self, key: Key) -> None:
        """Remove a key; loading does not bring it back."""
        gone = key in self._gone
        present = self._keys.discard(key)
        if not self.complete and key > self.through:
            self._gone.add(key)
        if (steps := self._undo.steps) is not None:
            steps.append((self, key, (present, gone)))

    def put_back(self, key: Key, was: tuple[bool, bool]) -> None:
        """Restore the previous state of a key."""
        present, gone = was
        (self._keys.add if present else self._keys.discard)(key)
        (self._gone.add if gone else self._gone.discard)(key)

    def load(self, keys: Iterable[Key], through: Key | None) -> None:
        """Add the stored keys up to `through`; None means that these are all."""
        for key in keys:
            if key not in self._gone:
                self._keys.add(key)
        if through is None:
            self.complete = True
        else:
            self.through = through

    def forget_unloaded(self) -> None:
        """Drop what is known of the keys after `through`: all of it is stored."""
        if not self.complete:
            self._keys.discard_after(self.through)
            self._gone.clear()

    @property
    def untouched(self) -> bool:
        """Whether no key has been loaded yet."""
        return not self.complete and self.through == FIRST

    def first(self, bound: Key | None = None) -> Key | None:
        """The first key if it is before `bound`: the key that `since` would yield first."""
        key = self._keys.first()
        if self.complete or (key is not None and key <= self.through):
            return key if key is None or bound is None or key < bound else None
        if bound is None or self.through < bound:
            raise NotLoaded(MissingRange(self.name, self.through))
        return None

    def since(self, key: Key = FIRST, bound: Key | None = None) -> Iterator[Key]:
        """The keys from `key` on that are before `bound`, lazily.

        Raises `NotLoaded` at the first key that is not loaded.
        """
        for stored in self._keys.since(key):
            if not self.complete and stored > self.through:
                break
            if bound is not None and stored >= bound:
                return
            yield stored
        if not self.complete and (bound is None or self.through < bound):
            raise NotLoaded(MissingRange(self.name, self.through))
