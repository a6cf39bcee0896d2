"""The world of each test, which ends every process that was started in it."""

from collections.abc import Iterator

import pytest

from tests.store.embedded.worlds import World, new_world


@pytest.fixture
def world() -> Iterator[World]:
    with new_world() as world:
        yield world
