"""Routes that explain: why a job waits, who comes next, who has what (S14)."""

import asyncio
from typing import Annotated

from pydantic import Field
from starlette.responses import Response

from bursar.api.call import Call
from bursar.api.context import Service, unknown
from bursar.api.execute import to_json
from bursar.api.operation import OperationTable
from bursar.api.operations.pools import kept_pool
from bursar.core.dispatch.job_lifecycle import OVER, State
from bursar.core.dispatch.state import name_of
from bursar.core.ids import JobId
from bursar.core.instant import Instant
from bursar.core.scheduling.explain.queue_position import (
    POSITIONS_LISTED,
    list_positions,
    list_shares,
)
from bursar.core.scheduling.explain.waiting import explain
from bursar.core.scheduling.model.cluster import Cluster
from bursar.service.jobs.queries import Looking, Route, Shown
from bursar.service.keys import Scope
from bursar.service.pools.leader import PoolLeader
from bursar.wire.explain import (
    AccountRef,
    JobExplanation,
    PoolExplanation,
    QueueEntry,
    ShareEntry,
    with_orgs,
)
from bursar.wire.fields import Id
from bursar.wire.pools import NAME
from bursar.wire.times import instant_text

operations = OperationTable("Jobs")


async def _explaining(service: Service, pool: str) -> PoolLeader:
    keeper = await kept_pool(service, pool)
    assert service.pools is not None
    return service.pools.explaining(keeper.id)


@operations.get(
    "/v1/jobs/{id}/why",
    summary="Explain why a job waits",
    name="jobs.why",
    response=JobExplanation,
    scope=Scope.READ,
    problems=("job_unknown",),
)
async def why(call: Call, id: Id) -> Response:
    """Return why a job waits, what it waits for and when it is likely to start."""
    service, caller = call.service, call.caller
    org = await service.org_of(caller, "jobs", id)
    seen = await service.read(lambda reader: Looking(reader).job(org, id))
    if seen.value is None:
        raise unknown("jobs", id)
    seen_by = None if caller.is_operator else org
    ways = await service.read(lambda reader: Looking(reader).routes(org, id))
    told = await _why(service, org, seen.value, seen_by, routed=bool(ways.value))
    told = told.with_names(await _names(service, seen_by, told.places))
    told = told.model_copy(update={"told": [*told.told, *map(_way, ways.value)]})
    return Response(to_json(told), media_type="application/json")


def _way(one: Route) -> str:
    """That the router has sent a job to a pool, and why."""
    if one.n == 1:
        return f"sent to pool {one.pool}: {one.why}"
    if one.arrived_at is None:
        return f"was to go to pool {one.pool} from {instant_text(one.at)} on: {one.why}"
    return f"moved to pool {one.pool} at {instant_text(one.arrived_at)}: {one.why}"


async def _names(service: Service, org: str | None, spoken: set[AccountRef]) -> dict[str, str]:
    """What accounts are called that are spoken of: those of one org, or to operators (None) all."""
    known = {one for one in spoken if org is None or one.org == org}
    if not known:
        return {}
    pairs = {(one.org, one.account) for one in known}
    return with_orgs(await service.read(lambda reader: Looking(reader).names(pairs)), known)


async def _why(
    service: Service, org: str, job: Shown, seen_by: str | None, *, routed: bool
) -> JobExplanation:
    if job.state in OVER:
        return JobExplanation.plain(job.job, job.state, f"it is over: {job.state} ({job.why})")
    if job.state == State.OUT_OF_CREDITS:
        more = "it starts again when more is set aside for it"
        return JobExplanation.plain(job.job, job.state, f"its credits are used up; {more}")
    if job.elements is not None:
        told = f"it is an array of {job.elements:,} jobs: ask about one of its elements"
        return JobExplanation.plain(job.job, job.state, told)
    if job.follows is not None:
        more = "it is given that job's result, or runs itself if there is none"
        return JobExplanation.plain(
            job.job, job.state, f"it follows job {job.follows}, like it; {more}"
        )
    name = name_of((org, JobId(job.job)))

    def look(cluster: Cluster, now: Instant) -> JobExplanation:
        if name in cluster.waiting:
            found = explain(cluster, name, now)
            told = JobExplanation.from_core(found, seen_by)
            if found.stranded:
                told.told.append(_stranded(job, routed=routed))
            return told
        if name in cluster.running:
            return JobExplanation.runs(cluster.running[name], job.state, seen_by)
        return JobExplanation.plain(job.job, job.state, f"it is on its way to pool {job.pool}")

    return await asyncio.wrap_future((await _explaining(service, job.pool)).ask(look))


def _stranded(job: Shown, *, routed: bool) -> str:
    """That a job's pool has no node for it: what becomes of it, and what can be done."""
    ends = f"ends with its hold at {instant_text(job.expires_at)}"
    if job.attempt:
        stays = "it has begun there, and so goes to no other"
    elif job.array is not None:
        stays = "it is an element of an array, and so goes to no other"
    elif not routed:
        stays = "it has named that pool, and so goes to no other"
    else:
        return f"no node of pool {job.pool} can run it: it goes to another that can, or {ends}"
    return (
        f"no node of pool {job.pool} can run it as they are; {stays}: an operator can add such a"
        " node or bring one back, who submitted it can cancel it and submit it to another pool;"
        f" else it {ends}"
    )


@operations.get(
    "/v1/pools/{pool}/explain",
    summary="Explain the queue of a pool",
    name="pools.explain",
    response=PoolExplanation,
    scope=Scope.READ,
    tag="Pools",
)
async def explained(
    call: Call,
    pool: Annotated[str, Field(pattern=NAME)],
    limit: Annotated[
        int, Field(ge=1, le=1_000, description="jobs that are listed")
    ] = POSITIONS_LISTED,
) -> Response:
    """Return the order of the queue and the current shares. Tenants see other orgs without their
    names.
    """
    service, caller = call.service, call.caller
    seen_by = None if caller.is_operator else caller.org

    def look(cluster: Cluster, now: Instant) -> PoolExplanation:
        held = list_shares(cluster, now)
        if seen_by is not None:  # the tiers, and what is its own
            held = tuple(one for one in held if len(one.path) < 2 or one.path[1] == seen_by)
        return PoolExplanation(
            pool=pool,
            standing=[
                QueueEntry.from_core(one, seen_by) for one in list_positions(cluster, now, limit)
            ],
            shares=[ShareEntry.from_core(one, seen_by) for one in held],
        )

    told = await asyncio.wrap_future((await _explaining(service, pool)).ask(look))
    told = told.with_names(await _names(service, seen_by, told.places))
    return Response(to_json(told), media_type="application/json")
