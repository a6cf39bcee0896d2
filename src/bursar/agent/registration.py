"""Telling the pool that a node is there, until it knows."""

import logging
import threading
from collections.abc import Callable
from typing import Final

from bursar.client import Problem

WAIT_FIRST_S: Final = 0.5
WAIT_MOST_S: Final = 10.0
UNKNOWN_TRIES: Final = 5  # before it is believed that there is no such pool

_log = logging.getLogger("bursar.agent")


def registered(register: Callable[[], None], stopped: threading.Event) -> bool:
    """Register; False if told to stop before. Raises `Problem` if waiting would not help.

    What runs already is ended by its guard in time, so there is no hurry. A pool that was begun a
    moment ago is not known to every process of the service yet: that there is none is believed
    when it was said several times.
    """
    wait_s, unknown = WAIT_FIRST_S, 0
    while not stopped.is_set():
        try:
            register()
            return True
        except Problem as error:
            unknown += error.status == 404
            final = 400 <= error.status < 500 and error.status not in (404, 408, 429)
            if final or unknown == UNKNOWN_TRIES:
                raise
            _log.warning("the node cannot be registered yet: %s", error)
        stopped.wait(wait_s)
        wait_s = min(wait_s * 2, WAIT_MOST_S)
    return False
