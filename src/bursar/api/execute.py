"""Runs commands: find the org, build the command, turn the outcome into a response."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from starlette.responses import Response

from bursar.api.context import Caller, Service, unknown
from bursar.api.errors import CallFailed, InvalidCommand, problem_response
from bursar.api.operation import ORG, PRICE_BOOK, CommandInput, Operation
from bursar.api.response_headers import RawHeaders
from bursar.core.ledger.commands import Command
from bursar.core.refusal import Code, Refusal
from bursar.service.keys import DEPLOYMENT
from bursar.service.ledger.batch import Answer, CommandRequest
from bursar.service.org_setup import org_user
from bursar.service.queries.entities import Entities
from bursar.wire.fields import IdFactory, WireModel
from bursar.wire.problems import MEDIA_TYPE, problem_from_refusal
from bursar.wire.requests import api_field_name
from bursar.wire.responses import Happened

_JSON: Final = b"application/json"
_PROBLEM: Final = MEDIA_TYPE.encode()


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The response to a command, before it is sent."""

    status: int
    body: bytes
    event: str  # stream:number
    replayed: bool
    is_problem: bool

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the result, without those that describe its body."""
        headers = {"Bursar-Event": self.event}
        if self.replayed:
            headers["Idempotent-Replayed"] = "true"
        return headers

    @property
    def raw_headers(self) -> RawHeaders:
        """All headers of the result, as ASGI sends them."""
        headers = [
            (b"bursar-event", self.event.encode()),
            (b"content-type", _PROBLEM if self.is_problem else _JSON),
            (b"content-length", b"%d" % len(self.body)),
        ]
        if self.replayed:
            headers.append((b"idempotent-replayed", b"true"))
        return headers

    def response(self) -> Response:
        """The result as a response that can be given more headers."""
        media = _PROBLEM if self.is_problem else _JSON
        return Response(self.body, self.status, self.headers, media.decode())


async def execute(
    service: Service, caller: Caller, operation: Operation, id: str, body: Any, key: str
) -> CommandResult:
    """Run an operation that is a command of the ledger."""
    spec = operation.command
    assert spec is not None
    assert operation.scope is not None
    caller.needs(operation.scope)
    org = await _find_org(service, caller, spec.subjects, id, body)
    if spec.check is not None and await service.is_first_request(org, key):
        spec.check(service, body)
    ids = IdFactory(org, key, int(time.time() * 1_000))
    source = CommandInput(
        org=org,
        id=id,
        body=body,
        ids=ids,
        user=caller.key.user or org_user(org),
        capped_key=caller.id if caller.key.capped else None,
    )
    try:
        command = spec.build(source)
    except (ValueError, TypeError) as error:
        raise InvalidCommand(str(error)) from error
    answer = await run_command(service, caller, org, key, command, ids.generated_fields)
    return command_result(
        org, answer, operation.status, lambda happened: spec.render(org, answer.command, happened)
    )


async def run_command(
    service: Service,
    caller: Caller,
    org: str,
    key: str,
    command: Command,
    generated_fields: tuple[str, ...] = (),
) -> Answer:
    """Run a command, and return the ledger's answer."""
    return await submit(
        service, CommandRequest(org, key, command, None, generated_fields, caller.id)
    )


async def submit(service: Service, ask: CommandRequest) -> Answer:
    """Run a command together with the rows that are written beside it."""
    awaited = service.loop_bridge.expect()
    service.ledger.enqueue(awaited, ask)
    answer: Answer = await awaited.future
    return answer


def command_result(
    org: str, answer: Answer, status: int, render: Callable[[Happened], WireModel]
) -> CommandResult:
    """The result of a command. It depends on the command and its events alone, so a retry gets the
    same bytes."""
    event = f"{org}:{answer.number}"
    if isinstance(answer.outcome, Refusal):
        refused = problem_response(
            problem_from_refusal(_with_api_field(answer.outcome, answer.command))
        )
        return CommandResult(refused.status_code, bytes(refused.body), event, answer.replayed, True)
    return CommandResult(status, to_json(render(answer.outcome)), event, answer.replayed, False)


def _with_api_field(refusal: Refusal, command: Command) -> Refusal:
    """A refusal with the API's name of the field, where it names a field of the command."""
    if refusal.code is not Code.KEY_REUSED:
        return refusal
    field = api_field_name(command, refusal.figures["field"])
    return Refusal(refusal.code, {**refusal.figures, "field": field})


def command_response(
    org: str, answer: Answer, status: int, render: Callable[[Happened], WireModel]
) -> Response:
    """The response to a command that a handler has built itself."""
    return command_result(org, answer, status, render).response()


def to_json(model: WireModel) -> bytes:
    """A model as JSON."""
    return model.model_dump_json().encode()


async def _check_capped_key(service: Service, caller: Caller, org: str, hold: str) -> None:
    """Fail the call unless the hold counts towards the spend cap of the key."""
    seen = await service.read(lambda reader: Entities(reader).row(org, "holds", hold))
    if seen.value is None or seen.value.terms.capped_key != caller.id:
        raise unknown("holds", hold)


async def _find_org(
    service: Service, caller: Caller, subjects: tuple[tuple[str, str], ...], id: str, body: Any
) -> str:
    """The org that a command is for; the key must be allowed to use every subject."""
    org: str | None = None
    for table, field in subjects:
        value = id if field == "id" else getattr(body, field)
        if table == PRICE_BOOK and value is None and caller.is_operator:
            return DEPLOYMENT
        if table in (ORG, PRICE_BOOK):
            return await service.whole_org(caller, value)
        if value is None:
            continue
        owner = await service.org_of(caller, table, value)
        if table == "holds" and caller.key.capped:
            await _check_capped_key(service, caller, owner, value)
        if org is not None and owner != org:
            raise CallFailed("invalid_request", f"{field}: it belongs to another org")
        org = owner
    if org is None:
        names = " or ".join(field for _, field in subjects)
        raise CallFailed("invalid_request", f"{names} is required")
    return org
