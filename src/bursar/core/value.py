"""Values: immutable dataclasses that are cheap to create and copy.

A frozen dataclass sets its fields one by one with `object.__setattr__`, which takes three times as
long as in an ordinary one, and a command creates dozens. So values are frozen only for the type
checker, which checks all our code, and are ordinary dataclasses at run time.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, Final, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def value(kind: type[T]) -> type[T]:
    """Make a class a value: instances with equal fields are equal, and never change."""
    has_hash = "__hash__" in vars(kind)
    return dataclass(slots=True, kw_only=True, unsafe_hash=not has_hash)(kind)


class Derived:
    """A value that caches what it derives from its fields, in slots that are not fields.

    The cache is neither stored nor copied: a copy derives it again.
    """

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        values = {field_.name: getattr(self, field_.name) for field_ in fields(self)}  # type: ignore[arg-type]
        return partial(type(self), **values), ()


_Copy = Callable[[Any, dict[str, Any]], Any]
_COPIES: Final[dict[type[Any], _Copy]] = {}


def replace(original: T, **changes: Any) -> T:
    """Copy a value with these fields changed; the copy runs the checks of a new value."""
    kind = type(original)
    copy = _COPIES.get(kind)
    if copy is None:
        copy = _COPIES[kind] = _copy_of(kind)
    return copy(original, changes)  # type: ignore[no-any-return]


def _copy_of(kind: type[Any]) -> _Copy:
    """A generated function that copies values of a class, field by field."""
    names = [field_.name for field_ in fields(kind)]
    lines = [
        "def copy(given, changes):",
        "    new = make(kind)",
        *(f"    new.{name} = given.{name}" for name in names),
        "    if not names.issuperset(changes):",
        "        raise TypeError(f'{kind.__name__} has no field {min(changes.keys() - names)!r}')",
        "    for name, value in changes.items():",
        "        setattr(new, name, value)",
        "    new.__post_init__()" if hasattr(kind, "__post_init__") else "",
        "    return new",
    ]
    scope: dict[str, Any] = {"kind": kind, "make": object.__new__, "names": frozenset(names)}
    exec("\n".join(lines), scope)  # our own text, made of our own names
    return scope["copy"]  # type: ignore[no-any-return]
