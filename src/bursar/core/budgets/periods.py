"""Which period of a budget an instant falls in, and where usage crosses from one into the next.

A period is [start, end) in instants, and the periods of a window tile time: one ends exactly where
the next begins. A calendar period begins at the first instant at which the wall clock of its zone
shows its first date or a later one. That one rule settles every oddity of local time:

    a day with a clock change      lasts 23 or 25 hours (17 to 31 in the oddest year of Vostok)
    a midnight that is skipped     Sao Paulo, 2018-11-04: the day begins at 01:00 on the wall
    a midnight that comes twice    St John's, 2009-11-01: the clock went from 00:01 back to 23:01;
                                   the new day (and month) had begun, and is not begun again
    a date that is skipped         Apia, 2011-12-30: that day has no period; the 29th ends where
                                   the 31st begins

A rolling window is a sum of fixed slots, each a twenty-fourth of its length and aligned to the
epoch, so that one counter per slot is enough.

Alternatives that were rejected. Adding 24 hours to a start drifts at the first clock change. Using
midnight by `datetime` alone is wrong where there is no midnight, or two.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo, available_timezones

from bursar.core.instant import DAY, HOUR, MILLISECOND, NEVER, Instant, whole_ms
from bursar.core.value import Derived, value

SLOTS_PER_WINDOW: Final = 24  # fixed slots to the length of a rolling window

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)

# The calendar, its weekdays and the rules of the clocks repeat after 400 years. An instant so long
# after the year 2400, when nothing but rules is left in the zone data, is looked up that many years
# earlier (or a multiple): `datetime` ends with the year 9999, in the middle of a period.
_CYCLE: Final = 146_097 * DAY
_REGULAR_FROM: Final[Instant] = (datetime(2400, 1, 1, tzinfo=UTC) - _EPOCH) // _MICROSECOND

_KNOWN_MAX: Final = 64  # periods remembered for one window
_WINDOWS_MAX: Final = 4096  # windows for which periods are remembered


class PeriodKind(StrEnum):
    """How often a budget starts again."""

    DAY = "day"
    WEEK = "week"  # from Monday, as ISO 8601 has it
    MONTH = "month"
    ROLLING = "rolling"  # always the last `length` microseconds
    LIFETIME = "lifetime"  # never


# The most by which clocks are put back within one period: by 7 hours at Vostok in 1994, by 3 at
# Casey since, by 1 or 2 nearly everywhere else. A test asks every zone from 1970 to 2100.
_PUT_BACK_MAX: Final = 7 * HOUR

_LONGEST: Final[Mapping[PeriodKind, int]] = {
    PeriodKind.DAY: DAY + _PUT_BACK_MAX,
    PeriodKind.WEEK: 7 * DAY + _PUT_BACK_MAX,
    PeriodKind.MONTH: 31 * DAY + _PUT_BACK_MAX,
    PeriodKind.LIFETIME: NEVER,
}


@value
class Period:
    """The instants [start, end); `end` is NEVER if no period follows."""

    start: Instant
    end: Instant

    def __post_init__(self) -> None:
        if self.start >= self.end:
            raise ValueError(f"a period ends after it starts: [{self.start}, {self.end})")


class _WithCache(Derived):
    """A value with a cache of periods."""

    __slots__ = ("_known",)
    _known: "_PeriodCache"


@value
class Window(_WithCache):
    """The periods of a budget; what it counts starts at zero in each."""

    every: PeriodKind
    time_zone: str = "UTC"  # IANA name; whose midnights count, where midnights count
    length: int = 0  # microseconds, divisible by 24, when ROLLING; else 0

    def __post_init__(self) -> None:
        if self.every is PeriodKind.ROLLING and (
            self.length <= 0 or self.length % SLOTS_PER_WINDOW
        ):
            raise ValueError(
                f"a rolling window is a multiple of {SLOTS_PER_WINDOW} µs long: {self.length}"
            )
        if self.every is not PeriodKind.ROLLING and self.length != 0:
            raise ValueError(f"only a rolling window has a length: {self.length}")
        if not is_zone(self.time_zone):
            raise ValueError(f"unknown time zone: {self.time_zone!r}")
        known = _cache_for(self.every, self.time_zone, self.length)
        object.__setattr__(self, "_known", known)


def period_at(window: Window, at: Instant) -> Period:
    """The period of `window` that contains `at`; for a rolling window, the slot."""
    known = window._known
    starts, periods = known.table
    place = bisect_right(starts, at) - 1
    if place >= 0 and at < periods[place].end:
        return periods[place]
    period = _find_period(window, at)
    known.learn(period)
    return period


def slots_inside(window: Window, at: Instant) -> tuple[Instant, ...]:
    """The starts of the periods that count at `at`, oldest first.

    For a rolling window all slots with an instant in (at - length, at]: 25, or 24 if `at` is the
    last instant of a slot. For any other window the one period that contains `at`.
    """
    if window.every is not PeriodKind.ROLLING:
        return (period_at(window, at).start,)
    slot = window.length // SLOTS_PER_WINDOW
    oldest = (at - window.length + 1) // slot * slot
    return tuple(range(oldest, at + 1, slot))


def claim_horizon(window: Window) -> int:
    """The length of the longest period of the window, in microseconds.

    For a rolling window its whole length; for a lifetime NEVER.
    """
    return window.length if window.every is PeriodKind.ROLLING else _LONGEST[window.every]


def split(
    window: Window, started_at: Instant, from_ms: int, to_ms: int
) -> Iterator[tuple[Instant, int, int]]:
    """Split the milliseconds [from_ms, to_ms) of an attempt by period (B5).

    Yields (start of the period, from_ms, to_ms) in order; the pieces cover the stretch exactly.
    Millisecond k begins at `started_at` + k ms and belongs to the period in which it begins.
    """
    while from_ms < to_ms:
        period = period_at(window, started_at + from_ms * MILLISECOND)
        cut_ms = to_ms
        if period.end != NEVER:
            cut_ms = min(to_ms, whole_ms(period.end - started_at))
        yield period.start, from_ms, cut_ms
        from_ms = cut_ms


class _PeriodCache:
    """A cache of the periods of one window, in order; it does not change results.

    The table is replaced as a whole, so a reader on another thread sees the old one or the new one.
    """

    __slots__ = ("table",)

    def __init__(self) -> None:
        self.table: tuple[tuple[Instant, ...], tuple[Period, ...]] = ((), ())

    def learn(self, period: Period) -> None:
        """Add `period` to the cache; if it is full, drop all others."""
        starts, periods = self.table
        if len(starts) >= _KNOWN_MAX:
            starts, periods = (), ()
        place = bisect_left(starts, period.start)
        self.table = (
            (*starts[:place], period.start, *starts[place:]),
            (*periods[:place], period, *periods[place:]),
        )


@lru_cache(maxsize=_WINDOWS_MAX)
def _cache_for(every: PeriodKind, time_zone: str, length: int) -> _PeriodCache:
    """The cache that equal windows share."""
    return _PeriodCache()


def _find_period(window: Window, at: Instant) -> Period:
    """Compute the period that contains `at`, without the cache."""
    match window.every:
        case PeriodKind.LIFETIME:
            return Period(start=0, end=NEVER)
        case PeriodKind.ROLLING:
            slot = window.length // SLOTS_PER_WINDOW
            start = at // slot * slot
            return Period(start=start, end=min(start + slot, NEVER))
        case every:
            skipped = max(0, (at - _REGULAR_FROM) // _CYCLE) * _CYCLE
            start, end = _calendar_bounds(every, ZoneInfo(window.time_zone), at - skipped)
            return Period(start=start + skipped, end=min(end + skipped, NEVER))


def _calendar_bounds(every: PeriodKind, zone: ZoneInfo, at: Instant) -> tuple[Instant, Instant]:
    """Start and end of the day, week or month of `zone` that contains `at`."""
    first = _first_date(every, _local(zone, at).date())
    following = _next_first_date(every, first)
    start, end = _beginning(zone, first), _beginning(zone, following)
    while at >= end:  # the clock was put back over midnight, to a date that had ended
        following = _next_first_date(every, following)
        start, end = end, _beginning(zone, following)
    return start, end


def _first_date(every: PeriodKind, day: date) -> date:
    """The first date of the day, week or month that `day` is in."""
    match every:
        case PeriodKind.WEEK:
            return day - timedelta(days=day.weekday())
        case PeriodKind.MONTH:
            return day.replace(day=1)
        case _:
            return day


def _next_first_date(every: PeriodKind, first: date) -> date:
    """The first date of the day, week or month after the one that begins with `first`."""
    match every:
        case PeriodKind.WEEK:
            return first + timedelta(days=7)
        case PeriodKind.MONTH:
            return (first + timedelta(days=31)).replace(day=1)
        case _:
            return first + timedelta(days=1)


def _beginning(zone: ZoneInfo, day: date) -> Instant:
    """The first instant at which the clocks of `zone` show `day` or a later date.

    Computes midnight with the UTC offset before a clock change and with the one after it. Usually
    both are the same; if midnight occurs twice, the earlier one is the result. If midnight is
    skipped, the first is later than the second, and the clock change lies in between.
    """
    midnight = datetime.combine(day, time.min, tzinfo=zone)
    by_old, by_new = _instant(midnight), _instant(midnight.replace(fold=1))
    earliest = min(by_old, by_new)
    between = range(earliest, by_old)
    return earliest + bisect_left(between, True, key=lambda at: _local(zone, at).date() >= day)


def _local(zone: ZoneInfo, at: Instant) -> datetime:
    """What the clocks of `zone` show at `at`."""
    return (_EPOCH + timedelta(microseconds=at)).astimezone(zone)


def _instant(moment: datetime) -> Instant:
    """The instant of an aware `moment`."""
    return (moment - _EPOCH) // _MICROSECOND


def is_zone(name: str) -> bool:
    """Whether there is a time zone of that name."""
    return name in _zone_names()


@lru_cache(maxsize=1)
def _zone_names() -> frozenset[str]:
    """The names of all time zones, without the one for the machine's own setting."""
    return frozenset(available_timezones() - {"localtime"})
