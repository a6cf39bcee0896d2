"""Loads and saves the rows of an org's jobs for one transaction (`core.jobs.transaction`).

Rows are read under the org's lock and written whole, with one statement for each table and kind of
change. This module contains no rules: `core.jobs` computes the rows.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from bursar.core.dispatch.job_lifecycle import JobState
from bursar.core.ids import JobId, OrgId
from bursar.core.instant import Instant
from bursar.core.jobs.rows import ArrayProgress, JobFigures, OrgJob, Route
from bursar.core.jobs.transaction import Alike, Heir, JobTransaction
from bursar.core.messages import EndClass, Enqueue
from bursar.core.money import Micros
from bursar.store.jobs import result_cache, routing
from bursar.store.jobs.arrays import ARRAY_COLUMNS, array_of_row, count_to_come
from bursar.store.jobs.outbox import message_of, message_text
from bursar.store.jobs.rows import Counting, count_latest, count_waiting
from bursar.store.sql.arrays import Values, array_literal, column_arrays
from bursar.store.sql.bulk_write import BulkWriter, bulk_write
from bursar.store.sql.connection import Connection, SentStatement
from bursar.store.sql.fragments import lookup, match_keys

# A correction is under way if one was sent to the pool that the pool has not answered. Only ended
# jobs are corrected.
_COLUMNS: Final = """
    t.job_id, t.account_id, t.user_id, t.pool_id, t.submitted_at, t.state, t.why, t.attempt, t.sent,
    t.received, t.withdrawn, t.steps, t.gpu_type, t.started_at, t.ended_at, t.end_class,
    t.exit_code, t.run_ms, t.max_cost, t.rolling,
    case when t.ended_at is null then false else
        (select count(*) from org_outbox w
          where w.org_id = t.org_id and w.job_id = t.job_id and w.body ->> 0 = 'Correct')
      > (select count(*) from job_steps s
          where s.org_id = t.org_id and s.job_id = t.job_id and s.why = 'corrected') end,
    t.result_digest, t.hit_ppm, t.leads, t.follows, t.source, t.hit, t.cached_from,
    t.enqueue_message::text, t.array_id, t.place, t.elements
"""
JOBS: Final = f"""
    select t.org_id, {_COLUMNS}
      from {lookup({"org_id": "text", "job_id": "text"}, "jobs")}
"""
ARRAYS: Final = f"""
    select a.org_id, {ARRAY_COLUMNS}
      from (select t.* from {lookup({"org_id": "text", "job_id": "text"}, "arrays")}) a
"""
LIVE_ELEMENTS: Final = f"""
    select {_COLUMNS}
      from jobs t
     where t.org_id = %s and t.array_id = %s and t.ended_at is null
     order by t.place
"""
FIGURES: Final = """
    select j.job_id, coalesce(sum(h.used), 0)::bigint, coalesce(sum(h.open), 0)::bigint
      from (select %s::text[] as excluded) x
     cross join unnest(%s::text[], %s::text[]) as u(org_id, job_id)
     cross join lateral (
           select * from jobs t where t.org_id = u.org_id and t.job_id = u.job_id offset 0) j
      left join lateral (
           select h.used, h.open
             from holds h
            where h.org_id = j.org_id and h.hold_id = j.job_id and h.hold_id <> all(x.excluded)
            union all
           select l.used, l.open
             from holds l
            where j.elements is not null and l.org_id = j.org_id and l.lot_of = j.job_id
              and l.hold_id <> all(x.excluded)) h on true
     group by j.job_id
