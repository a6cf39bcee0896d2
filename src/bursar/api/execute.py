"""Carrying an operation out: whose it is, what it means, what became of it."""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from fastapi import Request, Response

from bursar.api.context import Caller, Service, unknown
from bursar.api.errors import Failed, InvalidCommand, problem_response
from bursar.api.operations import BOOK, ORG, Asked, Operation
from bursar.api.response_headers import RawHeaders
from bursar.core.ledger.commands import Command
from bursar.core.refusal import Code, Refusal
from bursar.service.keys import DEPLOYMENT
from bursar.service.ledger.batch import Answer, Ask
from bursar.service.org_setup import org_user
from bursar.service.queries.entities import Listing
from bursar.wire.fields import IdFactory, WireModel
from bursar.wire.problems import MEDIA_TYPE, problem_from_refusal
from bursar.wire.requests import called
from bursar.wire.responses import Happened

RESERVED: Final = ("bursar:", "pool:", "sweep/")  # keys that are our own
_KEY: Final = re.compile(r"[\x21-\x7e]{1,255}")
_JSON: Final = b"application/json"
_PROBLEM: Final = MEDIA_TYPE.encode()


@dataclass(frozen=True, slots=True)
class Done:
    """What is answered to an operation."""

    status: int
    body: bytes
    event: str  # stream:number
    replayed: bool
    problem: bool

    @property
    def headers(self) -> dict[str, str]:
        """What is said beside the body."""
        told = {"Bursar-Event": self.event}
        if self.replayed:
            told["Idempotent-Replayed"] = "true"
        return told

    @property
    def raw_headers(self) -> RawHeaders:
        """All that is said beside the body, as it is sent."""
        told = [
            (b"bursar-event", self.event.encode()),
            (b"content-type", _PROBLEM if self.problem else _JSON),
            (b"content-length", b"%d" % len(self.body)),
        ]
        if self.replayed:
            told.append((b"idempotent-replayed", b"true"))
        return told

    def response(self) -> Response:
        """The answer, by way of the framework."""
        media = _PROBLEM if self.problem else _JSON
        return Response(self.body, self.status, self.headers, media.decode())


def key_of(request: Request) -> str:
    """The caller's key for a request that changes something."""
    key = request.headers.get("idempotency-key")
    if key is None:
        raise Failed("idempotency_key_missing")
    return checked_key(key)


def checked_key(key: str) -> str:
    """A key that a caller may use."""
    if not _KEY.fullmatch(key) or key.startswith(RESERVED):
        raise Failed("idempotency_key_invalid")
    return key


async def do(
    service: Service, caller: Caller, operation: Operation, id: str, body: Any, key: str
) -> Done:
    """Carry an operation out."""
    caller.needs(operation.scope)
    org = await _org(service, caller, operation, id, body)
    making = IdFactory(org, key, int(time.time() * 1_000))
    asked = Asked(
        org=org,
        id=id,
        body=body,
        making=making,
        user=caller.key.user or org_user(org),
        asked_by=caller.id if caller.key.capped else None,
    )
    try:
        command = operation.command(asked)
    except (ValueError, TypeError) as error:
        raise InvalidCommand(str(error)) from error
    answer = await asked_for(service, caller, org, key, command, making.made)
    return done_of(
        org,
        answer,
        operation.status,
        lambda happened: operation.told(org, answer.command, happened),
    )


async def asked_for(
    service: Service,
    caller: Caller,
    org: str,
    key: str,
    command: Command,
    made: tuple[str, ...] = (),
) -> Answer:
    """What the ledger says to a command."""
    return await told_by(service, Ask(org, key, command, None, made, caller.id))


async def told_by(service: Service, ask: Ask) -> Answer:
    """What the ledger says to a command with all that is written beside it."""
    awaited = service.arrivals.expected()
    service.ledger.tell(awaited, ask)
    answer: Answer = await awaited.future
    return answer


def done_of(org: str, answer: Answer, status: int, told: Callable[[Happened], WireModel]) -> Done:
    """What is answered: made of the command and its events alone, so the same each time."""
    event = f"{org}:{answer.number}"
    if isinstance(answer.outcome, Refusal):
        refused = problem_response(
            problem_from_refusal(_said_to_callers(answer.outcome, answer.command))
        )
        return Done(refused.status_code, bytes(refused.body), event, answer.replayed, True)
    return Done(status, encoded(told(answer.outcome)), event, answer.replayed, False)


def _said_to_callers(refusal: Refusal, command: Command) -> Refusal:
    """A refusal; that a key stands for something else, in the words of who sent it."""
    if refusal.code is not Code.KEY_REUSED:
        return refusal
    field = called(command, refusal.figures["field"])
    return Refusal(refusal.code, {**refusal.figures, "field": field})


def told_of(
    org: str, answer: Answer, status: int, told: Callable[[Happened], WireModel]
) -> Response:
    """The response to a command that is no operation of the table."""
    return done_of(org, answer, status, told).response()


def encoded(shape: WireModel) -> bytes:
    """A shape as JSON."""
    return shape.model_dump_json().encode()


async def _check_own(service: Service, caller: Caller, org: str, hold: str) -> None:
    """End the call unless a hold counts on the cap of the key that calls."""
    seen = await service.read(lambda reader: Listing(reader).one(org, "holds", hold))
    if seen.value is None or seen.value.terms.asked_by != caller.id:
        raise unknown("holds", hold)


async def _org(service: Service, caller: Caller, operation: Operation, id: str, body: Any) -> str:
    """The org that an operation is about; all that it names must be the caller's to name."""
    org: str | None = None
    for table, field in operation.about:
        given = id if field == "id" else getattr(body, field)
        if table == BOOK and given is None and caller.is_operator:
            return DEPLOYMENT
        if table in (ORG, BOOK):
            return await service.whole_org(caller, given)
        if given is None:
            continue
        found = await service.org_of(caller, table, given)
        if table == "holds" and caller.key.capped:
            await _check_own(service, caller, found, given)
        if org is not None and found != org:
            raise Failed("invalid_request", f"{field}: it is of another org")
        org = found
    if org is None:
        names = " or ".join(field for _, field in operation.about)
        raise Failed("invalid_request", f"{names}: say which")
    return org
