"""A deployment to put a load on: orgs with credits, a pool with its leader, nodes that run nothing.

Whatever the service does is done: a job is submitted by the command that reserves its hold, the
post carries it, the leader decides, nodes are told and report, ends are settled in the ledger.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final, NamedTuple

from benchmarks.ledger.orgs import PLENTY, ROOT, USER, make_org, settle_down
from benchmarks.results import Load
from benchmarks.schedule.durable.nodes import Nodes, Runs
from benchmarks.schedule.loads import PRICES
from bursar.core.dispatch.attempt_end import STOP_GRACE_MS
from bursar.core.dispatch.state import Pool, PoolJob
from bursar.core.ids import AccountId, GrantId, HoldId, JobId, PriceVersionId
from bursar.core.instant import MILLISECOND
from bursar.core.ledger.commands import AddAccount, AddUser, Command, Issue, Reserve
from bursar.core.ledger.values import Context, CreditKind
from bursar.core.messages import JobSpec
from bursar.core.pricing import PriceBook, PriceVersion, Rate
from bursar.core.refusal import Refusal
from bursar.core.scheduling.model.jobs import Job
from bursar.core.scheduling.model.policy import PoolPolicy
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
WINDOW: Final = 512  # submissions of one caller that are on their way at most
REQUEUES: Final = 1_000  # whoever makes room runs again
PATIENCE_S: Final = 400.0  # that a load may take
LOOK_S: Final = 0.02  # between two looks at how far it is

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

STATES: Final = "select state, count(*) from jobs group by state"
ON_THE_WAY: Final = """
    select (select count(*) from org_outbox where acked_at is null)
         + (select count(*) from pool_outbox where acked_at is null)
"""
NOT_ENDED_ONCE: Final = """
    -- Every job is over, by one attempt that came to its own end and was told so once.
    select j.org_id, j.job_id, j.state, count(l.fence)
      from jobs j
      left join leases l on l.org_id = j.org_id and l.job_id = j.job_id and l.why = 'finished'
     where j.job_id <> all (%s::text[])
     group by j.org_id, j.job_id, j.state
    having j.state <> 'succeeded' or count(l.fence) <> 1
     order by j.org_id, j.job_id
     limit 5
