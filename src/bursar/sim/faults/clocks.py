"""Clocks of databases and nodes: each differs from the true time of the simulation."""

from bursar.core.instant import SECOND, Instant

BELIEVED_WITHIN: int = 5 * SECOND  # a database's clock is believed while it is off by no more (D5)


class SimulatedClock:
    """A clock that runs at its own rate and can be set forward or back."""

    def __init__(self, at: Instant, shows: Instant, ppm: int = 0) -> None:
        self._at = at
        self._shows = shows
        self._ppm = ppm  # by how much it gains, in millionths
        self._off = 0  # by how much it was put

    def __repr__(self) -> str:
        return f"a clock {self._off / SECOND:+.3f} s"

    def now(self, at: Instant) -> Instant:
        """The time that it shows at a true instant."""
        span = at - self._at
        return self._shows + self._off + span + span * self._ppm // 1_000_000

    def when(self, shown: Instant) -> Instant:
        """The first true instant at which it shows at least this time, unless it is set."""
        span = max(shown - self._shows - self._off, 0)
        guess = self._at + span * 1_000_000 // (1_000_000 + self._ppm)
        while self.now(guess) < shown:
            guess += 1
        return guess

    def set_offset(self, off: int) -> None:
        """Set the clock wrong by this much."""
        self._off = off

    def believed(self, at: Instant) -> Instant | None:
        """The time for a process; None while the clock has jumped too far."""
        return None if abs(self.now(at) - at) > BELIEVED_WITHIN else self.now(at)
