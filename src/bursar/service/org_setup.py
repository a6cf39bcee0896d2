"""Creates orgs, spending caps of keys, and the operators' own org and first key.

An org is listed as a setting of the deployment's org, under the idempotency key of the request, so
repeated requests create it once. Then its books and its root account are created. If the process
is killed in between, the next try or the next process that starts completes the rest.
"""

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Final, NamedTuple
from uuid import UUID

from bursar.core.budgets.periods import PeriodKind
from bursar.core.ids import AccountId, BudgetId, OrgId, SettingId, UserId, make_id
from bursar.core.ledger.commands import AddAccount, AddUser, SetBudget, SetSetting, SetTier
from bursar.core.ledger.values import BudgetTarget, Setting
from bursar.core.money import Micros
from bursar.core.refusal import Code, Refusal, invariant
from bursar.service.keys import DEPLOYMENT, KIND, Key, Scope, format_key, hash_of
from bursar.service.ledger.batch import Answer
from bursar.service.ledger.ledger import Ledger
from bursar.service.secrets import FILE, VARIABLE, Secret, SecretUnusable
from bursar.service.workers.worker import REST, RETRY_S, DatabaseWorker, Task, Turn
from bursar.store.ledger.id_lookup import setup_states
from bursar.store.ledger.settings import settings, settings_of
from bursar.store.ledger.writer import OrgExists, create_org
from bursar.store.sql.connection import Connection

_log = logging.getLogger(__name__)

ORG: Final = "org"  # kind of setting: an org that was created
SECRET: Final = "secret"  # kind of setting: what the deployment's secret is known by
ROOT_KEY: Final = "bursar:root"
USER_KEY: Final = "bursar:user"
TIER_KEY: Final = "bursar:tier"
LISTED_AT_ONCE: Final = 200  # orgs whose beginnings are looked at together


def begin_books(connection: Connection, org: OrgId) -> None:
    """Create the books of an org if it has none."""
    try:
        create_org(connection, org)
    except OrgExists:
        return


def listed(org: OrgId, name: str, time_zone: str, tier: str | None) -> SetSetting:
    """The command that adds an org to the deployment's list."""
    fields = {"name": name, "time_zone": time_zone, "tier": tier}
    return SetSetting(kind=ORG, id=SettingId(org), body=json.dumps(fields), before=0)


def org_account(org: OrgId) -> str:
    """The id of an org's root account."""
    return _own_id(org, "account")


@lru_cache(maxsize=10_000)
def org_user(org: OrgId) -> str:
    """The id of the user for requests that name none."""
    return _own_id(org, "user")


def _own_id(org: OrgId, label: str) -> str:
    """An id for something that every org has once, derived from the org's id."""
    return make_id(org, "bursar", label, UUID(org).int >> 80)


def begin_org(ledger: Ledger, org: OrgId, name: str, time_zone: str, tier: str | None) -> None:
    """Add the root account and the default user to an org's new books."""
    account = AccountId(org_account(org))
    root = AddAccount(account=account, parent=None, name=name, time_zone=time_zone)
    answers = [
        ledger.submit(org, ROOT_KEY, root),
        ledger.submit(org, USER_KEY, AddUser(user=UserId(org_user(org)))),
    ]
    if tier is not None:
        answers.append(ledger.submit(org, TIER_KEY, SetTier(tier=tier)))
    for answer in [future.result() for future in answers]:
        refused = isinstance(answer.outcome, Refusal)
        invariant(not refused, "an org cannot be set up", org=org, outcome=answer.outcome)


def finish_orgs(
    connection: Connection, ledger: Ledger, may_continue: Callable[[], bool] = lambda: True
) -> list[OrgId]:
    """Complete orgs that were listed but not set up because a process died; returns their ids.

    An org that cannot be set up, for example because it is frozen, does not affect the others.
    """
    finished: list[OrgId] = []
    after = ""
    while may_continue() and (page := settings(connection, DEPLOYMENT, ORG, after, LISTED_AT_ONCE)):
        after = page[-1].id
        known = setup_states(connection, [(org.id, org_user(org.id)) for org in page])
        for org in page:
            fields = json.loads(org.body or "{}")
            root, tier = known.get(org.id, (False, False))
            if root and (tier or fields["tier"] is None):
                continue
            try:
                begin_books(connection, org.id)
                begin_org(ledger, org.id, **fields)
                finished.append(org.id)
            except Exception as error:  # whatever it is, it is this org's own
                _log.error("org %s: setup cannot be completed: %s", org.id, error)
    return finished


