"""Webhooks and alerts by a clock of the test's own: retries, order, giving up, whom not to call."""

import asyncio
import ipaddress
import json
import random
import shutil
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from bursar.core.alerts import ALERT, Alert, AlertKind, AlertRule
from bursar.core.ids import AccountId, SettingId, UserId
from bursar.core.instant import DAY, HOUR, NEVER, SECOND
from bursar.core.ledger.commands import AddAccount, AddUser, Command, SetSetting
from bursar.core.ledger.events import UserAdded
from bursar.core.ledger.values import Setting
from bursar.core.pricing import PriceBook
from bursar.core.refusal import Refusal
from bursar.service.ledger.audit import rebuild_org, verify
from bursar.service.ledger.batch import Answer, Batch, CommandRequest
from bursar.service.ledger.clock import GuardedClock, running_time, wall_time
from bursar.service.ledger.ledger import Ledger
from bursar.service.secrets import Secret
from bursar.service.webhooks import alerts
from bursar.service.webhooks.alerts import Alerter, rule_setting, submit_through
from bursar.service.webhooks.delivery import JITTER, PAUSES_S, Deliverer, subject_of
from bursar.service.webhooks.safe_http import ANSWER_BYTES_MAX, SafeHttpClient, UnsafeUrl, is_public
from bursar.service.webhooks.signatures import (
    FIRST,
    WEBHOOK,
    Webhook,
    redeliver_command,
    rotate_command,
    secret_for,
    secret_text,
    signing_versions,
)
from bursar.store.sql.codec import EVENTS, event_of
from bursar.store.sql.connection import Connection, money_time
from bursar.store.webhooks import alerts as store_alerts
from bursar.store.webhooks import deliveries
from bursar.store.webhooks.deliveries import CursorUpdate, Delivery, WebhookCursor, deliveries_page
from bursar.wire.events.stream import build_payload
from tests.service.test_audit import story
from tests.support import commands as ask
from tests.support.databases import connected, migrated, new_org
from tests.support.patience import eventually
from tests.support.webhook_receiver import Receiver, receiver

SECRET = Secret("for tests, and nothing else, of course")


class World:
    """An org, its ledger, and those who look and deliver, driven by hand."""

    def __init__(self, url: str, outbound: SafeHttpClient) -> None:
        self.url = url
        self.shift = 0  # how much later it is than the database thinks
        self._keys = count(1)
        self._open = ExitStack()
        self.connection = self._open.enter_context(connected(url))
        self._ledger_line = self._open.enter_context(
            Ledger(lambda: connected(url), clock=self._guarded())
        )
        self.org = new_org(self.connection)
        self.decided = submit_through(self._ledger_line)
        self.alerter = Alerter(self.connection, self.decided, self.clock)
        self.deliverer = self.new_deliverer(outbound)
        self.asks(AddAccount(account=AccountId("org"), parent=None, name="o"))
        self.asks(AddUser(user=UserId("ann")))

    def new_deliverer(self, outbound: SafeHttpClient) -> Deliverer:
        """Another one, on a connection of its own."""
        connection = self._open.enter_context(connected(self.url))
        made = Deliverer(connection, SECRET, build_payload, self.decided, outbound, self.clock)
        self._open.callback(made.sender.close)
        return made

    def _guarded(self) -> GuardedClock:
        """A clock that trusts this world's time: the machine's clocks go with it."""
        return GuardedClock(
            self.clock, lambda: running_time() + self.shift, lambda: wall_time() + self.shift
        )

    def clock(self, connection: Connection) -> int:
        """The database's time, and what a test adds to it."""
        return money_time(connection) + self.shift

    def asks(self, command: Command) -> Answer:
        """Something that must happen."""
        answer = self._ledger_line.ask(self.org, f"k{next(self._keys)}", command)
        assert not isinstance(answer.outcome, Refusal), answer.outcome
        return answer

    def webhook(self, url: str, *types: str, account: str | None = None) -> str:
        """A webhook that was seen to be there."""
        id = f"w{next(self._keys)}"
        body = Webhook(url=url, types=types or ("GrantIssued",), account=account).body
        self.asks(SetSetting(kind=WEBHOOK, id=SettingId(id), body=body, before=0))
        self.alerter.check_all()
        return id

    def rule(self, rule: AlertRule) -> str:
        """A rule."""
        id = f"r{next(self._keys)}"
        self.asks(rule_setting(id, rule))
        return id

    def deliver(self, deliverer: Deliverer | None = None) -> None:
        """Tell all that is due now, and note what became of it."""
        one = deliverer or self.deliverer
        one.start()
        self.noted(one)

    def noted(self, deliverer: Deliverer) -> None:
        """Wait until nothing is under way."""

        def lands() -> bool:
            deliverer.save_outcomes()
            return not deliverer._runs

        eventually(lands, "every delivery has ended")

    def log(self, webhook: str) -> list[Delivery]:
        """What became of what a webhook was told."""
        return deliveries_page(self.connection, self.org, webhook, 0, "", 100)

    def alerts(self, kind: AlertKind | None = None) -> list[Alert]:
        """The org's alerts."""
        found = store_alerts.alerts(self.connection, self.org, 0, 1_000)
        told = [Alert.from_body(one.body or "") for one in found]
        return [one for one in told if kind in (None, one.kind)]

    def close(self) -> None:
        """End everything."""
        self._open.close()


