"""Registers a node with its pool, with retries."""

import logging
import threading
from collections.abc import Callable
from typing import Final

from bursar.client import Problem

WAIT_FIRST_S: Final = 0.5
WAIT_MAX_S: Final = 10.0
UNKNOWN_POOL_TRIES: Final = 5  # a new pool is unknown to some service processes for a moment

_log = logging.getLogger("bursar.agent")


def register_node(register: Callable[[], None], stop_event: threading.Event) -> bool:
    """Retry `register` until it succeeds, or return False when the event is set.

    Raises `Problem` if a retry cannot help. Guards end running processes in time, so waiting does
    no harm.
    """
    wait_s, unknown_answers = WAIT_FIRST_S, 0
    while not stop_event.is_set():
        try:
            register()
            return True
        except Problem as error:
            unknown_answers += error.status == 404
            is_final = 400 <= error.status < 500 and error.status not in (404, 408, 429)
            if is_final or unknown_answers == UNKNOWN_POOL_TRIES:
                raise
            _log.warning("the node cannot be registered now: %s", error)
        stop_event.wait(wait_s)
        wait_s = min(wait_s * 2, WAIT_MAX_S)
    return False
