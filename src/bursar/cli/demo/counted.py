"""What the database has of the demo's org, counted by its rows alone."""

from dataclasses import dataclass
from typing import Final

from bursar.core.money import Micros
from bursar.service.database import Connection, OrgId

KEYS: Final = """
    select key
      from requests
     where org_id = %s
     order by key
"""
SUMS: Final = """
    select sum(amount)::bigint, sum(available)::bigint, sum(held)::bigint, sum(spent)::bigint,
           sum(lapsed)::bigint, sum(revoked)::bigint, sum(moved)::bigint
      from grants
     where org_id = %s
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Keys and credits as the rows have them."""

    keys: list[str]
    granted: Micros
    available: Micros
    held: Micros
    spent: Micros
    elsewhere: Micros  # lapsed, revoked or moved

    @property
    def adds_up(self) -> bool:
        """Whether every micro-credit is somewhere, once."""
        parts = (self.available, self.held, self.spent, self.elsewhere)
        return sum(parts) == self.granted


def stored(connection: Connection, org: OrgId) -> Stored:
    """What is there of an org, in one snapshot."""
    with connection.transaction():
        connection.execute("set transaction isolation level repeatable read, read only")
        keys = [key for (key,) in connection.execute(KEYS, [org])]
        [sums] = connection.execute(SUMS, [org]).fetchall()
    granted, available, held, spent, *elsewhere = sums
    return Stored(
        keys=keys,
        granted=granted,
        available=available,
        held=held,
        spent=spent,
        elsewhere=sum(elsewhere),
    )
