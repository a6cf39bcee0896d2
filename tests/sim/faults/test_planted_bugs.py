"""A checker is worth what it catches: bugs, planted one at a time, are found within a few seeds."""

import re

import pytest

from bursar.sim.faults.world import FaultWorld
from tests.sim.faults.planted import BUGS, Bug, planted

pytestmark = [pytest.mark.property, pytest.mark.slow]
SEEDS = 100


@pytest.mark.parametrize("bug", BUGS.values(), ids=BUGS)
def test_a_planted_bug_is_caught(bug: Bug) -> None:
    """And told as what it is, if not by the first seed that notices it (A12 of the study)."""
    with planted(bug):
        told = (_told(FaultWorld(seed, bug.profile)) for seed in range(SEEDS))
        caught = next((one for one in told if re.search(bug.breaks, one)), "")

    assert caught, f"nothing in {SEEDS} seeds"


def _told(world: FaultWorld) -> str:
    """What a world finds, also if the code did not expect it; nothing if all was well."""
    try:
        world.run()
    except Exception as broken:
        return repr(broken)
    return ""


def test_planted_bug_is_removed_afterwards() -> None:
    bug = BUGS["a fence is used again"]
    before = getattr(bug.module, bug.function)
    with planted(bug):
        assert before is not getattr(bug.module, bug.function)

    assert before is getattr(bug.module, bug.function)


def test_planting_fails_if_the_text_is_missing() -> None:
    """So a bug that no longer fits the code is noticed."""
    bug = BUGS["a fence is used again"]
    with pytest.raises(AssertionError, match="not one such piece"), planted(_other(bug)):
        pass


def _other(bug: Bug) -> Bug:
    return Bug(bug.module, bug.function, "no such text", "", "")
