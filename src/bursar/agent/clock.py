"""The node's running time."""

from bursar.agent.local.kernel import boot_time_us
from bursar.core.instant import Instant


def running_time() -> Instant:
    """Microseconds since the machine booted, time asleep included; this clock is never set.

    The guards use the same clock, so agent and guard agree on instants.
    """
    return boot_time_us()
