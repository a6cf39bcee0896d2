"""API keys by themselves: when one opens, and what can be one at all (N4)."""

from contextlib import nullcontext
from dataclasses import replace

import pytest

from bursar.core.instant import SECOND
from bursar.service.key_management import (
    CapExceeded,
    KeyExceeded,
    KeyInvalid,
    LifetimeExceeded,
    RateExceeded,
    ScopeExceeded,
    check_node_key,
    check_rights,
)
from bursar.service.keys import Key, PresentedKey, Scope, format_key, hash_of, parse_key
from tests.support.builders import T0

ORG, ID = "01930f3c-7a10-7c3e-9b5e-0d2f4c6a8b1d", "01930f3c-7a10-7c3e-9b5e-0d2f4c6a8b1e"
FIRST, SECOND_ONE = bytes(range(32)), bytes(range(1, 33))

MANAGER = Key(name="m", hash="", scopes=(Scope.MANAGE, Scope.READ), account="a")


def key(expires_at: int | None = None) -> Key:
    """A key with the first secret."""
    return Key(
        name="k", hash=hash_of(FIRST), scopes=(Scope.READ,), account="a", expires_at=expires_at
    )


def test_a_key_is_valid_until_just_before_its_end() -> None:
    """As everywhere, the end is not in it; without one it opens for ever."""
    ends = key(expires_at=T0 + SECOND)

    assert ends.opens_with(hash_of(FIRST), T0 + SECOND - 1, T0)
    assert not ends.opens_with(hash_of(FIRST), T0 + SECOND, T0)
    assert key().opens_with(hash_of(FIRST), T0 + 10**15, T0)
    assert not key().opens_with(hash_of(SECOND_ONE), T0, T0)


def test_a_replaced_secret_is_valid_until_just_before_the_end_of_the_overlap() -> None:
    """The new one counts at once and afterwards, the old one only for as long as was said."""
    rotated = key().rotated(hash_of(SECOND_ONE), overlap_s=60)
    over = T0 + 60 * SECOND

    assert rotated.opens_with(hash_of(FIRST), over - 1, T0)
    assert not rotated.opens_with(hash_of(FIRST), over, T0)
    assert rotated.opens_with(hash_of(SECOND_ONE), T0, T0)
    assert rotated.opens_with(hash_of(SECOND_ONE), over, T0)


def test_no_secret_of_an_ended_key_is_valid() -> None:
    """Neither the one it has nor the one before."""
    rotated = key(expires_at=T0 + SECOND).rotated(hash_of(SECOND_ONE), overlap_s=60)

    for secret in (FIRST, SECOND_ONE):
        assert rotated.opens_with(hash_of(secret), T0 + SECOND - 1, T0)
        assert not rotated.opens_with(hash_of(secret), T0 + SECOND, T0)


def test_a_key_is_read_as_it_was_shown() -> None:
    """Where to look, and the hash of the secret; the secret itself is not kept."""
    assert PresentedKey(ORG, ID, hash_of(FIRST)) == parse_key(format_key(ORG, ID, FIRST))


@pytest.mark.parametrize("place", [0, 3, 4, 26, 48, 60, 90, 96])
def test_a_mistyped_key_is_not_valid(place: int) -> None:
    """Its checksum tells, without asking anybody."""
    right = format_key(ORG, ID, FIRST)
    other = "1" if right[place] == "0" else "0"

    assert parse_key(right[:place] + other + right[place + 1 :]) is None
    assert parse_key(right[:place] + right[place + 1 :]) is None
    assert parse_key(right[:place] + other + right[place:]) is None


@pytest.mark.parametrize(
    ("creator", "scopes", "rate_per_s", "expires_at", "exceeded"),
    [
        (MANAGER, (Scope.READ,), None, None, None),
        (MANAGER, (Scope.SPEND,), None, None, ScopeExceeded),
        (replace(MANAGER, cap=(1, "day")), (Scope.READ,), None, None, CapExceeded),
        (MANAGER, (Scope.READ,), 500, None, None),
        (MANAGER, (Scope.READ,), 501, None, RateExceeded),
        (replace(MANAGER, rate_per_s=5), (Scope.READ,), None, None, RateExceeded),
        (replace(MANAGER, rate_per_s=5), (Scope.READ,), 5, None, None),
        (replace(MANAGER, expires_at=T0), (Scope.READ,), None, T0, None),
        (replace(MANAGER, expires_at=T0), (Scope.READ,), None, T0 + 1, LifetimeExceeded),
        (replace(MANAGER, expires_at=T0), (Scope.READ,), None, None, LifetimeExceeded),
    ],
)
def test_key_creates_no_key_with_more_rights(
    creator: Key,
    scopes: tuple[str, ...],
    rate_per_s: int | None,
    expires_at: int | None,
    exceeded: type[KeyExceeded] | None,
) -> None:
    """A new key has no scope, rate or lifetime beyond its creator's, and escapes no cap (N4)."""
    with nullcontext() if exceeded is None else pytest.raises(exceeded):
        check_rights(creator, scopes, rate_per_s, expires_at, is_operator=False)


def test_only_operators_create_the_key_of_a_node_and_it_does_nothing_else() -> None:
    operator = replace(MANAGER, scopes=(Scope.OPERATOR,))
    check_node_key(operator, [Scope.WORK], "main/n1", is_for_node_only=True)
    check_node_key(MANAGER, [Scope.READ], None, is_for_node_only=False)

    with pytest.raises(ScopeExceeded):
        check_node_key(MANAGER, [Scope.WORK], "main/n1", is_for_node_only=True)
    for scopes, node, is_for_node_only, field in (
        ([Scope.WORK], None, True, "node"),
        ([Scope.READ], "main/n1", True, "node"),
        ([Scope.WORK, Scope.READ], "main/n1", True, "scopes"),
        ([Scope.WORK], "main/n1", False, "scopes"),
    ):
        with pytest.raises(KeyInvalid) as raised:
            check_node_key(operator, scopes, node, is_for_node_only=is_for_node_only)
        assert field == raised.value.field
