"""L-meter: readings of many running attempts, kept in their pool and charged in the ledger.

The pool's clock is moved by hand, from an hour in the past on: so nodes report as they would every
ten seconds, while the pool is asked as fast as it can answer. Jobs differ in how long they may run,
and so in how often their orgs are told.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.environment import Log
from benchmarks.ledger.orgs import (
    SETUP_KEY_PREFIX,
    USER,
    copy_org,
    make_expiry,
    make_org,
    make_tree,
    project_id,
    vacuum_and_checkpoint,
)
from benchmarks.ledger.sizes import SPREAD, LedgerSizes
from benchmarks.ledger.throughput import verify_after
from benchmarks.results import Figure, Load
from bursar.core.dispatch.reports import NodeReport, Reading
from bursar.core.dispatch.state import cluster_name
from bursar.core.ids import HoldId, JobId, NodeId, PriceVersionId
from bursar.core.instant import HOUR, MILLISECOND, SECOND, Instant
from bursar.core.ledger.commands import Command, Reserve, SetPrice
from bursar.core.ledger.values import Context
from bursar.core.messages import JobSpec
from bursar.core.money import CREDIT
from bursar.core.pricing import PriceBook, PriceVersion, Rate
from bursar.core.refusal import Refusal
from bursar.core.scheduling.decisions import Start
from bursar.core.scheduling.model.jobs import Shape, StartReason
from bursar.core.scheduling.model.nodes import Node, Piece
from bursar.service.database import (
    Connection,
    Database,
    OrgId,
    ScratchDatabase,
    create_pool,
    scratch_database,
)
from bursar.service.jobs import Answers, Jobs, Submission
from bursar.service.ledger.batch import Answer, Batch, CommandRequest
from bursar.service.ledger.ledger import Ledger
from bursar.service.pools.pool import NullListener, PoolHandle, PoolReplica, pool_on_connection
from bursar.service.workers.relay import Relay, Round

POOL: Final = "pool"
GPU: Final = "h100"
RUN_HOURS: Final = (1, 2, 4, 8)  # that jobs may run at most, in turn
REPORT_INTERVAL: Final = (
    10 * SECOND
)  # two reports of a node; half of what a lease lasts without one
USAGE_REPORTED_AFTER: Final = 75 * SECOND  # after that every second job has told its org of usage
READINGS_LEAST: Final = 50_000  # a second
CHARGES_LEAST: Final = 6_000


def measure_meter(server: Database, sizes: LedgerSizes, _: dict[str, float], log: Log) -> Load:
    """Report run times until it is clear how fast that goes, then charge what orgs were told."""
    load = Load(
        name="L-meter",
        what=f"readings of {sizes.attempts:,} running attempts, {sizes.per_call:,} per call",
    )
    with scratch_database(server, "bursar_bench_meter") as database:
        log(f"L-meter: making {sizes.attempts:,} jobs and letting them run")
        clock = ManualClock(make_expiry() - 13 * HOUR)
        orgs = _make_jobs(database, sizes, clock)
        with (
            database.connect(timeouts=None) as connection,
            Ledger(database.connect) as ledger,
        ):
            jobs = Jobs(connection, lambda asks: _run_commands(ledger, asks))
            pool = pool_on_connection(connection, PoolReplica(POOL, NullListener(), clock))
            # For the relay no time passes: here messages wait for their turn on purpose.
            relay = Relay(connection, jobs, {POOL: pool}, ManualClock(clock.now))
            create_pool(connection, POOL)
            nodes = ReportingNodes(load, pool, clock)
            relay.from_orgs(Round())
            for number, org in enumerate(orgs):
                nodes.lease(org, NodeId(f"node-{number:04d}"), sizes.per_call)
            nodes.report()
            relay.from_pool(POOL, Round())  # that they have started
            vacuum_and_checkpoint(database)
            log("L-meter: readings")
            load.figures.append(_measure_readings(nodes, sizes))
            log("L-meter: charges")
            load.figures.append(_measure_charges(load, nodes, relay))
        verify_after(load, database, log)
    return load


@dataclass(slots=True)
class ManualClock:
    """A clock that stands where it was put."""

    now: Instant

    def __call__(self, _: Connection) -> Instant:
        return self.now


class ReportingNodes:
    """Nodes that report how long their attempts have run, all of them one after the other."""

    def __init__(self, load: Load, pool: PoolHandle, clock: ManualClock) -> None:
        self._load = load
        self._pool = pool
        self._clock = clock
        self._fences: dict[NodeId, tuple[int, ...]] = {}
        self._n = 0
        self._since = clock.now

    @property
    def elapsed(self) -> Instant:
        """For how long the attempts have run by the pool's clock."""
        return self._clock.now - self._since

    def lease(self, org: OrgId, node: NodeId, gpus: int) -> None:
        """Put a machine into the pool, with a GPU for each of an org's jobs."""
        self._pool.register(Node(id=node, gpu_type=GPU, gpus=gpus))
        self._send_report(node, ())
        epoch, _ = self._pool.lead("bench")
        starts = [
            Start(
                job=cluster_name((org, _job_id(gpu))),
                gpu_type=GPU,
                pieces=(Piece(node, (gpu,), 1),),
                why=StartReason.TURN,
            )
            for gpu in range(gpus)
        ]
        written = self._pool.write(epoch or 0, starts)
        if written.denied:
            raise RuntimeError(f"{node}: leases were denied: {written.denied}")
        self._fences[node] = tuple(lease.fence for lease in written.placed)

    def report(self) -> int:
        """Let some time pass and every node report; how many readings that was."""
        self._clock.now += REPORT_INTERVAL
        run_ms = self.elapsed // MILLISECOND
        count = 0
        for node, fences in self._fences.items():
            readings = tuple(Reading(fence=fence, run_ms=run_ms) for fence in fences)
            count += len(fences)
            if self._send_report(node, readings) < len(fences):
                self._load.problems.append(f"{node}: a lease was not renewed")
        return count

    def _send_report(self, node: NodeId, readings: tuple[Reading, ...]) -> int:
        """Let a node report; how many leases it is told to have."""
        self._n += 1
        report = NodeReport(
            node=node, boot=1, number=self._n, at=0, answered_at=None, readings=readings
        )
        orders = self._pool.report(report).result()
        return -1 if orders is None else len(orders.leases)


