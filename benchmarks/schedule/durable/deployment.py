"""A deployment for a load: orgs with credits, a pool with its leader, nodes that run nothing.

The whole service takes part: a command reserves the hold and submits the job, the relay carries
it, the leader decides, nodes get orders and report, ends are settled in the ledger.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final, NamedTuple

from benchmarks.ledger.orgs import GRANT_MICROS, ROOT, USER, make_org, vacuum_and_checkpoint
from benchmarks.results import Load
from benchmarks.schedule.durable.nodes import RunTime, SimulatedNodes
from benchmarks.schedule.loads import PRICES
from bursar.core.dispatch.attempt_end import STOP_GRACE_MS
from bursar.core.dispatch.state import Pool, PoolJob
from bursar.core.ids import AccountId, GrantId, HoldId, JobId, PriceVersionId
from bursar.core.instant import MILLISECOND
from bursar.core.ledger.commands import AddAccount, AddUser, Command, Issue, Reserve, SetTier
from bursar.core.ledger.values import Context, CreditKind
from bursar.core.messages import JobSpec
from bursar.core.pricing import PriceBook, PriceVersion, Rate
from bursar.core.refusal import Refusal
from bursar.core.scheduling.model.jobs import Job
from bursar.core.scheduling.model.policy import PAID, PoolPolicy
from bursar.core.scheduling.model.snapshot import PoolSnapshot
from bursar.core.value import replace
from bursar.service.database import Connection, Database, ScratchDatabase, scratch_database
from bursar.service.jobs import Submission
from bursar.service.jobs.submission import submission_request
from bursar.service.ledger.audit import verify
from bursar.service.ledger.batch import Answer
from bursar.service.ledger.clock import GuardedClock
from bursar.service.ledger.ledger import Ledger
from bursar.service.pools.host import Pools, serving_pools

POOL: Final = "main"
IN_FLIGHT_MAX: Final = 512  # submissions of one caller
REQUEUES: Final = 1_000  # victims run again
LOAD_TIMEOUT_S: Final = 400.0
POLL_INTERVAL_S: Final = 0.02  # between two queries for progress

PRICE_BOOK: Final = PriceBook(
    versions=(
        PriceVersion(
            id=PriceVersionId("list"),
            effective_at=0,
            rates=tuple(
                Rate(gpu_type=gpu_type, micros_per_gpu_hour=rate) for gpu_type, rate in PRICES
            ),
        ),
    )
)

COUNT_STATES: Final = "select state, count(*) from jobs group by state"
COUNT_UNACKNOWLEDGED: Final = """
    select (select count(*) from org_outbox where acked_at is null)
         + (select count(*) from pool_outbox where acked_at is null)
"""
NOT_ENDED_ONCE: Final = """
    -- Every job has ended, by one attempt that finished and was reported once.
    select j.org_id, j.job_id, j.state, count(l.fence)
      from jobs j
      left join leases l on l.org_id = j.org_id and l.job_id = j.job_id and l.why = 'finished'
     where j.job_id <> all (%s::text[])
     group by j.org_id, j.job_id, j.state
    having j.state <> 'succeeded' or count(l.fence) <> 1
     order by j.org_id, j.job_id
     limit 5
"""


class LoadTimeout(RuntimeError):
    """A load did not finish in time."""


def insert_root_account(policy: PoolPolicy) -> PoolPolicy:
    """Put the root account between org and queue in a policy's paths, as pools have it."""
    shares = tuple(
        ((*path[:2], ROOT, *path[2:]) if len(path) > 2 else path, share)
        for path, share in policy.shares
    )
    return replace(policy, shares=shares)


