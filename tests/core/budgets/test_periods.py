"""Periods tile time, whatever the clocks of a zone do, and usage is cut exactly where they meet."""

import re
from bisect import bisect_left
from datetime import UTC, datetime, timedelta
from itertools import groupby, pairwise
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bursar.core.budgets import periods
from bursar.core.budgets.periods import (
    Period,
    PeriodKind,
    Window,
    claim_horizon,
    period_at,
    slots_inside,
    split,
)
from bursar.core.instant import DAY, HOUR, MINUTE, NEVER, SECOND, Instant

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
CALENDAR = (PeriodKind.DAY, PeriodKind.WEEK, PeriodKind.MONTH)
ZONES = sorted(available_timezones() - {"localtime"})


def utc(written: str) -> Instant:
    """The instant that `written` names in ISO 8601, in UTC unless it says otherwise."""
    moment = datetime.fromisoformat(written)
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (moment - EPOCH) // timedelta(microseconds=1)


def wall(zone: str, at: Instant) -> datetime:
    """What a clock on a wall in `zone` shows."""
    return (EPOCH + timedelta(microseconds=at)).astimezone(ZoneInfo(zone))


def label(every: PeriodKind, moment: datetime) -> tuple[int, ...]:
    """The name of the day, week or month that `moment` is in; later ones sort higher."""
    match every:
        case PeriodKind.DAY:
            return (moment.toordinal(),)
        case PeriodKind.WEEK:
            return moment.isocalendar()[:2]
        case _:
            return (moment.year, moment.month)


END_OF_9998 = utc("9999-01-01") - 1  # so that the oracle, `datetime`, can still look ahead
INSTANTS = st.integers(0, utc("2101-01-01")) | st.integers(0, END_OF_9998)

# Each a change of clocks at or near midnight, where naive arithmetic goes wrong.
ODD = (
    ("America/Sao_Paulo", utc("2018-11-04T03:00")),
    ("America/Sao_Paulo", utc("2018-02-18T02:00")),
    ("Africa/Cairo", utc("2024-04-25T22:00")),
    ("Asia/Beirut", utc("2024-03-30T22:00")),
    ("America/Havana", utc("2024-11-03T05:00")),
    ("America/Havana", utc("2024-03-10T05:00")),
    ("America/St_Johns", utc("2009-11-01T02:31")),
    ("America/St_Johns", utc("2010-11-07T02:31")),
    ("America/Nuuk", utc("2024-03-31T01:00")),
    ("America/Asuncion", utc("2024-03-24T03:00")),
    ("Africa/Casablanca", utc("2024-03-10T02:00")),
    ("Africa/Monrovia", utc("1972-01-07T00:44:30")),
    ("Antarctica/Vostok", utc("1994-01-31T17:00")),
    ("Antarctica/Troll", utc("2024-10-27T01:00")),
    ("Asia/Gaza", utc("2010-03-25T22:01")),
    ("Australia/Lord_Howe", utc("2024-04-06T15:00")),
    ("Europe/Berlin", utc("2024-10-27T01:00")),
    ("Pacific/Apia", utc("2011-12-30T10:00")),
    ("Pacific/Kwajalein", utc("1993-08-21T12:00")),
)
NEAR_ODD = st.sampled_from(ODD).flatmap(
    lambda odd: st.tuples(st.just(odd[0]), st.integers(odd[1] - 2 * DAY, odd[1] + 2 * DAY))
)
PLACES = NEAR_ODD | st.tuples(st.sampled_from(ZONES), INSTANTS)

