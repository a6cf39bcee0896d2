"""Which tiers the jobs of an org may ask for (S4)."""

import pytest

from bursar.core.tiers import DEFAULT_TIER, list_allowed_tiers, tier_of_job

SHIPPED = ("enterprise", "paid", "free")
METALS = ("gold", "paid", "silver", "free")


@pytest.mark.parametrize(
    ("org_tier", "orders", "allowed"),
    [
        ("enterprise", [SHIPPED], ("enterprise", "paid", "free")),
        ("paid", [SHIPPED], ("paid", "free")),
        ("free", [SHIPPED], ("free",)),
        (None, [SHIPPED], ("free",)),  # without a tier: the lowest
        ("paid", [], ("paid",)),
        ("gold", [SHIPPED], ("gold",)),  # an unknown tier is below all that are listed
        ("paid", [SHIPPED, METALS], ("paid", "free")),  # silver is a new group in the first pool
        ("paid", [SHIPPED, ("free", "paid")], ("paid",)),  # the second pool ranks free higher
        (None, [("gold", "silver")], ("free",)),
    ],
)
def test_allowed_tiers(
    org_tier: str | None, orders: list[tuple[str, ...]], allowed: tuple[str, ...]
) -> None:
    """The org's own, and those below it in every pool."""
    assert allowed == list_allowed_tiers(org_tier, orders)


def test_a_job_runs_in_the_tier_that_it_asks_for_or_in_its_orgs() -> None:
    assert ["free", "free", "paid", DEFAULT_TIER] == [
        tier_of_job("paid", "free"),
        tier_of_job(None, "free"),
        tier_of_job("paid", None),
        tier_of_job(None, None),
    ]
