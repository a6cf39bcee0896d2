"""Ctrl-C: the first one always reaches a command, the second one ends it at once.

Python alone guarantees neither, because its handler runs in the main thread, between two
instructions:

- A signal that arrives just before the main thread blocks in the kernel interrupts nothing. Its
  handler waits until the blocked call returns.
- A `KeyboardInterrupt` that is raised inside a destructor, inside the callback of a weak reference
  (each import runs one) or under a wide `except` is dropped, and the command goes on.

Here a thread watches as well. The part of a signal handler that runs in C writes a byte to a pipe,
whatever the main thread is doing. The thread reads it, and repeats the interrupt until the main
thread handles it.
"""

import _thread
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

INTERRUPTED: Final = 130  # exit status of a command that Ctrl-C ended
REPEAT_INTERVAL_S: Final = 0.2
_WAKE: Final = signal.SIGURG  # makes a blocked call return, and has no other effect


@contextmanager
def watch_interrupts() -> Iterator[None]:
    """Make Ctrl-C reliable in this process; afterwards the process must end.

    A command that installs its own handler for SIGINT keeps it. The watch then only makes sure
    that the handler runs, and that the second Ctrl-C ends the process.

    A shell starts background jobs with SIGINT ignored. Such a process keeps ignoring it.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    receiver, sender = os.pipe()
    os.set_blocking(sender, False)
    watch = _InterruptWatch(receiver)
    signal.signal(_WAKE, lambda *_: None)
    signal.signal(signal.SIGINT, watch.interrupt)
    signal.set_wakeup_fd(sender, warn_on_full_buffer=False)
    os.register_at_fork(after_in_child=watch.leave_to_parent)
    threading.Thread(target=watch.run, name="interrupts", daemon=True).start()
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)


class _InterruptWatch:
    """Reads the signals of a process, and repeats an interrupt until it is handled."""

    def __init__(self, receiver: int) -> None:
        self._receiver = receiver
        self._main = threading.get_ident()
        self._presses = 0
        self._echoes = 0  # bytes on their way that our own repeats wrote

    def interrupt(self, _number: int, _frame: FrameType | None) -> None:
        """Handle SIGINT, in the main thread."""
        raise KeyboardInterrupt

    def run(self) -> None:
        """Watch until the process ends, in a thread."""
        while True:
            wait_s = REPEAT_INTERVAL_S if self._presses else None
            if select.select([self._receiver], [], [], wait_s)[0]:
                self._count(os.read(self._receiver, 512))
            else:
                self._repeat()

    def leave_to_parent(self) -> None:
        """Give the pipe up in a forked process: its signals are not the parent's."""
        signal.set_wakeup_fd(-1)
        if signal.getsignal(signal.SIGINT) == self.interrupt:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _count(self, numbers: bytes) -> None:
        interrupts = numbers.count(signal.SIGINT)
        echoes = min(self._echoes, interrupts)
        self._echoes -= echoes
        self._presses += interrupts - echoes
        if self._presses > 1:
            os._exit(INTERRUPTED)

    def _repeat(self) -> None:
        if signal.getsignal(signal.SIGINT) == self.interrupt and not self._is_handled():
            self._echoes += 1
            _thread.interrupt_main()
        signal.pthread_kill(self._main, _WAKE)

    def _is_handled(self) -> bool:
        """Whether the main thread is in an `except`, `finally` or `with` because of an interrupt.

        Cleaning up may take a while, and a repeated interrupt would break it off.
        """
        # A tuple until Python 3.11, the exception itself from 3.12 on.
        current: Any = sys._current_exceptions().get(self._main)
        error: BaseException | None = current[1] if isinstance(current, tuple) else current
        while error is not None and not isinstance(error, KeyboardInterrupt):
            error = error.__context__
        return error is not None
