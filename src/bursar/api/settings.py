"""Things that an org keeps besides money, over HTTP: made, looked at, changed, dropped.

Each is a setting of its org. Its ETag is the number of the event that last set it: with If-Match a
change is made only if nobody else has made one since, and the ledger sees to that under its lock.
"""

import json
import re
import time
from collections.abc import Callable
from typing import Any, Final

from starlette.responses import Response

from bursar.api.call import Call
from bursar.api.errors import Failed, InvalidCommand
from bursar.api.execute import CommandResult, command_result, run_command
from bursar.core.ids import SettingId
from bursar.core.ledger.commands import SetSetting
from bursar.core.ledger.events import SettingSet
from bursar.core.ledger.values import Setting
from bursar.core.refusal import Code, Refusal
from bursar.service.queries.settings import kept_one, kept_page
from bursar.wire.fields import IdFactory, WireModel
from bursar.wire.responses import Deleted, only

Render = Callable[[str, str, dict[str, Any]], WireModel]  # org, id, body → response
_ETAG: Final = re.compile(r'"(\d{1,18})"')


def set_setting(kind: str, id: str, body: dict[str, Any] | None, before: int | None) -> SetSetting:
    """The command that keeps something; the caller's fault if it cannot be made."""
    text = None if body is None else json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    try:
        return SetSetting(kind=kind, id=SettingId(id), body=text, before=before)
    except (ValueError, TypeError) as error:
        raise InvalidCommand(str(error)) from error


async def create(
    call: Call, org: str, kind: str, id: str | None, body: dict[str, Any], render: Render
) -> Response:
    """Keep something new."""
    service, caller = call.service, call.caller
    key = call.idempotency_key()
    making = IdFactory(org, key, int(time.time() * 1_000))
    command = set_setting(kind, making.id("id", id), body, 0)
    answer = await run_command(service, caller, org, key, command, making.made)
    return _response(
        command_result(org, answer, 201, lambda now: _render(org, only(SettingSet, now), render))
    )


async def change(
    call: Call, org: str, kind: str, id: str, body: dict[str, Any], render: Render
) -> Response:
    """Keep something in a new form: the one that If-Match names, if it names one."""
    return await _set(call, org, set_setting(kind, id, body, if_match(call)), render)


async def drop(call: Call, org: str, kind: str, id: str) -> Response:
    """Keep something no longer."""
    command = set_setting(kind, id, None, if_match(call))
    return await _set(call, org, command, lambda _, id, __: Deleted(id=id))


async def _set(call: Call, org: str, command: SetSetting, render: Render) -> Response:
    service, caller = call.service, call.caller
    answer = await run_command(service, caller, org, call.idempotency_key(), command)
    done = command_result(org, answer, 200, lambda now: _render(org, only(SettingSet, now), render))
    if isinstance(answer.outcome, Refusal) and answer.outcome.code is Code.SETTING_UNKNOWN:
        error = missing(command.kind)
        error.headers |= done.headers
        raise error
    return _response(done)


async def look(call: Call, org: str, kind: str, id: str, render: Render) -> Response:
    """Something that is kept, as it is now."""
    service = call.service
    seen = await service.read(lambda reader: kept_one(reader, org, kind, id))
    if seen.value is None:
        raise missing(kind)
    setting: Setting = seen.value
    etag = f'"{setting.number}"'
    headers = {"Bursar-Event": f"{org}:{seen.number}", "ETag": etag}
    if etag in call.header("if-none-match"):
        return Response(status_code=304, headers=headers)
    body = render(org, setting.id, json.loads(setting.body or "{}")).model_dump_json()
    return Response(body, headers=headers, media_type="application/json")


async def page(call: Call, org: str, kind: str, after: str, limit: int, render: Render) -> Response:
    """What is kept of a kind, in the order of ids."""
    service = call.service
    seen = await service.read(lambda reader: kept_page(reader, org, kind, after, limit))
    items = [
        json.loads(render(org, one.id, json.loads(one.body or "{}")).model_dump_json())
        for one in seen.value.things
    ]
    body = json.dumps({"items": items, "next": seen.value.next}, separators=(",", ":"))
    headers = {"Bursar-Event": f"{org}:{seen.number}"}
    return Response(body, headers=headers, media_type="application/json")


def if_match(call: Call) -> int | None:
    """The event that must have been the last to set a thing; None if any will do."""
    given = call.header("if-match", "*")
    if given.strip() == "*":
        return None
    found = _ETAG.fullmatch(given.strip())
    if found is None or int(found[1]) == 0:
        raise Failed("invalid_request", "If-Match: it is the ETag of an answer")
    return int(found[1])


def missing(kind: str) -> Failed:
    """That there is no such thing."""
    return Failed("not_found", f"there is no such {kind.replace('_', ' ')}")


def _render(org: str, event: SettingSet, render: Render) -> WireModel:
    return render(org, event.id, json.loads(event.body or "{}"))


def _response(done: CommandResult) -> Response:
    """An answer with the ETag of what was set; its event is the last of the answer."""
    response = done.response()
    if not done.is_problem:
        response.headers["ETag"] = f'"{done.event.rpartition(":")[2]}"'
    return response
