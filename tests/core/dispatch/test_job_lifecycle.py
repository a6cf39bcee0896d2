"""A job's life is one table (IM6)."""

import pytest

from bursar.core.dispatch.job_lifecycle import (
    END_CLASSES,
    FINISHED,
    LIVE,
    TRANSITIONS,
    WAITING,
    JobState,
    next_state,
)
from bursar.core.messages import Cause
from bursar.core.refusal import InvariantBroken
from tools.life import PAGE, draw_diagram, insert_diagram


def test_every_step_of_the_table_can_be_taken() -> None:
    assert list(TRANSITIONS.values()) == [next_state(state, why) for state, why in TRANSITIONS]


@pytest.mark.parametrize("state", JobState)
@pytest.mark.parametrize("why", Cause)
def test_no_other_step_can(state: JobState, why: Cause) -> None:
    """A step that is not in the table is a bug, not a new state."""
    if (state, why) not in TRANSITIONS:
        with pytest.raises(InvariantBroken, match="cannot take this step"):
            next_state(state, why)


def test_nothing_leads_out_of_an_end() -> None:
    """So an end is accepted once."""
    assert frozenset(JobState) == WAITING | LIVE | FINISHED
    assert FINISHED.isdisjoint(state for state, _ in TRANSITIONS)
    assert FINISHED == frozenset(TRANSITIONS.values()) - {state for state, _ in TRANSITIONS}


def test_each_state_is_reached_from_a_queue() -> None:
    reached = {JobState.QUEUED}
    for _ in JobState:
        reached |= {to for (state, _), to in TRANSITIONS.items() if state in reached}

    assert set(JobState) == reached


def test_all_that_ends_an_attempt_or_a_wait_has_a_class() -> None:
    """But giving up: that is a lost or preempted attempt's own class (M3)."""
    ends = {why for (state, why), to in TRANSITIONS.items() if state in LIVE and to not in LIVE}

    assert ends | {Cause.HOLD_ENDED} == END_CLASSES.keys() | {Cause.GIVEN_UP}


def test_the_diagram_in_the_documents_is_drawn_from_the_table() -> None:
    """`python -m tools.life --write` draws it anew."""
    text = PAGE.read_text(encoding="utf-8")

    assert insert_diagram(text) == text
    for (_, why), to in TRANSITIONS.items():
        assert any(
            f"--> {to.value}:" in line and why in line for line in draw_diagram().splitlines()
        )
