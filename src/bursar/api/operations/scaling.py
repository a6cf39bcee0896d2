"""Routes for nodes that come and go: what operators decide, and what was ordered (S12)."""

from typing import Annotated

from pydantic import Field
from starlette.responses import Response

from bursar.api.call import Call
from bursar.api.context import Service
from bursar.api.operation import OperationTable
from bursar.api.operations.pools import Name, find_pool
from bursar.api.pages import json_response
from bursar.service.keys import Scope
from bursar.service.pools.node_orders import decide_scale, orders_of, scale_of
from bursar.wire.scaling import (
    NodeOrderResponse,
    NodeOrdersResponse,
    ScalingRequest,
    ScalingResponse,
)

operations = OperationTable("Pools")

Most = Annotated[int, Field(ge=1, le=1_000, description="how many, at most")]


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
    response=NodeOrdersResponse,
    scope=Scope.OPERATOR,
)
async def list_orders(call: Call, pool: Name, limit: Most = 100) -> Response:
    """Return the nodes that were ordered for a pool, and their cost."""
    service = call.service
    name = (await find_pool(service, pool)).id
    orders, now = await service.read(lambda reader: orders_of(reader, name, limit))
    document = NodeOrdersResponse.model_construct(
        orders=[NodeOrderResponse.from_core(order, now) for order in orders]
    )
    return json_response(document)
