"""Routes for pools and their nodes: registering, reporting, logs, and looking at them."""

import asyncio
from functools import partial
from typing import Annotated, Final

from pydantic import Field
from starlette.responses import Response

from bursar.api.call import Call
from bursar.api.context import Service
from bursar.api.errors import Failed
from bursar.api.execute import to_json
from bursar.api.operation import OperationTable
from bursar.core.dispatch.pool import use
from bursar.core.dispatch.reports import LeaseOrders, NodeReport
from bursar.core.dispatch.state import Pool
from bursar.core.ids import NodeId
from bursar.core.scheduling.model.nodes import NodeState
from bursar.service.keys import Scope
from bursar.service.pools.logs import Part, keep_log
from bursar.service.pools.node_cleanup import keep_progress_now, over_for_ms
from bursar.service.pools.node_orders import is_given_back
from bursar.service.pools.pool import PoolHandle
from bursar.wire.agents import (
    FinishedJob,
    FinishedJobsRequest,
    FinishedJobsResponse,
    LogRequest,
    LogResponse,
    NodeRequest,
    ReportRequest,
    ReportResponse,
)
from bursar.wire.pools import (
    NAME,
    NodeResponse,
    NodesResponse,
    NodeStateRequest,
    PoolRequest,
    PoolResponse,
    PoolsResponse,
)

operations = OperationTable("Pools")

WAIT_MS_MAX: Final = 20_000
Name = Annotated[str, Field(pattern=NAME)]
WaitMs = Annotated[
    int, Field(ge=0, le=WAIT_MS_MAX, description="how long the answer may wait for news")
]


async def kept_pool(service: Service, pool: str) -> PoolHandle:
    """A pool that is served here; one that another process has begun a moment ago is looked for."""
    pools = service.pools
    if pools is not None and pool not in pools.keepers:
        await asyncio.to_thread(pools.look)
    if pools is None or pool not in pools.keepers:
        raise Failed("not_found", f"there is no pool {pool!r}")
    return pools.keepers[pool]


async def _works(call: Call, pool: str, node: str) -> tuple[Service, PoolHandle]:
    """What a node's own key may do, in its pool."""
    service, caller = call.service, call.caller
    caller.needs_node(pool, node)
    return service, await kept_pool(service, pool)


# Pools


@operations.post(
    "/v1/pools",
    status=201,
    summary="Create a pool",
    name="pools.create",
    response=PoolResponse,
    other_responses={200: ("The pool existed already.", PoolResponse)},
    scope=Scope.OPERATOR,
    example={"id": "main"},
)
async def create_pool(call: Call, body: PoolRequest) -> Response:
    """Create a pool of nodes. Creating it again changes nothing."""
    service = call.service
    if service.pools is None:
        raise Failed("not_found", "this process serves no pools")
    new = await asyncio.to_thread(service.pools.add, body.id)
    told = _told(await kept_pool(service, body.id))
    return Response(to_json(told), 201 if new else 200, media_type="application/json")


def _told(keeper: PoolHandle) -> PoolResponse:
    return keeper.look(lambda pool: PoolResponse.from_core(keeper.id, pool))


@operations.get(
    "/v1/pools",
    summary="List pools",
    name="pools.list",
    response=PoolsResponse,
    scope=Scope.READ,
)
async def list_pools(call: Call) -> Response:
    """Return all pools with their GPUs and queues."""
    service = call.service
    keepers = {} if service.pools is None else dict(service.pools.keepers)
    told = PoolsResponse(pools=[_told(keepers[name]) for name in sorted(keepers)])
    return Response(to_json(told), media_type="application/json")


# Nodes


@operations.get(
    "/v1/pools/{pool}/nodes",
    summary="List nodes",
    name="nodes.list",
    response=NodesResponse,
    scope=Scope.OPERATOR,
    tag="Nodes",
)
async def list_nodes(call: Call, pool: Name) -> Response:
    """Return the nodes of a pool and what is in use on them."""
    keeper = await kept_pool(call.service, pool)

    def look(seen: Pool) -> list[NodeResponse]:
        return [NodeResponse.from_core(seen, seen.machines[name]) for name in sorted(seen.machines)]

    return Response(to_json(NodesResponse(nodes=keeper.look(look))), media_type="application/json")


@operations.put(
    "/v1/pools/{pool}/nodes/{node}",
    summary="Register a node",
    name="nodes.register",
    response=NodeResponse,
    scope=Scope.WORK,
    tag="Nodes",
    example={"gpu_type": "H100", "gpus": 8},
    problems=("node_busy", "node_returned", "not_found"),
)
async def register_node(call: Call, pool: Name, node: Name, body: NodeRequest) -> Response:
    """Register a node, or change its description. The state that an operator has set stays."""
    service, keeper = await _works(call, pool, node)
    known = keeper.look(lambda seen: seen.machines.get(NodeId(node)))
    if known is None and await service.read(lambda one: is_given_back(one, pool, node)):
        raise Failed("node_returned", f"{node!r} was ordered, and need not come any more")
    described = body.to_core(node)
    denied = await asyncio.to_thread(keeper.register, described)
    if denied is not None:
        raise Failed(denied, f"{node!r} cannot have other GPUs while something runs there")
    return _told_of(keeper, node)


