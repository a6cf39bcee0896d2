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
from bursar.core.scheduling.model.policy import PoolPolicy, Share, Tier
from bursar.core.validation import check_int
from bursar.core.value import replace

T = TypeVar("T")
Words = Mapping[str, Any]
Read = Callable[[Any, str], Any]  # what was written, and where

_SPAN: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd]?)", re.ASCII)
_UNITS: Final = {"": SECOND, "s": SECOND, "m": MINUTE, "h": HOUR, "d": DAY}
SECTIONS: Final = ("policy", "tiers", "shares")
# What may be written of a policy, and within which bounds. How far plans look is not in it.
_COUNT_MAX: Final = 1_000_000
BOUNDS: Final[Mapping[str, tuple[int, int] | None]] = {
    "inside_a_user": None,
    "half_life": (1, 30),
    "ahead": (0, 30 * DAY),
    "reservations": (0, 1_000),
    "aged_part": (1, _COUNT_MAX),
    "preemptions_max": (0, _COUNT_MAX),
    "turn_after": (0, _COUNT_MAX),
    "grace": (0, DAY),
}
TIER_FIELDS: Final = tuple(one.name for one in fields(Tier))
_SPANS: Final = frozenset({"grace", "ahead", "start_target", "ages_after"})


class PolicyFileError(ValueError):
    """What was written down makes no sense; it says where."""


def parse_policy(words: Words) -> PoolPolicy:
    """The policy that was written down; what is not named is as it is shipped."""
    given = require_mapping(words.get("policy", {}), "policy")
    reject_unknown_keys(given, BOUNDS, "policy")
    read = {name: _read(name, one, f"policy.{name}") for name, one in given.items()}
    policy = with_location("policy", lambda: _check_bounds(PoolPolicy(**read)))
    tiers = _parse_tiers(policy, words.get("tiers", {}))
    shares = require_mapping(words.get("shares", {}), "shares")
    found = [
        (_parse_path(path, f"shares.{path}"), _parse_share(share, f"shares.{path}"))
        for path, share in shares.items()
    ]
    found.sort(key=lambda one: one[0])
    return replace(policy, tiers=tiers, shares=_reject_duplicates(found))


def policy_to_dict(policy: PoolPolicy) -> dict[str, Any]:
    """A policy in words that `policy_of` reads, with all that can be written."""
    return {
        "policy": {name: _to_plain(name, getattr(policy, name)) for name in BOUNDS},
        "tiers": [
            {name: _to_plain(name, getattr(tier, name)) for name in TIER_FIELDS}
            for tier in policy.tiers
        ],
        "shares": {"/".join(path): _share_to_dict(share) for path, share in policy.shares},
    }


def _share_to_dict(share: Share) -> dict[str, Any]:
    words: dict[str, Any] = {"weight": share.weight}
    if share.floor:
        words["floor"] = dict(share.floor)
    if share.ceiling:
        words["ceiling"] = dict(share.ceiling)
    if share.jobs_max is not None:
        words["jobs_max"] = share.jobs_max
    return words


def _to_plain(name: str, value: Any) -> Any:
    if name in _SPANS:
        return format_span(value)
    return list(value) if isinstance(value, tuple) else value


# --------------------------------------------------------------------------- parts


def _check_bounds(policy: PoolPolicy) -> PoolPolicy:
    for name, bounds in BOUNDS.items():
        if bounds is not None:
            check_int(name, getattr(policy, name), *bounds)
    return policy


def _parse_tiers(policy: PoolPolicy, given: object) -> tuple[Tier, ...]:
    """The tiers: those that are shipped with what was written of them, or those of a list."""
    if isinstance(given, list):
        found = tuple(_parse_tier(one, f"tiers[{place}]") for place, one in enumerate(given))
    else:
        words = require_mapping(given, "tiers")
        reject_unknown_keys(words, [tier.name for tier in policy.tiers], "tiers")
        found = tuple(
            _override_tier(tier, words.get(tier.name, {}), f"tiers.{tier.name}")
            for tier in policy.tiers
        )
    names = [tier.name for tier in found]
    if not found:
        raise PolicyFileError("tiers: there is one at least")
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise PolicyFileError(f"tiers: {twice[0]} is there more than once")
    for tier in found:
        reject_unknown_keys(dict.fromkeys(tier.preempts), names, f"tiers.{tier.name}.preempts")
    return found


def _parse_tier(given: object, where: str) -> Tier:
    words = require_mapping(given, where)
    if "name" not in words:
        raise PolicyFileError(f"{where}: name must be named")
    name = words["name"]
    tier: Tier = with_location(where, lambda: Tier(name=name))
    return _override_tier(tier, {key: one for key, one in words.items() if key != "name"}, where)


