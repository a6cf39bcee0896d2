"""Garbage is looked for when no batch is on its way, and always is again."""

import gc

import pytest

from bursar.service.gc_pause import gc_paused


def test_nobody_looks_for_garbage_meanwhile() -> None:
    """Nor when one is in another; whoever began it ends it."""
    with gc_paused():
        with gc_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()

    assert gc.isenabled()


def test_of_two_side_by_side_the_first_to_end_switches_it_on() -> None:
    """So it is never off for longer than one of them takes."""
    first, second = gc_paused(), gc_paused()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert gc.isenabled()

    second.__exit__(None, None, None)
    assert gc.isenabled()


def test_who_found_it_off_leaves_it_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may have switched it on right after the look: it must not stay off then."""
    is_on = gc.isenabled
    monkeypatch.setattr(gc, "isenabled", lambda: False)
    with gc_paused():
        assert is_on()

    assert is_on()
