"""The library's benchmark on tiny loads: its answers are right. Speed is not tested."""

import json

import pytest

from benchmarks import library


def log(_: str) -> None:
    """Discard progress."""


def test_answers_of_every_load_agree_with_its_yardstick() -> None:
    """Each load has a figure, a yardstick and no problems (L17, L18)."""
    loads = library.measure(operations=2_000, timeline_operations=400, log=log)

    assert 3 == len(loads)
    for load in loads:
        assert [] == load.problems, load.name
        [figure] = load.figures
        assert figure.ratio is not None
        assert figure.ratio > 0


def test_wrong_answer_counts_as_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """A load with wrong answers has a problem and meets no goal (L17)."""
    monkeypatch.setattr(library, "_run_on_ledger", lambda operations: {"spent": 1})

    load = library.measure_credit(500, log)

    [figure] = load.figures
    assert (0.0, 0.0, False) == (figure.value, figure.ratio, figure.met)
    assert load.problems


def test_table_shows_units_and_yardsticks(capsys: pytest.CaptureFixture[str]) -> None:
    """Results go to stdout, progress to stderr (L17)."""
    assert library.main(operations=500, timeline_operations=100)

    output = capsys.readouterr()
    assert "operations/s" in output.out
    assert "heapq: a bare heap" in output.out
    assert "TimelineLedger" in output.err


def test_json_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing else is on stdout (L17)."""
    assert library.main(json=True, operations=500, timeline_operations=100)

    assert "library" == json.loads(capsys.readouterr().out)["benchmark"]
