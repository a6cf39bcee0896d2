"""Columns are sent as arrays in PostgreSQL's own notation, and arrive as they were."""

from typing import Any

import pytest

from bursar.core.ledger.values import CreditKind
from bursar.store.sql.arrays import array_literal
from bursar.store.sql.connection import Connection

COLUMNS: dict[str, tuple[str, list[Any]]] = {
    "numbers": ("bigint", [1, -(2**63), 0]),
    "numbers, not all known": ("bigint", [5, None, 7]),
    "nothing but gaps": ("text", [None, None]),
    "yes and no": ("boolean", [True, False]),
    "yes, no and unknown": ("boolean", [True, None, False]),
    "texts": ("text", ["a", "", 'say "no"', "back\\slash", "a,b", "{}", "None", "NULL", "ä€"]),
    "texts, not all known": ("text", ["None", None, 'a"\\b', "NULL", ""]),
    "names": ("text", [CreditKind.PAID, "x"]),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_round_trips(connection: Connection, name: str) -> None:
    """Whatever it is made of."""
    kind, values = COLUMNS[name]
    sql = f"select %s::{kind}[]"
    arrived: Any = connection.execute(sql.encode(), [array_literal(values)]).fetchone()

    assert (values,) == arrived


def test_text_that_cannot_be_stored_is_refused() -> None:
    """PostgreSQL knows no NUL in a text."""
    with pytest.raises(ValueError, match="NUL"):
        array_literal(["a", "b\0c"])
