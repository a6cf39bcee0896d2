"""Routes for what jobs have printed."""

import asyncio
import re
import time
from typing import Annotated, Final

from pydantic import Field
from starlette.responses import Response

from bursar.api.call import Call
from bursar.api.context import Service, unknown
from bursar.api.errors import CallFailed
from bursar.api.operation import OperationTable
from bursar.api.pages import json_response
from bursar.service.jobs.queries import JobQueries, JobView
from bursar.service.keys import Scope
from bursar.service.pools.logs import Chunk, LogPage, LogPosition, read_log
from bursar.service.pools.node_cleanup import progress_of
from bursar.wire.fields import Id
from bursar.wire.logs import LogPart, LogsResponse
from bursar.wire.pools import NAME

operations = OperationTable("Jobs")

POLL_INTERVAL_S: Final = 0.25  # between two looks for more
_AFTER: Final = re.compile(r"(\d{1,12})\.(-?\d{1,15})")


@operations.get(
    "/v1/jobs/{id}/logs",
    summary="Read the log of a job",
    name="jobs.logs",
    response=LogsResponse,
    scope=Scope.READ,
    problems=("job_unknown",),
)
async def read_logs(
    call: Call,
    id: Id,
    after: Annotated[str, Field(max_length=128, description="`next` of the previous answer")] = "",
    node: Annotated[
        str, Field(pattern=f"{NAME}|^$", description="of a gang; else the one that leads")
    ] = "",
    limit: Annotated[int, Field(ge=1, le=1_000, description="parts, of at most 64 KiB")] = 100,
    wait_ms: Annotated[int, Field(ge=0, le=20_000, description="how long to wait for more")] = 0,
) -> Response:
    """Return what a job has printed in all its attempts. With `wait_ms`, wait for more."""
    service, caller = call.service, call.caller
    org = await service.org_of(caller, "jobs", id)
    place = _parse_after(after)
    ends = time.monotonic() + wait_ms / 1_000
    while True:
        job = (await service.read(lambda reader: JobQueries(reader).job(org, id))).value
        if job is None:
            raise unknown("jobs", id)
        parts, is_open = await _read_page(service, org, job, node, place, limit)
        is_finished = job.ended_at is not None
        is_complete = is_finished and not is_open and len(parts) < limit
        if parts or is_complete or time.monotonic() >= ends:
            break
        await asyncio.sleep(POLL_INTERVAL_S)
    document = LogsResponse.model_construct(
        items=[_render_part(part) for part in parts],
        next=None if is_complete else _place_after(parts[-1]) if parts else _format_place(place),
        finished=is_finished,
        complete=is_complete,
        progress_ppm=await service.read(lambda reader: progress_of(reader, job.pool, org, job.job)),
    )
    return json_response(document)


async def _read_page(
    service: Service, org: str, job: JobView, node: str, place: LogPosition, limit: int
) -> LogPage:
    pool, name = job.pool, job.job
    return await service.read(lambda reader: read_log(reader, pool, org, name, node, place, limit))


def _parse_after(after: str) -> LogPosition:
    if not after:
        return LogPosition()
    match = _AFTER.fullmatch(after)
    if match is None:
        raise CallFailed("invalid_request", "after: use the `next` value of the previous answer")
    return LogPosition(int(match[1]), int(match[2]))


def _place_after(last: Chunk) -> str:
    return _format_place(LogPosition(last.attempt, last.start))


def _format_place(place: LogPosition) -> str:
    return f"{place.attempt}.{place.start}"


def _render_part(part: Chunk) -> LogPart:
    return LogPart.model_construct(
        attempt=part.attempt, node=part.node, offset=part.start, at=part.at, text=part.text
    )
