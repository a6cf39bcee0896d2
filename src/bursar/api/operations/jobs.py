"""Routes for jobs: submit, read, follow, extend, cancel (M1, S9)."""

import json
import re
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import Field
from starlette.responses import Response, StreamingResponse

from bursar.api.call import Call
from bursar.api.context import Caller, Service, unknown
from bursar.api.errors import CallFailed, InvalidCommand, problem_response
from bursar.api.event_stream import MEDIA_TYPE, event_text
from bursar.api.execute import command_result, submit, to_json
from bursar.api.operation import OperationTable
from bursar.api.pages import (
    After,
    Limit,
    OrgId,
    Paginated,
    json_response,
    list_response,
    read_response,
)
from bursar.core.ids import JobId
from bursar.core.instant import SECOND
from bursar.core.ledger.commands import Reserve
from bursar.core.ledger.events import HoldExtended, HoldOpened
from bursar.core.ledger.quote import Quote
from bursar.core.refusal import Code, Refusal
from bursar.service.database import Connection
from bursar.service.jobs import Jobs, JobUnknown, Submission, run_asks_through
from bursar.service.jobs.admission import AdmissionRefused, AdmissionRequest, AdmissionResult
from bursar.service.jobs.queries import (
    FROM_THE_NEWEST,
    ArrayStates,
    Glance,
    JobFilter,
    JobQueries,
    JobView,
    Route,
    Step,
)
from bursar.service.jobs.quotas import quotas_of
from bursar.service.jobs.result_cache import Sharing, quoted_now, shared
from bursar.service.jobs.submission import extension_request, served, submission_request
from bursar.service.keys import Scope
from bursar.service.ledger.batch import Answer
from bursar.service.org_setup import org_user
from bursar.service.queries.balances import AsOf
from bursar.service.queries.balances import LedgerReads as Money
from bursar.service.queries.entities import Entities
from bursar.service.queries.request_lookup import first_command
from bursar.wire import jobs as wire
from bursar.wire.arrays import JobArray
from bursar.wire.fields import Id, IdFactory
from bursar.wire.problems import problem_from_refusal
from bursar.wire.requests import EmptyBody
from bursar.wire.responses import HoldUpdate, render_rates, require_event
from bursar.wire.result_cache import NO_MATCH, CacheMatch, JobCache

operations = OperationTable("Jobs")
Standings: TypeAlias = Mapping[JobId, ArrayStates]
NO_ARRAYS: Final[Standings] = MappingProxyType({})
STEPS_PER_READ: Final = 100  # steps that a stream reads at once
_AFTER: Final = re.compile(r"([0-9]{1,18})\.([0-9a-f-]{36})")
_LABEL: Final = r"^[^=\x00]{1,255}(=[^\x00]{1,255})?$"  # excludes what no label can contain

# Fields of the command, by the names that the API gives them. All other fields of a request are
# compared by its digest.
_FIELD_NAMES: Final = {
    "hold": "id",
    "account": "account_id",
    "user": "user_id",
    "run_ms": "max_run_seconds",
    "context": "gpus",
    "max_cost": "max_cost_micros",
    "request_digest": "command",
}


# Submitting