class OrgSetupWorker(DatabaseWorker):
    """Completes orgs that a dead process left incomplete, once, after this process has started.

    It looks at all orgs, which takes a second for 20,000 of them, so the service does not wait.
    """

    def __init__(self, connect: Callable[[], Connection], ledger: Ledger) -> None:
        @contextmanager
        def prepare(connection: Connection) -> Iterator[Task]:
            def finish(turn: Turn) -> float:
                finish_orgs(connection, ledger, turn.may_continue)
                return REST

            yield finish

        super().__init__("org setup", connect, prepare, interval_s=RETRY_S)


class Cap(NamedTuple):
    """The spend cap of a key."""

    limit: Micros
    every: str  # a period, as budgets have them


def begin_cap(ledger: Ledger, org: OrgId, key: str, cap: Cap) -> None:
    """Make a key a user of its org, with a hard budget.

    The process may die between the two commands. So the secret of a new or rotated key is returned
    only after both.
    """
    budget = make_id(org, f"bursar:cap:{key}", "budget", UUID(key).int >> 80)
    limit = SetBudget(
        budget=BudgetId(budget),
        target=BudgetTarget(user=UserId(key)),
        every=PeriodKind(cap.every),
        limit=cap.limit,
        hard=True,
    )
    answers = [
        ledger.submit(org, f"bursar:cap:{key}:user", AddUser(user=UserId(key))),
        ledger.submit(org, f"bursar:cap:{key}:budget", limit),
    ]
    for answer in [future.result() for future in answers]:
        # A user may have been given the key's id before, for reasons of the org's own.
        outcome = answer.outcome
        fine = not isinstance(outcome, Refusal) or outcome.code is Code.ALREADY_EXISTS
        invariant(fine, "a key cannot be capped", key=key, outcome=outcome)


def check_secret(connection: Connection, ledger: Ledger, secret: Secret) -> None:
    """Store a fingerprint of the deployment's secret; refuse any other secret afterwards.

    With another secret the service would seem to work, but receivers would reject the signatures of
    webhooks, and a repeated request for a key would return another key. A deployment that has its
    secret is only read: a process must start while nothing can be written.
    """
    body = json.dumps({"fingerprint": secret.fingerprint})
    stored = _deployment_setting(connection, SECRET, SECRET)
    if stored is not None:
        is_ours = json.loads(stored.body or "{}") == json.loads(body)
    else:
        command = SetSetting(kind=SECRET, id=SettingId(SECRET), body=body, before=0)
        answer = ledger.ask(DEPLOYMENT, f"bursar:secret:{secret.fingerprint}", command)
        is_ours = _is_new_or_exists(answer, "the secret cannot be kept")
    if not is_ours:
        raise SecretUnusable(
            "this database belongs to a deployment with another secret. Give this process the"
            f" deployment's own: set {VARIABLE}, or copy {FILE} from the state folder of a process"
            " that serves it over the one in this process's state folder."
        )


def first_key(connection: Connection, ledger: Ledger, secret: Secret) -> str:
    """The full text of the operators' first key; it depends only on the deployment's secret."""
    raw = secret.derived("first operator key")
    id = str(UUID(bytes=secret.derived("id of the first operator key")[:16], version=4))
    if _deployment_setting(connection, KIND, id) is None:
        key = Key(name="first", hash=hash_of(raw), scopes=(Scope.OPERATOR,), account="")
        command = SetSetting(kind=KIND, id=SettingId(id), body=key.body, before=0)
        answer = ledger.ask(DEPLOYMENT, f"bursar:first-key:{id}", command)
        _is_new_or_exists(answer, "the first key cannot be kept")
    return format_key(DEPLOYMENT, id, raw)


def _deployment_setting(connection: Connection, kind: str, id: str) -> Setting | None:
    """A setting of the deployment, also one that was dropped; None if there never was one."""
    return settings_of(connection, kind, [(DEPLOYMENT, id)]).get((DEPLOYMENT, id))


def _is_new_or_exists(answer: Answer, otherwise: str) -> bool:
    """True if the setting was written, False if there is another; anything else is a bug."""
    if not isinstance(answer.outcome, Refusal):
        return True
    exists = answer.outcome.code is Code.ALREADY_EXISTS
    invariant(exists, otherwise, outcome=answer.outcome)
    return False
