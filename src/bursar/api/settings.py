"""Things that an org keeps besides money, over HTTP: made, looked at, changed, dropped.

Each is a setting of its org. Its ETag is the number of the event that last set it: with If-Match a
change is made only if nobody else has made one since, and the ledger sees to that under its lock.
"""

import json
import re
import time
from collections.abc import Callable
from typing import Any, Final

from fastapi import Request, Response

from bursar.api.context import Caller, Service
from bursar.api.errors import Failed, InvalidCommand
from bursar.api.execute import Done, asked_for, done_of, key_of
from bursar.core.ids import SettingId
from bursar.core.ledger.commands import SetSetting
from bursar.core.ledger.events import SettingSet
from bursar.core.ledger.values import Setting
from bursar.core.refusal import Code, Refusal
from bursar.service.queries.settings import kept_one, kept_page
from bursar.wire.fields import IdFactory, WireModel
from bursar.wire.responses import Deleted, only

Told = Callable[[str, str, dict[str, Any]], WireModel]  # org, id, body → what is answered
_ETAG: Final = re.compile(r'"(\d{1,18})"')


def set_setting(kind: str, id: str, body: dict[str, Any] | None, before: int | None) -> SetSetting:
    """The command that keeps something; the caller's fault if it cannot be made."""
    text = None if body is None else json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    try:
        return SetSetting(kind=kind, id=SettingId(id), body=text, before=before)
    except (ValueError, TypeError) as error:
        raise InvalidCommand(str(error)) from error


async def create(
    request: Request, org: str, kind: str, id: str | None, body: dict[str, Any], told: Told
) -> Response:
    """Keep something new."""
    service, caller = who(request)
    key = key_of(request)
    making = IdFactory(org, key, int(time.time() * 1_000))
    command = set_setting(kind, making.id("id", id), body, 0)
    answer = await asked_for(service, caller, org, key, command, making.made)
    return _response(done_of(org, answer, 201, lambda now: _told(org, only(SettingSet, now), told)))


async def change(
    request: Request, org: str, kind: str, id: str, body: dict[str, Any], told: Told
) -> Response:
    """Keep something in a new form: the one that If-Match names, if it names one."""
    return await _set(request, org, set_setting(kind, id, body, if_match(request)), told)


async def drop(request: Request, org: str, kind: str, id: str) -> Response:
    """Keep something no longer."""
    command = set_setting(kind, id, None, if_match(request))
    return await _set(request, org, command, lambda _, id, __: Deleted(id=id))


async def _set(request: Request, org: str, command: SetSetting, told: Told) -> Response:
    service, caller = who(request)
    answer = await asked_for(service, caller, org, key_of(request), command)
    done = done_of(org, answer, 200, lambda now: _told(org, only(SettingSet, now), told))
    if isinstance(answer.outcome, Refusal) and answer.outcome.code is Code.SETTING_UNKNOWN:
        error = missing(command.kind)
        error.headers |= done.headers
        raise error
    return _response(done)


async def look(request: Request, org: str, kind: str, id: str, told: Told) -> Response:
    """Something that is kept, as it is now."""
    service, _ = who(request)
    seen = await service.read(lambda reader: kept_one(reader, org, kind, id))
    if seen.value is None:
        raise missing(kind)
    setting: Setting = seen.value
    etag = f'"{setting.number}"'
    headers = {"Bursar-Event": f"{org}:{seen.number}", "ETag": etag}
    if etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    body = told(org, setting.id, json.loads(setting.body or "{}")).model_dump_json()
    return Response(body, headers=headers, media_type="application/json")


async def page(
    request: Request, org: str, kind: str, after: str, limit: int, told: Told
) -> Response:
    """What is kept of a kind, in the order of ids."""
    service, _ = who(request)
    seen = await service.read(lambda reader: kept_page(reader, org, kind, after, limit))
    items = [
        json.loads(told(org, one.id, json.loads(one.body or "{}")).model_dump_json())
        for one in seen.value.things
    ]
    body = json.dumps({"items": items, "next": seen.value.next}, separators=(",", ":"))
    headers = {"Bursar-Event": f"{org}:{seen.number}"}
    return Response(body, headers=headers, media_type="application/json")


def who(request: Request) -> tuple[Service, Caller]:
    """What a call works with, and whose it is."""
    return request.app.state.service, request.state.caller


def if_match(request: Request) -> int | None:
    """The event that must have been the last to set a thing; None if any will do."""
    given = request.headers.get("if-match")
    if given is None or given.strip() == "*":
        return None
    found = _ETAG.fullmatch(given.strip())
    if found is None or int(found[1]) == 0:
        raise Failed("invalid_request", "If-Match: it is the ETag of an answer")
    return int(found[1])


def missing(kind: str) -> Failed:
    """That there is no such thing."""
    return Failed("not_found", f"there is no such {kind.replace('_', ' ')}")


def _told(org: str, event: SettingSet, told: Told) -> WireModel:
    return told(org, event.id, json.loads(event.body or "{}"))


def _response(done: Done) -> Response:
    """An answer with the ETag of what was set; its event is the last of the answer."""
    response = done.response()
    if not done.problem:
        response.headers["ETag"] = f'"{done.event.rpartition(":")[2]}"'
    return response