EXACT = {
    "an ordinary day": (PeriodKind.DAY, "UTC", "2024-05-05T12:00", "2024-05-05", "2024-05-06"),
    "a day east of Greenwich": (
        *(PeriodKind.DAY, "Asia/Kolkata", "2024-05-05T18:30"),
        *("2024-05-05T18:30", "2024-05-06T18:30"),
    ),
    "the first day of all": (PeriodKind.DAY, "UTC", "1970-01-01", "1970-01-01", "1970-01-02"),
    "a day of 23 hours": (
        *(PeriodKind.DAY, "Europe/Berlin", "2024-03-31T12:00"),
        *("2024-03-30T23:00", "2024-03-31T22:00"),
    ),
    "a day of 25 hours": (
        *(PeriodKind.DAY, "Europe/Berlin", "2024-10-27T12:00"),
        *("2024-10-26T22:00", "2024-10-27T23:00"),
    ),
    "a day of 24 hours and a half": (
        *(PeriodKind.DAY, "Australia/Lord_Howe", "2024-04-07T00:00"),
        *("2024-04-06T13:00", "2024-04-07T13:30"),
    ),
    "a day of 31 hours": (
        *(PeriodKind.DAY, "Antarctica/Vostok", "1994-01-31T12:00"),
        *("1994-01-30T17:00", "1994-02-01T00:00"),
    ),
    "a day longer because a fast begins": (
        *(PeriodKind.DAY, "Africa/Casablanca", "2024-03-10T12:00"),
        *("2024-03-09T23:00", "2024-03-11T00:00"),
    ),
    "a day without midnight in Sao Paulo": (
        *(PeriodKind.DAY, "America/Sao_Paulo", "2018-11-04T12:00"),
        *("2018-11-04T03:00", "2018-11-05T02:00"),
    ),
    "a day without midnight in Cairo": (
        *(PeriodKind.DAY, "Africa/Cairo", "2024-04-26T12:00"),
        *("2024-04-25T22:00", "2024-04-26T21:00"),
    ),
    "a day without midnight in Beirut": (
        *(PeriodKind.DAY, "Asia/Beirut", "2024-03-31T12:00"),
        *("2024-03-30T22:00", "2024-03-31T21:00"),
    ),
    "clocks put on from 23:30 to 00:30": (
        *(PeriodKind.DAY, "America/Toronto", "1919-03-31T12:00"),
        *("1919-03-31T04:30", "1919-04-01T04:00"),
    ),
    "a day with two midnights": (
        *(PeriodKind.DAY, "America/Havana", "2024-11-03T04:30"),
        *("2024-11-03T04:00", "2024-11-04T05:00"),
    ),
    "clocks put back at midnight to 23:00": (
        *(PeriodKind.DAY, "America/Sao_Paulo", "2018-02-18T02:30"),
        *("2018-02-17T02:00", "2018-02-18T03:00"),
    ),
    "a day that had begun when clocks were put back over midnight": (
        *(PeriodKind.DAY, "America/St_Johns", "2009-11-01T02:31"),
        *("2009-11-01T02:30", "2009-11-02T03:30"),
    ),
    "a month that had begun when clocks were put back over midnight": (
        *(PeriodKind.MONTH, "America/St_Johns", "2009-11-01T02:31"),
        *("2009-11-01T02:30", "2009-12-01T03:30"),
    ),
    "the day before a skipped date": (
        *(PeriodKind.DAY, "Pacific/Apia", "2011-12-30T09:59:59.999999"),
        *("2011-12-29T10:00", "2011-12-30T10:00"),
    ),
    "the day after a skipped date": (
        *(PeriodKind.DAY, "Pacific/Apia", "2011-12-30T10:00"),
        *("2011-12-30T10:00", "2011-12-31T10:00"),
    ),
    "a week begins on Monday": (PeriodKind.WEEK, "UTC", "2024-05-06", "2024-05-06", "2024-05-13"),
    "a week ends with Sunday": (
        *(PeriodKind.WEEK, "UTC", "2024-05-12T23:59:59.999999"),
        *("2024-05-06", "2024-05-13"),
    ),
    "a week over New Year": (PeriodKind.WEEK, "UTC", "2021-01-01", "2020-12-28", "2021-01-04"),
    "a week less an hour": (
        *(PeriodKind.WEEK, "Europe/Berlin", "2024-03-27T12:00"),
        *("2024-03-24T23:00", "2024-03-31T22:00"),
    ),
    "a month of 31 days": (PeriodKind.MONTH, "UTC", "2024-01-31", "2024-01-01", "2024-02-01"),
    "a month of 30 days": (PeriodKind.MONTH, "UTC", "2024-04-01", "2024-04-01", "2024-05-01"),
    "a leap February": (PeriodKind.MONTH, "UTC", "2024-02-29", "2024-02-01", "2024-03-01"),
    "a plain February": (PeriodKind.MONTH, "UTC", "2023-02-28", "2023-02-01", "2023-03-01"),
    "the February of 2100": (PeriodKind.MONTH, "UTC", "2100-02-28", "2100-02-01", "2100-03-01"),
    "December": (PeriodKind.MONTH, "UTC", "2024-12-31T23:00", "2024-12-01", "2025-01-01"),
    "a month and an hour": (
        *(PeriodKind.MONTH, "Europe/Berlin", "2024-10-15"),
        *("2024-09-30T22:00", "2024-10-31T23:00"),
    ),
    "a day of the distant future": (
        *(PeriodKind.DAY, "Europe/Berlin", "9990-07-01T12:00"),
        *("9990-06-30T22:00", "9990-07-01T22:00"),
    ),
}


