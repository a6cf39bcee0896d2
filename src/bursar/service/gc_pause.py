"""When Python's cyclic garbage collector runs."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

# A full collection scans all books in memory, for 100 ms with 1,000 orgs, and all requests wait
# meanwhile. It finds nothing: the cycles that requests leave are collected young. Under full load
# this many collections of the middle generation take some minutes. Python's default is 10.
MIDDLE_COLLECTIONS: Final = 1_000  # before a full one


def settle() -> None:
    """Prepare a process for serving: it collects none of its existing objects, and seldom all."""
    gc.collect()
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, MIDDLE_COLLECTIONS)


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
