"""Jobs for display: single jobs, pages, history, results; each read in one snapshot."""

from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from bursar.core.ids import JobId, OrgId
from bursar.core.instant import NEVER, Instant
from bursar.core.jobs.rows import Route
from bursar.service.ledger.batch import OrgUnknown
from bursar.service.queries.balances import AsOf
from bursar.service.queries.entities import ResultPage
from bursar.store.jobs.arrays import ArrayStates, array_states
from bursar.store.jobs.routing import routes
from bursar.store.jobs.rows import (
    Costly,
    Glance,
    JobFilter,
    JobView,
    Result,
    Step,
    account_names,
    elements_of,
    enter,
    glance,
    listed_jobs,
    result_of,
    shown_job,
    steps_of,
    top_jobs,
)
from bursar.store.ledger.loader import read_org
from bursar.store.sql.connection import SNAPSHOT, Connection, money_time

__all__ = [
    "FROM_THE_NEWEST",
    "ArrayStates",
    "Glance",
    "JobFilter",
    "JobQueries",
    "JobView",
    "Result",
    "Route",
    "Step",
]

T = TypeVar("T")

FROM_THE_NEWEST = (NEVER, "")


class JobQueries:
    """Reads jobs."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def job(self, org: OrgId, job: str) -> AsOf[JobView | None]:
        """A job in its current state."""
        return self._read(org, lambda: shown_job(self._connection, org, job))

    def page(
        self, org: OrgId, wanted: JobFilter, after: tuple[Instant, str], most: int
    ) -> AsOf[ResultPage[JobView]]:
        """Jobs of an org, newest first."""

        def ask() -> ResultPage[JobView]:
            rows = listed_jobs(self._connection, org, wanted, after, most + 1)
            last = rows[most - 1] if len(rows) > most else None
            next = None if last is None else f"{last.submitted_at}.{last.job}"
            return ResultPage(tuple(rows[:most]), next)

        return self._read(org, ask)

    def elements(
        self, org: OrgId, array: str, state: str | None, after: int, most: int
    ) -> AsOf[ResultPage[JobView]]:
        """The elements of an array that were added, by number."""

        def ask() -> ResultPage[JobView]:
            rows = elements_of(self._connection, org, array, state, after, most + 1)
            next = str(rows[most - 1].place) if len(rows) > most else None
            return ResultPage(tuple(rows[:most]), next)

        return self._read(org, ask)

    def array_states(self, org: OrgId, arrays: Sequence[JobId]) -> AsOf[dict[JobId, ArrayStates]]:
        """How many elements of arrays are in each state."""
        return self._read(org, lambda: array_states(self._connection, org, arrays))

    def result(self, org: OrgId, job: str) -> AsOf[Result | None]:
        """The result of a job."""
        return self._read(org, lambda: result_of(self._connection, org, job))

    def steps(self, org: OrgId, job: str, after: int, most: int) -> AsOf[ResultPage[Step]]:
        """The history of a job."""

        def ask() -> ResultPage[Step]:
            rows = steps_of(self._connection, org, job, after, most + 1)
            next = str(rows[most - 1].n) if len(rows) > most else None
            return ResultPage(tuple(rows[:most]), next)

        return self._read(org, ask)

    def routes(self, org: OrgId, job: str) -> AsOf[tuple[Route, ...]]:
        """The pools that the router sent a job to, and why; empty if the job names its pool."""
        return self._read(org, lambda: tuple(routes(self._connection, org, JobId(job))))

    def top(self, org: OrgId, by: str, most: int) -> AsOf[tuple[Costly, ...]]:
        """The unfinished jobs that have spent, hold or burn the most."""
        return self._read(org, lambda: tuple(top_jobs(self._connection, org, by, most)))

    def glance(self, org: OrgId, job: str) -> Glance | None:
        """A cheap check of whether anything about a job has changed."""
        with self._connection.transaction():
            enter(self._connection, [org])
            return glance(self._connection, org, job)

    def names(self, accounts: Collection[tuple[OrgId, str]]) -> dict[str, str]:
        """The names of accounts by id; unknown ids are left out."""
        with self._connection.transaction():
            enter(self._connection, sorted({org for org, _ in accounts}))
            return account_names(self._connection, accounts)

    def _read(self, org: OrgId, ask: Callable[[], T]) -> AsOf[T]:
        with self._connection.transaction():
            self._connection.execute(SNAPSHOT)
            row = read_org(self._connection, org)
            if row is None:
                raise OrgUnknown(org)
            at = money_time(self._connection)
            return AsOf(value=ask(), number=row.number, at=at)
