"""The list of planted bugs fits the code as it is now; `make mutants` shows that each is caught."""

import pytest
from sqlglot import parse

from tests.planted.bugs import ROOT, Bug, bugs

BUGS = bugs()
LEAST = 100


def test_there_are_enough_and_no_two_have_one_name() -> None:
    assert LEAST <= len(BUGS)
    assert len(BUGS) == len({bug.name for bug in BUGS})


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_can_be_planted(bug: Bug) -> None:
    """What it replaces is there exactly once, and what comes of it is still a program."""
    text = (ROOT / bug.path).read_text()
    planted = bug.planted_in(text)

    assert planted != text
    if bug.path.suffix == ".sql":
        assert all(parse(planted, read="postgres"))
    else:
        compile(planted, bug.file, "exec")


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_the_tests_that_must_catch_it_exist(bug: Bug) -> None:
    assert bug.tests
    for test in bug.tests:
        file, _, name = test.partition("::")
        text = (ROOT / file).read_text()
        assert not name or f"def {name.partition('[')[0]}(" in text, test


def test_the_place_is_found_whatever_its_format() -> None:
    """Line breaks and trailing commas do not matter; `within` names the function to look in."""
    text = (
        "def f():\n    return g(\n        1,\n        2,\n    )\n\ndef h():\n    return g(1, 2)\n"
    )
    bug = Bug(
        name="swapped", file="f.py", right="g(1, 2)", wrong="g(2, 1)", caught_by=(), within="f"
    )

    assert "def f():\n    return g(2, 1)\n\ndef h():\n    return g(1, 2)\n" == bug.planted_in(text)


@pytest.mark.parametrize(("text", "times"), [("none of it", 0), ("x + 1, x + 1", 2)])
def test_a_bug_whose_quote_does_not_match_once_is_an_error(text: str, times: int) -> None:
    """The tests above can fail: a quote that is missing, or occurs twice, is an error."""
    bug = Bug(name="one less", file="f.py", right="x + 1", wrong="x", caught_by=("test_f.py",))

    with pytest.raises(ValueError, match=f"occurs {times} times in f.py"):
        bug.planted_in(text)
