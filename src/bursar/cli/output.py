"""Prints responses: as a table for people, or as JSON, YAML or CSV for programs.

JSON is the HTTP response body, YAML is the same body, and CSV has one line per item with the values
of the API (micro-credits, UTC). Tables show credits and local times. Colours are used on terminals
only, and not if NO_COLOR is set.
"""

import os
import shlex
import sys
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, TextIO

from bursar.cli.amounts import told
from bursar.cli.ranges import duration_told, local_text
from bursar.client import ApiResponse

NOTHING: Final = "-"
_GAP: Final = "  "
# Unit suffixes of field names, left out of headings.
_UNITS: Final = ("_micros", "_at", "_ppm", "_seconds", "_ms", "_id", "_compartment")
_NUMBERS: Final = (
    *("_micros", "_per_gpu_hour", "_ppm", "_ms", "_count", "_max", "_code"),
    *("number", "attempt", "attempts", "rank", "position"),
)
_TIMES: Final = frozenset(
    {"at", "from", "to", "now", "earliest", "latest", "period_start", "period_end"}
)
_CALLED: Final = {"gpu_ms": "gpu hours", "run_ms_total": "run total"}

Row = Mapping[str, Any]
Rows = Callable[[Any], list[Row]]


class Format(StrEnum):
    """An output format."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"


def show(
    answer: ApiResponse,
    form: Format,
    columns: Sequence[str],
    *,
    rows: Rows | None = None,
    text: Callable[[Any], str] | None = None,
) -> None:
    """Print a response.

    `columns` are paths into each row, such as `owned.held_micros`. `rows` extracts the rows from
    the body; by default they are its items, or the body itself. `text` renders the body for people;
    by default it is a table.
    """
    if hasattr(sys.stdout, "reconfigure"):  # for characters that the terminal cannot show
        sys.stdout.reconfigure(errors="backslashreplace")
    if form is Format.JSON:
        print(_json(answer) if sys.stdout.isatty() else answer.text)
    elif form is Format.YAML:
        print(_yaml(answer.body), end="")
    elif form is Format.CSV:
        _write_csv(columns, _rows(answer.body, rows))
    elif text is not None:
        print(text(answer.body))
    elif rows is not None or "items" in answer.body:
        print(table(columns, _rows(answer.body, rows)))
    else:
        print(_whole(answer.body, columns))


def note(text: str) -> None:
    """Print a remark to standard error."""
    print(text, file=sys.stderr)


# For programs


def _rows(body: Any, rows: Rows | None) -> list[Row]:
    if rows is not None:
        return rows(body)
    return list(body["items"]) if "items" in body else [body]


def _json(answer: ApiResponse) -> str:
    import json

    return json.dumps(answer.body, indent=2, ensure_ascii=False)


def _yaml(body: Any) -> str:
    import yaml  # type: ignore[import-untyped]

    return str(yaml.safe_dump(body, sort_keys=False, allow_unicode=True))


def _write_csv(columns: Sequence[str], rows: Iterable[Row]) -> None:
    from bursar.wire.tables import csv_text  # which a spreadsheet opens without obeying it

    for row in (columns, *([_raw(at(row, path)) for path in columns] for row in rows)):
        print(csv_text([row]).removesuffix("\r\n"))


def _raw(value: Any) -> Any:
    """An API value as one CSV cell."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, dict)):
        import json

        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return value


# For people


def _whole(body: Row, columns: Sequence[str]) -> str:
    """One item; its lists are tables below it."""
    many = [path for path in columns if _is_many(at(body, path))]
    pairs = [(label(path), cell(path, at(body, path))) for path in columns if path not in many]
    return "\n\n".join([card(pairs), *(table(tuple(at(body, p)[0]), at(body, p)) for p in many)])


def _is_many(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], Mapping)


def table(columns: Sequence[str], rows: Sequence[Row]) -> str:
    """Rows below their headings, in columns that line up."""
    if not rows:
        return "none"
    cells = [[cell(path, at(row, path)) for path in columns] for row in rows]
    return grid([label(path).upper() for path in columns], cells, [_is_right(p) for p in columns])


def grid(headings: Sequence[str], cells: Sequence[Sequence[str]], right: Sequence[bool]) -> str:
    """Cells below headings; columns flagged in `right` are right-aligned."""
    widths = [max(map(width, column)) for column in zip(headings, *cells, strict=True)]
    lines = [_GAP.join(map(_padded, row, widths, right)).rstrip() for row in (headings, *cells)]
    return "\n".join([emphasized(lines[0]), *lines[1:]])


def card(pairs: Sequence[tuple[str, str]]) -> str:
    """Name and value pairs, one per line."""
    widest = max(width(name) for name, _ in pairs)
    return "\n".join(f"{_padded(name, widest, False)}{_GAP}{value}" for name, value in pairs)


def emphasized(text: str, stream: TextIO | None = None, code: str = "1") -> str:
    """Add colour on a terminal; elsewhere return the text unchanged."""
    stream = stream or sys.stdout
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not stream.isatty():
        return text
    return f"\033[{code}m{text}\033[0m"


def at(row: Any, path: str) -> Any:
    """The value at a path such as `owned.held_micros`, or None."""
    for name in path.split("."):
        row = row.get(name) if isinstance(row, Mapping) else None
    return row


def label(path: str) -> str:
    """The heading of a column."""
    above, _, name = path.rpartition(".")
    called = _CALLED.get(name)
    if called is None:
        for unit in _UNITS:
            name = name.removesuffix(unit) or name
        called = name.removeprefix("micros_").replace("_", " ")
    return called if above in ("", "owned") else f"{above} {called}"


def _is_right(path: str) -> bool:
    return path.endswith(_NUMBERS)


def cell(path: str, value: Any) -> str:
    """Format a value for people; the field's name determines the unit."""
    name = path.rpartition(".")[2]
    if value is None:
        return "never" if name in ("expires_at", "runs_out_at") else NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return _number(name, value)
    if name == "effective_at" and value.startswith("1970-01-01T00:00:00"):
        return "always"  # a price without a start date
    if name.endswith("_at") or name in _TIMES:
        return local_text(value)
    if name == "command" and isinstance(value, list):
        return printable(shlex.join(value))
    if isinstance(value, list):
        one = name.removesuffix("s") if name != "thresholds_ppm" else name
        return ", ".join(cell(one, item) for item in value) or NOTHING
    if isinstance(value, Mapping):
        given = {key: it for key, it in value.items() if it not in (None, [], "")}
        return "; ".join(f"{label(key)} {cell(key, it)}" for key, it in given.items()) or NOTHING
    return printable(str(value)) or NOTHING


def _number(name: str, value: int) -> str:
    if name.endswith("_micros") or name.startswith("micros_per_"):
        return told(value)
    if name == "gpu_ms":
        return f"{value / 3_600_000:,.2f}"
    if name == "run_ms_total":
        return duration_told(value // 1_000)
    if name.endswith("_ppm"):
        return f"{value / 10_000:g}%"
    if name.endswith("_seconds"):
        return duration_told(value)
    return f"{value:,}"


def printable(text: str) -> str:
    """Replace control characters, so that a terminal does not interpret them."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in text)


def width(text: str) -> int:
    """The number of terminal columns that a text occupies."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(sign) in "WF" for sign in text)
    return len(text) + wide - sum(unicodedata.combining(sign) > 0 for sign in text)


def _padded(text: str, columns: int, right: bool) -> str:
    blanks = " " * (columns - width(text))
    return blanks + text if right else text + blanks