class Deployment:
    """A running deployment."""

    def __init__(
        self, database: ScratchDatabase, connection: Connection, ledger: Ledger, pools: Pools
    ) -> None:
        self.database = database
        self.connection = connection
        self.ledger = ledger
        self.pools = pools
        self.refused: list[str] = []

    # Submissions

    def submit(self, jobs: Iterable[tuple[float, Job]], began: float) -> None:
        """Submit jobs when they are due, in seconds from the start, without awaiting answers.

        A late submitter continues as fast as answers come. Returns when all have come.
        """
        room = threading.Semaphore(IN_FLIGHT_MAX)
        for due, job in jobs:
            ahead = began + due - time.perf_counter()
            if ahead > 0:
                time.sleep(ahead)
            room.acquire()
            self._submit(job, room.release)
        for _ in range(IN_FLIGHT_MAX):
            room.acquire()

    def submit_one_by_one(self, jobs: Sequence[Job], callers: int) -> None:
        """Submit jobs from this many threads, each of which awaits every answer."""

        def call(mine: Sequence[Job]) -> None:
            for job in mine:
                done = threading.Event()
                self._submit(job, done.set)
                done.wait()

        threads = [
            threading.Thread(target=call, args=(jobs[number::callers],))
            for number in range(callers)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _submit(self, job: Job, done: Callable[[], None]) -> None:
        org = job.path[1]
        ask = submission_request(org, f"submit-{job.id}", make_submission(job))
        self.ledger.enqueue(_SubmissionAnswer(self, org, done), ask)

    # Progress

    def count_states(self) -> Counter[str]:
        """The number of jobs by state, as recorded by their orgs."""
        return Counter(dict(self.connection.execute(COUNT_STATES).fetchall()))

    def describe_progress(self, jobs: int) -> str:
        """Describe the progress of a load of this many jobs, as recorded by the pool."""
        handle = self.pools.handles[POOL]
        count = handle.look(lambda pool: Counter(map(_state, pool.jobs.values())))
        counts = ", ".join(f"{many:,} {state}" for state, many in sorted(count.items()))
        return f"of {jobs:,} jobs {counts or 'none is in the pool'}"

    def await_nodes(self) -> None:
        """Wait until all nodes have reported."""

        def have_all_reported(pool: Pool) -> bool:
            return all(machine.reported_at is not None for machine in pool.machines.values())

        self._await(
            lambda: self.pools.handles[POOL].look(have_all_reported), "all nodes have reported"
        )

    def await_all(self, state: str, count: int) -> float:
        """Wait until this many jobs are in a state; return the time, by `time.perf_counter`."""
        return self._await(lambda: self.count_states()[state] >= count, f"{count:,} jobs {state}")

    def await_relay(self) -> None:
        """Wait until every message is acknowledged."""

        def empty() -> bool:
            return self.connection.execute(COUNT_UNACKNOWLEDGED).fetchone() == (0,)

        self._await(empty, "all messages acknowledged")

    def _await(self, reached: Callable[[], bool], what: str) -> float:
        until = time.monotonic() + LOAD_TIMEOUT_S
        while True:
            began = time.perf_counter()
            if reached():
                return began
            if time.monotonic() > until:
                raise LoadTimeout(
                    f"not reached in {LOAD_TIMEOUT_S:,.0f} s: {what}; {dict(self.count_states())}"
                )
            # The query takes longer with more jobs: it must not become a load itself.
            time.sleep(max(POLL_INTERVAL_S, 20 * (time.perf_counter() - began)))

    def check(self, load: Load, hopeless: Sequence[JobId] = ()) -> None:
        """Check that every job but the hopeless has ended once, and that all books add up."""
        self.await_relay()
        load.problems += self.refused
        rows = self.connection.execute(NOT_ENDED_ONCE, [list(hopeless)]).fetchall()
        load.problems += [f"{org} {job}: {state}, {ends} ends" for org, job, state, ends in rows]
        with self.database.connect(timeouts=None) as connection:
            load.problems += [str(problem) for problem in verify(connection)]


def _state(job: PoolJob) -> str:
    return job.state.value


class _SubmissionAnswer:
    """Receives the answer to a submission, on the ledger's thread: it must be quick."""

    def __init__(self, deployment: Deployment, org: str, done: Callable[[], None]) -> None:
        self._world = deployment
        self._org = org
        self._done = done

    def set_running_or_notify_cancel(self) -> bool:
        """Return that the answer is wanted."""
        return True

    def set_result(self, answer: Answer, /) -> None:
        """Notify the pool at once, as the service does."""
        if isinstance(answer.outcome, Refusal):
            self._world.refused.append(f"refused: {answer.outcome}")
        self._world.pools.relay_from_org(self._org)
        self._done()

    def set_exception(self, error: Exception, /) -> None:
        """Record that the submission failed."""
        self._world.refused.append(f"failed: {error!r}")
        self._done()


def make_submission(job: Job) -> Submission:
    """Make the submission of a job, as the service does."""
    run_ms = job.run_max // MILLISECOND + STOP_GRACE_MS
    context = Context(gpu_types=job.shape.types, milli_gpus=job.shape.milli_gpus, job=job.id)
    return Submission(
        POOL,
        Reserve(
            hold=HoldId(job.id),
            account=AccountId(job.path[2]),
            user=USER,
            run_ms=run_ms,
            context=context,
        ),
        JobSpec(shape=job.shape, priority_class=job.priority_class, requeues=REQUEUES),
        request="{}",
    )


class LoadSetup(NamedTuple):
    """The pool and the accounts that a load needs before its first job."""

    snapshot: PoolSnapshot  # nodes and policy; its jobs are not used
    accounts: dict[str, tuple[str, ...]]  # org → accounts


@contextmanager
def deploy(server: Database, setup: LoadSetup) -> Iterator[Deployment]:
    """Run orgs, a pool and its leader; the nodes are registered and silent."""
    with scratch_database(server, "bursar_bench_schedule") as database:
        for org, accounts in setup.accounts.items():
            make_org(database, org, _make_commands(accounts))
        vacuum_and_checkpoint(database)
        clock = GuardedClock()
        plain = Database(database.url, None)
        with (
            database.connect(timeouts=None) as connection,
            Ledger(database.connect, PRICE_BOOK, clock=clock) as ledger,
            serving_pools(
                plain, ledger, clock, insert_root_account(setup.snapshot.policy)
            ) as pools,
        ):
            pools.add(POOL)
            handle = pools.handles[POOL]
            with ThreadPoolExecutor(64) as many:
                list(many.map(handle.register, setup.snapshot.nodes))
            yield Deployment(database, connection, ledger, pools)


def _make_commands(accounts: Iterable[str]) -> Iterator[Command]:
    yield AddAccount(account=ROOT, parent=None, name="org")
    yield AddUser(user=USER)
    yield SetTier(tier=PAID.name)
    for name in accounts:
        yield AddAccount(account=AccountId(name), parent=ROOT, name=name)
    yield Issue(grant=GrantId("plenty"), account=ROOT, amount=GRANT_MICROS, kind=CreditKind.PAID)


def simulate_nodes(deployment: Deployment, setup: LoadSetup, runs: RunTime) -> SimulatedNodes:
    """Make the simulated nodes of a load."""
    return SimulatedNodes(deployment.pools, POOL, setup.snapshot.nodes, runs)
