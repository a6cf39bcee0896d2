"""A route for operators: who answers for the end of an attempt (M3)."""

import time
from typing import Any, Final

from fastapi import APIRouter, Request, Response

from bursar.api import keeping
from bursar.api.doing import done_of, key_of, told_by
from bursar.api.failing import Failed, Refused
from bursar.api.reading_body import StrictRoute
from bursar.api.routes.changing import IDEMPOTENCY_KEY, PROBLEM
from bursar.api.serving import Service, unknown
from bursar.core.dispatch.charging import corrected
from bursar.core.ids import ChargeId, HoldId, JobId
from bursar.core.refusal import Code, Refusal
from bursar.service.batch import Ask
from bursar.service.jobs.correcting import Corrected, Ran, attempt_of
from bursar.service.jobs.looking import Looking
from bursar.service.keys import Scope
from bursar.wire.correcting import EndCorrected, EndCorrection
from bursar.wire.shapes import Id, Making

router = APIRouter(prefix="/v1", route_class=StrictRoute, responses=PROBLEM)
CORRECTS: Final[dict[str, Any]] = {"parameters": [IDEMPOTENCY_KEY], "x-scope": Scope.OPERATOR}


@router.post(
    "/jobs/{id}/correct",
    status_code=200,
    operation_id="jobs.correct",
    summary="Say who answers for the end of an attempt: its lost work is given back, or charged",
    response_model=EndCorrected,
    openapi_extra=CORRECTS,
)
async def correct(request: Request, id: Id, body: EndCorrection) -> Response:
    """Give back what an attempt lost since its last checkpoint, or charge it after all."""
    service, caller = keeping.who(request)
    caller.needs(Scope.OPERATOR)
    key = key_of(request)
    org = await service.org_of(caller, "jobs", id)
    ran = await _ran(service, org, id, body.attempt)
    making = Making(org, key, int(time.time() * 1_000))
    command = corrected(
        HoldId(id),
        ChargeId(making.id("charge", None)),
        body.attempt,
        body.end_class,
        ran_ms=ran.run_ms,
        saved_ms=ran.saved_ms,
    )
    ask = Ask(org, key, command, Corrected(JobId(id), body.attempt), making.made, caller.id)
    answer = await told_by(service, ask)
    return done_of(org, answer, 200, lambda now: EndCorrected.of(id, body, now)).response()


async def _ran(service: Service, org: str, id: str, attempt: int) -> Ran:
    """How far an attempt of a job that is over got; the call ends if there is none."""
    job = (await service.read(lambda reader: Looking(reader).job(org, id))).value
    if job is None:
        raise unknown("jobs", id)
    if job.ended_at is None:  # its pool counts on what it knows of the hold
        raise Failed("job_not_over", "its attempts can be corrected once it is over")
    pool = job.pool
    ran = await service.read(lambda reader: attempt_of(reader, pool, org, id, attempt))
    if ran is None:
        raise Refused(Refusal(Code.ATTEMPT_UNKNOWN, {"hold": id, "attempt": attempt}))
    return ran
