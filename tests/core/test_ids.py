"""Ids that follow from others are the same on every replay."""

from itertools import product

from bursar.core.ids import derived_id


def test_a_derived_id_is_the_same_forever() -> None:
    """A ledger that is rebuilt years later names what follows alike (L1)."""
    assert "3ebf6e01-9171-5e66-88fa-5a1bd212cad4" == derived_id("hold-1", "attempt-1")


def test_derived_ids_differ_by_parent_and_by_label() -> None:
    """Two things never share a derived id."""
    ids = {derived_id(parent, label) for parent, label in product("abc", "xyz")}

    assert 9 == len(ids)
