"""Checks of jobs that share their results."""

from typing import Final

from bursar.core.instant import MINUTE, SECOND
from bursar.store.jobs.outbox import OVERDUE
from bursar.store.verify.ledger import Check

CACHING_CHECKS: Final[tuple[Check, ...]] = (
    Check(
        name="a shared result comes from an identical job that succeeded before",
        sql="""
            select j.org_id, j.job_id || ' has that of ' || j.cached_from, j.exit_code, s.exit_code
              from jobs j
              left join jobs s on s.org_id = j.org_id and s.job_id = j.cached_from
             where j.cached_from is not null
               and (s.state = 'succeeded' and s.cached_from is null
                    and s.result_digest = j.result_digest
                    and s.ended_at <= j.ended_at and s.exit_code is not distinct from j.exit_code
                   ) is not true
        """,
    ),
    Check(
        name="a job that was sent to no pool follows another, has its result, or was cancelled",
        sql="""
            select j.org_id, j.job_id || ' is ' || j.state, j.attempt, 0::bigint
              from jobs j
             where j.sent = 0 and j.elements is null
               and (j.attempt > 0 or j.received > 0
                    or not (j.follows or j.cached_from is not null
                            or j.state in ('cancelled', 'expired')))
             union all
            select j.org_id, j.job_id || ' was withdrawn', j.withdrawn::int, 1::bigint
              from jobs j
             where j.sent = 0 and j.elements is null and j.state = 'cancelled'
               and not j.withdrawn
        """,
    ),
    Check(
        name=f"no job waits without a leader for longer than {OVERDUE // MINUTE} min",
        timed=True,
        sql=f"""
            select f.org_id, f.job_id || ', seconds', (asked.at - since.at) / {SECOND},
                   {OVERDUE // SECOND}::bigint
              from jobs f
             cross join (select %s::bigint) as asked(at)
             cross join lateral (
                   select greatest(f.submitted_at, max(s.ended_at)) as at
                     from jobs s
                    where s.org_id = f.org_id and s.result_digest = f.result_digest) since
             where f.follows and since.at + {OVERDUE} <= asked.at
               and not exists (select from jobs l
                                where l.org_id = f.org_id and l.leads
                                  and l.result_digest = f.result_digest)
        """,
    ),
)