def _measure_readings(nodes: ReportingNodes, sizes: LedgerSizes) -> Figure:
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < sizes.seconds:
        count += nodes.report()
    per_second = count / (time.perf_counter() - began)
    return Figure(
        what="durable in the pool", value=per_second, unit="readings/s", least=READINGS_LEAST
    )


def _measure_charges(load: Load, nodes: ReportingNodes, relay: Relay) -> Figure:
    while nodes.elapsed < USAGE_REPORTED_AFTER:
        nodes.report()
    done = Round()
    began = time.perf_counter()
    relay.from_pool(POOL, done)
    lasted = time.perf_counter() - began
    if done.acknowledged != done.sent:
        load.problems.append(f"{done.sent - done.acknowledged:,} messages were not handled")
    return Figure(
        what="charged in the ledger",
        value=done.acknowledged / lasted,
        unit="charges/s",
        least=CHARGES_LEAST,
    )


# Setting it up.


def _make_jobs(database: ScratchDatabase, sizes: LedgerSizes, clock: ManualClock) -> list[OrgId]:
    """As many orgs as nodes, each with the jobs of one."""
    orgs = [f"org-{number:06d}" for number in range(sizes.attempts // sizes.per_call)]
    make_org(database, orgs[0], _make_priced_tree(), clock)
    with database.connect(timeouts=None) as connection:
        batch = Batch(connection, PriceBook(), {}, clock)
        jobs = Jobs(connection, batch.run, clock)
        for number in range(sizes.per_call):
            answer = jobs.submit(
                orgs[0], f"{SETUP_KEY_PREFIX}{_job_id(number)}", _make_submission(number)
            )
            if isinstance(answer.outcome, Refusal):
                raise RuntimeError(f"a job could not be made: {answer.outcome}")
        copy_org(connection, orgs[0], orgs[1:])
    return orgs


def _make_priced_tree() -> Iterator[Command]:
    yield from make_tree(SPREAD)
    rate = Rate(gpu_type=GPU, micros_per_gpu_hour=4 * CREDIT)
    yield SetPrice(version=PriceVersion(id=PriceVersionId("prices"), effective_at=0, rates=(rate,)))


def _job_id(number: int) -> JobId:
    return JobId(f"job-{number:04d}")


def _make_submission(number: int) -> Submission:
    job = _job_id(number)
    hours = RUN_HOURS[number % len(RUN_HOURS)]
    reserve = Reserve(
        hold=HoldId(job),
        account=project_id(number % SPREAD.projects),
        user=USER,
        run_ms=hours * HOUR // MILLISECOND,
        expires_at=make_expiry(),
        context=Context(gpu_types=(GPU,), milli_gpus=1_000, job=job),
    )
    return Submission(pool=POOL, reserve=reserve, spec=JobSpec(shape=Shape(types=(GPU,))))


def _run_commands(ledger: Ledger, asks: Sequence[CommandRequest]) -> Answers:
    """Ask a ledger for many commands, and wait for all of them."""
    futures = [ledger.submit(*ask) for ask in asks]
    answers: list[Answer | Exception] = []
    for future in futures:
        try:
            answers.append(future.result())
        except Exception as error:
            answers.append(error)
    return answers
