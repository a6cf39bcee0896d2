"""A pool's rows: machines, the queue, leases and readings, loaded and saved set-wise.

Every transaction of a pool locks the pool's own row first, so all of them happen one after the
other, and asks the time after that; it is kept, and never goes back (D5).

What is asked is sent by `ask_…` and taken by another function, so that in a pipeline many questions
travel together.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple

from bursar.core.ids import JobId
from bursar.core.instant import NEVER, Instant
from bursar.core.leases import latest
from bursar.core.messages import Enqueue, ToOrg
from bursar.store.outbox import PoolId, message_of, message_text
from bursar.store.reading import Connection, OrgId, Sent, array_of, looked_up, transposed
from bursar.store.saving import Saving, matched
from bursar.store.shelves import Values

ENTER_POOL: Final = """
    -- For this transaction only: the service's rights, and the pool it works for (D9).
    select set_config('role', 'bursar_service', true), set_config('bursar.pools', %s, true)
"""
LOCK_POOL: Final = """
    -- Always before any other table of the pool; nothing is joined to it.
    select now, fence from pools where pool_id = %s for update
"""
MOVE_ON: Final = "update pools set now = %s, fence = %s where pool_id = %s"
ADD_POOL: Final = "insert into pools (pool_id, now, fence) values (%s, 0, 0)"
ADD_NODES: Final = """
    insert into nodes (pool_id, node_id, gpu_type)
    select * from unnest(%s::text[], %s::text[], %s::text[]) as u(pool_id, node_id, gpu_type)
"""
ADD_SLOTS: Final = """
    insert into slots (pool_id, node_id, slot, milli_gpus)
    select * from unnest(%s::text[], %s::text[], %s::int[], %s::bigint[])
               as u(pool_id, node_id, slot, milli_gpus)
"""


class PoolUnknown(KeyError):
    """There is no such pool."""


class PoolRow(NamedTuple):
    """A pool's own row."""

    now: Instant
    fence: int


def enter_pool(connection: Connection, pool: PoolId) -> None:
    """Work for a pool until the transaction ends, without a lock: to look only."""
    connection.execute(ENTER_POOL, [array_of([pool])])


def lock_pool(connection: Connection, pool: PoolId) -> Sent:
    """Work for a pool, and lock it, until the transaction ends; `locked` takes the answer."""
    enter_pool(connection, pool)
    return connection.execute(LOCK_POOL, [pool])


def locked(sent: Sent, pool: PoolId) -> PoolRow:
    """The pool that is locked now."""
    row = sent.fetchone()
    if row is None:
        raise PoolUnknown(pool)
    return PoolRow(*row)


def move_on(connection: Connection, pool: PoolId, now: Instant, fence: int) -> None:
    """Keep the pool's time and its last fence."""
    connection.execute(MOVE_ON, [now, fence, pool])


def create_pool(connection: Connection, pool: PoolId) -> None:
    """Begin a pool, with nothing in it."""
    connection.execute(ADD_POOL, [pool])


class NewNode(NamedTuple):
    """A machine: GPUs of one type, in slots of so many thousandths of a GPU each."""

    node: str
    gpu_type: str
    slots: tuple[int, ...]


def add_nodes(connection: Connection, pool: PoolId, nodes: Sequence[NewNode]) -> None:
    """Put machines into a pool."""
    rows = [(pool, one.node, one.gpu_type) for one in nodes]
    connection.execute(ADD_NODES, transposed(rows, 3))
    slots = [(pool, one.node, slot, milli) for one in nodes for slot, milli in enumerate(one.slots)]
    connection.execute(ADD_SLOTS, transposed(slots, 4))


# The queue

_JOB: Final = MappingProxyType({"pool_id": "text", "org_id": "text", "job_id": "text"})
_QUEUED: Final = """
    t.org_id, t.job_id, t.body::text, t.state, t.received, t.hold_micros, t.hold_until,
    t.requeues_left, t.attempt, t.ran_ms, t.withdrawn"""
