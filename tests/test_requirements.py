"""docs/requirements.md leads from each requirement to the tests that show it; here it is held."""

import ast
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "requirements.md"
NOT_YET = "not yet"

COUNTS = {"L": 20, "B": 6, "M": 6, "S": 17, "O": 3, "N": 5}
IDS = [f"{letter}{number}" for letter, most in COUNTS.items() for number in range(1, most + 1)]
# What is being built now: all of the ledger, and budgets but quotas and alerts.
IN_SCOPE = [id for id in IDS if id[0] == "L"] + ["B1", "B2", "B3", "B5"]

ROW = re.compile(r"^\| ([A-Z]\d+) \| (.*) \| (.*) \|$", re.MULTILINE)
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


@dataclass(frozen=True)
class Row:
    """One requirement, as the page has it."""

    id: str
    text: str
    shown_by: str


def rows_in(page: str) -> list[Row]:
    return [Row(*match.groups()) for match in ROW.finditer(page)]


def names_in(source: str) -> set[str]:
    """What pytest would collect from a file: functions, classes, and state machines by name."""
    names: set[str] = set()
    for node in ast.parse(source).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return {name for name in names if name.startswith(("test_", "Test"))}


def complaints(page: str) -> list[str]:
    """What is wrong with the page: rows that lack, repeat, or name what does not exist."""
    rows = rows_in(page)
    found = [f"{id}: no row" for id in IDS if id not in {row.id for row in rows}]
    found += [f"{id}: more than one row" for id in IDS if [row.id for row in rows].count(id) > 1]
    for row in rows:
        named = TEST.findall(row.shown_by)
        if row.id not in IDS:
            found.append(f"{row.id}: nobody knows it")
        if not row.text.strip():
            found.append(f"{row.id}: nothing is required")
        if not named and row.shown_by.strip() != NOT_YET:
            found.append(f"{row.id}: shown by nothing, and does not say so")
        if named and NOT_YET in row.shown_by:
            found.append(f"{row.id}: shown, and not yet")
        found += [
            f"{row.id}: no test {test} in {path}" for path, test in named if absent(path, test)
        ]
    return found


def absent(path: str, test: str) -> bool:
    return test not in names_of(path)


@cache
def names_of(path: str) -> set[str]:
    file = ROOT / path
    return names_in(file.read_text()) if file.is_file() else set()


def test_every_requirement_has_a_row_and_each_test_named_there_exists() -> None:
    assert [] == complaints(PAGE.read_text())


def test_every_requirement_of_the_built_parts_has_a_test() -> None:
    """The ledger, its library and the budgets have a test for every row."""
    open_rows = [row.id for row in rows_in(PAGE.read_text()) if row.shown_by.strip() == NOT_YET]

    assert [] == [id for id in IN_SCOPE if id in open_rows]


@pytest.mark.parametrize(
    ("id", "old", "new", "want"),
    [
        ("L4", "| L4 |", "| L99 |", "L4: no row"),
        ("L4", "| L4 |", "| L99 |", "L99: nobody knows it"),
        ("L4", "| L4 |", "| L5 |", "L5: more than one row"),
        ("L1", "::test_", "::test_no_such_", "L1: no test"),
        ("L1", "`tests/", "`tests/nowhere/", "L1: no test"),
        ("L1", "<br>", f"<br>{NOT_YET}<br>", "L1: shown, and not yet"),
        ("S16", NOT_YET, "soon", "S16: shown by nothing"),
    ],
)
def test_a_wrong_row_is_found(id: str, old: str, new: str, want: str) -> None:
    """The test above can fail: each kind of fault, put into a row of the page, is told."""
    page = PAGE.read_text()
    row = next(line for line in page.splitlines() if line.startswith(f"| {id} |"))
    assert old in row
    wrong = row.replace(old, new, 1)

    assert [told for told in complaints(page.replace(row, wrong)) if told.startswith(want)]
