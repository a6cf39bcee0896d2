"""A policy as an operator writes it: a mapping of plain values, as read from YAML or JSON.

    policy: {half_life: 10, inside_a_user: oldest}
    tiers:
      paid: {weight: 6, start_target: 1m}
    shares:
      paid/acme/vision: {weight: 3, floor: {H100: 8}, ceiling: {"*": 32}, jobs_max: 100}

Spans are written `30s`, `10m`, `2h`, `1d` or as a number of seconds. Tiers are either a mapping of
changes to the shipped tiers, or a list of all tiers, the highest first. An unknown key is refused
with its location. The service and the simulator read the same format.
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
Fields = Mapping[str, Any]
Parser = Callable[[Any, str], Any]  # takes a plain value and its location

_SPAN: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd]?)", re.ASCII)
_UNITS: Final = {"": SECOND, "s": SECOND, "m": MINUTE, "h": HOUR, "d": DAY}
SECTIONS: Final = ("policy", "tiers", "shares")
# The fields that can be set, and their bounds. The search limits of plans cannot be set.
_COUNT_MAX: Final = 1_000_000
BOUNDS: Final[Mapping[str, tuple[int, int] | None]] = {
    "inside_a_user": None,
    "half_life": (1, 30),
    "ahead": (0, 30 * DAY),
    "reservations": (0, 1_000),
    "aged_part": (1, _COUNT_MAX),
    "preemptions_max": (0, _COUNT_MAX),
    "turn_after": (0, _COUNT_MAX),
    "preemption_grace": (0, DAY),
}
TIER_FIELDS: Final = tuple(field.name for field in fields(Tier))
_SPANS: Final = frozenset({"preemption_grace", "ahead", "start_target", "ages_after"})


class PolicyFileError(ValueError):
    """A policy file is invalid. The text contains the location."""


def parse_policy(document: Fields) -> PoolPolicy:
    """Parse a policy. Fields that are not set have the shipped values."""
    settings = require_mapping(document.get("policy", {}), "policy")
    reject_unknown_keys(settings, BOUNDS, "policy")
    parsed = {name: _parse_field(name, v, f"policy.{name}") for name, v in settings.items()}
    policy = with_location("policy", lambda: _check_bounds(PoolPolicy(**parsed)))
    tiers = _parse_tiers(policy, document.get("tiers", {}))
    shares = [
        (_parse_path(path, f"shares.{path}"), _parse_share(share, f"shares.{path}"))
        for path, share in require_mapping(document.get("shares", {}), "shares").items()
    ]
    shares.sort(key=lambda entry: entry[0])
    return replace(policy, tiers=tiers, shares=_reject_duplicates(shares))


def policy_to_dict(policy: PoolPolicy) -> dict[str, Any]:
    """A policy as plain values that `parse_policy` reads, with all fields that can be set."""
    return {
        "policy": {name: _to_plain(name, getattr(policy, name)) for name in BOUNDS},
        "tiers": [
            {name: _to_plain(name, getattr(tier, name)) for name in TIER_FIELDS}
            for tier in policy.tiers
        ],
        "shares": {"/".join(path): _share_to_dict(share) for path, share in policy.shares},
    }


def _share_to_dict(share: Share) -> dict[str, Any]:
    values: dict[str, Any] = {"weight": share.weight}
    if share.floor:
        values["floor"] = dict(share.floor)
    if share.ceiling:
        values["ceiling"] = dict(share.ceiling)
    if share.jobs_max is not None:
        values["jobs_max"] = share.jobs_max
    return values


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


def _parse_tiers(policy: PoolPolicy, value: object) -> tuple[Tier, ...]:
    """Parse a list of tiers, or a mapping of changes to the shipped ones."""
    if isinstance(value, list):
        tiers = tuple(_parse_tier(v, f"tiers[{index}]") for index, v in enumerate(value))
    else:
        changes = require_mapping(value, "tiers")
        reject_unknown_keys(changes, [tier.name for tier in policy.tiers], "tiers")
        tiers = tuple(
            _override_tier(tier, changes.get(tier.name, {}), f"tiers.{tier.name}")
            for tier in policy.tiers
        )
    names = [tier.name for tier in tiers]
    if not tiers:
        raise PolicyFileError("tiers: at least one is required")
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise PolicyFileError(f"tiers: {twice[0]} occurs more than once")
    for tier in tiers:
        reject_unknown_keys(dict.fromkeys(tier.preempts), names, f"tiers.{tier.name}.preempts")
    return tiers


def _parse_tier(value: object, where: str) -> Tier:
    values = require_mapping(value, where)
    if "name" not in values:
        raise PolicyFileError(f"{where}: name is required")
    name = values["name"]
    tier: Tier = with_location(where, lambda: Tier(name=name))
    return _override_tier(tier, {key: v for key, v in values.items() if key != "name"}, where)


def _override_tier(tier: Tier, value: object, where: str) -> Tier:
    changes = require_mapping(value, where)
    reject_unknown_keys(changes, TIER_FIELDS[1:], where)
    parsed = {name: _parse_field(name, v, f"{where}.{name}") for name, v in changes.items()}
    return with_location(where, lambda: replace(tier, **parsed))


def _parse_share(value: object, where: str) -> Share:
    return build(
        Share,
        value,
        where,
        {"floor": parse_gpus_by_type, "ceiling": parse_gpus_by_type, "jobs_max": _parse_jobs_max},
    )


def _parse_field(name: str, value: object, where: str) -> Any:
    if name in _SPANS:
        return parse_span(value, where)
    return parse_texts(value, where) if name == "preempts" else value


def _parse_path(value: object, where: str) -> Path:
    path = tuple(part.strip() for part in str(value).split("/"))
    if len(path) < 2 or not all(path):
        raise PolicyFileError(f"{where}: expected tier/org or tier/org/account")
    return path


def _reject_duplicates(shares: list[tuple[Path, Share]]) -> tuple[tuple[Path, Share], ...]:
    """The shares, sorted by path. A path that is written in two ways would have two shares."""
    for (path, _), (after, _) in pairwise(shares):
        if path == after:
            raise PolicyFileError(f"shares: {'/'.join(path)} occurs more than once")
    return tuple(shares)


def _parse_jobs_max(value: object, where: str) -> object:
    if value is not None:
        with_location(where, lambda: check_int("jobs_max", value, 0, 2**32))
    return value


# --------------------------------------------------------------------------- plain values


def parse_span(value: object, where: str) -> int:
    """Parse a span of time, into microseconds."""
    match = _SPAN.fullmatch(str(value).strip())
    if match is None or isinstance(value, bool):
        raise PolicyFileError(f"{where}: {value!r} is no span: write 30s, 10m, 2h or 1d")
    return min(round(Decimal(match[1]) * _UNITS[match[2]]), NEVER)


def format_span(span: int) -> str:
    """Format a span of time in the largest unit of which it is a whole number."""
    for name in ("d", "h", "m", "s"):
        if span and span % _UNITS[name] == 0:
            return f"{span // _UNITS[name]}{name}"
    return f"{span // SECOND}.{span % SECOND:06}".rstrip("0").rstrip(".") + "s"


def parse_gpus_by_type(value: object, where: str) -> tuple[tuple[str, int], ...]:
    """Parse numbers of GPUs by type, or of all types (`*`)."""
    return tuple(sorted((str(name), gpus) for name, gpus in require_mapping(value, where).items()))


def parse_texts(value: object, where: str) -> tuple[str, ...]:
    """Parse one text, or a list of texts."""
    return (value,) if isinstance(value, str) else tuple(require_list(value, where))


def build(kind: type[T], value: object, where: str, parsers: Mapping[str, Parser]) -> T:
    """Build a dataclass from a mapping of its fields."""
    values = require_mapping(value, where)
    known = fields(kind)  # type: ignore[arg-type]
    reject_unknown_keys(values, [field.name for field in known], where)
    needed = (field.name for field in known if field.default is MISSING)
    if missing := [name for name in needed if name not in values]:
        raise PolicyFileError(f"{where}: {', '.join(missing)} is required")
    parsed = {
        name: parsers[name](v, f"{where}.{name}") if name in parsers else v
        for name, v in values.items()
    }
    return with_location(where, lambda: kind(**parsed))


def with_location(where: str, make: Callable[[], T]) -> T:
    """Call `make`; its errors become a `PolicyFileError` with the location."""
    try:
        return make()
    except PolicyFileError:
        raise
    except (TypeError, ValueError) as error:
        raise PolicyFileError(f"{where}: {error}") from error


def require_mapping(value: object, where: str) -> Fields:
    """Check that a value is a mapping."""
    if not isinstance(value, Mapping):
        raise PolicyFileError(f"{where} is a mapping, not {value!r}")
    return value


def require_list(value: object, where: str) -> list[Any]:
    """Check that a value is a list."""
    if not isinstance(value, list):
        raise PolicyFileError(f"{where} is a list, not {value!r}")
    return value


def reject_unknown_keys(values: Fields, known: Iterable[str], where: str) -> None:
    """Refuse keys that are not known."""
    known = sorted(known)
    unknown = sorted(str(key) for key in values if key not in known)
    if unknown:
        listed = ", ".join(known)
        raise PolicyFileError(f"{where}: unknown key: {', '.join(unknown)}; there are {listed}")
