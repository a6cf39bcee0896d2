"""When Python may look for garbage in circles."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


def settle() -> None:
    """Look no more for garbage among what is there now: a process that serves keeps it."""
    gc.collect()
    gc.freeze()


@contextmanager
def gc_paused() -> Iterator[None]:
    """Let nobody look for garbage in circles: books, and what is decided on them, have none.

    Looking through them again and again would take a quarter to a third of the time. What others
    leave behind meanwhile is looked for as soon as this ends. Of threads that do this side by side,
    the one that ends first lets the others be looked at too: so nobody keeps it off for long.
    """
    collects = gc.isenabled()
    if collects:  # or another thread may have switched it on since, and nobody would again
        gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
