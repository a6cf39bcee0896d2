"""Values of the core as JSON text and back: the stored form of events, commands and policies.

The text is canonical: fields in the order in which they are declared, sets sorted, no spaces. So
equal values have equal texts, and a text can be compared, hashed and signed.
"""

from collections.abc import Mapping
from typing import Any, Final, TypeVar, get_args

import msgspec

from bursar.core.ledger import events
from bursar.core.ledger.commands import Command
from bursar.core.ledger.events import Event
from bursar.core.refusal import Code, Refusal

T = TypeVar("T")

EVENTS: Final[Mapping[str, type[Event]]] = {
    name: kind
    for name, kind in vars(events).items()
    if isinstance(kind, type) and issubclass(kind, Event) and not kind.__subclasses__()
}
COMMANDS: Final[Mapping[str, type[Any]]] = {kind.__name__: kind for kind in get_args(Command)}

# Fields that were added to events, and what their absence in an older text means. A field that is
# added to an event, or to a value in one, needs a default with this meaning and an entry here.
ADDED_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "": (
        "open",  # the hold's amounts were not recorded: nothing to compare
        "used",
        "in_full",  # a version of prices was stored with all its rates
    ),
    "terms": (
        "capped_key",  # keys had no spending caps
        "for_job",  # a raw hold
    ),
    "version": (
        "cache_hit_ppm",  # results of other jobs had no price
        "keeps_others",  # as above: it has all its rates
    ),
}

_ENCODER: Final = msgspec.json.Encoder(order="deterministic")
_DECODERS: Final[dict[Any, msgspec.json.Decoder[Any]]] = {}


def text_of(value: object) -> str:
    """The canonical JSON text of a value."""
    return _ENCODER.encode(value).decode()


def value_of(kind: type[T], text: str) -> T:
    """Decode a value; its class checks it as it checks a new one."""
    decoder = _DECODERS.get(kind)
    if decoder is None:
        decoder = _DECODERS[kind] = msgspec.json.Decoder(kind)
    value: T = decoder.decode(text)
    return value


def event_of(kind: str, text: str) -> Event:
    """Decode an event of the class named `kind`."""
    return value_of(EVENTS[kind], text)


def has_field(text: str, field: str) -> bool:
    """Whether the text of an event has a field; texts from before the field was added do not."""
    return field in value_of(dict[str, Any], text)


def text_as_written(event: Event, text: str) -> str:
    """The canonical text of an event without the `ADDED_FIELDS` that `text` does not have."""
    now, then = value_of(dict[str, Any], text_of(event)), value_of(dict[str, Any], text)
    for part, names in ADDED_FIELDS.items():
        new, old = (now.get(part, {}), then.get(part, {})) if part else (now, then)
        for name in names:
            if name not in old:
                new.pop(name, None)
    return msgspec.json.encode(now).decode()


def command_text(command: Command) -> str:
    """A command with the name of its class."""
    return text_of([type(command).__name__, command])


def command_of(text: str) -> Command:
    """The command from its text."""
    name, fields = value_of(list[msgspec.Raw], text)
    command: Command = value_of(COMMANDS[value_of(str, str(name, "utf8"))], str(fields, "utf8"))
    return command


def refusal_of(text: str) -> Refusal:
    """The refusal from its text."""
    fields = value_of(dict[str, Any], text)
    figures = {
        name: tuple(figure) if isinstance(figure, list) else figure
        for name, figure in fields["figures"].items()
    }
    return Refusal(Code(fields["code"]), figures)
