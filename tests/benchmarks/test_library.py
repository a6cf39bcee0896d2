"""The library's benchmark, made tiny: it runs, and its answers are right. No word about time."""

import json
import sys

import pytest

from benchmarks import library


def test_the_benchmark_runs_and_its_answers_are_right() -> None:
    """Each load is compared with its yardstick and agrees with it (L17, L18)."""
    result = library.measure(operations=2_000, timeline_operations=400)

    assert 3 == len(result["loads"])
    for load in result["loads"]:
        assert load["answers_agree"], load
        assert load["ratio"] > 0
        assert load["told"]["spent"] > 0


def test_a_wrong_answer_counts_as_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """However fast it came (L17)."""
    monkeypatch.setattr(library, "_on_ledger", lambda operations: {"spent": 1})

    load = library._credit(500)

    assert (0, 0.0, False) == (
        load["operations_per_second"],
        load["ratio"],
        load["goal_met"],
    )


@pytest.mark.parametrize("rich", [True, False])
def test_people_get_a_table(
    rich: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With units and yardsticks, also where nothing draws tables (L17)."""
    if not rich:
        monkeypatch.setitem(sys.modules, "rich.console", None)

    library.main(operations=500, timeline_operations=100)

    told = capsys.readouterr()
    assert "operations a second" in told.out
    assert "yardstick: a bare heapq" in told.out
    assert "TimelineLedger" in told.err, "progress goes to the other stream"


def test_machines_get_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    """On standard output, alone (L17)."""
    library.main(json=True, operations=500, timeline_operations=100)

    assert "L-library" == json.loads(capsys.readouterr().out)["benchmark"]
