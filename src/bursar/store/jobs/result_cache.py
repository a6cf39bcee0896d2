"""Rows of identical jobs of an org: which one leads, which follow, which has a result (S13).

Jobs are identical if they have the same digest of everything that decides their result. At most one
of them leads: it is in a pool, or on its way there. The others follow, and wait for the first
success after their submission. If a leader fails, its first follower leads; the other followers
need no update. A leader that waits for credits stops leading, and shares no results any more.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from bursar.core.ids import JobId, OrgId
from bursar.core.instant import Instant
from bursar.core.jobs.result_cache import DueFollower
from bursar.core.jobs.transaction import Alike, Heir
from bursar.store.sql.arrays import array_literal
from bursar.store.sql.connection import Connection

# Who is alike


def _success(of: str, what: str = "s.job_id") -> str:
    """The SQL for the first success of an identical job after the job's submission."""
    return f"""
    select {what} from jobs s
     where s.org_id = {of}.org_id and s.result_digest = {of}.result_digest
       and s.result_digest is not null
       and s.ended_at is not null and s.ended_at >= {of}.submitted_at and s.cached_from is null
       and s.state = 'succeeded'
     order by s.ended_at, s.job_id
     limit 1"""


_SUCCESS: Final = _success("f", "s.org_id, s.job_id, s.exit_code")
_SUCCEEDED: Final = _success("f")


def _leader(of: str) -> str:
    """The SQL for the leader among identical jobs."""
    return f"""
    select l.job_id from jobs l
     where l.org_id = {of}.org_id and l.result_digest = {of}.result_digest and l.leads"""


_LEADER: Final = _leader("f")
_ABLE: Final = f"{_LEADER} and l.state <> 'out_of_credits'"  # it can run
_HOLD: Final = """
     cross join lateral (
           select * from holds h where h.org_id = f.org_id and h.hold_id = f.job_id offset 0) h
"""
# The job that a follower is shown to follow: the leader now, else the job it came to follow.
FOLLOWED: Final = f"case when j.follows then coalesce(({_leader('j')}), j.source) end"

ALIKE: Final = f"""
    with f as (select %s::text as org_id, %s::text as result_digest, %s::text[] as excluded)
    select r.job_id, r.exit_code, r.used, r.ended_at,
           ({_LEADER} and l.job_id <> all(f.excluded)),
           w.job_id, w.submitted_at
      from f
      left join lateral (
           select s.job_id, s.exit_code, s.ended_at, h.used
             from jobs s
            cross join lateral (
                  select * from holds h where h.org_id = s.org_id and h.hold_id = s.job_id
                  offset 0) h
            where s.org_id = f.org_id and s.result_digest = f.result_digest
              and s.result_digest is not null
              and s.ended_at is not null and s.cached_from is null
              and s.state = 'succeeded'
              and s.job_id <> all(f.excluded)
            order by s.ended_at desc, s.job_id desc
            limit 1) r on true
      left join lateral (
           select o.* from jobs o
            where o.org_id = f.org_id and o.result_digest = f.result_digest
              and o.follows and not o.withdrawn
              and o.job_id <> all(f.excluded)
            order by o.submitted_at desc, o.job_id desc
            limit 1) w on true
"""

Flight = tuple[OrgId, str]  # jobs that are alike: their org, and their digest


def alike(connection: Connection, flight: Flight, excluded: Sequence[JobId]) -> Alike:
    """The stored jobs with a digest, without those in `excluded`."""
    [row] = connection.execute(ALIKE, [*flight, array_literal(excluded)]).fetchall()
    return Alike(*row)


class Shared(NamedTuple):
    """The job that a job followed, or whose result it got at submission."""

    source: JobId | None
    hit: bool


SHARED: Final = "select source, hit from jobs where org_id = %s and job_id = %s"


def shared(connection: Connection, org: OrgId, job: str) -> Shared:
    """The same for a job of an org; it never changes."""
    [row] = connection.execute(SHARED, [org, job]).fetchall()
    return Shared(*row)


# Who is to be served, let go, or to lead


def _due(which: str) -> str:
    """The statement for followers that can get a result, or were cancelled."""
    return f"""
        select f.org_id, f.result_digest, f.submitted_at, f.job_id, f.withdrawn, f.hit_ppm, h.open,
               s.job_id, s.exit_code, s.used
          from jobs f {_HOLD}
          left join lateral (
               select o.job_id, o.exit_code, g.used
                 from ({_SUCCESS}) o
                cross join lateral (
                      select * from holds g
                       where g.org_id = o.org_id and g.hold_id = o.job_id offset 0) g) s on true
         where f.follows and {which} and h.closed_at is null
           and (f.withdrawn or s.job_id is not null)
         order by f.org_id, f.result_digest, f.submitted_at, f.job_id
         limit %s
    """


