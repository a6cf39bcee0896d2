"""Telling webhooks what has happened: in order, at least once, each at its own pace (B6).

The outbox is the org's events themselves; a webhook has a cursor into them. What is next for it is
read, sent and noted, then what follows. If the process is killed in between, its successor sends
the event again under the same id. Failed deliveries back off. Each webhook receives events in
order, independently of all others. An event that is not delivered within three days is given up
and raises an alert; then the next event follows.

The thread that works with the database sends nothing; a second one, with an event loop, does.
"""

import asyncio
import queue
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from bursar.core.alerts import Alert, AlertKind, alert_id
from bursar.core.ids import OrgId
from bursar.core.instant import DAY, SECOND, Instant
from bursar.core.ledger import events as happened
from bursar.core.ledger.events import Event
from bursar.service.cache import Directory
from bursar.service.ledger.batch import Ask
from bursar.service.ledger.clock import GuardedClock
from bursar.service.secrets import Secret
from bursar.service.webhooks.alerts import SubmitAlerts, raising
from bursar.service.webhooks.safe_http import HttpOutcome, Outbound
from bursar.service.webhooks.signatures import (
    WEBHOOK,
    Webhook,
    message_id,
    secret_for,
    signed,
    type_of_recorded,
    versions,
)
from bursar.service.workers.worker import REST_MAX_S, DatabaseWorker, Task, Turn, WorkerLease
from bursar.store.ledger.pages import Recorded
from bursar.store.ledger.settings import settings_of
from bursar.store.sql.codec import event_of
from bursar.store.sql.connection import Connection
from bursar.store.webhooks import deliveries
from bursar.store.webhooks.deliveries import Asked, Cursor, Named, Stand, Tried

WEBHOOKS: Final = "webhooks"  # the duty
PAUSES_S: Final = (5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400)
GIVE_UP: Final = 3 * DAY  # after which an event is told no more
JITTER: Final = 0.2  # of a pause: so that those who failed together do not come together again

PAGE: Final = 256  # webhooks that are looked at together
TOGETHER: Final = 100  # events that one webhook is told before it is looked at again
IN_FLIGHT: Final = 512  # webhooks that are being told something
OF_ONE_ORG: Final = 32  # of these, of one org
GATHER_S: Final = 0.02  # outcomes that arrive within this time are noted together

RenderEvent = Callable[[OrgId, Recorded], bytes]  # what a webhook is sent of an event


@dataclass(frozen=True, slots=True)
class Message:
    """One event on its way to one webhook."""

    number: int
    at: Instant  # of the event
    type: str
    payload: bytes


class AttemptOutcome(NamedTuple):
    """What became of one try, or that nothing more is under way."""

    flight: "WebhookRun"
    message: Message | None
    said: HttpOutcome | None


@dataclass(slots=True, eq=False)
class WebhookRun:
    """What is being told to one webhook."""

    org: OrgId
    id: str
    webhook: Webhook
    secrets: list[bytes]
    messages: list[Message]
    cursor: Cursor | None = None
    asked: Asked | None = None  # one that somebody wants again, out of turn
    stand: Stand | None = None

    @property
    def key(self) -> tuple[OrgId, str, int]:
        """What must not be under way twice."""
        return self.org, self.id, 0 if self.asked is None else self.asked.number

    def standing(self, now: Instant) -> tuple[int, Instant, int]:
        """Before a try that failed now: tries, since when they fail, the last event done with."""
        if self.asked is not None:
            return self.asked.tries, self.asked.asked_at, 0
        at = self.stand or self.cursor
        assert at is not None
        return at.tries, now if at.failing_at is None else at.failing_at, at.number


