-- Pools of machines, jobs, and the messages between the two worlds (D4). A transaction touches orgs
-- or one pool, never both; what one has to tell the other is a row of its outbox, written with
-- whatever it tells of, and stays there until the other side has it. Messages are numbered from 1
-- for each job and direction; each side keeps the number up to which it has handled them.
-- pool_id comes first in every key of a pool, as org_id does in those of an org.

-- The orgs' side

-- What was asked to run. Its hold has the job's id.
create table jobs (
    org_id       text collate "C" not null,
    job_id       text collate "C" not null,
    account_id   text collate "C" not null,
    user_id      text collate "C" not null,
    pool_id      text collate "C" not null,
    state        text not null,
    attempt      bigint not null,
    sent         bigint not null,
    received     bigint not null,
    withdrawn    boolean not null,
    submitted_at bigint not null,
    ended_at     bigint,
    end_class    text,
    constraint jobs_pkey primary key (org_id, job_id),
    constraint jobs_state_known check (state in ('waiting', 'running', 'over')),
    constraint jobs_count_messages check (sent >= 1 and received >= 0),
    constraint jobs_count_attempts check (attempt >= 0),
    constraint jobs_over_have_an_end
        check ((state = 'over') = (ended_at is not null) and (state = 'over') = (end_class is not null)),
    constraint jobs_class_known check (end_class in ('user', 'platform', 'preemption', 'limit'))
);

-- What the pools are to be told.
create table org_outbox (
    org_id       text collate "C" not null,
    job_id       text collate "C" not null,
    n            bigint not null,
    pool_id      text collate "C" not null,
    body         json not null,
    written_at   bigint not null,
    acked_at     bigint,
    constraint org_outbox_pkey primary key (org_id, job_id, n),
    constraint org_outbox_numbers_count check (n >= 1),
    constraint org_outbox_acked_after_written check (acked_at >= written_at)
);
create index org_outbox_unacked on org_outbox (org_id, job_id, n) where acked_at is null;

-- Which messages of pools were handled, each once, and what the rules objected to, if they did.
create table org_inbox (
    org_id       text collate "C" not null,
    pool_id      text collate "C" not null,
    job_id       text collate "C" not null,
    n            bigint not null,
    at           bigint not null,
    refusal      text,
    constraint org_inbox_pkey primary key (org_id, pool_id, job_id, n),
    constraint org_inbox_numbers_count check (n >= 1)
);

-- The pools' side

-- One row for each pool: the lock every transaction takes first, its clock, its last fence.
create table pools (
    pool_id      text collate "C" not null,
    now          bigint not null,
    fence        bigint not null,
    constraint pools_pkey primary key (pool_id),
    constraint pools_time_moves_on check (now >= 0),
    constraint pools_fence_counts check (fence >= 0)
) with (fillfactor = 50);

create table nodes (
    pool_id      text collate "C" not null,
    node_id      text collate "C" not null,
    gpu_type     text not null,
    constraint nodes_pkey primary key (pool_id, node_id)
);

-- A GPU, or a part of one.
create table slots (
    pool_id      text collate "C" not null,
    node_id      text collate "C" not null,
    slot         integer not null,
    milli_gpus   bigint not null,
    constraint slots_pkey primary key (pool_id, node_id, slot),
    constraint slots_are_something check (milli_gpus between 1 and 1000)
);

-- Jobs that orgs have sent: as they were asked (body), and how far they are. What is over stays: a
-- message that comes again must be known again.
create table queue (
    pool_id       text collate "C" not null,
    org_id        text collate "C" not null,
    job_id        text collate "C" not null,
    body          json not null,
    state         text not null,
    received      bigint not null,
    sent          bigint not null,
    hold_micros   bigint not null,
    hold_until    bigint not null,
    requeues_left bigint not null,
    attempt       bigint not null,
    ran_ms        bigint not null,
    withdrawn     boolean not null,
    queued_at     bigint not null,
    constraint queue_pkey primary key (pool_id, org_id, job_id),
    constraint queue_state_known check (state in ('queued', 'leased', 'over')),
    constraint queue_counts_messages check (received >= 1 and sent >= 0),
    constraint queue_none_negative check (least(hold_micros, requeues_left, attempt, ran_ms) >= 0)
);
create index queue_waiting on queue (pool_id, queued_at, org_id, job_id) where state = 'queued';

-- The right of an attempt to slots of a node. The fence is its name: it only grows within the pool,
-- and one that is not alive any more entitles to nothing.
create table leases (
    pool_id      text collate "C" not null,
    fence        bigint not null,
    org_id       text collate "C" not null,
    job_id       text collate "C" not null,
    attempt      bigint not null,
    gpu_type     text not null,
    run_ms_max   bigint not null,
    ended_at     bigint,
    end_class    text,
    kept_ms      bigint,
    constraint leases_pkey primary key (pool_id, fence),
    constraint leases_count check (fence >= 1 and attempt >= 1 and run_ms_max >= 0),
    constraint leases_end_with_a_class check ((ended_at is null) = (end_class is null)),
    constraint leases_class_known check (end_class in ('user', 'platform', 'preemption', 'limit')),
    constraint leases_keep_no_less_than_nothing check (kept_ms >= 0)
);
-- An attempt has one lease. The condition holds for all: it keeps the index from being taken where
-- the primary key is meant.
create unique index leases_attempt_once on leases (pool_id, org_id, job_id, attempt)
    where attempt >= 1;
