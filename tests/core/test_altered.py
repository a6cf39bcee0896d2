"""A value with some fields changed."""

from dataclasses import replace

import pytest

from bursar.core.altered import altered
from bursar.core.ids import GrantId
from bursar.core.ledger.values import Draw, Policy
from bursar.core.refusal import InvariantBroken


def test_only_the_named_fields_change() -> None:
    """As `dataclasses.replace` has it, again and again."""
    draw = Draw(grant=GrantId("g"), drawn=10, charged=4)

    for charged in (5, 6):
        after = altered(draw, charged=charged)
        assert replace(draw, charged=charged) == after
        assert draw == altered(after, charged=4)
    assert draw == altered(draw)


def test_what_follows_from_the_fields_is_worked_out_anew() -> None:
    """It is not copied."""
    narrow = altered(Policy(), regions=frozenset({"eu"}))

    assert Policy(regions=frozenset({"eu"})) == narrow
    assert hash(Policy(regions=frozenset({"eu"}))) == hash(narrow)


def test_a_wrong_value_refuses_to_exist() -> None:
    """However it is made (D7)."""
    draw = Draw(grant=GrantId("g"), drawn=10)

    with pytest.raises(InvariantBroken):
        altered(draw, charged=11)
    with pytest.raises(TypeError):
        altered(draw, unknown=1)
