"""What becomes of an org's jobs does not depend on which commands share a transaction."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.job_histories import LENGTH, random_history, run_in_batches

FEW = settings(settings(), max_examples=max(settings().max_examples // 5, 10))


@pytest.mark.property
@FEW
@given(seed=st.integers(0, 2**32), cuts=st.sets(st.integers(1, LENGTH)))
def test_any_batches_of_the_same_commands_have_the_same_events(seed: int, cuts: set[int]) -> None:
    """Results of identical jobs, their prices, arrays and their figures included (IL24, S13)."""
    history = random_history(Random(seed))
    alone, together = run_in_batches(history, set()), run_in_batches(history, {LENGTH * 2, *cuts})

    for place, (expected, actual) in enumerate(zip(alone.events, together.events, strict=False)):
        assert expected == actual, f"event {place}"
    assert alone == together