class WebhookSender:
    """A thread that sends, whatever is slow; results are put into a queue."""

    def __init__(
        self,
        outbound: Outbound,
        done: "queue.SimpleQueue[AttemptOutcome]",
        on_outcome: Callable[[], object],
    ) -> None:
        self._outbound = outbound
        self._done = done
        self._on_outcome = on_outcome  # called when something is in the queue
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(ThreadPoolExecutor(32, thread_name_prefix="resolver"))
        self._thread = threading.Thread(target=self._run, name="webhook-sender", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def send(self, flight: WebhookRun) -> "Future[None]":
        """Send messages in order, until one does not arrive."""
        return asyncio.run_coroutine_threadsafe(self._send(flight), self._loop)

    async def _send(self, flight: WebhookRun) -> None:
        try:
            for message in flight.messages:
                said = await self._sent(flight, message)
                self._tell(AttemptOutcome(flight, message, said))
                if not said.arrived:
                    break
        finally:
            self._tell(AttemptOutcome(flight, None, None))

    async def _sent(self, flight: WebhookRun, message: Message) -> HttpOutcome:
        id = message_id(flight.id, message.number)
        headers = signed(id, int(time.time()), message.payload, flight.secrets)
        return await self._outbound.post(flight.webhook.url, headers, message.payload)

    def _tell(self, outcome: AttemptOutcome) -> None:
        self._done.put(outcome)
        self._on_outcome()

    def close(self) -> None:
        """Drop what is under way, and stop."""
        self._loop.call_soon_threadsafe(self._end)
        self._thread.join(2.0)
        if not self._thread.is_alive():
            self._loop.close()

    def _end(self) -> None:
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        gathered = asyncio.gather(*tasks, return_exceptions=True)
        gathered.add_done_callback(lambda _: self._loop.stop())


@dataclass(slots=True)
class Deliverer:
    """Reads what is to be told, hands it to the postman, and notes what became of it."""

    connection: Connection
    secret: Secret
    render: RenderEvent
    decided: SubmitAlerts
    outbound: Outbound
    clock: Callable[[Connection], Instant]
    pauses_s: Sequence[float] = PAUSES_S
    give_up: int = GIVE_UP
    on_outcome: Callable[[], object] = lambda: None
    done: "queue.SimpleQueue[AttemptOutcome]" = field(default_factory=queue.SimpleQueue)
    sender: WebhookSender = field(init=False)
    _flights: dict[tuple[OrgId, str, int], WebhookRun] = field(default_factory=dict)
    _directory: Directory = field(default_factory=Directory)

    def __post_init__(self) -> None:
        self.sender = WebhookSender(self.outbound, self.done, self.on_outcome)

    def close(self) -> None:
        """Note what has arrived, and drop the rest."""
        self.sender.close()
        self.note()

    def take_turn(self, turn: Turn) -> None:
        """Note outcomes; at a poll, also start what is due."""
        if not self.done.empty():
            self.note()
        if turn.is_poll and turn.may_continue():
            self.start()

    # What became of it

    def note(self) -> None:
        """Write down what became of what was sent."""
        now = self.clock(self.connection)
        tried: list[Tried] = []
        stands: dict[Named, Stand] = {}
        ended: list[WebhookRun] = []
        failed: list[tuple[WebhookRun, Instant]] = []
        while not self.done.empty():
            flight, message, said = self.done.get()
            if message is None or said is None:
                ended.append(flight)
                continue
            one, stand = self._judged(flight, message, said, now)
            tried.append(one)
            if stand is not None:
                flight.stand = stands[flight.org, flight.id] = stand
            if one.status == "given_up" and message.type != f"alert.{AlertKind.WEBHOOK_FAILED}":
                since = stand.failing_at if stand is not None else None
                failed.append((flight, since or now))
        deliveries.note(self.connection, tried, list(stands.values()))
        for flight in ended:
            self._flights.pop(flight.key, None)
        if failed:
            self.decided([_failure(flight, since) for flight, since in failed])

    def _judged(
        self, flight: WebhookRun, message: Message, said: HttpOutcome, now: Instant
    ) -> tuple[Tried, Stand | None]:
        """What a try means for the delivery, and for where the webhook stands."""
        org, id, number = flight.org, flight.id, message.number
        if said.arrived:
            done = Tried(org, id, number, "delivered", now, said.code, None, None)
            return done, None if flight.asked else Stand(org, id, number, 0, None, 0)
        tries, failing_at, before = flight.standing(now)
        since = failing_at if flight.asked else max(message.at, failing_at)
        if now - since >= self.give_up:
            done = Tried(org, id, number, "given_up", now, said.code, said.why, None)
            return done, None if flight.asked else Stand(org, id, number, 0, failing_at, 0)
        next_at = now + self._pause(tries)
        done = Tried(org, id, number, "pending", now, said.code, said.why, next_at)
        stand = Stand(org, id, before, tries + 1, failing_at, next_at)
        return done, None if flight.asked else stand

    def _pause(self, tries: int) -> int:
        pause_s = self.pauses_s[min(tries, len(self.pauses_s) - 1)]
        return int(pause_s * random.uniform(1 - JITTER, 1 + JITTER) * SECOND)

    # What is next

    def start(self) -> int:
        """Let everything that is due be sent; how much that is."""
        now = self.clock(self.connection)
        started = self._start_asked(now)
        after: Named = ("", "")
        while len(self._flights) < IN_FLIGHT:
            page = deliveries.due(self.connection, after, now, PAGE)
            if not page:
                break
            started += self._start_next(self._free(page), now)
            after = page[-1].named
        return started

    def _free(self, page: Iterable[Cursor]) -> list[Cursor]:
        """Those of a page that nothing is being told to, a fair number of each org."""
        busy = Counter(org for org, _, _ in self._flights)
        free: list[Cursor] = []
        for one in page:
            if (one.org, one.webhook, 0) not in self._flights and busy[one.org] < OF_ONE_ORG:
                busy[one.org] += 1
                free.append(one)
        return free

    def _start_next(self, cursors: Sequence[Cursor], now: Instant) -> int:
        known = self._webhooks([one.named for one in cursors], now)
        here = [(one, known[one.named]) for one in cursors if one.named in known]
        if not here:
            return 0
        asked = [(one, webhook.kinds) for one, (webhook, _) in here]
        found = deliveries.next_events(self.connection, asked, TOGETHER)
        passed: list[Stand] = []
        started = 0
        for one, (webhook, secrets) in here:
            read = found[one.named]
            messages = [
                message for event in read if (message := self._message(one.org, webhook, event))
            ]
            if messages:
                flight = WebhookRun(one.org, one.webhook, webhook, secrets, messages, cursor=one)
                started += self._launch(flight)
            else:  # nothing of what was read concerns it
                upto = read[-1].number if len(read) == TOGETHER else one.upto
                passed.append(Stand(one.org, one.webhook, upto, 0, one.failing_at, 0))
        deliveries.note(self.connection, [], passed)
        return started

    def _start_asked(self, now: Instant) -> int:
        asked = [
            one
            for one in deliveries.asked_for(self.connection, now, PAGE)
            if (one.org, one.webhook, one.number) not in self._flights
        ]
        if not asked:
            return 0
        known = self._webhooks(sorted({(one.org, one.webhook) for one in asked}), now)
        events = deliveries.events_at(
            self.connection, sorted({(one.org, one.number) for one in asked})
        )
        started = 0
        for one in asked:
            event = events.get((one.org, one.number))
            if (one.org, one.webhook) not in known or event is None:
                continue
            webhook, secrets = known[one.org, one.webhook]
            type = type_of_recorded(event)
            if type is not None:
                message = Message(event.number, event.at, type, self.render(one.org, event))
                flight = WebhookRun(one.org, one.webhook, webhook, secrets, [message], asked=one)
                started += self._launch(flight)
        return started

    def _launch(self, flight: WebhookRun) -> int:
        self._flights[flight.key] = flight
        self.sender.send(flight)
        return 1

    def _webhooks(
        self, named: Sequence[Named], now: Instant
    ) -> dict[Named, tuple[Webhook, list[bytes]]]:
        """Webhooks, and the secrets that sign for them now; those that are no more are dropped."""
        if not named:
            return {}
        kept = settings_of(self.connection, WEBHOOK, named)
        gone = [one for one in named if one not in kept or kept[one].body is None]
        if gone:
            deliveries.drop(self.connection, gone)
        there = [one for one in named if one not in gone]
        if not there:
            return {}
        given = deliveries.secrets(self.connection, there)
        return {
            (org, id): (
                Webhook.of(kept[org, id].body or ""),
                [secret_for(self.secret, org, id, one) for one in versions(given[org, id], now)],
            )
            for org, id in there
        }

    def _message(self, org: OrgId, webhook: Webhook, event: Recorded) -> Message | None:
        """What a webhook is told of an event; None if it is none of its business."""
        type = type_of_recorded(event)
        if type is None or not webhook.wants(type):
            return None
        if webhook.account is not None and not self._concerns(org, webhook.account, event):
            return None
        return Message(event.number, event.at, type, self.render(org, event))

    def _concerns(self, org: OrgId, account: str, event: Recorded) -> bool:
        """Whether an event is about an account or one below it."""
        table, id = subject_of(event_of(event.kind, event.body))
        if not id:
            return False
        own = self._directory.account_of(self.connection, org, table, id)
        if not own:
            return False
        return account in self._directory.path_of(self.connection, org, own)


def subject_of(event: Event) -> tuple[str, str]:
    """The table and the id of what an event is about; empty if that is the whole org."""
    match event:
        case happened.SettingSet():
            return "accounts", (Alert.from_body(event.body).account or "") if event.body else ""
        case happened.AccountAdded():
            return "accounts", event.account.id
        case happened.HoldChanged():
            return "holds", event.hold
        case happened.JobStepped():
            return "holds", event.job
        case happened.EndCorrected():
            return "holds", event.hold
        case happened.GrantIssued():
            return "accounts", event.terms.account
        case (
            happened.GrantLapsed()
            | happened.GrantExtended()
            | happened.GrantRevoked()
            | happened.CreditsMoved()
        ):
            return "grants", event.grant
        case happened.RecurrenceStarted():
            return "recurrences", event.recurrence.id
        case happened.RecurrenceTurned() | happened.RecurrenceStopped():
            return "recurrences", event.recurrence
        case happened.ChargeReversed():
            return "charges", event.charge
        case happened.DebtBooked():
            return "debts", event.debt.id
        case happened.DebtRepaid() | happened.DebtAbsorbed():
            return "debts", event.debt
        case happened.BudgetSet():
            return "accounts", event.budget.target.account or ""
        case happened.BudgetDropped() | happened.ThresholdCrossed():
            return "budgets", event.budget
        case _:
            return "accounts", ""


def _failure(flight: WebhookRun, since: Instant) -> Ask:
    """That nothing has arrived at a webhook for days: told once, until something arrives."""
    kind = AlertKind.WEBHOOK_FAILED
    id = alert_id(flight.org, kind, f"{flight.id}/{since}", since)
    figures = {"webhook": flight.id, "failing_since_at": since}
    account = flight.webhook.account
    return raising(flight.org, id, Alert(kind=kind, account=account, figures=figures))


class WebhookWorker(DatabaseWorker):
    """Delivers events to webhooks, while no other process does."""

    def __init__(
        self,
        connect: Callable[[], Connection],
        decided: SubmitAlerts,
        secret: Secret,
        told: RenderEvent,
        outbound: Outbound,
        *,
        interval_s: float = 0.5,
        term_s: float = 10.0,
        clock: Callable[[Connection], Instant] | None = None,
        pauses_s: Sequence[float] = PAUSES_S,
        give_up: int = GIVE_UP,
    ) -> None:
        clock = clock or GuardedClock()

        @contextmanager
        def delivering(connection: Connection) -> Iterator[Task]:
            deliverer = Deliverer(
                connection,
                secret,
                told,
                decided,
                outbound,
                clock,
                pauses_s=pauses_s,
                give_up=give_up,
                on_outcome=self.wake,
            )
            try:
                yield deliverer.take_turn
            finally:
                deliverer.close()

        super().__init__(
            WEBHOOKS,
            connect,
            delivering,
            interval_s=interval_s,
            lease=WorkerLease(WEBHOOKS, term_s, clock),
            min_pause_s=GATHER_S,
            rest_max_s=REST_MAX_S,
        )
