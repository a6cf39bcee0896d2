"""docs/security.md leads from each row of its checklist to tests, or to a later part."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.test_requirements import TEST, absent

PAGE = Path(__file__).parent.parent / "docs" / "security.md"
IDS = [f"K{number}" for number in range(1, 41)]
LATER = re.compile(r"later: (?:result cache|backends|sign-in for people)")
ROW = re.compile(r"^\| (K\d+) \| (.*) \| (.*) \|$", re.MULTILINE)


@dataclass(frozen=True)
class Row:
    """One thing to try, as the page has it."""

    id: str
    text: str
    shown_by: str


def complaints(page: str) -> list[str]:
    """What is wrong with the page."""
    rows = [Row(*match.groups()) for match in ROW.finditer(page)]
    found = [f"the rows are {[row.id for row in rows]}"] if IDS != [row.id for row in rows] else []
    for row in rows:
        named = TEST.findall(row.shown_by)
        if not row.text.strip():
            found.append(f"{row.id}: nothing is tried")
        if not named and not LATER.fullmatch(row.shown_by):
            found.append(f"{row.id}: tried by nothing, and no later part is named")
        if named and row.shown_by != "<br>".join(f"`{path}::{test}`" for path, test in named):
            found.append(f"{row.id}: something else stands beside the tests")
        found += [f"{row.id}: no {test} in {path}" for path, test in named if absent(path, test)]
    elsewhere = TEST.findall(ROW.sub("", page))
    return found + [f"no {test} in {path}" for path, test in elsewhere if absent(path, test)]


def test_every_threat_has_a_test_or_is_planned() -> None:
    """All forty, and each test that is named exists (N4)."""
    assert [] == complaints(PAGE.read_text())


@pytest.mark.parametrize(
    ("old", "new", "want"),
    [
        ("| K7 |", "| K70 |", "the rows are"),
        ("| K7 |", "| K6 |", "the rows are"),
        ("test_connection_loses", "test_nothing_loses", "K7: no test_nothing_loses"),
        ("later: backends", "soon", "K36: tried by nothing"),
        ("later: backends", "later: something", "K36: tried by nothing"),
        ("is_granted_once` |", "is_granted_once`, later |", "K23: something else"),
        ("## Checklist", "## Checklist `tests/x.py::test_x`", "no test_x in tests/x.py"),
    ],
)
def test_a_wrong_row_is_found(old: str, new: str, want: str) -> None:
    """So that the test before can fail."""
    page = PAGE.read_text()
    assert old in page
    told = complaints(page.replace(old, new, 1))

    assert [one for one in told if one.startswith(want)], told
