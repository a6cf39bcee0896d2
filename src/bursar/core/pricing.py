"""Prices of GPU-hours: versioned price books, and the rate that applies (B1).

The deployment has one book; an org can have another one that overrides it. A book is a list of
versions, each in force from its `effective_at` until the next version is. A version that keeps
others names only what it changes: its other rates are those of the version before it, also if that
one is added later. A rate may leave region, tier or priority class open. If several rates match,
the most specific one applies.
"""

from bisect import bisect_right
from collections.abc import Mapping
from itertools import pairwise
from typing import Final, TypeAlias

from bursar.core.ids import PriceVersionId
from bursar.core.instant import NEVER, Instant
from bursar.core.money import AMOUNT_MAX, PPM, Micros
from bursar.core.validation import check_int, check_optional_text, check_text
from bursar.core.value import Derived, replace, value

_Key: TypeAlias = tuple[str, str | None, str | None, str | None]

# Which of (region, tier, class) a rate names, most specific first: more named fields before fewer;
# among as many, region before tier before class.
_SPECIFIC_FIRST: Final = (
    (True, True, True),
    (True, True, False),
    (True, False, True),
    (False, True, True),
    (True, False, False),
    (False, True, False),
    (False, False, True),
    (False, False, False),
)


@value
class PriceTerms:
    """What a price depends on besides the GPU type. None matches only rates that leave it open."""

    region: str | None = None
    tier: str | None = None
    priority_class: str | None = None


@value
class Rate:
    """The price of one GPU-hour of a type. None leaves region, tier or class open."""

    gpu_type: str
    region: str | None = None
    tier: str | None = None
    priority_class: str | None = None
    micros_per_gpu_hour: Micros  # 0 to AMOUNT_MAX

    def __post_init__(self) -> None:
        check_text("gpu_type", self.gpu_type)
        for name in ("region", "tier", "priority_class"):
            check_optional_text(name, getattr(self, name))
        check_int("micros_per_gpu_hour", self.micros_per_gpu_hour, 0, AMOUNT_MAX)

    @property
    def key(self) -> _Key:
        """The fields that the rate sets; a version has at most one rate for a key."""
        return (self.gpu_type, self.region, self.tier, self.priority_class)

    @property
    def named(self) -> str:
        """The fields that the rate sets, as text."""
        return ", ".join(part for part in self.key if part is not None)


class _Indexed(Derived):
    """Caches its rates by key."""

    __slots__ = ("_by_key",)
    _by_key: Mapping[_Key, Micros]


@value
class PriceVersion(_Indexed):
    """Rates that come into force together, as they were set. A later version replaces them."""

    id: PriceVersionId
    effective_at: Instant
    rates: tuple[Rate, ...]
    cache_hit_ppm: int | None = None  # of what a run has cost, for its result to another job (S13)
    keeps_others: bool = False  # what it does not name is as in the version before it

    def __post_init__(self) -> None:
        check_text("id", self.id)
        check_int("effective_at", self.effective_at, 0, NEVER)
        if self.cache_hit_ppm is not None:
            check_int("cache_hit_ppm", self.cache_hit_ppm, 0, PPM)
        by_key: dict[_Key, Micros] = {}
        for rate in self.rates:
            if rate.key in by_key:
                raise ValueError(f"two rates have the same fields: {rate.named}")
            by_key[rate.key] = rate.micros_per_gpu_hour
        object.__setattr__(self, "_by_key", by_key)

    def rate_for(self, key: _Key) -> Micros | None:
        """The rate that sets exactly the fields of `key`; None if there is none."""
        return self._by_key.get(key)

    def after(self, before: "PriceVersion") -> "PriceVersion":
        """This version in full: with what it keeps of `before`, which is in full too."""
        if not self.keeps_others:
            return self
        rates = {rate.key: rate for rate in (*before.rates, *self.rates)}
        hit_ppm = before.cache_hit_ppm if self.cache_hit_ppm is None else self.cache_hit_ppm
        return replace(self, rates=tuple(rates.values()), cache_hit_ppm=hit_ppm)


