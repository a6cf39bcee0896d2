"""Amounts of credit, and the one place where money is rounded."""

from typing import Final, TypeAlias

from bursar.core.refusal import invariant

Micros: TypeAlias = int  # micro-credits; one credit is a million of them

CREDIT: Final[Micros] = 1_000_000
AMOUNT_MAX: Final[Micros] = 2**53 - 1  # what JSON, and so every client, can carry exactly
PPM: Final = 1_000_000  # parts per million in a whole

_MILLI_GPU_MS_PER_GPU_HOUR: Final = 1_000 * 3_600_000


def usage_price(rate: Micros, milli_gpus: int, run_ms: int) -> Micros:
    """The price of running `milli_gpus` for `run_ms` in total, at `rate` per GPU-hour.

    Always computed from a total and rounded down once, here. The charge for a stretch is the
    difference of two totals, so the frequency of metering does not change the sum (L14).
    """
    invariant(rate >= 0 and milli_gpus >= 0 and run_ms >= 0, "usage cannot be negative", rate=rate)
    return rate * milli_gpus * run_ms // _MILLI_GPU_MS_PER_GPU_HOUR


def usage_price_up(rate: Micros, milli_gpus: int, run_ms: int) -> Micros:
    """The most that a stretch of `run_ms` can be charged, wherever it begins (B5).

    A charge is the difference of two totals that are rounded down, so it can exceed the price of
    its length by a micro-credit. This is an upper bound; nothing is charged by it.
    """
    return -(-rate * milli_gpus * run_ms // _MILLI_GPU_MS_PER_GPU_HOUR)


def run_ms_for(rate: Micros, milli_gpus: int, amount: Micros) -> int:
    """How long `milli_gpus` can run at `rate` before they cost more than `amount`."""
    invariant(rate > 0 and milli_gpus > 0 and amount >= 0, "no bound to how long", rate=rate)
    return ((amount + 1) * _MILLI_GPU_MS_PER_GPU_HOUR - 1) // (rate * milli_gpus)


def share_of(total: Micros, ppm: int) -> Micros:
    """The most that a source limited to `ppm` parts per million may pay of `total` (L9)."""
    return total * ppm // PPM
