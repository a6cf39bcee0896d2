"""Moving a job that has not begun from one pool to another, on its org's side (S10, D4).

    ask_to_leave   a route to the other pool, and `Leave` to the one it waits in
    receive_left   `Left`: the job is in the other pool from now on, which is sent its `Enqueue`

The hold stays all the time. A pool gives back what has not begun, and nothing else: so between the
two the job is in neither pool, and before and after in one. What was asked and does not come to
pass because the job has begun, is over or was cancelled is left as it is: a route that never
arrived. Who was cancelled meanwhile is not sent on; its former pool says that it is over.
"""

from collections.abc import Callable, Iterable
from typing import Final

from bursar.core.ids import JobId
from bursar.core.instant import Instant
from bursar.core.messages import Enqueue, Leave, Left
from bursar.core.value import altered
from bursar.service.jobs.states import Stand
from bursar.service.jobs.submitting import told
from bursar.store.jobs import JobRow, Noted, ask_jobs, jobs_of, save_notes
from bursar.store.outbox import Letter, PoolId
from bursar.store.reading import Connection, OrgId, lock_orgs, locked
from bursar.store.routing import Route, arrive, begin_route, enqueue_again, routes

Clock = Callable[[Connection], Instant]

QUEUED: Final = "queued"


def ask_to_leave(
    connection: Connection, clock: Clock, org: OrgId, job: JobId, there: tuple[PoolId, PoolId, str]
) -> bool:
    """Ask a job's pool to give it back; False if it is not to be moved (any more).

    `there` are the pool where it was seen to wait, the one it shall go to, and why.
    """
    here, to, why = there
    with connection.transaction(), connection.pipeline():
        row = _locked(connection, org, job)
        if row is None or row.pool != here or not _may_move(row):
            return False
        been = routes(connection, org, job)
        if not been or been[-1].arrived_at is None or any(one.pool == to for one in been):
            return False
        now = clock(connection)
        begin_route(connection, org, job, Route(been[-1].n + 1, to, now, None, why))
        save_notes(connection, [told(org, job, Leave(), now)])
        return True


def _locked(connection: Connection, org: OrgId, job: JobId) -> JobRow | None:
    """A job of an org that is locked now; None if there is none, or if nothing may be written."""
    locking = lock_orgs(connection, [org])
    asked = ask_jobs(connection, [(org, job)])
    row = locked(locking).get(org)
    found = jobs_of(asked).get((org, job))
    return None if row is None or row.frozen is not None else found


def _may_move(row: JobRow) -> bool:
    return row.state == QUEUED and row.received == 0 and not (row.withdrawn or row.follows)


def receive_left(connection: Connection, clock: Clock, letters: Iterable[Letter]) -> list[Letter]:
    """Handle what pools say of jobs that they have given back; those that need not come again."""
    return [one for one in letters if _handled(connection, clock, one)]


def _handled(connection: Connection, clock: Clock, letter: Letter) -> bool:
    """Send a job on that was given back, unless that was done before; whether it is done."""
    assert isinstance(letter.message, Left)
    org, job = letter.org, letter.job
    with connection.transaction(), connection.pipeline():
        row = _locked(connection, org, job)
        if row is None:
            return False
        if row.pool != letter.pool or letter.n <= row.received:
            return True
        if letter.n != row.received + 1:
            return False
        now = clock(connection)
        noted = [Noted("receive", (org, letter.pool, job, letter.n, now, None))]
        if row.withdrawn:  # its pool hears of that, too, and says that it is over
            noted.append(Noted("go on", (org, job, letter.n, *Stand())))
        else:
            noted += _sent_on(connection, org, job, now)
        save_notes(connection, noted)
        return True


def _sent_on(connection: Connection, org: OrgId, job: JobId, now: Instant) -> list[Noted]:
    """Let a job be in the pool that it was on its way to; what that is told, and the step."""
    route = routes(connection, org, job)[-1]
    message, (used, open, until) = enqueue_again(connection, org, job)
    arrive(connection, org, job, route, now)
    again: Enqueue = altered(message, hold_micros=used + open, hold_until=until)
    return [told(org, job, again, now), Noted("step", (org, job, now, "moved", used, open))]