@operations.post(
    "/v1/jobs",
    status=202,
    name="jobs.create",
    summary="Submit a job",
    response=wire.SubmittedJob,
    other_responses={200: ("The quote of a dry run.", wire.JobQuote)},
    scope=Scope.SPEND,
    takes_idempotency_key=True,
    example={
        "account_id": "01930f3c-7a10-7c3e-9b5e-0d2f4c6a8b1d",
        "command": ["python", "train.py"],
        "gpus": {"types": ["H100"], "count": 8},
        "max_run_seconds": 3600,
    },
    problems=(
        "insufficient_credits",
        "budget_exceeded",
        "debt_outstanding",
        "quota_exceeded",
        "max_cost_exceeded",
        "price_unknown",
        "tier_not_allowed",
        "no_pool",
        "never_fits",
        "exceeds_ceiling",
        "too_fast",
        "queue_full",
        "tier_full",
        "overloaded",
    ),
)
async def submit_job(call: Call, body: wire.JobRequest) -> Response:
    """Submit a command that runs on GPUs. Its hold is opened at the same time. With `dry_run`,
    return a quote and change nothing.
    """
    service, caller = call.service, call.caller
    key = call.idempotency_key()
    org = await service.org_of(caller, "accounts", body.account_id)
    ids = IdFactory(org, key, int(time.time() * 1_000))
    try:
        capped_key = caller.id if caller.key.capped else None
        reserve = body.to_command(ids, caller.key.user or org_user(org), capped_key)
        spec = body.spec()
    except (ValueError, TypeError) as error:
        raise InvalidCommand(str(error)) from error
    admission = await _admit(
        service,
        AdmissionRequest(
            org,
            key,
            reserve.hold,
            reserve.account,
            reserve.user,
            body.tier,
            body.pool,
            spec,
            body.run_ms,
            1 if body.array is None else body.array.elements_at_once,
            dry=body.dry_run,
        ),
    )
    if body.dry_run:
        return await _quote(call, service, org, body, reserve, admission)
    submission = Submission(
        admission.pool,
        reserve,
        spec,
        body.run_ms,
        json.dumps(body.stored_form, ensure_ascii=False, separators=(",", ":")),
        json.dumps(body.labels, ensure_ascii=False, separators=(",", ":")),
        body.max_cost_micros,
        body.hold == "rolling",
        await service.read(lambda reader: quotas_of(reader, org, reserve.account, reserve.user)),
        routes=admission.options,
        sharing=_sharing(body),
        tier=body.tier,
        tier_orders=admission.tier_orders,
    )
    answer = await submit(
        service, submission_request(org, key, submission, ids.generated_fields, caller.id)
    )
    service.deliver_messages(org)
    if isinstance(answer.outcome, Refusal) and answer.outcome.code is Code.KEY_REUSED:
        return await _key_reused(service, org, key, body, answer)
    shares = await _shares(service, org, body, answer)
    return command_result(
        org,
        answer,
        202,
        lambda happened: wire.SubmittedJob.from_core(
            require_event(HoldOpened, happened, hold=_hold_of(answer)), shares
        ),
    ).response()


def _sharing(body: wire.JobRequest) -> Sharing | None:
    """How a job shares its result, if it does."""
    if body.cache is None or body.result_digest is None:
        return None
    return Sharing(body.result_digest, body.cache.max_age_seconds * SECOND)


async def _shares(service: Service, org: str, body: wire.JobRequest, answer: Answer) -> CacheMatch:
    """The job whose result a submitted job shares. A retry gets the same answer."""
    if body.cache is None or isinstance(answer.outcome, Refusal):
        return NO_MATCH
    job = _hold_of(answer)
    return CacheMatch(*await service.read(lambda reader: shared(reader, org, job)))


def _hold_of(answer: Answer) -> str:
    assert isinstance(answer.command, Reserve)
    return answer.command.hold


async def _admit(service: Service, call: AdmissionRequest) -> AdmissionResult:
    """The pool that a job goes to; the call ends with a problem if the job is refused."""
    if service.admission is None:
        raise CallFailed("no_pool", "this process serves no pools")
    try:
        return await service.admission.admit(call)
    except AdmissionRefused as refusal:
        raise _problem_of(refusal) from refusal


def _problem_of(refusal: AdmissionRefused) -> CallFailed:
    """A refusal of admission as a problem, with its Retry-After header."""
    again_s = refusal.retry_after_s
    headers = None if again_s is None else {"Retry-After": str(again_s)}
    if refusal.figures is None:
        return CallFailed(refusal.code, refusal.detail, headers)
    return CallFailed(refusal.code, refusal.detail, headers, figures=refusal.figures)


def _place_of(admission: AdmissionResult) -> wire.QuotedPool:
    """The pool and expected wait of a job, for a quote."""
    problem = None if admission.refusal is None else _problem_of(admission.refusal).body
    start = admission.start
    when = (None, None) if start is None else (start.earliest, start.latest)
    return wire.QuotedPool(admission.pool, admission.why, admission.wait_s, problem, *when)


