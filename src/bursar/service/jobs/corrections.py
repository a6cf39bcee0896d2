"""Correcting the cause of an attempt's end: the request to the ledger (`core.jobs.corrections`)."""

from bursar.core.ids import OrgId
from bursar.core.jobs.corrections import CorrectAttemptEnd
from bursar.core.ledger.commands import CorrectEnd
from bursar.service.ledger.batch import CommandRequest


def correction_request(org: OrgId, key: str, command: CorrectEnd, actor: str) -> CommandRequest:
    """The command that corrects an end of a finished job."""
    return CommandRequest(org, key, command, CorrectAttemptEnd(command), (), actor)