QUEUED: Final = f"select {_QUEUED} from {looked_up(_JOB, 'queue')}"
WAITING: Final = f"""
    select {_QUEUED}
      from queue t
     where t.pool_id = %s and t.state = 'queued' and t.hold_until <= %s
     order by t.queued_at, t.org_id, t.job_id
"""
ENQUEUE: Final = """
    insert into queue (pool_id, org_id, job_id, body, state, received, hold_micros, hold_until,
                       requeues_left, attempt, ran_ms, withdrawn, queued_at, sent)
    select u.pool_id, u.org_id, u.job_id, u.body::json, u.state, u.received, u.hold_micros,
           u.hold_until, u.requeues_left, u.attempt, u.ran_ms, u.withdrawn, u.queued_at, 0
      from unnest(%s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::bigint[],
                  %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[],
                  %s::boolean[], %s::bigint[])
           as u(pool_id, org_id, job_id, body, state, received, hold_micros, hold_until,
                requeues_left, attempt, ran_ms, withdrawn, queued_at)
"""
REQUEUE: Final = f"""
    update queue t
       set state = u.state, received = u.received, hold_micros = u.hold_micros,
           hold_until = u.hold_until, requeues_left = u.requeues_left, attempt = u.attempt,
           ran_ms = u.ran_ms, withdrawn = u.withdrawn
      from unnest(%s::text[], %s::text[], %s::text[], %s::text[], %s::bigint[], %s::bigint[],
                  %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::boolean[])
           as u(pool_id, org_id, job_id, state, received, hold_micros, hold_until, requeues_left,
                attempt, ran_ms, withdrawn)
     where {matched(*_JOB)}
"""


@dataclass(slots=True, kw_only=True)
class Queued:
    """A job in a pool, as a transaction changes it."""

    org: OrgId
    job: JobId
    ask: Enqueue
    state: str = "queued"
    received: int = 1
    hold_micros: int
    hold_until: Instant
    requeues_left: int
    attempt: int = 0
    ran_ms: int = 0
    withdrawn: bool = False

    @property
    def left_ms(self) -> int:
        """What it may still run."""
        return max(self.ask.run_ms - self.ran_ms, 0)

    def values(self) -> Values:
        """What changes of its row."""
        return (
            *(self.state, self.received, self.hold_micros, self.hold_until),
            *(self.requeues_left, self.attempt, self.ran_ms, self.withdrawn),
        )


def ask_queued(connection: Connection, pool: PoolId, keys: Iterable[tuple[OrgId, JobId]]) -> Sent:
    """Ask which of these jobs the pool knows."""
    asked = [(pool, org, job) for org, job in dict.fromkeys(keys)]
    return connection.execute(QUEUED, transposed(asked, 3))


def ask_waiting(connection: Connection, pool: PoolId, held_until: Instant = NEVER) -> Sent:
    """Ask for the jobs that wait for a place, in the order in which they came.

    All of them, or those whose hold lasts no longer than until an instant.
    """
    return connection.execute(WAITING, [pool, held_until])


def queued(sent: Sent) -> dict[tuple[OrgId, JobId], Queued]:
    """The jobs that were asked for."""
    found: dict[tuple[OrgId, JobId], Queued] = {}
    for org, job, body, state, received, micros, until, requeues, attempt, ran, gone in sent:
        ask = message_of(body)
        assert isinstance(ask, Enqueue)
        found[org, job] = Queued(
            org=org,
            job=job,
            ask=ask,
            state=state,
            received=received,
            hold_micros=micros,
            hold_until=until,
            requeues_left=requeues,
            attempt=attempt,
            ran_ms=ran,
            withdrawn=gone,
        )
    return found


def save_queued(
    save: Saving, pool: PoolId, new: Sequence[Queued], changed: Sequence[Queued], now: Instant
) -> None:
    """Write jobs that have come, and those that have changed."""
    come = [(pool, one.org, one.job, message_text(one.ask), *one.values(), now) for one in new]
    save.rows("jobs that have come", ENQUEUE, come)
    save.rows("queue", REQUEUE, [(pool, one.org, one.job, *one.values()) for one in changed])


# Leases and readings

_FENCE: Final = MappingProxyType({"pool_id": "text", "fence": "bigint"})
_READING: Final = """
    t.fence, t.node_id, t.leased_at, t.until, t.until_max, t.stopping, t.ends_at, t.started_at,
    t.run_ms, t.told_ms, t.every_ms, t.run_ms_max"""
READINGS: Final = f"select {_READING} from {looked_up(_FENCE, 'readings')}"
RUN_OUT: Final = f"""
    select {_READING}
      from readings t
     where t.pool_id = %s and t.ends_at is null and t.until <= %s
     order by t.node_id, t.fence
"""
OF_NODE: Final = f"""
    select {_READING}
      from readings t
     where t.pool_id = %s and t.node_id = %s and t.ends_at is null
     order by t.fence
"""
_ATTEMPT: Final = "t.fence, t.org_id, t.job_id, t.attempt, t.gpu_type, t.run_ms_max"
ATTEMPTS: Final = f"select {_ATTEMPT} from {looked_up(_FENCE, 'leases')}"
LIVE_ATTEMPTS: Final = f"""
    select {_ATTEMPT}
      from {looked_up(_JOB, "leases", "and t.ended_at is null")}
"""


