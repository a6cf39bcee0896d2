"""Routes for what jobs have printed."""

import asyncio
import re
import time
from typing import Annotated, Final

from pydantic import Field
from starlette.responses import Response

from bursar.api.call import Call
from bursar.api.context import Service, unknown
from bursar.api.errors import Failed
from bursar.api.execute import to_json
from bursar.api.operation import OperationTable
from bursar.service.jobs.queries import Looking, Shown
from bursar.service.keys import Scope
from bursar.service.pools.logs import Chunk, Place, logs_of
from bursar.service.pools.node_cleanup import progress_of
from bursar.wire.fields import Id
from bursar.wire.logs import LogPart, LogsResponse

operations = OperationTable("Jobs")

LOOK_S: Final = 0.25  # between two looks for more
_AFTER: Final = re.compile(r"(\d{1,12})\.(-?\d{1,15})")


@operations.get(
    "/v1/jobs/{id}/logs",
    summary="Read the log of a job",
    name="jobs.logs",
    response=LogsResponse,
    scope=Scope.READ,
    problems=("job_unknown",),
)
async def logs(
    call: Call,
    id: Id,
    after: Annotated[str, Field(max_length=128, description="`next` of the answer before")] = "",
    node: Annotated[
        str, Field(max_length=63, description="of a gang; else the one that leads")
    ] = "",
    limit: Annotated[int, Field(ge=1, le=1_000, description="parts, of at most 64 KiB")] = 100,
    wait_ms: Annotated[int, Field(ge=0, le=20_000, description="how long to wait for more")] = 0,
) -> Response:
    """Return what a job has printed in all its attempts. With `wait_ms`, wait for more."""
    service, caller = call.service, call.caller
    org = await service.org_of(caller, "jobs", id)
    place = _place(after)
    ends = time.monotonic() + wait_ms / 1_000
    while True:
        job = (await service.read(lambda reader: Looking(reader).job(org, id))).value
        if job is None:
            raise unknown("jobs", id)
        found = await _found(service, org, job, node, place, limit)
        over = job.ended_at is not None
        if found or over or time.monotonic() >= ends:
            break
        await asyncio.sleep(LOOK_S)
    told = LogsResponse.model_construct(
        data=[_told(one) for one in found],
        next=_next(found[-1]) if found else after or _next_of(place),
        complete=over and len(found) < limit,
        progress_ppm=await service.read(lambda one: progress_of(one, job.pool, org, job.job)),
    )
    return Response(to_json(told), media_type="application/json")


async def _found(
    service: Service, org: str, job: Shown, node: str, place: Place, limit: int
) -> list[Chunk]:
    pool, name = job.pool, job.job
    return await service.read(lambda one: logs_of(one, pool, org, name, node, place, limit))


def _place(after: str) -> Place:
    if not after:
        return Place()
    found = _AFTER.fullmatch(after)
    if found is None:
        raise Failed("invalid_request", "/after: it is `next` of an answer before")
    return Place(int(found[1]), int(found[2]))


def _next(last: Chunk) -> str:
    return _next_of(Place(last.attempt, last.start))


def _next_of(place: Place) -> str:
    return f"{place.attempt}.{place.start}"


def _told(one: Chunk) -> LogPart:
    return LogPart.model_construct(
        attempt=one.attempt, node=one.node, offset=one.start, at=one.at, text=one.text
    )
