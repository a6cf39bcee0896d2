"""Reads the settings of orgs."""

from collections.abc import Sequence
from typing import Final

from bursar.core.ids import OrgId
from bursar.core.ledger.values import Setting
from bursar.store.sql.arrays import Values, column_arrays
from bursar.store.sql.connection import Connection, restrict_to_orgs
from bursar.store.sql.fragments import lookup

SETTING: Final = """
    select kind, setting_id, body::text, number, at
      from settings
     where org_id = %s and kind = %s and setting_id = %s
"""

PAGE: Final = """
    select kind, setting_id, body::text, number, at
      from settings
     where org_id = %s and kind = %s and setting_id > %s and body is not null
     order by setting_id
     limit %s
"""


OF_MANY: Final = f"""
    select t.org_id, t.kind, t.setting_id, t.body::text, t.number, t.at
      from {lookup({"org_id": "text", "kind": "text", "setting_id": "text"}, "settings")}
     order by t.org_id, t.setting_id
"""


def settings_of(
    connection: Connection, kind: str, where: Sequence[tuple[OrgId, str]]
) -> dict[tuple[OrgId, str], Setting]:
    """Settings of a kind of several orgs, by org and id; missing ones are left out."""
    columns = [(org, kind, id) for org, id in where]
    with connection.transaction():
        restrict_to_orgs(connection, sorted({org for org, _ in where}))
        rows = connection.execute(OF_MANY, column_arrays(columns, 3)).fetchall()
    return {(row[0], row[2]): _setting(row[1:]) for row in rows}


def setting(connection: Connection, org: OrgId, kind: str, id: str) -> Setting | None:
    """The setting of an org with a kind and id; None if it does not exist or was deleted."""
    with connection.transaction():
        restrict_to_orgs(connection, [org])
        row = connection.execute(SETTING, [org, kind, id]).fetchone()
    if row is None or row[2] is None:
        return None
    return _setting(row)


def settings(connection: Connection, org: OrgId, kind: str, after: str, most: int) -> list[Setting]:
    """The settings of an org of one kind, ordered by id, after an id."""
    with connection.transaction():
        restrict_to_orgs(connection, [org])
        rows = connection.execute(PAGE, [org, kind, after, most]).fetchall()
    return [_setting(row) for row in rows]


def _setting(row: Values) -> Setting:
    kind, id, body, number, at = row
    return Setting(kind=kind, id=id, body=body, number=number, at=at)
