"""The world of each test, which ends every process that was started in it."""

from collections.abc import Iterator

import pytest

from bursar.store.embedded.folder import StateFolder
from tests.support.embedded_guests import World, new_template, new_world


@pytest.fixture(scope="session")
def template() -> Iterator[StateFolder]:
    with new_template() as template:
        yield template


@pytest.fixture
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    # The template is made when it is first needed: most tests that take no time need none.
    with new_world(lambda: request.getfixturevalue("template")) as world:
        yield world
