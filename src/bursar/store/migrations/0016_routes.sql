-- Where the router has sent a job that names no pool, and why: first when it was submitted, then whenever
-- it was to wait in another pool. It is on its way there until its former pool has given it back
-- (arrived_at); where that never happens it has begun, or is over. Jobs that name their pool have none.
create table job_routes (
    org_id       text collate "C" not null,
    job_id       text collate "C" not null,
    n            bigint not null,
    pool_id      text collate "C" not null,
    at           bigint not null,
    arrived_at   bigint,
    told         text not null,                  -- why, in words
    constraint job_routes_pkey primary key (org_id, job_id, n),
    constraint job_routes_numbers_count check (n >= 1),
    constraint job_routes_arrive_after_they_begin check (arrived_at >= at)
);
-- A job is sent to a pool once: so its messages there have one beginning, and it never goes back and forth.
create unique index job_routes_pool_once on job_routes (org_id, job_id, pool_id) where n >= 1;

grant select, insert, update on job_routes to bursar_service;

alter table job_routes enable row level security;
create policy tenant on job_routes to bursar_service
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

-- A job that was given back is over in its pool.
alter table queue drop constraint queue_state_known;
alter table queue add constraint queue_state_known check (state in (
    'queued', 'starting', 'running', 'stopping', 'out_of_credits',
    'succeeded', 'failed', 'cancelled', 'expired', 'moved'));

insert into duties (duty, holder, until, done_at) values ('moving jobs', '', 0, 0);
