"""The checks of a round can fail: each promise, broken in what is stored or what ran, is told."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.chaos.checks import Books, Lease, Run, wrong
from tests.chaos.rounds import NEEDED, Invalid, Seen, _is_enough
from tests.chaos.tenants import Score


def lease(fence: int, attempt: int, **more: Any) -> Lease:
    """An attempt of job a on a GPU of n1, which has run for a second."""
    usual: dict[str, Any] = {
        "fence": fence, "job": "a", "attempt": attempt, "gpu_type": "H100", "why": "finished",
        "kept_ms": None, "node": "n1", "run_ms": 1_000, "exit": "done", "exit_code": 0, "gpus": [0],
    }  # fmt: skip
    return Lease(**{**usual, **more})


def sound() -> tuple[Books, list[Run], Score]:
    """A job that was preempted, gave back half of what it had run, and then was done."""
    books = Books(
        jobs={"a": "succeeded"},
        elements=set(),
        nowhere=set(),
        leases=[lease(1, 1, why="preempted", exit="stopped", kept_ms=500), lease(2, 2)],
        slots=[("n1", 0, 0, 1, 100, 200), ("n1", 0, 0, 2, 200, 300)],
        holds={"a": (1_500, 0, True)},
        ends=Counter({"a": 1}),
        last_steps=Counter({"a": 1}),
        grants=(0, 1_500),
        unacknowledged=0,
    )
    runs = [
        Run("start", "a", 1, 1, "n1", 11, 0),
        Run("stopped", "a", 1, 1, "n1", 11, 900_000),
        Run("start", "a", 2, 2, "n1", 12, 2_000_000),
        Run("end", "a", 2, 2, "n1", 12, 2_990_000),
    ]
    return books, runs, Score(submitted={"key": {"a"}})


def test_a_sound_deployment_has_no_problems() -> None:
    assert [] == wrong(*sound())


Break = Callable[[Books, list[Run], Score], tuple[Books, list[Run], Score]]
BROKEN: dict[str, Break] = {
    "it has no end": lambda b, r, s: (b._replace(jobs={"a": "queued"}), r, s),
    "has ended 2 times": lambda b, r, s: (b._replace(last_steps=Counter({"a": 2})), r, s),
    "its pool says 2": lambda b, r, s: (b._replace(ends=Counter({"a": 2})), r, s),
    "has ended 1 times, its pool says 1": lambda b, r, s: (b._replace(nowhere={"a"}), r, s),
    "b was accepted and is not there": lambda b, r, s: (
        b, r, Score(submitted={"k": {"a"}, "l": {"b"}})
    ),
    "nobody has asked for it": lambda b, r, s: (b, r, Score()),
    "was told of several jobs": lambda b, r, s: (
        b._replace(jobs={"a": "failed", "b": "failed"}), r, Score(submitted={"k": {"a", "b"}})
    ),
    "are not acknowledged": lambda b, r, s: (b._replace(unacknowledged=1), r, s),
    "was in leases 1 and 2 at once": lambda b, r, s: (
        b._replace(slots=[("n1", 0, 0, 1, 100, 201), ("n1", 0, 0, 2, 200, 300)]), r, s
    ),
    "is still leased": lambda b, r, s: (b._replace(slots=[("n1", 0, 0, 1, 100, None)]), r, s),
    "has the attempts [1, 3]": lambda b, r, s: (
        b._replace(leases=[b.leases[0], b.leases[1]._replace(attempt=3)]), r, s
    ),
    "in the order of its attempts": lambda b, r, s: (
        b._replace(leases=[b.leases[0]._replace(attempt=2), b.leases[1]._replace(attempt=1)]), r, s
    ),
    "was started 2 times": lambda b, r, s: (b, [*r, r[2]], s),
    "found n1.0 taken": lambda b, r, s: (b, [*r, r[2]._replace(what="taken:n1.0")], s),
    "which it has no lease for": lambda b, r, s: (b, [*r, r[0]._replace(fence=7)], s),
    "has not ended": lambda b, r, s: (b, r[:-1], s),
    "ran 990 ms, and 900 are stored": lambda b, r, s: (
        b._replace(leases=[b.leases[0], b.leases[1]._replace(run_ms=900)]), r, s
    ),
    "its hold says used 1501": lambda b, r, s: (b._replace(holds={"a": (1_501, 0, True)}), r, s),
    "closed False": lambda b, r, s: (b._replace(holds={"a": (1_500, 0, False)}), r, s),
    "owed 1": lambda b, r, s: (b._replace(holds={"a": (1_500, 1, True)}), r, s),
    "(held, spent) are (1, 1500)": lambda b, r, s: (b._replace(grants=(1, 1_500)), r, s),
    "nobody should be told this": lambda b, r, s: (
        b, r, Score(submitted=s.submitted, unexpected=["500"])
    ),
}  # fmt: skip


@pytest.mark.parametrize("told", BROKEN)
def test_each_broken_promise_is_reported(told: str) -> None:
    assert any(told in one for one in wrong(*BROKEN[told](*sound())))


def test_a_round_in_which_too_little_happens_shows_nothing() -> None:
    """It is invalid, and not passed (A20)."""
    enough = Seen(Counter(NEEDED), Counter(), ())
    _is_enough(enough)
    for what in NEEDED:
        little = Counter({**NEEDED, what: NEEDED[what] - 1})
        with pytest.raises(Invalid, match=what):
            _is_enough(enough._replace(counts=little))
    with pytest.raises(Invalid, match=r"leader\.planned\.kill was never reached"):
        _is_enough(enough._replace(missed=("leader.planned.kill",)))
    with pytest.raises(Invalid, match="lost commits: 0"):
        _is_enough(enough._replace(faults=Counter({"lose_commits": 1})))
