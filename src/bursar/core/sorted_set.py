"""A sorted set that is mostly read from the front, used for spend order.

The problem. Credits are spent in a fixed order (earliest expiry first, then further criteria). Up
to a million grants are added and removed one at a time, at any position. Most reads need the first
key, or a few keys after it.

    order = SortedSet[tuple[int, str]]()
    order.add((50, "b"))
    order.add((20, "a"))
    order.first()                  # (20, "a")
    list(order.since((30, "")))    # [(50, "b")]

The keys are in sorted lists ("chunks") of at most `CHUNK_SIZE` keys; `_lasts` holds the last key of
each chunk. Finding a key takes two binary searches. Adding or discarding one moves at most a chunk
of references in memory, in one piece. Removing the first key moves at most 4 kB, which takes half a
microsecond (measured with a million keys). So chunks need not be stored in reverse or with an
offset.

Alternatives that were rejected. A heap returns the first key as fast, but has no order after it,
cannot remove a key in the middle, and makes every reader skip stale entries. A balanced tree or a
skip list has better bounds in theory, but each of its steps is Python code; here they are C.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final, Generic, Protocol, TypeVar

CHUNK_SIZE: Final = 512  # most keys in a chunk; 128 to 1,024 measure alike


class Comparable(Protocol):
    """A key that can be compared with other keys of its type."""

    def __lt__(self, other: Any, /) -> bool: ...


K = TypeVar("K", bound=Comparable)


class SortedSet(Generic[K]):
    """Unique keys in ascending order; must not be changed during iteration."""

    __slots__ = ("_chunks", "_lasts", "_len")

    def __init__(self) -> None:
        self._chunks: list[list[K]] = []  # none is empty
        self._lasts: list[K] = []  # the last key of each chunk
        self._len = 0

    def add(self, key: K) -> bool:
        """Add the key; False, and no effect, if it is in the set already."""
        lasts = self._lasts
        at = bisect_left(lasts, key)
        if at == len(lasts):
            self._append(key)
            return True
        chunk = self._chunks[at]
        place = bisect_left(chunk, key)
        if chunk[place] == key:
            return False
        chunk.insert(place, key)
        self._len += 1
        if len(chunk) > CHUNK_SIZE:
            self._split(at)
        return True

    def discard(self, key: K) -> bool:
        """Remove the key; False, and no effect, if it is not in the set."""
        at = bisect_left(self._lasts, key)
        if at == len(self._lasts):
            return False
        chunk = self._chunks[at]
        place = bisect_left(chunk, key)
        if chunk[place] != key:
            return False
        del chunk[place]
        self._len -= 1
        self._tidy(at)
        return True

    def discard_after(self, key: K) -> None:
        """Forget all keys that stand behind `key`."""
        at = bisect_right(self._lasts, key)
        if at == len(self._lasts):
            return
        del self._chunks[at + 1 :], self._lasts[at + 1 :]
        chunk = self._chunks[at]
        del chunk[bisect_right(chunk, key) :]
        if chunk:
            self._lasts[at] = chunk[-1]
        else:
            del self._chunks[at], self._lasts[at]
        self._len = sum(map(len, self._chunks))

    def first(self) -> K | None:
        """The smallest key; None if the set is empty."""
        return self._chunks[0][0] if self._chunks else None

    def pop_first(self) -> K:
        """Remove and return the smallest key; IndexError if the set is empty."""
        if not self._chunks:
            raise IndexError("pop from an empty SortedSet")
        chunk = self._chunks[0]
        key = chunk.pop(0)
        self._len -= 1
        if not chunk:
            del self._chunks[0]
            del self._lasts[0]
        return key

    def since(self, key: K) -> Iterator[K]:
        """The keys from `key` on (itself included), ascending, lazily."""
        at = bisect_left(self._lasts, key)
        if at == len(self._lasts):
            return
        chunk = self._chunks[at]
        for place in range(bisect_left(chunk, key), len(chunk)):
            yield chunk[place]
        for index in range(at + 1, len(self._chunks)):
            yield from self._chunks[index]

    def __contains__(self, key: K) -> bool:
        at = bisect_left(self._lasts, key)
        if at == len(self._lasts):
            return False
        chunk = self._chunks[at]
        return bool(chunk[bisect_left(chunk, key)] == key)

    def __iter__(self) -> Iterator[K]:
        for chunk in self._chunks:
            yield from chunk

    def __len__(self) -> int:
        return self._len

    def __repr__(self) -> str:
        return f"Ordered({list(self)!r})"

    def _append(self, key: K) -> None:
        """Add a key that is larger than all others."""
        self._len += 1
        if not self._chunks:
            self._chunks.append([key])
            self._lasts.append(key)
            return
        chunk = self._chunks[-1]
        chunk.append(key)
        self._lasts[-1] = key
        if len(chunk) > CHUNK_SIZE:
            self._split(len(self._chunks) - 1)

    def _split(self, at: int) -> None:
        """Split a chunk that is too long."""
        chunk = self._chunks[at]
        half = len(chunk) // 2
        self._chunks.insert(at + 1, chunk[half:])
        del chunk[half:]
        self._lasts.insert(at, chunk[-1])

    def _tidy(self, at: int) -> None:
        """After removing a key: drop the chunk if empty, join it with the previous if small.

        Without joining, many removals would leave many chunks with few keys.
        """
        chunk = self._chunks[at]
        if not chunk:
            del self._chunks[at]
            del self._lasts[at]
            return
        self._lasts[at] = chunk[-1]
        if at > 0 and len(chunk) + len(self._chunks[at - 1]) <= CHUNK_SIZE // 2:
            self._chunks[at - 1] += chunk
            self._lasts[at - 1] = chunk[-1]
            del self._chunks[at]
            del self._lasts[at]

    def _check(self) -> None:
        """Compare the structure with its own rules; for tests."""
        keys = list(self)
        assert len(keys) == self._len, "the count is off"
        assert all(smaller < larger for smaller, larger in pairwise(keys)), "out of order"
        assert all(self._chunks), "a chunk is empty"
        assert all(len(chunk) <= CHUNK_SIZE for chunk in self._chunks), "a chunk is too long"
        assert [chunk[-1] for chunk in self._chunks] == self._lasts, "the index is off"