class Reading(NamedTuple):
    """How far a lease is: what its node has reported, and was told."""

    fence: int
    node: str
    leased_at: Instant
    until: Instant
    until_max: Instant  # when its hold ends
    stopping: bool  # whether the worker is asked to stop
    ends_at: Instant | None  # up to when run time may be reported, once the lease has ended
    started_at: Instant | None
    run_ms: int
    told_ms: int
    every_ms: int
    run_ms_max: int  # what the attempt may run at most, stop grace included

    @property
    def latest(self) -> Instant:
        """Until when it can be renewed: its hold ends, or it has run as long as it may."""
        return latest(self.until_max, self.started_at, self.run_ms_max)


class Attempt(NamedTuple):
    """Whose lease it is, for what."""

    fence: int
    org: OrgId
    job: JobId
    attempt: int
    gpu_type: str
    run_ms_max: int


def ask_readings(connection: Connection, pool: PoolId, fences: Iterable[int]) -> Sent:
    """Ask how far these leases are, alive or not."""
    return connection.execute(READINGS, _each(pool, fences))


def _each(pool: PoolId, fences: Iterable[int]) -> list[str]:
    """Keys of leases: one array of the pool, over and over, and one of the fences."""
    given = list(fences)
    return [array_of([pool] * len(given)), array_of(given)]


def ask_run_out(connection: Connection, pool: PoolId, at: Instant) -> Sent:
    """Ask for the live leases that nobody has renewed beyond an instant."""
    return connection.execute(RUN_OUT, [pool, at])


def ask_live_on(connection: Connection, pool: PoolId, node: str) -> Sent:
    """Ask for the live leases of a node."""
    return connection.execute(OF_NODE, [pool, node])


def readings(sent: Sent) -> dict[int, Reading]:
    """How far the leases are that were asked for, by their fences."""
    return {row[0]: Reading._make(row) for row in sent.fetchall()}


def ask_attempts(connection: Connection, pool: PoolId, fences: Iterable[int]) -> Sent:
    """Ask whose leases these are."""
    return connection.execute(ATTEMPTS, _each(pool, fences))


def ask_live_attempts(
    connection: Connection, pool: PoolId, jobs: Iterable[tuple[OrgId, JobId]]
) -> Sent:
    """Ask for the attempts of jobs that have a live lease."""
    asked = [(pool, org, job) for org, job in jobs]
    return connection.execute(LIVE_ATTEMPTS, transposed(asked, 3))


def attempts(sent: Sent) -> dict[int, Attempt]:
    """The attempts that were asked for, by their fences."""
    return {row[0]: Attempt._make(row) for row in sent.fetchall()}


class Slot(NamedTuple):
    """A slot of a node, and the live lease that has it."""

    gpu_type: str
    milli_gpus: int
    taken: int | None


SLOTS: Final = f"""
    select s.node_id, s.slot, t.gpu_type, s.milli_gpus, taken.fence
      from {looked_up({"pool_id": "text", "node_id": "text"}, "nodes")}
     cross join lateral (
           select * from slots s
            where s.pool_id = k.pool_id and s.node_id = k.node_id offset 0) as s
      left join lateral (
           select * from lease_slots l
            where l.pool_id = s.pool_id and l.node_id = s.node_id and l.slot = s.slot
              and l.freed_at is null offset 0) as taken
        on true
     order by s.node_id, s.slot
"""


def ask_slots(connection: Connection, pool: PoolId, nodes: Iterable[str]) -> Sent:
    """Ask for the slots of nodes."""
    rows = [(pool, node) for node in dict.fromkeys(nodes)]
    return connection.execute(SLOTS, transposed(rows, 2))


def slots(sent: Sent) -> dict[str, dict[int, Slot]]:
    """The slots that were asked for, by node; a node that does not exist is left out."""
    found: dict[str, dict[int, Slot]] = {}
    for node, slot, *rest in sent:
        found.setdefault(node, {})[slot] = Slot(*rest)
    return found


