"""Rows of webhooks: their cursors, their next events, and the outcomes of deliveries.

Some statements go over all orgs to find webhooks with due events; they cost the number of webhooks.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from bursar.core.ids import OrgId
from bursar.core.instant import NEVER, Instant
from bursar.core.ledger.values import Setting
from bursar.store.ledger.pages import EventRow
from bursar.store.sql.arrays import column_arrays
from bursar.store.sql.connection import Connection, restrict_to_orgs
from bursar.store.sql.fragments import lookup, match_keys

SPAN: Final = 20_000  # events of one org that are gone over at once for one webhook

WebhookKey = tuple[OrgId, str]  # a webhook


class WebhookCursor(NamedTuple):
    """The position of a webhook in its org's events."""

    org: OrgId
    webhook: str
    number: int  # of the last event that it is done with
    tries: int  # of the event that is next
    failing_at: Instant | None  # since when nothing has arrived
    last: int  # of the org's last event

    @property
    def key(self) -> WebhookKey:
        """The org and id of the webhook."""
        return self.org, self.webhook

    @property
    def upto(self) -> int:
        """The last event to be read now."""
        return min(self.last, self.number + SPAN)


ADD: Final = """
    insert into webhook_cursors (org_id, webhook_id, number, tries, failing_at, due_at)
    select u.org_id, u.webhook_id, u.number, 0, null, 0
      from unnest(%s::text[], %s::text[], %s::bigint[]) as u(org_id, webhook_id, number)
     order by u.org_id, u.webhook_id
    on conflict (org_id, webhook_id) do nothing
"""


def add_cursors(connection: Connection, cursors: Sequence[tuple[OrgId, str, int]]) -> None:
    """Start webhooks after an event; existing cursors stay."""
    with connection.transaction():
        restrict_to_orgs(connection, [cursor[0] for cursor in cursors])
        connection.execute(ADD, column_arrays(cursors, 3))


DUE: Final = """
    select c.org_id, c.webhook_id, c.number, c.tries, c.failing_at, o.number
      from webhook_cursors c
     cross join lateral (select * from orgs t where t.org_id = c.org_id offset 0) as o
     where (c.org_id, c.webhook_id) > (%s, %s) and c.due_at <= %s and c.number < o.number
     order by c.org_id, c.webhook_id
     limit %s
"""


def due_cursors(
    connection: Connection, after: WebhookKey, now: Instant, most: int
) -> list[WebhookCursor]:
    """The next webhooks, by id, that may have an event to deliver."""
    return [WebhookCursor(*row) for row in connection.execute(DUE, [*after, now, most])]


NEXT: Final = """
    select k.org_id, k.webhook_id, t.number, t.at, t.kind, t.body::text, t.actor
      from unnest(%s::text[], %s::text[], %s::bigint[], %s::bigint[], %s::text[])
           as k(org_id, webhook_id, after, last, kinds)
     cross join lateral (
           select * from events e
            where e.org_id = k.org_id and e.number > k.after and e.number <= k.last
              and (k.kinds = '' or strpos(k.kinds, ',' || e.kind || ',') > 0)
            order by e.number
            limit %s) as t
     order by k.org_id, k.webhook_id, t.number
"""


def next_events(
    connection: Connection, cursors: Sequence[tuple[WebhookCursor, Sequence[str]]], most: int
) -> dict[WebhookKey, list[EventRow]]:
    """The next events for each webhook, of the kinds that it names; of all if it names none."""
    rows = [
        (
            cursor.org,
            cursor.webhook,
            cursor.number,
            cursor.upto,
            f",{','.join(kinds)}," if kinds else "",
        )
        for cursor, kinds in cursors
    ]
    events: dict[WebhookKey, list[EventRow]] = {cursor.key: [] for cursor, _ in cursors}
    with connection.transaction():
        restrict_to_orgs(connection, [row[0] for row in rows])
        for org, webhook, *event in connection.execute(NEXT, [*column_arrays(rows, 5), most]):
            events[org, webhook].append(EventRow(*event))
    return events


SECRETS: Final = """
    -- The ids of a webhook's secrets begin with its own id and a slash, which comes before 0.
    select t.org_id, t.setting_id, t.body::text, t.number, t.at
      from unnest(%s::text[], %s::text[]) as k(org_id, webhook_id)
     cross join lateral (
           select * from settings s
            where s.org_id = k.org_id and s.kind = 'webhook_secret'
              and s.setting_id > k.webhook_id || '/' and s.setting_id < k.webhook_id || '0'
           offset 0) as t
     order by t.org_id, t.number
"""


