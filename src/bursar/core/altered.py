"""A frozen value with some fields changed: `dataclasses.replace`, in about half its time."""

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from operator import attrgetter
from typing import Any, Final, TypeVar

T = TypeVar("T")


class Derived:
    """A value that remembers what follows from its fields, in slots that are no fields.

    What is remembered is no part of what is written down or copied: a copy works it out anew.
    """

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        given = {one.name: getattr(self, one.name) for one in fields(self)}  # type: ignore[arg-type]
        return partial(type(self), **given), ()


_KNOWN: Final[dict[type[Any], tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]]]] = {}


def altered(value: T, **changes: Any) -> T:
    """A copy of a dataclass value with these fields changed; it checks itself as a new one does."""
    kind = type(value)
    if kind not in _KNOWN:
        # Looked up once for each class: the names that can be given, and how to get their values.
        names = tuple(one.name for one in fields(kind))  # type: ignore[arg-type]
        _KNOWN[kind] = names, attrgetter(*names)
    names, values_of = _KNOWN[kind]
    return kind(**(dict(zip(names, values_of(value), strict=True)) | changes))
