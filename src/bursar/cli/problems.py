"""What is said when a call fails, and the status to exit with."""

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
REFUSED: Final = 4  # for want of funds, or because of a limit
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

# What helps at a command line, where it is not what helps elsewhere.
_REMEDIES: Final[Mapping[str, str]] = {
    "unauthenticated": "Run `bursar login`, or set BURSAR_KEY to a key that is neither expired nor"
    " revoked.",
    "not_found": "Check the id; an operator may have to say --org.",
    "no_answer": "Check that the service runs (`bursar up`) and that the URL is right.",
}
# What helps if a request misses something: a field is what the problem begins with.
_MISSED: Final[Mapping[str, str]] = {
    "org_id": "Say which with --org, or set BURSAR_ORG; `bursar org list` has the ids.",
    "account_id": "Say which with --account; `bursar account list` has the ids.",
}
_SEE_HELP: Final = "The command's --help says what goes where."
_BOUND: Final = re.compile(r"((?:greater|less) than (?:or equal to )?)(\d+)$", re.ASCII)
_FIELD: Final = re.compile(r"/([\w/]+): ", re.ASCII)
_UNSURE: Final = frozenset({"no_answer", "unreachable", "internal_error", "not_bursar", "timeout"})


class Unusable(Exception):
    """Something here, not at the service, is not as it must be; says what helps."""

    def __init__(self, told: str, remedy: str) -> None:
        super().__init__(told)
        self.remedy = remedy


def exit_code(code: str, status: int) -> int:
    """The status to exit with after a problem."""
    if code in _BY_CODE:
        return _BY_CODE[code]
    return _BY_STATUS.get(status, UNAVAILABLE if status >= 500 else USAGE)


def tell(error: Problem | Unusable) -> int:
    """Say on standard error what is wrong and what helps; the status to exit with."""
    if isinstance(error, Unusable):
        _print(str(error), [("remedy", error.remedy)])
        return USAGE
    parts = [*_figures(error), ("remedy", _remedy(error)), ("code", error.code)]
    if error.request_id is not None:
        parts.append(("request", error.request_id))
    if error.key is not None:
        parts.append(("key", error.key))
        if error.code in _UNSURE:
            again = f"the same command with --idempotency-key {error.key} has one effect"
            parts.append(("unsure", f"it may have happened or not; {again}"))
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
    """What is wrong with a request, its field named as at a command line."""
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
