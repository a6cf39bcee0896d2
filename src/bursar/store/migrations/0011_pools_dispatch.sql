-- Pools as `core.dispatch` keeps them. The tables of 0003 are made anew: nothing could be asked to
-- run so far, so they are empty.

drop table pool_outbox, readings, lease_slots, leases, queue, slots, nodes, pools;

-- One row for each pool: the lock every transaction takes first, its clock, its last fence, how
-- many transactions have changed its rows, and who leads it.
create table pools (
    pool_id      text collate "C" not null,
    now          bigint not null,
    fence        bigint not null,
    version      bigint not null,
    epoch        bigint not null,
    leader       text not null,
    leads_until  bigint not null,
    constraint pools_pkey primary key (pool_id),
    constraint pools_count check (least(now, fence, version, epoch, leads_until) >= 0)
) with (fillfactor = 50);

-- Which rows a transaction has written: who keeps a pool in memory catches up by this. Old rows are
-- taken away; whoever is further behind reads everything.
create table pool_changes (
    pool_id      text collate "C" not null,
    version      bigint not null,
    body         json not null,
    constraint pool_changes_pkey primary key (pool_id, version)
);

-- A machine as it was described (body), and what was heard of it.
create table nodes (
    pool_id      text collate "C" not null,
    node_id      text collate "C" not null,
    body         json not null,
    boot         bigint not null,
    n            bigint not null,
    heard_at     bigint,
    mark         bigint[],
    wrong_clock  boolean not null,
    constraint nodes_pkey primary key (pool_id, node_id),
    constraint nodes_count check (least(boot, n) >= 0),
    constraint nodes_compare_three_clocks check (cardinality(mark) = 3)
) with (fillfactor = 50);

-- Jobs that orgs have sent: as they were asked (body), and how far they are. What is over stays: a
-- message that comes again must be known again.
create table queue (
    pool_id       text collate "C" not null,
    org_id        text collate "C" not null,
    job_id        text collate "C" not null,
    body          json not null,
    queued_at     bigint not null,
    state         text not null,
    why           text,
    received      bigint not null,
    sent          bigint not null,
    hold_micros   bigint not null,
    hold_until    bigint not null,
    requeues_left bigint not null,
    attempt       bigint not null,
    fence         bigint,
    ran_ms        bigint not null,
    used          bigint not null,
    withdrawn     boolean not null,
    preemptions   bigint not null,
    stopped_at    bigint not null,
    losses        bigint not null,
    constraint queue_pkey primary key (pool_id, org_id, job_id),
    constraint queue_state_known check (state in (
        'queued', 'starting', 'running', 'stopping', 'out_of_credits',
        'succeeded', 'failed', 'cancelled', 'expired')),
    constraint queue_lives_with_a_lease
        check ((fence is not null) = (state in ('starting', 'running', 'stopping'))),
    constraint queue_counts_messages check (received >= 1 and sent >= 0),
    constraint queue_none_negative check (
        least(hold_micros, requeues_left, attempt, ran_ms, used, preemptions, losses) >= 0)
);
create index queue_not_over on queue (pool_id, org_id, job_id)
    where state in ('queued', 'starting', 'running', 'stopping', 'out_of_credits');

-- The right of an attempt to GPUs. The fence is its name: it only grows within the pool, and one
-- that is not alive any more entitles to nothing.
create table leases (
    pool_id      text collate "C" not null,
    fence        bigint not null,
    org_id       text collate "C" not null,
    job_id       text collate "C" not null,
    attempt      bigint not null,
    gpu_type     text not null,
    leased_at    bigint not null,
    run_ms_max   bigint not null,
    every_ms     bigint not null,
    started_at   bigint,
    told_ms      bigint not null,
    clamped      boolean not null,
    stop         text,
    ended_at     bigint,
    ends_at      bigint not null,
    why          text,
    kept_ms      bigint,
    constraint leases_pkey primary key (pool_id, fence),
    constraint leases_count check (fence >= 1 and attempt >= 1 and run_ms_max >= 0),
    constraint leases_are_told_now_and_then check (every_ms >= 1),
    constraint leases_end_for_a_reason check ((ended_at is null) = (why is null)),
    constraint leases_keep_no_less_than_nothing check (least(kept_ms, told_ms) >= 0)
) with (fillfactor = 70);
-- An attempt has one lease. The condition holds for all: it keeps the index from being taken where
-- the primary key is meant.
create unique index leases_attempt_once on leases (pool_id, org_id, job_id, attempt)
    where attempt >= 1;
