"""Error messages and exit statuses for failed calls."""

import re
import sys
from collections.abc import Mapping
from typing import Any, Final

from bursar.cli.output import column_label, emphasize, format_value, render_card
from bursar.cli.ranges import format_duration
from bursar.client import Problem

OK: Final = 0
FAILED_CHECK: Final = 1
USAGE: Final = 2
NOT_FOUND: Final = 3
REFUSED: Final = 4  # insufficient credits, or a limit
CONFLICT: Final = 5
UNAVAILABLE: Final = 6
NOT_ALLOWED: Final = 7

_BY_CODE: Final[Mapping[str, int]] = {
    "key_reused": CONFLICT,
    "quota_exceeded": REFUSED,
    "no_pool": NOT_FOUND,
}
_BY_STATUS: Final[Mapping[int, int]] = {
    0: UNAVAILABLE,
    401: NOT_ALLOWED,
    402: REFUSED,
    403: NOT_ALLOWED,
    404: NOT_FOUND,
    408: UNAVAILABLE,
    409: CONFLICT,
    412: CONFLICT,
    429: UNAVAILABLE,
}

# Remedies for the command line that replace those of the API.
_REMEDIES: Final[Mapping[str, str]] = {
    "unauthenticated": "Run `bursar login`, or set BURSAR_KEY to a valid key.",
    "not_found": "Check the id. Operators may need to add --org.",
    "no_answer": "Check that the service runs (`bursar up`) and that the URL is correct.",
}
# Remedies for missing fields, by the field that the message begins with.
_MISSING_FIELD_REMEDIES: Final[Mapping[str, str]] = {
    "org_id": "Add --org or set BURSAR_ORG. `bursar org list` shows the ids.",
    "account_id": "Add --account. `bursar account list` shows the ids.",
}
_SEE_HELP: Final = "See the command's --help."
_BOUND_TEXT: Final = re.compile(r"((?:greater|less) than (?:or equal to )?)(\d+)$", re.ASCII)
_FIELD_TEXT: Final = re.compile(r"/([\w/]+): ", re.ASCII)
_OUTCOME_UNKNOWN: Final = frozenset(
    {"no_answer", "unreachable", "internal_error", "not_bursar", "timeout"}
)


class LocalProblem(Exception):
    """A local problem, such as a missing key, with its remedy."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.remedy = remedy


def exit_code(code: str, status: int) -> int:
    """The exit status for a problem."""
    if code in _BY_CODE:
        return _BY_CODE[code]
    return _BY_STATUS.get(status, UNAVAILABLE if status >= 500 else USAGE)


def print_problem(error: Problem | LocalProblem) -> int:
    """Print a problem and its remedy to standard error; return the exit status."""
    if isinstance(error, LocalProblem):
        _print(str(error), [("remedy", error.remedy)])
        return USAGE
    parts = [*_format_figures(error), ("remedy", _find_remedy(error)), ("code", error.code)]
    if error.request_id is not None:
        parts.append(("request", error.request_id))
    if error.key is not None:
        parts.append(("key", error.key))
        if error.code in _OUTCOME_UNKNOWN:
            repeat = f"repeat the command with --idempotency-key {error.key}"
            parts.append(("unsure", f"the request may have taken effect; to be safe, {repeat}"))
    _print(error.title if error.figures else _name_field(error.detail), parts)
    return exit_code(error.code, error.status)


def format_problem(problem: Mapping[str, Any]) -> str:
    """A problem document on one line."""
    figures = (
        f"{column_label(name)} {format_value(name, value)}"
        for name, value in (problem.get("figures") or {}).items()
        if value is not None
    )
    return f"{problem['title']} ({', '.join((problem['code'], *figures))})"


def _format_figures(error: Problem) -> list[tuple[str, str]]:
    figures = [
        (column_label(name), format_value(name, value)) for name, value in error.figures.items()
    ]
    fields = [
        ("field", _name_field(f"{error.get('pointer')}: {error.get('detail')}"))
        for error in error.errors[1:]
    ]
    return figures + fields


def _find_remedy(error: Problem) -> str:
    if error.code == "invalid_request":
        return _MISSING_FIELD_REMEDIES.get(error.detail.partition(":")[0], _SEE_HELP)
    return _REMEDIES.get(error.code, error.remedy)


def _name_field(detail: str) -> str:
    """A validation message with its field named as on the command line."""
    match = _FIELD_TEXT.match(detail)
    if match is None:
        return detail
    message = detail[match.end() :]
    if match[1].endswith("_seconds"):
        message = _BOUND_TEXT.sub(
            lambda bound: f"{bound[1]}{format_duration(int(bound[2]))}", message
        )
    return f"{' '.join(map(column_label, match[1].split('/')))}: {message}"


def _print(message: str, parts: list[tuple[str, str]]) -> None:
    head = emphasize("bursar:", sys.stderr, "1;31")
    print(f"{head} {message}", file=sys.stderr)
    print("\n".join(f"  {line}" for line in render_card(parts).splitlines()), file=sys.stderr)
