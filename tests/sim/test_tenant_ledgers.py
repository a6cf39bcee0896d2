"""The ledgers of a simulation detect sums that do not add up."""

from bursar.sim.loads import T0
from bursar.sim.tenant_ledgers import TenantLedgers
from tests.support.sim_worlds import PRICE, work


def test_unneeded_hold_is_reported() -> None:
    """As long as its job may run it is none; once it was dropped nothing is held."""
    purse, one = TenantLedgers((("H100", PRICE),), {}, T0), work("a", runs=1_000_000)
    purse.submit(one, one.run_max, T0)
    account = purse.accounts["acme"]

    assert [] == account.problems(over=False)
    assert ["1000000 held, but nothing is left to run"] == account.problems(over=True)
    purse.drop(one, T0)
    assert [] == account.problems(over=True)
