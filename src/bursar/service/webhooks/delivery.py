"""Delivers events to webhooks: in order, at least once, each at its own pace (B6).

The outbox is the org's events themselves; a webhook has a cursor into them. The next event is read,
sent and recorded, then the one after it. If the process is killed in between, its successor sends
the event again with the same id. Failed deliveries back off. Each webhook receives events in order,
independently of all others. After three days the delivery of an event is given up, which raises an
alert; then the next event follows.

One thread works with the database; another one, with an event loop, sends.
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
from bursar.service.ledger.batch import CommandRequest
from bursar.service.ledger.clock import GuardedClock
from bursar.service.secrets import Secret
from bursar.service.webhooks.alerts import SubmitAlerts, raise_command
from bursar.service.webhooks.safe_http import HttpOutcome, SafeHttpClient
from bursar.service.webhooks.signatures import (
    WEBHOOK,
    Webhook,
    delivery_headers,
    event_type,
    message_id,
    secret_for,
    signing_versions,
)
from bursar.service.workers.worker import REST_MAX_S, DatabaseWorker, Task, Turn, WorkerLease
from bursar.store.ledger.pages import EventRow
from bursar.store.ledger.settings import settings_of
from bursar.store.sql.connection import Connection
from bursar.store.webhooks import deliveries
from bursar.store.webhooks.deliveries import (
    CursorUpdate,
    DeliveryAttempt,
    Redelivery,
    WebhookCursor,
    WebhookKey,
)

WEBHOOKS: Final = "webhooks"  # the worker
PAUSES_S: Final = (5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400)
GIVE_UP: Final = 3 * DAY  # after which an event is not delivered any more
JITTER: Final = 0.2  # of a pause, so that deliveries that failed together are not retried together

PAGE: Final = 256  # webhooks that are read together
RUN_EVENTS_MAX: Final = 100  # events in one run
RUNS_MAX: Final = 512  # runs at the same time
ORG_RUNS_MAX: Final = 32  # of these, of one org
GATHER_S: Final = 0.02  # outcomes that arrive within this time are saved together

RenderEvent = Callable[[OrgId, EventRow], bytes]  # renders the body of a message


@dataclass(frozen=True, slots=True)
class Message:
    """One event on its way to one webhook."""

    number: int
    at: Instant  # of the event
    type: str
    payload: bytes


class AttemptOutcome(NamedTuple):
    """The outcome of one attempt, or (None) the end of a run."""

    run: "WebhookRun"
    message: Message | None
    outcome: HttpOutcome | None


@dataclass(slots=True, eq=False)
class WebhookRun:
    """A run of messages that are being sent to one webhook."""

    org: OrgId
    id: str
    webhook: Webhook
    secrets: list[bytes]
    messages: list[Message]
    cursor: WebhookCursor | None = None
    redelivery: Redelivery | None = None  # requested by a user, out of turn
    updated: CursorUpdate | None = None

    @property
    def key(self) -> tuple[OrgId, str, int]:
        """Identifies runs that must not be in progress twice."""
        return self.org, self.id, 0 if self.redelivery is None else self.redelivery.number

    def failure_state(self, now: Instant) -> tuple[int, Instant, int]:
        """For a failed attempt: earlier tries, since when they fail, the last event done."""
        if self.redelivery is not None:
            return self.redelivery.tries, self.redelivery.requested_at, 0
        at = self.updated or self.cursor
        assert at is not None
        return at.tries, now if at.failing_at is None else at.failing_at, at.number


class WebhookSender:
    """A thread that sends; outcomes are put into a queue."""

    def __init__(
        self,
        outbound: SafeHttpClient,
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

    def send(self, run: WebhookRun) -> "Future[None]":
        """Send messages in order, until one fails."""
        return asyncio.run_coroutine_threadsafe(self._send(run), self._loop)

    async def _send(self, run: WebhookRun) -> None:
        try:
            for message in run.messages:
                outcome = await self._post(run, message)
                self._report(AttemptOutcome(run, message, outcome))
                if not outcome.arrived:
                    break
        finally:
            self._report(AttemptOutcome(run, None, None))

    async def _post(self, run: WebhookRun, message: Message) -> HttpOutcome:
        id = message_id(run.id, message.number)
        headers = delivery_headers(id, int(time.time()), message.payload, run.secrets)
        return await self._outbound.post(run.webhook.url, headers, message.payload)

    def _report(self, outcome: AttemptOutcome) -> None:
        self._done.put(outcome)
        self._on_outcome()

    def close(self) -> None:
        """Drop the messages in progress, and stop."""
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
    """Reads due events, passes them to the sender, and saves the outcomes."""

    connection: Connection
    secret: Secret
    render: RenderEvent
    submit: SubmitAlerts
    outbound: SafeHttpClient
    clock: Callable[[Connection], Instant]
    pauses_s: Sequence[float] = PAUSES_S
    give_up: int = GIVE_UP
    on_outcome: Callable[[], object] = lambda: None
    done: "queue.SimpleQueue[AttemptOutcome]" = field(default_factory=queue.SimpleQueue)
    sender: WebhookSender = field(init=False)
    _runs: dict[tuple[OrgId, str, int], WebhookRun] = field(default_factory=dict)
    _directory: Directory = field(default_factory=Directory)

    def __post_init__(self) -> None:
        self.sender = WebhookSender(self.outbound, self.done, self.on_outcome)

    def close(self) -> None:
        """Save the outcomes, and drop the rest."""
        self.sender.close()
        self.save_outcomes()

    def take_turn(self, turn: Turn) -> None:
        """Save outcomes; at a poll, also start the runs that are due."""
        if not self.done.empty():
            self.save_outcomes()
        if turn.is_poll and turn.may_continue():
            self.start()

    # Outcomes

    def save_outcomes(self) -> None:
        """Save the outcomes of attempts."""
        now = self.clock(self.connection)
        attempts: list[DeliveryAttempt] = []
        cursors: dict[WebhookKey, CursorUpdate] = {}
        ended: list[WebhookRun] = []
        failed: list[tuple[WebhookRun, Instant]] = []
        while not self.done.empty():
            run, message, outcome = self.done.get()
            if message is None or outcome is None:
                ended.append(run)
                continue
            attempt, cursor = self._evaluate(run, message, outcome, now)
            attempts.append(attempt)
            if cursor is not None:
                run.updated = cursors[run.org, run.id] = cursor
            if attempt.status == "given_up" and message.type != f"alert.{AlertKind.WEBHOOK_FAILED}":
                since = cursor.failing_at if cursor is not None else None
                failed.append((run, since or now))
        deliveries.save_outcomes(self.connection, attempts, list(cursors.values()))
        for run in ended:
            self._runs.pop(run.key, None)
        if failed:
            self.submit([failure_command(flight, since) for flight, since in failed])

    def _evaluate(
        self, run: WebhookRun, message: Message, outcome: HttpOutcome, now: Instant
    ) -> tuple[DeliveryAttempt, CursorUpdate | None]:
        """What an attempt means for the delivery, and for the cursor of the webhook."""
        org, id, number = run.org, run.id, message.number
        if outcome.arrived:
            attempt = DeliveryAttempt(org, id, number, "delivered", now, outcome.code, None, None)
            return attempt, None if run.redelivery else CursorUpdate(org, id, number, 0, None, 0)
        tries, failing_at, before = run.failure_state(now)
        since = failing_at if run.redelivery else max(message.at, failing_at)
        if now - since >= self.give_up:
            attempt = DeliveryAttempt(
                org, id, number, "given_up", now, outcome.code, outcome.why, None
            )
            return attempt, None if run.redelivery else CursorUpdate(
                org, id, number, 0, failing_at, 0
            )
        next_at = now + self._pause(tries)
        attempt = DeliveryAttempt(
            org, id, number, "pending", now, outcome.code, outcome.why, next_at
        )
        cursor = CursorUpdate(org, id, before, tries + 1, failing_at, next_at)
        return attempt, None if run.redelivery else cursor

    def _pause(self, tries: int) -> int:
        pause_s = self.pauses_s[min(tries, len(self.pauses_s) - 1)]
        return int(pause_s * random.uniform(1 - JITTER, 1 + JITTER) * SECOND)

    # Runs

    def start(self) -> int:
        """Start all runs that are due; return how many."""
        now = self.clock(self.connection)
        started = self._start_redeliveries(now)
        after: WebhookKey = ("", "")
        while len(self._runs) < RUNS_MAX:
            page = deliveries.due_cursors(self.connection, after, now, PAGE)
            if not page:
                break
            started += self._start_next(self._without_run(page), now)
            after = page[-1].key
        return started

    def _without_run(self, page: Iterable[WebhookCursor]) -> list[WebhookCursor]:
        """The webhooks of a page without a run in progress, with a limit per org."""
        busy = Counter(org for org, _, _ in self._runs)
        free: list[WebhookCursor] = []
        for cursor in page:
            if (cursor.org, cursor.webhook, 0) not in self._runs and busy[
                cursor.org
            ] < ORG_RUNS_MAX:
                busy[cursor.org] += 1
                free.append(cursor)
        return free

    def _start_next(self, cursors: Sequence[WebhookCursor], now: Instant) -> int:
        known = self._webhooks([cursor.key for cursor in cursors], now)
        here = [(cursor, known[cursor.key]) for cursor in cursors if cursor.key in known]
        if not here:
            return 0
        wanted = [(cursor, webhook.kinds) for cursor, (webhook, _) in here]
        events = deliveries.next_events(self.connection, wanted, RUN_EVENTS_MAX)
        passed: list[CursorUpdate] = []
        started = 0
        for cursor, (webhook, secrets) in here:
            read = events[cursor.key]
            messages = [
                message for event in read if (message := self._message(cursor.org, webhook, event))
            ]
            if messages:
                run = WebhookRun(
                    cursor.org, cursor.webhook, webhook, secrets, messages, cursor=cursor
                )
                started += self._launch(run)
            else:  # nothing of what was read concerns it
                upto = read[-1].number if len(read) == RUN_EVENTS_MAX else cursor.upto
                passed.append(
                    CursorUpdate(cursor.org, cursor.webhook, upto, 0, cursor.failing_at, 0)
                )
        deliveries.save_outcomes(self.connection, [], passed)
        return started

    def _start_redeliveries(self, now: Instant) -> int:
        requests = [
            request
            for request in deliveries.due_redeliveries(self.connection, now, PAGE)
            if (request.org, request.webhook, request.number) not in self._runs
        ]
        if not requests:
            return 0
        known = self._webhooks(
            sorted({(request.org, request.webhook) for request in requests}), now
        )
        events = deliveries.events_at(
            self.connection, sorted({(request.org, request.number) for request in requests})
        )
        started = 0
        for request in requests:
            event = events.get((request.org, request.number))
            if (request.org, request.webhook) not in known or event is None:
                continue
            webhook, secrets = known[request.org, request.webhook]
            type = event_type(event)
            if type is not None:
                message = Message(event.number, event.at, type, self.render(request.org, event))
                run = WebhookRun(
                    request.org, request.webhook, webhook, secrets, [message], redelivery=request
                )
                started += self._launch(run)
        return started

    def _launch(self, run: WebhookRun) -> int:
        self._runs[run.key] = run
        self.sender.send(run)
        return 1

    def _webhooks(
        self, keys: Sequence[WebhookKey], now: Instant
    ) -> dict[WebhookKey, tuple[Webhook, list[bytes]]]:
        """Webhooks and the secrets that sign for them now; cursors of deleted ones are dropped."""
        if not keys:
            return {}
        settings = settings_of(self.connection, WEBHOOK, keys)
        deleted = [key for key in keys if key not in settings or settings[key].body is None]
        if deleted:
            deliveries.drop_webhooks(self.connection, deleted)
        there = [key for key in keys if key not in deleted]
        if not there:
            return {}
        rotations = deliveries.secrets(self.connection, there)
        return {
            (org, id): (
                Webhook.from_body(settings[org, id].body or ""),
                [
                    secret_for(self.secret, org, id, version)
                    for version in signing_versions(rotations[org, id], now)
                ],
            )
            for org, id in there
        }

    def _message(self, org: OrgId, webhook: Webhook, event: EventRow) -> Message | None:
        """The message for an event; None if the webhook does not want it."""
        type = event_type(event)
        if type is None or not webhook.wants(type):
            return None
        if webhook.account is not None and not self._concerns(org, webhook.account, event):
            return None
        return Message(event.number, event.at, type, self.render(org, event))

    def _concerns(self, org: OrgId, account: str, event: EventRow) -> bool:
        """Whether an event is about an account or one below it."""
        table, id = subject_of(event.event)
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


def failure_command(run: WebhookRun, since: Instant) -> CommandRequest:
    """The command that raises the alert that a webhook has failed for days; once per failure."""
    kind = AlertKind.WEBHOOK_FAILED
    id = alert_id(run.org, kind, f"{run.id}/{since}", since)
    figures = {"webhook": run.id, "failing_since_at": since}
    account = run.webhook.account
    return raise_command(run.org, id, Alert(kind=kind, account=account, figures=figures))


class WebhookWorker(DatabaseWorker):
    """Delivers events to webhooks, while this process holds the lease."""

    def __init__(
        self,
        connect: Callable[[], Connection],
        submit: SubmitAlerts,
        secret: Secret,
        render: RenderEvent,
        outbound: SafeHttpClient,
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
                render,
                submit,
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
