"""Cancelling a job: the request to the ledger (`core.jobs.cancellation` has the rules)."""

from bursar.core.ids import JobId, OrgId
from bursar.core.jobs.cancellation import CancelJob, cancel_command, cancel_key
from bursar.service.ledger.batch import CommandRequest


def cancellation_request(org: OrgId, job: JobId, key: str = "", actor: str = "") -> CommandRequest:
    """The command that cancels a job, or an array with all elements that have not finished."""
    return CommandRequest(
        org, key or cancel_key(job), cancel_command(job), CancelJob(job), (), actor
    )
