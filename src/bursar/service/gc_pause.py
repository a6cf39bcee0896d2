"""When Python's cyclic garbage collector runs."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


def settle() -> None:
    """Exclude all existing objects from garbage collection: a serving process keeps them."""
    gc.collect()
    gc.freeze()


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause the cyclic garbage collector: books and decisions contain no reference cycles.

    Scanning them would take a quarter to a third of the time. Cycles that other threads leave
    meanwhile are collected after the pause. When threads overlap, the first one to finish ends the
    pause for all, so the collector is never off for long.
    """
    collects = gc.isenabled()
    if collects:  # otherwise another thread has paused it, and enables it again
        gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
