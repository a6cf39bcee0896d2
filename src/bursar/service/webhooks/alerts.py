"""Raising alerts: looking at orgs to which something has happened, or at which it is time (B6).

An alert is a setting of its org, under an id that is made of its occasion: whoever raises it again
is told that it exists. So any number of processes may look at once, and one that is killed between
raising and noting that it has looked does no harm. The same look sees the org's webhooks come and
go, and what is to be delivered again: all of that is in the org's events.

Expiry is told once for a grant and its end: when the end comes near, or when credits come to a
grant whose end is near and of which nothing was told, because it was empty: a hold was released.
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
from bursar.service.ledger.batch import Ask
from bursar.service.ledger.clock import GuardedClock
from bursar.service.ledger.ledger import Ledger
from bursar.service.queries.balances import Looking, Seen
from bursar.service.queries.entities import Page
from bursar.service.queries.settings import begun
from bursar.service.webhooks.signatures import RESEND, WEBHOOK, resend_of
from bursar.service.workers.worker import LeasedWorker
from bursar.store import worker_leases
from bursar.store.ledger.settings import settings_of
from bursar.store.sql.connection import SNAPSHOT, Connection, money_time, restrict_to_orgs
from bursar.store.webhooks import alerts, deliveries
from bursar.store.webhooks.alerts import Ending, Look, Window

ALERTS: Final = "alerts"  # the duty
PAGE: Final = 256  # orgs that are looked at together
ASKED_MOST: Final = 256  # alerts that are raised at once: others want the ledger, too
AGAIN: Final = HOUR  # after which standing rules are looked at though nothing has happened

_log = logging.getLogger(__name__)

SubmitAlerts = Callable[
    [Sequence[Ask]], set[OrgId]
]  # lets commands be decided; orgs that could not


def submit_through(ledger: Ledger) -> SubmitAlerts:
    """Let a ledger decide; what it refuses was raised before."""

    def decided(commands: Sequence[Ask]) -> set[OrgId]:
        waiting = [(one.org, ledger.submit(one.org, one.key, one.command)) for one in commands]
        failed: set[OrgId] = set()
        for org, answer in waiting:
            if (error := answer.exception()) is not None:
                _log.warning("an alert of %s could not be raised: %s", org, error)
                failed.add(org)
        return failed

    return decided


def raising(org: OrgId, id: str, alert: Alert) -> Ask:
    """The command that raises an alert, unless it was raised before."""
    command = SetSetting(kind=ALERT, id=SettingId(id), body=alert.body, before=0)
    return Ask(org, f"bursar:alert/{id}", command)


def ending(org: OrgId, kept: Setting) -> Ask:
    """The command that says what an alert told of is over."""
    over = core.mark_recovered(Alert.from_body(kept.body or ""), kept.at)
    command = SetSetting(kind=ALERT, id=kept.id, body=over.body, before=kept.number)
    return Ask(org, f"bursar:alert/{kept.id}/over", command)


@dataclass(slots=True)
class _Rule:
    """A rule of an org; without an id it is everybody's."""

    org: OrgId
    id: str | None
    rule: AlertRule
    number: int = 0  # of the event that set it
    at: Instant = 0


@dataclass(slots=True)
class _Page:
    """What one look at some orgs has found."""

    now: Instant
    looks: Sequence[Look]
    events: list[tuple[OrgId, int, Event]] = field(default_factory=list)
    rules: list[_Rule] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)
    due: dict[OrgId, Instant] = field(default_factory=dict)
    asks: dict[str, Ask] = field(default_factory=dict)  # by the id of the alert
    failed: set[OrgId] = field(default_factory=set)

    @property
    def orgs(self) -> list[OrgId]:
        return [one.org for one in self.looks]

    @property
    def of_expiry(self) -> list[_Rule]:
        return [one for one in self.rules if one.rule.kind is EXPIRY.kind]

    def is_due(self, org: OrgId, at: Instant) -> None:
        self.due[org] = min(self.due.get(org, NEVER), at)


