"""Routes for pools and nodes: registration, reports, logs, and lists."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Final

from pydantic import Field
from starlette.responses import Response

from bursar.api.call import Call
from bursar.api.context import Service
from bursar.api.errors import CallFailed
from bursar.api.operation import OperationTable
from bursar.api.pages import After, Limit, Paginated, cut_page, json_response
from bursar.core.dispatch.pool import reset_reports, set_node_state
from bursar.core.dispatch.reports import LeaseOrders, NodeReport, has_news
from bursar.core.dispatch.state import Pool
from bursar.core.ids import NodeId
from bursar.core.instant import Instant
from bursar.core.leases import Denied
from bursar.core.scheduling.model.nodes import NodeState
from bursar.service.keys import Scope
from bursar.service.pools.logs import Part, keep_log
from bursar.service.pools.node_cleanup import keep_progress_now, over_for_ms
from bursar.service.pools.node_orders import is_given_back
from bursar.service.pools.pool import PoolHandle
from bursar.wire.agents import (
    ADDRESSES_MAX,
    FinishedJob,
    FinishedJobsRequest,
    FinishedJobsResponse,
    LogRequest,
    LogResponse,
    NodeRequest,
    ReportRequest,
    ReportResponse,
    addresses_digest,
)
from bursar.wire.pools import (
    NAME,
    NodeResponse,
    NodeStateRequest,
    PoolRequest,
    PoolResponse,
)
from bursar.wire.requests import EmptyBody

operations = OperationTable("Pools")

WAIT_MS_MAX: Final = 20_000
Name = Annotated[str, Field(pattern=NAME)]
WaitMs = Annotated[
    int, Field(ge=0, le=WAIT_MS_MAX, description="how long the answer may wait for news")
]


async def find_pool(service: Service, pool: str) -> PoolHandle:
    """A pool that is served here; looks for one that another process has just created."""
    pools = service.pools
    if pools is not None and pool not in pools.handles:
        await asyncio.to_thread(pools.poll)
    if pools is None or pool not in pools.handles:
        raise CallFailed("not_found", f"there is no pool {pool!r}")
    return pools.handles[pool]


async def _pool_of_node(call: Call, pool: str, node: str) -> tuple[Service, PoolHandle]:
    """The pool of a node; the call fails unless its key belongs to that node."""
    service, caller = call.service, call.caller
    caller.needs_node(pool, node)
    return service, await find_pool(service, pool)


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
        raise CallFailed("not_found", "this process serves no pools")
    new = await asyncio.to_thread(service.pools.add, body.id)
    document = _render_pool(await find_pool(service, body.id))
    return json_response(document, 201 if new else 200)


def _render_pool(handle: PoolHandle) -> PoolResponse:
    return handle.look_now(lambda pool, now: PoolResponse.from_core(handle.id, pool, now))


@operations.get(
    "/v1/pools",
    summary="List pools",
    name="pools.list",
    response=Paginated[PoolResponse],
    scope=Scope.READ,
)
async def list_pools(call: Call, after: After = "", limit: Limit = 1_000) -> Response:
    """Return the pools with their GPUs and queues, by name."""
    service = call.service
    handles = {} if service.pools is None else dict(service.pools.handles)
    names, following = cut_page(handles, after, limit)
    items = [_render_pool(handles[name]) for name in names]
    return json_response(Paginated(items=items, next=following))


# Nodes


@operations.get(
    "/v1/pools/{pool}/nodes",
    summary="List nodes",
    name="nodes.list",
    response=Paginated[NodeResponse],
    scope=Scope.OPERATOR,
    tag="Nodes",
)
async def list_nodes(call: Call, pool: Name, after: After = "", limit: Limit = 1_000) -> Response:
    """Return the nodes of a pool and what is in use on them, by name."""
    handle = await find_pool(call.service, pool)

    def look(seen: Pool, now: Instant) -> Paginated[NodeResponse]:
        names, following = cut_page(seen.machines, after, limit)
        machines = (seen.machines[NodeId(name)] for name in names)
        items = [NodeResponse.from_core(seen, machine, now) for machine in machines]
        return Paginated(items=items, next=following)

    return json_response(handle.look_now(look))


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
    service, handle = await _pool_of_node(call, pool, node)
    known = handle.look(lambda seen: seen.machines.get(NodeId(node)))
    if known is None and await service.read(lambda reader: is_given_back(reader, pool, node)):
        raise CallFailed("node_returned", f"{node!r}: the order of this node was cancelled")
    described = body.to_core(node)
    denied = await asyncio.to_thread(handle.register, described)
    if denied is not None:
        raise CallFailed(denied, f"the GPUs of {node!r} cannot change while jobs run on it")
    return _node_response(handle, node)


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
    handle = await find_pool(call.service, pool)
    state = NodeState(body.state)
    used = await asyncio.to_thread(
        handle.change, lambda work: set_node_state(work, NodeId(node), state)
    )
    if not used:
        raise CallFailed("not_found", f"pool {pool!r} has no node {node!r}")
    return _node_response(handle, node)


@operations.post(
    "/v1/pools/{pool}/nodes/{node}/reset",
    summary="Accept a node's reports again",
    name="nodes.reset",
    response=NodeResponse,
    scope=Scope.OPERATOR,
    tag="Nodes",
    problems=("node_busy", "not_found"),
    example={},
)
async def reset_node(call: Call, pool: Name, node: Name, body: EmptyBody | None = None) -> Response:
    """Accept reports of a node whose count of agent starts is smaller than before. The pool ignores
    such reports otherwise. Use this after the disk of a node was replaced, or its key was misused.
    The node must have no lease.
    """
    handle = await find_pool(call.service, pool)
    denied = await asyncio.to_thread(handle.change, lambda work: reset_reports(work, NodeId(node)))
    if denied is Denied.NODE_UNKNOWN:
        raise CallFailed("not_found", f"pool {pool!r} has no node {node!r}")
    if denied is not None:
        raise CallFailed(denied, f"{node!r} has leases: revoke a misused key and wait 20 seconds")
    return _node_response(handle, node)


def _node_response(handle: PoolHandle, node: str) -> Response:
    def look(seen: Pool, now: Instant) -> NodeResponse:
        return NodeResponse.from_core(seen, seen.machines[NodeId(node)], now)

    return json_response(handle.look_now(look))


@operations.post(
    "/v1/pools/{pool}/nodes/{node}/reports",
    summary="Report from a node",
    name="nodes.report",
    response=ReportResponse,
    scope=Scope.WORK,
    tag="Nodes",
    example={"boot": 1, "number": 1, "at_us": 0, "readings": []},
)
async def report_node(
    call: Call, pool: Name, node: Name, body: ReportRequest, wait_ms: WaitMs = 0
) -> Response:
    """Report what runs on a node. The response lists all leases of the node. With `wait_ms`, it
    waits for news.
    """
    service, handle = await _pool_of_node(call, pool, node)
    orders = await _take_report(service, handle, body.to_core(node), wait_ms)
    return json_response(ReportResponse.from_core(orders, _new_addresses(service, body)))


def _new_addresses(service: Service, body: ReportRequest) -> Sequence[str] | None:
    """The addresses of the service, if the node wants them and has others."""
    addresses = service.address_book.addresses[:ADDRESSES_MAX]
    if body.addresses_digest in (None, addresses_digest(addresses)):
        return None
    return addresses


async def _take_report(
    service: Service, handle: PoolHandle, report: NodeReport, wait_ms: int
) -> LeaseOrders | None:
    """The answer to a report; it waits for news of the node, unless it brings some itself."""
    loop, news = asyncio.get_running_loop(), asyncio.Event()
    assert service.pools is not None
    call = partial(loop.call_soon_threadsafe, news.set)
    with service.pools.waiting_for_orders(handle.id, report.node, call) as waiting:
        orders = await asyncio.wrap_future(handle.report(report))
        if orders is None or wait_ms == 0 or waiting.is_dismissed or has_news(report, orders):
            return orders
        try:
            await asyncio.wait_for(news.wait(), wait_ms / 1_000)
        except TimeoutError:
            return orders
        if waiting.is_dismissed:
            return orders
        return await asyncio.wrap_future(handle.answer(report))


@operations.post(
    "/v1/pools/{pool}/nodes/{node}/logs",
    summary="Upload a part of a log",
    name="nodes.log",
    response=LogResponse,
    scope=Scope.WORK,
    tag="Nodes",
    example={"fence": 1, "offset": 0, "size": 6, "text": "hello\n"},
)
async def upload_log(call: Call, pool: Name, node: Name, body: LogRequest) -> Response:
    """Store a part of what a process has printed. The response says where the next part starts."""
    service, handle = await _pool_of_node(call, pool, node)
    part = Part(body.fence, body.offset, body.size, body.text, body.last)
    end = await service.run_in_thread(
        lambda connection: keep_log(connection, handle.id, node, part)
    )
    if end is None:
        raise CallFailed("not_found", f"node {node!r} has no lease {body.fence}")
    ppm = body.progress_ppm
    if ppm is not None:
        fence = body.fence
        await service.run_in_thread(
            lambda connection: keep_progress_now(connection, handle.id, node, fence, ppm)
        )
    return json_response(LogResponse(offset=end))


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
async def find_finished_jobs(
    call: Call, pool: Name, node: Name, body: FinishedJobsRequest
) -> Response:
    """Return which of the given jobs have finished. The node may remove their files."""
    service, handle = await _pool_of_node(call, pool, node)
    jobs = [(job.org, job.job) for job in body.jobs]
    finished = await service.read(lambda reader: over_for_ms(reader, handle.id, node, jobs))
    items = [FinishedJob(org=org, job=job, finished_ms_ago=span) for org, job, span in finished]
    return json_response(FinishedJobsResponse(jobs=items))
