"""A route for operators: corrects the end class of an attempt (M3)."""

from starlette.responses import Response

from bursar.api.call import Call
from bursar.api.context import Service, unknown
from bursar.api.errors import CallFailed, CallRefused
from bursar.api.execute import command_result, submit
from bursar.api.operation import OperationTable
from bursar.core.ids import HoldId
from bursar.core.ledger.commands import CorrectEnd
from bursar.core.refusal import Code, Refusal
from bursar.service.jobs.corrections import correction_request
from bursar.service.jobs.queries import JobQueries
from bursar.service.keys import Scope
from bursar.wire.fields import Id
from bursar.wire.jobs import EndCorrectionRequest, EndCorrectionResponse

operations = OperationTable("Jobs")


@operations.post(
    "/v1/jobs/{id}/correct",
    status=202,
    name="jobs.correct",
    summary="Correct the end of an attempt",
    response=EndCorrectionResponse,
    scope=Scope.OPERATOR,
    takes_idempotency_key=True,
    example={"attempt": 1, "end_class": "platform", "reason": "broken GPU"},
    problems=(
        "job_unknown",
        "job_not_finished",
        "attempt_unknown",
        "correction_pending",
        "charge_reversed",
        "credits_gone",
    ),
)
async def correct(call: Call, id: Id, body: EndCorrectionRequest) -> Response:
    """Change who is responsible for the end of an attempt of a finished job. Its lost work is
    refunded or charged accordingly.
    """
    service, caller = call.service, call.caller
    key = call.idempotency_key()
    org = await service.org_of(caller, "jobs", id)
    await _check_finished(service, org, id, body.attempt)
    command = CorrectEnd(
        hold=HoldId(id), attempt=body.attempt, end_class=body.end_class, reason=body.reason
    )
    answer = await submit(service, correction_request(org, key, command, caller.id))
    service.deliver_messages(org)
    correction = EndCorrectionResponse(id=id, attempt=body.attempt, end_class=body.end_class.value)
    return command_result(org, answer, 202, lambda _: correction).response()


async def _check_finished(service: Service, org: str, id: str, attempt: int) -> None:
    """Refuse unless job and attempt have finished. Attempts exist from their start on."""
    job = (await service.read(lambda reader: JobQueries(reader).job(org, id))).value
    if job is None:
        raise unknown("jobs", id)
    if job.ended_at is None:
        raise CallFailed(
            "job_not_finished", "an attempt can be corrected after its job has finished"
        )
    if attempt > job.attempt:
        figures = {"hold": id, "attempt": attempt, "attempts": job.attempt}
        raise CallRefused(Refusal(Code.ATTEMPT_UNKNOWN, figures))
