"""Operations that explain why a job waits, the queue and shares, and advise moves (S6, S14)."""

import asyncio
import json
from typing import Annotated, Final

from pydantic import Field
from starlette.responses import Response

from bursar.api.call import Call
from bursar.api.context import Service, unknown
from bursar.api.execute import to_json
from bursar.api.operation import OperationTable
from bursar.api.operations.pools import find_pool
from bursar.core.dispatch.job_lifecycle import FINISHED, JobState
from bursar.core.dispatch.state import cluster_name
from bursar.core.ids import JobId
from bursar.core.instant import Instant
from bursar.core.money import AMOUNT_MAX, CREDIT
from bursar.core.scheduling.advice.defragment import DefragmentationAdvice, advise_defragmentation
from bursar.core.scheduling.explain.explanation import explain
from bursar.core.scheduling.explain.queue_position import (
    POSITIONS_LISTED,
    list_positions,
    list_shares,
)
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.snapshot import PoolSnapshot
from bursar.service.jobs.queries import JobQueries, JobView, Route
from bursar.service.keys import Scope
from bursar.service.pools.leader import PoolLeader
from bursar.service.queries.balances import LedgerReads
from bursar.wire.advice import PoolAdviceResponse
from bursar.wire.explain import (
    AccountRef,
    JobExplanation,
    PoolExplanation,
    QueueEntry,
    ShareEntry,
    with_org_names,
)
from bursar.wire.fields import Id
from bursar.wire.jobs import pricing_context
from bursar.wire.pools import NAME
from bursar.wire.times import instant_text

operations = OperationTable("Jobs")

LOST_MAX_MICROS: Final = CREDIT  # of lost work per emptied node, by default


async def scheduler_of(service: Service, pool: str) -> PoolLeader:
    """The leader or standby of a pool in this process; its cluster answers questions."""
    handle = await find_pool(service, pool)
    assert service.pools is not None
    return service.pools.leader_of(handle.id)


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
    job = (await service.read(lambda reader: JobQueries(reader).job(org, id))).value
    if job is None:
        raise unknown("jobs", id)
    seen_by = None if caller.is_operator else org
    routes = (await service.read(lambda reader: JobQueries(reader).routes(org, id))).value
    explanation = await _explain_job(service, org, job, seen_by, routed=bool(routes))
    explanation = explanation.with_names(await _names(service, seen_by, explanation.accounts))
    explanation = explanation.with_lines(*map(_route_text, routes))
    return Response(to_json(explanation), media_type="application/json")


def _route_text(route: Route) -> str:
    """To which pool the router sent a job, and why."""
    if route.n == 1:
        return f"Sent to pool {route.pool}: {route.why}."
    if route.arrived_at is None:
        return f"Moving to pool {route.pool} since {instant_text(route.at)}: {route.why}."
    return f"Moved to pool {route.pool} at {instant_text(route.arrived_at)}: {route.why}."


async def _names(service: Service, org: str | None, accounts: set[AccountRef]) -> dict[str, str]:
    """The names of accounts: only those of one org, or all for an operator (None)."""
    visible = {ref for ref in accounts if org is None or ref.org == org}
    if not visible:
        return {}
    pairs = {(ref.org, ref.account) for ref in visible}
    names = await service.read(lambda reader: JobQueries(reader).names(pairs))
    return with_org_names(names, visible)


async def _explain_job(
    service: Service, org: str, job: JobView, seen_by: str | None, *, routed: bool
) -> JobExplanation:
    if (text := _state_text(job)) is not None:
        return JobExplanation.of_state(job.job, job.state, text)
    name = cluster_name((org, JobId(job.job)))
    payable_types = await _payable_types(service, org, job)

    def explain_in(cluster: Cluster, now: Instant) -> JobExplanation:
        if name in cluster.waiting:
            explanation = explain(cluster, name, now, payable_types=payable_types)
            response = JobExplanation.from_core(explanation, seen_by)
            if explanation.is_stranded:
                return response.with_lines(_stranded_text(job, routed=routed))
            return response
        if name in cluster.running:
            return JobExplanation.of_running(cluster.running[name], job.state)
        return JobExplanation.of_state(
            job.job, job.state, f"The job is on its way to pool {job.pool}."
        )

    return await asyncio.wrap_future((await scheduler_of(service, job.pool)).ask(explain_in))


