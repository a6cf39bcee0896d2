"""Routes for the policy of a pool: who is entitled to what there, and how it decides (S3, S4)."""

import asyncio
import json
from typing import Annotated

from pydantic import Field
from starlette.responses import Response

from bursar.api import settings
from bursar.api.call import Call
from bursar.api.context import Caller, Service
from bursar.api.errors import Failed, InvalidCommand
from bursar.api.execute import command_result, run_command, to_json
from bursar.api.operation import OperationTable
from bursar.core.ledger.commands import SetSetting
from bursar.core.ledger.events import SettingSet
from bursar.core.ledger.values import Setting
from bursar.core.scheduling.model.policy import PoolPolicy
from bursar.core.scheduling.model.policy_file import parse_policy
from bursar.service.keys import DEPLOYMENT, Scope
from bursar.service.pools.host import Pools
from bursar.service.pools.quota_distribution import KIND
from bursar.service.queries.settings import setting
from bursar.wire.policies import PolicyRequest, PolicyResponse
from bursar.wire.pools import NAME
from bursar.wire.responses import Happened, only

operations = OperationTable("Pools")
Name = Annotated[str, Field(pattern=NAME)]
DryRun = Annotated[bool, Field(description="only look whether it could be put in force")]


def _operated(call: Call, pool: str) -> tuple[Service, Caller, Pools]:
    """Who asks, and the pools of this process; the call ends unless the pool is among them."""
    service, caller = call.service, call.caller
    if service.pools is None or pool not in service.pools.keepers:
        raise Failed("not_found", f"there is no pool {pool!r}")
    return service, caller, service.pools


async def _kept(service: Service, pool: str) -> Setting | None:
    return await service.read(lambda reader: setting(reader, DEPLOYMENT, KIND, pool))


def _told(pools: Pools, pool: str, version: int, policy: PoolPolicy) -> PolicyResponse:
    known = pools.keepers[pool].look(lambda seen: seen.policy)
    in_force = (0 if known is None else known.n) >= version
    return PolicyResponse.from_core(pool, version, policy, in_force=in_force)


@operations.get(
    "/v1/pools/{pool}/policy",
    summary="Get the policy of a pool",
    name="pools.policy",
    response=PolicyResponse,
    scope=Scope.OPERATOR,
)
async def policy(call: Call, pool: Name) -> Response:
    """Return the policy of a pool: its tiers, shares and rules, with an ETag for a later change."""
    service, _, pools = _operated(call, pool)
    kept = await _kept(service, pool)
    version = 0 if kept is None else kept.number
    found = PoolPolicy() if kept is None else parse_policy(json.loads(kept.body or "{}"))
    headers = {} if kept is None else {"ETag": f'"{version}"'}
    told = to_json(_told(pools, pool, version, found))
    return Response(told, headers=headers, media_type="application/json")


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
    service, caller, pools = _operated(call, pool)
    key = call.idempotency_key()
    try:
        wanted = body.to_core()
    except ValueError as error:
        raise InvalidCommand(str(error)) from error
    command = settings.set_setting(KIND, pool, body.words, settings.if_match(call))
    kept = await _kept(service, pool)
    if dry_run:
        told = _told(pools, pool, 0 if kept is None else kept.number, wanted)
        return Response(to_json(told), media_type="application/json")
    if kept is None:
        await _begin(service, caller, pool)
    return await _set(service, caller, pools, key, command)


async def _begin(service: Service, caller: Caller, pool: str) -> None:
    """Keep the shipped policy as a pool's own, so that there is one to change."""
    first = settings.set_setting(KIND, pool, {}, 0)
    await run_command(service, caller, DEPLOYMENT, f"bursar:policy/{pool}", first)


async def _set(
    service: Service, caller: Caller, pools: Pools, key: str, command: SetSetting
) -> Response:
    answer = await run_command(service, caller, DEPLOYMENT, key, command)

    def told(happened: Happened) -> PolicyResponse:
        body = only(SettingSet, happened).body
        found = parse_policy(json.loads(body or "{}"))
        return PolicyResponse.from_core(command.id, answer.number, found, in_force=True)

    done = command_result(DEPLOYMENT, answer, 200, told)
    response = done.response()
    if not done.is_problem:
        await asyncio.to_thread(pools.quotas.put_in_force, command.id)
        response.headers["ETag"] = f'"{answer.number}"'
    return response
