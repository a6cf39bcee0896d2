"""Rows as parameters of one statement: an array per column, in PostgreSQL's notation.

The driver can do the same, value by value, and ten times as slowly.
"""

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

Values: TypeAlias = tuple[Any, ...]  # of one row, in the order of its columns

_PLAIN: Final = {int, bool, type(None)}  # what needs no quotes


def column_arrays(rows: Sequence[Values], width: int) -> list[str]:
    """Turn rows into one array per column; `width` counts the columns if there are no rows."""
    return [array_literal(column) for column in zip(*rows, strict=True)] if rows else ["{}"] * width


def array_literal(values: Sequence[Any]) -> str:
    """An array as text: `{1,NULL,"two"}`. Columns of one type take a short cut."""
    kinds = {*map(type, values)}
    if kinds <= _PLAIN:
        return "{" + ",".join(map(str, values)).replace("None", "NULL") + "}"
    if kinds == {str}:
        joined = "\0".join(values)
        if joined.count("\0") != len(values) - 1:
            raise ValueError("PostgreSQL cannot store text that contains a NUL")
        escaped = joined.replace("\\", "\\\\").replace('"', '\\"')
        return '{"' + escaped.replace("\0", '","') + '"}'
    return "{" + ",".join([_element(value) for value in values]) + "}"


def _element(value: Any) -> str:
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return "NULL" if value is None else str(value)
