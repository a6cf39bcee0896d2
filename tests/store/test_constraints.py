"""What the database itself refuses to keep, should all else fail."""

import pytest
from psycopg import errors

from bursar.store.reading import Connection
from tests.databases import new_org

REFUSED = {
    "claims_not_negative": "insert into claims values (%s, 'b', '', {})",
    "settings_number_counts": "insert into settings values (%s, 'key', 'k', '1', {} + 1, 0)",
}


@pytest.mark.parametrize("name", REFUSED)
def test_less_than_nothing_is_not_kept(connection: Connection, name: str) -> None:
    """By a constraint whose name tells what is wrong; nothing itself is fine."""
    org = new_org(connection)

    with pytest.raises(errors.CheckViolation) as error, connection.transaction():
        connection.execute(REFUSED[name].format(-1), [org])

    assert name == error.value.diag.constraint_name
    connection.execute(REFUSED[name].format(0), [org])
