"""Ids that follow from others are the same on every replay; those we make tell what was asked."""

from itertools import combinations, product
from uuid import RFC_4122, UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar.core.ids import derive_id, differ_only_in_time, make_id

ORG = "0197a3b2-5c6d-7e8f-9a0b-1c2ddeadbeef"
AT_MS = 1_767_225_600_123
ZEROS = "0" * 8
LAST_MS = 2**48 - 1  # of what a UUIDv7 can tell

names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)
orgs = names | st.uuids().map(str)
instants = st.integers(0, LAST_MS)


def test_a_derived_id_is_the_same_forever() -> None:
    """A ledger that is rebuilt years later names what follows alike (L1)."""
    assert "3ebf6e01-9171-5e66-88fa-5a1bd212cad4" == derive_id("hold-1", "attempt-1")


def test_derived_ids_differ_by_parent_and_by_label() -> None:
    """Two things never share a derived id."""
    ids = {derive_id(parent, label) for parent, label in product("abc", "xyz")}

    assert 9 == len(ids)


def test_a_made_id_is_the_same_forever() -> None:
    """A process of another release gives the same one to the same key (L7)."""
    assert "019b76da-a87b-7050-b6a0-a1cddeadbeef" == make_id(ORG, "key", "hold", AT_MS)
    assert "019b76da-a87b-74bc-9b56-4e707cbf2370" == make_id("acme", "key", "hold", AT_MS)


@given(orgs, names, names, instants)
def test_a_made_id_is_a_uuid_of_version_seven(org: str, key: str, label: str, at_ms: int) -> None:
    """With its time in front, as others sort it."""
    made = UUID(make_id(org, key, label, at_ms))

    assert (7, RFC_4122) == (made.version, made.variant)
    assert at_ms == made.int >> 80
    assert str(made) == make_id(org, key, label, at_ms)


@given(st.uuids().map(str).filter(lambda org: org[-8:] != ZEROS), names, names, instants)
def test_a_made_id_ends_as_the_id_of_its_org(org: str, key: str, label: str, at_ms: int) -> None:
    """So an operator, who works for all orgs, finds the one it belongs to."""
    assert org[-8:] == make_id(org, key, label, at_ms)[-8:]


def test_ids_of_an_org_whose_id_ends_in_zeros_have_random_endings() -> None:
    """Many ids that were not made at random end in zeros: the ending would not identify the org."""
    org = ORG[:-8] + ZEROS
    endings = {make_id(org, key, "hold", AT_MS)[-8:] for key in ("a", "b", "c")}

    assert 3 == len(endings - {ZEROS})


@pytest.mark.parametrize("org", [ORG.upper(), ORG[1:], f"{ORG}0", ORG.replace("-", ""), "acme", ""])
def test_an_org_that_is_no_uuid_leaves_its_ids_to_chance(org: str) -> None:
    """The ending is told by the whole of what was asked, not by the end of a name."""
    endings = {make_id(org, key, "hold", AT_MS)[-8:] for key in ("a", "b", "c")}

    assert 3 == len(endings)
    assert org[-8:].lower() not in endings


@given(orgs, names, names, instants, instants)
def test_the_time_alone_tells_two_makings_apart(
    org: str, key: str, label: str, first: int, second: int
) -> None:
    """Asked again later, the same is known for the same (L7)."""
    one, other = make_id(org, key, label, first), make_id(org, key, label, second)

    assert differ_only_in_time(one, other)
    assert (one == other) is (first == second)
    assert (one < other) is (first < second)


@given(st.tuples(orgs, names, names), st.tuples(orgs, names, names), instants, instants)
def test_another_org_key_or_field_gives_another_id(
    one: tuple[str, str, str], other: tuple[str, str, str], first: int, second: int
) -> None:
    """In another org, with another key, or for another field of the request."""
    made = make_id(*one, first), make_id(*other, second)

    assert differ_only_in_time(*made) is (one == other)


def test_makings_differ_by_org_key_and_label() -> None:
    """Also where the words run together differently."""
    asked = [*product((ORG, "acme"), ("a", "b"), ("hold", "grant")), ("ac", "mea", "hold")]
    made = [make_id(org, key, label, AT_MS) for org, key, label in asked]

    assert not any(differ_only_in_time(*two) for two in combinations(made, 2))


@pytest.mark.parametrize("at_ms", [LAST_MS + 1, 2**60 + 5])
def test_a_time_too_large_for_an_id_is_truncated(at_ms: int) -> None:
    """It is still a valid id, which differs only in its time."""
    made = make_id(ORG, "key", "hold", at_ms)

    assert made == make_id(ORG, "key", "hold", at_ms & LAST_MS)