-- A job runs once at a time.
create unique index leases_one_live on leases (pool_id, org_id, job_id) where ended_at is null;

create table lease_slots (
    pool_id      text collate "C" not null,
    fence        bigint not null,
    node_id      text collate "C" not null,
    slot         integer not null,
    freed_at     bigint,
    constraint lease_slots_pkey primary key (pool_id, fence, node_id, slot)
);
-- A slot is in one live lease at most.
create unique index lease_slots_one_live on lease_slots (pool_id, node_id, slot)
    where freed_at is null;

-- What the node of a lease reports and is told, in narrow rows that are written all the time: until
-- when the lease lasts, how long its attempt has run as far as is proven, what the org knows of that.
-- Once the lease has ended, run time up to ends_at may still be reported.
create table readings (
    pool_id      text collate "C" not null,
    fence        bigint not null,
    node_id      text collate "C" not null,
    leased_at    bigint not null,
    until        bigint not null,
    until_max    bigint not null,
    run_ms_max   bigint not null,
    stopping     boolean not null,
    ends_at      bigint,
    started_at   bigint,
    run_ms       bigint not null,
    told_ms      bigint not null,
    every_ms     bigint not null,
    clamped      boolean not null,
    constraint readings_pkey primary key (pool_id, fence),
    constraint readings_inside_the_hold check (until between leased_at and until_max),
    constraint readings_inside_the_lease
        check (started_at >= leased_at and run_ms <= (until - leased_at) / 1000),
    constraint readings_run_forward check (run_ms >= 0 and told_ms between 0 and run_ms),
    constraint readings_are_told_now_and_then check (every_ms >= 1),
    constraint readings_begin_with_a_start check (started_at is not null or run_ms = 0)
) with (fillfactor = 50);
create index readings_live on readings (pool_id, node_id, fence) where ends_at is null;

-- What the orgs are to be told.
create table pool_outbox (
    pool_id      text collate "C" not null,
    org_id       text collate "C" not null,
    job_id       text collate "C" not null,
    n            bigint not null,
    body         json not null,
    written_at   bigint not null,
    acked_at     bigint,
    constraint pool_outbox_pkey primary key (pool_id, org_id, job_id, n),
    constraint pool_outbox_numbers_count check (n >= 1),
    constraint pool_outbox_acked_after_written check (acked_at >= written_at)
);
create index pool_outbox_unacked on pool_outbox (pool_id, org_id, job_id, n) where acked_at is null;

-- Rights. A transaction of a pool takes the same role and names its pool (bursar.pools).

grant select, insert, update on jobs, org_outbox to bursar_service;
grant select, insert on org_inbox to bursar_service;
grant select, insert, update on
    pools, nodes, slots, queue, leases, lease_slots, readings, pool_outbox
    to bursar_service;

alter table jobs enable row level security;
create policy tenant on jobs to bursar_service
    using (org_id = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

alter table org_outbox enable row level security;
create policy tenant on org_outbox to bursar_service
    using (org_id = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

alter table org_inbox enable row level security;
create policy tenant on org_inbox to bursar_service
    using (org_id = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

alter table pools enable row level security;
create policy pool on pools to bursar_service
    using (pool_id = any ((select nullif(current_setting('bursar.pools', true), '')::text[])::text[]));

alter table nodes enable row level security;
create policy pool on nodes to bursar_service
    using (pool_id = any ((select nullif(current_setting('bursar.pools', true), '')::text[])::text[]));

alter table slots enable row level security;
create policy pool on slots to bursar_service
    using (pool_id = any ((select nullif(current_setting('bursar.pools', true), '')::text[])::text[]));

alter table queue enable row level security;
create policy pool on queue to bursar_service
    using (pool_id = any ((select nullif(current_setting('bursar.pools', true), '')::text[])::text[]));

alter table leases enable row level security;
create policy pool on leases to bursar_service
    using (pool_id = any ((select nullif(current_setting('bursar.pools', true), '')::text[])::text[]));

alter table lease_slots enable row level security;
create policy pool on lease_slots to bursar_service
    using (pool_id = any ((select nullif(current_setting('bursar.pools', true), '')::text[])::text[]));

alter table readings enable row level security;
create policy pool on readings to bursar_service
    using (pool_id = any ((select nullif(current_setting('bursar.pools', true), '')::text[])::text[]));

alter table pool_outbox enable row level security;
create policy pool on pool_outbox to bursar_service
    using (pool_id = any ((select nullif(current_setting('bursar.pools', true), '')::text[])::text[]));
