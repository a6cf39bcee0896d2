"""Checks of the fields of values: whole numbers within bounds, text that a database can store.

An invalid value cannot be made: `TypeError` for a wrong type, `ValueError` for a value out of
bounds. `InvariantBroken` is for our own state, never for a caller's input.
"""

from collections.abc import Iterable
from typing import Final

TEXT_MAX: Final = 255  # bytes of UTF-8; longer ones would not fit into a database's index


def check_int(name: str, value: object, least: int, most: int) -> None:
    """Raise unless the value is a whole number from `least` to `most`."""
    if type(value) is not int:
        raise TypeError(f"{name} is a whole number, not {value!r}")
    if not least <= value <= most:
        raise ValueError(f"{name} is {least} to {most}, not {value}")


def check_text(name: str, value: object, least: int = 1) -> None:
    """Raise unless the value is text of up to 255 bytes, without NUL or unpaired surrogates."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is text, not {value!r}")
    size = len(value) if value.isascii() else _size(value)
    if size is None or "\0" in value:
        raise ValueError(f"{name} contains a character that cannot be stored: {value!r}")
    if not least <= size <= TEXT_MAX:
        raise ValueError(f"{name} is {least} to {TEXT_MAX} bytes long, not {size}")


def check_texts(name: str, values: Iterable[object]) -> None:
    """Raise unless each value is text."""
    for value in values:
        check_text(name, value)


def check_long_text(name: str, value: object, most: int) -> None:
    """Raise unless the value is text of up to `most` bytes, without NUL or unpaired surrogates."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is text, not {type(value).__name__}")
    size = _size(value)
    if size is None or "\0" in value:
        raise ValueError(f"{name} contains a character that cannot be stored")
    if size > most:
        raise ValueError(f"{name} is at most {most} bytes long, not {size}")


def check_optional_text(name: str, value: object) -> None:
    """Raise unless the value is None or text."""
    if value is not None:
        check_text(name, value)


def _size(value: str) -> int | None:
    """The size of a text in bytes of UTF-8; None if it has an unpaired surrogate."""
    try:
        return len(value.encode())
    except UnicodeEncodeError:
        return None