@pytest.fixture
def url(database_url: str) -> Iterator[str]:
    """A database of a test's own: looking goes over all orgs."""
    with migrated(database_url) as url:
        yield url


@pytest.fixture
def world(url: str) -> Iterator[World]:
    """A world that may call loopback addresses, and does not wait for long."""
    made = World(url, SafeHttpClient(allow_private=True, timeout_s=1.0))
    yield made
    made.close()


@pytest.fixture
def there() -> Iterator[Receiver]:
    """Somebody to be told."""
    with receiver() as found:
        yield found


# Trying again


def hangs(handler: BaseHTTPRequestHandler) -> None:
    """Say nothing for longer than one is waited for."""
    time.sleep(1.5)


def hangs_up(handler: BaseHTTPRequestHandler) -> None:
    """End the line without an answer."""
    handler.connection.close()


def redirects(handler: BaseHTTPRequestHandler) -> None:
    """Send the caller elsewhere."""
    handler.send_response(307)
    handler.send_header("location", "/elsewhere")
    handler.send_header("content-length", "0")
    handler.end_headers()


FAILURES: dict[str, tuple[Any, int | None]] = {
    "refuses": (500, 500),
    "is gone": (410, 410),
    "hangs": (hangs, None),
    "hangs up": (hangs_up, None),
    "redirects": (redirects, 307),
}


@pytest.mark.parametrize("name", FAILURES)
def test_failed_deliveries_are_retried_in_order(world: World, there: Receiver, name: str) -> None:
    """After five seconds, with the same id; what comes after waits its turn."""
    answer, code = FAILURES[name]
    there.answers = [answer]
    webhook = world.webhook(there.url)
    for grant in ("g1", "g2"):
        world.asks(ask.issue(grant, 5))

    world.deliver()
    [first] = world.log(webhook)
    assert ("pending", 1, code) == (first.status, first.attempts, first.code)
    assert first.next_at is not None
    assert first.last_at is not None
    pause = (first.next_at - first.last_at) / SECOND
    assert (1 - JITTER) * PAUSES_S[0] <= pause <= (1 + JITTER) * PAUSES_S[0]
    world.deliver()
    assert 1 == len(there.got), "it was tried before its time"

    world.shift += 7 * SECOND
    world.deliver()
    assert ["delivered", "delivered"] == [one.status for one in world.log(webhook)]
    assert [2, 1] == [one.attempts for one in world.log(webhook)]
    ids = [one.id for one in there.got]
    assert ids[0] == ids[1] != ids[2]
    assert "/elsewhere" not in [one.path for one in there.got]


def test_an_unreachable_receiver_is_retried(world: World) -> None:
    """A port on which nobody listens, then somebody."""
    with receiver() as gone:
        url = gone.url
    webhook = world.webhook(url)
    world.asks(ask.issue("g1", 5))

    world.deliver()

    [first] = world.log(webhook)
    assert ("pending", None, "connection refused") == (first.status, first.code, first.why)


