"""What machines found about the database's clock, and what operators accepted (D5)."""

from typing import Final

from bursar.core.clock_trust import ClockBaseline, Distrust
from bursar.core.instant import Instant
from bursar.core.value import value
from bursar.store.sql.connection import Connection

ALL: Final = """
    select machine, host, difference, agreed, wall_difference, seen_at,
           distrust, off, refused_at, binds
      from clock_witnesses
     order by machine
"""
LOCK_WITNESS: Final = "select from clock_witnesses where machine = %s for update"
SAVE: Final = """
    insert into clock_witnesses
           (machine, host, difference, agreed, wall_difference, seen_at,
            distrust, off, refused_at, binds)
    values (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
    on conflict (machine) do update
       set host = excluded.host, difference = excluded.difference, agreed = excluded.agreed,
           wall_difference = excluded.wall_difference, seen_at = excluded.seen_at,
           distrust = excluded.distrust, off = excluded.off, refused_at = excluded.refused_at,
           binds = excluded.binds
"""
OVERRULE: Final = "update clock_witnesses set binds = false where machine <> %s and binds"
FORGET: Final = "delete from clock_witnesses where machine <> %s and not binds and seen_at < %s"
# A machine without baseline and distrust takes the clock's next reading as its baseline.
RESET: Final = """
    update clock_witnesses
       set difference = null, agreed = null, wall_difference = 0, seen_at = %s,
           distrust = null, binds = false
"""
ORGS_AHEAD: Final = "select count(org_id), coalesce(max(now), 0) from orgs where now > %s"
POOLS_AHEAD: Final = "select count(pool_id), coalesce(max(now), 0) from pools where now > %s"
RECORD: Final = """
    insert into clock_acceptances (id, accepted_at, host, until) values (%s, %s, %s, %s)
"""
LAST_ACCEPTANCE: Final = """
    select accepted_at, host, until
      from clock_acceptances
     order by until desc, id desc
     limit 1
"""


@value
class ClockWitness:
    """What one machine found when it last compared the database's clock with its own."""

    machine: str
    host: str
    baseline: ClockBaseline | None
    seen_at: Instant = 0  # the database's time at the last agreement; 0: none
    distrust: Distrust | None = None
    off: int = 0
    refused_at: Instant = 0  # what the clock said when it was last refused
    binds: bool = False

    @property
    def is_accepted(self) -> bool:
        """Whether an operator accepted the clock, and the machine has not read it since."""
        return self.baseline is None and self.distrust is None


@value
class ClockAcceptance:
    """An operator's decision that the database's clock is right."""

    at: Instant
    host: str
    until: Instant  # events up to here may be ahead of the clock


@value
class EventsAhead:
    """Orgs or pools whose last event is later than an instant."""

    count: int
    until: Instant  # the latest of these events; 0: there is none


def load_witnesses(connection: Connection) -> list[ClockWitness]:
    """What all machines found."""
    return [
        ClockWitness(
            machine=machine,
            host=host,
            baseline=None
            if difference is None
            else ClockBaseline(
                difference=difference, agreed=agreed, wall_difference=wall_difference
            ),
            seen_at=seen_at,
            distrust=None if distrust is None else Distrust(distrust),
            off=off,
            refused_at=refused_at,
            binds=binds,
        )
        for machine, host, difference, agreed, wall_difference, seen_at, distrust, off, refused_at,
            binds in connection.execute(ALL)
    ]  # fmt: skip


def lock_witness(connection: Connection, machine: str) -> None:
    """Lock a machine's row, if it has one, until the transaction ends."""
    connection.execute(LOCK_WITNESS, [machine])


def save_witness(connection: Connection, witness: ClockWitness) -> None:
    """Store what a machine found."""
    baseline = witness.baseline
    connection.execute(
        SAVE,
        [
            witness.machine,
            witness.host,
            None if baseline is None else baseline.difference,
            None if baseline is None else baseline.agreed,
            0 if baseline is None else baseline.wall_difference,
            witness.seen_at,
            witness.distrust,
            witness.off,
            witness.refused_at,
            witness.binds,
        ],
    )


def overrule_others(connection: Connection, machine: str, forget_before: Instant) -> None:
    """End the effect of other machines' refusals, and delete rows not confirmed since an instant.

    For a machine that trusts the clock.
    """
    connection.execute(OVERRULE, [machine])
    connection.execute(FORGET, [machine, forget_before])


def orgs_ahead(connection: Connection, of: Instant) -> EventsAhead:
    """The orgs with events later than an instant. Reads all orgs."""
    [(count, until)] = connection.execute(ORGS_AHEAD, [of]).fetchall()
    return EventsAhead(count=count, until=until)


def pools_ahead(connection: Connection, of: Instant) -> EventsAhead:
    """The pools with changes later than an instant."""
    [(count, until)] = connection.execute(POOLS_AHEAD, [of]).fetchall()
    return EventsAhead(count=count, until=until)


def save_acceptance(connection: Connection, id: str, acceptance: ClockAcceptance) -> None:
    """Record that an operator accepts the clock: every machine compares anew from here."""
    connection.execute(RESET, [acceptance.at])
    connection.execute(RECORD, [id, acceptance.at, acceptance.host, acceptance.until])


def last_acceptance(connection: Connection) -> ClockAcceptance | None:
    """The acceptance that reaches furthest; None if there is none."""
    row = connection.execute(LAST_ACCEPTANCE).fetchone()
    return None if row is None else ClockAcceptance(at=row[0], host=row[1], until=row[2])