class Alerter:
    """Looks at orgs, on a connection of its own."""

    def __init__(
        self,
        connection: Connection,
        decided: SubmitAlerts,
        clock: Callable[[Connection], Instant] = money_time,
    ) -> None:
        self._connection = connection
        self._decided = decided
        self._clock = clock
        self._directory = Directory()

    def look(self, goes_on: Callable[[], bool] = lambda: True) -> int:
        """Look at all orgs that there is reason to look at; how many that were."""
        now = self._clock(self._connection)
        after, looked = "", 0
        while goes_on():
            page = alerts.bounded(alerts.to_look_at(self._connection, after, now, PAGE))
            if not page:
                worker_leases.record_done(self._connection, ALERTS, now)
                break
            looked += len(page)
            behind = self.look_at(page)
            after = page[-1].org if not behind else after
        return looked

    def look_at(self, looks: Sequence[Look]) -> bool:
        """Raise what there is to raise in some orgs; then note that they were looked at.

        Whether there is more to go over in some of them: those are to be looked at again.
        """
        page = _Page(self._clock(self._connection), looks)
        self._read(page)
        self._follow_webhooks(page)
        self._of_events(page)
        self._of_returned(page)
        self._of_standing(page)
        self._raise(page)
        self._of_ending(page)
        noted = [
            (one.org, one.upto, page.now, page.due.get(one.org, NEVER))
            for one in looks
            if one.org not in page.failed
        ]
        if noted:
            alerts.note_looks(self._connection, noted)
        return any(one.is_behind and one.org not in page.failed for one in looks)

    def _raise(self, page: _Page) -> None:
        """Let what was found so far be decided, some of it at a time."""
        asks = list(page.asks.values())
        page.asks.clear()
        for start in range(0, len(asks), ASKED_MOST):
            page.failed |= self._decided(asks[start : start + ASKED_MOST])

    def _read(self, page: _Page) -> None:
        """Everything that is read of many orgs at once, in one snapshot."""
        with self._connection.transaction():
            self._connection.execute(SNAPSHOT)
            restrict_to_orgs(self._connection, page.orgs)
            page.events = alerts.events(self._connection, page.looks)
            page.rules = [_Rule(org, None, EXPIRY) for org in page.orgs]
            for org, kept in alerts.rules(self._connection, page.orgs):
                rule = AlertRule.from_body(kept.body or "")
                page.rules.append(_Rule(org, kept.id, rule, kept.number, kept.at))
            self._read_windows(page)

    def _read_windows(self, page: _Page) -> None:
        """When grants end that have come nearer than a rule's horizon since the last look."""
        looks = {one.org: one for one in page.looks}
        for place, one in enumerate(page.of_expiry):
            look, horizon = looks[one.org], one.rule.horizon
            is_new = one.number > look.looked  # then all that is near is told
            after = page.now if is_new else max(look.looked_at + horizon, page.now)
            page.windows.append(Window(one.org, place, after + 1, "", page.now + horizon))
        afters = [(one.org, one.place, one.upto) for one in page.windows]
        for org, place, at in alerts.next_ending(self._connection, afters):
            if at is not None and at < NEVER:
                page.is_due(org, at - page.of_expiry[place].rule.horizon)

    def _follow_webhooks(self, page: _Page) -> None:
        """Let webhooks begin, or be told something again, as the events say."""
        begun: list[tuple[OrgId, str, int]] = []
        asked: list[tuple[OrgId, str, int, Instant]] = []
        for org, number, event in page.events:
            if not isinstance(event, SettingSet) or event.body is None:
                continue
            if event.kind == WEBHOOK:
                begun.append((org, event.id, number))
            elif event.kind == RESEND:
                asked.append((org, *resend_of(event.body), event.at))
        if begun:
            deliveries.add_cursors(
                self._connection, list({one[:2]: one for one in begun[::-1]}.values())
            )
        if asked:
            deliveries.ask_again(self._connection, asked)

    def _of_events(self, page: _Page) -> None:
        for org, _, event in page.events:
            for found in core.alerts_for_event(org, event):
                account = self._directory.account_of(self._connection, org, found.table, found.row)
                alert = _with_account(found.alert, account or None)
                page.asks.setdefault(found.id, raising(org, found.id, alert))

    def _of_ending(self, page: _Page) -> None:
        """Grants whose end has come near; there may be any number of them."""
        rules = page.of_expiry
        for found in alerts.ending(self._connection, page.windows):
            for place, grant in found:
                self._of_expiry(page, rules[place], grant)
            self._raise(page)

    def _of_returned(self, page: _Page) -> None:
        """Grants to which credits came when their end was near, or that were given such an end."""
        rules: dict[OrgId, list[_Rule]] = defaultdict(list)
        for one in page.of_expiry:
            rules[one.org].append(one)
        within = {org: max(one.rule.horizon for one in those) for org, those in rules.items()}
        extended = {
            (org, event.grant) for org, _, event in page.events if isinstance(event, GrantExtended)
        }
        with self._connection.transaction():
            restrict_to_orgs(self._connection, page.orgs)
            found = alerts.returned(self._connection, page.looks, page.now, within)
            if extended:
                found += alerts.grants(self._connection, sorted(extended))
        for grant in found:
            for one in rules[grant.org]:
                if page.now < grant.expires_at <= page.now + one.rule.horizon:
                    self._of_expiry(page, one, grant)

    def _of_expiry(self, page: _Page, one: _Rule, grant: Ending) -> None:
        if one.rule.account is not None and one.rule.account not in self._path(grant):
            return
        occasion = f"{one.id}/{grant.grant}/{grant.expires_at}"
        since = grant.expires_at - one.rule.horizon
        id = core.alert_id(grant.org, EXPIRY.kind, occasion, since)
        alert = core.make_expiry_alert(
            one.rule, one.id, grant.grant, grant.account, grant.expires_at, grant.available
        )
        page.asks.setdefault(id, raising(grant.org, id, alert))

    def _path(self, grant: Ending) -> tuple[str, ...]:
        return self._directory.path_of(self._connection, grant.org, grant.account)

    def _of_standing(self, page: _Page) -> None:
        """Rules that tell once, and again after a recovery."""
        rules = [one for one in page.rules if one.rule.kind in STANDING]
        if not rules:
            return
        armed = self._armed(rules)
        looking = Looking(self._connection, clock=self._clock)
        balances: dict[tuple[OrgId, str], Any] = {}
        for one, (id, kept) in zip(rules, armed, strict=True):
            page.is_due(one.org, page.now + AGAIN)
            where = (one.org, one.rule.account or "")
            if where not in balances:
                balances[where] = looking.balance(one.org, AccountId(where[1])).value
            balance = balances[where]
            if isinstance(balance, Refusal):
                continue
            alert = core.find_standing_alert(one.rule, one.id or "", balance)
            if alert is not None and kept is None:
                page.asks[id] = raising(one.org, id, alert)
            elif alert is None and kept is not None:
                page.asks[id] = ending(one.org, kept)

    def _armed(self, rules: Sequence[_Rule]) -> list[tuple[str, Setting | None]]:
        """For each rule the id of its present alert, and the alert if it was raised.

        What was raised and is over leads on to the next one: its last event is the next's occasion.
        """
        named = [(one.org, one.id or "") for one in rules]
        with self._connection.transaction():
            restrict_to_orgs(self._connection, [org for org, _ in named])
            noted = alerts.episodes(self._connection, named)
        numbers = {
            name: noted.get(name, one.number) for name, one in zip(named, rules, strict=True)
        }
        kept: dict[tuple[OrgId, str], Setting | None] = {}
        ids: dict[tuple[OrgId, str], str] = {}
        behind = dict(zip(named, rules, strict=True))
        while behind:
            for name, one in behind.items():
                occasion = f"{one.id}/{numbers[name]}"
                ids[name] = core.alert_id(one.org, one.rule.kind, occasion, one.at)
            found = settings_of(self._connection, ALERT, [(name[0], ids[name]) for name in behind])
            for name in list(behind):
                kept[name] = found.get((name[0], ids[name]))
                there = kept[name]
                if there is not None and Alert.from_body(there.body or "").is_recovered:
                    numbers[name] = there.number
                else:
                    del behind[name]
        moved = [(*name, at) for name, at in numbers.items() if at != noted.get(name)]
        if moved:
            alerts.note_episodes(self._connection, moved)
        return [(ids[name], kept[name]) for name in named]