async def _quote(
    call: Call,
    service: Service,
    org: str,
    body: wire.JobRequest,
    reserve: Reserve,
    admission: AdmissionResult,
) -> Response:
    likely = body.likely_run_seconds
    likely_ms = None if likely is None else likely * 1_000
    fewer = served(reserve, admission.options)

    def quoted(reader: Connection) -> AsOf[Quote]:
        seen = Money(reader).quote(org, reserve, likely_ms)
        if fewer is None or any(kind in fewer.context.gpu_types for kind, _ in seen.value.rates):
            return seen
        return Money(reader).quote(org, fewer, likely_ms)

    seen = await service.read(quoted)
    cache = await _quote_cache(service, org, body, seen.value.held)
    quote = wire.JobQuote.from_core(seen.value, body, _place_of(admission), cache)
    return read_response(call, org, seen.number, to_json(quote))


async def _quote_cache(
    service: Service, org: str, body: wire.JobRequest, held: int
) -> JobCache | None:
    """What the cache would do for a job."""
    sharing = _sharing(body)
    if sharing is None:
        return None
    quoted = await service.read(lambda reader: quoted_now(reader, org, sharing, held))
    return JobCache(outcome=quoted.outcome, job_id=quoted.source, price_micros=quoted.price)


async def _key_reused(
    service: Service, org: str, key: str, body: wire.JobRequest, answer: Answer
) -> Response:
    """The problem `key_reused`, with the first field in which the two requests differ."""
    assert isinstance(answer.outcome, Refusal)
    first = await service.read(lambda reader: first_command(reader, org, key))
    field = "operation"
    if isinstance(first, Reserve) and first.request_digest is not None:
        field = _FIELD_NAMES.get(answer.outcome.figures["field"], "command")
        if field != "id":
            field = wire.first_difference(first.request_digest, body.digest) or field
    document = problem_from_refusal(Refusal(Code.KEY_REUSED, {"key": key, "field": field}))
    return problem_response(document, {"Bursar-Event": f"{org}:{answer.number}"})


# Reading


@operations.get(
    "/v1/jobs/{id}",
    name="jobs.get",
    summary="Get a job",
    response=wire.Job,
    scope=Scope.READ,
    problems=("job_unknown",),
)
async def get_job(call: Call, id: Id) -> Response:
    """Return a job: its state, what it has spent and what it holds."""
    service, caller = call.service, call.caller
    org = await service.org_of(caller, "jobs", id)
    seen = await service.read(lambda reader: JobQueries(reader).job(org, id))
    if seen.value is None:
        raise unknown("jobs", id)
    stands = await _standings(service, org, [seen.value])
    return read_response(call, org, seen.number, to_json(_render_job(seen.value, stands)))


async def _standings(service: Service, org: str, jobs: Sequence[JobView]) -> Standings:
    """The states of the elements, for jobs that are arrays."""
    arrays = [job.job for job in jobs if job.elements is not None]
    if not arrays:
        return {}
    seen = await service.read(lambda reader: JobQueries(reader).array_states(org, arrays))
    return seen.value


@operations.get(
    "/v1/jobs/{id}/elements",
    name="jobs.elements",
    summary="List the elements of an array",
    response=Paginated[wire.Job],
    scope=Scope.READ,
    problems=("job_unknown",),
)
async def list_elements(
    call: Call,
    id: Id,
    state: wire.State | None = None,
    after: Annotated[int, Field(ge=-1, le=2**31)] = -1,
    limit: Limit = 100,
) -> Response:
    """Return the elements of an array that have begun, each as a job."""
    service, caller = call.service, call.caller
    org = await service.org_of(caller, "jobs", id)
    if await service.read(lambda reader: JobQueries(reader).glance(org, id)) is None:
        raise unknown("jobs", id)
    seen = await service.read(
        lambda reader: JobQueries(reader).elements(org, id, state, after, limit)
    )
    items = [_render_job(element) for element in seen.value.items]
    return list_response(call, org, seen.number, items, seen.value.next)


