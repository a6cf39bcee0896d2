"""The service for all tests of the HTTP interface: two processes on one database."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from bursar.store.pools.loader import add_pool
from tests.support.api_service import Caller, Process, Tenant, new_tenant
from tests.support.databases import connected, new_state
from tests.support.pool_messages import POOL
from tests.support.webhook_orgs import there, world  # noqa: F401 (fixtures)


@dataclass
class Deployment:
    """Where a database is, and two processes that serve it."""

    state: Path
    room: Path  # where processes write what they say
    first: Process
    second: Process


@pytest.fixture(scope="session")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """`bursar up`, and `bursar api` beside it."""
    room = tmp_path_factory.mktemp("service")
    with new_state() as state:
        first = Process("up", state, room)
        try:
            with connected(first.database_url) as connection:
                add_pool(connection, POOL)
            second = Process("api", state, room)
            try:
                yield Deployment(state, room, first, second)
            finally:
                second.stop()
        finally:
            first.stop()


@pytest.fixture(scope="session")
def service(deployment: Deployment) -> Process:
    """One process of it."""
    return deployment.first


@pytest.fixture(scope="session")
def other_service(deployment: Deployment) -> Process:
    """The other process."""
    return deployment.second


@pytest.fixture(scope="session")
def operator(service: Process) -> Iterator[Caller]:
    """An operator, at the first process."""
    caller = Caller(service.url, service.admin_key)
    yield caller
    caller.close()


@pytest.fixture
def tenant(operator: Caller) -> Iterator[Tenant]:
    """An org of this test's own."""
    with new_tenant(operator) as tenant:
        yield tenant
