"""Being told to stop by a signal, for programs whose threads wait for that."""

import _thread
import signal
import threading


def told_to_stop() -> threading.Event:
    """An event that SIGINT and SIGTERM set.

    A thread of its own sets it: a handler runs in the main thread, between any two of its
    instructions, and the event's lock may be in that very thread's hands.
    """
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: _thread.start_new_thread(stopped.set, ()))
    return stopped
