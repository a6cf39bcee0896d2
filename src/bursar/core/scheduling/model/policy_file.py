"""A policy as people write it down: a mapping of plain values, as read from YAML or JSON.

    policy: {half_life: 10, inside_a_user: oldest}
    tiers:
      paid: {weight: 6, start_target: 1m}
    shares:
      paid/acme/vision: {weight: 3, floor: {H100: 8}, ceiling: {"*": 32}, jobs_max: 100}

Spans are written `30s`, `10m`, `2h`, `1d` or as seconds. Tiers are either a mapping, with what is
different from those that are shipped, or a list of all there shall be, the highest first. A word
that is not known is refused, with the place where it stands. Simulator and service read the same.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields
from decimal import Decimal
from itertools import pairwise
from typing import Any, Final, TypeVar

from bursar.core.instant import DAY, HOUR, MINUTE, NEVER, SECOND
from bursar.core.scheduling.model.jobs import Path
from bursar.core.scheduling.model.policy import Policy, Share, Tier
from bursar.core.validation import check_int
from bursar.core.value import replace

T = TypeVar("T")
Words = Mapping[str, Any]
Read = Callable[[Any, str], Any]  # what was written, and where

_SPAN: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd]?)", re.ASCII)
_UNITS: Final = {"": SECOND, "s": SECOND, "m": MINUTE, "h": HOUR, "d": DAY}
PARTS_OF_A_POLICY: Final = ("policy", "tiers", "shares")
# What may be written of a policy, and within which bounds. How far plans look is not in it.
_MOST: Final = 1_000_000
BOUNDS: Final[Mapping[str, tuple[int, int] | None]] = {
    "inside_a_user": None,
    "half_life": (1, 30),
    "ahead": (0, 30 * DAY),
    "reservations": (0, 1_000),
    "aged_part": (1, _MOST),
    "preemptions_max": (0, _MOST),
    "turn_after": (0, _MOST),
    "grace": (0, DAY),
}
TIER_FIELDS: Final = tuple(one.name for one in fields(Tier))
_SPANS: Final = frozenset({"grace", "ahead", "start_target", "ages_after"})


class Wrong(ValueError):
    """What was written down makes no sense; it says where."""


def policy_of(words: Words) -> Policy:
    """The policy that was written down; what is not named is as it is shipped."""
    given = mapping(words.get("policy", {}), "policy")
    only(given, BOUNDS, "policy")
    read = {name: _read(name, one, f"policy.{name}") for name, one in given.items()}
    policy = checked("policy", lambda: _bounded(Policy(**read)))
    tiers = _tiers(policy, words.get("tiers", {}))
    shares = mapping(words.get("shares", {}), "shares")
    found = [
        (_path(path, f"shares.{path}"), _share(share, f"shares.{path}"))
        for path, share in shares.items()
    ]
    found.sort(key=lambda one: one[0])
    return replace(policy, tiers=tiers, shares=_each_once(found))


def words_of(policy: Policy) -> dict[str, Any]:
    """A policy in words that `policy_of` reads, with all that can be written."""
    return {
        "policy": {name: _word(name, getattr(policy, name)) for name in BOUNDS},
        "tiers": [
            {name: _word(name, getattr(tier, name)) for name in TIER_FIELDS}
            for tier in policy.tiers
        ],
        "shares": {"/".join(path): _share_words(share) for path, share in policy.shares},
    }


def _share_words(share: Share) -> dict[str, Any]:
    words: dict[str, Any] = {"weight": share.weight}
    if share.floor:
        words["floor"] = dict(share.floor)
    if share.ceiling:
        words["ceiling"] = dict(share.ceiling)
    if share.jobs_max is not None:
        words["jobs_max"] = share.jobs_max
    return words


def _word(name: str, value: Any) -> Any:
    if name in _SPANS:
        return span_text(value)
    return list(value) if isinstance(value, tuple) else value


# --------------------------------------------------------------------------- parts


def _bounded(policy: Policy) -> Policy:
    for name, bounds in BOUNDS.items():
        if bounds is not None:
            check_int(name, getattr(policy, name), *bounds)
    return policy


def _tiers(policy: Policy, given: object) -> tuple[Tier, ...]:
    """The tiers: those that are shipped with what was written of them, or those of a list."""
    if isinstance(given, list):
        found = tuple(_tier(one, f"tiers[{place}]") for place, one in enumerate(given))
    else:
        words = mapping(given, "tiers")
        only(words, [tier.name for tier in policy.tiers], "tiers")
        found = tuple(
            _changed(tier, words.get(tier.name, {}), f"tiers.{tier.name}") for tier in policy.tiers
        )
    names = [tier.name for tier in found]
    if not found:
        raise Wrong("tiers: there is one at least")
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise Wrong(f"tiers: {twice[0]} is there more than once")
    for tier in found:
        only(dict.fromkeys(tier.preempts), names, f"tiers.{tier.name}.preempts")
    return found


def _tier(given: object, where: str) -> Tier:
    words = mapping(given, where)
    if "name" not in words:
        raise Wrong(f"{where}: name must be named")
    name = words["name"]
    tier: Tier = checked(where, lambda: Tier(name=name))
    return _changed(tier, {key: one for key, one in words.items() if key != "name"}, where)


def _changed(tier: Tier, given: object, where: str) -> Tier:
    words = mapping(given, where)
    only(words, TIER_FIELDS[1:], where)
    read = {name: _read(name, one, f"{where}.{name}") for name, one in words.items()}
    return checked(where, lambda: replace(tier, **read))


def _share(given: object, where: str) -> Share:
    return made(Share, given, where, {"floor": by_type, "ceiling": by_type, "jobs_max": _jobs})


def _read(name: str, given: object, where: str) -> Any:
    if name in _SPANS:
        return span_of(given, where)
    return texts_of(given, where) if name == "preempts" else given


def _path(given: object, where: str) -> Path:
    path = tuple(part.strip() for part in str(given).split("/"))
    if len(path) < 2 or not all(path):
        raise Wrong(f"{where}: a place below a tier is written tier/org or tier/org/account")
    return path


def _each_once(found: list[tuple[Path, Share]]) -> tuple[tuple[Path, Share], ...]:
    """Places with their shares; one that is written in two ways would have either."""
    for (path, _), (after, _) in pairwise(found):
        if path == after:
            raise Wrong(f"shares: {'/'.join(path)} is there more than once")
    return tuple(found)


def _jobs(given: object, where: str) -> object:
    if given is not None:
        checked(where, lambda: check_int("jobs_max", given, 0, 2**32))
    return given


# --------------------------------------------------------------------------- plain values


def span_of(given: object, where: str) -> int:
    """A span of time in microseconds."""
    found = _SPAN.fullmatch(str(given).strip())
    if found is None or isinstance(given, bool):
        raise Wrong(f"{where}: {given!r} is no span: write 30s, 10m, 2h or 1d")
    return min(round(Decimal(found[1]) * _UNITS[found[2]]), NEVER)


def span_text(span: int) -> str:
    """A span of time, in the largest unit of which it is a whole number."""
    for name in ("d", "h", "m", "s"):
        if span and span % _UNITS[name] == 0:
            return f"{span // _UNITS[name]}{name}"
    return f"{span // SECOND}.{span % SECOND:06}".rstrip("0").rstrip(".") + "s"


def by_type(given: object, where: str) -> tuple[tuple[str, int], ...]:
    """GPUs by type, or of all types (`*`)."""
    return tuple(sorted((str(name), gpus) for name, gpus in mapping(given, where).items()))


def texts_of(given: object, where: str) -> tuple[str, ...]:
    """One text, or several."""
    return (given,) if isinstance(given, str) else tuple(listed(given, where))


def made(kind: type[T], given: object, where: str, reads: Mapping[str, Read]) -> T:
    """A value from the words for its fields."""
    words = mapping(given, where)
    known = fields(kind)  # type: ignore[arg-type]
    only(words, [one.name for one in known], where)
    needed = (one.name for one in known if one.default is MISSING)
    if missing := [name for name in needed if name not in words]:
        raise Wrong(f"{where}: {', '.join(missing)} must be named")
    read = {
        name: reads[name](one, f"{where}.{name}") if name in reads else one
        for name, one in words.items()
    }
    return checked(where, lambda: kind(**read))


def checked(where: str, make: Callable[[], T]) -> T:
    """What is made, or why it cannot be."""
    try:
        return make()
    except Wrong:
        raise
    except (TypeError, ValueError) as error:
        raise Wrong(f"{where}: {error}") from error


def mapping(given: object, where: str) -> Words:
    """A mapping."""
    if not isinstance(given, Mapping):
        raise Wrong(f"{where} is a mapping, not {given!r}")
    return given


def listed(given: object, where: str) -> list[Any]:
    """A list."""
    if not isinstance(given, list):
        raise Wrong(f"{where} is a list, not {given!r}")
    return given


def only(words: Words, known: Iterable[str], where: str) -> None:
    """Refuse words that are not known."""
    known = sorted(known)
    unknown = sorted(str(word) for word in words if word not in known)
    if unknown:
        told = ", ".join(known)
        raise Wrong(f"{where}: no such word: {', '.join(unknown)}; there are {told}")
