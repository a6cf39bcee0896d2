"""Submitting a job: the request to the ledger (`core.jobs.submission` has the rules)."""

from bursar.core.ids import HoldId, JobId, OrgId
from bursar.core.instant import Instant
from bursar.core.jobs.submission import (
    ExtendJob,
    Option,
    Submission,
    SubmitJob,
    refuse_tier,
    reserve_for_job,
    served,
)
from bursar.core.ledger.commands import ExtendHold
from bursar.core.money import Micros
from bursar.service.ledger.batch import CommandRequest

__all__ = [
    "Option",
    "Submission",
    "extension_request",
    "refuse_tier",
    "served",
    "submission_request",
]


def submission_request(
    org: OrgId,
    key: str,
    submission: Submission,
    generated_fields: tuple[str, ...] = (),
    actor: str = "",
) -> CommandRequest:
    """The command that submits a job, with everything that is written together."""
    return CommandRequest(
        org, key, reserve_for_job(submission), SubmitJob(submission), generated_fields, actor
    )


def extension_request(
    org: OrgId,
    key: str,
    job: JobId,
    amount: Micros,
    until: Instant | None = None,
    generated_fields: tuple[str, ...] = (),
    actor: str = "",
) -> CommandRequest:
    """The command that extends the hold of a job; its pool gets a message."""
    command = ExtendHold(hold=HoldId(job), amount=amount, expires_at=until)
    return CommandRequest(
        org, key, command, ExtendJob(job, amount, until or 0), generated_fields, actor
    )