@pytest.mark.parametrize("case", EXACT.values(), ids=EXACT)
def test_a_period_begins_and_ends_on_the_instant(
    case: tuple[PeriodKind, str, str, str, str],
) -> None:
    """Days, weeks and months of the account's zone are exact, whatever its clocks do (B3)."""
    every, zone, at, start, end = case
    window = Window(every=every, time_zone=zone)
    want = Period(start=utc(start), end=utc(end))

    assert want == period_at(window, utc(at))
    for inside in (want.start, want.start + 1, want.end - 1):
        assert want == period_at(window, inside)
    assert want.start == period_at(window, want.start - 1).end
    assert want.end == period_at(window, want.end).start
    assert want.end == period_at(window, want.end + 1).start


LAST_YEARS = {
    "the last day": (PeriodKind.DAY, "UTC", "9999-12-31T23:59:59.999999", 253_402_214_400, DAY),
    "the last week": (PeriodKind.WEEK, "UTC", "9999-12-31T12:00", 253_401_868_800, 7 * DAY),
    "the last month": (PeriodKind.MONTH, "UTC", "9999-12-31T12:00", 253_399_622_400, 31 * DAY),
    "ten thousand in Tokyo": (
        PeriodKind.DAY,
        "Asia/Tokyo",
        "9999-12-31T15:00",
        253_402_268_400,
        DAY,
    ),
    "a month of it": (
        PeriodKind.MONTH,
        "Asia/Tokyo",
        "9999-12-31T15:00",
        253_402_268_400,
        31 * DAY,
    ),
    "still 9999 in Honolulu": (
        *(PeriodKind.DAY, "Pacific/Honolulu", "9999-12-31T23:00"),
        *(253_402_250_400, DAY),
    ),
}


@pytest.mark.parametrize("case", LAST_YEARS.values(), ids=LAST_YEARS)
def test_the_year_9999_ends_like_any_other(case: tuple[PeriodKind, str, str, int, int]) -> None:
    """Nothing overflows where `datetime` ends: the next period begins beyond it (B3)."""
    every, zone, at, start_s, length = case

    want = Period(start=start_s * SECOND, end=start_s * SECOND + length)
    assert want == period_at(Window(every=every, time_zone=zone), utc(at))


@pytest.mark.parametrize("every", CALENDAR)
def test_the_last_period_of_all_ends_never(every: PeriodKind) -> None:
    """A period whose end is beyond every instant ends at NEVER (B3)."""
    window = Window(every=every, time_zone="Europe/Berlin")
    last = period_at(window, NEVER - 1)

    assert NEVER == last.end
    assert last.start == period_at(window, last.start - 1).end < NEVER


