"""A quantity that changes in steps over time."""

from bursar.core.instant import Instant


class TimeIntegral:
    """A quantity, and its integral over time."""

    def __init__(self, at: Instant) -> None:
        self.level = 0
        self._area = 0
        self._since = at

    def change(self, by: int, now: Instant) -> None:
        """Change the quantity."""
        self._area = self.until(now)
        self._since = now
        self.level += by

    def until(self, now: Instant) -> int:
        """The integral so far, in units times microseconds."""
        return self._area + self.level * (now - self._since)