SAVES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "new leases": """
            insert into leases (pool_id, fence, org_id, job_id, attempt, gpu_type, run_ms_max)
            select * from unnest(%s::text[], %s::bigint[], %s::text[], %s::text[], %s::bigint[],
                                 %s::text[], %s::bigint[])
                       as u(pool_id, fence, org_id, job_id, attempt, gpu_type, run_ms_max)
        """,
        "new slots": """
            insert into lease_slots (pool_id, fence, node_id, slot)
            select * from unnest(%s::text[], %s::bigint[], %s::text[], %s::int[])
                       as u(pool_id, fence, node_id, slot)
        """,
        "new readings": """
            insert into readings (pool_id, fence, node_id, leased_at, until, until_max,
                                  run_ms_max, stopping, run_ms, told_ms, every_ms, clamped)
            select u.pool_id, u.fence, u.node_id, u.leased_at, u.until, u.until_max,
                   u.run_ms_max, false, 0, 0, u.every_ms, false
              from unnest(%s::text[], %s::bigint[], %s::text[], %s::bigint[], %s::bigint[],
                          %s::bigint[], %s::bigint[], %s::bigint[])
                   as u(pool_id, fence, node_id, leased_at, until, until_max, every_ms, run_ms_max)
        """,
        "read": f"""
            update readings t
               set until = u.until, started_at = u.started_at, run_ms = u.run_ms,
                   told_ms = u.told_ms, clamped = t.clamped or u.clamped
              from unnest(%s::text[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[],
                          %s::bigint[], %s::boolean[])
                   as u(pool_id, fence, until, started_at, run_ms, told_ms, clamped)
             where {matched(*_FENCE)}
        """,
        "ended readings": f"""
            update readings t set ends_at = u.ends_at
              from unnest(%s::text[], %s::bigint[], %s::bigint[]) as u(pool_id, fence, ends_at)
             where {matched(*_FENCE)}
        """,
        "ended leases": f"""
            update leases t
               set ended_at = u.ended_at, end_class = u.end_class, kept_ms = u.kept_ms
              from unnest(%s::text[], %s::bigint[], %s::bigint[], %s::text[], %s::bigint[])
                   as u(pool_id, fence, ended_at, end_class, kept_ms)
             where {matched(*_FENCE)}
        """,
        "stopping": f"""
            update readings t set stopping = true
              from unnest(%s::text[], %s::bigint[]) as u(pool_id, fence)
             where {matched(*_FENCE)}
        """,
        "grown": f"""
            update readings t set until_max = u.until_max, every_ms = u.every_ms
              from unnest(%s::text[], %s::bigint[], %s::bigint[], %s::bigint[])
                   as u(pool_id, fence, until_max, every_ms)
             where {matched(*_FENCE)}
        """,
    }
)
# A lease has as many slots as it has: the count is not known beforehand.
FREE: Final = f"""
    update lease_slots t set freed_at = u.freed_at
      from unnest(%s::text[], %s::bigint[], %s::bigint[]) as u(pool_id, fence, freed_at)
     where {matched(*_FENCE)}
"""
COUNT_ON: Final = f"""
    update queue t set sent = t.sent + u.many
      from unnest(%s::text[], %s::text[], %s::text[], %s::bigint[])
           as u(pool_id, org_id, job_id, many)
     where {matched(*_JOB)}
    returning t.org_id, t.job_id, t.sent - u.many
"""
TELL_ORG: Final = """
    insert into pool_outbox (pool_id, org_id, job_id, n, body, written_at)
    select u.pool_id, u.org_id, u.job_id, u.n, u.body::json, u.at
      from unnest(%s::text[], %s::text[], %s::text[], %s::bigint[], %s::text[], %s::bigint[])
           as u(pool_id, org_id, job_id, n, body, at)
"""


def save_rows(save: Saving, pool: PoolId, what: str, rows: Sequence[Values]) -> None:
    """Write rows by one of the statements above."""
    save.rows(what, SAVES[what], [(pool, *row) for row in rows])


def free_slots(connection: Connection, pool: PoolId, fences: Sequence[int], at: Instant) -> None:
    """Let the slots of leases go."""
    if fences:
        connection.execute(FREE, transposed([(pool, fence, at) for fence in fences], 3))


def count_on(
    connection: Connection, pool: PoolId, messages: Sequence[tuple[OrgId, JobId, ToOrg]]
) -> Sent:
    """Count messages about jobs; `tell_orgs` takes each job's count before."""
    many = Counter((org, job) for org, job, _ in messages)
    counts = [(pool, org, job, more) for (org, job), more in many.items()]
    return connection.execute(COUNT_ON, transposed(counts, 4))


def tell_orgs(
    save: Saving,
    counted: Sent,
    pool: PoolId,
    messages: Sequence[tuple[OrgId, JobId, ToOrg]],
    now: Instant,
) -> None:
    """Write messages about jobs; numbers go on from each job's own count, in this order."""
    last = {(org, job): n for org, job, n in counted.fetchall()}
    rows: list[Values] = []
    for org, job, message in messages:
        last[org, job] += 1
        rows.append((pool, org, job, last[org, job], message_text(message), now))
    save.rows("messages", TELL_ORG, rows)
