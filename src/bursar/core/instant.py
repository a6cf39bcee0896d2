"""Points in time and spans between them, as integers."""

from typing import Final, TypeAlias

Instant: TypeAlias = int  # microseconds since 1970-01-01T00:00:00Z

MILLISECOND: Final = 1_000
SECOND: Final = 1_000 * MILLISECOND
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
NEVER: Final[Instant] = 2**63 - 1  # the end of what has no end


def whole_ms(span: int) -> int:
    """The number of milliseconds in `span` microseconds, rounded up; at least 0."""
    return -(-max(span, 0) // MILLISECOND)
