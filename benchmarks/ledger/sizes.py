"""Sizes and durations of the loads."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class OrgShape:
    """What an org looks like: a root, teams below it, projects spread over the teams."""

    teams: int
    projects: int

    @property
    def accounts(self) -> int:
        """All of them, the root included."""
        return 1 + self.teams + self.projects


HOT: Final = OrgShape(teams=3, projects=16)  # 20 accounts
SPREAD: Final = OrgShape(teams=2, projects=7)  # 10
MANY: Final = OrgShape(teams=7, projects=42)  # 50


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerSizes:
    """The numbers of one run of the benchmark."""

    seconds: float  # of each measured stretch
    warm_s: float  # of the stretch before it, which does not count
    scale: int  # of pgbench's TPC-B, 100,000 accounts each
    plain_accounts: int
    spread_orgs: int  # of 10 accounts each
    many_orgs: int  # of 50 accounts each
    grants: tuple[int, int, int]  # of one account: few, more, most
    rounds: int  # holds whose time is taken, for each span
    reads: int  # balances that are read
    attempts: int  # that run at once in L-meter
    per_call: int  # of them on one node, which reports them together
    rebuild_orgs: int
    rebuild_events: int  # of each of these orgs, about
    transactions: int | None = None  # of each of pgbench's clients, instead of `seconds`

    @property
    def many_accounts(self) -> int:
        """How many accounts L-accounts has."""
        return self.many_orgs * MANY.accounts


FULL: Final = LedgerSizes(
    seconds=10.0,
    warm_s=3.0,
    scale=50,
    plain_accounts=10_000,
    spread_orgs=1_000,
    many_orgs=20_000,
    grants=(10, 1_000, 1_000_000),
    rounds=200,
    reads=500,
    attempts=50_000,
    per_call=500,
    rebuild_orgs=100,
    rebuild_events=10_000,
)
QUICK: Final = LedgerSizes(
    seconds=3.0,
    warm_s=1.0,
    scale=5,
    plain_accounts=10_000,
    spread_orgs=1_000,
    many_orgs=2_000,
    grants=(10, 1_000, 20_000),
    rounds=40,
    reads=100,
    attempts=5_000,
    per_call=500,
    rebuild_orgs=20,
    rebuild_events=2_500,
)
