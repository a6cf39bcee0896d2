"""Walkthroughs on a service that runs: real nodes, real jobs, books that add up (M6)."""

import pytest

from bursar.cli.walkthrough import NAMES
from tests.cli.test_client_commands import (  # noqa: F401 (fixtures)
    Running,
    Shell,
    _alone,
    operator,
    running,
)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("double-submit", "key_reused"),
        ("promo-expiry", "held → lapsed"),
    ],
)
def test_a_walkthrough_shows_what_it_says(
    operator: Shell,  # noqa: F811 (a fixture)
    name: str,
    told: str,
) -> None:
    """The others take minutes, for leases and credits have to run out."""
    page = operator.says("walkthrough", name)

    assert told in page
    assert "succeeded (finished)" in page
    assert "adds up" in page
    assert "DIFFERS" not in page


def test_all_are_there() -> None:
    names = ("preemption", "lost-finish", "promo-expiry", "out-of-credits", "double-submit")

    assert set(names) == set(NAMES)
