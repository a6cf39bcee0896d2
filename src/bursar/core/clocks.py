"""Vector clocks: which events happened before which, without a common time.

Each region counts its own steps; a clock holds, for each region, how many of its steps are known.
One clock is before another if it knows no more of any region and less of at least one. If each
knows something that the other does not, they are concurrent.

    a = VectorClock().tick("eu")       # {"eu": 1}
    b = a.tick("us")                   # {"eu": 1, "us": 1}, after a
    c = a.tick("eu")                   # {"eu": 2}, after a, concurrent with b
    b.join(c)                          # {"eu": 2, "us": 1}, after both
"""

from collections.abc import ItemsView, Iterator, Mapping
from typing import Final, final

MAX_COUNT: Final = 2**63 - 1


@final
class VectorClock:
    """How many steps of each region are known; immutable. A region that is not named counts 0."""

    __slots__ = ("_counts", "_hash", "total")

    total: int  # the sum of all counts: grows strictly with the order of clocks

    def __init__(self, counts: Mapping[str, int] | None = None) -> None:
        named = {} if counts is None else dict(counts)
        for region, count in named.items():
            _check(region, count)
        self._set(named)

    @classmethod
    def _of(cls, counts: dict[str, int]) -> "VectorClock":
        """A clock from counts that are known to be valid."""
        clock = object.__new__(cls)
        clock._set(counts)
        return clock

    def _set(self, counts: dict[str, int]) -> None:
        # Without zeros, and in the order of names: equal clocks are then equal in every way.
        self._counts = {region: counts[region] for region in sorted(counts) if counts[region]}
        self.total = sum(self._counts.values())
        self._hash = hash(tuple(self._counts.items()))

    def tick(self, region: str) -> "VectorClock":
        """The clock after one more step of the region."""
        _check(region, self[region] + 1)
        return VectorClock._of({**self._counts, region: self[region] + 1})

    def join(self, other: "VectorClock") -> "VectorClock":
        """The earliest clock that is not before either of the two."""
        joined = dict(self._counts)
        for region, count in other._counts.items():
            if count > joined.get(region, 0):
                joined[region] = count
        return VectorClock._of(joined)

    def concurrent(self, other: "VectorClock") -> bool:
        """Whether each knows something that the other does not."""
        return not self <= other and not other <= self

    def __le__(self, other: object) -> bool:
        if not isinstance(other, VectorClock):
            return NotImplemented
        if self.total > other.total:
            return False
        theirs = other._counts
        return all(count <= theirs.get(region, 0) for region, count in self._counts.items())

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, VectorClock):
            return NotImplemented
        return self.total < other.total and self <= other

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, VectorClock):
            return NotImplemented
        return self._counts == other._counts

    def __hash__(self) -> int:
        return self._hash

    def __getitem__(self, region: str) -> int:
        return self._counts.get(region, 0)

    def __contains__(self, region: object) -> bool:
        return region in self._counts

    def __iter__(self) -> Iterator[str]:
        return iter(self._counts)

    def __len__(self) -> int:
        return len(self._counts)

    def items(self) -> ItemsView[str, int]:
        """The regions that count more than 0, by name, and their counts."""
        return self._counts.items()

    def __repr__(self) -> str:
        return f"VectorClock({self._counts!r})"


def _check(region: object, count: object) -> None:
    if type(region) is not str:
        raise TypeError(f"a region must be a str, not {type(region).__name__}")
    if type(count) is not int:
        raise TypeError(f"the count of {region} must be an int, not {type(count).__name__}")
    if not 0 <= count <= MAX_COUNT:
        raise ValueError(f"the count of {region} must be from 0 to 2**63 - 1, not {count}")
