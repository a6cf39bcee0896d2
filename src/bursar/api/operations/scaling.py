"""Routes for nodes that come and go: what operators decide, and what was ordered (S12)."""

from typing import Annotated

from pydantic import Field
from starlette.responses import Response

from bursar.api.call import Call
from bursar.api.context import Service
from bursar.api.execute import to_json
from bursar.api.operation import OperationTable
from bursar.api.operations.pools import Name, kept_pool
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
    return await _told(service, (await kept_pool(service, pool)).id)


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
    name, scale = (await kept_pool(service, pool)).id, body.to_core()
    await service.read(lambda one: decide_scale(one, name, scale))
    return await _told(service, name)


async def _told(service: Service, pool: str) -> Response:
    scale = await service.read(lambda one: scale_of(one, pool))
    told = ScalingResponse.from_core(scale, has_provisioner=service.provided)
    return Response(to_json(told), media_type="application/json")


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
    name = (await kept_pool(service, pool)).id
    orders, now = await service.read(lambda one: orders_of(one, name, limit))
    told = NodeOrdersResponse.model_construct(
        orders=[NodeOrderResponse.from_core(one, now) for one in orders]
    )
    return Response(to_json(told), media_type="application/json")
