"""Parses JSON strictly: texts that parsers understand differently are rejected.

Parsers disagree about `{"a": 1, "a": 2}`, `1e400` and half a surrogate pair. Where money is
concerned, such a text is rejected.
"""

import json
from typing import Any, Final, NoReturn

DIGITS_MAX: Final = 20  # of a number; 2^63 has 19
NAME_MOST: Final = 100  # characters of a name in an error


class Malformed(ValueError):
    """The text is not JSON, or is ambiguous."""


def parse_json(body: bytes) -> Any:
    """Parse JSON: numbers are whole, names occur once, text is Unicode."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Malformed(f"the body is not UTF-8: invalid byte at position {error.start}") from None
    try:
        document = _DECODER.decode(text)
    except RecursionError:
        raise Malformed("the body is nested too deeply") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise Malformed(f"the body is not JSON: {error.msg.lower()} ({where})") from None
    if "\\u" in text:
        _check_surrogates(document)
    return document


def _check_surrogates(document: Any) -> None:
    try:
        json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise Malformed("the body contains an unpaired surrogate") from None


def _check_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise Malformed(f"{twice[:NAME_MOST]!r} occurs twice")
    return members


def _parse_int(digits: str) -> int:
    if len(digits) > DIGITS_MAX:
        raise Malformed(f"a number has {len(digits)} digits; the maximum is 16")
    return int(digits)


def _no_float(digits: str) -> NoReturn:
    raise Malformed(f"numbers must be whole: {digits[:DIGITS_MAX]}")


def _no_constant(name: str) -> NoReturn:
    raise Malformed(f"{name} is not valid JSON")


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_check_names,
    parse_int=_parse_int,
    parse_float=_no_float,
    parse_constant=_no_constant,
)
