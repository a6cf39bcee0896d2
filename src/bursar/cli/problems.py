"""Error messages and exit statuses for failed calls."""

import re
import sys
from collections.abc import Mapping
from typing import Any, Final

from bursar.cli.output import card, cell, emphasized, label
from bursar.cli.ranges import duration_told
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
_MISSED: Final[Mapping[str, str]] = {
    "org_id": "Add --org or set BURSAR_ORG. `bursar org list` shows the ids.",
    "account_id": "Add --account. `bursar account list` shows the ids.",
}
_SEE_HELP: Final = "See the command's --help."
_BOUND: Final = re.compile(r"((?:greater|less) than (?:or equal to )?)(\d+)$", re.ASCII)
_FIELD: Final = re.compile(r"/([\w/]+): ", re.ASCII)
_UNSURE: Final = frozenset({"no_answer", "unreachable", "internal_error", "not_bursar", "timeout"})


class Unusable(Exception):
    """A local problem, such as a missing key, with its remedy."""

    def __init__(self, told: str, remedy: str) -> None:
        super().__init__(told)
        self.remedy = remedy


def exit_code(code: str, status: int) -> int:
    """The exit status for a problem."""
    if code in _BY_CODE:
        return _BY_CODE[code]
    return _BY_STATUS.get(status, UNAVAILABLE if status >= 500 else USAGE)


def tell(error: Problem | Unusable) -> int:
    """Print a problem and its remedy to standard error; return the exit status."""
    if isinstance(error, Unusable):
        _print(str(error), [("remedy", error.remedy)])
        return USAGE
    parts = [*_figures(error), ("remedy", _remedy(error)), ("code", error.code)]
    if error.request_id is not None:
        parts.append(("request", error.request_id))
    if error.key is not None:
        parts.append(("key", error.key))
        if error.code in _UNSURE:
            again = f"repeat the command with --idempotency-key {error.key}"
            parts.append(("unsure", f"the request may have taken effect; to be safe, {again}"))
    _print(error.title if error.figures else _in_words(error.detail), parts)
    return exit_code(error.code, error.status)


def told_briefly(problem: Mapping[str, Any]) -> str:
    """A problem document on one line."""
    figures = (
        f"{label(name)} {cell(name, value)}"
        for name, value in (problem.get("figures") or {}).items()
        if value is not None
    )
    return f"{problem['title']} ({', '.join((problem['code'], *figures))})"


def _figures(error: Problem) -> list[tuple[str, str]]:
    figures = [(label(name), cell(name, it)) for name, it in error.figures.items()]
    fields = [
        ("field", _in_words(f"{one.get('pointer')}: {one.get('detail')}"))
        for one in error.errors[1:]
    ]
    return figures + fields


def _remedy(error: Problem) -> str:
    if error.code == "invalid_request":
        return _MISSED.get(error.detail.partition(":")[0], _SEE_HELP)
    return _REMEDIES.get(error.code, error.remedy)


def _in_words(detail: str) -> str:
    """A validation message with its field named as on the command line."""
    found = _FIELD.match(detail)
    if found is None:
        return detail
    told = detail[found.end() :]
    if found[1].endswith("_seconds"):
        told = _BOUND.sub(lambda bound: f"{bound[1]}{duration_told(int(bound[2]))}", told)
    return f"{' '.join(map(label, found[1].split('/')))}: {told}"


def _print(what: str, parts: list[tuple[str, str]]) -> None:
    head = emphasized("bursar:", sys.stderr, "1;31")
    print(f"{head} {what}", file=sys.stderr)
    print("\n".join(f"  {line}" for line in card(parts).splitlines()), file=sys.stderr)