def secrets(
    connection: Connection, webhooks: Sequence[WebhookKey]
) -> dict[WebhookKey, list[Setting]]:
    """The secrets that webhooks got after their first, oldest first."""
    secrets_by_webhook: dict[WebhookKey, list[Setting]] = {webhook: [] for webhook in webhooks}
    with connection.transaction():
        restrict_to_orgs(connection, [org for org, _ in webhooks])
        for org, id, body, number, at in connection.execute(SECRETS, column_arrays(webhooks, 2)):
            secret = Setting(kind="webhook_secret", id=id, body=body, number=number, at=at)
            secrets_by_webhook[org, id.partition("/")[0]].append(secret)
    return secrets_by_webhook


# What became of it


class DeliveryAttempt(NamedTuple):
    """The outcome of one attempt."""

    org: OrgId
    webhook: str
    number: int  # of the event
    status: str
    at: Instant
    code: int | None  # what the receiver answered
    why: str | None  # why it did not arrive
    next_at: Instant | None


SAVE_ATTEMPTS: Final = """
    insert into deliveries (org_id, webhook_id, number, status, attempts, last_at, code, why,
                            next_at, redelivery, tries)
    select u.org_id, u.webhook_id, u.number, u.status, 1, u.at, u.code, u.why, u.next_at, false, 0
      from unnest(%s::text[], %s::text[], %s::bigint[], %s::text[], %s::bigint[], %s::integer[],
                  %s::text[], %s::bigint[])
           as u(org_id, webhook_id, number, status, at, code, why, next_at)
     order by u.org_id, u.webhook_id, u.number
    on conflict (org_id, webhook_id, number) do update
       set status = excluded.status, attempts = deliveries.attempts + 1,
           last_at = excluded.last_at, code = excluded.code, why = excluded.why,
           next_at = excluded.next_at, tries = deliveries.tries + 1,
           redelivery = deliveries.redelivery and excluded.status = 'pending'
"""


class CursorUpdate(NamedTuple):
    """The position of a webhook after an attempt."""

    org: OrgId
    webhook: str
    number: int
    tries: int
    failing_at: Instant | None
    due_at: Instant


UPDATE_CURSORS: Final = f"""
    -- Never back: two who deliver at once agree on the further one. What was dropped stays so.
    update webhook_cursors t
       set number = u.number, tries = u.tries, failing_at = u.failing_at, due_at = u.due_at
      from unnest(%s::text[], %s::text[], %s::bigint[], %s::integer[], %s::bigint[], %s::bigint[])
           as u(org_id, webhook_id, number, tries, failing_at, due_at)
     where {match_keys("org_id", "webhook_id")}
       and t.number <= u.number and t.due_at < {NEVER}
"""


def save_outcomes(
    connection: Connection, attempts: Sequence[DeliveryAttempt], cursors: Sequence[CursorUpdate]
) -> None:
    """Store the outcomes of attempts and the positions of webhooks; all or nothing."""
    orgs = sorted({row.org for row in attempts} | {row.org for row in cursors})
    if not orgs:
        return
    with connection.transaction():
        restrict_to_orgs(connection, orgs)
        for part in _without_repeats(attempts):
            connection.execute(SAVE_ATTEMPTS, column_arrays(part, 8))
        if cursors:
            connection.execute(UPDATE_CURSORS, column_arrays(cursors, 6))


def _without_repeats(attempts: Sequence[DeliveryAttempt]) -> list[list[DeliveryAttempt]]:
    """Attempts in groups without repeated deliveries: a statement changes a row once."""
    groups: list[dict[tuple[OrgId, str, int], DeliveryAttempt]] = []
    for attempt in attempts:
        key = (attempt.org, attempt.webhook, attempt.number)
        group = next((group for group in groups if key not in group), None)
        if group is None:
            groups.append(group := {})
        group[key] = attempt
    return [list(group.values()) for group in groups]


DROP: Final = f"""
    update webhook_cursors t
       set due_at = {NEVER}
      from unnest(%s::text[], %s::text[]) as u(org_id, webhook_id)
     where {match_keys("org_id", "webhook_id")}
"""
DROP_REDELIVERIES: Final = f"""
    update deliveries t
       set redelivery = false, next_at = null
      from unnest(%s::text[], %s::text[]) as u(org_id, webhook_id)
     where {match_keys("org_id", "webhook_id")} and t.redelivery
"""


