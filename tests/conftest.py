"""How hypothesis looks for counterexamples, chosen by HYPOTHESIS_PROFILE.

ci       the same 500 examples each time (the default)
quick    the same 50, for `make check`
mutants  the same 100, on code that mutmut has made slower
fuzz     random ones, BURSAR_FUZZ_EXAMPLES of them; the seed and a blob replay a failure
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, Phase, settings

from bursar.store.sql.connection import Connection
from tests.support import databases

settings.register_profile("ci", derandomize=True, max_examples=500, deadline=None, database=None)
settings.register_profile("quick", settings.get_profile("ci"), max_examples=50)
settings.register_profile(
    "mutants",
    settings.get_profile("ci"),
    max_examples=100,
    # A mutant that only makes things slower must not count as noticed.
    suppress_health_check=[HealthCheck.too_slow],
    # That it is noticed is enough: no smallest example is looked for.
    phases=[Phase.explicit, Phase.generate],
)
settings.register_profile(
    "fuzz",
    derandomize=False,
    max_examples=int(os.environ.get("BURSAR_FUZZ_EXAMPLES", "20000")),
    deadline=None,
    database=None,
    print_blob=True,
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


CORE: Final = tuple(Path(__file__).parent / folder for folder in ("core", "sim/faults"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that exercise the core: branch coverage is measured on these alone."""
    for item in items:
        if any(item.path.is_relative_to(folder) for folder in CORE):
            item.add_marker("core")


@pytest.fixture(scope="session")
def database_url() -> Iterator[str]:
    """The address of a migrated database for this test process."""
    with databases.server() as url, databases.migrated(url) as migrated:
        yield migrated


@pytest.fixture
def connection(database_url: str) -> Iterator[Connection]:
    """A connection to it."""
    with databases.connected(database_url) as connection:
        yield connection
