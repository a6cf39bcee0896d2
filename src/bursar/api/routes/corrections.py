"""A route for operators: who answers for the end of an attempt (M3)."""

from typing import Any, Final

from fastapi import APIRouter, Request, Response

from bursar.api import settings
from bursar.api.context import Service, unknown
from bursar.api.errors import Failed, Refused
from bursar.api.execute import done_of, key_of, told_by
from bursar.api.request_body import StrictRoute
from bursar.api.routes.operations import IDEMPOTENCY_KEY, PROBLEM
from bursar.core.ids import HoldId
from bursar.core.ledger.commands import CorrectEnd
from bursar.core.refusal import Code, Refusal
from bursar.service.jobs.corrections import correction_request
from bursar.service.jobs.queries import Looking
from bursar.service.keys import Scope
from bursar.wire.fields import Id
from bursar.wire.jobs import EndCorrectionRequest, EndCorrectionResponse

router = APIRouter(prefix="/v1", route_class=StrictRoute, responses=PROBLEM)
CORRECTS: Final[dict[str, Any]] = {"parameters": [IDEMPOTENCY_KEY], "x-scope": Scope.OPERATOR}


@router.post(
    "/jobs/{id}/correct",
    status_code=202,
    operation_id="jobs.correct",
    summary="Say who answers for the end of an attempt: its lost work is given back, or charged",
    response_model=EndCorrectionResponse,
    openapi_extra=CORRECTS,
)
async def correct(request: Request, id: Id, body: EndCorrectionRequest) -> Response:
    """Let somebody else answer for the end of an attempt of a job that is over."""
    service, caller = settings.who(request)
    caller.needs(Scope.OPERATOR)
    key = key_of(request)
    org = await service.org_of(caller, "jobs", id)
    await _check_over(service, org, id, body.attempt)
    said = CorrectEnd(
        hold=HoldId(id), attempt=body.attempt, end_class=body.end_class, reason=body.reason
    )
    answer = await told_by(service, correction_request(org, key, said, caller.id))
    service.posted(org)
    told = EndCorrectionResponse(id=id, attempt=body.attempt, end_class=body.end_class.value)
    return done_of(org, answer, 202, lambda _: told).response()


async def _check_over(service: Service, org: str, id: str, attempt: int) -> None:
    """Refuse what is not over; what is over stays so. Attempts are known from their starts on."""
    job = (await service.read(lambda reader: Looking(reader).job(org, id))).value
    if job is None:
        raise unknown("jobs", id)
    if job.ended_at is None:
        raise Failed(
            "job_not_finished", "the ends of its attempts can be corrected once it is over"
        )
    if attempt > job.attempt:
        figures = {"hold": id, "attempt": attempt, "attempts": job.attempt}
        raise Refused(Refusal(Code.ATTEMPT_UNKNOWN, figures))
