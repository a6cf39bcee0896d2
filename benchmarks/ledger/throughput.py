"""L-spread and L-hot: holds from reserve to settle, over many orgs or all in one."""

from typing import Final

from benchmarks.environment import Log
from benchmarks.ledger.callers import Peak, UnitSource, measure_latency, measure_peak
from benchmarks.ledger.orgs import SETUP_KEY_PREFIX, make_orgs
from benchmarks.ledger.processes import CallerShare, combine_peaks, measure_peaks
from benchmarks.ledger.sizes import HOT, SPREAD, LedgerSizes, OrgShape
from benchmarks.results import Figure, Load
from bursar.service.database import Database, ScratchDatabase, scratch_database
from bursar.service.ledger.audit import verify
from bursar.service.ledger.ledger import Ledger

CALLERS: Final = 64
MANY_CALLERS: Final = 256
PROCESSES: Final = 2
LATENCY_LOAD: Final = 0.8  # part of the peak rate at which latency is measured

COUNT_ANSWERS: Final = f"select count(*) from requests where key not like '{SETUP_KEY_PREFIX}%'"


def measure_spread(
    server: Database, sizes: LedgerSizes, yardsticks: dict[str, float], log: Log
) -> Load:
    """Measure units of work over many orgs."""
    accounts = sizes.spread_orgs * SPREAD.accounts
    load = Load(
        name="L-spread",
        what=f"reserve, 3 charges, settle; {accounts:,} accounts in {sizes.spread_orgs:,} orgs",
    )
    with scratch_database(server, "bursar_bench_spread") as database:
        log(f"L-spread: making {sizes.spread_orgs:,} orgs")
        workload = LedgerWorkload(load, database, sizes, log)
        orgs = make_orgs(database, sizes.spread_orgs, SPREAD)
        peak = workload.measure_peak(orgs, SPREAD, CALLERS)
        for name, least in (("T(64)", 2.5), ("P", 0.8)):
            load.figures.append(
                _make_figure(peak, CALLERS, name, yardsticks.get(name), ratio_least=least)
            )
        workload.measure_latency(orgs, SPREAD, peak, p99_most_ms=50)
        both = workload.measure_processes(orgs, SPREAD, CALLERS)
        load.figures.append(
            Figure(
                what=f"{CALLERS} callers in {PROCESSES} processes",
                value=both.per_second,
                unit="commands/s",
                yardstick="in one",
                yardstick_value=peak.per_second,
                ratio_least=1.4,
            )
        )
        workload.check()
    return load


def measure_hot(
    server: Database, sizes: LedgerSizes, yardsticks: dict[str, float], log: Log
) -> Load:
    """Measure units of work on one org."""
    load = Load(
        name="L-hot",
        what=f"the same on one org with {HOT.accounts} accounts,"
        f" {CALLERS} callers and {MANY_CALLERS}",
    )
    with scratch_database(server, "bursar_bench_hot") as database:
        workload = LedgerWorkload(load, database, sizes, log)
        orgs = make_orgs(database, 1, HOT)
        peak = workload.measure_peak(orgs, HOT, CALLERS)
        plain = yardsticks.get("P-hot")
        load.figures.append(_make_figure(peak, CALLERS, "P-hot", plain, ratio_least=10))
        workload.measure_latency(orgs, HOT, peak, p99_most_ms=20)
        crowd = workload.measure_peak(orgs, HOT, MANY_CALLERS)
        load.figures.append(_make_figure(crowd, MANY_CALLERS, "P-hot", plain, ratio_least=13))
        workload.check()
    return load


def _make_figure(
    peak: Peak,
    callers: int,
    yardstick: str,
    value: float | None,
    *,
    ratio_least: float,
) -> Figure:
    return Figure(
        what=f"{callers} callers",
        value=peak.per_second,
        unit="commands/s",
        yardstick=yardstick,
        yardstick_value=value,
        ratio_least=ratio_least,
    )


