"""Where the books keep their rows and their orders: whole, partly loaded, or as a layer.

`decide` must not change the books, yet a command has several steps that build on each other. So it
works on a *layer*: reads fall through to the books below, writes stay in the layer, which is thrown
away. Books may also be only partly loaded: touching a row or a stretch of an order that is not
there raises `NotLoaded`, which names it; the shell loads it and asks again (D2).
"""

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from heapq import merge
from typing import Any, Final, Generic, TypeAlias, TypeVar

from bursar.core.ordered import Ordered

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
Key: TypeAlias = tuple[Any, ...]  # of one order: its keys compare with each other and end in an id
Name: TypeAlias = tuple[Hashable, ...]  # of an order, such as ("limits",) or ("lane", lane)

FIRST: Final[Key] = ()  # stands before every key


@dataclass(frozen=True, slots=True)
class Row:
    """A row that is not loaded."""

    table: str
    key: Hashable


@dataclass(frozen=True, slots=True)
class Stretch:
    """The keys of an order after `after`, of which nothing is known yet; `FIRST` for all of it."""

    order: Name
    after: Key


class NotLoaded(Exception):
    """The books do not have what a decision must look at; load it and ask again."""

    def __init__(self, what: Row | Stretch) -> None:
        super().__init__(what)
        self.what: Final = what


class Table(Generic[K, V]):
    """Rows by key."""

    __slots__ = ("_absent", "_rows", "complete", "name")

    def __init__(self, name: str, *, complete: bool = True) -> None:
        self.name = name
        self.complete = complete  # whether a row that is not here does not exist
        self._rows: dict[K, V] = {}
        self._absent: set[K] = set()

    def get(self, key: K) -> V | None:
        """The row, or None if there is none."""
        row = self._rows.get(key)
        if row is None and not self.complete and key not in self._absent:
            raise NotLoaded(Row(self.name, key))
        return row

    def put(self, key: K, row: V) -> None:
        """Set the row."""
        self._rows[key] = row

    def mark_absent(self, key: K) -> None:
        """Know that there is no such row."""
        self._absent.add(key)

    def items(self) -> Iterator[tuple[K, V]]:
        """All rows that are here, in no particular order."""
        return iter(self._rows.items())

    def layered(self) -> "Table[K, V]":
        """A layer over this table."""
        return _Layer(self)


class _Layer(Table[K, V]):
    """A table whose writes do not reach the one below."""

    __slots__ = ("_below",)

    def __init__(self, below: Table[K, V]) -> None:
        super().__init__(below.name)
        self._below = below

    def get(self, key: K) -> V | None:
        row = self._rows.get(key)
        return self._below.get(key) if row is None else row

    def items(self) -> Iterator[tuple[K, V]]:
        for key, row in self._below.items():
            if key not in self._rows:
                yield key, row
        yield from self._rows.items()


class Order:
    """Keys in ascending order; when partly loaded, all keys up to `through` are here."""

    __slots__ = ("_gone", "_keys", "complete", "name", "through")

    def __init__(self, name: Name, *, complete: bool = True) -> None:
        self.name = name
        self.complete = complete
        self.through: Key = FIRST
        self._keys: Ordered[Key] = Ordered()
        self._gone: set[Key] = set()  # taken out before they were loaded

    def add(self, key: Key) -> None:
        """Put the key in its place."""
        self._gone.discard(key)
        self._keys.add(key)

    def discard(self, key: Key) -> None:
        """Take the key out; what is loaded later does not bring it back."""
        self._keys.discard(key)
        if not self.complete and key > self.through:
            self._gone.add(key)

    def load(self, keys: Iterable[Key], through: Key | None) -> None:
        """Bring in the keys up to `through` as they are stored; None when these are all."""
        for key in keys:
            if key not in self._gone:
                self._keys.add(key)
        self.complete = through is None
        self.through = FIRST if through is None else through

    def since(self, key: Key = FIRST, bound: Key | None = None) -> Iterator[Key]:
        """The keys from `key` on and before `bound`, lazily.

        `NotLoaded` when the loaded keys are used up before that.
        """
        for found in self._keys.since(key):
            if not self.complete and found > self.through:
                break
            if bound is not None and found >= bound:
                return
            yield found
        if not self.complete and (bound is None or self.through < bound):
            raise NotLoaded(Stretch(self.name, self.through))

    def layered(self) -> "Order":
        """A layer over this order."""
        return _LayerOrder(self)


class _LayerOrder(Order):
    """An order whose changes do not reach the one below."""

    __slots__ = ("_below",)

    def __init__(self, below: Order) -> None:
        super().__init__(below.name)
        self._below = below

    def discard(self, key: Key) -> None:
        self._keys.discard(key)
        self._gone.add(key)

    def since(self, key: Key = FIRST, bound: Key | None = None) -> Iterator[Key]:
        last: Key | None = None
        for found in merge(self._below.since(key, bound), super().since(key, bound)):
            if found != last and found not in self._gone:
                yield found
            last = found