def _with_account(alert: Alert, account: str | None) -> Alert:
    return Alert(kind=alert.kind, account=account, figures=alert.figures, rule=alert.rule)


def rule_setting(id: str, rule: AlertRule | None) -> SetSetting:
    """The command that sets a rule, or drops it."""
    if rule is None:
        return SetSetting(kind=RULE, id=SettingId(id), body=None)
    return SetSetting(kind=RULE, id=SettingId(id), body=rule.body, before=0)


def alerts_of(connection: Connection, org: OrgId, after: int, most: int) -> Seen[Page[Setting]]:
    """An org's alerts, the last one to be raised or to be over last."""
    with connection.transaction():
        number = begun(connection, org)
        found = alerts.alerts(connection, org, after, most + 1)
        last = str(found[most - 1].number) if len(found) > most else None
        return Seen(value=Page(tuple(found[:most]), last), number=number, at=0)


class AlertWorker(LeasedWorker):
    """Looks for reasons to raise alerts, while no other process does."""

    def __init__(
        self,
        connect: Callable[[], Connection],
        decided: SubmitAlerts,
        *,
        interval_s: float = 1.0,
        term_s: float = 10.0,
        clock: Callable[[Connection], Instant] | None = None,
    ) -> None:
        clock = clock or GuardedClock()
        super().__init__(
            ALERTS,
            connect,
            lambda connection: Alerter(connection, decided, clock).look,
            interval_s=interval_s,
            term_s=term_s,
            clock=clock,
        )