def test_pauses_grow_until_a_delivery_fails_for_good_with_an_alert(
    world: World, there: Receiver
) -> None:
    """About three days; the alert is told once, elsewhere; then the next event has its turn."""
    there.always = 500
    webhook = world.webhook(there.url)
    begun = world.shift
    world.asks(ask.issue("g1", 5))
    pauses: list[float] = []
    for _ in range(20):
        world.deliver()
        [first] = world.log(webhook)
        if first.next_at is None:
            break
        assert first.last_at is not None
        pauses.append((first.next_at - first.last_at) / SECOND)
        world.shift += first.next_at - first.last_at + SECOND
    assert "given_up" == first.status
    assert 3 * DAY <= world.shift - begun <= 5 * DAY
    assert 8 <= len(pauses) <= 10
    for pause, meant in zip(pauses, PAUSES_S, strict=False):
        assert (1 - JITTER) * meant <= pause <= (1 + JITTER) * meant
    [alert] = world.alerts(AlertKind.WEBHOOK_FAILED)
    assert webhook == alert.figures["webhook"]

    for grant in ("g2", "g3"):
        world.asks(ask.issue(grant, 5))
    world.shift += 4 * DAY  # these are old, too: each is tried once, then given up
    world.deliver()
    world.deliver()
    assert ["given_up"] * 3 == [one.status for one in world.log(webhook)]
    assert 1 == len(world.alerts(AlertKind.WEBHOOK_FAILED)), "told once until something arrives"

    there.always = 204
    world.asks(ask.issue("g4", 5))
    world.deliver()
    assert "delivered" == world.log(webhook)[-1].status


def test_a_slow_receiver_delays_no_other(world: World, there: Receiver) -> None:
    """While one is waited for, another is told everything."""
    waits = threading.Event()
    slow = world.webhook(f"{there.url}/slow")
    quick = world.webhook(f"{there.url}/quick")
    world.deliverer.outbound.timeout_s = 20

    def waiting(handler: BaseHTTPRequestHandler) -> None:
        waits.wait(20)

    there.answers = [waiting]
    world.asks(ask.issue("g1", 5))
    with ExitStack() as ends:
        ends.callback(waits.set)
        # Whichever of the two comes first is the one that waits.
        world.deliverer.start()
        there.wait(2)
        [slow_path] = {one.path for one in there.got[:1]}
        for number in range(2, 5):
            world.asks(ask.issue(f"g{number}", 5))
        other = "/quick" if slow_path == "/slow" else "/slow"

        def all_came() -> bool:
            world.deliverer.save_outcomes()
            world.deliverer.start()
            return len(there.at(other)) >= 4

        eventually(all_came, lambda: there.got)
        assert 1 == len(there.at(slow_path))
    assert {slow, quick} == {key[1] for key in world.deliverer._runs} | {
        quick if other == "/quick" else slow
    }


def test_two_processes_deliver_each_event_once(world: World, there: Receiver) -> None:
    """Everything arrives, perhaps twice, under the same ids; nothing is skipped."""
    webhook = world.webhook(there.url)
    other = world.new_deliverer(SafeHttpClient(allow_private=True))
    for number in range(20):
        world.asks(ask.issue(f"g{number}", 5))

    for one in (world.deliverer, other):
        one.start()
    for one in (world.deliverer, other):
        world.noted(one)
    world.deliver()

    assert 20 == len(world.log(webhook))
    assert {"delivered"} == {one.status for one in world.log(webhook)}
    assert 20 == len({one.id for one in there.got})
    numbers = [one.data["number"] for one in there.got]
    assert sorted(set(numbers)) == list(dict.fromkeys(numbers))


def test_a_webhook_never_goes_back_and_stays_deleted(world: World, there: Receiver) -> None:
    """Whatever is noted late, by somebody who was relieved long ago."""
    webhook = world.webhook(there.url)
    world.asks(ask.issue("g1", 5))
    world.deliver()
    sql = "select number, due_at from webhook_cursors"
    [(number, _)] = world.connection.execute(sql).fetchall()

    deliveries.save_outcomes(
        world.connection, [], [CursorUpdate(world.org, webhook, number - 1, 0, None, 0)]
    )
    assert [(number, 0)] == world.connection.execute(sql).fetchall()
    deliveries.drop_webhooks(world.connection, [(world.org, webhook)])
    deliveries.save_outcomes(
        world.connection, [], [CursorUpdate(world.org, webhook, number + 1, 0, None, 0)]
    )
    assert [(number, NEVER)] == world.connection.execute(sql).fetchall()


def test_events_that_a_webhook_does_not_subscribe_to_are_skipped(
    world: World, there: Receiver
) -> None:
    """The cursor moves on; what concerns the webhook is found among them."""
    world.webhook(there.url, "alert.*")
    for number in range(150):
        world.asks(ask.issue(f"g{number}", 5))
    world.deliver()
    [(number, last)] = world.connection.execute(
        "select c.number, o.number from webhook_cursors c join orgs o using (org_id)"
    ).fetchall()
    assert last == number
    assert [] == there.got


