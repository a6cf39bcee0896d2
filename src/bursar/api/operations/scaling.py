"""Routes for autoscaling: settings and node orders (S12)."""

import re
from typing import Final

from starlette.responses import Response

from bursar.api.call import Call
from bursar.api.context import Service
from bursar.api.errors import CallFailed
from bursar.api.operation import OperationTable
from bursar.api.operations.pools import Name, find_pool
from bursar.api.pages import After, Limit, Paginated, json_response
from bursar.service.keys import Scope
from bursar.service.pools.node_orders import OrderPosition, decide_scale, orders_of, scale_of
from bursar.wire.scaling import NodeOrderResponse, ScalingRequest, ScalingResponse

operations = OperationTable("Pools")

_AFTER: Final = re.compile(r"(\d{1,19})\.(\d{1,19})\.([!-~]{1,256})")


@operations.get(
    "/v1/pools/{pool}/scaling",
    summary="Get the scaling of a pool",
    name="scaling.get",
    response=ScalingResponse,
    scope=Scope.OPERATOR,
)
async def get_scaling(call: Call, pool: Name) -> Response:
    """Return which nodes can be ordered for a pool, and when."""
    service = call.service
    return await _scaling_response(service, (await find_pool(service, pool)).id)


@operations.put(
    "/v1/pools/{pool}/scaling",
    summary="Set the scaling of a pool",
    name="scaling.set",
    response=ScalingResponse,
    scope=Scope.OPERATOR,
    example={"offers": []},
)
async def set_scaling(call: Call, pool: Name, body: ScalingRequest) -> Response:
    """Set which nodes can be ordered for a pool, and when. Ordered nodes stay until they are not
    needed.
    """
    service = call.service
    name, scale = (await find_pool(service, pool)).id, body.to_core()
    await service.read(lambda reader: decide_scale(reader, name, scale))
    return await _scaling_response(service, name)


async def _scaling_response(service: Service, pool: str) -> Response:
    scale = await service.read(lambda reader: scale_of(reader, pool))
    document = ScalingResponse.from_core(scale, has_provisioner=service.has_provisioner)
    return json_response(document)


@operations.get(
    "/v1/pools/{pool}/orders",
    summary="List ordered nodes",
    name="orders.list",
    response=Paginated[NodeOrderResponse],
    scope=Scope.OPERATOR,
)
async def list_orders(call: Call, pool: Name, after: After = "", limit: Limit = 100) -> Response:
    """Return the nodes that were ordered for a pool, and their cost: unfinished orders first, then
    the last returned nodes.
    """
    service = call.service
    name, place = (await find_pool(service, pool)).id, _parse_after(after)
    orders, following, now = await service.read(
        lambda reader: orders_of(reader, name, place, limit)
    )
    document = Paginated[NodeOrderResponse].model_construct(
        items=[NodeOrderResponse.from_core(order, now) for order in orders],
        next=None if following is None else ".".join(map(str, following)),
    )
    return json_response(document)


def _parse_after(after: str) -> OrderPosition:
    match = _AFTER.fullmatch(after)
    if after and match is None:
        raise CallFailed("invalid_request", "after: use the `next` value of the previous page")
    return (
        OrderPosition() if match is None else OrderPosition(int(match[1]), int(match[2]), match[3])
    )