@operations.get(
    "/v1/jobs",
    name="jobs.list",
    summary="List jobs",
    response=Paginated[wire.Job],
    scope=Scope.READ,
)
async def list_jobs(
    call: Call,
    org_id: OrgId = None,
    state: wire.State | None = None,
    unfinished: Annotated[bool, Field(description="Only unfinished jobs.")] = False,
    account_id: Annotated[Id | None, Field(description="and all accounts below it")] = None,
    user_id: Id | None = None,
    label: Annotated[
        str | None, Field(pattern=_LABEL, description="name=value, or a name alone")
    ] = None,
    after: After = "",
    limit: Limit = 100,
) -> Response:
    """Return the jobs of an org, the newest first. A key for an account gets the jobs of that
    account and of those below it.
    """
    service, caller = call.service, call.caller
    if account_id is None:
        org, account_id = await service.visible_part(caller, org_id)
    else:
        org = await service.org_of(caller, "accounts", account_id)
    name, _, value = (label or "").partition("=")
    wanted = JobFilter(state, account_id, user_id, name or None, value or None, unfinished)
    place = _parse_after(after)
    seen = await service.read(lambda reader: JobQueries(reader).page(org, wanted, place, limit))
    stands = await _standings(service, org, seen.value.items)
    items = [_render_job(job, stands) for job in seen.value.items]
    return list_response(call, org, seen.number, items, seen.value.next)


def _parse_after(after: str) -> tuple[int, str]:
    match = _AFTER.fullmatch(after)
    if after and match is None:
        raise CallFailed("invalid_request", "after: use the `next` value of the previous page")
    return FROM_THE_NEWEST if match is None else (int(match[1]), match[2])


def _render_array(stands: ArrayStates | None) -> JobArray | None:
    """Build the response for the states of an array's elements."""
    if stands is None:
        return None
    counts = stands._asdict()
    del counts["job"]
    elements, begun = counts.pop("elements"), counts.pop("begun")
    return JobArray(count=elements, not_submitted=elements - begun, **counts)


def _render_job(job: JobView, stands: Standings = NO_ARRAYS) -> wire.Job:
    """Build the response for a job. Values of its environment may be secret: names only."""
    request = json.loads(job.request or "{}")
    return wire.Job.model_construct(
        id=job.job,
        account_id=job.account,
        user_id=job.user,
        pool=job.pool,
        state=job.state,
        why=job.why,
        follows=job.follows,
        cached_from=job.cached_from,
        cancelling=job.withdrawn and job.ended_at is None,
        attempt=job.attempt,
        gpu_type=job.gpu_type,
        submitted_at=job.submitted_at,
        started_at=job.started_at,
        ended_at=job.ended_at,
        end_class=job.end_class,
        exit_code=job.exit_code,
        spent_micros=job.spent,
        held_micros=job.held,
        owed_micros=job.owed,
        max_cost_micros=job.max_cost,
        hold="rolling" if job.rolling else "full",
        hold_expires_at=job.expires_at,
        rates=render_rates(json.loads(job.rates), json.loads(job.price_versions)),
        max_run_seconds=request.get("max_run_seconds"),
        command=request.get("command", []),
        gpus=request.get("gpus"),
        labels=request.get("labels", {}),
        env_names=sorted(request.get("env", {})),
        priority_class=request.get("priority_class", 0),
        preemptible=request.get("preemptible", True),
        cache=request.get("cache"),
        array=_render_array(stands.get(job.job)),
        array_id=job.array,
        array_index=job.place,
        steps=job.steps,
    )


@operations.get(
    "/v1/top/jobs",
    name="top.jobs",
    summary="Top jobs",
    response=Paginated[wire.CostlyJob],
    scope=Scope.READ,
)
async def list_top_jobs(
    call: Call,
    org_id: OrgId = None,
    by: Literal["spent", "held", "burn"] = "spent",
    limit: Limit = 100,
) -> Response:
    """Return the unfinished jobs that have spent, hold or cost the most."""
    service, caller = call.service, call.caller
    org = await service.whole_org(caller, org_id)
    seen = await service.read(lambda reader: JobQueries(reader).top(org, by, limit))
    items = [
        wire.CostlyJob.model_construct(
            id=job.job,
            account_id=job.account,
            user_id=job.user,
            state=job.state,
            spent_micros=job.spent,
            held_micros=job.held,
            micros_per_hour=job.burn,
        )
        for job in seen.value
    ]
    return list_response(call, org, seen.number, items)


