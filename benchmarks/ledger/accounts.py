"""L-accounts: a million accounts are to cost what ten thousand cost."""

import random
import time
from statistics import median
from typing import Final

from benchmarks.environment import SEED, Log
from benchmarks.ledger.orgs import make_orgs, project, sweep
from benchmarks.ledger.sizes import MANY, SPREAD, LedgerSizes, Shape
from benchmarks.ledger.throughput import CALLERS, Working
from benchmarks.results import Figure, Load
from bursar.core.refusal import Refusal
from bursar.service.database import Database, ScratchDatabase, scratch_database
from bursar.service.queries.balances import LedgerReads
from bursar.service.queries.top_lists import Measure, Subject, TopLists

WITHIN: Final = 1.5  # times as slow, at most
TOP: Final = 100  # places
TOP_MS: Final = 20


def measure_accounts(server: Database, sizes: LedgerSizes, _: dict[str, float], log: Log) -> Load:
    """L-spread and balances, on few accounts and on many, in turn: so noise meets both alike."""
    few, many = sizes.spread_orgs * SPREAD.accounts, sizes.many_accounts
    load = Load(
        name="L-accounts",
        what=f"{many:,} accounts in {sizes.many_orgs:,} orgs, beside {few:,}"
        f" in {sizes.spread_orgs:,}",
    )
    with (
        scratch_database(server, "bursar_bench_few") as with_few,
        scratch_database(server, "bursar_bench_many") as with_many,
    ):
        fewer = Place(load, with_few, SPREAD, sizes.spread_orgs, sizes, log)
        more = Place(load, with_many, MANY, sizes.many_orgs, sizes, log)
        for place in (fewer, more, fewer, more):
            place.work()
        log(f"L-accounts: {sizes.reads:,} balances in each")
        with with_few.connect() as one, with_many.connect() as other:
            looking = [(fewer, LedgerReads(one)), (more, LedgerReads(other))]
            for _number in range(sizes.reads):
                for place, books in looking:
                    load.problems += place.read_balance(books)
        _compare(load, fewer, more, f"{few:,} accounts")
        _top(load, with_many, sizes, log)
        fewer.working.check()
        more.working.check()
    return load


class Place:
    """A database with some orgs, and what was measured on it."""

    def __init__(
        self,
        load: Load,
        database: ScratchDatabase,
        shape: Shape,
        orgs: int,
        sizes: LedgerSizes,
        log: Log,
    ) -> None:
        log(f"L-accounts: making {orgs * shape.accounts:,} accounts in {orgs:,} orgs")
        self.working = Working(load, database, sizes, log)
        self.per_second: list[float] = []  # commands
        self.balance_s: list[float] = []
        self._shape = shape
        self._orgs = make_orgs(database, orgs, shape)
        self._chance = random.Random(SEED)

    def work(self) -> None:
        """Let callers work on it for a while."""
        self.per_second.append(self.working.peak(self._orgs, self._shape, CALLERS).per_second)

    def read_balance(self, looking: LedgerReads) -> list[str]:
        """Take the time of a balance of some account; what was wrong with it."""
        org = self._chance.choice(self._orgs)
        account = project(self._chance.randrange(self._shape.projects))
        began = time.perf_counter()
        seen = looking.balance(org, account)
        self.balance_s.append(time.perf_counter() - began)
        return [f"{org}: {seen.value}"] if isinstance(seen.value, Refusal) else []


def _compare(load: Load, few: Place, many: Place, yardstick: str) -> None:
    load.figures += [
        Figure(
            what=f"L-spread again, {CALLERS} callers",
            value=max(many.per_second),
            unit="commands/s",
            yardstick=yardstick,
            yardstick_value=max(few.per_second),
            ratio_least=1 / WITHIN,
        ),
        Figure(
            what="balance, p50",
            value=median(many.balance_s) * 1_000,
            unit="ms",
            yardstick=yardstick,
            yardstick_value=median(few.balance_s) * 1_000,
            ratio_most=WITHIN,
        ),
    ]


def _top(load: Load, database: ScratchDatabase, sizes: LedgerSizes, log: Log) -> None:
    """Bring the top list over all orgs up to date, and read it."""
    log("L-accounts: sweep, and the top list")
    began = time.perf_counter()
    sweep(database)
    swept_s = time.perf_counter() - began
    times: list[float] = []
    with database.connect() as connection:
        for _ in range(sizes.reads):
            began = time.perf_counter()
            first, _at = TopLists(connection).over_all(Subject.ACCOUNT, Measure.USED, TOP)
            times.append(time.perf_counter() - began)
    if not first:
        load.problems.append("the top list is empty")
    load.figures += [
        Figure(
            what=f"top {TOP}, all orgs, p50", value=median(times) * 1_000, unit="ms", most=TOP_MS
        ),
        Figure(what="sweep before it", value=swept_s, unit="s"),
    ]
