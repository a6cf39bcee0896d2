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
_DURATION_MAX_S: Final = 100 * 366 * 86_400

_LOCAL_TIME: Final = re.compile(
    r"\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d{1,6})?)?)?", re.A
)
_TIME_WITH_OFFSET: Final = re.compile(
    _LOCAL_TIME.pattern + r"(?:Z|[+-]\d{2}:\d{2})", re.ASCII | re.IGNORECASE
)
_RELATIVE_RANGE: Final = re.compile(
    r"(this|last)(?: ([1-9]\d{0,3}))? (hour|day|week|month|quarter|year)s?", re.A
)
_CALENDAR_RANGE: Final = re.compile(r"(\d{4})(?:-(?:Q([1-4])|W(\d{2})|(\d{2})))?", re.A | re.I)
_MONTHS: Final = {"month": 1, "quarter": 3, "year": 12}

TIMES: Final = "2026-10-05, '2026-10-05 14:30', 2026-10-05T12:30:00Z, now, today, or '2h ago'"
RANGES: Final = (
    "today, yesterday, 'this week', 'last month', 'last 7 days', 2026-10, 2026-10-05, 2026-W41,"
    " 2026-Q4, 2026, or 2026-10-01..2026-10-15"
)


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """A time span [start, end)."""

    start: datetime
    end: datetime


def parse_duration(text: str) -> int:
    """Parse a duration such as `90d`, `36h` or `1h30m` into seconds; a day has 24 hours."""
    text = text.strip()
    if not _DURATION.fullmatch(text):
        raise ValueError(f"{text[:40]!r} is not a duration: write 90d, 36h, 15m, 30s or 1h30m")
    seconds = sum(int(count) * _SECONDS[unit] for count, unit in _PART.findall(text))
    if seconds > _DURATION_MAX_S:
        raise ValueError(f"{text[:40]} is too long: the maximum is 100 years")
    return seconds


def format_duration(seconds: int) -> str:
    """A duration in days, hours, minutes and seconds, without zero parts: `1h30m`."""
    parts: list[str] = []
    for unit in "dhms":
        count, seconds = divmod(seconds, _SECONDS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def format_utc(at: datetime) -> str:
    """A time in the format of the API."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def format_local(text: str, zone: tzinfo | None = None) -> str:
    """A time of the API in the local zone, with the zone's name."""
    return f"{datetime.fromisoformat(text).astimezone(zone):%Y-%m-%d %H:%M:%S %Z}"


def parse_time(text: str, now: datetime, zone: tzinfo | None = None) -> datetime:
    """Parse a time. Without an offset it is in the local zone."""
    words = text.strip()
    if words == "now":
        return now
    if words == "today":
        return parse_range("today", now, zone).start
    if words.endswith(" ago"):
        return now - timedelta(seconds=parse_duration(words.removesuffix(" ago")))
    try:
        if _TIME_WITH_OFFSET.fullmatch(words):
            return datetime.fromisoformat(words.upper())
        if _LOCAL_TIME.fullmatch(words):
            return _localize(datetime.fromisoformat(words), zone)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{words} is not a valid time: {error}") from None
    raise ValueError(f"{text[:40]!r} is not a time: write {TIMES}")


def parse_range(text: str, now: datetime, zone: tzinfo | None = None) -> TimeSpan:
    """Parse a range such as `last 7 days`, `2026-10` or `2026-10-01..2026-10-15`."""
    words = " ".join(text.split())
    if ".." in words:
        start, _, end = words.partition("..")
        return _require_nonempty(
            TimeSpan(parse_time(start, now, zone), parse_time(end, now, zone)), words
        )
    relative = {"today": "this day", "yesterday": "last day"}.get(words.lower(), words.lower())
    match = _RELATIVE_RANGE.fullmatch(relative)
    if match and not (match[1] == "this" and match[2]):
        count = 0 if match[1] == "this" else int(match[2] or 1)
        return _require_nonempty(_whole_units(match[3], count, now, zone), words)
    try:
        start_day, end_day = _parse_days(words)
    except ValueError as error:
        raise ValueError(f"{text[:40]!r} is not a range: {error}") from None
    return TimeSpan(_midnight(start_day, zone), _midnight(end_day, zone))


def _require_nonempty(span: TimeSpan, words: str) -> TimeSpan:
    if span.start >= span.end:
        raise ValueError(f"{words!r} is empty: it ends at {format_utc(span.end)}")
    return span


def _whole_units(unit: str, count: int, now: datetime, zone: tzinfo | None) -> TimeSpan:
    """The current unit if `count` is 0, else the `count` units before it."""
    local_now = now.astimezone(zone)
    units_back, units_ahead = (0, 1) if count == 0 else (count, 0)
    if unit == "hour":
        elapsed = timedelta(
            minutes=local_now.minute, seconds=local_now.second, microseconds=local_now.microsecond
        )
        hour_start = (
            now.astimezone(UTC) - elapsed
        )  # in UTC, because local clocks may change within the hour
        return TimeSpan(
            hour_start - timedelta(hours=units_back), hour_start + timedelta(hours=units_ahead)
        )
    today = local_now.date()
    if unit in _MONTHS:
        months = _MONTHS[unit]
        first = today.replace(day=1, month=(today.month - 1) // months * months + 1)
        ends = _add_months(first, -units_back * months), _add_months(first, units_ahead * months)
    else:
        days = 7 if unit == "week" else 1
        first = today - timedelta(days=today.weekday() if unit == "week" else 0)
        ends = first - timedelta(days=units_back * days), first + timedelta(days=units_ahead * days)
    return TimeSpan(_midnight(ends[0], zone), _midnight(ends[1], zone))


def _parse_days(words: str) -> tuple[date, date]:
    """The first day of a year, quarter, month, week or day, and the day after its last day."""
    if _LOCAL_TIME.fullmatch(words) and len(words) == len("2026-10-05"):
        day = date.fromisoformat(words)
        return day, day + timedelta(days=1)
    match = _CALENDAR_RANGE.fullmatch(words)
    if match is None:
        raise ValueError(f"write {RANGES}")
    year, quarter, week, month = (None if part is None else int(part) for part in match.groups())
    assert year is not None
    if week is not None:
        day = date.fromisocalendar(year, week, 1)
        return day, day + timedelta(days=7)
    if quarter is not None:
        day = date(year, quarter * 3 - 2, 1)
        return day, _add_months(day, 3)
    day = date(year, 1 if month is None else month, 1)
    return day, _add_months(day, 12 if month is None else 1)


def _add_months(first: date, months: int) -> date:
    """The first day of the month that is `months` later."""
    year, month = divmod(first.year * 12 + first.month - 1 + months, 12)
    if not 1 <= year <= 9999:
        raise ValueError("years range from 1 to 9999")
    return date(year, month + 1, 1)


def _midnight(day: date, zone: tzinfo | None) -> datetime:
    return _localize(datetime(day.year, day.month, day.day), zone)  # noqa: DTZ001 - zoned right away


def _localize(clock: datetime, zone: tzinfo | None) -> datetime:
    """Add a zone to a clock time: the system's if `zone` is None."""
    return clock.astimezone() if zone is None else clock.replace(tzinfo=zone)