@operations.get(
    "/v1/jobs/{id}/result",
    name="jobs.result",
    summary="Get the result of a job",
    response=wire.JobResult,
    scope=Scope.READ,
    problems=("job_unknown", "job_not_finished"),
)
async def get_result(call: Call, id: Id) -> Response:
    """Return the exit code and the manifest of a finished job."""
    service, caller = call.service, call.caller
    org = await service.org_of(caller, "jobs", id)
    seen = await service.read(lambda reader: JobQueries(reader).result(org, id))
    row = seen.value
    if row is None:
        raise unknown("jobs", id)
    if row.ended_at is None:
        raise CallFailed("job_not_finished", f"the job is {row.state}")
    document = wire.JobResult.model_construct(
        job_id=id,
        state=row.state,
        ended_at=row.ended_at,
        exit_code=row.exit_code,
        cached_from=row.cached_from,
        manifest=wire.Manifest(row.text).value,
    )
    return read_response(call, org, seen.number, to_json(document))


@operations.get(
    "/v1/jobs/{id}/routes",
    name="jobs.routes",
    summary="List routing decisions",
    response=Paginated[wire.JobRoute],
    scope=Scope.READ,
    problems=("job_unknown",),
)
async def list_routes(call: Call, id: Id) -> Response:
    """Return the pools that the service sent the job to, and why. A job that names its pool has
    none.
    """
    service, caller = call.service, call.caller
    org = await service.org_of(caller, "jobs", id)
    if await service.read(lambda reader: JobQueries(reader).glance(org, id)) is None:
        raise unknown("jobs", id)
    seen = await service.read(lambda reader: JobQueries(reader).routes(org, id))
    return list_response(call, org, seen.number, [_render_route(route) for route in seen.value])


def _render_route(route: Route) -> wire.JobRoute:
    return wire.JobRoute.model_construct(
        number=route.n, pool=route.pool, at=route.at, arrived_at=route.arrived_at, reason=route.why
    )


# Watching


@operations.get(
    "/v1/jobs/{id}/events",
    name="jobs.events",
    summary="List or follow the steps of a job",
    response=Paginated[wire.JobStep],
    content_types=("application/json", MEDIA_TYPE),
    other_responses={204: ("The job has finished and all its steps were sent.", None)},
    scope=Scope.READ,
    problems=("job_unknown",),
)
async def list_steps(
    call: Call,
    id: Id,
    after: Annotated[int, Field(ge=0, le=2**62)] = 0,
    limit: Limit = 100,
) -> Response:
    """Return the steps of a job. With `Accept: text/event-stream`, send them as they happen
    (server-sent events).
    """
    service, caller = call.service, call.caller
    org = await service.org_of(caller, "jobs", id)
    now = await service.read(lambda reader: JobQueries(reader).glance(org, id))
    if now is None:
        raise unknown("jobs", id)
    if MEDIA_TYPE in call.header("accept", ""):
        return _stream(service, org, id, now, _last_seen(call, after))
    seen = await service.read(lambda reader: JobQueries(reader).steps(org, id, after, limit))
    items = [_render_step(step) for step in seen.value.items]
    return list_response(call, org, seen.number, items, seen.value.next)


def _last_seen(call: Call, after: int) -> int:
    text = call.header("last-event-id", "")
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text, re.ASCII) else after


