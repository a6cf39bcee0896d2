"""Amounts, durations, times and ranges as people type them."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bursar.cli.amounts import format_credits, parse_amount
from bursar.cli.ranges import (
    format_duration,
    format_local,
    format_utc,
    parse_duration,
    parse_range,
    parse_time,
)
from bursar.core.money import AMOUNT_MAX, CREDIT

BERLIN = ZoneInfo("Europe/Berlin")
NOW = datetime(2026, 11, 18, 14, 35, 12, tzinfo=UTC)  # a Wednesday, 15:35 in Berlin

amounts = st.integers(0, AMOUNT_MAX)


# Amounts


@given(amounts)
@example(1)
@example(AMOUNT_MAX)
def test_printed_amount_can_be_parsed(micros: int) -> None:
    """Exactly, to the micro-credit, in credits with and without their unit, and in micros."""
    shown = format_credits(micros).replace(",", "")

    assert micros == parse_amount(shown)
    assert micros == parse_amount(shown.removesuffix(" cr"))
    assert micros == parse_amount(f"{micros}u")


@given(st.integers(0, AMOUNT_MAX // CREDIT - 1), st.text("0123456789", min_size=1, max_size=6))
def test_decimals_have_their_place_value(whole: int, decimals: str) -> None:
    """Each decimal is a tenth of the one before it; no float is asked."""
    want = whole * CREDIT + sum(
        int(digit) * 10 ** (5 - place) for place, digit in enumerate(decimals)
    )

    assert want == parse_amount(f"{whole}.{decimals}")


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("12.5", 12_500_000),
        ("12500000u", 12_500_000),
        ("0", 0),
        ("0.000001", 1),
        ("0.1", 100_000),
        ("9007199254.740991", AMOUNT_MAX),
        ("7 cr", 7_000_000),
        ("7cr", 7_000_000),
    ],
)
def test_amounts_are_parsed(text: str, micros: int) -> None:
    assert micros == parse_amount(text)


@pytest.mark.parametrize(
    "text",
    [
        *("", "-1", "+1", "1e3", "1,5", "1.000,5", "1_000", "0.0000001", ".5", "5.", "1.5u", "u"),
        *("²", "NaN", "inf", "0x10", "1 000", "٣", "9" * 50),
    ],
)
def test_invalid_amount_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not an amount: .*12\.5.*12500000u"):
        parse_amount(text)


@pytest.mark.parametrize("text", ["9007199254.740992", f"{AMOUNT_MAX + 1}u"])
def test_amount_above_the_maximum_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is too large"):
        parse_amount(text)


@pytest.mark.parametrize(
    ("micros", "text"),
    [
        (0, "0.00 cr"),
        (1, "0.000001 cr"),
        (1_250_500_000, "1,250.50 cr"),
        (-2_000_000, "-2.00 cr"),
    ],
)
def test_amounts_are_shown_exactly(micros: int, text: str) -> None:
    assert text == format_credits(micros)


# Durations


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90d", 7_776_000),
        ("36h", 129_600),
        ("15m", 900),
        ("30s", 30),
        ("1h30m", 5_400),
        ("2w", 1_209_600),
    ],
)
def test_durations_are_parsed(text: str, seconds: int) -> None:
    assert seconds == parse_duration(text)


@given(st.integers(1, 10**9))
def test_printed_duration_can_be_parsed(seconds: int) -> None:
    assert seconds == parse_duration(format_duration(seconds))


@pytest.mark.parametrize("text", ["", "5", "1.5h", "h", "-1d", "1y", "1h 30m", "9999999999d"])
def test_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(text)


def test_duration_has_a_maximum() -> None:
    with pytest.raises(ValueError, match="too long"):
        parse_duration("999999999w")


# Times


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("now", "2026-11-18T14:35:12.000000Z"),
        ("2h ago", "2026-11-18T12:35:12.000000Z"),
        ("today", "2026-11-17T23:00:00.000000Z"),
        ("2026-10-05", "2026-10-04T22:00:00.000000Z"),  # summer
        ("2026-12-05", "2026-12-04T23:00:00.000000Z"),  # winter
        ("2026-10-05 14:30", "2026-10-05T12:30:00.000000Z"),
        ("2026-10-05T14:30:01.25", "2026-10-05T12:30:01.250000Z"),
        ("2026-10-05T12:30:00Z", "2026-10-05T12:30:00.000000Z"),
        ("2026-10-05t12:30:00z", "2026-10-05T12:30:00.000000Z"),
        ("2026-10-05T12:30:00-05:00", "2026-10-05T17:30:00.000000Z"),
    ],
)
def test_times_without_an_offset_are_local(text: str, want: str) -> None:
    assert want == format_utc(parse_time(text, NOW, BERLIN))


@pytest.mark.parametrize(
    "text", ["", "tomorrowish", "2026-13-01", "2026-02-30", "12:30", "20261005", "1759660200"]
)
def test_invalid_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a (valid )?time"):
        parse_time(text, NOW, BERLIN)


def test_time_is_printed_in_the_local_zone() -> None:
    assert "2026-10-05 14:30:00 CEST" == format_local("2026-10-05T12:30:00.000000Z", BERLIN)


# Ranges


@pytest.mark.parametrize(
    ("text", "start", "end"),
    [
        ("today", "2026-11-18", "2026-11-19"),
        ("yesterday", "2026-11-17", "2026-11-18"),
        ("this week", "2026-11-16", "2026-11-23"),
        ("last week", "2026-11-09", "2026-11-16"),
        ("this month", "2026-11-01", "2026-12-01"),
        ("last month", "2026-10-01", "2026-11-01"),
        ("Last  Month", "2026-10-01", "2026-11-01"),
        ("last 3 months", "2026-08-01", "2026-11-01"),
        ("last 12 months", "2025-11-01", "2026-11-01"),
        ("last 7 days", "2026-11-11", "2026-11-18"),
        ("last day", "2026-11-17", "2026-11-18"),
        ("last 2 weeks", "2026-11-02", "2026-11-16"),
        ("this quarter", "2026-10-01", "2027-01-01"),
        ("last quarter", "2026-07-01", "2026-10-01"),
        ("this year", "2026-01-01", "2027-01-01"),
        ("last year", "2025-01-01", "2026-01-01"),
        ("2026", "2026-01-01", "2027-01-01"),
        ("2026-10", "2026-10-01", "2026-11-01"),
        ("2026-12", "2026-12-01", "2027-01-01"),
        ("2026-10-05", "2026-10-05", "2026-10-06"),
        ("2026-Q4", "2026-10-01", "2027-01-01"),
        ("2026-W41", "2026-10-05", "2026-10-12"),
        ("2026-10-01..2026-10-15", "2026-10-01", "2026-10-15"),
    ],
)
def test_ranges_are_whole_and_half_open(text: str, start: str, end: str) -> None:
    """From midnight to midnight in the local zone, whatever its clocks do in between."""
    found = parse_range(text, NOW, BERLIN)

    assert parse_time(start, NOW, BERLIN) == found.start
    assert parse_time(end, NOW, BERLIN) == found.end


def test_an_hour_is_an_hour_when_clocks_change() -> None:
    """In the night of 25 October clocks in Berlin show 02:30 twice."""
    now = datetime(2026, 10, 25, 1, 30, tzinfo=UTC)  # the second time
    found = parse_range("last 3 hours", now, BERLIN)

    assert timedelta(hours=3) == found.end - found.start
    assert datetime(2026, 10, 25, 1, tzinfo=UTC) == found.end


def test_a_day_on_which_clocks_change_is_longer() -> None:
    found = parse_range("2026-10-25", NOW, BERLIN)

    assert timedelta(hours=25) == found.end.astimezone(UTC) - found.start.astimezone(UTC)


def test_the_last_month_of_january_is_december() -> None:
    found = parse_range("last month", datetime(2027, 1, 31, 12, tzinfo=UTC), UTC)

    assert (datetime(2026, 12, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC)) == (
        found.start,
        found.end,
    )


@pytest.mark.parametrize(
    "text",
    [
        *("", "month", "this 3 months", "next week", "2026-13", "2026-W60", "2026-Q5", "20-10"),
        *("last 0 days", "last 00 days"),
        *("2026-10-15..2026-10-01", "2026-10-01..2026-10-01", "..", "last 9999 years"),
    ],
)
def test_invalid_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a (range|time)|is empty|years range from"):
        parse_range(text, NOW, BERLIN)
