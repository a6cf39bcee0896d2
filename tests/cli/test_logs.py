"""`bursar logs`: what a job prints must not change the reader's terminal (N4)."""

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from bursar.cli.commands import logs
from bursar.cli.output import clean_for_terminal
from bursar.client import ApiResponse

HOSTILE = (
    "\033]0;title\007\033[2J\033[31mred\033[0m\tdone 5 %\r\n\033]52;c;YQ==\033\\ü\u202e\x9b6n\b"
)
CLEAN = "red\tdone 5 %\r\nü\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}"


class Screen(io.StringIO):
    """Standard output, at a terminal or not."""

    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


class Server:
    """Answers with one page of a finished job's log."""

    def __init__(self, text: str) -> None:
        part = {"attempt": 1, "node": "n1", "text": text}
        self._page = {"items": [part], "next": "1.0", "finished": True, "complete": True}

    def get(self, *_: Any) -> ApiResponse:
        return ApiResponse(json.dumps(self._page))


@pytest.mark.parametrize(
    ("is_terminal", "raw", "shown"),
    [(True, False, CLEAN), (True, True, HOSTILE), (False, False, HOSTILE)],
    ids=["on a terminal", "raw", "piped"],
)
def test_escape_sequences_are_left_out_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool, raw: bool, shown: str
) -> None:
    @contextmanager
    def connect() -> Iterator[Server]:
        yield Server(HOSTILE)

    screen = Screen(is_terminal)
    monkeypatch.setattr(logs, "connect", connect)
    monkeypatch.setattr("sys.stdout", screen)
    logs.logs("job", raw=raw)

    assert shown == screen.getvalue()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\033", "\N{REPLACEMENT CHARACTER}"),  # a sequence may be split between two parts
        ("[31mred", "[31mred"),
        ("\033(Bx", "x"),
        ("\033]0;no end\nnext", "0;no end\nnext"),
        ("\033P1;2q#0\033\\x", "x"),
        ("\x00\x7f\x85", "\N{REPLACEMENT CHARACTER}" * 3),
    ],
)
def test_no_control_character_passes(text: str, shown: str) -> None:
    assert shown == clean_for_terminal(text)
