"""Rows as CSV (RFC 4180), safe to open in a spreadsheet.

A spreadsheet runs a cell that begins with certain characters as a formula. Texts come from users
(the name of an account, a GPU type), so such a text gets an apostrophe in front. Numbers come from
the service and stay numbers.
"""

import csv
import io
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Final, TypeAlias

MEDIA_TYPE: Final = "text/csv; charset=utf-8"

Cell: TypeAlias = str | int | Decimal | None

# The last four are the first four again, as wide as East Asian characters.
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def csv_text(rows: Iterable[Sequence[Cell]]) -> str:
    """Rows as lines of CSV; None is an empty cell."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\r\n").writerows([_safe(cell) for cell in row] for row in rows)
    return out.getvalue()


def _safe(cell: Cell) -> str | int | None:
    if isinstance(cell, Decimal):
        return f"{cell:f}"
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell
