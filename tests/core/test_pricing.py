"""The price shown is the price charged: which version, and which of its rates, applies when."""

from itertools import combinations, permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar.core.ids import PriceVersionId
from bursar.core.instant import NEVER, Instant
from bursar.core.money import AMOUNT_MAX, CREDIT, Micros
from bursar.core.pricing import (
    PriceBook,
    Priced,
    PriceTerms,
    PriceVersion,
    Rate,
    attempt_rate,
    hit_ppm_of,
    price_of,
    rate_in,
)
from bursar.core.value import replace

HERE = PriceTerms(region="eu", tier="pro", priority_class="batch")
NO_OVERRIDES = PriceBook()


def version(name: str, effective_at: Instant = 0, *rates: Rate) -> PriceVersion:
    """A price version called `name`."""
    return PriceVersion(id=PriceVersionId(name), effective_at=effective_at, rates=rates)


def rate(micros: Micros, gpu_type: str = "H100", **named: str) -> Rate:
    """A rate that leaves open what is not named."""
    return Rate(gpu_type=gpu_type, micros_per_gpu_hour=micros, **named)


def book(*versions: PriceVersion) -> PriceBook:
    """A book to which `versions` were added in that order."""
    made = PriceBook()
    for each in versions:
        made = made.with_version(each)
    return made


# From the most specific to the least: the order that `rate_in` promises.
BY_PRECEDENCE = (
    rate(1, region="eu", tier="pro", priority_class="batch"),
    rate(2, region="eu", tier="pro"),
    rate(3, region="eu", priority_class="batch"),
    rate(4, tier="pro", priority_class="batch"),
    rate(5, region="eu"),
    rate(6, tier="pro"),
    rate(7, priority_class="batch"),
    rate(8),
)


@pytest.mark.parametrize(("one", "other"), list(combinations(BY_PRECEDENCE, 2)))
def test_the_more_specific_rate_applies(one: Rate, other: Rate) -> None:
    """More named fields win; among as many, region over tier over class (B1)."""
    for rates in permutations((one, other)):
        assert one.micros_per_gpu_hour == rate_in(version("v", 0, *rates), "H100", HERE)


@given(st.sets(st.sampled_from(BY_PRECEDENCE)))
def test_of_any_rates_that_match_the_most_specific_applies(rates: set[Rate]) -> None:
    """Precedence is total: any set of matching rates has one winner (B1)."""
    want = min((each.micros_per_gpu_hour for each in rates), default=None)
    listed = sorted(rates, key=lambda each: -each.micros_per_gpu_hour)

    assert want == rate_in(version("v", 0, *listed), "H100", HERE)


@pytest.mark.parametrize(
    "terms",
    [
        PriceTerms(region="us", tier="pro", priority_class="batch"),
        PriceTerms(region="eu", tier="free", priority_class="batch"),
        PriceTerms(region="eu", tier="pro", priority_class="prod"),
        PriceTerms(region=None, tier="pro", priority_class="batch"),
        PriceTerms(),
    ],
)
def test_a_rate_that_names_something_else_does_not_apply(terms: PriceTerms) -> None:
    """A rate matches only when all it names is so, and unknown terms match open rates only (B1)."""
    narrow = rate(1, region="eu", tier="pro", priority_class="batch")

    assert None is rate_in(version("v", 0, narrow), "H100", terms)
    assert 8 == rate_in(version("v", 0, narrow, rate(8)), "H100", terms)


def test_a_rate_is_for_its_gpu_type_alone() -> None:
    """Types are priced apart, and a type without a rate has no price (B1)."""
    both = version("v", 0, rate(5, "H100"), rate(3, "A100"))

    assert 5 == rate_in(both, "H100", HERE)
    assert 3 == rate_in(both, "A100", HERE)
    assert None is rate_in(both, "L4", HERE)
    assert None is rate_in(version("empty"), "H100", HERE)


def test_a_price_of_zero_is_a_price() -> None:
    """Free is not the same as unknown, and does not fall through to a dearer rate (B1)."""
    free = version("v", 0, rate(0, tier="pro"), rate(9))

    assert 0 == rate_in(free, "H100", HERE)
    assert Priced(version=PriceVersionId("own"), rate=0) == price_of(
        book(version("all", 0, rate(9))), book(version("own", 0, rate(0))), "H100", HERE, 5
    )


@pytest.mark.parametrize(
    ("at", "want"),
    [(99, None), (100, "a"), (101, "a"), (199, "a"), (200, "c"), (201, "c"), (300, "d")],
)
def test_a_version_is_in_force_from_its_instant_until_the_next(at: Instant, want: str) -> None:
    """Of two that are effective from the same instant the last to arrive wins (B1)."""
    prices = book(version("d", 300), version("b", 200), version("a", 100), version("c", 200))
    in_force = prices.in_force(at)

    assert ["a", "b", "c", "d"] == [each.id for each in prices.versions]
    assert want == (in_force.id if in_force else None)


@given(effective=st.lists(st.integers(0, 6), max_size=8), at=st.integers(-1, 7))
def test_the_version_in_force_is_the_latest_that_has_begun(effective: list[int], at: int) -> None:
    """In force is the largest (effective_at, arrival) not after the instant (B1)."""
    prices = book(*(version(str(n), instant) for n, instant in enumerate(effective)))
    begun = [(instant, n) for n, instant in enumerate(effective) if instant <= at]
    in_force = prices.in_force(at)

    assert (str(max(begun)[1]) if begun else None) == (in_force.id if in_force else None)


def test_a_version_is_found_by_its_id_whether_in_force_or_not() -> None:
    """A hold can name a version that has long been followed by others (B1)."""
    old, new = version("old", 100), version("new", 200)
    prices = book(old, new)

    assert old is prices.version(PriceVersionId("old"))
    assert new is prices.version(PriceVersionId("new"))
    assert None is prices.version(PriceVersionId("none"))


def test_adding_a_version_leaves_the_book_as_it_was() -> None:
    """A book is a value: who holds the old one sees the old prices."""
    before = book(version("a", 100))
    after = before.with_version(version("b", 50))

    assert ["a"] == [each.id for each in before.versions]
    assert ["b", "a"] == [each.id for each in after.versions]


def test_an_id_names_one_version() -> None:
    """A second version of the same id is refused, whenever it is effective (B1)."""
    prices = book(version("a", 100), version("b", 200))
    for effective_at in (50, 100, 300):
        with pytest.raises(ValueError, match=r"^two versions of a price book have the same id$"):
            prices.with_version(version("a", effective_at))


def test_a_book_is_in_order() -> None:
    """A book out of order cannot exist; versions of the same instant may stand side by side."""
    same = (version("a", 200), version("b", 200))

    assert same == PriceBook(versions=same).versions
    with pytest.raises(
        ValueError, match=r"^the versions of a price book are in order of their effective_at$"
    ):
        PriceBook(versions=(version("a", 201), version("b", 200)))


@pytest.mark.parametrize("one", BY_PRECEDENCE)
def test_a_version_has_one_rate_for_the_same(one: Rate) -> None:
    """Two rates with the same key are refused, even at the same price (B1)."""
    named = ", ".join(part for part in one.key if part)
    with pytest.raises(ValueError, match=f"^two rates have the same fields: {named}$"):
        version("v", 0, one, rate(99, "A100"), one)


def test_versions_with_the_same_rates_are_equal() -> None:
    """Equality, hash and text are of what was said, not of what is kept to find it fast."""
    one, other = version("v", 0, rate(5)), version("v", 0, rate(5))

    assert one == other
    assert hash(one) == hash(other)
    assert version("v", 0, rate(6)) != one
    assert "_by_key" not in repr(one)


@pytest.mark.parametrize("micros", [-1, AMOUNT_MAX + 1])
def test_a_rate_is_an_amount(micros: Micros) -> None:
    """A negative rate, or one that no amount can carry, is refused (L14)."""
    told = f"^micros_per_gpu_hour is 0 to 9007199254740991, not {micros}$"
    with pytest.raises(ValueError, match=told):
        rate(micros)
    with pytest.raises(TypeError, match=r"^micros_per_gpu_hour is a whole number, not 1\.5$"):
        rate(1.5)  # type: ignore[arg-type]
    assert 0 == rate(0).micros_per_gpu_hour
    assert AMOUNT_MAX == rate(AMOUNT_MAX).micros_per_gpu_hour


@pytest.mark.parametrize("field", ["gpu_type", "region", "tier", "priority_class"])
def test_a_rate_names_something_or_leaves_it_open(field: str) -> None:
    """Empty text is neither a name nor 'any' (B1)."""
    with pytest.raises(ValueError, match=f"^{field} is 1 to 255 bytes long, not 0$"):
        rate(5, **{field: ""})


def test_a_version_has_a_name_and_a_time() -> None:
    """So that it can be found again, and put in order (B1)."""
    for wrong, why in (
        ({"id": ""}, "^id is 1 to 255 bytes long"),
        ({"effective_at": -1}, "^effective_at is 0 to"),
        ({"effective_at": NEVER + 1}, "^effective_at is 0 to"),
    ):
        with pytest.raises(ValueError, match=why):
            PriceVersion(**{"id": "v", "effective_at": 0, "rates": (), **wrong})  # type: ignore[arg-type]


def test_an_override_goes_before_the_book_of_the_deployment() -> None:
    """An organisation's matching override in force wins, dearer and less specific too (B1)."""
    deployment = book(version("all", 0, rate(5, region="eu"), rate(3, "A100")))
    overrides = book(version("own", 100, rate(7)))

    def price(gpu_type: str, at: Instant) -> Priced | None:
        return price_of(deployment, overrides, gpu_type, HERE, at)

    assert Priced(version=PriceVersionId("all"), rate=5) == price("H100", 99)
    assert Priced(version=PriceVersionId("own"), rate=7) == price("H100", 100)
    assert Priced(version=PriceVersionId("all"), rate=3) == price("A100", 100)
    assert None is price("L4", 100)
    assert None is price("H100", -1)


def test_an_override_that_was_followed_by_an_empty_version_is_over() -> None:
    """Only the version in force overrides; an earlier one does not shine through (B1)."""
    deployment = book(version("all", 0, rate(5)))
    overrides = book(version("own", 100, rate(7)), version("end", 200))

    assert Priced(version=PriceVersionId("own"), rate=7) == price_of(
        deployment, overrides, "H100", HERE, 199
    )
    assert Priced(version=PriceVersionId("all"), rate=5) == price_of(
        deployment, overrides, "H100", HERE, 200
    )


def test_a_price_depends_on_every_term() -> None:
    """Region, tier and class each reach the rate that names them (B1)."""
    every = [
        rate(n + 1, region=region, tier=tier, priority_class=priority_class)
        for n, (region, tier, priority_class) in enumerate(product("ab", "cd", "ef"))
    ]
    deployment = book(version("v", 0, *every))
    for each in every:
        terms = PriceTerms(region=each.region, tier=each.tier, priority_class=each.priority_class)
        want = Priced(version=PriceVersionId("v"), rate=each.micros_per_gpu_hour)

        assert want == price_of(deployment, NO_OVERRIDES, "H100", terms, 0)


@pytest.mark.parametrize(
    ("held", "in_force", "want"),
    [
        (5 * CREDIT, 4 * CREDIT, 4 * CREDIT),
        (5 * CREDIT, 5 * CREDIT, 5 * CREDIT),
        (5 * CREDIT, 6 * CREDIT, 5 * CREDIT),
        (5 * CREDIT, 0, 0),
        (0, 6 * CREDIT, 0),
        (5 * CREDIT, None, 5 * CREDIT),
    ],
)
def test_an_attempt_pays_what_it_held_or_less(
    held: Micros, in_force: Micros | None, want: Micros
) -> None:
    """The held version's rate, or the one in force at the start if that is cheaper (B1)."""
    assert want == attempt_rate(held, in_force)


# Results that are shared


def hits(name: str, ppm: int | None, effective_at: Instant = 0) -> PriceVersion:
    """A version that says what a shared result costs, or does not."""
    given = PriceVersionId(name)
    return PriceVersion(id=given, effective_at=effective_at, rates=(), cache_hit_ppm=ppm)


@pytest.mark.parametrize(
    ("deployment", "own", "ppm"),
    [
        (book(), book(), 0),
        (book(hits("d", None)), book(hits("o", None)), 0),
        (book(hits("d", 7)), book(), 7),
        (book(hits("d", 7)), book(hits("o", None)), 7),
        (book(hits("d", 7)), book(hits("o", 0)), 0),
        (book(hits("d", 7)), book(hits("o", 1_000_000)), 1_000_000),
        (book(hits("d", 7)), book(hits("o", 9), hits("later", None, 5)), 7),
        (book(hits("d", 7), hits("later", 8, 11)), book(), 7),
    ],
)
def test_the_orgs_price_of_a_cached_result_overrides_the_deployments(
    deployment: PriceBook, own: PriceBook, ppm: int
) -> None:
    """By the versions in force; 0 if neither sets it (S13)."""
    assert ppm == hit_ppm_of(deployment, own, 10)


@pytest.mark.parametrize("ppm", [-1, 1_000_001])
def test_a_shared_result_costs_a_part_of_its_run(ppm: int) -> None:
    with pytest.raises(ValueError, match="cache_hit_ppm"):
        hits("v", ppm)


def test_version_keeps_the_rates_that_it_does_not_name() -> None:
    """Only if it says so, and of the version before it (B1)."""
    before = PriceVersion(
        id=PriceVersionId("a"),
        effective_at=0,
        rates=(rate(5, "H100"), rate(3, "A100"), rate(2, "A100", region="eu")),
        cache_hit_ppm=7,
    )
    whole = PriceVersion(id=PriceVersionId("b"), effective_at=1, rates=(rate(4, "A100"),))
    after = replace(whole, keeps_others=True)

    assert whole == whole.after(before)
    assert replace(
        after,
        rates=(rate(5, "H100"), rate(4, "A100"), rate(2, "A100", region="eu")),
        cache_hit_ppm=7,
    ) == after.after(before)
    assert 0 == replace(after, cache_hit_ppm=0).after(before).cache_hit_ppm


def keeping(name: str, effective_at: Instant, *rates: Rate) -> PriceVersion:
    """A version that keeps what it does not name."""
    return replace(version(name, effective_at, *rates), keeps_others=True)


def test_each_version_is_in_full_what_the_versions_up_to_it_name() -> None:
    """In the order in which they take effect, whatever the order in which they were added (B1)."""
    versions = (
        keeping("a", 0, rate(1, "A100")),
        keeping("b", 10, rate(2, "H100")),
        version("c", 20, rate(3, "A100"), rate(3, "H100")),
        keeping("d", 30, rate(4, "A100")),
        keeping("e", 30, rate(5, "L4")),
        keeping("f", 40, rate(6, "A100")),
    )
    expected = [
        {"A100": 1},
        {"A100": 1, "H100": 2},
        {"A100": 3, "H100": 3},
        {"A100": 4, "H100": 3},
        {"A100": 4, "H100": 3, "L4": 5},
        {"A100": 6, "H100": 3, "L4": 5},
    ]
    for order in ((0, 1, 2, 3, 4, 5), (5, 3, 4, 2, 1, 0), (2, 5, 0, 3, 1, 4)):
        book = PriceBook()
        for place in order:
            book = book.with_version(versions[place])
            book.in_force(NEVER)

        actual = [
            {rate.gpu_type: rate.micros_per_gpu_hour for rate in version.rates}
            for version in book.in_full()
        ]
        assert expected == actual
        in_force = [book.in_force(at) for at in (0, 10, 20, 30, 40)]
        assert in_force == [book.in_full()[place] for place in (0, 1, 2, 4, 5)]
        assert tuple(versions) == book.versions
