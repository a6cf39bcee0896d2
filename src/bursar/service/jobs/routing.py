"""Chooses the pool of a job, from this process's measurements of its pools.

The router measures each pool (`Prospect`) through its scheduler in this process, which may lead the
pool or stand by, and only when a submission needs it. So a submission queries neither the database
nor a node. A measurement is used for half a second, or longer if measuring is slow, so that it
takes a small part of the scheduler's time however long the queue is. Jobs sent meanwhile are added,
so that a burst neither goes to one pool nor exceeds a limit. If the measurement is too old, the
submission waits for a new one. A submission is rejected only by a measurement that was current when
it arrived.

`Mover` moves waiting jobs without an attempt to better pools, in one process at a time
(`core.scheduling.advice.routing.find_better_pool`).
"""

import logging
import threading
import time
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import Final, Protocol

from bursar.core.dispatch.cluster_sync import ClusterMirror, describe_job
from bursar.core.dispatch.job_lifecycle import JobState
from bursar.core.dispatch.state import JobKey, Pool
from bursar.core.ids import OrgId, PoolId
from bursar.core.instant import Instant
from bursar.core.scheduling.advice.admission import Admitted, Bucket, Rejected, RejectionCode, admit
from bursar.core.scheduling.advice.pool_load import OrgBacklog
from bursar.core.scheduling.advice.routing import (
    PoolBid,
    PoolMove,
    Prospect,
    RankedPools,
    WaitingJob,
    can_run,
    find_better_pool,
    measure_prospect,
    rank_pools,
    with_job,
)
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.jobs import Job, Path
from bursar.core.scheduling.model.policy import PoolPolicy, Tier
from bursar.core.tiers import list_allowed_tiers
from bursar.core.value import replace
from bursar.service.jobs.relocation import ask_to_leave
from bursar.service.ledger.clock import GuardedClock
from bursar.service.pools.pool import PoolHandle
from bursar.service.queries.balances import tier_of
from bursar.service.workers.worker import LeasedWorker
from bursar.store.jobs.routing import START, Movable, movable
from bursar.store.sql.connection import Connection

FRESH_S: Final = 0.5  # after which a look is taken again
OLD_S: Final = 5.0  # after which it is not used
PART: Final = 20  # of a scheduler's time one part in so many goes to looks
WAIT_S: Final = 2.0  # for an answer that is needed

WORKER: Final = "relocation"
PAGE: Final = 500  # jobs that are looked at together
PAGES: Final = 10  # in a round; the next goes on behind them
MOVES_MOST: Final = 100  # in a round

_log = logging.getLogger(__name__)


class Explaining(Protocol):
    """The scheduler of a pool, for queries."""

    @property
    def is_resting(self) -> bool:
        """Whether the pool has no jobs, so that it can be measured without the scheduler."""

    def ask(
        self, question: Callable[[Cluster, Instant], tuple[Prospect, float]]
    ) -> "Future[tuple[Prospect, float]]":
        """Run a query on the cluster."""


class ServedPools(Protocol):
    """The pools of this process."""

    @property
    def handles(self) -> Mapping[PoolId, PoolHandle]:
        """The pools by name."""

    def leader_of(self, pool: PoolId) -> Explaining:
        """The scheduler of a pool."""

    def relay_from_org(self, org: OrgId) -> None:
        """Deliver the messages of an org to its pools."""


