"""Routes for the policy of a pool: tiers, shares and rules (S3, S4)."""

import asyncio
import json
from typing import Annotated

from pydantic import Field
from starlette.responses import Response

from bursar.api import settings
from bursar.api.call import Call
from bursar.api.context import Caller, Service
from bursar.api.errors import CallFailed, InvalidCommand
from bursar.api.execute import command_result, run_command, to_json
from bursar.api.operation import OperationTable
from bursar.api.pages import json_response
from bursar.core.ledger.commands import SetSetting
from bursar.core.ledger.events import SettingSet
from bursar.core.ledger.values import Setting
from bursar.core.scheduling.model.policy import PoolPolicy
from bursar.core.scheduling.model.policy_file import parse_policy
from bursar.service.keys import DEPLOYMENT, Scope
from bursar.service.pools.host import Pools
from bursar.service.pools.quota_distribution import POLICY_SETTING
from bursar.service.queries.settings import setting
from bursar.wire.policies import PolicyRequest, PolicyResponse
from bursar.wire.pools import NAME
from bursar.wire.responses import Happened, require_event

operations = OperationTable("Pools")
Name = Annotated[str, Field(pattern=NAME)]
DryRun = Annotated[bool, Field(description="only look whether it could be put in force")]


def _pools_with(call: Call, pool: str) -> tuple[Service, Caller, Pools]:
    """The caller and the pools of this process; the call fails unless the pool is among them."""
    service, caller = call.service, call.caller
    if service.pools is None or pool not in service.pools.handles:
        raise CallFailed("not_found", f"there is no pool {pool!r}")
    return service, caller, service.pools


async def _stored_policy(service: Service, pool: str) -> Setting | None:
    return await service.read(lambda reader: setting(reader, DEPLOYMENT, POLICY_SETTING, pool))


def _render(pools: Pools, pool: str, version: int, policy: PoolPolicy) -> PolicyResponse:
    known = pools.handles[pool].look(lambda seen: seen.policy)
    in_force = (0 if known is None else known.n) >= version
    return PolicyResponse.from_core(pool, version, policy, in_force=in_force)


@operations.get(
    "/v1/pools/{pool}/policy",
    summary="Get the policy of a pool",
    name="pools.policy",
    response=PolicyResponse,
    scope=Scope.OPERATOR,
)
async def get_policy(call: Call, pool: Name) -> Response:
    """Return the policy of a pool: its tiers, shares and rules, with an ETag for a later change."""
    service, _, pools = _pools_with(call, pool)
    stored = await _stored_policy(service, pool)
    version = 0 if stored is None else stored.number
    parsed = PoolPolicy() if stored is None else parse_policy(json.loads(stored.body or "{}"))
    headers = {} if stored is None else {"ETag": f'"{version}"'}
    document = to_json(_render(pools, pool, version, parsed))
    return Response(document, headers=headers, media_type="application/json")


@operations.put(
    "/v1/pools/{pool}/policy",
    summary="Set the policy of a pool",
    name="pools.set_policy",
    response=PolicyResponse,
    scope=Scope.OPERATOR,
    takes_idempotency_key=True,
    example={"tiers": {"paid": {"weight": 6}}},
    takes_if_match=True,
)
async def set_policy(
    call: Call, pool: Name, body: PolicyRequest, dry_run: DryRun = False
) -> Response:
    """Replace the policy of a pool. With If-Match, only if it has not changed since you read
    it.
    """
    service, caller, pools = _pools_with(call, pool)
    key = call.idempotency_key()
    try:
        wanted = body.to_core()
    except ValueError as error:
        raise InvalidCommand(str(error)) from error
    command = settings.build_command(
        POLICY_SETTING, pool, body.settings, settings.read_if_match(call)
    )
    stored = await _stored_policy(service, pool)
    if dry_run:
        document = _render(pools, pool, 0 if stored is None else stored.number, wanted)
        return json_response(document)
    if stored is None:
        await _begin(service, caller, pool)
    return await _set(service, caller, pools, key, command)


async def _begin(service: Service, caller: Caller, pool: str) -> None:
    """Store the default policy as the pool's own, so that it can be changed."""
    first = settings.build_command(POLICY_SETTING, pool, {}, 0)
    await run_command(service, caller, DEPLOYMENT, f"bursar:policy/{pool}", first)


async def _set(
    service: Service, caller: Caller, pools: Pools, key: str, command: SetSetting
) -> Response:
    answer = await run_command(service, caller, DEPLOYMENT, key, command)

    def render(happened: Happened) -> PolicyResponse:
        body = require_event(SettingSet, happened).body
        parsed = parse_policy(json.loads(body or "{}"))
        return PolicyResponse.from_core(command.id, answer.number, parsed, in_force=True)

    done = command_result(DEPLOYMENT, answer, 200, render)
    response = done.response()
    if not done.is_problem:
        await asyncio.to_thread(pools.quotas.put_in_force, command.id)
        response.headers["ETag"] = f'"{answer.number}"'
    return response
