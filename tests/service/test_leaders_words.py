"""A leader says that it leads now and then, not at every turn."""

from itertools import count

import pytest

from bursar.core.dispatch.state import Work
from bursar.service.pools import leader
from bursar.service.pools.keeper import Kept, PoolKeeper, keeping
from bursar.service.pools.leader import Leading
from bursar.store.pools.loading import create_pool
from bursar.store.reading import Connection
from tests.databases import connected
from tests.service.test_pools import POLICY, Ears, Node1, begin, come_to_run, queued

NUMBERS = count(1)


class Counting(PoolKeeper):
    """A pool that counts how often somebody says that it leads."""

    def __init__(self, keeper: PoolKeeper) -> None:
        super().__init__(keeper._kept, keeper._tell)
        self.leads = 0

    def lead(self, who: str, *, anyway: bool = True) -> tuple[int | None, int]:
        self.leads += 1
        return super().lead(who, anyway=anyway)


@pytest.mark.parametrize("another_led", [False, True], ids=["it leads", "another has led since"])
def test_what_comes_is_placed_without_another_word(
    another_led: bool, database_url: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two jobs, one after the other, in a term that lasts; who was denied asks again (S11)."""
    monkeypatch.setattr(leader, "SAYS_SO_S", 600.0)
    pool, ears, node = f"words-{next(NUMBERS)}", Ears(), Node1()
    create_pool(connection, pool)
    with keeping(lambda: connected(database_url), Kept(pool, ears)) as keeper:
        counting = Counting(keeper)
        begin(keeper, node)
        with Leading(counting, POLICY, "one") as leading:
            ears.leading = leading
            queued(keeper, connection, "a")
            come_to_run(connection, keeper, node, {"a"}, "it leads")
            assert 1 == counting.leads
            if another_led:
                keeper._asked(_another_leads).result()
            queued(keeper, connection, "b")
            come_to_run(connection, keeper, node, {"a", "b"}, "it still leads, or again")
            assert (counting.leads > 1) == another_led


def _another_leads(work: Work) -> None:
    """Somebody has led and is gone again, without a word to the first."""
    work.epoch += 1
    work.leads_until += 1