"""


def ask_jobs(connection: Connection, keys: Sequence[tuple[OrgId, JobId]]) -> SentStatement:
    """Send the query for jobs by key; `jobs_of` reads the answer."""
    return connection.execute(JOBS, column_arrays(keys, 2))


def jobs_of(sent: SentStatement) -> dict[tuple[OrgId, JobId], OrgJob]:
    """The requested jobs that exist."""
    return {(org, JobId(row[0])): _job(row) for org, *row in sent.fetchall()}


def ask_arrays(connection: Connection, keys: Sequence[tuple[OrgId, JobId]]) -> SentStatement:
    """Send the query for arrays by key; `arrays_of` reads the answer."""
    return connection.execute(ARRAYS, column_arrays(keys, 2))


def arrays_of(sent: SentStatement) -> dict[tuple[OrgId, JobId], ArrayProgress]:
    """The requested arrays that exist."""
    return {(org, JobId(row[0])): array_of_row(*row) for org, *row in sent.fetchall()}


def _job(row: Sequence[Any]) -> OrgJob:
    (
        job, account, user, pool, submitted_at, state, why, attempt, sent, received, withdrawn,
        steps, gpu_type, started_at, ended_at, end_class, exit_code, run_ms, max_cost, rolling,
        correcting, digest, hit_ppm, leads, follows, source, hit, cached_from, unsent, array, place,
        elements,
    ) = row  # fmt: skip
    message = None if unsent is None else message_of(unsent)
    assert message is None or isinstance(message, Enqueue)
    return OrgJob(
        id=job,
        account=account,
        user=user,
        pool=pool,
        submitted_at=submitted_at,
        state=JobState(state),
        why=why,
        attempt=attempt,
        sent=sent,
        received=received,
        withdrawn=withdrawn,
        steps=steps,
        gpu_type=gpu_type,
        started_at=started_at,
        ended_at=ended_at,
        end_class=None if end_class is None else EndClass(end_class),
        exit_code=exit_code,
        run_ms=run_ms,
        max_cost=max_cost,
        rolling=rolling,
        correcting=correcting,
        digest=digest,
        hit_ppm=hit_ppm,
        leads=leads,
        follows=follows,
        source=source,
        hit=hit,
        cached_from=cached_from,
        unsent=message,
        array=array,
        place=place,
        elements=elements,
    )


class StoredJobs:
    """The stored rows of an org's jobs, inside a transaction that holds the org's lock.

    Rows that were not loaded for the whole batch are read when needed.
    """

    def __init__(
        self,
        connection: Connection,
        org: OrgId,
        jobs: Mapping[JobId, OrgJob] | None = None,
        arrays: Mapping[JobId, ArrayProgress] | None = None,
    ) -> None:
        self._connection = connection
        self._org = org
        self._jobs: dict[JobId, OrgJob | None] = dict(jobs or {})
        self._arrays: dict[JobId, ArrayProgress | None] = dict(arrays or {})

    def load(self, jobs: Sequence[JobId]) -> None:
        """Load jobs with one statement."""
        missing = [(self._org, job) for job in jobs if job not in self._jobs]
        if missing:
            rows = jobs_of(ask_jobs(self._connection, missing))
            self._jobs.update({job: rows.get((org, job)) for org, job in missing})

    def job(self, job: JobId) -> OrgJob | None:
        """A job."""
        self.load([job])
        return self._jobs[job]

    def array(self, array: JobId) -> ArrayProgress | None:
        """The progress of an array."""
        if array not in self._arrays:
            key = self._org, array
            self._arrays[array] = arrays_of(ask_arrays(self._connection, [key])).get(key)
        return self._arrays[array]

    def live_elements(self, array: JobId) -> list[OrgJob]:
        """The elements of an array that were added and have not finished, by number."""
        rows = self._connection.execute(LIVE_ELEMENTS, [self._org, array])
        elements = [_job(row) for row in rows]
        for element in elements:  # the rules read them one by one afterwards
            self._jobs.setdefault(element.id, element)
        return elements

    def figures(self, jobs: Sequence[JobId], excluded: Sequence[JobId]) -> dict[JobId, JobFigures]:
        """What jobs have spent and hold; an array with all of its elements."""
        keys = column_arrays([(self._org, job) for job in jobs], 2)
        rows = self._connection.execute(FIGURES, [array_literal(excluded), *keys])
        return {JobId(job): JobFigures(spent, held) for job, spent, held in rows}

    def routes(self, job: JobId) -> list[Route]:
        """The pools that a job was sent to, in order."""
        return routing.routes(self._connection, self._org, job)

    def last_enqueue(self, job: JobId) -> Enqueue:
        """The `Enqueue` message to the job's last pool."""
        return routing.last_enqueue(self._connection, self._org, job)

    def alike(self, digest: str, excluded: Sequence[JobId]) -> Alike:
        """The jobs with a digest."""
        return result_cache.alike(self._connection, (self._org, digest), excluded)

    def without_hold(
        self, digest: str, most: int, excluded: Sequence[JobId]
    ) -> list[tuple[JobId, Micros]]:
        """The first followers whose holds have ended, and what they have spent."""
        flight = self._org, digest
        ended = result_cache.without_hold(self._connection, flight, most, excluded)
        self.load([job for job, _ in ended])  # thousands may reach their limits together
        return ended

    def heir(
        self, digest: str, after: Instant, now: Instant, excluded: Sequence[JobId]
    ) -> Heir | None:
        """The first follower, of those submitted after an instant, whose hold lasts beyond now."""
        return result_cache.heir(self._connection, (self._org, digest), after, now, excluded)

    def count_waiting(self, account: str | None, user: str | None, most: int) -> int:
        """How many jobs and elements of an account, a user or both wait."""
        to_come = count_to_come(self._connection, self._org, account, user)
        of = Counting(account, user, -1, most)
        return count_waiting(self._connection, self._org, of) + to_come

    def count_latest(self, account: str | None, user: str | None, since: Instant, most: int) -> int:
        """How many jobs were submitted since an instant."""
        return count_latest(self._connection, self._org, Counting(account, user, since, most))


