"""Values of the core as JSON text, and back: what is kept of events, commands and policies.

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
    name: found
    for name, found in vars(events).items()
    if isinstance(found, type) and issubclass(found, Event) and not found.__subclasses__()
}
COMMANDS: Final[Mapping[str, type[Any]]] = {kind.__name__: kind for kind in get_args(Command)}

# What events have gained since databases were first made of them, and what its absence means in a
# text from before. Whoever adds a field to an event, or to what is in one, gives it a default that
# has this meaning, and names it here.
GAINED: Final[Mapping[str, tuple[str, ...]]] = {
    "": ("open", "used"),  # how the hold stands was not told: nothing is to be compared with it
    "terms": (
        "asked_by",  # keys had no caps yet
        "for_job",  # a raw hold
    ),
    "version": ("cache_hit_ppm",),  # results of other jobs had no price
}

_ENCODER: Final = msgspec.json.Encoder(order="deterministic")
_DECODERS: Final[dict[Any, msgspec.json.Decoder[Any]]] = {}


def text_of(value: object) -> str:
    """The canonical JSON text of a value."""
    return _ENCODER.encode(value).decode()


def value_of(kind: type[T], text: str) -> T:
    """The value of that kind with this JSON text; it checks itself as a new one does."""
    decoder = _DECODERS.get(kind)
    if decoder is None:
        decoder = _DECODERS[kind] = msgspec.json.Decoder(kind)
    found: T = decoder.decode(text)
    return found


def event_of(kind: str, text: str) -> Event:
    """The event of the class named `kind`."""
    return value_of(EVENTS[kind], text)


def says(text: str, field: str) -> bool:
    """Whether the text of an event has a field; one from before there was such a field has not."""
    return field in value_of(dict[str, Any], text)


def text_then(event: Event, text: str) -> str:
    """The canonical text of an event in the version that wrote `text`: without what it lacked."""
    now, then = value_of(dict[str, Any], text_of(event)), value_of(dict[str, Any], text)
    for part, names in GAINED.items():
        new, old = (now.get(part, {}), then.get(part, {})) if part else (now, then)
        for name in names:
            if name not in old:
                new.pop(name, None)
    return msgspec.json.encode(now).decode()


def command_text(command: Command) -> str:
    """A command with the name of its class."""
    return text_of([type(command).__name__, command])


def command_of(text: str) -> Command:
    """The command that has this text."""
    name, fields = value_of(list[msgspec.Raw], text)
    found: Command = value_of(COMMANDS[value_of(str, str(name, "utf8"))], str(fields, "utf8"))
    return found


def refusal_of(text: str) -> Refusal:
    """The refusal that has this text."""
    found = value_of(dict[str, Any], text)
    figures = {
        name: tuple(figure) if isinstance(figure, list) else figure
        for name, figure in found["figures"].items()
    }
    return Refusal(Code(found["code"]), figures)
