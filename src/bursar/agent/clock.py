"""The node's running time."""

import time

from bursar.core.instant import Instant


def running_time() -> Instant:
    """Microseconds since the machine was started; they pass while it sleeps and are never put."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000
