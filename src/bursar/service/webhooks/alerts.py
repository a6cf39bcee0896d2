"""Raises alerts: checks orgs that have new events, or that are due for a check (B6).

An alert is a setting of its org. Its id is derived from its occasion, so raising it a second time
is refused. Any number of processes may check at once, and a process that is killed between raising
an alert and saving the check does no harm. The same check finds new webhooks and requested
redeliveries, which are also events of the org.

An expiry alert is raised once for a grant and its expiry: when the expiry is near, or when credits
return to an empty grant whose expiry is near, because a hold was released.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from bursar.core import alerts as core
from bursar.core.alerts import ALERT, EXPIRY, RULE, STANDING, Alert, AlertRule
from bursar.core.ids import AccountId, OrgId, SettingId
from bursar.core.instant import HOUR, NEVER, Instant
from bursar.core.ledger.commands import SetSetting
from bursar.core.ledger.events import Event, GrantExtended, SettingSet
from bursar.core.ledger.values import Setting
from bursar.core.refusal import Refusal
from bursar.service.cache import Directory
from bursar.service.ledger.batch import CommandRequest
from bursar.service.ledger.clock import GuardedClock
from bursar.service.ledger.ledger import Ledger
from bursar.service.queries.balances import AsOf, LedgerReads
from bursar.service.queries.entities import ResultPage
from bursar.service.queries.settings import enter_snapshot
from bursar.service.webhooks.signatures import RESEND, WEBHOOK, resend_of
from bursar.service.workers.worker import LeasedWorker
from bursar.store import worker_leases
from bursar.store.ledger.settings import settings_of
from bursar.store.sql.connection import SNAPSHOT, Connection, money_time, restrict_to_orgs
from bursar.store.webhooks import alerts, deliveries
from bursar.store.webhooks.alerts import ExpiringGrant, ExpiryWindow, OrgToCheck

ALERTS: Final = "alerts"  # the worker
PAGE: Final = 256  # orgs that are looked at together
SUBMIT_MAX: Final = 256  # alerts that are raised at once: others want the ledger, too
RECHECK_INTERVAL: Final = (
    HOUR  # after which rules about balances are checked even without new events
)

_log = logging.getLogger(__name__)

SubmitAlerts = Callable[
    [Sequence[CommandRequest]], set[OrgId]
]  # lets commands be decided; orgs that could not


def submit_through(ledger: Ledger) -> SubmitAlerts:
    """A function that submits alerts to a ledger; a refused one was raised before."""

    def decided(commands: Sequence[CommandRequest]) -> set[OrgId]:
        waiting = [(ask.org, ledger.submit(ask.org, ask.key, ask.command)) for ask in commands]
        failed: set[OrgId] = set()
        for org, answer in waiting:
            if (error := answer.exception()) is not None:
                _log.warning("org %s: raising an alert failed: %s", org, error)
                failed.add(org)
        return failed

    return decided


def raise_command(org: OrgId, id: str, alert: Alert) -> CommandRequest:
    """The command that raises an alert, unless it was raised before."""
    command = SetSetting(kind=ALERT, id=SettingId(id), body=alert.body, before=0)
    return CommandRequest(org, f"bursar:alert/{id}", command)


def recover_command(org: OrgId, setting: Setting) -> CommandRequest:
    """The command that marks an alert as recovered."""
    recovered = core.mark_recovered(Alert.from_body(setting.body or ""), setting.at)
    command = SetSetting(kind=ALERT, id=setting.id, body=recovered.body, before=setting.number)
    return CommandRequest(org, f"bursar:alert/{setting.id}/over", command)


@dataclass(slots=True)
class _OrgRule:
    """A rule of an org; without an id, the default rule of all orgs."""

    org: OrgId
    id: str | None
    rule: AlertRule
    number: int = 0  # of the event that set it
    at: Instant = 0


@dataclass(slots=True)
class _CheckedPage:
    """A page of orgs that is being checked, and what was found."""

    now: Instant
    to_check: Sequence[OrgToCheck]
    events: list[tuple[OrgId, int, Event]] = field(default_factory=list)
    rules: list[_OrgRule] = field(default_factory=list)
    windows: list[ExpiryWindow] = field(default_factory=list)
    due: dict[OrgId, Instant] = field(default_factory=dict)
    asks: dict[str, CommandRequest] = field(default_factory=dict)  # by the id of the alert
    failed: set[OrgId] = field(default_factory=set)

    @property
    def orgs(self) -> list[OrgId]:
        return [org.org for org in self.to_check]

    @property
    def expiry_rules(self) -> list[_OrgRule]:
        return [rule for rule in self.rules if rule.rule.kind is EXPIRY.kind]

    def set_due(self, org: OrgId, at: Instant) -> None:
        self.due[org] = min(self.due.get(org, NEVER), at)


class Alerter:
    """Checks orgs for alerts, on a connection."""

    def __init__(
        self,
        connection: Connection,
        submit: SubmitAlerts,
        clock: Callable[[Connection], Instant] = money_time,
    ) -> None:
        self._connection = connection
        self._submit = submit
        self._clock = clock
        self._directory = Directory()

    def check_all(self, may_continue: Callable[[], bool] = lambda: True) -> int:
        """Check all orgs that have new events or are due for a check; return how many."""
        now = self._clock(self._connection)
        after, count = "", 0
        while may_continue():
            page = alerts.limit_events(alerts.orgs_to_check(self._connection, after, now, PAGE))
            if not page:
                worker_leases.record_done(self._connection, ALERTS, now)
                break
            count += len(page)
            behind = self.check_page(page)
            after = page[-1].org if not behind else after
        return count

    def check_page(self, orgs: Sequence[OrgToCheck]) -> bool:
        """Raise the alerts of some orgs, and save that they were checked.

        Returns whether some of them have more events and must be checked again.
        """
        page = _CheckedPage(self._clock(self._connection), orgs)
        self._read(page)
        self._follow_webhooks(page)
        self._check_events(page)
        self._check_refilled(page)
        self._check_balances(page)
        self._raise(page)
        self._check_expiring(page)
        checks = [
            (org.org, org.upto, page.now, page.due.get(org.org, NEVER))
            for org in orgs
            if org.org not in page.failed
        ]
        if checks:
            alerts.save_checks(self._connection, checks)
        return any(org.is_behind and org.org not in page.failed for org in orgs)

    def _raise(self, page: _CheckedPage) -> None:
        """Submit the alerts found so far, in portions."""
        asks = list(page.asks.values())
        page.asks.clear()
        for start in range(0, len(asks), SUBMIT_MAX):
            page.failed |= self._submit(asks[start : start + SUBMIT_MAX])

    def _read(self, page: _CheckedPage) -> None:
        """Read the data of all orgs of the page, in one snapshot."""
        with self._connection.transaction():
            self._connection.execute(SNAPSHOT)
            restrict_to_orgs(self._connection, page.orgs)
            page.events = alerts.events_to_check(self._connection, page.to_check)
            page.rules = [_OrgRule(org, None, EXPIRY) for org in page.orgs]
            for org, setting in alerts.rules(self._connection, page.orgs):
                rule = AlertRule.from_body(setting.body or "")
                page.rules.append(_OrgRule(org, setting.id, rule, setting.number, setting.at))
            self._read_windows(page)

    def _read_windows(self, page: _CheckedPage) -> None:
        """Compute the expiry times that came within a rule's horizon since the last check."""
        checked = {state.org: state for state in page.to_check}
        for place, rule in enumerate(page.expiry_rules):
            org, horizon = checked[rule.org], rule.rule.horizon
            is_new = rule.number > org.checked_number  # then all that is near is told
            after = page.now if is_new else max(org.checked_at + horizon, page.now)
            page.windows.append(ExpiryWindow(rule.org, place, after + 1, "", page.now + horizon))
        afters = [(window.org, window.place, window.upto) for window in page.windows]
        for owner, place, at in alerts.next_expiries(self._connection, afters):
            if at is not None and at < NEVER:
                page.set_due(owner, at - page.expiry_rules[place].rule.horizon)

    def _follow_webhooks(self, page: _CheckedPage) -> None:
        """Start new webhooks and requested redeliveries, by the events."""
        created: list[tuple[OrgId, str, int]] = []
        redeliveries: list[tuple[OrgId, str, int, Instant]] = []
        for org, number, event in page.events:
            if not isinstance(event, SettingSet) or event.body is None:
                continue
            if event.kind == WEBHOOK:
                created.append((org, event.id, number))
            elif event.kind == RESEND:
                redeliveries.append((org, *resend_of(event.body), event.at))
        if created:
            deliveries.add_cursors(
                self._connection, list({cursor[:2]: cursor for cursor in created[::-1]}.values())
            )
        if redeliveries:
            deliveries.request_redeliveries(self._connection, redeliveries)

    def _check_events(self, page: _CheckedPage) -> None:
        for org, _, event in page.events:
            for occasion in core.alerts_for_event(org, event):
                account = self._directory.account_of(
                    self._connection, org, occasion.table, occasion.row
                )
                alert = _with_account(occasion.alert, account or None)
                page.asks.setdefault(occasion.id, raise_command(org, occasion.id, alert))

    def _check_expiring(self, page: _CheckedPage) -> None:
        """Raise alerts for grants that expire soon; there may be any number of them."""
        rules = page.expiry_rules
        for grants in alerts.expiring_grants(self._connection, page.windows):
            for place, grant in grants:
                self._add_expiry_alert(page, rules[place], grant)
            self._raise(page)

    def _check_refilled(self, page: _CheckedPage) -> None:
        """Raise alerts for grants that expire soon and got credits or a new expiry."""
        rules: dict[OrgId, list[_OrgRule]] = defaultdict(list)
        for rule in page.expiry_rules:
            rules[rule.org].append(rule)
        within = {org: max(rule.rule.horizon for rule in those) for org, those in rules.items()}
        extended = {
            (org, event.grant) for org, _, event in page.events if isinstance(event, GrantExtended)
        }
        with self._connection.transaction():
            restrict_to_orgs(self._connection, page.orgs)
            grants = alerts.refilled_grants(self._connection, page.to_check, page.now, within)
            if extended:
                grants += alerts.grants_with_credits(self._connection, sorted(extended))
        for grant in grants:
            for rule in rules[grant.org]:
                if page.now < grant.expires_at <= page.now + rule.rule.horizon:
                    self._add_expiry_alert(page, rule, grant)

    def _add_expiry_alert(self, page: _CheckedPage, rule: _OrgRule, grant: ExpiringGrant) -> None:
        if rule.rule.account is not None and rule.rule.account not in self._path(grant):
            return
        occasion = f"{rule.id}/{grant.grant}/{grant.expires_at}"
        since = grant.expires_at - rule.rule.horizon
        id = core.alert_id(grant.org, EXPIRY.kind, occasion, since)
        alert = core.make_expiry_alert(
            rule.rule, rule.id, grant.grant, grant.account, grant.expires_at, grant.available
        )
        page.asks.setdefault(id, raise_command(grant.org, id, alert))

    def _path(self, grant: ExpiringGrant) -> tuple[str, ...]:
        return self._directory.path_of(self._connection, grant.org, grant.account)

    def _check_balances(self, page: _CheckedPage) -> None:
        """Check the rules that raise one alert until the balance has recovered."""
        rules = [rule for rule in page.rules if rule.rule.kind in STANDING]
        if not rules:
            return
        armed = self._current_alerts(rules)
        looking = LedgerReads(self._connection, clock=self._clock)
        balances: dict[tuple[OrgId, str], Any] = {}
        for rule, (id, raised) in zip(rules, armed, strict=True):
            page.set_due(rule.org, page.now + RECHECK_INTERVAL)
            where = (rule.org, rule.rule.account or "")
            if where not in balances:
                balances[where] = looking.balance(rule.org, AccountId(where[1])).value
            balance = balances[where]
            if isinstance(balance, Refusal):
                continue
            alert = core.find_standing_alert(rule.rule, rule.id or "", balance)
            if alert is not None and raised is None:
                page.asks[id] = raise_command(rule.org, id, alert)
            elif alert is None and raised is not None:
                page.asks[id] = recover_command(rule.org, raised)

    def _current_alerts(self, rules: Sequence[_OrgRule]) -> list[tuple[str, Setting | None]]:
        """For each rule the id of its current alert, and the alert if it was raised.

        The id of the next alert follows from the event of the last recovery.
        """
        keys = [(rule.org, rule.id or "") for rule in rules]
        with self._connection.transaction():
            restrict_to_orgs(self._connection, [org for org, _ in keys])
            saved = alerts.rearms(self._connection, keys)
        numbers = {key: saved.get(key, rule.number) for key, rule in zip(keys, rules, strict=True)}
        raised: dict[tuple[OrgId, str], Setting | None] = {}
        ids: dict[tuple[OrgId, str], str] = {}
        behind = dict(zip(keys, rules, strict=True))
        while behind:
            for key, rule in behind.items():
                occasion = f"{rule.id}/{numbers[key]}"
                ids[key] = core.alert_id(rule.org, rule.rule.kind, occasion, rule.at)
            settings = settings_of(self._connection, ALERT, [(key[0], ids[key]) for key in behind])
            for key in list(behind):
                raised[key] = settings.get((key[0], ids[key]))
                there = raised[key]
                if there is not None and Alert.from_body(there.body or "").is_recovered:
                    numbers[key] = there.number
                else:
                    del behind[key]
        moved = [(*key, at) for key, at in numbers.items() if at != saved.get(key)]
        if moved:
            alerts.save_rearms(self._connection, moved)
        return [(ids[key], raised[key]) for key in keys]


