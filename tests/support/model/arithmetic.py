"""Time and money, written a second time."""

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from bursar.core.budgets.periods import PeriodKind
from bursar.core.instant import Instant
from tests.support.model.values import MILLION


def price(rate: int, milli_gpus: int, run_ms: int) -> int:
    """What it costs to run that long in all."""
    return rate * milli_gpus * run_ms // (1000 * 3_600_000)


def begun_ms(span: int) -> int:
    """How many milliseconds have begun after `span` microseconds."""
    return (span + 999) // 1000 if span > 0 else 0


def midnight(zone: str, day: date) -> Instant:
    """When `day` begins in `zone`; for zones whose clocks never change at midnight."""
    begins = datetime(day.year, day.month, day.day, tzinfo=ZoneInfo(zone))
    return (begins - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


@lru_cache(maxsize=1000)
def calendar_period(every: PeriodKind, zone: str, at: Instant) -> tuple[Instant, Instant]:
    """Start and end of the day, ISO week or month in which `at` lies."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at)
    first = moment.astimezone(ZoneInfo(zone)).date()
    if every == PeriodKind.DAY:
        after = first + timedelta(days=1)
    elif every == PeriodKind.WEEK:
        first = first - timedelta(days=first.isoweekday() - 1)
        after = first + timedelta(days=7)
    else:
        first = first.replace(day=1)
        after = (first + timedelta(days=32)).replace(day=1)
    return midnight(zone, first), midnight(zone, after)


def largest_carried(parts: Sequence[tuple[int, int]]) -> int:
    """The largest amount of which grants, each with (available, share in ppm), can pay all.

    If shares were not rounded, all amounts up to a bound could be paid, which is found by halving.
    From there on down, of an amount that cannot be paid no more than what can be paid of it is.
    """
    low, high = 0, sum(available for available, _ in parts)
    while low < high:
        middle = (low + high + 1) // 2
        if middle * MILLION <= sum(min(have * MILLION, ppm * middle) for have, ppm in parts):
            low = middle
        else:
            high = middle - 1
    while (paid := sum(min(have, ppm * low // MILLION) for have, ppm in parts)) < low:
        low = paid
    return low
