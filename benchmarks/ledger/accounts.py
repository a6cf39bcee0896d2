"""L-accounts: a million accounts are to cost what ten thousand cost."""

import random
import time
from statistics import median
from typing import Final

from benchmarks.environment import SEED, Log
from benchmarks.ledger.orgs import make_orgs, project_id, sweep
from benchmarks.ledger.sizes import MANY, SPREAD, LedgerSizes, OrgShape
from benchmarks.ledger.throughput import CALLERS, LedgerWorkload
from benchmarks.results import Figure, Load
from bursar.core.refusal import Refusal
from bursar.service.database import Database, ScratchDatabase, scratch_database
from bursar.service.queries.balances import LedgerReads
from bursar.service.queries.top_lists import Measure, Subject, TopLists

SLOWDOWN_MOST: Final = 1.5  # times as slow, at most
TOP_LENGTH: Final = 100  # places
TOP_MOST_MS: Final = 20


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
        fewer = MeasuredDatabase(load, with_few, SPREAD, sizes.spread_orgs, sizes, log)
        more = MeasuredDatabase(load, with_many, MANY, sizes.many_orgs, sizes, log)
        for place in (fewer, more, fewer, more):
            place.measure_peak()
        log(f"L-accounts: {sizes.reads:,} balances in each")
        with with_few.connect() as few_connection, with_many.connect() as many_connection:
            readers = [(fewer, LedgerReads(few_connection)), (more, LedgerReads(many_connection))]
            for _number in range(sizes.reads):
                for place, reader in readers:
                    load.problems += place.read_balance(reader)
        _add_comparison(load, fewer, more, f"{few:,} accounts")
        _measure_top_list(load, with_many, sizes, log)
        fewer.workload.check()
        more.workload.check()
    return load


class MeasuredDatabase:
    """A database with some orgs, and what was measured on it."""

    def __init__(
        self,
        load: Load,
        database: ScratchDatabase,
        shape: OrgShape,
        orgs: int,
        sizes: LedgerSizes,
        log: Log,
    ) -> None:
        log(f"L-accounts: making {orgs * shape.accounts:,} accounts in {orgs:,} orgs")
        self.workload = LedgerWorkload(load, database, sizes, log)
        self.per_second: list[float] = []  # commands
        self.balance_s: list[float] = []
        self._shape = shape
        self._orgs = make_orgs(database, orgs, shape)
        self._rng = random.Random(SEED)

    def measure_peak(self) -> None:
        """Let callers work on it for a while."""
        self.per_second.append(
            self.workload.measure_peak(self._orgs, self._shape, CALLERS).per_second
        )

    def read_balance(self, reader: LedgerReads) -> list[str]:
        """Take the time of a balance of some account; what was wrong with it."""
        org = self._rng.choice(self._orgs)
        account = project_id(self._rng.randrange(self._shape.projects))
        began = time.perf_counter()
        balance = reader.balance(org, account)
        self.balance_s.append(time.perf_counter() - began)
        return [f"{org}: {balance.value}"] if isinstance(balance.value, Refusal) else []


def _add_comparison(
    load: Load, few: MeasuredDatabase, many: MeasuredDatabase, yardstick: str
) -> None:
    load.figures += [
        Figure(
            what=f"L-spread again, {CALLERS} callers",
            value=max(many.per_second),
            unit="commands/s",
            yardstick=yardstick,
            yardstick_value=max(few.per_second),
            ratio_least=1 / SLOWDOWN_MOST,
        ),
        Figure(
            what="balance, p50",
            value=median(many.balance_s) * 1_000,
            unit="ms",
            yardstick=yardstick,
            yardstick_value=median(few.balance_s) * 1_000,
            ratio_most=SLOWDOWN_MOST,
        ),
    ]


def _measure_top_list(load: Load, database: ScratchDatabase, sizes: LedgerSizes, log: Log) -> None:
    """Bring the top list over all orgs up to date, and read it."""
    log("L-accounts: sweep, and the top list")
    began = time.perf_counter()
    sweep(database)
    swept_s = time.perf_counter() - began
    times: list[float] = []
    with database.connect() as connection:
        for _ in range(sizes.reads):
            began = time.perf_counter()
            first, _at = TopLists(connection).over_all(Subject.ACCOUNT, Measure.USED, TOP_LENGTH)
            times.append(time.perf_counter() - began)
    if not first:
        load.problems.append("the top list is empty")
    load.figures += [
        Figure(
            what=f"top {TOP_LENGTH}, all orgs, p50",
            value=median(times) * 1_000,
            unit="ms",
            most=TOP_MOST_MS,
        ),
        Figure(what="sweep before it", value=swept_s, unit="s"),
    ]