def drop_webhooks(connection: Connection, webhooks: Sequence[WebhookKey]) -> None:
    """Delete the cursors of these webhooks."""
    with connection.transaction():
        restrict_to_orgs(connection, [org for org, _ in webhooks])
        connection.execute(DROP, column_arrays(webhooks, 2))
        connection.execute(DROP_REDELIVERIES, column_arrays(webhooks, 2))


# Redeliveries

DELIVER_NOW: Final = f"""
    -- What has not come to its turn is tried now, if it is the next; later ones keep their turn.
    update webhook_cursors t
       set due_at = least(t.due_at, u.at)
      from unnest(%s::text[], %s::text[], %s::bigint[], %s::bigint[])
           as u(org_id, webhook_id, number, at)
     where {match_keys("org_id", "webhook_id")}
       and u.number > t.number and t.due_at < {NEVER}
"""
REQUEST_REDELIVERY: Final = """
    insert into deliveries (org_id, webhook_id, number, status, attempts, next_at, redelivery,
                            redelivery_requested_at, tries)
    select u.org_id, u.webhook_id, u.number, 'pending', 0, u.at, true, u.at, 0
      from unnest(%s::text[], %s::text[], %s::bigint[], %s::bigint[])
           as u(org_id, webhook_id, number, at)
     cross join lateral (
           select * from webhook_cursors c
            where c.org_id = u.org_id and c.webhook_id = u.webhook_id and c.number >= u.number
           offset 0) as c
     order by u.org_id, u.webhook_id, u.number
    on conflict (org_id, webhook_id, number) do update
       set status = 'pending', next_at = excluded.next_at, redelivery = true,
           redelivery_requested_at = excluded.redelivery_requested_at, tries = 0
"""


def request_redeliveries(
    connection: Connection, requests: Sequence[tuple[OrgId, str, int, Instant]]
) -> None:
    """Have deliveries (org, webhook, event, since when) repeated at once."""
    distinct = list({request[:3]: request for request in requests}.values())
    with connection.transaction():
        restrict_to_orgs(connection, [request[0] for request in distinct])
        connection.execute(DELIVER_NOW, column_arrays(distinct, 4))
        connection.execute(REQUEST_REDELIVERY, column_arrays(distinct, 4))


class Redelivery(NamedTuple):
    """A delivery that a user has requested again."""

    org: OrgId
    webhook: str
    number: int
    tries: int
    requested_at: Instant


DUE_REDELIVERIES: Final = """
    select d.org_id, d.webhook_id, d.number, d.tries, d.redelivery_requested_at
      from deliveries d
     where d.redelivery and d.next_at <= %s
     order by d.org_id, d.webhook_id, d.number
     limit %s
"""


def due_redeliveries(connection: Connection, now: Instant, most: int) -> list[Redelivery]:
    """Requested redeliveries that are due."""
    return [Redelivery(*row) for row in connection.execute(DUE_REDELIVERIES, [now, most])]


EVENT: Final = f"""
    select t.org_id, t.number, t.at, t.kind, t.body::text, t.actor
      from {lookup({"org_id": "text", "number": "bigint"}, "events")}
     order by t.org_id, t.number
"""


def events_at(
    connection: Connection, numbers: Sequence[tuple[OrgId, int]]
) -> dict[tuple[OrgId, int], EventRow]:
    """Events by their numbers."""
    with connection.transaction():
        restrict_to_orgs(connection, [org for org, _ in numbers])
        rows = connection.execute(EVENT, column_arrays(numbers, 2)).fetchall()
    return {(org, event[0]): EventRow(*event) for org, *event in rows}


# Looking at them


class Delivery(NamedTuple):
    """The state of the delivery of an event to a webhook."""

    number: int
    status: str
    attempts: int
    last_at: Instant | None
    code: int | None
    why: str | None
    next_at: Instant | None


PAGE: Final = """
    select number, status, attempts, last_at, code, why, next_at
      from deliveries
     where org_id = %s and webhook_id = %s and number > %s and (%s = '' or status = %s)
     order by number
     limit %s
"""


def deliveries_page(
    connection: Connection, org: OrgId, webhook: str, after: int, status: str, most: int
) -> list[Delivery]:
    """A webhook's deliveries in the order of events; if `status` is not empty, only those."""
    with connection.transaction():
        restrict_to_orgs(connection, [org])
        rows = connection.execute(PAGE, [org, webhook, after, status, status, most]).fetchall()
    return [Delivery(*row) for row in rows]