def _stream(service: Service, org: str, id: str, now: Glance, last: int) -> Response:
    """A stream of the steps after `last`; status 204 if no more steps will follow."""
    if now.over and last >= now.steps:
        return Response(status_code=204)
    service.streams.check_room(org)
    return StreamingResponse(
        _events(service, org, id, last),
        media_type=MEDIA_TYPE,
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


async def _events(service: Service, org: str, id: str, last: int) -> AsyncIterator[str]:
    """Yield each step once, in order, and the amounts spent and held whenever they change."""
    with service.streams.counted(org):
        last_amounts: tuple[int, int] | None = None
        yield "retry: 1000\n\n"
        async for sign in service.streams.ticks():
            now = await service.read(lambda reader: JobQueries(reader).glance(org, id))
            assert now is not None
            while last < now.steps:
                after = last
                page = await service.read(
                    lambda reader: JobQueries(reader).steps(org, id, after, STEPS_PER_READ)  # noqa: B023
                )
                for step in page.value.items:
                    last = step.n
                    yield event_text("step", _render_step(step).model_dump_json(), step.n)
            if last_amounts != (now.spent, now.held):
                last_amounts = now.spent, now.held
                spent = wire.JobSpent(spent_micros=now.spent, held_micros=now.held)
                yield event_text("spent", spent.model_dump_json())
            elif sign:
                yield ":\n\n"
            if now.over:
                return


def _render_step(step: Step) -> wire.JobStep:
    return wire.JobStep.model_construct(
        number=step.n,
        at=step.at,
        state=step.state,
        why=step.why,
        attempt=step.attempt,
        gpu_type=step.gpu_type,
        exit_code=step.exit_code,
        spent_micros=step.spent,
        held_micros=step.held,
        other_job_id=step.other,
        end_class=step.end_class,
    )


# Changing


async def _org_of_own_job(service: Service, caller: Caller, id: str) -> str:
    """The org of a job that the caller may change. A capped key may change only its own jobs."""
    org = await service.org_of(caller, "jobs", id)
    seen = await service.read(lambda reader: Entities(reader).row(org, "holds", id))
    if seen.value is None or not seen.value.terms.for_job:
        raise unknown("jobs", id)
    if caller.key.capped and seen.value.terms.capped_key != caller.id:
        raise unknown("jobs", id)
    return org


@operations.post(
    "/v1/jobs/{id}/extend",
    status=200,
    name="jobs.extend",
    summary="Extend the hold of a job",
    response=HoldUpdate,
    scope=Scope.SPEND,
    takes_idempotency_key=True,
    example={"amount_micros": 5000000},
    problems=(
        "job_unknown",
        "hold_of_an_array",
        "hold_closed",
        "insufficient_credits",
        "budget_exceeded",
        "max_cost_exceeded",
    ),
)
async def extend_job(call: Call, id: Id, body: wire.JobExtensionRequest) -> Response:
    """Reserve more credits for a job. A job that is out of credits can run again."""
    service, caller = call.service, call.caller
    key = call.idempotency_key()
    org = await _org_of_own_job(service, caller, id)
    ask = extension_request(org, key, JobId(id), body.amount_micros, actor=caller.id)
    answer = await submit(service, ask)
    service.deliver_messages(org)
    return command_result(
        org,
        answer,
        200,
        lambda now: HoldUpdate.from_core(require_event(HoldExtended, now, hold=id)),
    ).response()


@operations.post(
    "/v1/jobs/{id}/cancel",
    status=202,
    name="jobs.cancel",
    summary="Cancel a job",
    response=wire.JobCancellation,
    scope=Scope.SPEND,
    takes_idempotency_key=True,
    example={},
    problems=("job_unknown",),
)
async def cancel_job(call: Call, id: Id, body: EmptyBody | None = None) -> Response:
    """Cancel a job. A running job is asked to stop. Cancelling it again changes nothing."""
    service, caller = call.service, call.caller
    key = call.idempotency_key()
    org = await _org_of_own_job(service, caller, id)

    def cancel(connection: Connection) -> Answer:
        jobs = Jobs(connection, run_asks_through(service.ledger))
        return jobs.cancel(org, JobId(id), key, caller.id)

    try:
        answer = await service.run_in_thread(cancel)
    except JobUnknown:
        raise unknown("jobs", id) from None
    if isinstance(answer.outcome, Refusal) and answer.outcome.code is Code.KEY_REUSED:
        return command_result(org, answer, 202, lambda _: EmptyBody()).response()
    service.deliver_messages(org)
    cancellation = wire.JobCancellation(id=id, cancelling=not _was_finished(answer))
    return json_response(cancellation, 202)


def _was_finished(answer: Answer) -> bool:
    """Whether the job had finished before it was cancelled. A retry gets the same answer."""
    return isinstance(answer.outcome, Refusal) and answer.outcome.code is Code.HOLD_CLOSED