# Writing

# Columns of a job that change, with their types.
_CHANGING: Final = {
    "pool_id": "text",
    "state": "text",
    "why": "text",
    "attempt": "bigint",
    "sent": "bigint",
    "received": "bigint",
    "withdrawn": "boolean",
    "steps": "bigint",
    "gpu_type": "text",
    "started_at": "bigint",
    "ended_at": "bigint",
    "end_class": "text",
    "exit_code": "bigint",
    "result_digest": "text",
    "leads": "boolean",
    "follows": "boolean",
    "cached_from": "text",
    "enqueue_message": "json",
    "result": "text",
}
_KEY: Final = {"org_id": "text", "job_id": "text"}
_FIXED: Final = {
    "account_id": "text",
    "user_id": "text",
    "submitted_at": "bigint",
    "request": "json",
    "labels": "json",
    "run_ms": "bigint",
    "max_cost": "bigint",
    "rolling": "boolean",
    "hit_ppm": "bigint",
    "source": "text",
    "hit": "boolean",
    "array_id": "text",
    "place": "bigint",
    "elements": "bigint",
}


def _unnested(columns: Mapping[str, str]) -> str:
    """SQL for arrays of values as rows `u`; JSON is passed as text."""
    arrays = ", ".join(f"%s::{'text' if kind == 'json' else kind}[]" for kind in columns.values())
    return f"unnest({arrays}) as u({', '.join(columns)})"


def _inserted(table: str, columns: Mapping[str, str]) -> str:
    values = ", ".join(
        f"u.{name}::json" if kind == "json" else f"u.{name}" for name, kind in columns.items()
    )
    return f"""
        insert into {table} ({", ".join(columns)})
        select {values}
          from {_unnested(columns)}
    """


def _updated(table: str, columns: Mapping[str, str], optional: str = "") -> str:
    """The statement that updates rows by key; the column `optional` only if it is set."""
    changes = ", ".join(
        f"{name} = coalesce(u.{name}, t.{name})"
        if name == optional
        else f"{name} = u.{name}::json"
        if kind == "json"
        else f"{name} = u.{name}"
        for name, kind in columns.items()
    )
    return f"""
        update {table} t set {changes}
          from {_unnested({**_KEY, **columns})}
         where {match_keys("org_id", "job_id")}
    """


ADD_JOBS: Final = _inserted("jobs", {**_KEY, **_CHANGING, **_FIXED})
CHANGE_JOBS: Final = _updated("jobs", _CHANGING, optional="result")
_COUNTS: Final = {
    "begun": "bigint",
    "live": "bigint",
    "succeeded": "bigint",
    "failed": "bigint",
    "cancelled": "bigint",
    "expired": "bigint",
    "closed": "boolean",
    "done": "boolean",
}
ADD_ARRAYS: Final = _inserted(
    "arrays", {**_KEY, "count": "bigint", "at_once": "bigint", "body": "json", **_COUNTS}
)
CHANGE_ARRAYS: Final = _updated("arrays", _COUNTS)
ADD_MESSAGES: Final = _inserted(
    "org_outbox",
    {**_KEY, "n": "bigint", "pool_id": "text", "body": "json", "written_at": "bigint"},
)
ADD_RECEIPTS: Final = _inserted(
    "org_inbox",
    {
        "org_id": "text",
        "pool_id": "text",
        "job_id": "text",
        "n": "bigint",
        "at": "bigint",
        "refusal": "text",
    },
)
ADD_STEPS: Final = _inserted(
    "job_steps",
    {
        **_KEY,
        "n": "bigint",
        "at": "bigint",
        "state": "text",
        "why": "text",
        "attempt": "bigint",
        "gpu_type": "text",
        "exit_code": "bigint",
        "spent": "bigint",
        "held": "bigint",
        "other": "text",
        "end_class": "text",
    },
)
ADD_ROUTES: Final = _inserted(
    "job_routes",
    {
        **_KEY,
        "n": "bigint",
        "pool_id": "text",
        "at": "bigint",
        "arrived_at": "bigint",
        "reason": "text",
    },
)
ARRIVE: Final = f"""
    update job_routes t set arrived_at = u.arrived_at
      from unnest(%s::text[], %s::text[], %s::bigint[], %s::bigint[])
           as u(org_id, job_id, n, arrived_at)
     where {match_keys("org_id", "job_id", "n")}
"""


