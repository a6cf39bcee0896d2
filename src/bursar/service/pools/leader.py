"""Who leads a pool: one process at a time decides, the others stand by (S11).

A leader says so every second and is believed for a term; whoever comes after it has a larger epoch,
and what the former has decided meanwhile is refused in the transaction that would write it. So a
process that dies, hangs or loses its connection is replaced within a term and a second, and two who
both believe to lead do no harm.

Its cluster is also what explains: whoever asks why a job waits is answered between two rounds, also
by those who stand by: they follow the pool as the leader does, and are ready to take over.

A round begins when something has changed, at once, or when the last plan said that time alone would
matter. Its cluster is a memory that follows the pool; if anything is denied when decisions are
written, the memory was wrong, and is thrown away.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeVar

from bursar.core.dispatch.following import Follower
from bursar.core.instant import SECOND, Instant
from bursar.core.refusal import Fault
from bursar.core.scheduling.cluster import Cluster
from bursar.core.scheduling.plan import carry_out, look_again
from bursar.core.scheduling.policy import Policy
from bursar.service.pools.keeper import PoolKeeper

SAYS_SO_S: Final = 1.0  # between two words that it leads, or two tries to
EXPIRES_S: Final = 2.0  # between two looks for what has run out

_log = logging.getLogger(__name__)

T = TypeVar("T")


class _Question(NamedTuple):
    question: Callable[[Cluster, Instant], Any]
    answer: "Future[Any]"


class Leading:
    """A thread that leads a pool, or stands by."""

    def __init__(self, keeper: PoolKeeper, policy: Policy, who: str) -> None:
        self._keeper = keeper
        self._policy = policy
        self._who = who
        self._wake = threading.Event()
        self._closed = False
        self._expires_at = 0.0
        self._leads_at = 0.0  # when it is time to say that it leads, or to try to
        self._epoch: int | None = None  # of the last turn; None while another leads
        self._questions: deque[_Question] = deque()
        self._thread = threading.Thread(target=self._work, name=f"leads-{keeper.id}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.leave()
        self._thread.join()

    def leave(self) -> None:
        """Lead no more; returns at once."""
        self._closed = True
        self._wake.set()

    def wake(self) -> None:
        """Something has changed."""
        self._wake.set()

    def ask(self, question: Callable[[Cluster, Instant], T]) -> "Future[T]":
        """What the scheduler's cluster has to say; it must be left as it is."""
        answer: Future[T] = Future()
        self._questions.append(_Question(question, answer))
        self._wake.set()
        return answer

    def _work(self) -> None:
        while not self._closed:
            self._wake.clear()
            try:
                pause = self._turn()
            except Fault as fault:
                _log.warning("pool %s is not led for now: %s", self._keeper.id, fault)
                self._keeper.unfollow()  # it may have carried out what was not written
                self._leads_at = 0.0
                pause = SAYS_SO_S
            except Exception:
                _log.exception("a round of pool %s has failed", self._keeper.id)
                self._keeper.unfollow()
                self._leads_at = 0.0
                pause = SAYS_SO_S
            if not self._wake.wait(pause):
                self._leads_at = 0.0  # it is time that matters: it is asked for

    def _led(self) -> tuple[int | None, Instant]:
        """The epoch, or None while somebody else leads; and the time.

        Between two words that it leads, the time is that of the last transaction, which has woken
        it; what was decided in the belief to lead is refused where it is written.
        """
        if time.monotonic() >= self._leads_at:
            epoch, now = self._keeper.lead(self._who)
            self._leads_at = 0.0 if epoch is None else time.monotonic() + SAYS_SO_S
            return epoch, now
        return self._epoch, self._keeper.look(lambda pool: pool.now)

    def _turn(self) -> float:
        """Lead for another moment; how long nothing has to be done, in seconds."""
        epoch, now = self._led()
        if epoch is not None:
            self._expire()
        follower, news = self._keeper.follow(self._policy, now)
        news = news or epoch != self._epoch  # what came while another led is news as well
        self._epoch = epoch
        pause = SAYS_SO_S if epoch is None else self._round(follower, epoch, now, news=news)
        self._explain(now)
        return pause

    def _explain(self, now: Instant) -> None:
        """Answer what was asked meanwhile."""
        while self._questions:
            asked = self._questions.popleft()
            if asked.answer.set_running_or_notify_cancel():
                try:
                    follower, _ = self._keeper.follow(self._policy, now)
                    asked.answer.set_result(asked.question(follower.cluster, now))
                except Exception as error:
                    asked.answer.set_exception(error)

    def _expire(self) -> None:
        if time.monotonic() >= self._expires_at:
            self._expires_at = time.monotonic() + EXPIRES_S
            self._keeper.expire()

    def _round(self, follower: Follower, epoch: int, now: Instant, *, news: bool) -> float:
        """Decide, and write what was decided; how long nothing has to be done."""
        cluster = follower.cluster
        again = look_again(cluster)
        if news or (again is not None and again <= now):
            decisions = carry_out(cluster, now).decisions
            again = look_again(cluster)
            if decisions:
                written = self._keeper.write(epoch, decisions)
                follower.placed(written.placed)
                if written.denied:
                    _log.info("pool %s is planned anew: %s", self._keeper.id, written.denied[0])
                    self._keeper.unfollow()
                    self._leads_at = 0.0
                    return 0.0
        return SAYS_SO_S if again is None else min(SAYS_SO_S, max(again - now, 0) / SECOND)
