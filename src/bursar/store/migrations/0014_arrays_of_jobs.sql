-- Arrays of jobs: one request and one hold for many like jobs, its elements. An element is a job of its own from
-- the moment it begins; its hold is a lot, taken out of the array's. What has not begun follows from the count.

alter table holds
    add column lots   json,               -- of an array's hold: how many there are of it, and how many are taken
    add column lot_of text collate "C";   -- the hold of an array that this one was taken out of
create index holds_lots on holds (org_id, lot_of) where lot_of is not null;

-- An array has a row among the jobs, which is in no pool and has sent nothing; so has each element that has begun.
alter table jobs
    add column elements bigint,              -- of an array: how many it has
    add column array_id text collate "C",    -- of an element: its array
    add column place    bigint;              -- and its number there, from 0
alter table jobs drop constraint jobs_count_messages;
alter table jobs
    add constraint jobs_count_messages check (sent >= 0 and received >= 0),
    add constraint jobs_arrays_send_nothing check (elements is null or (sent = 0 and received = 0)),
    add constraint jobs_elements_have_a_place check ((array_id is null) = (place is null) and place >= 0),
    add constraint jobs_are_arrays_or_elements check (elements is null or array_id is null);

create unique index jobs_of_array on jobs (org_id, array_id, place) where array_id is not null;
-- Elements are listed under their array.
drop index jobs_latest;
create index jobs_latest on jobs (org_id, submitted_at, job_id) where submitted_at >= 0 and array_id is null;

-- How far an array is: narrow rows, written whenever elements begin or end.
create table arrays (
    org_id    text collate "C" not null,
    job_id    text collate "C" not null,
    count     bigint not null,
    at_once   bigint not null,                  -- so many are in the pool at a time
    begun     bigint not null default 0,
    live      bigint not null default 0,        -- begun, and not over
    succeeded bigint not null default 0,
    failed    bigint not null default 0,
    cancelled bigint not null default 0,
    expired   bigint not null default 0,
    closed    boolean not null default false,   -- no more will begin
    done      boolean not null default false,   -- and all are over: so is the array
    body      json not null,                    -- what the pool is told of an element, but for its number
    constraint arrays_pkey primary key (org_id, job_id),
    constraint arrays_none_negative check (least(live, succeeded, failed, cancelled, expired) >= 0),
    constraint arrays_begin_what_there_is check (begun between 0 and count and at_once between 1 and count),
    constraint arrays_know_where_all_are check (begun = live + succeeded + failed + cancelled + expired),
    constraint arrays_are_done_when_all_is_over check (not done or (closed and live = 0))
) with (fillfactor = 70);
-- Those that something is to be done about: more can begin, or all are over.
create index arrays_due on arrays (org_id, job_id)
    where not done and (case when closed then live = 0 else live < at_once end);

grant select, insert, update on arrays to bursar_service;

alter table arrays enable row level security;
create policy tenant on arrays to bursar_service
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));