def _override_tier(tier: Tier, given: object, where: str) -> Tier:
    words = require_mapping(given, where)
    reject_unknown_keys(words, TIER_FIELDS[1:], where)
    read = {name: _read(name, one, f"{where}.{name}") for name, one in words.items()}
    return with_location(where, lambda: replace(tier, **read))


def _parse_share(given: object, where: str) -> Share:
    return build(
        Share,
        given,
        where,
        {"floor": parse_gpus_by_type, "ceiling": parse_gpus_by_type, "jobs_max": _parse_jobs_max},
    )


def _read(name: str, given: object, where: str) -> Any:
    if name in _SPANS:
        return parse_span(given, where)
    return parse_texts(given, where) if name == "preempts" else given


def _parse_path(given: object, where: str) -> Path:
    path = tuple(part.strip() for part in str(given).split("/"))
    if len(path) < 2 or not all(path):
        raise PolicyFileError(
            f"{where}: a place below a tier is written tier/org or tier/org/account"
        )
    return path


def _reject_duplicates(found: list[tuple[Path, Share]]) -> tuple[tuple[Path, Share], ...]:
    """Places with their shares; one that is written in two ways would have either."""
    for (path, _), (after, _) in pairwise(found):
        if path == after:
            raise PolicyFileError(f"shares: {'/'.join(path)} is there more than once")
    return tuple(found)


def _parse_jobs_max(given: object, where: str) -> object:
    if given is not None:
        with_location(where, lambda: check_int("jobs_max", given, 0, 2**32))
    return given


# --------------------------------------------------------------------------- plain values


def parse_span(given: object, where: str) -> int:
    """A span of time in microseconds."""
    found = _SPAN.fullmatch(str(given).strip())
    if found is None or isinstance(given, bool):
        raise PolicyFileError(f"{where}: {given!r} is no span: write 30s, 10m, 2h or 1d")
    return min(round(Decimal(found[1]) * _UNITS[found[2]]), NEVER)


def format_span(span: int) -> str:
    """A span of time, in the largest unit of which it is a whole number."""
    for name in ("d", "h", "m", "s"):
        if span and span % _UNITS[name] == 0:
            return f"{span // _UNITS[name]}{name}"
    return f"{span // SECOND}.{span % SECOND:06}".rstrip("0").rstrip(".") + "s"


def parse_gpus_by_type(given: object, where: str) -> tuple[tuple[str, int], ...]:
    """GPUs by type, or of all types (`*`)."""
    return tuple(sorted((str(name), gpus) for name, gpus in require_mapping(given, where).items()))


def parse_texts(given: object, where: str) -> tuple[str, ...]:
    """One text, or several."""
    return (given,) if isinstance(given, str) else tuple(require_list(given, where))


def build(kind: type[T], given: object, where: str, reads: Mapping[str, Read]) -> T:
    """A value from the words for its fields."""
    words = require_mapping(given, where)
    known = fields(kind)  # type: ignore[arg-type]
    reject_unknown_keys(words, [one.name for one in known], where)
    needed = (one.name for one in known if one.default is MISSING)
    if missing := [name for name in needed if name not in words]:
        raise PolicyFileError(f"{where}: {', '.join(missing)} must be named")
    read = {
        name: reads[name](one, f"{where}.{name}") if name in reads else one
        for name, one in words.items()
    }
    return with_location(where, lambda: kind(**read))


def with_location(where: str, make: Callable[[], T]) -> T:
    """What is made, or why it cannot be."""
    try:
        return make()
    except PolicyFileError:
        raise
    except (TypeError, ValueError) as error:
        raise PolicyFileError(f"{where}: {error}") from error


def require_mapping(given: object, where: str) -> Words:
    """A mapping."""
    if not isinstance(given, Mapping):
        raise PolicyFileError(f"{where} is a mapping, not {given!r}")
    return given


def require_list(given: object, where: str) -> list[Any]:
    """A list."""
    if not isinstance(given, list):
        raise PolicyFileError(f"{where} is a list, not {given!r}")
    return given


def reject_unknown_keys(words: Words, known: Iterable[str], where: str) -> None:
    """Refuse words that are not known."""
    known = sorted(known)
    unknown = sorted(str(word) for word in words if word not in known)
    if unknown:
        told = ", ".join(known)
        raise PolicyFileError(f"{where}: no such word: {', '.join(unknown)}; there are {told}")