@pytest.mark.parametrize("cycles", [1, 2, 19])
@pytest.mark.parametrize("at", ["2400-01-01", "2400-02-29T12:00", "2799-12-31T23:59:59.999999"])
@pytest.mark.parametrize("every", CALENDAR)
def test_the_calendar_repeats_after_400_years(every: PeriodKind, at: str, cycles: int) -> None:
    """A period of the far future is one of 400 years earlier, moved by whole cycles (B3)."""
    window = Window(every=every, time_zone="America/New_York")
    shift = cycles * 146_097 * DAY
    early = period_at(window, utc(at))

    assert early == Period(
        start=period_at(window, utc(at) + shift).start - shift,
        end=period_at(window, utc(at) + shift).end - shift,
    )


@example(every=PeriodKind.DAY, place=("Pacific/Apia", utc("2011-12-30T10:00")), part=0)
@example(every=PeriodKind.DAY, place=("America/St_Johns", utc("2009-11-01T02:45")), part=0)
@given(every=st.sampled_from(CALENDAR), place=PLACES, part=st.integers(0, 1_000_000))
def test_periods_tile_time_without_gap_or_overlap(
    every: PeriodKind, place: tuple[str, Instant], part: int
) -> None:
    """Each instant is in one period, and one period ends where the next begins (B3).

    A period begins when the wall clock first shows its name or a later one, and no instant of it
    shows a later name.
    """
    zone, at = place
    window = Window(every=every, time_zone=zone)
    period = period_at(window, at)
    name = label(every, wall(zone, period.start))

    assert period.start <= at < period.end
    for inside in (period.start, period.end - 1):
        assert period == period_at(window, inside)
        assert label(every, wall(zone, inside)) <= name
    assert period.start == period_at(window, period.start - 1).end
    assert period.end == period_at(window, period.end).start
    assert label(every, wall(zone, period.start - 1)) < name < label(every, wall(zone, period.end))
    anywhere = period.start + (period.end - period.start) * part // 1_000_001
    assert label(every, wall(zone, anywhere)) <= name


def without_memory(every: PeriodKind, zone: str) -> Window:
    """A window of which no period has been found yet."""
    periods._cache_for.cache_clear()
    return Window(every=every, time_zone=zone)


def test_equal_windows_share_what_they_remember() -> None:
    """Whoever asks first; a window of another zone does not."""
    window = without_memory(PeriodKind.DAY, "UTC")
    period_at(window, 5 * DAY)

    assert ((5 * DAY,), (Period(start=5 * DAY, end=6 * DAY),)) == window._known.table
    assert window._known is Window(every=PeriodKind.DAY)._known
    assert window._known is not Window(every=PeriodKind.DAY, time_zone="Asia/Tokyo")._known
    assert window._known is not Window(every=PeriodKind.WEEK)._known


@given(
    every=st.sampled_from(CALENDAR),
    zone=st.sampled_from(("Europe/Berlin", "America/St_Johns", "Pacific/Apia")),
    days=st.lists(st.integers(14_000, 14_700), max_size=150),
)
def test_cached_periods_equal_computed_ones(every: PeriodKind, zone: str, days: list[int]) -> None:
    """In whatever order they are requested."""
    window = without_memory(every, zone)
    remembering = [period_at(window, day * DAY + 2 * HOUR) for day in days]
    starts, known = window._known.table

    fresh = [period_at(without_memory(every, zone), day * DAY + 2 * HOUR) for day in days]
    assert fresh == remembering
    assert sorted(set(starts)) == list(starts) == [period.start for period in known]


