"""Policies as people write them down: read, told again, and refused with the place (S3, S4)."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar.core.instant import DAY, HOUR, MINUTE, SECOND
from bursar.core.scheduling.model.policy import (
    ENTERPRISE,
    FREE,
    USER_ORDERS,
    PoolPolicy,
    Share,
    Tier,
)
from bursar.core.scheduling.model.policy_file import (
    PolicyFileError,
    build,
    format_span,
    parse_policy,
    parse_span,
    policy_to_dict,
    require_mapping,
    with_location,
)
from bursar.core.value import replace

SHARES: Any = st.builds(
    Share,
    weight=st.integers(1, 1_000_000),
    floor=st.dictionaries(st.sampled_from(("*", "H100", "L4")), st.integers(0, 2**32)).map(
        lambda found: tuple(sorted(found.items()))
    ),
    ceiling=st.sampled_from(((), (("*", 3),))),
    jobs_max=st.none() | st.integers(0, 9),
)
TIERS: Any = st.builds(
    Tier,
    name=st.sampled_from(("gold", "iron")),
    weight=st.integers(1, 9),
    start_target=st.integers(1, 2**53),
    ages_after=st.integers(1, 2**53),
    preempts=st.sampled_from(((), ("tin",))),
)
POLICIES: Any = st.builds(
    PoolPolicy,
    tiers=st.tuples(TIERS).map(lambda tiers: (*tiers, Tier(name="tin"))),
    shares=st.dictionaries(st.sampled_from((("gold", "acme"), ("tin", "a", "user b"))), SHARES).map(
        lambda found: tuple(sorted(found.items(), key=lambda one: one[0]))
    ),
    inside_a_user=st.sampled_from(sorted(USER_ORDERS)),
    half_life=st.integers(1, 30),
    ahead=st.integers(0, 30 * DAY),
    preemption_grace=st.integers(0, DAY),
    aged_part=st.integers(1, 9),
)


@given(POLICIES)
def test_a_policy_that_is_written_and_parsed_is_the_same(policy: PoolPolicy) -> None:
    """Whatever can be set is in its words."""
    assert policy == parse_policy(policy_to_dict(policy))


def test_an_empty_file_is_the_shipped_policy() -> None:
    assert PoolPolicy() == parse_policy({})


def test_tiers_are_changed_by_name_or_listed_anew() -> None:
    enterprise, paid, free = parse_policy({"tiers": {"paid": {"weight": 9}}}).tiers
    assert (ENTERPRISE, 9, FREE) == (enterprise, paid.weight, free)

    [gold] = parse_policy({"tiers": [{"name": "gold", "start_target": "2m"}]}).tiers
    assert Tier(name="gold", start_target=2 * MINUTE) == gold


def test_one_text_is_a_list_of_one() -> None:
    words = {"tiers": {"paid": {"preempts": "free"}}}

    assert ("free",) == parse_policy(words).tiers[1].preempts


@pytest.mark.parametrize(
    ("span", "text"),
    [
        (0, "0s"),
        (30 * SECOND, "30s"),
        (90 * SECOND, "90s"),
        (2 * MINUTE, "2m"),
        (36 * HOUR, "36h"),
        (7 * DAY, "7d"),
        (1, "0.000001s"),
        (1_500_000, "1.5s"),
    ],
)
def test_spans_are_formatted_as_they_are_parsed(span: int, text: str) -> None:
    assert text == format_span(span)
    assert span == parse_span(text, "here")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"policy": []}, "policy is a mapping"),
        ({"policy": {"looks": 1}}, "policy: unknown key: looks"),
        ({"policy": {"reservations": -1}}, "policy: reservations is 0 to 1000"),
        ({"policy": {"preemptions_max": "3"}}, "preemptions_max is a whole number"),
        ({"policy": {"ahead": True}}, "policy.ahead: True is no span"),
        ({"tiers": 3}, "tiers is a mapping"),
        ({"tiers": [{}]}, r"tiers\[0\]: name is required"),
        ({"tiers": [{"name": ""}]}, r"tiers\[0\]: tier is 1 to"),
        ({"tiers": [{"name": "a", "size": 1}]}, r"tiers\[0\]: unknown key: size"),
        ({"tiers": {"paid": {"name": "b"}}}, "tiers.paid: unknown key: name"),
        ({"tiers": {"paid": {"preempts": 3}}}, "tiers.paid.preempts is a list"),
        ({"tiers": []}, "tiers: at least one is required"),
        ({"tiers": [{"name": "a"}, {"name": "a"}]}, "tiers: a occurs more than once"),
        ({"shares": {"paid/": {}}}, "tier/org"),
        ({"shares": {"paid/a": {}, "paid/ a": {}}}, "shares: paid/a occurs more than once"),
        ({"shares": {"paid/a": {"jobs_max": True}}}, "jobs_max is a whole number"),
    ],
)
def test_an_invalid_policy_is_refused_with_its_location(words: dict[str, Any], told: str) -> None:
    with pytest.raises(PolicyFileError, match=told):
        parse_policy(words)


def test_a_ceiling_of_jobs_may_be_left_out_by_name() -> None:
    [(path, share)] = parse_policy({"shares": {"paid / acme": {"jobs_max": None}}}).shares

    assert (("paid", "acme"), replace(Share(), jobs_max=None)) == (path, share)


def test_required_fields_must_be_set() -> None:
    with pytest.raises(PolicyFileError, match="here: name is required"):
        build(Tier, {"weight": 1}, "here", {})


def test_an_error_names_the_innermost_location() -> None:
    with pytest.raises(PolicyFileError, match=r"^inside is a mapping"):
        with_location("outside", lambda: require_mapping(3, "inside"))