def save_jobs(connection: Connection, transactions: Mapping[OrgId, JobTransaction]) -> None:
    """Write the changes of transactions, with one statement for each kind of row.

    Jobs that stop leading are written before jobs that start to: at most one of those with the same
    digest leads.
    """
    with bulk_write(connection) as save:
        changed = list(_changed(transactions))
        save.write_rows(
            "jobs", CHANGE_JOBS, [_changes(*key) for key in changed if not key[1].leads]
        )
        save.write_rows("jobs", CHANGE_JOBS, [_changes(*key) for key in changed if key[1].leads])
        _add(save, transactions)
        _save_arrays(save, transactions)


def _changed(transactions: Mapping[OrgId, JobTransaction]) -> Iterable[tuple[OrgId, OrgJob]]:
    for org, work in transactions.items():
        for job, row in work.jobs.items():
            if job not in work.added:
                yield org, row


def _add(save: BulkWriter, transactions: Mapping[OrgId, JobTransaction]) -> None:
    """Add jobs, messages, receipts, steps and routes."""
    jobs: list[Values] = []
    messages: list[Values] = []
    receipts: list[Values] = []
    steps: list[Values] = []
    routes: list[Values] = []
    arrived: list[Values] = []
    for org, work in transactions.items():
        jobs += [(*_changes(org, job), *_fixed(job)) for job in work.new_jobs()]
        messages += [
            (org, row.job, row.n, row.pool, message_text(row.message), row.at)
            for row in work.messages
        ]
        receipts += [(org, *row) for row in work.receipts]
        steps += [(org, *row) for row in work.steps]
        routes += [(org, row.job, *row.route) for row in work.routes_added]
        arrived += [
            (org, row.job, row.route.n, row.route.arrived_at) for row in work.routes_arrived
        ]
    save.write_rows("jobs", ADD_JOBS, jobs)
    save.write_rows("org_outbox", ADD_MESSAGES, messages)
    save.write_rows("org_inbox", ADD_RECEIPTS, receipts)
    save.write_rows("job_steps", ADD_STEPS, steps)
    save.write_rows("job_routes", ADD_ROUTES, routes)
    save.write_rows("job_routes", ARRIVE, arrived)


def _save_arrays(save: BulkWriter, transactions: Mapping[OrgId, JobTransaction]) -> None:
    added: list[Values] = []
    changed: list[Values] = []
    for org, work in transactions.items():
        for array, row in work.arrays.items():
            if array in work.arrays_added:
                text = message_text(row.template)
                added.append((org, array, row.elements, row.at_once, text, *_counts(row)))
            else:
                changed.append((org, array, *_counts(row)))
    save.write_rows("arrays", ADD_ARRAYS, added)
    save.write_rows("arrays", CHANGE_ARRAYS, changed)


def _changes(org: OrgId, job: OrgJob) -> Values:
    return (
        org,
        job.id,
        job.pool,
        job.state.value,
        job.why,
        job.attempt,
        job.sent,
        job.received,
        job.withdrawn,
        job.steps,
        job.gpu_type,
        job.started_at,
        job.ended_at,
        None if job.end_class is None else job.end_class.value,
        job.exit_code,
        job.digest,
        job.leads,
        job.follows,
        job.cached_from,
        None if job.unsent is None else message_text(job.unsent),
        job.result,
    )


def _fixed(job: OrgJob) -> Values:
    return (
        job.account,
        job.user,
        job.submitted_at,
        job.request,
        job.labels,
        job.run_ms,
        job.max_cost,
        job.rolling,
        job.hit_ppm,
        job.source,
        job.hit,
        job.array,
        job.place,
        job.elements,
    )


def _counts(array: ArrayProgress) -> Values:
    return (
        array.begun,
        array.live,
        array.succeeded,
        array.failed,
        array.cancelled,
        array.expired,
        array.closed,
        array.done,
    )
