"""Prints responses: as a table for people, or as JSON, YAML or CSV for programs.

JSON is the HTTP response body, YAML is the same body, and CSV has one line per item with the values
of the API (micro-credits, UTC). Tables show credits and local times. Colours are used on terminals
only, and not if NO_COLOR is set.
"""

import os
import re
import shlex
import sys
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, TextIO

from bursar.cli.amounts import format_credits
from bursar.cli.ranges import format_duration, format_local
from bursar.client import ApiResponse

NO_VALUE: Final = "-"
_GAP: Final = "  "
# Unit suffixes of field names, left out of headings.
_UNIT_SUFFIXES: Final = ("_micros", "_at", "_ppm", "_seconds", "_ms", "_id", "_compartment")
_NUMBER_SUFFIXES: Final = (
    *("_micros", "_per_gpu_hour", "_ppm", "_ms", "_count", "_max", "_code"),
    *("number", "attempt", "attempts", "rank", "position"),
)
_TIME_NAMES: Final = frozenset(
    {"at", "from", "to", "now", "earliest", "latest", "period_start", "period_end"}
)
_LABELS: Final = {"likely_micros": "expected", "gpu_ms": "gpu hours", "run_ms_total": "run total"}

_ESCAPE_SEQUENCES: Final = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # colours, moves of the cursor, requests for answers
    r"|(?:\x1b[]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)"  # titles
    r"|\x1b[ -/]*[0-~]"
)
_CONTROL_CHARACTERS: Final = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"
)

Row = Mapping[str, Any]
Rows = Callable[[Any], list[Row]]


