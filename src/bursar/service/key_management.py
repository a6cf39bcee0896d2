"""Which keys a key may create or rotate, and what a rotation writes."""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from bursar.core.instant import Instant
from bursar.core.ledger.commands import SetSetting
from bursar.service.keys import KIND, Key, Scope
from bursar.service.queries.request_lookup import first_command
from bursar.store.ledger.settings import setting
from bursar.store.sql.connection import Connection

KEY_RATE_PER_S: Final = 500  # calls per second, unless the key has a rate of its own
OPERATOR_RATE_PER_S: Final = 10_000


class KeyInvalid(ValueError):
    """A key that must not exist; `field` names the part of the request that is wrong."""

    def __init__(self, field: str, detail: str) -> None:
        super().__init__(detail)
        self.field = field


class KeyExceeded(Exception):
    """A key would give more rights than the key that creates or rotates it has."""


class ScopeExceeded(KeyExceeded):
    """The creating key lacks a scope."""

    def __init__(self, scope: str) -> None:
        super().__init__(scope)
        self.scope = scope


class CapExceeded(KeyExceeded):
    """The creating key has a spend cap, which another key would escape."""


class RateExceeded(KeyExceeded):
    """The creating key has a lower rate."""

    def __init__(self, rate_per_s: int) -> None:
        super().__init__(rate_per_s)
        self.rate_per_s = rate_per_s


class LifetimeExceeded(KeyExceeded):
    """The creating key expires earlier."""

    def __init__(self, expires_at: Instant) -> None:
        super().__init__(expires_at)
        self.expires_at = expires_at


def rate_of(rate_per_s: int | None, *, is_operator: bool) -> int:
    """The calls per second that a key may make, by its own rate or the usual one."""
    return rate_per_s or (OPERATOR_RATE_PER_S if is_operator else KEY_RATE_PER_S)


def check_rights(
    creator: Key,
    scopes: Iterable[str],
    rate_per_s: int | None,
    expires_at: Instant | None,
    *,
    is_operator: bool,
) -> None:
    """Raise `KeyExceeded` if a key would have more rights than its creator."""
    for scope in scopes:
        if not creator.allows(scope):
            raise ScopeExceeded(scope)
    if creator.capped:
        raise CapExceeded
    own_rate_per_s = rate_of(creator.rate_per_s, is_operator=is_operator)
    if rate_of(rate_per_s, is_operator=False) > own_rate_per_s:
        raise RateExceeded(own_rate_per_s)
    end = creator.expires_at
    if end is not None and (expires_at is None or expires_at > end):
        raise LifetimeExceeded(end)


def check_node_key(
    creator: Key, scopes: Sequence[str], node: str | None, *, is_for_node_only: bool
) -> None:
    """Raise if a node's key is malformed, or if its creator is not an operator.

    `is_for_node_only`: the request names neither an account, nor a user, nor a spend cap.
    """
    if (Scope.WORK in scopes) != (node is not None):
        raise KeyInvalid(
            "node", "a key with the scope work must name its node, and no other key may"
        )
    if node is None:
        return
    if not creator.allows(Scope.OPERATOR):
        raise ScopeExceeded(Scope.OPERATOR)
    if [*scopes] != [Scope.WORK] or not is_for_node_only:
        raise KeyInvalid(
            "scopes", "a node's key can have only the scope work, and no account, user or spend cap"
        )


class Rotation(NamedTuple):
    """What a rotation writes."""

    key: Key  # with the rights that the rotated key has
    body: str  # of the setting
    before: int | None  # the number of the event that the setting was read at


def plan_rotation(
    connection: Connection, org: str, id: str, request_key: str, hash: str, overlap_s: int
) -> Rotation | None:
    """What a request to rotate a key writes; None if there is no such key.

    The rotated key contains the hash of the current secret. So a retry writes what the first
    request with its idempotency key wrote, even if the key was changed since.
    """
    first = first_command(connection, org, request_key)
    creates = isinstance(first, SetSetting) and first.before == 0
    if isinstance(first, SetSetting) and not creates and (first.kind, first.id) == (KIND, id):
        key = Key.of(first.body or "")
        if (key.hash, key.overlap_s) == (hash, overlap_s):
            return Rotation(key, first.body or "", first.before)
        # Another request under the same idempotency key: the ledger refuses it.
        return Rotation(key, key.rotated(hash, overlap_s).body, first.before)
    row = setting(connection, org, KIND, id)
    if row is None:
        return None
    key = Key.of(row.body or "")
    return Rotation(key, key.rotated(hash, overlap_s).body, row.number)
