"""A pool as orgs hear of it: the messages that it would send, one after the other."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from bursar.core.ids import JobId
from bursar.core.instant import SECOND
from bursar.core.messages import (
    Cause,
    Corrected,
    Dropped,
    EndClass,
    Ended,
    RanSoFar,
    Started,
    ToOrg,
)
from bursar.service.jobs import Jobs, run_asks_through
from bursar.service.ledger.ledger import Ledger
from bursar.store.jobs.outbox import Envelope
from bursar.store.sql.connection import Connection, money_time
from tests.support.databases import connected

POOL: Final = "jobs"  # a pool without nodes, for all tests


class Told:
    """What a pool tells an org about one job, in order."""

    def __init__(self, connection: Connection, jobs: Jobs, org: str, job: str) -> None:
        self._connection = connection
        self._jobs = jobs
        self._org = org
        self._job = JobId(job)
        self._n = 0

    def say(self, message: ToOrg) -> None:
        """Tell the next message; it must be handled."""
        self._n += 1
        [(pool,)] = self._connection.execute(
            "select pool_id from jobs where org_id = %s and job_id = %s", [self._org, self._job]
        ).fetchall()
        now = money_time(self._connection)
        envelope = Envelope(self._org, pool, self._job, self._n, message, now)
        assert [envelope] == self._jobs.receive([envelope])

    def started(self, attempt: int = 1, gpu_type: str = "H100", run_s: int = 3_610) -> None:
        """An attempt runs."""
        at = money_time(self._connection) - SECOND
        run_ms = run_s * 1_000
        self.say(Started(attempt=attempt, gpu_type=gpu_type, started_at=at, run_ms=run_ms))

    def ran(self, run_s: int, attempt: int = 1) -> None:
        """An attempt has run for so long."""
        self.say(RanSoFar(attempt=attempt, run_ms=run_s * 1_000))

    def ended(
        self,
        why: Cause,
        run_s: int,
        attempt: int = 1,
        *,
        end_class: EndClass = EndClass.USER,
        over: bool = True,
        exit_code: int | None = None,
        result: str | None = None,
    ) -> None:
        """An attempt is over, and its job with it if it is not to go on."""
        self.say(
            Ended(
                attempt=attempt,
                end_class=end_class,
                run_ms=run_s * 1_000,
                kept_ms=None,
                job_finished=over,
                why=why,
                exit_code=exit_code,
                result=result,
            )
        )

    def corrected(self, end_class: EndClass, run_s: int, kept_s: int) -> None:
        """Somebody else answers for the end of the first attempt, and of the job."""
        self.say(
            Corrected(
                attempt=1,
                end_class=end_class,
                run_ms=run_s * 1_000,
                kept_ms=kept_s * 1_000,
                job_finished=True,
            )
        )

    def dropped(self, why: Cause, end_class: EndClass = EndClass.USER) -> None:
        """It is over, without having run."""
        self.say(Dropped(end_class=end_class, why=why))


class Pool:
    """All that a pool tells."""

    def __init__(self, connection: Connection, jobs: Jobs) -> None:
        self.connection = connection
        self.jobs = jobs

    def about(self, org: str, job: str) -> Told:
        """What it tells about a job."""
        return Told(self.connection, self.jobs, org, job)


@contextmanager
def pooling(url: str) -> Iterator[Pool]:
    """Whoever carries a pool's messages to the orgs of a database."""
    with connected(url) as connection, Ledger(lambda: connected(url)) as ledger:
        yield Pool(connection, Jobs(connection, run_asks_through(ledger)))