class _Resolved(Derived):
    """Caches its versions in full, by place."""

    __slots__ = ("_in_full",)
    _in_full: dict[int, PriceVersion]


@value
class PriceBook(_Resolved):
    """Price versions, ordered by the instant from which they are in force, then by arrival."""

    versions: tuple[PriceVersion, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "_in_full", {})
        if any(
            earlier.effective_at > later.effective_at for earlier, later in pairwise(self.versions)
        ):
            raise ValueError("the versions of a price book are in order of their effective_at")
        if len({version.id for version in self.versions}) < len(self.versions):
            raise ValueError("two versions of a price book have the same id")

    def with_version(self, version: PriceVersion) -> "PriceBook":
        """The book with one more version, after those with the same `effective_at`."""
        place = bisect_right(self.versions, version.effective_at, key=_effective_at)
        return PriceBook(versions=(*self.versions[:place], version, *self.versions[place:]))

    def in_force(self, at: Instant) -> PriceVersion | None:
        """The version with the latest `effective_at` up to `at`, in full; of several, the last
        added."""
        place = bisect_right(self.versions, at, key=_effective_at)
        return self._resolve(place - 1) if place else None

    def in_full(self) -> tuple[PriceVersion, ...]:
        """All versions, each with the rates that it keeps of the one before it."""
        return tuple(self._resolve(place) for place in range(len(self.versions)))

    def _resolve(self, place: int) -> PriceVersion:
        start = place
        while start and start not in self._in_full and self.versions[start].keeps_others:
            start -= 1
        full = self._in_full.get(start) or self.versions[start]
        for later in range(start + 1, place + 1):
            full = self._in_full[later] = self.versions[later].after(full)
        return full

    def version(self, id: PriceVersionId) -> PriceVersion | None:
        """The version with that id as it was set, in force or not."""
        return next((version for version in self.versions if version.id == id), None)


@value
class Priced:
    """A price and the version it comes from, as quotes show and holds store."""

    version: PriceVersionId
    rate: Micros  # per GPU-hour


def rate_in(version: PriceVersion, gpu_type: str, terms: PriceTerms) -> Micros | None:
    """The rate of the most specific match in `version`; None if no rate matches.

    A rate matches if each field it sets equals that of `terms`. The rate with more fields set
    applies. With equally many, region counts more than tier, and tier more than priority class.
    """
    for region, tier, priority_class in _SPECIFIC_FIRST:
        rate = version.rate_for(
            (
                gpu_type,
                terms.region if region else None,
                terms.tier if tier else None,
                terms.priority_class if priority_class else None,
            )
        )
        if rate is not None:
            return rate
    return None


def price_of(
    deployment: PriceBook, overrides: PriceBook, gpu_type: str, terms: PriceTerms, at: Instant
) -> Priced | None:
    """The price at `at`: the org's override if one matches, else the deployment's."""
    for book in (overrides, deployment):
        version = book.in_force(at)
        rate = rate_in(version, gpu_type, terms) if version else None
        if version and rate is not None:
            return Priced(version=version.id, rate=rate)
    return None


def hit_ppm_of(deployment: PriceBook, overrides: PriceBook, at: Instant) -> int:
    """The price of a cached result as a part of the run's cost; 0 if no version sets it."""
    for book in (overrides, deployment):
        version = book.in_force(at)
        if version is not None and version.cache_hit_ppm is not None:
            return version.cache_hit_ppm
    return 0


def attempt_rate(held: Micros, in_force: Micros | None) -> Micros:
    """The rate of an attempt: that of its hold, or the one at its start if lower (B1)."""
    return held if in_force is None else min(held, in_force)


def _effective_at(version: PriceVersion) -> Instant:
    return version.effective_at