async def _payable_types(service: Service, org: str, job: JobView) -> frozenset[str]:
    """The GPU types of a job's pool that have a price for the job, without requested types for
    which its hold has no rate.
    """
    handle = await find_pool(service, job.pool)
    types = handle.look(lambda pool: {machine.node.gpu_type for machine in pool.machines.values()})
    request = json.loads(job.request or "{}")
    context = pricing_context(request, tuple(sorted(types)))
    seen = await service.read(lambda reader: LedgerReads(reader).priced_types(org, context))
    return seen.value - set(request.get("gpus", {}).get("types", ()))


def _state_text(job: JobView) -> str | None:
    """The explanation of a job that waits for no GPUs; None for other jobs."""
    if job.state in FINISHED:
        return f"The job is finished: {job.state} ({job.why})."
    if job.state == JobState.OUT_OF_CREDITS:
        return "The job has used up its credits. It starts again when its hold is extended."
    if job.elements is not None:
        return f"The job is an array of {job.elements:,} jobs. Ask about one of its elements."
    if job.follows is not None:
        return (
            f"The job waits for the result of job {job.follows}, which is identical. It gets that"
            " result, or runs itself if there is none."
        )
    return None


def _stranded_text(job: JobView, *, routed: bool) -> str:
    """What happens to a job that no node of its pool can run, and what can be done."""
    ends = f"ends with its hold at {instant_text(job.expires_at)}"
    if job.attempt:
        reason = "it has started there"
    elif job.array is not None:
        reason = "it is an element of an array"
    elif not routed:
        reason = "it names this pool"
    else:
        return (
            f"No node of pool {job.pool} can run it. It moves to a pool that can, or otherwise"
            f" {ends}."
        )
    return (
        f"No node of pool {job.pool} can run it, and it cannot move to another pool, because"
        f" {reason}. An operator can add or restore a suitable node; the submitter can cancel the"
        f" job and submit it to another pool. Otherwise it {ends}."
    )


@operations.get(
    "/v1/pools/{pool}/explain",
    summary="Explain the queue of a pool",
    name="pools.explain",
    response=PoolExplanation,
    scope=Scope.READ,
    tag="Pools",
)
async def explain_pool(
    call: Call,
    pool: Annotated[str, Field(pattern=NAME)],
    limit: Annotated[
        int, Field(ge=1, le=1_000, description="The maximum number of jobs.")
    ] = POSITIONS_LISTED,
) -> Response:
    """Return the order of the queue and the current shares. Tenants see other orgs without their
    names.
    """
    service, caller = call.service, call.caller
    seen_by = None if caller.is_operator else caller.org

    def explain_in(cluster: Cluster, now: Instant) -> PoolExplanation:
        shares = list_shares(cluster, now)
        if seen_by is not None:  # a tenant sees the tiers and its own org
            shares = tuple(
                share for share in shares if len(share.path) < 2 or share.path[1] == seen_by
            )
        positions = list_positions(cluster, now, limit)
        return PoolExplanation(
            pool=pool,
            queue=[QueueEntry.from_core(entry, seen_by) for entry in positions],
            shares=[ShareEntry.from_core(share, seen_by) for share in shares],
        )

    explanation = await asyncio.wrap_future((await scheduler_of(service, pool)).ask(explain_in))
    explanation = explanation.with_names(await _names(service, seen_by, explanation.accounts))
    return Response(to_json(explanation), media_type="application/json")


@operations.get(
    "/v1/pools/{pool}/advice",
    summary="Advise which jobs to move",
    name="pools.advice",
    response=PoolAdviceResponse,
    scope=Scope.OPERATOR,
    tag="Pools",
)
async def advise_pool(
    call: Call,
    pool: Annotated[str, Field(pattern=NAME)],
    lost_max_micros: Annotated[
        int,
        Field(
            ge=0,
            le=AMOUNT_MAX,
            description="The maximum price of lost work per emptied node, in micro-credits.",
        ),
    ] = LOST_MAX_MICROS,
) -> Response:
    """Return which running jobs could move so that blocked jobs start sooner or whole nodes become
    empty, with the work that would be lost. Nothing is moved.
    """

    def take_snapshot(cluster: Cluster, now: Instant) -> tuple[PoolSnapshot, Instant]:
        return cluster.snapshot(), now

    service = call.service
    scheduler = await scheduler_of(service, pool)
    snapshot, now = await asyncio.wrap_future(scheduler.ask(take_snapshot))

    def advise() -> DefragmentationAdvice:
        return advise_defragmentation(Cluster.from_snapshot(snapshot), now, lost_max_micros)

    # In a thread of its own: the search takes longer than the leader should pause.
    advice = PoolAdviceResponse.from_core(pool, await asyncio.to_thread(advise))
    advice = advice.with_names(await _names(service, None, advice.accounts))
    return Response(to_json(advice), media_type="application/json")