def test_a_period_is_found_once_and_then_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second question about the same period is answered from memory, at its very edges too."""
    window = without_memory(PeriodKind.DAY, "Asia/Tokyo")
    days = [period_at(window, day * DAY) for day in (5, 3, 4)]
    monkeypatch.setattr(periods, "_find_period", None)  # any further search would raise

    for day in days:
        assert day is period_at(window, day.start)
        assert day is period_at(window, day.end - 1)


def test_no_more_than_64_periods_of_a_window_are_remembered() -> None:
    """The memory is bounded: the 65th period puts the others out."""
    window = without_memory(PeriodKind.DAY, "UTC")

    for day in range(64):
        assert Period(start=day * DAY, end=(day + 1) * DAY) == period_at(window, day * DAY)
    assert tuple(day * DAY for day in range(64)) == window._known.table[0]
    period_at(window, 64 * DAY)
    assert ((64 * DAY,), (Period(start=64 * DAY, end=65 * DAY),)) == window._known.table


@pytest.mark.parametrize("at", [0, 1, utc("2024-05-05"), NEVER - 1])
def test_a_lifetime_is_one_period(at: Instant) -> None:
    """A lifetime budget has a single period, from the epoch on (B3)."""
    window = Window(every=PeriodKind.LIFETIME)

    assert Period(start=0, end=NEVER) == period_at(window, at)
    assert (0,) == slots_inside(window, at)


def test_a_rolling_window_has_slots_of_a_twentyfourth() -> None:
    """A day's rolling window is counted in hours that are aligned to the epoch (B5)."""
    window = Window(every=PeriodKind.ROLLING, time_zone="Asia/Kolkata", length=DAY)
    at = utc("2024-05-05T12:34:56")
    hour = Period(start=utc("2024-05-05T12:00"), end=utc("2024-05-05T13:00"))

    assert hour == period_at(window, at)
    assert hour == period_at(window, hour.start)
    assert hour == period_at(window, hour.end - 1)
    assert hour.end == period_at(window, hour.end).start
    assert tuple(hour.start + h * HOUR for h in range(-24, 1)) == slots_inside(window, at)
    assert Period(start=0, end=NEVER) == period_at(
        Window(every=PeriodKind.ROLLING, length=24 * 2**63), NEVER - 1
    )


@example(slot=10, at=239)
@example(slot=10, at=240)
@example(slot=10, at=241)
@given(slot=st.integers(1, 50), at=st.integers(0, 5_000))
def test_a_slot_counts_while_any_part_of_it_is_inside(slot: int, at: Instant) -> None:
    """Counted are just the slots of the instants in (at - length, at], oldest first (B5)."""
    window = Window(every=PeriodKind.ROLLING, length=24 * slot)
    inside = range(at - 24 * slot + 1, at + 1)
    want = sorted({period_at(window, instant).start for instant in inside})

    assert tuple(want) == slots_inside(window, at)
    assert (24 if (at + 1) % slot == 0 else 25) == len(want)


@pytest.mark.parametrize("every", CALENDAR)
def test_a_calendar_window_counts_the_period_it_is_in(every: PeriodKind) -> None:
    """What counts in a day, week or month is what fell in it (B3)."""
    window = Window(every=every, time_zone="Asia/Beirut")
    at = utc("2024-03-31T12:00")

    assert (period_at(window, at).start,) == slots_inside(window, at)


def test_the_horizon_of_each_window() -> None:
    """The longest a period can last: its calendar length and seven hours, its length, or NEVER."""
    assert 31 * HOUR == claim_horizon(Window(every=PeriodKind.DAY))
    assert 7 * DAY + 7 * HOUR == claim_horizon(Window(every=PeriodKind.WEEK))
    assert 31 * DAY + 7 * HOUR == claim_horizon(Window(every=PeriodKind.MONTH))
    assert 48 * MINUTE == claim_horizon(Window(every=PeriodKind.ROLLING, length=48 * MINUTE))
    assert NEVER == claim_horizon(Window(every=PeriodKind.LIFETIME))


