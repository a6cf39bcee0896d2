"""Stops a program on SIGINT and SIGTERM."""

import _thread
import signal
import threading


def stop_event_on_signals() -> threading.Event:
    """Return an event that SIGINT and SIGTERM set.

    A new thread sets the event. The signal handler runs in the main thread, which may hold the
    event's lock at that moment.
    """
    stop_event = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: _thread.start_new_thread(stop_event.set, ()))
    return stop_event
