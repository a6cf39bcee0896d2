"""The result cache over HTTP: its option, its outcome, and the digest of a job's inputs."""

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import Field

from bursar.wire.fields import Micros, Text, WireModel

AGE_S_MAX: Final = 366 * 86_400
DIGEST_VERSION: Final = 1  # raised when the inputs of the digest change

# The fields that decide a result, besides the client's key. Fields in doubt are included: an
# unnecessary run costs credits, a wrong result costs more.
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
_SETS: Final = frozenset({"regions", "node_labels", "types"})  # lists whose order does not matter


class Cache(WireModel):
    """Let a job share results with identical jobs of its org."""

    max_age_seconds: Annotated[
        int,
        Field(
            ge=0,
            le=AGE_S_MAX,
            description="Maximum age of a result. 0: only share with a job that has not finished.",
        ),
    ]
    key: Annotated[
        Text | None,
        Field(
            description="Jobs with different keys do not share, for example a version of the data."
        ),
    ] = None


class JobCache(WireModel):
    """What the cache would do for a job now."""

    outcome: Literal["hit", "follow", "run"]
    job_id: str | None  # the job whose result is used, or that is followed
    price_micros: Annotated[Micros | None, Field(description="of a hit")]


class CacheMatch(NamedTuple):
    """The job that a submitted job follows, or whose result it has; empty if it runs."""

    source: str | None = None
    hit: bool = False


NO_MATCH: Final = CacheMatch()


def digest_result_inputs(request: Mapping[str, Any], key: str | None) -> str:
    """Digest the fields of a request that decide its result.

    `request` has the form of `JobRequest.stored_form`.
    """
    inputs = {name: _without_order(name, request.get(name)) for name in DECIDING_FIELDS}
    text = json.dumps([DIGEST_VERSION, inputs, key], sort_keys=True, separators=(",", ":"))
    return sha256(text.encode()).hexdigest()


def _without_order(name: str, value: Any) -> Any:
    """Sort the lists that are sets."""
    if isinstance(value, Mapping):
        return {key: _without_order(key, item) for key, item in value.items()}
    return sorted(set(value)) if name in _SETS and isinstance(value, list) else value
