"""Correcting the cause of an attempt's end: the request to the ledger (`core.jobs.corrections`)."""

from bursar.core.ids import OrgId
from bursar.core.jobs.corrections import CorrectAttemptEnd
from bursar.core.ledger.commands import CorrectEnd
from bursar.service.ledger.batch import Ask


def correction_request(org: OrgId, key: str, command: CorrectEnd, actor: str) -> Ask:
    """The command that corrects an end of a finished job."""
    return Ask(org, key, command, CorrectAttemptEnd(command), (), actor)