DUE: Final = _due("(f.org_id, f.result_digest, f.submitted_at, f.job_id) > (%s, %s, %s, %s)")
DUE_ALIKE: Final = _due("f.org_id = %s and f.result_digest = %s")


class FoundFollower(NamedTuple):
    """A follower that can end, and its position among all."""

    org: OrgId
    digest: str
    submitted_at: Instant
    follower: DueFollower

    @property
    def place(self) -> "Place":
        """Its position among all followers."""
        return self.org, self.digest, self.submitted_at, self.follower.job


def _follower(row: tuple[Any, ...]) -> FoundFollower:
    org, digest, at, job, withdrawn, ppm, held, source, exit_code, used = row
    follower = DueFollower(job, withdrawn, ppm, held, source, exit_code, used or 0)
    return FoundFollower(org, digest, at, follower)


Place = tuple[OrgId, str, Instant, str]  # of a follower among all
FIRST: Final[Place] = ("", "", -1, "")


def due(connection: Connection, after: Place, most: int) -> list[FoundFollower]:
    """Followers of all orgs that can end, after a position."""
    return [_follower(row) for row in connection.execute(DUE, [*after, most])]


def due_alike(connection: Connection, flight: Flight, most: int) -> list[FoundFollower]:
    """The first followers of a group that can end."""
    return [_follower(row) for row in connection.execute(DUE_ALIKE, [*flight, most])]


AT_A_LOSS: Final = f"""
    select f.org_id, f.result_digest, bool_or(h.closed_at is not null)
      from jobs f {_HOLD}
     where f.follows and (f.org_id, f.result_digest) > (%s, %s)
       and (h.closed_at is not null
            or (not f.withdrawn and ({_ABLE}) is null and ({_SUCCEEDED}) is null))
     group by f.org_id, f.result_digest
     order by f.org_id, f.result_digest
     limit %s
"""
WITHOUT_HOLD: Final = f"""
    select f.job_id, h.used
      from jobs f {_HOLD}
     where f.org_id = %s and f.result_digest = %s and f.follows and h.closed_at is not null
       and f.job_id <> all(%s::text[])
     order by f.submitted_at, f.job_id
     limit %s
"""
HEIR: Final = f"""
    select f.job_id, f.submitted_at, h.open, h.expires_at
      from jobs f {_HOLD}
     where f.org_id = %s and f.result_digest = %s and f.follows and not f.withdrawn
       and f.submitted_at > %s
       and f.job_id <> all(%s::text[])
       and h.closed_at is null and h.expires_at > %s
     order by f.submitted_at, f.job_id
     limit 1
"""


LOST: Final = f"""
    select exists (
        select from jobs f
         where f.org_id = %s and f.result_digest = %s and f.follows and not f.withdrawn
           and ({_ABLE}) is null and ({_SUCCEEDED}) is null)
"""


def has_lost_leader(connection: Connection, flight: Flight) -> bool:
    """Whether a follower waits without a leader. Runs without a lock."""
    [(has_lost,)] = connection.execute(LOST, flight).fetchall()
    return bool(has_lost)


def at_a_loss(connection: Connection, after: Flight, most: int) -> list[tuple[Flight, bool]]:
    """Groups that have lost their leader, or in which a follower has no hold.

    The flag says whether a follower has no hold. Runs without a lock, because it reads all
    followers.
    """
    rows = connection.execute(AT_A_LOSS, [*after, most])
    return [((org, digest), unheld) for org, digest, unheld in rows]


def without_hold(
    connection: Connection, flight: Flight, most: int, excluded: Sequence[JobId]
) -> list[tuple[JobId, int]]:
    """The first followers whose holds have ended, and what they have spent."""
    parameters = [*flight, array_literal(excluded), most]
    return [(job, used) for job, used in connection.execute(WITHOUT_HOLD, parameters)]


def heir(
    connection: Connection,
    flight: Flight,
    after: Instant,
    now: Instant,
    excluded: Sequence[JobId],
) -> Heir | None:
    """The first follower, of those submitted after an instant, whose hold lasts beyond now."""
    parameters = [*flight, after, array_literal(excluded), now]
    row = connection.execute(HEIR, parameters).fetchone()
    return None if row is None else Heir(*row)
