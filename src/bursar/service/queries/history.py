"""Past states of an org, computed from the newest snapshot that is old enough (L12).

A view is *as of* one instant, *as known at* another. No posting takes effect after it is recorded,
so of what was recorded up to `at` everything had taken effect by `at`: a snapshot from before `at`
needs no history inside it. Three steps lead from there:

    snapshot ─ all events ─▶ recorded by `at` ─ those with an effect by `at` ─▶ known at `known_at`

The first stretch is no longer than the distance of two snapshots; in the second only corrections
and late usage are read, found by their postings.

Alternatives that were rejected. Snapshots of whole books contain every charge ever made, so they
would grow as fast as the events. One snapshot per period would be empty for quiet orgs, and too
rare for busy ones.
"""

from collections.abc import Iterator
from itertools import chain
from typing import Final

from bursar.core.ids import AccountId, GrantId, OrgId
from bursar.core.instant import NEVER, Instant
from bursar.core.ledger.events import Event
from bursar.core.ledger.history import NO_VIEWS, GrantView, fold_grants, view_grants
from bursar.store.ledger.snapshots import (
    Snapshot,
    events_after,
    keep,
    last_recorded,
    late_events,
    newest,
    recorded_at,
)
from bursar.store.sql.connection import Connection, restrict_to_orgs

EVERY: Final = 2_000  # events between two snapshots, at least


def past_view(
    connection: Connection,
    org: OrgId,
    number: int,
    at: Instant,
    known_at: Instant,
    account: AccountId | None = None,
) -> dict[GrantId, GrantView]:
    """Every grant as of `at`, as known at `known_at`; `number` is that of the org's last event.

    With an account, only its own grants are computed.
    """
    start = newest(connection, org, min(at, known_at), account)
    after, grants = (start.number, start.grants) if start else (0, NO_VIEWS)
    known = last_recorded(connection, org, known_at, after, number)
    present = last_recorded(connection, org, at, after, known)
    events: Iterator[Event] = chain(
        events_after(connection, org, after, present, account),
        late_events(connection, org, present, known, at, account),
    )
    return view_grants(events, at, known_at, grants, account)


def distance(grants: int) -> int:
    """After how many events the next snapshot is made, if the last one has this many grants.

    So all snapshots of an org except the last have at most two grants for each of its events.
    """
    return max(EVERY, (grants + 1) // 2)


def add_snapshots(connection: Connection, org: OrgId, number: int) -> int:
    """Add the snapshots that an org with this many events lacks; return how many.

    They depend only on the events, so two processes that do this at once write the same.
    """
    made = 0
    last = _last(connection, org)
    while (until := last.number + distance(len(last.grants))) <= number:
        last = _next(connection, org, last, until)
        made += 1
    return made


def _last(connection: Connection, org: OrgId) -> Snapshot:
    with connection.transaction():
        restrict_to_orgs(connection, [org])
        snapshot = newest(connection, org, NEVER)
        return snapshot or Snapshot(number=0, at=0, grants=NO_VIEWS)


def _next(connection: Connection, org: OrgId, last: Snapshot, until: int) -> Snapshot:
    """Compute and store the snapshot at a number, from the one before and the events since."""
    with connection.transaction():
        restrict_to_orgs(connection, [org])
        grants = fold_grants(events_after(connection, org, last.number, until), last.grants)
        snapshot = Snapshot(number=until, at=recorded_at(connection, org, until), grants=grants)
        keep(connection, org, snapshot)
        return snapshot
