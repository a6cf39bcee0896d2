"""L-spread and L-hot: the whole life of holds, over many orgs or all in one."""

from typing import Final

from benchmarks.environment import Log
from benchmarks.ledger.callers import Peak, Works, latency, peak
from benchmarks.ledger.orgs import MADE, make_orgs
from benchmarks.ledger.processes import Share, at_once, peaks
from benchmarks.ledger.sizes import HOT, SPREAD, LedgerSizes, Shape
from benchmarks.results import Figure, Load
from bursar.service.database import Database, ScratchDatabase, scratch_database
from bursar.service.ledger.audit import verify
from bursar.service.ledger.ledger import Ledger

CALLERS: Final = 64
CROWD: Final = 256
PROCESSES: Final = 2
OF_PEAK: Final = 0.8  # at which latency is measured

ANSWERED: Final = f"select count(*) from requests where key not like '{MADE}%'"


def measure_spread(
    server: Database, sizes: LedgerSizes, yardsticks: dict[str, float], log: Log
) -> Load:
    """Units of work over many orgs."""
    accounts = sizes.spread_orgs * SPREAD.accounts
    load = Load(
        name="L-spread",
        what=f"reserve, 3 charges, settle; {accounts:,} accounts in {sizes.spread_orgs:,} orgs",
    )
    with scratch_database(server, "bursar_bench_spread") as database:
        log(f"L-spread: making {sizes.spread_orgs:,} orgs")
        work = Working(load, database, sizes, log)
        orgs = make_orgs(database, sizes.spread_orgs, SPREAD)
        found = work.peak(orgs, SPREAD, CALLERS)
        for name, least in (("T(64)", 2.5), ("P", 0.8)):
            load.figures.append(
                _throughput(found, CALLERS, name, yardsticks.get(name), ratio_least=least)
            )
        work.latency(orgs, SPREAD, found, p99_most_ms=50)
        both = work.peak_of_processes(orgs, SPREAD, CALLERS)
        load.figures.append(
            Figure(
                what=f"{CALLERS} callers in {PROCESSES} processes",
                value=both.per_second,
                unit="commands/s",
                yardstick="in one",
                yardstick_value=found.per_second,
                ratio_least=1.4,
            )
        )
        work.check()
    return load


def measure_hot(
    server: Database, sizes: LedgerSizes, yardsticks: dict[str, float], log: Log
) -> Load:
    """Units of work on one org."""
    load = Load(
        name="L-hot",
        what=f"the same on one org with {HOT.accounts} accounts, {CALLERS} callers and {CROWD}",
    )
    with scratch_database(server, "bursar_bench_hot") as database:
        work = Working(load, database, sizes, log)
        orgs = make_orgs(database, 1, HOT)
        found = work.peak(orgs, HOT, CALLERS)
        plain = yardsticks.get("P-hot")
        load.figures.append(_throughput(found, CALLERS, "P-hot", plain, ratio_least=10))
        work.latency(orgs, HOT, found, p99_most_ms=20)
        crowd = work.peak(orgs, HOT, CROWD)
        load.figures.append(_throughput(crowd, CROWD, "P-hot", plain, ratio_least=13))
        work.check()
    return load


def _throughput(
    found: Peak,
    callers: int,
    yardstick: str,
    value: float | None,
    *,
    ratio_least: float,
) -> Figure:
    return Figure(
        what=f"{callers} callers",
        value=found.per_second,
        unit="commands/s",
        yardstick=yardstick,
        yardstick_value=value,
        ratio_least=ratio_least,
    )


def verify_after(load: Load, database: ScratchDatabase, log: Log) -> None:
    """Note every contradiction that a load has left behind."""
    log(f"{load.name}: verify")
    with database.connect(timeouts=None) as connection:
        load.problems += [str(problem) for problem in verify(connection)]


class Working:
    """Puts units of work on a database and keeps count of what was answered."""

    def __init__(self, load: Load, database: ScratchDatabase, sizes: LedgerSizes, log: Log) -> None:
        self._load = load
        self._database = database
        self._sizes = sizes
        self._log = log
        self._runs = 0
        self._answered = 0

    def peak(self, orgs: list[str], shape: Shape, callers: int) -> Peak:
        """As much as so many callers get done, once the ledger is warm."""
        self._log(f"{self._load.name}: {callers} callers, as fast as they are answered")
        with Ledger(self._database.connect) as ledger:
            warm = peak(ledger, self._works(orgs, shape), callers, self._sizes.warm_s)
            found = peak(ledger, self._works(orgs, shape), callers, self._sizes.seconds)
        return self._counted(warm, found)

    def peak_of_processes(self, orgs: list[str], shape: Shape, callers: int) -> Peak:
        """The same with the callers shared among processes, each with a ledger of its own."""
        self._log(f"{self._load.name}: {callers} callers in {PROCESSES} processes")
        self._runs += 1
        share = Share(
            url=self._database.url,
            name=f"run-{self._runs}",
            orgs=orgs,
            projects=shape.projects,
            callers=callers // PROCESSES,
            warm_s=self._sizes.warm_s,
            seconds=self._sizes.seconds,
        )
        told = peaks([share._replace(name=f"{share.name}-{n}") for n in range(PROCESSES)])
        warm, found = (at_once(stretch) for stretch in zip(*told, strict=True))
        return self._counted(warm, found)

    def latency(self, orgs: list[str], shape: Shape, found: Peak, p99_most_ms: float) -> None:
        """The times of answers at four fifths of a peak."""
        rate = OF_PEAK * found.per_second
        self._log(f"{self._load.name}: {rate:,.0f} commands/s by the clock")
        with Ledger(self._database.connect) as ledger:
            warm = latency(ledger, self._works(orgs, shape), rate, self._sizes.warm_s)
            told = latency(ledger, self._works(orgs, shape), rate, self._sizes.seconds)
        self._answered += sum(len(one.times) + one.failed for one in (warm, told))
        self._failed(warm.failed + told.failed)
        at = f"at {OF_PEAK:.0%} of that"
        self._load.figures += [
            Figure(what=f"p50, {at}", value=told.ms(0.50), unit="ms"),
            Figure(what=f"p99, {at}", value=told.ms(0.99), unit="ms", most=p99_most_ms),
            Figure(what=f"dropped, {at}", value=told.dropped, unit="commands"),
        ]

    def check(self) -> None:
        """Whether the books add up, and have each answered command once."""
        verify_after(self._load, self._database, self._log)
        with self._database.connect(timeouts=None) as connection:
            [stored] = connection.execute(ANSWERED).fetchone() or (0,)
        if stored != self._answered:
            self._load.problems.append(
                f"{self._answered:,} answers were given, {stored:,} are stored"
            )

    def _works(self, orgs: list[str], shape: Shape) -> Works:
        self._runs += 1
        return Works(f"run-{self._runs}", orgs, shape.projects)

    def _counted(self, warm: Peak, found: Peak) -> Peak:
        self._answered += warm.commands + found.commands
        self._failed(warm.failed + found.failed)
        return found

    def _failed(self, count: int) -> None:
        if count:
            self._load.problems.append(f"{count:,} commands were refused or failed")