def verify_after(load: Load, database: ScratchDatabase, log: Log) -> None:
    """Run `verify` and add what it reports to the load's problems."""
    log(f"{load.name}: verify")
    with database.connect(timeouts=None) as connection:
        load.problems += [str(problem) for problem in verify(connection)]


class LedgerWorkload:
    """Runs units of work on a database and counts the answered commands."""

    def __init__(self, load: Load, database: ScratchDatabase, sizes: LedgerSizes, log: Log) -> None:
        self._load = load
        self._database = database
        self._sizes = sizes
        self._log = log
        self._runs = 0
        self._answered = 0

    def measure_peak(self, orgs: list[str], shape: OrgShape, callers: int) -> Peak:
        """Measure the peak rate of this many callers, after a warm-up."""
        self._log(f"{self._load.name}: {callers} callers, as fast as they are answered")
        with Ledger(self._database.connect) as ledger:
            warm = measure_peak(ledger, self._make_units(orgs, shape), callers, self._sizes.warm_s)
            measured = measure_peak(
                ledger, self._make_units(orgs, shape), callers, self._sizes.seconds
            )
        return self._count_answers(warm, measured)

    def measure_processes(self, orgs: list[str], shape: OrgShape, callers: int) -> Peak:
        """Measure the peak of callers divided among processes, each with a ledger of its own."""
        self._log(f"{self._load.name}: {callers} callers in {PROCESSES} processes")
        self._runs += 1
        share = CallerShare(
            url=self._database.url,
            name=f"run-{self._runs}",
            orgs=orgs,
            projects=shape.projects,
            callers=callers // PROCESSES,
            warm_s=self._sizes.warm_s,
            seconds=self._sizes.seconds,
        )
        stretches = measure_peaks(
            [share._replace(name=f"{share.name}-{n}") for n in range(PROCESSES)]
        )
        warm, measured = (combine_peaks(stretch) for stretch in zip(*stretches, strict=True))
        return self._count_answers(warm, measured)

    def measure_latency(
        self, orgs: list[str], shape: OrgShape, peak: Peak, p99_most_ms: float
    ) -> None:
        """Measure latency at `LATENCY_LOAD` of a peak rate."""
        rate = LATENCY_LOAD * peak.per_second
        self._log(f"{self._load.name}: {rate:,.0f} commands/s by the clock")
        with Ledger(self._database.connect) as ledger:
            warm = measure_latency(ledger, self._make_units(orgs, shape), rate, self._sizes.warm_s)
            measured = measure_latency(
                ledger, self._make_units(orgs, shape), rate, self._sizes.seconds
            )
        self._answered += sum(len(stretch.times) + stretch.failed for stretch in (warm, measured))
        self._report_failures(warm.failed + measured.failed)
        at = f"at {LATENCY_LOAD:.0%} of that"
        self._load.figures += [
            Figure(what=f"p50, {at}", value=measured.ms(0.50), unit="ms"),
            Figure(what=f"p99, {at}", value=measured.ms(0.99), unit="ms", most=p99_most_ms),
            Figure(what=f"dropped, {at}", value=measured.dropped, unit="commands"),
        ]

    def check(self) -> None:
        """Verify the books, and that each answered command is stored once."""
        verify_after(self._load, self._database, self._log)
        with self._database.connect(timeouts=None) as connection:
            [stored] = connection.execute(COUNT_ANSWERS).fetchone() or (0,)
        if stored != self._answered:
            self._load.problems.append(
                f"{self._answered:,} answers were returned, {stored:,} are stored"
            )

    def _make_units(self, orgs: list[str], shape: OrgShape) -> UnitSource:
        self._runs += 1
        return UnitSource(f"run-{self._runs}", orgs, shape.projects)

    def _count_answers(self, warm: Peak, measured: Peak) -> Peak:
        self._answered += warm.commands + measured.commands
        self._report_failures(warm.failed + measured.failed)
        return measured

    def _report_failures(self, count: int) -> None:
        if count:
            self._load.problems.append(f"{count:,} commands were refused or failed")
