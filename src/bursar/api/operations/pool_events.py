"""Routes for the audit streams of pools (S14, O1)."""

from typing import Annotated

from pydantic import Field
from starlette.responses import Response

from bursar.api.call import Call
from bursar.api.operation import OperationTable
from bursar.api.operations.pools import Name, find_pool
from bursar.api.pages import AfterNumber, Paginated, json_response
from bursar.service.keys import Scope
from bursar.service.pools.replay import StoredEvent, events_of
from bursar.wire.pool_events import PoolEventResponse

operations = OperationTable("Pools")

# A part of a snapshot may be large.
Most = Annotated[int, Field(ge=1, le=100, description="how many, at most")]


@operations.get(
    "/v1/pools/{pool}/events",
    summary="List the events of a pool",
    name="pools.events",
    response=Paginated[PoolEventResponse],
    scope=Scope.OPERATOR,
)
async def list_pool_events(
    call: Call,
    pool: Name,
    after: AfterNumber = 0,
    limit: Most = 20,
) -> Response:
    """Return the inputs and decisions of the pool's leaders in order: the audit trail of the
    pool.
    """
    service = call.service
    name = (await find_pool(service, pool)).id
    events = await service.read(lambda reader: events_of(reader, name, after, limit))
    further = str(events[-1].n) if len(events) == limit else None
    page = Paginated[PoolEventResponse].model_construct(
        items=[_render(name, event) for event in events], next=further
    )
    return json_response(page)


def _render(pool: str, event: StoredEvent) -> PoolEventResponse:
    return PoolEventResponse.model_construct(
        stream=pool,
        number=event.n,
        at=event.at,
        recorded_at=event.written_at,
        epoch=event.epoch,
        kind=event.kind,
        text=event.body,
        digest=event.digest,
    )
