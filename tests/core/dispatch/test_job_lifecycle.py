"""The states of a job and their transitions are one table (IM6)."""

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


def test_every_transition_of_the_table_is_possible() -> None:
    assert list(TRANSITIONS.values()) == [next_state(state, why) for state, why in TRANSITIONS]


@pytest.mark.parametrize("state", JobState)
@pytest.mark.parametrize("why", Cause)
def test_no_other_transition_is_possible(state: JobState, why: Cause) -> None:
    """A step that is not in the table is a bug, not a new state."""
    if (state, why) not in TRANSITIONS:
        with pytest.raises(InvariantBroken, match="cannot take this step"):
            next_state(state, why)


def test_no_transition_leaves_a_finished_state() -> None:
    """So an end is accepted once."""
    assert frozenset(JobState) == WAITING | LIVE | FINISHED
    assert FINISHED.isdisjoint(state for state, _ in TRANSITIONS)
    assert FINISHED == frozenset(TRANSITIONS.values()) - {state for state, _ in TRANSITIONS}


def test_each_state_can_be_reached_from_queued() -> None:
    reached = {JobState.QUEUED}
    for _ in JobState:
        reached |= {to for (state, _), to in TRANSITIONS.items() if state in reached}

    assert set(JobState) == reached


def test_every_cause_of_an_end_has_a_class() -> None:
    """Except for giving up, which has the class of the lost or preempted attempt (M3)."""
    ends = {why for (state, why), to in TRANSITIONS.items() if state in LIVE and to not in LIVE}

    assert ends | {Cause.HOLD_ENDED} == END_CLASSES.keys() | {Cause.GIVEN_UP}


def test_the_diagram_in_the_documents_is_drawn_from_the_table() -> None:
    """`python -m tools.life --write` draws it again."""
    text = PAGE.read_text(encoding="utf-8")

    assert insert_diagram(text) == text
    for (_, why), to in TRANSITIONS.items():
        assert any(
            f"--> {to.value}:" in line and why in line for line in draw_diagram().splitlines()
        )
