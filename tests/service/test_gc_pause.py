"""Garbage is looked for when no batch is on its way, and always is again."""

import gc

import pytest

from bursar.service.gc_pause import MIDDLE_COLLECTIONS, gc_paused, settle


def test_garbage_collection_is_off_during_a_pause() -> None:
    """Nor when one is in another; whoever began it ends it."""
    with gc_paused():
        with gc_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()

    assert gc.isenabled()


def test_the_first_of_two_overlapping_pauses_to_end_switches_collection_on() -> None:
    """So it is never off for longer than one of them takes."""
    first, second = gc_paused(), gc_paused()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert gc.isenabled()

    second.__exit__(None, None, None)
    assert gc.isenabled()


def test_a_pause_that_begins_with_collection_off_leaves_it_unchanged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another thread may have switched it on right after the look: it must not stay off then."""
    is_on = gc.isenabled
    monkeypatch.setattr(gc, "isenabled", lambda: False)
    with gc_paused():
        assert is_on()

    assert is_on()


def test_a_serving_process_seldom_collects_everything() -> None:
    """Full collections would go through all books, and every request would wait."""
    before = gc.get_threshold()
    try:
        settle()

        assert (*before[:2], MIDDLE_COLLECTIONS) == gc.get_threshold()
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
