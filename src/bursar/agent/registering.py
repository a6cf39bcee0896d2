"""Telling the pool that a node is there, until it knows."""

import logging
import threading
from collections.abc import Callable
from typing import Final

from bursar.client import Problem

WAIT_FIRST_S: Final = 0.5
WAIT_MOST_S: Final = 10.0

_log = logging.getLogger("bursar.agent")


def registered(register: Callable[[], None], stopped: threading.Event) -> bool:
    """Register; False if told to stop before. Raises `Problem` if waiting would not help.

    What runs already is ended by its guard in time, so there is no hurry.
    """
    wait_s = WAIT_FIRST_S
    while not stopped.is_set():
        try:
            register()
            return True
        except Problem as error:
            if 400 <= error.status < 500 and error.status not in (408, 429):
                raise
            _log.warning("the node cannot be registered yet: %s", error)
        stopped.wait(wait_s)
        wait_s = min(wait_s * 2, WAIT_MOST_S)
    return False