def test_webhooks_of_two_orgs_are_read_together_and_get_their_own_events(
    connection: Connection,
) -> None:
    """Though one statement reads for both, and events of both have the same numbers (D9)."""
    asked: dict[str, WebhookCursor] = {}
    for users in (1, 2):
        org = new_org(connection)
        added = [
            CommandRequest(org, f"k{one}", AddUser(user=UserId(f"{org}-{one}")))
            for one in range(users)
        ]
        Batch(connection, PriceBook(), {}).run(added)
        asked[org] = WebhookCursor(org, "w", 0, 0, None, 2)

    found = deliveries.next_events(connection, [(one, ()) for one in asked.values()], 10)

    for users, org in enumerate(asked, 1):
        told = [event_of(one.kind, one.body) for one in found[org, "w"]]
        assert [f"{org}-{one}" for one in range(users)] == [
            one.user for one in told if isinstance(one, UserAdded)
        ]
        assert users == len(told)


def test_a_requested_redelivery_is_tried_at_once(world: World, there: Receiver) -> None:
    """Though the webhook stands elsewhere; it fails and is tried again like any other."""
    webhook = world.webhook(there.url)
    world.asks(ask.issue("g1", 5))
    world.deliver()
    [first] = there.got
    there.answers = [500, 204, 204]
    world.asks(redeliver_command("again", webhook, first.data["number"]))
    world.asks(ask.issue("g2", 5))

    world.alerter.check_all()
    world.deliver()
    assert 3 == len(there.got)
    world.shift += 7 * SECOND
    world.deliver()
    world.deliver()
    assert ["delivered"] * 2 == [one.status for one in world.log(webhook)]
    assert 4 == len(there.got)
    assert {first.id} < {one.id for one in there.got}
    assert first.body == next(one.body for one in reversed(there.got) if one.id == first.id)


# Secrets


def rotated(request: str, at: int, overlap_s: int) -> Setting:
    """A secret that a webhook was given."""
    made = rotate_command("w", request, overlap_s)
    return Setting(kind=made.kind, id=made.id, body=made.body, number=1, at=at)


def test_every_webhook_and_every_version_has_a_secret_of_its_own() -> None:
    """Or a receiver could sign what another one believes."""
    asked = [("o", "w", "first"), ("p", "w", "first"), ("o", "x", "first"), ("o", "w", "second")]
    found = {secret_for(SECRET, *one) for one in asked}

    assert 4 == len(found)
    assert {32} == set(map(len, found))
    assert secret_for(SECRET, "o", "w", "first") in found


def test_old_secrets_sign_until_they_expire() -> None:
    """Each as long as the one after it says."""
    one, two = rotated("k1", 0, 10), rotated("k2", 5 * SECOND, 100)
    names = [given.id.partition("/")[2] for given in (one, two)]

    assert [FIRST] == signing_versions([], 0)
    assert [names[0], FIRST] == signing_versions([one], 9 * SECOND)
    assert [names[0]] == signing_versions([one], 10 * SECOND)
    assert [names[1], FIRST, names[0]] == signing_versions([one, two], 9 * SECOND)
    assert [names[1], names[0]] == signing_versions([one, two], 11 * SECOND)
    assert [names[1]] == signing_versions([one, two], 105 * SECOND)


def test_an_expired_secret_does_not_sign(world: World, there: Receiver) -> None:
    """By the clock of the database."""
    webhook = world.webhook(there.url)
    world.asks(rotate_command(webhook, "key", 3_600))
    world.asks(ask.issue("g1", 5))
    world.deliver()
    world.shift += HOUR + SECOND
    world.asks(ask.issue("g2", 5))
    world.deliver()

    assert [2, 1] == [len(one.headers["webhook-signature"].split()) for one in there.got]
    there.got[0].verified(secret_text(secret_for(SECRET, world.org, webhook, FIRST)))


# Whom not to call