class Format(StrEnum):
    """An output format."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"


def print_answer(
    answer: ApiResponse,
    format: Format,
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
    if format is Format.JSON:
        print(_format_json(answer) if sys.stdout.isatty() else answer.text)
    elif format is Format.YAML:
        print(_format_yaml(answer.body), end="")
    elif format is Format.CSV:
        _write_csv(columns, _extract_rows(answer.body, rows))
    elif text is not None:
        print(text(answer.body))
    elif rows is not None or "items" in answer.body:
        print(render_table(columns, _extract_rows(answer.body, rows)))
    else:
        print(_render_item(answer.body, columns))


def print_note(text: str) -> None:
    """Print a remark to standard error."""
    print(text, file=sys.stderr)


# For programs


def _extract_rows(body: Any, rows: Rows | None) -> list[Row]:
    if rows is not None:
        return rows(body)
    return list(body["items"]) if "items" in body else [body]


def _format_json(answer: ApiResponse) -> str:
    import json

    return json.dumps(answer.body, indent=2, ensure_ascii=False)


def _format_yaml(body: Any) -> str:
    import yaml  # type: ignore[import-untyped]

    return str(yaml.safe_dump(body, sort_keys=False, allow_unicode=True))


def _write_csv(columns: Sequence[str], rows: Iterable[Row]) -> None:
    from bursar.wire.tables import csv_text  # which a spreadsheet opens without obeying it

    for row in (columns, *([_csv_value(value_at(row, path)) for path in columns] for row in rows)):
        print(csv_text([row]).removesuffix("\r\n"))


def _csv_value(value: Any) -> Any:
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


def _render_item(body: Row, columns: Sequence[str]) -> str:
    """One item; its lists are tables below it."""
    tables = [path for path in columns if _is_table(value_at(body, path))]
    pairs = [
        (column_label(path), format_value(path, value_at(body, path)))
        for path in columns
        if path not in tables
    ]
    return "\n\n".join(
        [
            render_card(pairs),
            *(render_table(tuple(value_at(body, p)[0]), value_at(body, p)) for p in tables),
        ]
    )


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], Mapping)


def render_table(columns: Sequence[str], rows: Sequence[Row]) -> str:
    """Rows below their headings, in columns that line up."""
    if not rows:
        return "none"
    cells = [[format_value(path, value_at(row, path)) for path in columns] for row in rows]
    return render_grid(
        [column_label(path).upper() for path in columns],
        cells,
        [_is_right_aligned(p) for p in columns],
    )


def render_grid(
    headings: Sequence[str], cells: Sequence[Sequence[str]], right: Sequence[bool]
) -> str:
    """Cells below headings; columns flagged in `right` are right-aligned."""
    widths = [max(map(terminal_width, column)) for column in zip(headings, *cells, strict=True)]
    lines = [_GAP.join(map(_pad, row, widths, right)).rstrip() for row in (headings, *cells)]
    return "\n".join([emphasize(lines[0]), *lines[1:]])


def render_card(pairs: Sequence[tuple[str, str]]) -> str:
    """Name and value pairs, one per line."""
    widest = max(terminal_width(name) for name, _ in pairs)
    return "\n".join(f"{_pad(name, widest, False)}{_GAP}{value}" for name, value in pairs)


def emphasize(text: str, stream: TextIO | None = None, code: str = "1") -> str:
    """Add colour on a terminal; elsewhere return the text unchanged."""
    stream = stream or sys.stdout
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not stream.isatty():
        return text
    return f"\033[{code}m{text}\033[0m"


def value_at(row: Any, path: str) -> Any:
    """The value at a path such as `owned.held_micros`, or None."""
    for name in path.split("."):
        row = row.get(name) if isinstance(row, Mapping) else None
    return row


def column_label(path: str) -> str:
    """The heading of a column."""
    parent, _, name = path.rpartition(".")
    text = _LABELS.get(name)
    if text is None:
        for unit in _UNIT_SUFFIXES:
            name = name.removesuffix(unit) or name
        text = name.removeprefix("micros_").replace("_", " ")
    return text if parent in ("", "owned") else f"{parent} {text}"


def _is_right_aligned(path: str) -> bool:
    return path.endswith(_NUMBER_SUFFIXES)


def format_value(path: str, value: Any) -> str:
    """Format a value for people; the field's name determines the unit."""
    name = path.rpartition(".")[2]
    if value is None:
        return "never" if name in ("expires_at", "runs_out_at") else NO_VALUE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return _format_number(name, value)
    if name == "effective_at" and value.startswith("1970-01-01T00:00:00"):
        return "always"  # a price without a start date
    if name.endswith("_at") or name in _TIME_NAMES:
        return format_local(value)
    if name == "command" and isinstance(value, list):
        return make_printable(shlex.join(value))
    if isinstance(value, list):
        item_name = name.removesuffix("s") if name != "thresholds_ppm" else name
        return ", ".join(format_value(item_name, item) for item in value) or NO_VALUE
    if isinstance(value, Mapping):
        fields = {key: field for key, field in value.items() if field not in (None, [], "")}
        return (
            "; ".join(
                f"{column_label(key)} {format_value(key, field)}" for key, field in fields.items()
            )
            or NO_VALUE
        )
    return make_printable(str(value)) or NO_VALUE


def _format_number(name: str, value: int) -> str:
    if name.endswith("_micros") or name.startswith("micros_per_"):
        return format_credits(value)
    if name == "gpu_ms":
        return f"{value / 3_600_000:,.2f}"
    if name == "run_ms_total":
        return format_duration(value // 1_000)
    if name.endswith("_ppm"):
        return f"{value / 10_000:g}%"
    if name.endswith("_seconds"):
        return format_duration(value)
    return f"{value:,}"


def make_printable(text: str) -> str:
    """Replace control characters, so that a terminal does not interpret them."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text
    )


def clean_for_terminal(text: str) -> str:
    """Remove escape sequences, which can change a terminal, and replace other control characters.

    Line breaks, tabs and carriage returns, which progress bars use, remain.
    """
    return _CONTROL_CHARACTERS.sub("\N{REPLACEMENT CHARACTER}", _ESCAPE_SEQUENCES.sub("", text))


def terminal_width(text: str) -> int:
    """The number of terminal columns that a text occupies."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return len(text) + wide - sum(unicodedata.combining(sign) > 0 for sign in text)


def _pad(text: str, columns: int, right: bool) -> str:
    blanks = " " * (columns - terminal_width(text))
    return blanks + text if right else text + blanks
