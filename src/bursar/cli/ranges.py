"""Parses and formats times, durations and ranges.

Ranges are half-open, [from, to), and made of whole units: "last 7 days" are the seven days before
today, as "last month" is the month before this one. Days begin at midnight in the local zone.
"""

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Final

_SECONDS: Final = {"w": 7 * 86_400, "d": 86_400, "h": 3_600, "m": 60, "s": 1}
_DURATION: Final = re.compile(r"(?:\d{1,9}[wdhms])+", re.ASCII)
_PART: Final = re.compile(r"(\d+)([wdhms])", re.ASCII)
_MOST_S: Final = 100 * 366 * 86_400

_LOCAL: Final = re.compile(r"\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d{1,6})?)?)?", re.A)
_EXACT: Final = re.compile(_LOCAL.pattern + r"(?:Z|[+-]\d{2}:\d{2})", re.ASCII | re.IGNORECASE)
_LAST: Final = re.compile(
    r"(this|last)(?: ([1-9]\d{0,3}))? (hour|day|week|month|quarter|year)s?", re.A
)
_PARTS_OF_A_YEAR: Final = re.compile(r"(\d{4})(?:-(?:Q([1-4])|W(\d{2})|(\d{2})))?", re.A | re.I)
_MONTHS: Final = {"month": 1, "quarter": 3, "year": 12}

TIMES: Final = "2026-10-05, '2026-10-05 14:30', 2026-10-05T12:30:00Z, now, today, or '2h ago'"
RANGES: Final = (
    "today, yesterday, 'this week', 'last month', 'last 7 days', 2026-10, 2026-10-05, 2026-W41,"
    " 2026-Q4, 2026, or 2026-10-01..2026-10-15"
)


@dataclass(frozen=True, slots=True)
class Span:
    """From an instant, and up to but without another."""

    start: datetime
    end: datetime


def seconds_of(text: str) -> int:
    """The length of a duration such as `90d`, `36h` or `1h30m`; a day has 24 hours."""
    text = text.strip()
    if not _DURATION.fullmatch(text):
        raise ValueError(f"{text[:40]!r} is not a duration: write 90d, 36h, 15m, 30s or 1h30m")
    seconds = sum(int(count) * _SECONDS[unit] for count, unit in _PART.findall(text))
    if seconds > _MOST_S:
        raise ValueError(f"{text[:40]} is too long: the maximum is 100 years")
    return seconds


def duration_told(seconds: int) -> str:
    """A length of time in days, hours, minutes and seconds, without those that are zero."""
    parts: list[str] = []
    for unit in "dhms":
        count, seconds = divmod(seconds, _SECONDS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def utc_text(at: datetime) -> str:
    """An instant as the HTTP interface writes it."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def local_text(text: str, zone: tzinfo | None = None) -> str:
    """An instant of the HTTP interface as the clocks here show it, with their zone's name."""
    return f"{datetime.fromisoformat(text).astimezone(zone):%Y-%m-%d %H:%M:%S %Z}"


def time_of(text: str, now: datetime, zone: tzinfo | None = None) -> datetime:
    """The instant that a text names; without an offset it is meant in the local zone."""
    words = text.strip()
    if words == "now":
        return now
    if words == "today":
        return range_of("today", now, zone).start
    if words.endswith(" ago"):
        return now - timedelta(seconds=seconds_of(words.removesuffix(" ago")))
    try:
        if _EXACT.fullmatch(words):
            return datetime.fromisoformat(words.upper())
        if _LOCAL.fullmatch(words):
            return _local(datetime.fromisoformat(words), zone)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{words} is not a valid time: {error}") from None
    raise ValueError(f"{text[:40]!r} is not a time: write {TIMES}")


def range_of(text: str, now: datetime, zone: tzinfo | None = None) -> Span:
    """The range that a text names."""
    words = " ".join(text.split())
    if ".." in words:
        start, _, end = words.partition("..")
        return _checked(Span(time_of(start, now, zone), time_of(end, now, zone)), words)
    named = {"today": "this day", "yesterday": "last day"}.get(words.lower(), words.lower())
    found = _LAST.fullmatch(named)
    if found and not (found[1] == "this" and found[2]):
        count = 0 if found[1] == "this" else int(found[2] or 1)
        return _checked(_whole(found[3], count, now, zone), words)
    try:
        start_day, end_day = _days_of(words)
    except ValueError as error:
        raise ValueError(f"{text[:40]!r} is not a range: {error}") from None
    return Span(_midnight(start_day, zone), _midnight(end_day, zone))


def _checked(span: Span, words: str) -> Span:
    if span.start >= span.end:
        raise ValueError(f"{words!r} is empty: it ends at {utc_text(span.end)}")
    return span


def _whole(unit: str, count: int, now: datetime, zone: tzinfo | None) -> Span:
    """The present unit if `count` is 0, or so many of them before it."""
    here = now.astimezone(zone)
    back, most = (0, 1) if count == 0 else (count, 0)
    if unit == "hour":
        gone = timedelta(minutes=here.minute, seconds=here.second, microseconds=here.microsecond)
        begun = now.astimezone(UTC) - gone  # so that an hour is an hour when clocks change
        return Span(begun - timedelta(hours=back), begun + timedelta(hours=most))
    today = here.date()
    if unit in _MONTHS:
        months = _MONTHS[unit]
        first = today.replace(day=1, month=(today.month - 1) // months * months + 1)
        ends = _months_later(first, -back * months), _months_later(first, most * months)
    else:
        days = 7 if unit == "week" else 1
        first = today - timedelta(days=today.weekday() if unit == "week" else 0)
        ends = first - timedelta(days=back * days), first + timedelta(days=most * days)
    return Span(_midnight(ends[0], zone), _midnight(ends[1], zone))


def _days_of(words: str) -> tuple[date, date]:
    """The first day of a year, quarter, month, week or day, and the day after the last."""
    if _LOCAL.fullmatch(words) and len(words) == len("2026-10-05"):
        day = date.fromisoformat(words)
        return day, day + timedelta(days=1)
    found = _PARTS_OF_A_YEAR.fullmatch(words)
    if found is None:
        raise ValueError(f"write {RANGES}")
    year, quarter, week, month = (None if part is None else int(part) for part in found.groups())
    assert year is not None
    if week is not None:
        day = date.fromisocalendar(year, week, 1)
        return day, day + timedelta(days=7)
    if quarter is not None:
        day = date(year, quarter * 3 - 2, 1)
        return day, _months_later(day, 3)
    day = date(year, 1 if month is None else month, 1)
    return day, _months_later(day, 12 if month is None else 1)


def _months_later(first: date, months: int) -> date:
    """The first day of a month so many months after another."""
    year, month = divmod(first.year * 12 + first.month - 1 + months, 12)
    if not 1 <= year <= 9999:
        raise ValueError("years range from 1 to 9999")
    return date(year, month + 1, 1)


def _midnight(day: date, zone: tzinfo | None) -> datetime:
    return _local(datetime(day.year, day.month, day.day), zone)  # noqa: DTZ001 - zoned right away


def _local(clock: datetime, zone: tzinfo | None) -> datetime:
    """The instant at which clocks show this; the system's clocks if no zone is given."""
    return clock.astimezone() if zone is None else clock.replace(tzinfo=zone)
