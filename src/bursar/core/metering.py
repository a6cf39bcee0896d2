"""Computes usage and its price from cumulative readings.

A reading states how long an attempt has run in total. So a repeated or delayed reading adds
nothing, and the next reading makes up for a lost one (M2). Prices are computed from totals, and a
stretch costs the difference of two totals: the frequency of readings does not change the sum (L14).
"""

from bursar.core.budgets.periods import Window, split
from bursar.core.instant import Instant, whole_ms
from bursar.core.money import Micros, usage_price
from bursar.core.refusal import invariant
from bursar.core.value import replace, value


@value
class Usage:
    """A stretch [from_ms, to_ms) of an attempt; millisecond k begins at `started_at` + k ms."""

    started_at: Instant
    rate: Micros  # per GPU-hour
    milli_gpus: int
    from_ms: int
    to_ms: int

    def __post_init__(self) -> None:
        invariant(
            0 <= self.from_ms <= self.to_ms,
            "usage runs backwards",
            from_ms=self.from_ms,
            to_ms=self.to_ms,
        )

    @property
    def amount(self) -> Micros:
        """The price of the stretch: the price up to its end less the price up to its start."""
        return self._total(self.to_ms) - self._total(self.from_ms)

    def by_period(self, window: Window, since: Instant = 0) -> tuple[tuple[Instant, Micros], ...]:
        """The amount by period: (start, part) for each period with usage, in order (B5).

        The parts add up to `amount` exactly, except for usage before `since`. Periods with a part
        of zero are left out.
        """
        from_ms = max(self.from_ms, whole_ms(since - self.started_at))
        parts = (
            (start, self._total(to_ms) - self._total(from_ms))
            for start, from_ms, to_ms in split(window, self.started_at, from_ms, self.to_ms)
        )
        return tuple((start, part) for start, part in parts if part)

    def _total(self, run_ms: int) -> Micros:
        return usage_price(self.rate, self.milli_gpus, run_ms)


@value
class Meter:
    """The meter of one attempt; GPU type, rate and size are fixed."""

    gpu_type: str
    started_at: Instant
    rate: Micros  # per GPU-hour
    milli_gpus: int
    run_ms: int = 0  # the largest reading so far
    charged: Micros = 0  # the price of `run_ms`
    settled: bool = False

    def __post_init__(self) -> None:
        price = usage_price(self.rate, self.milli_gpus, self.run_ms)
        invariant(
            self.charged == price,
            "a meter has charged something else than its reading costs",
            charged=self.charged,
            price=price,
        )


def usage_since(meter: Meter, run_ms: int) -> Usage | None:
    """The usage that a total of `run_ms` adds; None if it adds nothing."""
    return _stretch(meter, meter.run_ms, run_ms) if run_ms > meter.run_ms else None


def advance(meter: Meter, run_ms: int) -> Meter:
    """The meter after a reading of `run_ms` in total; it never goes back."""
    return _showing(meter, run_ms) if run_ms > meter.run_ms else meter


def rewind(meter: Meter, kept_ms: int) -> tuple[Meter, Usage]:
    """The meter as if the attempt had run only `kept_ms`, and the usage that this undoes (M3).

    `kept_ms` is the run time at the last checkpoint. A value beyond the last reading undoes
    nothing.
    """
    kept_ms = min(kept_ms, meter.run_ms)
    return _showing(meter, kept_ms), _stretch(meter, kept_ms, meter.run_ms)


def _showing(meter: Meter, run_ms: int) -> Meter:
    charged = usage_price(meter.rate, meter.milli_gpus, run_ms)
    return replace(meter, run_ms=run_ms, charged=charged)


def _stretch(meter: Meter, from_ms: int, to_ms: int) -> Usage:
    return Usage(
        started_at=meter.started_at,
        rate=meter.rate,
        milli_gpus=meter.milli_gpus,
        from_ms=from_ms,
        to_ms=to_ms,
    )
