"""How a repeated idempotency key is answered: the first answer again, no second effect (L7).

The service stores each key with its command and outcome, in the transaction of the effect. It also
stores refusals that were decided under the org's lock.
"""

from dataclasses import fields

from bursar.core.ids import differ_only_in_time
from bursar.core.ledger.commands import Command
from bursar.core.ledger.events import Event
from bursar.core.ledger.values import Context
from bursar.core.pricing import PriceVersion
from bursar.core.refusal import Code, Refusal
from bursar.core.value import replace, value


@value
class Reply:
    """The first answer to a key."""

    command: Command
    outcome: tuple[Event, ...] | Refusal
    number: int  # of the org's last event when it was answered


def replay(
    key: str, first: Reply | None, command: Command, generated_fields: tuple[str, ...] = ()
) -> Reply | Refusal | None:
    """The first answer again, a refusal if the command differs, or None for a new key.

    `generated_fields` are the fields whose ids Bursar generated: a retry has ids with another time.
    """
    if first is None:
        return None
    differs = first_difference(first.command, command, generated_fields)
    if differs is None:
        return first
    return Refusal(Code.KEY_REUSED, {"key": key, "field": differs})


def first_difference(
    first: Command, second: Command, generated_fields: tuple[str, ...] = ()
) -> str | None:
    """The first field in which two commands differ; `command` if their types differ."""
    if type(first) is not type(second):
        return "command"
    for field_ in fields(first):
        was, now = getattr(first, field_.name), getattr(second, field_.name)
        if was != now and not (field_.name in generated_fields and _same_but_for_time(was, now)):
            return field_.name
    return None


def _same_but_for_time(was: object, now: object) -> bool:
    """Whether two ids, or two values with an id, differ only in the time in the id."""
    if isinstance(was, PriceVersion) and isinstance(now, PriceVersion):
        return differ_only_in_time(was.id, now.id) and was == replace(now, id=was.id)
    if isinstance(was, Context) and isinstance(now, Context):
        return differ_only_in_time(was.job or "", now.job or "") and was == replace(
            now, job=was.job
        )
    return isinstance(was, str) and isinstance(now, str) and differ_only_in_time(was, now)
