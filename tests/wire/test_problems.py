"""The table of problems, and the page that is made of it."""

from pathlib import Path

from bursar.core.refusal import Code
from bursar.wire.problems import HTTP_PROBLEMS, PROBLEMS, RULE_PROBLEMS, render_reference

PAGE = Path(__file__).parent.parent.parent / "docs" / "problems.md"


def test_every_refusal_has_a_problem() -> None:
    """Every code of the core has a problem, and every such problem has a code of the core."""
    assert {str(code) for code in Code} == {str(code) for code in RULE_PROBLEMS}
    assert not set(RULE_PROBLEMS) & set(HTTP_PROBLEMS)


def test_every_problem_has_a_title_and_a_remedy() -> None:
    """The status is an error; title and remedy are sentences."""
    for code, kind in PROBLEMS.items():
        assert 400 <= kind.status < 600, code
        assert kind.title[:1].isupper(), code
        assert kind.remedy.endswith("."), code


def test_problems_page_is_generated_from_the_table() -> None:
    """docs/problems.md is made by `bursar.wire.problems.render_reference`."""
    assert render_reference() == PAGE.read_text()