"""


class Late(RuntimeError):
    """A load did not come to its end in time."""


def placed_in(policy: PoolPolicy) -> PoolPolicy:
    """A policy for paths as pools have them: with the root account between org and queue."""
    shares = tuple(
        ((*path[:2], ROOT, *path[2:]) if len(path) > 2 else path, share)
        for path, share in policy.shares
    )
    return replace(policy, shares=shares)


class World:
    """A deployment at work."""

    def __init__(
        self, database: ScratchDatabase, connection: Connection, ledger: Ledger, pools: Pools
    ) -> None:
        self.database = database
        self.connection = connection
        self.ledger = ledger
        self.pools = pools
        self.refused: list[str] = []

    # Submitting

    def submit(self, jobs: Iterable[tuple[float, Job]], began: float) -> None:
        """Submit jobs when they are due, in seconds from the beginning, without awaiting answers.

        Whoever is late goes on as fast as answers come; this returns when all have come.
        """
        room = threading.Semaphore(WINDOW)
        for due, job in jobs:
            ahead = began + due - time.perf_counter()
            if ahead > 0:
                time.sleep(ahead)
            room.acquire()
            self._ask(job, room.release)
        for _ in range(WINDOW):
            room.acquire()

    def submit_one_by_one(self, jobs: Sequence[Job], callers: int) -> None:
        """Submit jobs from so many threads, each of which awaits every answer."""

        def call(mine: Sequence[Job]) -> None:
            for job in mine:
                done = threading.Event()
                self._ask(job, done.set)
                done.wait()

        threads = [
            threading.Thread(target=call, args=(jobs[number::callers],))
            for number in range(callers)
        ]
        for one in threads:
            one.start()
        for one in threads:
            one.join()

    def _ask(self, job: Job, done: Callable[[], None]) -> None:
        org = job.path[1]
        ask = submission_request(org, f"submit-{job.id}", submission(job))
        self.ledger.tell(_Heard(self, org, done), ask)

    # Looking

    def states(self) -> Counter[str]:
        """How many jobs are in which state, as their orgs know it."""
        return Counter(dict(self.connection.execute(STATES).fetchall()))

    def progress(self, jobs: int) -> str:
        """How far a load of so many jobs has got, as the pool knows it."""
        keeper = self.pools.handles[POOL]
        count = keeper.look(lambda pool: Counter(map(_state, pool.jobs.values())))
        told = ", ".join(f"{many:,} {state}" for state, many in sorted(count.items()))
        return f"of {jobs:,} jobs {told or 'none is in the pool'}"

    def await_nodes(self) -> None:
        """Wait until all nodes were heard of."""

        def heard(pool: Pool) -> bool:
            return all(one.reported_at is not None for one in pool.machines.values())

        self._await(lambda: self.pools.handles[POOL].look(heard), "all nodes heard of")

    def await_all(self, state: str, count: int) -> float:
        """Wait until so many jobs are in a state; the instant, by `time.perf_counter`."""
        return self._await(lambda: self.states()[state] >= count, f"{count:,} jobs {state}")

    def await_post(self) -> None:
        """Wait until every message was acknowledged."""

        def empty() -> bool:
            return self.connection.execute(ON_THE_WAY).fetchone() == (0,)

        self._await(empty, "all messages acknowledged")

    def _await(self, reached: Callable[[], bool], what: str) -> float:
        until = time.monotonic() + PATIENCE_S
        while True:
            began = time.perf_counter()
            if reached():
                return began
            if time.monotonic() > until:
                raise Late(f"not reached in {PATIENCE_S:,.0f} s: {what}; {dict(self.states())}")
            # Looking takes the longer the more jobs there are: it must not become a load itself.
            time.sleep(max(LOOK_S, 20 * (time.perf_counter() - began)))

    def check(self, load: Load, hopeless: Sequence[JobId] = ()) -> None:
        """Whether every job has ended once, and all books add up; but for those that cannot run."""
        self.await_post()
        load.problems += self.refused
        left = self.connection.execute(NOT_ENDED_ONCE, [list(hopeless)]).fetchall()
        load.problems += [f"{org} {job}: {state}, {ends} ends" for org, job, state, ends in left]
        with self.database.connect(timeouts=None) as connection:
            load.problems += [str(problem) for problem in verify(connection)]


def _state(job: PoolJob) -> str:
    return job.state.value


class _Heard:
    """Takes the answer to a submission, on the ledger's thread: it must do little."""

    def __init__(self, world: World, org: str, done: Callable[[], None]) -> None:
        self._world = world
        self._org = org
        self._done = done

    def set_running_or_notify_cancel(self) -> bool:
        """It is wanted."""
        return True

    def set_result(self, told: Answer, /) -> None:
        """The pool is told at once, as the service does."""
        if isinstance(told.outcome, Refusal):
            self._world.refused.append(f"refused: {told.outcome}")
        self._world.pools.relay_from_org(self._org)
        self._done()

    def set_exception(self, error: Exception, /) -> None:
        """There is no such job."""
        self._world.refused.append(f"failed: {error!r}")
        self._done()


def submission(job: Job) -> Submission:
    """What is asked for, as the service asks it."""
    run_ms = job.run_max // MILLISECOND + STOP_GRACE_MS
    context = Context(
        gpu_types=job.shape.types, milli_gpus=job.shape.milli_gpus, job=job.id, tier=None
    )
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


class Setting(NamedTuple):
    """What a load needs before its first job."""

    snapshot: PoolSnapshot  # its nodes and its policy; jobs come from elsewhere
    accounts: dict[str, tuple[str, ...]]  # org → accounts


@contextmanager
def deployed(server: Database, setting: Setting) -> Iterator[World]:
    """Orgs, a pool and its leader, until the end; the nodes are registered and silent."""
    with scratch_database(server, "bursar_bench_schedule") as database:
        for org, accounts in setting.accounts.items():
            make_org(database, org, _commands(accounts))
        settle_down(database)
        clock = GuardedClock()
        plain = Database(database.url, None)
        with (
            database.connect(timeouts=None) as connection,
            Ledger(database.connect, PRICE_BOOK, clock=clock) as ledger,
            serving_pools(plain, ledger, clock, placed_in(setting.snapshot.policy)) as pools,
        ):
            pools.add(POOL)
            keeper = pools.handles[POOL]
            with ThreadPoolExecutor(64) as many:
                list(many.map(keeper.register, setting.snapshot.nodes))
            yield World(database, connection, ledger, pools)


def _commands(accounts: Iterable[str]) -> Iterator[Command]:
    yield AddAccount(account=ROOT, parent=None, name="org")
    yield AddUser(user=USER)
    for name in accounts:
        yield AddAccount(account=AccountId(name), parent=ROOT, name=name)
    yield Issue(grant=GrantId("plenty"), account=ROOT, amount=PLENTY, kind=CreditKind.PAID)


def nodes_of(world: World, setting: Setting, runs: Runs) -> Nodes:
    """The nodes of a load, to be let to work."""
    return Nodes(world.pools, POOL, setting.snapshot.nodes, runs)
