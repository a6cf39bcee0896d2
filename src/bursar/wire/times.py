"""Instants as people and programs write them: RFC 3339 in UTC, with microseconds."""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from bursar.core.instant import NEVER, Instant

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_RFC_3339: Final = re.compile(
    r"\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}:\d{2}(\.\d{1,6})?([Zz]|[+-]\d{2}:\d{2})", re.ASCII
)
LATEST: Final[Instant] = (datetime(9999, 12, 31, tzinfo=UTC) - _EPOCH) // _MICROSECOND


def instant_text(at: Instant) -> str | None:
    """Format an instant: `2026-11-15T09:30:00.000000Z`; None for NEVER."""
    if at >= NEVER:
        return None
    moment = _EPOCH + timedelta(microseconds=min(at, LATEST))
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ") if moment.year > 999 else moment.isoformat()


def instant_of(text: str) -> Instant:
    """Parse an instant; `ValueError` if the text is invalid or before 1970."""
    if not isinstance(text, str) or not _RFC_3339.fullmatch(text):
        raise ValueError("expected a time with an offset, such as 2026-11-15T09:30:00Z")
    try:
        at = (datetime.fromisoformat(text.upper()) - _EPOCH) // _MICROSECOND
    except (ValueError, OverflowError) as error:
        raise ValueError(f"there is no such time: {error}") from None
    if not 0 <= at <= LATEST:
        raise ValueError("times are from 1970 to 9999")
    return at
