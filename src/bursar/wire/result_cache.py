"""Jobs that share their results, over HTTP: how that is asked for, and what decides a result."""

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import Field

from bursar.wire.fields import Micros, Text, WireModel

AGE_S_MAX: Final = 366 * 86_400
DIGEST_VERSION: Final = 1  # of the digest: another one when more or less is in it

# What decides a result, besides the caller's key. Where in doubt a thing is among these: to run
# once too often costs credits, to be given another's result costs more.
DECIDING_FIELDS: Final = (
    "command",
    "env",
    "gpus",
    "memory_mib",
    "cpu_milli",
    "regions",
    "node_labels",
    "pool",
)
_SETS: Final = frozenset({"regions", "node_labels", "types"})  # whose order decides nothing


class Cache(WireModel):
    """That a job may be given the result of one that is like it, and others its own."""

    max_age_seconds: Annotated[
        int, Field(ge=0, le=AGE_S_MAX, description="0: only of one that is under way")
    ]
    key: Annotated[
        Text | None, Field(description="another key, another result: a version of the data, say")
    ] = None


class JobCache(WireModel):
    """What the cache would do for a job now."""

    outcome: Literal["hit", "follow", "run"]
    job_id: str | None  # whose result it would be given, or whom it would follow
    price_micros: Annotated[Micros | None, Field(description="of a hit")]


class CacheMatch(NamedTuple):
    """How a job was submitted: whom it followed, or whose result was there; neither, if it ran."""

    source: str | None = None
    hit: bool = False


NO_MATCH: Final = CacheMatch()


def digest_result_inputs(request: Mapping[str, Any], key: str | None) -> str:
    """A digest of what decides the result of a request; its form is that of `JobRequest.kept`."""
    inputs = {name: _without_order(name, request.get(name)) for name in DECIDING_FIELDS}
    text = json.dumps([DIGEST_VERSION, inputs, key], sort_keys=True, separators=(",", ":"))
    return sha256(text.encode()).hexdigest()


def _without_order(name: str, value: Any) -> Any:
    """A value without the order of what is a set."""
    if isinstance(value, Mapping):
        return {key: _without_order(key, item) for key, item in value.items()}
    return sorted(set(value)) if name in _SETS and isinstance(value, list) else value
