"""How the statements of alerts and webhooks find their rows (D3)."""

from typing import Final

import pytest

from bursar.store.sql.connection import Connection
from bursar.store.webhooks import alerts, deliveries
from tests.store.test_plans import check_scan, plan_of, scans

Scan = tuple[str, tuple[str, ...]]  # an index, and the columns of it that say where

ORG: Final = ("org_id",)
EVENTS: Final = ("events_pkey", ("org_id", "number"))
GRANT: Final = ("grants_pkey", ("org_id", "grant_id"))
ENDS: Final = [("grants_ending", ("org_id", "expires_at")), ("grants_waiting", ORG)]
CURSOR: Final = ("webhook_cursors_pkey", ("org_id", "webhook_id"))
DELIVERY: Final = ("deliveries_pkey", ("org_id", "webhook_id", "number"))
PLANS: Final[dict[str, tuple[str, list[Scan]]]] = {
    "orgs to look at": (alerts.ORGS_TO_CHECK, [("orgs_pkey", ORG), ("alert_checks_pkey", ORG)]),
    "events since a look": (alerts.EVENTS, [EVENTS]),
    "rules": (alerts.RULES, [("settings_pkey", ("org_id", "kind"))]),
    "alert_rearms": (alerts.REARMS, [("alert_rearms_pkey", ("org_id", "rule_id"))]),
    "grants near their end": (alerts.ENDING, ENDS),
    "grants that were given something": (
        alerts.RETURNED,
        [GRANT, ("postings_pkey", ("org_id", "number"))],
    ),
    "grants by id": (alerts.GRANTS, [GRANT]),
    "the next end": (alerts.NEXT_ENDING, ENDS),
    "alerts": (alerts.ALERTS, [("settings_alerts", ("org_id", "number"))]),
    "webhooks to be told": (deliveries.DUE, [CURSOR, ("orgs_pkey", ORG)]),
    "events to be told": (deliveries.NEXT, [EVENTS]),
    "secrets": (deliveries.SECRETS, [("settings_pkey", ("org_id", "kind", "setting_id"))]),
    "where a webhook stands": (deliveries.UPDATE_CURSORS, [CURSOR]),
    "webhooks that are dropped": (deliveries.DROP, [CURSOR]),
    # Few are asked for at a time, and only those are in the index: it may be read as a whole.
    "what nobody wants again": (deliveries.DROP_REDELIVERIES, [("deliveries_requested", ())]),
    "what is hurried": (deliveries.DELIVER_NOW, [CURSOR]),
    "what is wanted again": (deliveries.REQUEST_REDELIVERY, [CURSOR]),
    "what is due again": (deliveries.DUE_REDELIVERIES, [("deliveries_requested", ())]),
    "events by number": (deliveries.EVENT, [EVENTS]),
    "deliveries": (deliveries.PAGE, [DELIVERY]),
}


@pytest.mark.parametrize("name", PLANS)
def test_rows_are_found_by_their_index(tables: Connection, name: str) -> None:
    """Whatever the org has besides: a look costs what has happened since the last one."""
    sql, wanted = PLANS[name]
    found = sorted(scans(plan_of(tables, sql)), key=lambda scan: str(scan.get("Index Name")))

    assert [index for index, _ in sorted(wanted)] == [scan.get("Index Name") for scan in found]
    for scan, (index, columns) in zip(found, sorted(wanted), strict=True):
        check_scan(scan, index, columns)
