"""Two orgs, and somebody on this machine to be told what happens to them."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.support.api_service import Caller, Tenant, new_tenant
from tests.support.webhook_receiver import Receiver, receiver


@dataclass
class World:
    """Two orgs of a test's own."""

    operator: Caller
    tenant: Tenant
    other: Tenant


@pytest.fixture
def world(operator: Caller) -> Iterator[World]:
    """Two orgs of a test's own."""
    with new_tenant(operator) as tenant, new_tenant(operator, "Other") as other:
        yield World(operator, tenant, other)


@pytest.fixture
def there() -> Iterator[Receiver]:
    """Somebody to be told."""
    with receiver() as found:
        yield found
