"""README.md shows what really happens: its output is compared with that of the code."""

import contextlib
import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from bursar.cli.problems import print_problem
from bursar.cli.walkthrough.ledger import Story, play_chapters
from bursar.client import Problem
from bursar.core.money import CREDIT
from bursar.core.refusal import Code, Refusal
from bursar.wire.problems import problem_from_refusal

README = (Path(__file__).parent.parent / "README.md").read_text()


def test_the_readme_quotes_the_ledger_walkthrough() -> None:
    """Each part between two […] is printed line by line, except for blanks at line ends."""
    page = io.StringIO()
    play_chapters(Story(), Console(file=page, width=80, highlight=False))
    printed = "\n".join(line.rstrip() for line in page.getvalue().splitlines())
    shown = re.search(r"`bursar walkthrough ledger`\n.*?```\n(.*?)```", README, re.DOTALL)

    assert shown is not None
    parts = [part.strip("\n") for part in shown.group(1).split("[…]")]
    assert len(parts) > 1
    assert [] == [part for part in parts if part not in printed]


def test_the_library_in_the_readme_answers_as_shown() -> None:
    """The example is run, and what it prints is what stands below it."""
    shown = re.search(r"```python\n(.*?)```\n```\n(.*?)```", README, re.DOTALL)

    assert shown is not None
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(shown.group(1), {})
    assert shown.group(2) == said.getvalue()


def test_the_refused_hold_in_the_readme_is_printed_as_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Names, figures, remedy and code of a problem are those that the command line prints."""
    shown = re.search(r"hold open \$ACCOUNT 500\n(.*?)\[…\]", README, re.DOTALL)
    figures = {"asked": 500 * CREDIT, "spendable": 89 * CREDIT, "short": 411 * CREDIT}
    document = problem_from_refusal(Refusal(Code.INSUFFICIENT_CREDITS, figures))

    print_problem(Problem.from_response(document["status"], document))

    assert shown is not None
    assert shown.group(1) == capsys.readouterr().err