-- A job runs once at a time.
create unique index leases_one_live on leases (pool_id, org_id, job_id) where ended_at is null;
create index leases_live on leases (pool_id, fence) where ended_at is null;

-- What a lease has of a node, in narrow rows that are written all the time: until when, and how long
-- its process has run as far as is proven.
create table lease_parts (
    pool_id      text collate "C" not null,
    fence        bigint not null,
    node_id      text collate "C" not null,
    place        integer not null,
    gpus         integer[] not null,
    slots        integer not null,
    cpu_milli    bigint not null,
    ram_mib      bigint not null,
    leased_at    bigint not null,
    until        bigint not null,
    run_ms       bigint not null,
    saved_ms     bigint not null,
    asked_ms     bigint,
    exit         text,
    exit_code    integer,
    result       text,
    constraint lease_parts_pkey primary key (pool_id, fence, node_id),
    constraint lease_parts_inside_the_lease
        check (until >= leased_at and run_ms between 0 and (until - leased_at) / 1000),
    constraint lease_parts_save_what_was_run check (saved_ms >= 0)
) with (fillfactor = 50);

create table lease_slots (
    pool_id      text collate "C" not null,
    fence        bigint not null,
    node_id      text collate "C" not null,
    gpu          integer not null,
    slot         integer not null,
    freed_at     bigint,
    constraint lease_slots_pkey primary key (pool_id, fence, node_id, gpu, slot)
);
-- A slot is in one live lease at most.
create unique index lease_slots_one_live on lease_slots (pool_id, node_id, gpu, slot)
    where freed_at is null;

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

grant select, insert, update on
    pools, nodes, queue, leases, lease_parts, lease_slots, pool_outbox
    to bursar_service;
grant select, insert, delete on pool_changes to bursar_service;

alter table pools enable row level security;
create policy pool on pools to bursar_service
    using ((pool_id || '') = any ((select nullif(current_setting('bursar.pools', true), '')::text[])::text[]));

alter table pool_changes enable row level security;
create policy pool on pool_changes to bursar_service
    using ((pool_id || '') = any ((select nullif(current_setting('bursar.pools', true), '')::text[])::text[]));

alter table nodes enable row level security;
create policy pool on nodes to bursar_service
    using ((pool_id || '') = any ((select nullif(current_setting('bursar.pools', true), '')::text[])::text[]));

alter table queue enable row level security;
create policy pool on queue to bursar_service
    using ((pool_id || '') = any ((select nullif(current_setting('bursar.pools', true), '')::text[])::text[]));

alter table leases enable row level security;
create policy pool on leases to bursar_service
    using ((pool_id || '') = any ((select nullif(current_setting('bursar.pools', true), '')::text[])::text[]));

alter table lease_parts enable row level security;
create policy pool on lease_parts to bursar_service
    using ((pool_id || '') = any ((select nullif(current_setting('bursar.pools', true), '')::text[])::text[]));

alter table lease_slots enable row level security;
create policy pool on lease_slots to bursar_service
    using ((pool_id || '') = any ((select nullif(current_setting('bursar.pools', true), '')::text[])::text[]));

alter table pool_outbox enable row level security;
create policy pool on pool_outbox to bursar_service
    using ((pool_id || '') = any ((select nullif(current_setting('bursar.pools', true), '')::text[])::text[]));
