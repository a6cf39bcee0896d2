"""Raising alerts: looking at orgs to which something has happened, or at which it is time (B6).

An alert is a setting of its org, under an id that is made of its occasion: whoever raises it again
is told that it exists. So any number of processes may look at once, and one that is killed between
raising and noting that it has looked does no harm. The same look sees the org's webhooks come and
go, and what is to be delivered again: all of that is in the org's events.

One credit that comes back to a grant shortly before its end (a hold was released) is not told anew:
expiry is told when the end comes near, and for what is issued or extended to an end that is near.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from bursar.core import alerts as core
from bursar.core.alerts import ALERT, EXPIRY, RULE, STANDING, Alert, AlertRule
from bursar.core.ids import AccountId, SettingId
from bursar.core.instant import HOUR, NEVER, Instant
from bursar.core.ledger.commands import SetSetting
from bursar.core.ledger.events import Event, GrantExtended, SettingSet, issued_by
from bursar.core.ledger.values import Setting
from bursar.core.refusal import Refusal
from bursar.service.batch import Ask
from bursar.service.directory import Directory
from bursar.service.ledger import Ledger
from bursar.service.listing import Page
from bursar.service.looking import SNAPSHOT, Looking, Seen
from bursar.service.settings import begun
from bursar.service.webhooks import RESEND, WEBHOOK, resend_of
from bursar.store import alerts, deliveries, duties
from bursar.store.alerts import Ending, Look
from bursar.store.reading import ENTER, Connection, OrgId, array_of, money_time
from bursar.store.settings import settings_of

ALERTS: Final = "alerts"  # the duty
PAGE: Final = 256  # orgs that are looked at together
AGAIN: Final = HOUR  # after which standing rules are looked at though nothing has happened

_log = logging.getLogger(__name__)

Decided = Callable[[Sequence[Ask]], set[OrgId]]  # lets commands be decided; orgs that could not


def deciding(ledger: Ledger) -> Decided:
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
    over = core.over(Alert.of(kept.body or ""), kept.at)
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
    ending: list[tuple[_Rule, Ending]] = field(default_factory=list)
    due: dict[OrgId, Instant] = field(default_factory=dict)
    asks: dict[str, Ask] = field(default_factory=dict)  # by the id of the alert

    @property
    def orgs(self) -> list[OrgId]:
        return [one.org for one in self.looks]

    def is_due(self, org: OrgId, at: Instant) -> None:
        self.due[org] = min(self.due.get(org, NEVER), at)


class Alerter:
    """Looks at orgs, on a connection of its own."""

    def __init__(
        self,
        connection: Connection,
        decided: Decided,
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
            page = alerts.to_look_at(self._connection, after, now, PAGE)
            if not page:
                duties.done(self._connection, ALERTS, now)
                break
            self.look_at(page)
            after, looked = page[-1].org, looked + len(page)
        return looked

    def look_at(self, looks: Sequence[Look]) -> None:
        """Raise what there is to raise in some orgs; then note that they were looked at."""
        page = _Page(self._clock(self._connection), looks)
        self._read(page)
        self._follow_webhooks(page)
        self._of_events(page)
        self._of_expiry(page)
        self._of_standing(page)
        failed = self._decided(list(page.asks.values())) if page.asks else set()
        noted = [
            (one.org, one.upto, page.now, page.due.get(one.org, NEVER))
            for one in looks
            if one.org not in failed
        ]
        if noted:
            alerts.note_looks(self._connection, noted)

    def _read(self, page: _Page) -> None:
        """Everything that is read of many orgs at once, in one snapshot."""
        with self._connection.transaction():
            self._connection.execute(SNAPSHOT)
            self._connection.execute(ENTER, [array_of(page.orgs)])
            page.events = alerts.events(self._connection, page.looks)
            page.rules = [_Rule(org, None, EXPIRY) for org in page.orgs]
            for org, kept in alerts.rules(self._connection, page.orgs):
                rule = AlertRule.of(kept.body or "")
                page.rules.append(_Rule(org, kept.id, rule, kept.number, kept.at))
            self._read_ending(page)

    def _read_ending(self, page: _Page) -> None:
        """Grants whose end has come nearer than a rule's horizon since the last look."""
        looks = {one.org: one for one in page.looks}
        of_expiry = [one for one in page.rules if one.rule.kind is EXPIRY.kind]
        windows = []
        for place, one in enumerate(of_expiry):
            look, horizon = looks[one.org], one.rule.horizon
            is_new = one.number > look.looked  # then all that is near is told
            after = page.now if is_new else max(look.looked_at + horizon, page.now)
            windows.append((one.org, place, after, page.now + horizon))
        for place, found in alerts.ending(self._connection, windows):
            page.ending.append((of_expiry[place], found))
        self._read_issued(page, of_expiry)
        afters = [(org, place, upto) for org, place, _, upto in windows]
        for org, place, at in alerts.next_ending(self._connection, afters):
            if at is not None and at < NEVER:
                page.is_due(org, at - of_expiry[place].rule.horizon)

    def _read_issued(self, page: _Page, of_expiry: Sequence[_Rule]) -> None:
        """Grants that were issued with, or given, an end that is near already."""
        near_at = page.now + max((one.rule.horizon for one in of_expiry), default=0)
        named = {
            (org, id)
            for org, _, event in page.events
            for id, expires_at in _given_an_end(event)
            if expires_at <= near_at
        }
        if not named:
            return
        for found in alerts.grants(self._connection, sorted(named)):
            for one in of_expiry:
                near = page.now < found.expires_at <= page.now + one.rule.horizon
                if one.org == found.org and near:
                    page.ending.append((one, found))

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
            for found in core.found_in(org, event):
                account = self._directory.account_known(
                    org, found.table, found.row
                ) or self._directory.account_of(self._connection, org, found.table, found.row)
                told = _with_account(found.alert, account or None)
                page.asks.setdefault(found.id, raising(org, found.id, told))

    def _of_expiry(self, page: _Page) -> None:
        for one, grant in page.ending:
            if one.rule.account is not None and one.rule.account not in self._path(grant):
                continue
            occasion = f"{one.id}/{grant.grant}/{grant.expires_at}"
            since = grant.expires_at - one.rule.horizon
            id = core.alert_id(grant.org, EXPIRY.kind, occasion, since)
            alert = core.expiring(
                one.rule, one.id, grant.grant, grant.account, grant.expires_at, grant.available
            )
            page.asks.setdefault(id, raising(grant.org, id, alert))

    def _path(self, grant: Ending) -> tuple[str, ...]:
        known = self._directory.path_known(grant.org, grant.account)
        return known or self._directory.path_of(self._connection, grant.org, grant.account)

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
            alert = core.standing(one.rule, one.id or "", balance)
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
            self._connection.execute(ENTER, [array_of([org for org, _ in named])])
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
                if there is not None and Alert.of(there.body or "").is_over:
                    numbers[name] = there.number
                else:
                    del behind[name]
        moved = [(*name, at) for name, at in numbers.items() if at != noted.get(name)]
        if moved:
            alerts.note_episodes(self._connection, moved)
        return [(ids[name], kept[name]) for name in named]


def _given_an_end(event: Event) -> Iterable[tuple[str, Instant]]:
    """The grants that an event let expire at an instant."""
    if isinstance(event, GrantExtended):
        return ((event.grant, event.expires_at),)
    return [(terms.id, terms.expires_at) for terms in issued_by(event)]


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