def _with_account(alert: Alert, account: str | None) -> Alert:
    return Alert(kind=alert.kind, account=account, figures=alert.figures, rule=alert.rule)


def rule_setting(id: str, rule: AlertRule | None) -> SetSetting:
    """The command that sets a rule, or deletes it."""
    if rule is None:
        return SetSetting(kind=RULE, id=SettingId(id), body=None)
    return SetSetting(kind=RULE, id=SettingId(id), body=rule.body, before=0)


def alerts_of(
    connection: Connection, org: OrgId, after: int, most: int
) -> AsOf[ResultPage[Setting]]:
    """An org's alerts, ordered by when they were raised or recovered."""
    with connection.transaction():
        number = enter_snapshot(connection, org)
        rows = alerts.alerts(connection, org, after, most + 1)
        last = str(rows[most - 1].number) if len(rows) > most else None
        return AsOf(value=ResultPage(tuple(rows[:most]), last), number=number, at=0)


class AlertWorker(LeasedWorker):
    """Checks orgs for alerts, while this process holds the lease."""

    def __init__(
        self,
        connect: Callable[[], Connection],
        submit: SubmitAlerts,
        *,
        interval_s: float = 1.0,
        term_s: float = 10.0,
        clock: Callable[[Connection], Instant] | None = None,
    ) -> None:
        clock = clock or GuardedClock()
        super().__init__(
            ALERTS,
            connect,
            lambda connection: Alerter(connection, submit, clock).check_all,
            interval_s=interval_s,
            term_s=term_s,
            clock=clock,
        )
