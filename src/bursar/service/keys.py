"""API keys: what they look like, what they allow, how they are verified.

    bsr_ · org (22) · id (22) · secret (43) · checksum (6)        all in base 62

The org and the id locate the key; the secret is compared by its hash. The checksum detects typing
errors without a look-up, and lets scanners find leaked keys. A key is a setting of its org (kind
`key`), so creating, changing and deleting one is recorded in the org's events. Operators' keys are
settings of the deployment's own org.
"""

import hmac
import json
import string
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final, Self
from uuid import UUID
from zlib import crc32

from bursar.core import ids
from bursar.core.instant import SECOND, Instant
from bursar.service.secrets import Secret

KIND: Final = "key"  # of setting
DEPLOYMENT: Final = ids.DEPLOYMENT
PREFIX: Final = "bsr_"

_DIGITS: Final = string.digits + string.ascii_letters
_UUID_LONG, _SECRET_LONG, _CHECK_LONG = 22, 43, 6
_LONG: Final = len(PREFIX) + 2 * _UUID_LONG + _SECRET_LONG + _CHECK_LONG


class Scope:
    """What a key may do."""

    READ: Final = "read"  # look
    SPEND: Final = "spend"  # hold, charge, settle, release
    MANAGE: Final = "manage"  # accounts, users, keys, webhooks, budgets, quotas, transfers
    ISSUE: Final = "issue"  # make and take back credits: grants, reversals, debts, prices, tiers
    WORK: Final = "work"  # act as a node: report, and get orders
    OPERATOR: Final = "operator"  # everything, in all orgs


SCOPES: Final = (Scope.READ, Scope.SPEND, Scope.MANAGE, Scope.ISSUE, Scope.WORK, Scope.OPERATOR)


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """The stored form of a key."""

    name: str
    hash: str  # of its secret
    scopes: tuple[str, ...]
    account: str  # it works for this account and all below; empty for an operator's
    user: str | None = None  # who spends with it, if a request does not say
    expires_at: Instant | None = None
    rate_per_s: int | None = None  # calls; the usual if not said
    cap: tuple[int, str] | None = None  # what it may spend, and per what, when it was made
    old_hash: str | None = None  # of the secret before
    overlap_s: int = 0  # for how long that counts still, from when the key was changed
    node: str | None = None  # of one that may work: which node it is, as `pool/node` or `pool/*`

    @property
    def capped(self) -> bool:
        """Whether the key has its own budgets, as the user with its id."""
        return self.cap is not None

    def allows(self, scope: str) -> bool:
        """Whether the key has a scope."""
        return Scope.OPERATOR in self.scopes or scope in self.scopes

    def is_node(self, pool: str, node: str) -> bool:
        """Whether the key may act for a node."""
        named = Scope.WORK in self.scopes and self.node in (f"{pool}/{node}", f"{pool}/*")
        return named or Scope.OPERATOR in self.scopes

    def opens_with(self, hash: str, now: Instant, changed_at: Instant) -> bool:
        """Whether a secret with that hash is valid now, if the key was last changed at `at`."""
        if self.expires_at is not None and now >= self.expires_at:
            return False
        if hmac.compare_digest(self.hash, hash):
            return True
        late = now >= changed_at + self.overlap_s * SECOND
        return not late and hmac.compare_digest(self.old_hash or "", hash)

    def rotated(self, hash: str, overlap_s: int) -> Self:
        """The key with a new secret; the previous one stays valid for this long."""
        return replace(self, hash=hash, old_hash=self.hash, overlap_s=overlap_s)

    @property
    def body(self) -> str:
        """The key as the body of a setting."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def of(cls, body: str) -> Self:
        """The key from the body of a setting."""
        fields: dict[str, Any] = json.loads(body)
        cap = fields.get("cap")
        return cls(
            **{
                **fields,
                "scopes": tuple(fields["scopes"]),
                "cap": None if cap is None else tuple(cap),
            }
        )


@dataclass(frozen=True, slots=True)
class PresentedKey:
    """A key as a client sends it."""

    org: str
    id: str
    hash: str  # of its secret


def secret_for(secret: Secret, org: str, request: str) -> bytes:
    """The secret for a request that creates a key; the same at each retry."""
    return secret.derived("key", org, request)


def hash_of(secret: bytes) -> str:
    """The stored hash of a secret. The secret is random, so a fast hash is enough."""
    return sha256(secret).hexdigest()


def format_key(org: str, id: str, secret: bytes) -> str:
    """The full text of a key; returned only to the client that requested it."""
    body = (
        _base62(UUID(org).int, _UUID_LONG)
        + _base62(UUID(id).int, _UUID_LONG)
        + _base62(int.from_bytes(secret, "big"), _SECRET_LONG)
    )
    return PREFIX + body + _checksum(body)


@lru_cache(maxsize=10_000)
def parse_key(text: str) -> PresentedKey | None:
    """Parse a key; None if the text is not a key. Cached, because each call needs it."""
    body, check = text[len(PREFIX) : -_CHECK_LONG], text[-_CHECK_LONG:]
    if len(text) != _LONG or not text.startswith(PREFIX) or check != _checksum(body):
        return None
    try:
        org = UUID(int=_number(body[:_UUID_LONG]))
        id = UUID(int=_number(body[_UUID_LONG : 2 * _UUID_LONG]))
        secret = _number(body[2 * _UUID_LONG :]).to_bytes(32, "big")
    except (ValueError, OverflowError):
        return None
    return PresentedKey(str(org), str(id), hash_of(secret))


def _checksum(body: str) -> str:
    return _base62(crc32(body.encode()), _CHECK_LONG)


def _base62(number: int, long: int) -> str:
    digits = ""
    while number:
        number, digit = divmod(number, 62)
        digits = _DIGITS[digit] + digits
    return digits.rjust(long, _DIGITS[0])


def _number(digits: Iterable[str]) -> int:
    number = 0
    for digit in digits:
        number = number * 62 + _DIGITS.index(digit)
    return number