@operations.post(
    "/v1/pools/{pool}/nodes/{node}/state",
    summary="Drain a node or put it back",
    name="nodes.set_state",
    response=NodeResponse,
    scope=Scope.OPERATOR,
    tag="Nodes",
    example={"state": "draining"},
)
async def set_state(call: Call, pool: Name, node: Name, body: NodeStateRequest) -> Response:
    """Stop starting jobs on a node (`draining`), or start them again (`ready`). This also ends a
    quarantine.
    """
    keeper = await kept_pool(call.service, pool)
    state = NodeState(body.state)
    used = await asyncio.to_thread(keeper.change, lambda work: use(work, NodeId(node), state))
    if not used:
        raise Failed("not_found", f"pool {pool!r} has no node {node!r}")
    return _told_of(keeper, node)


def _told_of(keeper: PoolHandle, node: str) -> Response:
    told = keeper.look(lambda seen: NodeResponse.from_core(seen, seen.machines[NodeId(node)]))
    return Response(to_json(told), media_type="application/json")


@operations.post(
    "/v1/pools/{pool}/nodes/{node}/reports",
    summary="Report from a node",
    name="nodes.report",
    response=ReportResponse,
    scope=Scope.WORK,
    tag="Nodes",
    example={"boot": 1, "number": 1, "at_us": 0, "readings": []},
)
async def report(
    call: Call, pool: Name, node: Name, body: ReportRequest, wait_ms: WaitMs = 0
) -> Response:
    """Report what runs on a node. The response lists all leases of the node. With `wait_ms`, it
    waits for news.
    """
    service, keeper = await _works(call, pool, node)
    orders = await _answered(service, keeper, body.to_core(node), wait_ms)
    return Response(to_json(ReportResponse.from_core(orders)), media_type="application/json")


async def _answered(
    service: Service, keeper: PoolHandle, told: NodeReport, wait_ms: int
) -> LeaseOrders | None:
    """The answer to a report; it waits for news of the node, unless it brings some itself."""
    loop, news = asyncio.get_running_loop(), asyncio.Event()
    assert service.pools is not None
    call = partial(loop.call_soon_threadsafe, news.set)
    with service.pools.news(keeper.id, told.node, call) as waiting:
        orders = await asyncio.wrap_future(keeper.report(told))
        if orders is None or wait_ms == 0 or waiting.is_dismissed or _is_news(told, orders):
            return orders
        try:
            await asyncio.wait_for(news.wait(), wait_ms / 1_000)
        except TimeoutError:
            return orders
        if waiting.is_dismissed:
            return orders
        return await asyncio.wrap_future(keeper.answer(told))


def _is_news(told: NodeReport, orders: LeaseOrders) -> bool:
    """Whether the node does not know all that its answer says: an answer before may be lost."""
    asked = {one.fence: one.asked_ms is not None for one in told.readings if one.exit is None}
    if asked.keys() != {one.fence for one in orders.leases}:
        return True
    return any(one.stop and not asked[one.fence] for one in orders.leases)


@operations.post(
    "/v1/pools/{pool}/nodes/{node}/logs",
    summary="Upload a part of a log",
    name="nodes.log",
    response=LogResponse,
    scope=Scope.WORK,
    tag="Nodes",
    example={"fence": 1, "offset": 0, "size": 6, "text": "hello\n"},
)
async def log(call: Call, pool: Name, node: Name, body: LogRequest) -> Response:
    """Store a part of what a process has printed. The response says where the next part starts."""
    service, keeper = await _works(call, pool, node)
    part = Part(body.fence, body.offset, body.size, body.text)
    end = await service.read(lambda one: keep_log(one, keeper.id, node, part))
    if end is None:
        raise Failed("not_found", f"node {node!r} has no lease {body.fence}")
    ppm = body.progress_ppm
    if ppm is not None:
        fence = body.fence
        await service.read(lambda one: keep_progress_now(one, keeper.id, node, fence, ppm))
    return Response(to_json(LogResponse(offset=end)), media_type="application/json")


@operations.post(
    "/v1/pools/{pool}/nodes/{node}/finished",
    summary="Find finished jobs",
    name="nodes.finished_jobs",
    response=FinishedJobsResponse,
    scope=Scope.WORK,
    tag="Nodes",
    example={
        "jobs": [
            {
                "org": "01930f3c-7a10-7c3e-9b5e-0d2f4c6a8b1d",
                "job": "01930f3c-7a10-7c3e-9b5e-0d2f4c6a8b1d",
            }
        ]
    },
)
async def over(call: Call, pool: Name, node: Name, body: FinishedJobsRequest) -> Response:
    """Return which of the given jobs have finished. The node may remove their files."""
    service, keeper = await _works(call, pool, node)
    jobs = [(one.org, one.job) for one in body.jobs]
    found = await service.read(lambda one: over_for_ms(one, keeper.id, node, jobs))
    told = [FinishedJob(org=org, job=job, finished_ms_ago=span) for org, job, span in found]
    return Response(to_json(FinishedJobsResponse(jobs=told)), media_type="application/json")
