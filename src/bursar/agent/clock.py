"""The node's running time."""

from bursar.agent.local.kernel import now
from bursar.core.instant import Instant


def running_time() -> Instant:
    """Microseconds since the machine was started; they pass while it sleeps and are never put.

    The clock of the guards: an instant means the same to both.
    """
    return now()
