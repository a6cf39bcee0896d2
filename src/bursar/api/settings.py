"""Creates, reads, updates and deletes settings of orgs, such as quotas and keys.

The ETag of a setting is the number of the event that last set it. With If-Match, the ledger makes a
change, under its lock, only if that is still the last event of the setting.
"""

import json
import re
import time
from collections.abc import Callable
from typing import Any, Final

from starlette.responses import Response

from bursar.api.call import Call
from bursar.api.errors import CallFailed, InvalidCommand
from bursar.api.execute import CommandResult, command_result, run_command
from bursar.core.ids import SettingId
from bursar.core.ledger.commands import SetSetting
from bursar.core.ledger.events import SettingSet
from bursar.core.ledger.values import Setting
from bursar.core.refusal import Code, Refusal
from bursar.service.queries.settings import find_setting, settings_page
from bursar.wire.fields import IdFactory, WireModel
from bursar.wire.responses import Deleted, require_event

Render = Callable[[str, str, dict[str, Any]], WireModel]  # org, id, body → response
_ETAG: Final = re.compile(r'"(\d{1,18})"')


def build_command(
    kind: str, id: str, body: dict[str, Any] | None, before: int | None
) -> SetSetting:
    """Build the command; `InvalidCommand` if its values are not allowed."""
    text = None if body is None else json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    try:
        return SetSetting(kind=kind, id=SettingId(id), body=text, before=before)
    except (ValueError, TypeError) as error:
        raise InvalidCommand(str(error)) from error


async def create_setting(
    call: Call, org: str, kind: str, id: str | None, body: dict[str, Any], render: Render
) -> Response:
    """Create a setting."""
    service, caller = call.service, call.caller
    key = call.idempotency_key()
    ids = IdFactory(org, key, int(time.time() * 1_000))
    command = build_command(kind, ids.id("id", id), body, 0)
    answer = await run_command(service, caller, org, key, command, ids.generated_fields)
    return _response(
        command_result(
            org, answer, 201, lambda now: _render(org, require_event(SettingSet, now), render)
        )
    )


async def update_setting(
    call: Call, org: str, kind: str, id: str, body: dict[str, Any], render: Render
) -> Response:
    """Replace a setting; with If-Match, only the version that it names."""
    return await _set(call, org, build_command(kind, id, body, read_if_match(call)), render)


async def delete_setting(call: Call, org: str, kind: str, id: str) -> Response:
    """Delete a setting; with If-Match, only the version that it names."""
    command = build_command(kind, id, None, read_if_match(call))
    return await _set(call, org, command, lambda _, id, __: Deleted(id=id))


async def _set(call: Call, org: str, command: SetSetting, render: Render) -> Response:
    service, caller = call.service, call.caller
    answer = await run_command(service, caller, org, call.idempotency_key(), command)
    done = command_result(
        org, answer, 200, lambda now: _render(org, require_event(SettingSet, now), render)
    )
    if isinstance(answer.outcome, Refusal) and answer.outcome.code is Code.SETTING_UNKNOWN:
        error = not_found(command.kind)
        error.headers |= done.headers
        raise error
    return _response(done)


async def get_setting(call: Call, org: str, kind: str, id: str, render: Render) -> Response:
    """Return a setting with its ETag."""
    service = call.service
    seen = await service.read(lambda reader: find_setting(reader, org, kind, id))
    if seen.value is None:
        raise not_found(kind)
    setting: Setting = seen.value
    etag = f'"{setting.number}"'
    headers = {"Bursar-Event": f"{org}:{seen.number}", "ETag": etag}
    if etag in call.header("if-none-match"):
        return Response(status_code=304, headers=headers)
    body = render(org, setting.id, json.loads(setting.body or "{}")).model_dump_json()
    return Response(body, headers=headers, media_type="application/json")


async def list_settings(
    call: Call, org: str, kind: str, after: str, limit: int, render: Render
) -> Response:
    """Return a page of the settings of a kind, ordered by id."""
    service = call.service
    seen = await service.read(lambda reader: settings_page(reader, org, kind, after, limit))
    items = [
        json.loads(render(org, setting.id, json.loads(setting.body or "{}")).model_dump_json())
        for setting in seen.value.items
    ]
    body = json.dumps({"items": items, "next": seen.value.next}, separators=(",", ":"))
    headers = {"Bursar-Event": f"{org}:{seen.number}"}
    return Response(body, headers=headers, media_type="application/json")


def read_if_match(call: Call) -> int | None:
    """The event number of If-Match; None if there is no condition."""
    header = call.header("if-match", "*")
    if header.strip() == "*":
        return None
    match = _ETAG.fullmatch(header.strip())
    if match is None or int(match[1]) == 0:
        raise CallFailed("invalid_request", "If-Match: expected the ETag of a response")
    return int(match[1])


def not_found(kind: str) -> CallFailed:
    """The problem of an unknown setting."""
    return CallFailed("not_found", f"there is no such {kind.replace('_', ' ')}")


def _render(org: str, event: SettingSet, render: Render) -> WireModel:
    return render(org, event.id, json.loads(event.body or "{}"))


def _response(done: CommandResult) -> Response:
    """The response to a change, with the new ETag."""
    response = done.response()
    if not done.is_problem:
        response.headers["ETag"] = f'"{done.event.rpartition(":")[2]}"'
    return response
