"""Leadership of a pool: one process at a time decides, the others stand by (S11).

A leader renews its lease every second. Its successor has a larger epoch, and the transaction that
would write decisions of the former leader refuses them. So a process that dies, hangs or loses its
connection is replaced within a term and a second. Two processes that both believe they lead are
harmless: the epoch check rejects the stale one.

A pool without waiting or running jobs is not led: its leader records this after a while and rests,
and so do the processes that stand by. A process that changes the pool leads it at once; the others
are woken when the pool's row says that a leader is needed.

Queries, such as why a job waits, are answered from the leader's cluster between two rounds. A
process that stands by answers too: its cluster mirrors the pool, so that it can take over.

A round starts as soon as something has changed, or at the time that the last plan named. The
cluster is a copy of the pool in memory. If the pool denies a decision, the copy was out of date and
is rebuilt. The inputs of the cluster and the decisions are recorded in the transaction that carries
the decisions out, so that they can be replayed (S14).
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeVar

from bursar.core.dispatch.audit_stream import AuditRecord
from bursar.core.dispatch.cluster_sync import ClusterMirror
from bursar.core.instant import NEVER, SECOND, Instant
from bursar.core.scheduling.decisions import Decision
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.policy import PoolPolicy
from bursar.core.scheduling.plan import carry_out, next_planning_time
from bursar.failpoints import failpoint
from bursar.service.ledger.batcher import Busy
from bursar.service.pools.pool import PoolHandle
from bursar.service.workers.worker import REST, Task, Turn, Worker

RENEW_INTERVAL_S: Final = 1.0  # between two renewals of the leader's lease, or two tries to lead
DENIED_RETRY_S: Final = 0.01  # after a second denial in a row; doubles each time
EXPIRE_INTERVAL_S: Final = 2.0  # between two searches for expired leases
REST_AFTER_S: Final = 10.0  # without a job that waits or runs
WANTED_FOR_S: Final = 30.0  # after a request, a leader does not rest
AUDIT_RECORDS_MAX: Final = 1_000  # inputs that wait for the next decision
AUDIT_INTERVAL_S: Final = 60.0  # that inputs wait to be recorded

_log = logging.getLogger(__name__)

T = TypeVar("T")


class _Question(NamedTuple):
    question: Callable[[Cluster, Instant], Any]
    answer: "Future[Any]"


def _not_leading(pool: str) -> Busy:
    return Busy(f"this process no longer leads pool {pool}")


class PoolLeader:
    """Leads a pool or stands by, in a thread of its own while there is work."""

    def __init__(self, handle: PoolHandle, policy: PoolPolicy, who: str) -> None:
        self._handle = handle
        self._policy = policy
        self._who = who
        self._worker = Worker(
            f"leader-{handle.id}",
            self._leading,
            interval_s=RENEW_INTERVAL_S,
            retry_s=RENEW_INTERVAL_S,
        )
        self._expires_at = 0.0
        self._renew_at = 0.0  # when to renew the lease, or to try to get it
        self._rests_at = 0.0  # when it may rest if nothing happens
        self._wanted_until = 0.0  # does not rest before
        self._epoch: int | None = None  # of the last turn; None while another leads
        self._news = True  # since the last round
        self._next_plan_at: Instant | None = None  # when to plan without news
        self._denials = 0  # rounds in a row with a denied decision
        self._last_audit_event = 0  # the last event of its own
        self._audit_at = 0.0  # when recorded inputs are written although nothing was decided
        self._questions: deque[_Question] = deque()

    def __enter__(self) -> Self:
        self._worker.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._worker.stop()
        self._fail_questions(_not_leading(self._handle.id))  # asked between two sessions

    def leave(self) -> None:
        """Stop leading; returns at once."""
        self._worker.request_stop()

    @property
    def epoch(self) -> int | None:
        """The epoch in which it leads; None if it does not lead."""
        return None if self.is_resting else self._epoch

    @property
    def is_resting(self) -> bool:
        """Whether no thread is running."""
        return self._worker.is_resting

    def wake(self) -> None:
        """Start a turn, because something has changed."""
        self._worker.wake()

    def request_leader(self) -> None:
        """Lead for a while even without jobs, because a caller needs a leader; to be repeated."""
        self._wanted_until = time.monotonic() + WANTED_FOR_S
        if self.is_resting:
            self.wake()

    @property
    def _wanted(self) -> bool:
        return time.monotonic() < self._wanted_until

    def ask(self, question: Callable[[Cluster, Instant], T]) -> "Future[T]":
        """Run a query on the scheduler's cluster, which it must not change.

        The result is an error if this process cannot answer, or is stopping.
        """
        answer: Future[T] = Future()
        self._questions.append(_Question(question, answer))
        self.wake()
        if self._worker.is_stopping:  # the thread may have ended before it saw the question
            self._fail_questions(_not_leading(self._handle.id))
        return answer

    @contextmanager
    def _leading(self) -> Iterator[Task]:
        """A session of turns; after an error the cluster, which may be wrong, is discarded."""
        self._rests_at = time.monotonic() + REST_AFTER_S
        try:
            yield self._take_turn
        except Exception as error:
            self._handle.unfollow()
            self._renew_at = 0.0
            if not self._worker.is_stopping:
                self._fail_questions(error)
            raise
        finally:
            if self._worker.is_stopping:
                self._fail_questions(_not_leading(self._handle.id))

    def _take_turn(self, turn: Turn) -> float:
        if turn.is_poll:
            self._renew_at = 0.0  # time has passed: renew the lease and read the time
        pause_s = self._turn()
        return REST if pause_s is None else pause_s

    def _fail_questions(self, error: Exception) -> None:
        """Answer all queries with an error."""
        for question in self._take_questions():
            question.answer.set_exception(error)

    def _take_questions(self) -> Iterator[_Question]:
        """Yield the queries that were not cancelled; the caller must answer them."""
        while True:
            try:
                question = self._questions.popleft()  # others may take one at the same time
            except IndexError:
                return
            if question.answer.set_running_or_notify_cancel():
                yield question

    def _renew_if_due(self) -> tuple[int | None, Instant]:
        """The epoch, or None while another process leads; and the time.

        Between two renewals the time is that of the last transaction. If this process no longer
        leads, its decisions are refused when they are written.
        """
        if time.monotonic() >= self._renew_at:
            epoch, now = self._handle.lead(self._who, anyway=self._wanted)
            self._renew_at = 0.0 if epoch is None else time.monotonic() + RENEW_INTERVAL_S
            return epoch, now
        return self._epoch, self._handle.look(lambda pool: pool.now)

    def _turn(self) -> float | None:
        """Take one turn; returns the seconds until the next, or None to rest."""
        epoch, now = self._renew_if_due()
        if epoch is not None:
            failpoint("leader.elected")
            self._expire()
        follower = self._follow_pool(now)
        now = follower.cluster.now  # at least: a cluster's time never goes back
        if epoch is None:
            follower.recorder.discard_window()
        elif epoch != self._epoch or not follower.recorder.is_open:
            follower.recorder.begin_window()
        # Changes while another process led count as news as well.
        self._news, self._epoch = self._news or epoch != self._epoch, epoch
        pause = RENEW_INTERVAL_S if epoch is None else self._round(follower, epoch, now)
        self._answer_questions(now)
        return None if self._may_rest(epoch, now) else pause

    def _follow_pool(self, now: Instant) -> ClusterMirror:
        """The cluster, updated from the pool."""
        follower, news = self._handle.follow(self._policy, now)
        self._news = self._news or news
        return follower

    def _answer_questions(self, now: Instant) -> None:
        """Answer the waiting queries."""
        for question in self._take_questions():
            try:
                cluster = self._follow_pool(now).cluster
                question.answer.set_result(question.question(cluster, cluster.now))
            except Exception as error:
                question.answer.set_exception(error)

    def _expire(self) -> None:
        if time.monotonic() >= self._expires_at:
            self._expires_at = time.monotonic() + EXPIRE_INTERVAL_S
            self._handle.expire()

    def _round(self, follower: ClusterMirror, epoch: int, now: Instant) -> float:
        """Plan and write the decisions; returns the seconds until the next round is due.

        `_next_plan_at` was computed after the last round, because the cluster's clock has advanced
        since and would give only the following time.
        """
        cluster = follower.cluster
        if self._news or (self._next_plan_at is not None and self._next_plan_at <= now):
            self._news = False
            decisions = carry_out(cluster, now).decisions
            follower.recorder.record_decisions(decisions)
            self._next_plan_at = next_planning_time(cluster)
            if not self._write(follower, epoch, decisions):
                return min(RENEW_INTERVAL_S, DENIED_RETRY_S * ((1 << min(self._denials, 10)) - 2))
        again = self._next_plan_at
        return (
            RENEW_INTERVAL_S
            if again is None
            else min(RENEW_INTERVAL_S, max(again - now, 0) / SECOND)
        )

    def _write(self, follower: ClusterMirror, epoch: int, decisions: tuple[Decision, ...]) -> bool:
        """Write the decisions and their record; False if one was denied."""
        recorder = follower.recorder
        waited = recorder.size >= AUDIT_RECORDS_MAX or time.monotonic() >= self._audit_at
        if not decisions and not (recorder.size and waited):
            return True
        self._audit_at = time.monotonic() + AUDIT_INTERVAL_S
        failpoint("leader.planned")
        written = self._handle.write(
            epoch, decisions, AuditRecord(recorder.take(), self._last_audit_event)
        )
        failpoint("leader.written")
        self._last_audit_event = written.audit_events
        follower.add_leases(written.placed)
        self._denials = self._denials + 1 if written.denied else 0
        if written.denied:
            say = _log.warning if self._denials > 3 else _log.info
            say("pool %s: decision denied (%s); planning again", self._handle.id, written.denied[0])
            self._handle.unfollow()
            self._renew_at = 0.0
        return not written.denied

    def _may_rest(self, epoch: int | None, now: Instant) -> bool:
        """Whether no turn is needed until the next call; a leader records this."""
        active = self._handle.look(lambda pool: bool(pool.hold_ends or pool.live))
        undecided = self._news and epoch is not None
        if active or undecided or self._wanted:
            self._rests_at = time.monotonic() + REST_AFTER_S
            return False
        if epoch is None:
            return self._handle.look(lambda pool: now < pool.leader_due_at)
        if time.monotonic() < self._rests_at:
            return False
        self._audit_at = 0.0  # write the rest of the record now
        return self._write(self._follow_pool(now), epoch, ()) and self._handle.rest(epoch, NEVER)
