"""One request, one effect: what a key that was seen before means (L7).

The shell keeps, in the same transaction as the effect, each key with its command and its outcome,
refusals decided under the org's lock included.
"""

from dataclasses import fields

from bursar.core.ledger.commands import Command
from bursar.core.ledger.events import Event
from bursar.core.refusal import Code, Refusal
from bursar.core.value import value


@value
class Reply:
    """What was answered to a key the first time."""

    command: Command
    outcome: tuple[Event, ...] | Refusal
    number: int  # of the org's last event when it was answered


def replay(key: str, first: Reply | None, command: Command) -> Reply | Refusal | None:
    """The first answer again, a refusal if something else is asked, or None for a new key."""
    if first is None:
        return None
    differs = first_difference(first.command, command)
    if differs is None:
        return first
    return Refusal(Code.KEY_REUSED, {"key": key, "field": differs})


def first_difference(first: Command, second: Command) -> str | None:
    """The first field in which two commands differ; `command` if they are not of one kind."""
    if type(first) is not type(second):
        return "command"
    for one in fields(first):
        if getattr(first, one.name) != getattr(second, one.name):
            return one.name
    return None
