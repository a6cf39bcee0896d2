"""Dividing an amount over grants, in order, under caps (L4, L9)."""

from bursar.core.ids import AccountId, GrantId
from bursar.core.instant import NEVER
from bursar.core.ledger.allocation import Source, fill, fill_beyond_caps, take_first
from bursar.core.ledger.values import CreditKind, Grant, GrantPolicy, GrantTerms
from bursar.core.money import PPM


def source(grant: str, room: int, *, counted: int = 0, share: int = PPM) -> Source:
    """A grant of which so much can be had."""
    terms = GrantTerms(
        id=GrantId(grant),
        account=AccountId("org"),
        kind=CreditKind.PROMO,
        source="",
        priority=1,
        issued_at=0,
        starts_at=0,
        expires_at=NEVER,
        amount=1_000,
        policy=GrantPolicy(max_share_ppm=share),
    )
    return Source(Grant(terms=terms, available=1_000), room, counted)


HALF = PPM // 2


def test_sources_are_used_up_in_their_order() -> None:
    """Each as far as it has room, and no further than what is missing (L4)."""
    sources = [source("a", 3), source("empty", 0), source("b", 4), source("c", 9)]

    assert ({"a": 3, "b": 4, "c": 1}, 0) == fill(sources, 8, total=8)
    assert ({"a": 3, "b": 4, "c": 9}, 2) == fill(sources, 18, total=18)
    assert ({}, 0) == fill(sources, 0, total=8)


def test_no_source_is_looked_at_once_nothing_is_missing() -> None:
    """So a million grants cost what the first few do (L4)."""
    sources = iter([source("a", 3), source("b", 4)])

    assert ({"a": 3}, 0) == fill(sources, 3, total=3)
    assert "b" == next(sources).grant.terms.id


def test_a_cap_is_a_share_of_the_total_less_what_counts_already() -> None:
    """Rounded down; never less than nothing (L9)."""
    sources = [source("a", 9, counted=2, share=HALF), source("b", 9, counted=9, share=HALF)]

    assert ({"a": 1}, 6) == fill(sources, 7, total=7)
    assert ({"a": 2}, 5) == fill(sources, 7, total=8)


def test_a_remainder_beyond_share_caps_is_still_filled() -> None:
    """In order, as far as there is room beyond the first pass (L6)."""
    halves = [source("a", 10, share=HALF), source("b", 10, share=HALF)]
    assert {"a": 4, "b": 3} == fill_beyond_caps(halves, 7, total=7)

    small = [source("a", 3, share=HALF), source("b", 10, share=HALF)]
    assert {"a": 3, "b": 4} == fill_beyond_caps(small, 7, total=7)

    tiny = [source("a", 10, share=1), source("b", 2, share=1), source("c", 1, share=HALF)]
    assert {"a": 9, "c": 1} == fill_beyond_caps(tiny, 10, total=10)
    assert {"a": 10, "b": 2, "c": 1} == fill_beyond_caps(tiny, 13, total=13)
    assert ["c", "a"] == list(fill_beyond_caps(tiny, 11, total=11)), "none with nothing"


def test_the_front_of_parts_makes_up_an_amount() -> None:
    """The first parts, the last of them perhaps cut; none that is nothing."""
    parts = {GrantId("a"): 3, GrantId("none"): 0, GrantId("b"): 4, GrantId("c"): 5}

    assert {"a": 3, "b": 2} == take_first(parts, 5)
    assert {"a": 3, "b": 4} == take_first(parts, 7)
    assert {} == take_first(parts, 0)
    assert {"a": 3, "b": 4, "c": 5} == take_first(parts, 99)
