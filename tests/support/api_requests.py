"""A request for every route that needs a key, about whatever ids it is given.

A route that is added without a line here fails tests: nobody would look whom it answers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tests.support.api_service import RANDOM_ID
from tests.support.pool_messages import POOL

KINDS: Final = (
    "org",
    "account",
    "user",
    "grant",
    "hold",
    "charge",
    "debt",
    "budget",
    "recurrence",
    "key",
    "quota",
    "webhook",
    "rule",
    "job",
)
NOWHERE: Final = "http://127.0.0.1:9/"  # where webhooks are sent, and nobody listens
NOBODYS: Final[Mapping[str, str]] = dict.fromkeys(KINDS, RANDOM_ID)


@dataclass(frozen=True)
class Asked:
    """A request, and the scope that a key needs for it."""

    scope: str
    path: str
    body: Any = None
    method: str = "POST"


def get(scope: str, path: str) -> Asked:
    """A request to look at something."""
    return Asked(scope, path, None, "GET")


Ids = Mapping[str, str]
REQUESTS: Final[Mapping[str, Callable[[Ids], Asked]]] = {
    # orgs and keys
    "orgs.create": lambda _: Asked("operator", "/orgs", {"name": "another"}),
    "orgs.list": lambda _: get("operator", "/orgs"),
    "orgs.get": lambda ids: get("read", f"/orgs/{ids['org']}"),
    "keys.create": lambda ids: Asked(
        "manage", "/keys", {"name": "k", "scopes": ["manage"], "account_id": ids["account"]}
    ),
    "keys.list": lambda ids: get("manage", f"/keys?org_id={ids['org']}"),
    "keys.rotate": lambda ids: Asked("manage", f"/keys/{ids['key']}/rotate", {}),
    "keys.revoke": lambda ids: Asked("manage", f"/keys/{ids['key']}", None, "DELETE"),
    # the tree and its people
    "accounts.create": lambda ids: Asked(
        "manage", "/accounts", {"parent_id": ids["account"], "name": "a"}
    ),
    "accounts.list": lambda ids: get("read", f"/accounts?org_id={ids['org']}"),
    "accounts.get": lambda ids: get("read", f"/accounts/{ids['account']}"),
    "accounts.balance": lambda ids: get("read", f"/accounts/{ids['account']}/balance"),
    "users.create": lambda ids: Asked("manage", "/users", {"org_id": ids["org"]}),
    "users.list": lambda ids: get("read", f"/users?org_id={ids['org']}"),
    "tiers.set": lambda ids: Asked("issue", "/tiers", {"org_id": ids["org"], "tier": "free"}),
    # credits
    "grants.create": lambda ids: Asked(
        "issue",
        "/grants",
        {"account_id": ids["account"], "amount_micros": 1, "kind": "paid"},
    ),
    "grants.list": lambda ids: get("read", f"/grants?account_id={ids['account']}"),
    "grants.get": lambda ids: get("read", f"/grants/{ids['grant']}"),
    "grants.revoke": lambda ids: Asked("issue", f"/grants/{ids['grant']}/revoke"),
    "grants.void": lambda ids: Asked("issue", f"/grants/{ids['grant']}/void"),
    "grants.extend": lambda ids: Asked(
        "issue", f"/grants/{ids['grant']}/extend", {"expires_at": None}
    ),
    "recurrences.stop": lambda ids: Asked("issue", f"/recurrences/{ids['recurrence']}/stop"),
    "transfers.create": lambda ids: Asked(
        "manage",
        "/transfers",
        {"grant_id": ids["grant"], "account_id": ids["account"], "amount_micros": 1},
    ),
    "debts.create": lambda ids: Asked(
        "issue", "/debts", {"account_id": ids["account"], "amount_micros": 1}
    ),
    "debts.list": lambda ids: get("read", f"/debts?org_id={ids['org']}"),
    "debts.get": lambda ids: get("read", f"/debts/{ids['debt']}"),
    "debts.absorb": lambda ids: Asked("issue", f"/debts/{ids['debt']}/absorb", {}),
    # holds
    "quotes.create": lambda ids: Asked(
        "read", "/quotes", {"account_id": ids["account"], "amount_micros": 1}
    ),
    "holds.create": lambda ids: Asked(
        "spend", "/holds", {"account_id": ids["account"], "amount_micros": 1}
    ),
    "holds.list": lambda ids: get("read", f"/holds?org_id={ids['org']}"),
    "holds.get": lambda ids: get("read", f"/holds/{ids['hold']}"),
    "holds.charge": lambda ids: Asked(
        "spend", f"/holds/{ids['hold']}/charge", {"amount_micros": 1}
    ),
    "holds.extend": lambda ids: Asked(
        "spend", f"/holds/{ids['hold']}/extend", {"amount_micros": 1}
    ),
    "holds.refund": lambda ids: Asked(
        "spend", f"/holds/{ids['hold']}/refund", {"amount_micros": 1}
    ),
    "holds.settle": lambda ids: Asked("spend", f"/holds/{ids['hold']}/settle", {}),
    "holds.release": lambda ids: Asked("spend", f"/holds/{ids['hold']}/release"),
    "charges.reverse": lambda ids: Asked("issue", f"/charges/{ids['charge']}/reverse", {}),
    # jobs
    "jobs.create": lambda ids: Asked(
        "spend",
        "/jobs",
        {
            "account_id": ids["account"],
            "command": ["true"],
            "gpus": {"types": ["H100"]},
            "max_run_seconds": 1,
            "pool": POOL,
        },
    ),
    "jobs.list": lambda ids: get("read", f"/jobs?org_id={ids['org']}"),
    "jobs.get": lambda ids: get("read", f"/jobs/{ids['job']}"),
    "jobs.events": lambda ids: get("read", f"/jobs/{ids['job']}/events"),
    "jobs.result": lambda ids: get("read", f"/jobs/{ids['job']}/result"),
    "jobs.elements": lambda ids: get("read", f"/jobs/{ids['job']}/elements"),
    "jobs.routes": lambda ids: get("read", f"/jobs/{ids['job']}/routes"),
    "top.jobs": lambda ids: get("read", f"/top/jobs?org_id={ids['org']}"),
    "jobs.extend": lambda ids: Asked("spend", f"/jobs/{ids['job']}/extend", {"amount_micros": 1}),
    "jobs.cancel": lambda ids: Asked("spend", f"/jobs/{ids['job']}/cancel"),
    "jobs.correct": lambda ids: Asked(
        "operator", f"/jobs/{ids['job']}/correct", {"attempt": 1, "end_class": "platform"}
    ),
    "jobs.why": lambda ids: get("read", f"/jobs/{ids['job']}/why"),
    "jobs.logs": lambda ids: get("read", f"/jobs/{ids['job']}/logs"),
    # pools and nodes
    "pools.create": lambda _: Asked("operator", "/pools", {"id": POOL}),
    "pools.list": lambda _: get("read", "/pools"),
    "pools.events": lambda _: get("operator", f"/pools/{POOL}/events"),
    "pools.explain": lambda _: get("read", f"/pools/{POOL}/explain"),
    "pools.advice": lambda _: get("operator", f"/pools/{POOL}/advice"),
    "pools.policy": lambda _: get("operator", f"/pools/{POOL}/policy"),
    "pools.set_policy": lambda _: Asked("operator", f"/pools/{POOL}/policy", {}, "PUT"),
    "nodes.list": lambda _: get("operator", f"/pools/{POOL}/nodes"),
    "scaling.get": lambda _: get("operator", f"/pools/{POOL}/scaling"),
    "scaling.set": lambda _: Asked("operator", f"/pools/{POOL}/scaling", {"offers": []}, "PUT"),
    "orders.list": lambda _: get("operator", f"/pools/{POOL}/orders"),
    "nodes.register": lambda _: Asked(
        "work", "/pools/nowhere/nodes/n1", {"gpu_type": "H100", "gpus": 8}, "PUT"
    ),
    "nodes.set_state": lambda _: Asked(
        "operator", f"/pools/{POOL}/nodes/n1/state", {"state": "ready"}
    ),
    "nodes.reset": lambda _: Asked("operator", f"/pools/{POOL}/nodes/n1/reset", {}),
    "nodes.report": lambda _: Asked(
        "work",
        "/pools/nowhere/nodes/n1/reports",
        {"boot": 1, "number": 1, "at_us": 0, "readings": []},
    ),
    "nodes.log": lambda _: Asked(
        "work", "/pools/nowhere/nodes/n1/logs", {"fence": 1, "offset": 0, "size": 0, "text": ""}
    ),
    "nodes.finished_jobs": lambda _: Asked(
        "work", "/pools/nowhere/nodes/n1/finished", {"jobs": []}
    ),
    # limits and prices
    "budgets.set": lambda ids: Asked(
        "manage", "/budgets", {"account_id": ids["account"], "every": "day", "limit_micros": 1}
    ),
    "budgets.list": lambda ids: get("read", f"/budgets?org_id={ids['org']}"),
    "budgets.get": lambda ids: get("read", f"/budgets/{ids['budget']}"),
    "budgets.update": lambda ids: Asked(
        "manage", f"/budgets/{ids['budget']}", {"limit_micros": 2}, "PATCH"
    ),
    "budgets.delete": lambda ids: Asked("manage", f"/budgets/{ids['budget']}", None, "DELETE"),
    "prices.set": lambda ids: Asked(
        "issue",
        "/prices",
        {"org_id": ids["org"], "rates": [{"gpu_type": "H100", "micros_per_gpu_hour": 1}]},
    ),
    "prices.list": lambda ids: get("read", f"/prices?org_id={ids['org']}"),
    "quotas.create": lambda ids: Asked(
        "manage", "/quotas", {"account_id": ids["account"], "gpus_max": 1}
    ),
    "quotas.list": lambda ids: get("read", f"/quotas?org_id={ids['org']}"),
    "quotas.get": lambda ids: get("read", f"/quotas/{ids['quota']}"),
    "quotas.update": lambda ids: Asked(
        "manage", f"/quotas/{ids['quota']}", {"account_id": ids["account"], "gpus_max": 2}, "PUT"
    ),
    "quotas.delete": lambda ids: Asked("manage", f"/quotas/{ids['quota']}", None, "DELETE"),
    "webhooks.create": lambda ids: Asked(
        "manage", "/webhooks", {"account_id": ids["account"], "url": NOWHERE}
    ),
    "webhooks.list": lambda ids: get("read", f"/webhooks?org_id={ids['org']}"),
    "webhooks.get": lambda ids: get("read", f"/webhooks/{ids['webhook']}"),
    "webhooks.delete": lambda ids: Asked("manage", f"/webhooks/{ids['webhook']}", None, "DELETE"),
    "webhooks.rotate": lambda ids: Asked("manage", f"/webhooks/{ids['webhook']}/rotate", {}),
    "webhooks.deliveries": lambda ids: get("read", f"/webhooks/{ids['webhook']}/deliveries"),
    "webhooks.resend": lambda ids: Asked(
        "manage", f"/webhooks/{ids['webhook']}/deliveries/1/resend"
    ),
    "alerts.list": lambda ids: get("read", f"/alerts?org_id={ids['org']}"),
    "alerts.rules.list": lambda ids: get("read", f"/alerts/rules?org_id={ids['org']}"),
    "alerts.rules.create": lambda ids: Asked(
        "manage",
        "/alerts/rules",
        {"kind": "low_balance", "account_id": ids["account"], "below_micros": 1},
    ),
    "alerts.rules.delete": lambda ids: Asked(
        "manage", f"/alerts/rules/{ids['rule']}", None, "DELETE"
    ),
    # looking
    "accounts.statement": lambda ids: get("read", f"/accounts/{ids['account']}/statement"),
    "usage.report": lambda ids: get("read", f"/usage?org_id={ids['org']}"),
    "exports.focus": lambda ids: get("read", f"/exports/focus?org_id={ids['org']}"),
    "events.list": lambda ids: get("read", f"/events?org_id={ids['org']}"),
    "top": lambda ids: get("read", f"/top/accounts?org_id={ids['org']}"),
}