def changes(zone: str) -> list[Instant]:
    """The instants from 1970 to 2100 at which the clocks of `zone` are put back."""
    info, found = ZoneInfo(zone), []

    def offset(second: int) -> timedelta:
        return datetime.fromtimestamp(second, info).utcoffset() or timedelta()

    step = 14 * DAY // SECOND
    seconds = range(0, utc("2101-01-01") // SECOND, step)
    offsets = [offset(second) for second in seconds]
    for second, (old, new) in zip(seconds, pairwise(offsets), strict=False):
        if new < old:
            # Offsets fall here, so their negatives are in order.
            place = bisect_left(range(second, second + step), -new, key=lambda at: -offset(at))
            found.append((second + place) * SECOND)
    return found


@pytest.mark.slow
def test_no_period_of_any_zone_outlasts_the_horizon() -> None:
    """From 1970 to 2100 no day, week or month is longer than its horizon, and one day is as long.

    Only a period in which clocks are put back can be longer than its calendar length.
    """
    longest = dict.fromkeys(CALENDAR, 0)
    seen: set[tuple[Instant, ...]] = set()
    for zone in ZONES:
        put_back = changes(zone)
        if tuple(put_back) in seen:
            continue  # another name of a zone that was looked at
        seen.add(tuple(put_back))
        for every in CALENDAR:
            window = Window(every=every, time_zone=zone)
            for at in put_back:
                period = period_at(window, at)
                longest[every] = max(longest[every], period.end - period.start)

    assert {every: claim_horizon(Window(every=every)) for every in CALENDAR} == longest


def test_usage_is_cut_where_the_day_ends() -> None:
    """Pieces are cut at midnight in the zone, by when each millisecond begins (B5)."""
    window = Window(every=PeriodKind.DAY, time_zone="Europe/Berlin")
    midnight = utc("2024-03-30T23:00")  # before a day of 23 hours
    day_ms = 24 * 3_600_000

    assert [
        (midnight - DAY, 5, 10),
        (midnight, 10, 10 + day_ms - 3_600_000),
        (midnight + 23 * HOUR, 10 + day_ms - 3_600_000, day_ms),
    ] == list(split(window, midnight - 10_000, 5, day_ms))


@pytest.mark.parametrize(
    ("early", "own_ms"),
    [(10_001, 11), (10_000, 10), (9_999, 10), (9_001, 10), (9_000, 9)],
)
def test_a_millisecond_belongs_to_the_period_in_which_it_begins(early: int, own_ms: int) -> None:
    """A millisecond that straddles a boundary is not cut: its first microsecond decides (B5)."""
    window = Window(every=PeriodKind.DAY)

    assert [(0, 0, own_ms), (DAY, own_ms, 20)] == list(split(window, DAY - early, 0, 20))


def test_a_piece_that_ends_with_its_period_has_no_empty_neighbour() -> None:
    """No piece is empty, and nothing is cut from nothing (B5)."""
    window = Window(every=PeriodKind.DAY)

    assert [(0, 3, 10)] == list(split(window, DAY - 10_000, 3, 10))
    assert [(0, 9, 10), (DAY, 10, 11)] == list(split(window, DAY - 10_000, 9, 11))
    assert [(DAY, 10, 11)] == list(split(window, DAY - 10_000, 10, 11))
    assert [] == list(split(window, DAY - 10_000, 7, 7))


def test_a_period_that_never_ends_is_not_cut() -> None:
    """A lifetime takes any usage whole, even such as would run on past the last instant (B5)."""
    window = Window(every=PeriodKind.LIFETIME)

    assert [(0, 7, 2**60)] == list(split(window, 5, 7, 2**60))
    assert [(0, 0, 10)] == list(split(window, NEVER - 1, 0, 10))


def test_a_year_of_usage_is_cut_into_days() -> None:
    """The cost of cutting grows with the periods, not with the milliseconds (B5)."""
    window = Window(every=PeriodKind.DAY, time_zone="America/New_York")
    start = utc("2024-01-01T05:00")
    pieces = list(split(window, start, 0, 366 * 24 * 3_600_000))

    assert 366 == len(pieces)
    assert {23 * 3_600_000: 1, 24 * 3_600_000: 364, 25 * 3_600_000: 1} == {
        length: sum(1 for _, from_ms, to_ms in pieces if to_ms - from_ms == length)
        for length in sorted({to_ms - from_ms for _, from_ms, to_ms in pieces})
    }


@given(
    slot=st.integers(1, 5_000),
    started_at=st.integers(0, 20_000),
    from_ms=st.integers(0, 60),
    length_ms=st.integers(0, 60),
)
def test_cutting_agrees_with_asking_for_each_millisecond(
    slot: int, started_at: Instant, from_ms: int, length_ms: int
) -> None:
    """The pieces are the runs of milliseconds that begin in the same period, in order (B5)."""
    window = Window(every=PeriodKind.ROLLING, length=24 * slot)
    stretch = range(from_ms, from_ms + length_ms)
    runs = groupby(stretch, key=lambda ms: period_at(window, started_at + ms * 1_000).start)
    want = [(start, ms[0], ms[-1] + 1) for start, run in runs if (ms := list(run))]

    assert want == list(split(window, started_at, from_ms, from_ms + length_ms))


@given(
    every=st.sampled_from(CALENDAR),
    place=NEAR_ODD,
    from_ms=st.integers(0, 10**9),
    length_ms=st.integers(0, 10**10),
)
def test_pieces_cover_the_stretch_exactly(
    every: PeriodKind, place: tuple[str, Instant], from_ms: int, length_ms: int
) -> None:
    """Pieces follow each other without gap or overlap, each with its milliseconds' period (B5)."""
    zone, started_at = place
    window = Window(every=every, time_zone=zone)
    reached = from_ms
    for start, piece_from, piece_to in split(window, started_at, from_ms, from_ms + length_ms):
        assert reached == piece_from < piece_to
        for ms in (piece_from, piece_to - 1):
            assert start == period_at(window, started_at + ms * 1_000).start
        reached = piece_to

    assert from_ms + length_ms == reached


@pytest.mark.parametrize("length", [-24, -1, 0, 1, 23, 25, DAY + 1])
def test_a_rolling_window_has_a_length_in_24_parts(length: int) -> None:
    """A length that cannot be cut into 24 slots is refused (B5)."""
    with pytest.raises(
        ValueError, match=f"^a rolling window is a multiple of 24 µs long: {length}$"
    ):
        Window(every=PeriodKind.ROLLING, length=length)


@pytest.mark.parametrize("length", [-24, 1, 24])
@pytest.mark.parametrize("every", [*CALENDAR, PeriodKind.LIFETIME])
def test_only_a_rolling_window_has_a_length(every: PeriodKind, length: int) -> None:
    """A calendar window's length comes from the calendar (B3)."""
    with pytest.raises(ValueError, match=f"^only a rolling window has a length: {length}$"):
        Window(every=every, length=length)


@pytest.mark.parametrize("every", [*CALENDAR, PeriodKind.LIFETIME])
@pytest.mark.parametrize(
    "zone", ["", "Mars/Olympus", "America", "../etc/passwd", "/UTC", "localtime", "europe/berlin"]
)
def test_an_unknown_time_zone_is_refused(zone: str, every: PeriodKind) -> None:
    """A window names a zone there is, not a folder, a file or this machine's own setting (B3)."""
    with pytest.raises(ValueError, match=f"^unknown time zone: {re.escape(repr(zone))}$"):
        Window(every=every, time_zone=zone)


@pytest.mark.parametrize(("start", "end"), [(5, 5), (6, 5)])
def test_a_period_ends_after_it_starts(start: Instant, end: Instant) -> None:
    """An empty period cannot exist, so a search for one always moves on."""
    with pytest.raises(ValueError, match=rf"^a period ends after it starts: \[{start}, {end}\)$"):
        Period(start=start, end=end)


def test_the_shortest_values_exist() -> None:
    """One instant is a period, 24 microseconds a rolling window."""
    period = Period(start=5, end=6)
    window = Window(every=PeriodKind.ROLLING, length=24)

    assert 1 == period.end - period.start
    assert Window(every=PeriodKind.ROLLING, time_zone="UTC", length=24) == window
