"""Ids: opaque texts. The service makes UUIDv7, outside the core."""

import re
from hashlib import sha256
from typing import Final, NewType, TypeAlias
from uuid import NAMESPACE_OID, UUID, uuid5

OrgId: TypeAlias = str
PoolId: TypeAlias = str
NodeId = NewType("NodeId", str)
AccountId = NewType("AccountId", str)
UserId = NewType("UserId", str)
GrantId = NewType("GrantId", str)
HoldId = NewType("HoldId", str)
ChargeId = NewType("ChargeId", str)
DebtId = NewType("DebtId", str)
BudgetId = NewType("BudgetId", str)
RecurrenceId = NewType("RecurrenceId", str)
JobId = NewType("JobId", str)
SettingId = NewType("SettingId", str)
PriceVersionId = NewType("PriceVersionId", str)

DEPLOYMENT: Final = "00000000-0000-0000-0000-000000000000"  # the org of the operators

_UUID_TEXT: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TIME: Final = len("xxxxxxxx-xxxx")  # of a UUIDv7: the milliseconds


def make_id(org: str, key: str, label: str, at_ms: int) -> str:
    """A UUIDv7 for the entity that a caller's idempotency key creates in an org.

    A retry at another time gives another id; `differ_only_in_time` recognises the two. The id ends
    with the last 8 digits of the org's id, if that is a UUID whose ending is not zero: so the org
    of an id can be looked up.
    """
    digest = sha256(f"{org}\0{key}\0{label}".encode()).digest()
    bits = int.from_bytes(digest[:16], "big")
    own = int(org[-8:], 16) if _UUID_TEXT.fullmatch(org) else 0
    ending = own or bits & 0xFFFFFFFF
    rand_a, rand_b = bits >> 116, (bits >> 54) & 0x3FFFFFFF
    low = 0b10 << 62 | rand_b << 32 | ending
    return str(UUID(int=(at_ms & 0xFFFFFFFFFFFF) << 80 | 0x7 << 76 | rand_a << 64 | low))


def differ_only_in_time(first: str, second: str) -> bool:
    """Whether two made ids differ in nothing but their time."""
    return first[_TIME:] == second[_TIME:]


def derive_id(parent: str, label: str) -> str:
    """The id of an entity that the rules derive from `parent`: the same on every replay."""
    return str(uuid5(NAMESPACE_OID, f"{parent}/{label}"))


def derive_id_in_org(parent: str, label: str) -> str:
    """A derived id that keeps the ending of its parent, if that is a UUID: both name the org."""
    derived = derive_id(parent, label)
    return derived[:-8] + parent[-8:] if _UUID_TEXT.fullmatch(parent) else derived