PUBLIC = (
    *("8.8.8.8", "1.1.1.1", "93.184.216.34", "2606:4700:4700::1111", "2a00:1450::1"),
    *("::ffff:8.8.8.8", "64:ff9b::8.8.8.8"),
)
NOT_PUBLIC = (
    *("127.0.0.1", "127.9.9.9", "0.0.0.0", "0.1.2.3", "10.1.2.3", "172.16.0.1", "172.31.255.255"),
    *("192.168.0.1", "169.254.169.254", "169.254.1.1", "100.64.0.1", "100.100.100.200"),
    *("192.0.0.8", "192.0.2.1", "198.18.0.1", "198.51.100.1", "203.0.113.1", "224.0.0.1"),
    *("239.255.255.255", "240.0.0.1", "255.255.255.255", "168.63.129.16"),
    *("::", "::1", "fe80::1", "fe80::1%1", "fc00::1", "fd00:ec2::254", "ff02::1", "2001:db8::1"),
    *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1"),
    *("64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "2002:a9fe:a9fe::1"),
    *("2001:0:4136:e378:8000:63bf:3fff:fdd2", "64:ff9b:1::a00:1", "fec0::1"),
    *("64:ff9b:1::808:808", "64:ff9b:1:ffff:ffff:ffff:ffff:ffff", "64:ff9b::1:7f00:1"),
    *("2002:808:808::1", "::8.8.8.8", "::ffff:0:8.8.8.8", "64:ff9b::10.0.0.1", "64:ff9b:2::1"),
)
# All that the two registries of special addresses (RFC 6890) list, as of 2025; and multicast.
REGISTERED = (
    *("0.0.0.0/8", "0.0.0.0/32", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16"),
    *("172.16.0.0/12", "192.0.0.0/24", "192.0.0.0/29", "192.0.0.8/32", "192.0.0.9/32"),
    *("192.0.0.10/32", "192.0.0.170/31", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24"),
    *("192.88.99.0/24", "192.88.99.2/32", "192.168.0.0/16", "192.175.48.0/24", "198.18.0.0/15"),
    *("198.51.100.0/24", "203.0.113.0/24", "240.0.0.0/4", "255.255.255.255/32", "224.0.0.0/4"),
    *("::1/128", "::/128", "64:ff9b:1::/48", "100::/64", "100:0:0:1::/64", "2001::/23"),
    *("2001::/32", "2001:1::1/128", "2001:1::2/128", "2001:1::3/128", "2001:2::/48"),
    *("2001:3::/32", "2001:4:112::/48", "2001:10::/28", "2001:20::/28", "2001:30::/28"),
    *("2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20", "5f00::/16", "fc00::/7"),
    *("fe80::/10", "fec0::/10", "ff00::/8"),
)


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_is_called(address: str) -> None:
    """So that the next test does not pass by refusing all."""
    assert is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_an_address_of_special_use_is_not_called(address: str) -> None:
    """Private, loopback, link-local, metadata, multicast; and in whatever it is wrapped (K26)."""
    assert not is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize("network", REGISTERED)
def test_no_address_that_is_registered_for_a_special_use_is_called(network: str) -> None:
    """From the first to the last of each range, and as NAT64 and IPv6 would write it (K26)."""
    found = ipaddress.ip_network(network)
    ends = (found[0], found[found.num_addresses // 2], found[-1])
    wrapped = [
        ipaddress.IPv6Address(int(ipaddress.IPv6Address(prefix)) + int(one))
        for one in ends
        if one.version == 4
        for prefix in ("::ffff:0:0", "64:ff9b::")
    ]

    assert [] == [str(one) for one in (*ends, *wrapped) if is_public(one)]


def test_an_address_that_python_does_not_consider_global_is_not_called() -> None:
    """It knows the registries, too: no range that it knows is forgotten here (K26)."""
    chance = random.Random(6890)
    drawn: list[ipaddress.IPv4Address | ipaddress.IPv6Address] = [
        ipaddress.IPv4Address(chance.getrandbits(32)) for _ in range(20_000)
    ]
    drawn += [ipaddress.IPv6Address(chance.getrandbits(128)) for _ in range(20_000)]

    public = [one for one in drawn if is_public(one)]
    assert len(public) > 10_000
    assert [] == [str(one) for one in public if not one.is_global or one.is_multicast]


def resolver(*answers: Sequence[str]) -> Callable[[str, int], Any]:
    """One that says something else each time, and the last for ever."""
    left = list(answers)

    async def resolve(host: str, port: int) -> Sequence[str]:
        return left.pop(0) if len(left) > 1 else left[0]

    return resolve


def test_a_name_with_one_internal_address_is_not_called() -> None:
    """Not even at the others."""
    outbound = SafeHttpClient(resolve=resolver(["8.8.8.8", "10.0.0.1"]))

    with pytest.raises(UnsafeUrl, match="public internet"):
        asyncio.run(outbound.addresses("https://mixed.example/"))


def test_a_name_that_resolves_differently_later_does_not_matter(there: Receiver) -> None:
    """Public when it is looked at, loopback when it is called: each call looks anew (K26)."""
    port = there.url.rpartition(":")[2]
    outbound = SafeHttpClient(resolve=resolver(["8.8.8.8"], ["127.0.0.1"]))
    url = f"https://rebinding.example:{port}/"

    assert ["8.8.8.8"] == asyncio.run(outbound.addresses(url))
    said = asyncio.run(outbound.post(url, {}, b"{}"))

    assert (None, "the host is not on the public internet") == (said.code, said.why)
    assert [] == there.got


def test_the_checked_address_is_the_address_that_is_called(there: Receiver) -> None:
    """A name is resolved once for a call, and the receiver is told the name."""
    asked: list[str] = []

    async def resolve(host: str, port: int) -> Sequence[str]:
        asked.append(host)
        return ["127.0.0.1"]

    port = there.url.rpartition(":")[2]
    outbound = SafeHttpClient(allow_private=True, resolve=resolve)
    said = asyncio.run(outbound.post(f"http://somewhere.invalid:{port}/in?x=1", {"a": "b"}, b"{}"))

    assert 204 == said.code, said
    assert ["somewhere.invalid"] == asked
    assert ("/in?x=1", f"somewhere.invalid:{port}") == (
        there.got[0].path,
        there.got[0].headers["host"],
    )


def test_the_next_address_is_tried_if_the_first_does_not_answer(there: Receiver) -> None:
    """Nothing was sent to the first."""
    port = there.url.rpartition(":")[2]
    outbound = SafeHttpClient(allow_private=True, resolve=resolver(["127.0.0.2", "127.0.0.1"]))

    said = asyncio.run(outbound.post(f"http://two.invalid:{port}/", {}, b"{}"))

    assert 204 == said.code, said


def test_an_endless_response_is_not_read_to_its_end(there: Receiver) -> None:
    """64 KiB, then the line is closed; the status counts."""
    sent = [0]

    def endless(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        try:
            for _ in range(10_000):
                sent[0] += handler.wfile.write(b"x" * 65_536)
        except OSError:
            handler.close_connection = True

    there.answers = [endless]
    said = asyncio.run(SafeHttpClient(allow_private=True).post(there.url, {}, b"{}"))

    assert 200 == said.code
    before = -1
    while before != sent[0]:  # until the other side has noticed that nobody reads
        before = sent[0]
        time.sleep(0.2)
    assert before < 100 * ANSWER_BYTES_MAX


def test_no_proxy_of_the_environment_is_used(
    there: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would resolve names for itself."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")

    assert 204 == asyncio.run(SafeHttpClient(allow_private=True).post(there.url, {}, b"{}")).code


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make certificates with")
def test_a_certificate_must_match_the_name(tmp_path: Path) -> None:
    """The address is pinned, and yet it is the name that is certified."""
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-keyout", "key.pem", "-out", "cert.pem", "-subj", "/CN=named.invalid"),
            *("-addext", "subjectAltName=DNS:named.invalid"),
        ],
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        trusting = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
        inside = resolver(["127.0.0.1"])
        known = SafeHttpClient(allow_private=True, resolve=inside, _tls=trusting)
        stranger = SafeHttpClient(allow_private=True, resolve=inside)
        port = server.server_port

        def said(outbound: SafeHttpClient, name: str) -> tuple[int | None, str | None]:
            told = asyncio.run(outbound.post(f"https://{name}:{port}/", {}, b"{}"))
            return told.code, told.why

        assert (200, None) == said(known, "named.invalid")
        assert (None, "tls") == said(known, "other.invalid")
        assert (None, "tls") == said(stranger, "named.invalid")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


# Alerts


def test_credits_near_their_expiry_raise_an_alert(world: World) -> None:
    """By time alone, in an org to which nothing happens; once."""
    now = money_time(world.connection)
    world.asks(ask.issue("g1", 5, expires=now + 30 * DAY))
    world.asks(ask.issue("g2", 5, expires=now + 30 * DAY, starts=now + 2 * DAY))
    world.asks(ask.issue("g3", 5, expires=now + 60 * DAY))
    world.alerter.check_all()
    for days in (0, 20, 22):
        world.shift = days * DAY
        assert [] == world.alerts(), days

        world.alerter.check_all()
    assert 0 == world.alerter.check_all(), "nothing is due before something comes near"

    world.shift = 23 * DAY + HOUR
    world.alerter.check_all()
    assert {"g1", "g2"} == {one.figures["grant"] for one in world.alerts()}
    for _ in range(3):
        world.shift += DAY
        world.alerter.check_all()
    assert 2 == len(world.alerts())


def test_an_extended_grant_raises_an_alert_again_at_its_new_expiry(world: World) -> None:
    """Also if it was issued near its end, after a look; what is spent is not told of at all."""
    now = money_time(world.connection)
    world.alerter.check_all()
    world.asks(ask.issue("g1", 5, expires=now + 3 * DAY))
    world.alerter.check_all()
    world.asks(ask.extend_grant("g1", until=now + 60 * DAY))
    world.asks(ask.issue("g2", 7, expires=now + 57 * DAY))
    world.asks(ask.reserve("h", 7, until=now + HOUR, by="org"))
    world.asks(ask.charge("h", 7))
    world.alerter.check_all()
    assert 1 == len(world.alerts())

    world.shift = 54 * DAY
    world.alerter.check_all()
    assert [now + 3 * DAY, now + 60 * DAY] == [one.figures["expires_at"] for one in world.alerts()]


def test_credits_that_return_near_their_expiry_raise_an_alert(world: World) -> None:
    """All of a grant was held when its end came near; a part comes back: once for each grant."""
    now = money_time(world.connection)
    world.asks(ask.issue("g1", 5, expires=now + 7 * DAY + HOUR))
    world.asks(ask.issue("g2", 5, expires=now + 7 * DAY + HOUR))
    world.asks(ask.issue("g3", 9, expires=now + 90 * DAY))
    world.asks(ask.reserve("h1", 10, until=now + 20 * HOUR, by="org"))
    world.asks(ask.reserve("h2", 9, until=now + 20 * HOUR, by="org"))
    world.alerter.check_all()
    world.shift = 2 * HOUR
    world.alerter.check_all()
    assert [] == world.alerts(), "nothing of it is available"

    world.asks(ask.refund("h1", 2))
    world.alerter.check_all()
    assert [("g2", 2)] == told_of(world)
    world.asks(ask.release("h1"))
    world.asks(ask.release("h2"))
    world.alerter.check_all()
    assert [("g2", 2), ("g1", 5)] == told_of(world), "what was told of is not told again"
    world.shift = 3 * DAY
    world.alerter.check_all()
    assert 2 == len(world.alerts())


def told_of(world: World) -> list[tuple[str, int]]:
    """Grants, and what was available of them when that was told."""
    return [(one.figures["grant"], one.figures["available"]) for one in world.alerts()]


def test_a_reversal_into_a_grant_near_its_expiry_raises_an_alert(world: World) -> None:
    """By a rule of its own, too, if that looks so far ahead."""
    now = money_time(world.connection)
    world.rule(AlertRule(kind=AlertKind.CREDITS_EXPIRING, account="org", days=30))
    world.asks(ask.issue("g1", 5, expires=now + 10 * DAY))
    world.asks(ask.reserve("h", 5, until=now + HOUR, by="org"))
    world.asks(ask.charge("h", 5, "c"))
    world.alerter.check_all()
    assert [] == world.alerts()

    world.asks(ask.reverse("c", 3))
    world.alerter.check_all()
    assert [("g1", 3)] == told_of(world)
    assert [30] == [one.figures["days"] for one in world.alerts()]


def test_many_grants_near_their_expiry_raise_alerts_page_by_page(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if they end at one instant; and no more alerts are raised at once than a page has."""
    now = money_time(world.connection)
    many = 2 * store_alerts.ENDING_MOST + 7
    ends = [now + 20 * DAY + (number % 3) * HOUR for number in range(many)]
    for number, expires in enumerate(ends):
        world.asks(ask.issue(f"g{number}", 5, expires=expires))
    world.alerter.check_all()
    asked: list[int] = []

    def decided(commands: Sequence[CommandRequest]) -> set[str]:
        asked.append(len(commands))
        return world.decided(commands)

    monkeypatch.setattr(alerts, "SUBMIT_MAX", 64)
    world.shift = 14 * DAY
    Alerter(world.connection, decided, world.clock).check_all()

    assert {f"g{number}" for number in range(many)} == {grant for grant, _ in told_of(world)}
    assert 64 == max(asked)
    assert 3 * 64 < sum(asked) == many


def test_a_long_history_is_read_page_by_page(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it in one pass, and of several orgs no more at once than a part (B6)."""
    monkeypatch.setattr(store_alerts, "SPAN", 10)
    now = money_time(world.connection)
    for number in range(15):
        world.asks(ask.issue(f"g{number}", 5, expires=now + DAY))
        world.asks(ask.book_debt(f"d{number}", 5))
    looks = store_alerts.orgs_to_check(world.connection, "", now, 100)
    assert [(0, 10, True)] == [(one.checked_number, one.upto, one.is_behind) for one in looks]

    assert world.alerter.check_all() >= 4
    assert 15 == len(world.alerts(AlertKind.DEBT))
    spans = [
        store_alerts.OrgToCheck(org, number, 0, 0) for org, number in (("a", 4), ("b", 6), ("c", 1))
    ]
    assert spans[:2] == store_alerts.limit_events(spans)
    assert spans[2:] == store_alerts.limit_events(spans[2:])
    assert [] == store_alerts.limit_events([])


def test_an_alert_is_raised_once_by_any_number_of_processes(url: str, world: World) -> None:
    """Each of several looks at everything, at once, whosever duty it is; some are killed."""
    now = money_time(world.connection)
    rule = AlertRule(kind=AlertKind.LOW_BALANCE, account="org", below=1_000)
    world.rule(rule)

    def start() -> "subprocess.Popen[bytes]":
        return subprocess.Popen([sys.executable, "-m", "tests.support.alerter_process", url])

    running = [start(), start(), start()]
    try:
        for number in range(40):
            world.asks(ask.issue(f"g{number}", 5, expires=now + DAY + number))
            if number in (10, 25):
                running[0].kill()
                running[0].wait(timeout=120)
                running = [*running[1:], start()]
        eventually(lambda: len(world.alerts()) >= 41, lambda: len(world.alerts()))
        time.sleep(0.5)  # a process that is behind may try to raise them again
    finally:
        for one in running:
            one.kill()
            one.wait(timeout=120)

    sql = "select body::text from events where org_id = %s and kind = 'SettingSet'"
    told = [json.loads(body) for (body,) in world.connection.execute(sql, [world.org])]
    ids = [one["id"] for one in told if one["kind"] == ALERT]
    assert 41 == len(ids) == len(set(ids))
    assert 1 == len(world.alerts(AlertKind.LOW_BALANCE))


def test_a_low_balance_alert_survives_the_loss_of_its_summaries(world: World) -> None:
    """What is noted of it only saves steps: lost, the same alerts are found."""
    now = money_time(world.connection)
    world.rule(AlertRule(kind=AlertKind.LOW_BALANCE, account="org", below=10))
    for number in range(3):
        world.alerter.check_all()  # low: raised
        world.asks(ask.issue(f"g{number}", 20))
        world.alerter.check_all()  # well: over
        world.asks(ask.reserve(f"h{number}", 20, until=now + HOUR, by="org"))
    world.connection.execute("delete from alert_rearms")
    world.alerter.check_all()
    world.alerter.check_all()

    assert [True, True, True, False] == [one.is_recovered for one in world.alerts()]


def test_alerts_leave_the_books_consistent(world: World, there: Receiver) -> None:
    """verify and rebuild find nothing: what was tried is no part of the books (L1)."""
    webhook = world.webhook(there.url, "*")
    world.rule(AlertRule(kind=AlertKind.LOW_BALANCE, account="org", below=10))
    world.asks(ask.issue("g1", 5))
    there.answers = [500]
    world.alerter.check_all()
    world.deliver()
    world.asks(rotate_command(webhook, "key", 60))

    assert [] == list(verify(world.connection))
    assert () == rebuild_org(world.url, world.org).differences


def test_every_kind_of_event_names_its_subject(connection: Connection) -> None:
    """A webhook for an account is told of all that happens to it, of whatever kind."""
    org = new_org(connection)
    story(connection, org)
    sql = "select distinct on (kind) kind, body::text from events where org_id = %s order by kind"
    told = {
        kind: subject_of(event_of(kind, body))
        for kind, body in connection.execute(sql, [org])
        if kind != "SettingSet"
    }

    of_the_org = {"UserAdded", "PolicySet", "TierSet", "PriceSet"}
    for kind, (table, id) in told.items():
        assert (kind in of_the_org) == (id == ""), (kind, table, id)
    assert {"GrantIssued", "ChargeBooked", "HoldOpened", "DebtRepaid"} <= set(told) <= set(EVENTS)