class _Outlook:
    """The last measurement of one pool."""

    def __init__(self, pool: PoolId, ticks: Callable[[], float]) -> None:
        self._pool = pool
        self._ticks = ticks
        self._known: Prospect | None = None
        self._at = 0.0  # when it was taken
        self._good_until = 0.0  # when the next one was due
        self._again_at = 0.0
        self._sent: dict[Path, OrgBacklog] = {}  # since then, by tier and org
        self._pending: Future[None] | None = None
        self._lock = threading.RLock()  # an answer may arrive before the caller waits for it

    @property
    def known(self) -> Prospect | None:
        """The last measurement, including jobs sent since."""
        return self._known

    def is_settled(self, at_s: float) -> bool:
        """Whether the measurement was current at an instant, or was taken later."""
        with self._lock:
            return self._known is not None and (at_s < self._good_until or at_s <= self._at)

    def refresh(
        self, explaining: Explaining, handle: PoolHandle, *, anew: bool
    ) -> "Future[None] | None":
        """Start a measurement if one is due. Returns what to wait for if the last one is too old.

        With `anew`, the caller must wait for a measurement in progress as well.
        """
        with self._lock:
            now = self._ticks()
            if self._pending is None and now >= self._again_at:
                self._pending = Future()
                seen = handle.look_now(self._look_at_rest) if explaining.is_resting else None
                answer = explaining.ask(self._look) if seen is None else _there(seen)
                answer.add_done_callback(partial(self._take_answer, self._pending))
            old = self._known is None or now > self._at + OLD_S
            return self._pending if old or anew else None

    def _look(self, cluster: Cluster, now: Instant) -> tuple[Prospect, float]:
        began_s = self._ticks()
        return measure_prospect(self._pool, cluster, now), self._ticks() - began_s

    def _look_at_rest(self, pool: Pool, now: Instant) -> tuple[Prospect, float] | None:
        """Measure an idle pool from memory: it has only nodes."""
        if not pool.machines or pool.jobs.keys() - pool.finished.keys():
            return None
        follower = ClusterMirror(PoolPolicy(), now)
        follower.follow(pool, (), now)
        return self._look(follower.cluster, now)

    def _take_answer(
        self, pending: "Future[None]", answer: "Future[tuple[Prospect, float]]"
    ) -> None:
        """Store a measurement. If it failed, the last one stays."""
        with self._lock:
            self._pending = None
            if answer.cancelled() or answer.exception() is not None:
                self._again_at = self._ticks() + FRESH_S
            else:
                self._known, took_s = answer.result()
                self._at = self._ticks()
                self._good_until = self._again_at = self._at + max(FRESH_S, took_s * PART)
                self._sent.clear()
        pending.set_result(None)

    def send(self, job: Job, bid: PoolBid, count: int) -> None:
        """Count jobs that were sent to the pool."""
        with self._lock:
            org = job.path[:2]
            before = self._sent.get(org, OrgBacklog(1, 0, 0))
            work = before.work + count * job.shape.milli_gpus * job.likely_run
            self._sent[org] = OrgBacklog(before.weight, before.jobs + count, work)
            if self._known is not None:
                self._known = with_job(self._known, job, bid)

    def admit(self, job: Job, bucket: Bucket, now: Instant, count: int) -> "Answer":
        """Admit or reject jobs, by the last measurement."""
        known = self._known
        assert known is not None
        load, more = known.load, self._sent.get(job.path[:2])
        if more is not None:
            own = load.orgs.get(job.path[:2], OrgBacklog(1, 0, 0))
            own = OrgBacklog(own.weight, own.jobs + more.jobs, own.work + more.work)
            load = replace(load, orgs=ChainMap({job.path[:2]: own}, dict(load.orgs)))
        policy = with_tier(known.policy, job.path[0])
        answer = admit(job, policy, (load,), bucket, now, count, allow_unplaceable=True)
        late = isinstance(answer, Rejected) and answer.code is RejectionCode.OVERLOADED
        if late and not load.free + load.running:  # no nodes: no other job is delayed by it
            return Admitted(wait=answer.wait, bucket=answer.bucket)
        return answer


Answer = Admitted | Rejected


def _there(seen: tuple[Prospect, float]) -> "Future[tuple[Prospect, float]]":
    """A future that already has its result."""
    answer: Future[tuple[Prospect, float]] = Future()
    answer.set_result(seen)
    return answer


def with_tier(policy: PoolPolicy, name: str) -> PoolPolicy:
    """The policy with a tier; an unknown one is added as the lowest, with default limits."""
    if any(tier.name == name for tier in policy.tiers):
        return policy
    return replace(policy, tiers=(*policy.tiers, Tier(name=name)))


class Router:
    """Chooses pools for jobs, by the measurements of this process."""

    def __init__(self, pools: ServedPools, ticks: Callable[[], float] = time.monotonic) -> None:
        self._pools = pools
        self._ticks = ticks
        self._outlooks: dict[PoolId, _Outlook] = {}
        self._lock = threading.Lock()

    def look(self, *names: PoolId, anew: bool = False) -> "list[Future[None]]":
        """Start measurements of these pools, or of all; return what to wait for.

        With `anew`, also measurements in progress: a permanent rejection needs them.
        """
        pools = self._pools
        names = names or tuple(pools.handles)
        refreshes = (
            self._of(name).refresh(pools.leader_of(name), pools.handles[name], anew=anew)
            for name in names
        )
        return [pending for pending in refreshes if pending is not None]

    def knows(self, pool: PoolId) -> bool:
        """Whether a pool has been measured."""
        return self._of(pool).known is not None

    def now_s(self) -> float:
        """The current time of the clock that `is_settled` uses."""
        return self._ticks()

    def is_settled(self, at_s: float, *names: PoolId) -> bool:
        """Whether a submission that arrived at an instant can be rejected by the measurements.

        This concerns the named pools, or all.
        """
        return all(self._of(name).is_settled(at_s) for name in names or tuple(self._pools.handles))

    def prospects(self) -> list[Prospect]:
        """The last measurements, in the order of the pools' names."""
        known = (self._of(name).known for name in sorted(self._pools.handles))
        return [prospect for prospect in known if prospect is not None]

    def routed(self, job: Job) -> RankedPools:
        """The pools that could run a job, best first, and what the others lack."""
        return rank_pools(job, self.prospects())

    def admit(self, pool: PoolId, job: Job, bucket: Bucket, now: Instant, count: int = 1) -> Answer:
        """Admit or reject jobs in a pool that has been measured.

        Whether the pool could ever run them is not checked here, but when the pool is chosen.
        """
        return self._of(pool).admit(job, bucket, now, count)

    def policy(self, pool: PoolId) -> PoolPolicy:
        """The policy of a pool that has been measured."""
        known = self._of(pool).known
        assert known is not None
        return known.policy

    def tier(self, pool: PoolId, name: str) -> Tier:
        """The tier by the policy of a pool that has been measured."""
        policy = with_tier(self.policy(pool), name)
        return next(tier for tier in policy.tiers if tier.name == name)

    def send(self, job: Job, bid: PoolBid, count: int = 1) -> None:
        """Count jobs that are being sent to a pool."""
        self._of(bid.pool).send(job, bid, count)

    def _of(self, pool: PoolId) -> _Outlook:
        with self._lock:
            return self._outlooks.setdefault(pool, _Outlook(pool, self._ticks))


