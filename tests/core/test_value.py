"""Values: equal by their fields, never changed, copied with some fields changed."""

import dataclasses
import pickle
from copy import copy, deepcopy
from typing import TYPE_CHECKING

import pytest

from bursar.core.budgets.periods import PeriodKind, Window, period_at
from bursar.core.ids import GrantId, PriceVersionId
from bursar.core.ledger.values import Draw, GrantPolicy
from bursar.core.pricing import PriceVersion, Rate
from bursar.core.refusal import InvariantBroken
from bursar.core.value import replace

if TYPE_CHECKING:
    # Without an error to be ignored here, the type checker would complain of that.
    Draw(grant=GrantId("g")).drawn = 1  # type: ignore[misc]


def test_equal_fields_make_equal_values() -> None:
    """And equal hashes, so that they can be keys; another class with the same fields differs."""
    assert Draw(grant=GrantId("g"), drawn=1) == Draw(grant=GrantId("g"), drawn=1)
    assert 1 == len({Draw(grant=GrantId("g")), Draw(grant=GrantId("g"))})
    assert Draw(grant=GrantId("g")) != Draw(grant=GrantId("h"))
    assert not hasattr(Draw(grant=GrantId("g")), "__dict__")


def test_only_the_named_fields_change() -> None:
    """As `dataclasses.replace` has it, again and again."""
    draw = Draw(grant=GrantId("g"), drawn=10, charged=4)

    for charged in (5, 6):
        after = replace(draw, charged=charged)
        assert dataclasses.replace(draw, charged=charged) == after
        assert draw == replace(after, charged=4)
    assert draw == replace(draw)


def test_derived_values_are_computed_again_for_a_copy() -> None:
    """They are not copied."""
    narrow = replace(GrantPolicy(), regions=frozenset({"eu"}))

    assert GrantPolicy(regions=frozenset({"eu"})) == narrow
    assert hash(GrantPolicy(regions=frozenset({"eu"}))) == hash(narrow)


def test_a_wrong_value_refuses_to_exist() -> None:
    """However it is made (D7)."""
    draw = Draw(grant=GrantId("g"), drawn=10)

    with pytest.raises(InvariantBroken):
        replace(draw, charged=11)
    with pytest.raises(TypeError):
        replace(draw, unknown=1)


@pytest.mark.parametrize(
    "value",
    [
        GrantPolicy(regions=frozenset({"eu"})),
        Window(every=PeriodKind.DAY, time_zone="Asia/Tokyo"),
        PriceVersion(
            id=PriceVersionId("v"),
            effective_at=5,
            rates=(Rate(gpu_type="h100", micros_per_gpu_hour=7),),
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_that_remembers_can_be_copied(value: object) -> None:
    """The copy works out anew what it remembers."""
    for again in (copy(value), deepcopy(value), pickle.loads(pickle.dumps(value))):
        assert value == again
        assert hash(value) == hash(again)
    if isinstance(value, Window):
        assert period_at(value, 0) == period_at(copy(value), 0)
    if isinstance(value, PriceVersion):
        assert 7 == copy(value).rate_for(("h100", None, None, None))
