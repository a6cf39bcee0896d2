"""Routes for nodes that come and go: what operators decide, and what was ordered (S12)."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from bursar.api.context import Service
from bursar.api.execute import encoded
from bursar.api.request_body import StrictRoute
from bursar.api.routes.operations import PROBLEM
from bursar.api.routes.pools import Name, kept_pool, operates
from bursar.service.keys import Scope
from bursar.service.pools.node_orders import decide_scale, orders_of, scale_of
from bursar.wire.scaling import (
    NodeOrderResponse,
    NodeOrdersResponse,
    ScalingRequest,
    ScalingResponse,
)

router = APIRouter(prefix="/v1", route_class=StrictRoute, responses=PROBLEM)

Most = Annotated[int, Query(ge=1, le=1_000, description="how many, at most")]


@router.get(
    "/pools/{pool}/scaling",
    summary="What nodes of a pool can be ordered, and how eagerly",
    operation_id="scaling.get",
    response_model=ScalingResponse,
    openapi_extra={"x-scope": Scope.OPERATOR},
)
async def get_scaling(request: Request, pool: Name) -> Response:
    """What was decided about a pool's nodes."""
    service = operates(request)
    return await _told(service, (await kept_pool(service, pool)).id)


@router.put(
    "/pools/{pool}/scaling",
    summary="Decide what nodes of a pool can be ordered, and how eagerly",
    operation_id="scaling.set",
    response_model=ScalingResponse,
    openapi_extra={"x-scope": Scope.OPERATOR},
)
async def set_scaling(request: Request, pool: Name, body: ScalingRequest) -> Response:
    """Decide about a pool's nodes anew; what was ordered goes when nobody needs it any more."""
    service = operates(request)
    name, scale = (await kept_pool(service, pool)).id, body.to_core()
    await service.read(lambda one: decide_scale(one, name, scale))
    return await _told(service, name)


async def _told(service: Service, pool: str) -> Response:
    scale = await service.read(lambda one: scale_of(one, pool))
    told = ScalingResponse.from_core(scale, provided=service.provided)
    return Response(encoded(told), media_type="application/json")


@router.get(
    "/pools/{pool}/orders",
    summary="The nodes of a pool that were ordered, and what they cost",
    operation_id="orders.list",
    response_model=NodeOrdersResponse,
    openapi_extra={"x-scope": Scope.OPERATOR},
)
async def list_orders(request: Request, pool: Name, limit: Most = 100) -> Response:
    """What was ordered: first what is not over, then the last that was given back."""
    service = operates(request)
    name = (await kept_pool(service, pool)).id
    orders, now = await service.read(lambda one: orders_of(one, name, limit))
    told = NodeOrdersResponse.model_construct(
        orders=[NodeOrderResponse.from_core(one, now) for one in orders]
    )
    return Response(encoded(told), media_type="application/json")