class Moves:
    """Moves waiting jobs to better pools, on a connection."""

    def __init__(
        self,
        connection: Connection,
        pools: ServedPools,
        router: Router,
        clock: Callable[[Connection], Instant],
    ) -> None:
        self._connection = connection
        self._pools = pools
        self._router = router
        self._clock = clock
        self._after: tuple[OrgId, Instant, str] = START
        # Since when jobs cannot run in their pools: in the walk before, and in this one.
        self._lacked: dict[JobKey, Instant] = {}
        self._lacking: dict[JobKey, Instant] = {}

    def round(self, goes_on: Callable[[], bool] = lambda: True) -> int:
        """Request that some jobs move to other pools; return how many."""
        moves = 0
        for page in self._pages(goes_on):
            wait(self._router.look(), WAIT_S)
            now = self._clock(self._connection)
            for job in page:
                if moves < MOVES_MOST and self._move(job, now):
                    moves += 1
        return moves

    def _pages(self, goes_on: Callable[[], bool]) -> Iterator[Sequence[Movable]]:
        """Pages of jobs, continuing where the last round ended; none if there is only one pool."""
        for _ in range(PAGES):
            if len(self._pools.handles) < 2 or not goes_on():
                return
            page = movable(self._connection, self._after, PAGE)
            if page:
                yield page
            if len(page) < PAGE:
                self._after = START
                self._lacked, self._lacking = self._lacking, {}
                return
            self._after = page[-1].org, page[-1].submitted_at, page[-1].job

    def _move(self, movable: Movable, now: Instant) -> bool:
        """Request a job back from its pool if another pool is better."""
        waiting = self._waits(movable, now)
        there = (
            None if waiting is None else find_better_pool(waiting, self._router.prospects(), now)
        )
        if waiting is None or there is None or not self._may_run_there(movable, waiting, there):
            return False
        way = movable.pool, there.to.pool, there.reason
        if not ask_to_leave(self._connection, self._clock, movable.org, movable.job, way):
            return False
        self._router.send(waiting.job, there.to)
        self._pools.relay_from_org(movable.org)
        _log.info(
            "moving job %s of org %s to pool %s: %s",
            movable.job,
            movable.org,
            there.to.pool,
            there.reason,
        )
        return True

    def _may_run_there(self, movable: Movable, waiting: WaitingJob, move: PoolMove) -> bool:
        """Whether a job's org may use its tier in the pool that it would move to."""
        tier = tier_of(self._connection, movable.org)
        order = [each.name for each in self._router.policy(move.to.pool).tiers]
        return waiting.job.path[0] in list_allowed_tiers(tier, [order])

    def _waits(self, movable: Movable, now: Instant) -> WaitingJob | None:
        """The job in its pool, if it waits there without an attempt."""
        handle = self._pools.handles.get(movable.pool)
        key = movable.org, movable.job
        job = None if handle is None else handle.look(partial(_waiting, key=key))
        if job is None:
            return None
        here = next(
            (prospect for prospect in self._router.prospects() if prospect.pool == movable.pool),
            None,
        )
        if here is not None and not can_run(here, job):
            self._lacking[key] = self._lacked.get(key, now)
        return WaitingJob(
            job,
            movable.pool,
            movable.arrived_at,
            len(movable.pools) - 1,
            frozenset(movable.pools),
            self._lacking.get(key),
        )


def _waiting(pool: Pool, key: JobKey) -> Job | None:
    """A job that waits in a pool without an attempt, in the form that the scheduler uses."""
    job = pool.jobs.get(key)
    waits = job is not None and job.state is JobState.QUEUED and job.attempt == 0
    return describe_job(job) if job is not None and waits else None


class Mover(LeasedWorker):
    """Moves jobs at intervals, while this process holds the lease."""

    def __init__(
        self,
        connect: Callable[[], Connection],
        pools: ServedPools,
        router: Router,
        *,
        interval_s: float = 15.0,
        term_s: float = 45.0,
        clock: Callable[[Connection], Instant] | None = None,
    ) -> None:
        clock = clock or GuardedClock()
        super().__init__(
            WORKER,
            connect,
            lambda connection: Moves(connection, pools, router, clock).round,
            interval_s=interval_s,
            term_s=term_s,
            clock=clock,
        )
