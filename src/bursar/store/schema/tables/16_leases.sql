-- Jobs as their pool knows them, the leases of their attempts, and what comes from the processes.

-- A job in its pool. The row stays when the job is finished: a repeated message must be recognised.
create table queue (
    pool_id       text collate "C" not null,
    org_id        text collate "C" not null,
    job_id        text collate "C" not null,
    body          json not null,    -- the job as its org has sent it
    queued_at     bigint not null,
    state         text not null,
    why           text,
    received      bigint not null,  -- messages of the org that are handled
    sent          bigint not null,  -- messages to the org
    hold_micros   bigint not null,
    hold_until    bigint not null,
    requeues_left bigint not null,
    attempt       bigint not null,
    fence         bigint,           -- of its live lease
    ran_ms        bigint not null,
    used          bigint not null,
    withdrawn     boolean not null,
    preemptions   bigint not null,
    stopped_at    bigint not null,
    losses        bigint not null,
    earmark       json,             -- GPUs that victims are leaving for it
    constraint queue_pkey primary key (pool_id, org_id, job_id),
    constraint queue_state_known check (state in (
        'queued', 'starting', 'running', 'stopping', 'out_of_credits',
        'succeeded', 'failed', 'cancelled', 'expired', 'moved')),
    constraint queue_lives_with_a_lease
        check ((fence is not null) = (state in ('starting', 'running', 'stopping'))),
    constraint queue_counts_messages check (received >= 1 and sent >= 0),
    constraint queue_none_negative check (
        least(hold_micros, requeues_left, attempt, ran_ms, used, preemptions, losses) >= 0),
    constraint queue_keeps_for_who_waits check (earmark is null or state = 'queued')
);
create index queue_unfinished on queue (pool_id, org_id, job_id)
    where state in ('queued', 'starting', 'running', 'stopping', 'out_of_credits');

-- The right of an attempt to its GPUs. The fence identifies it: fences only grow within a pool, and
-- whatever carries the fence of an ended lease is rejected.
create table leases (
    pool_id            text collate "C" not null,
    fence              bigint not null,
    org_id             text collate "C" not null,
    job_id             text collate "C" not null,
    attempt            bigint not null,
    gpu_type           text not null,
    leased_at          bigint not null,
    run_ms_max         bigint not null,
    report_interval_ms bigint not null,  -- how often its run time is reported to the org
    started_at         bigint,
    reported_ms        bigint not null,  -- the run time that the org knows of
    clamped            boolean not null,
    stop_reason        text,             -- why it is to stop
    ended_at           bigint,
    reportable_until   bigint not null,
    why                text,             -- why it has ended
    kept_ms            bigint,           -- run time that a checkpoint has saved
    corrected          text,             -- the class that an operator has given to its end
    constraint leases_pkey primary key (pool_id, fence),
    constraint leases_count check (fence >= 1 and attempt >= 1 and run_ms_max >= 0),
    constraint leases_report_at_intervals check (report_interval_ms >= 1),
    constraint leases_end_for_a_reason check ((ended_at is null) = (why is null)),
    constraint leases_keep_no_less_than_nothing check (least(kept_ms, reported_ms) >= 0),
    constraint leases_corrected_once_ended check (corrected is null or ended_at is not null),
    constraint leases_corrected_to_a_class
        check (corrected in ('user', 'platform', 'preemption', 'limit'))
) with (fillfactor = 70);
-- An attempt has one lease. The condition always holds (see grants).
create unique index leases_attempt_once on leases (pool_id, org_id, job_id, attempt)
    where attempt >= 1;
-- A job has one live lease at most.
create unique index leases_one_live on leases (pool_id, org_id, job_id)
    where ended_at is null;
create index leases_live on leases (pool_id, fence)
    where ended_at is null;

-- The part of a lease on one node. Narrow rows: heartbeats extend them all the time.
create table lease_parts (
    pool_id        text collate "C" not null,
    fence          bigint not null,
    node_id        text collate "C" not null,
    place          integer not null,
    gpus           integer[] not null,
    slots          integer not null,  -- on each GPU
    cpu_milli      bigint not null,
    ram_mib        bigint not null,
    leased_at      bigint not null,
    until          bigint not null,
    run_ms         bigint not null,   -- proven run time
    saved_ms       bigint not null,   -- run time that the last checkpoint has saved
    run_ms_at_stop bigint,
    exit           text,
    exit_code      integer,
    result         text,
    constraint lease_parts_pkey primary key (pool_id, fence, node_id),
    constraint lease_parts_inside_the_lease
        check (until >= leased_at and run_ms between 0 and (until - leased_at) / 1000),
    constraint lease_parts_save_what_was_run check (saved_ms >= 0)
) with (fillfactor = 50);

create table lease_slots (
    pool_id  text collate "C" not null,
    fence    bigint not null,
    node_id  text collate "C" not null,
    gpu      integer not null,
    slot     integer not null,
    freed_at bigint,
    constraint lease_slots_pkey primary key (pool_id, fence, node_id, gpu, slot)
);
-- A slot is in one live lease at most.
create unique index lease_slots_one_live on lease_slots (pool_id, node_id, gpu, slot)
    where freed_at is null;

-- The progress that an attempt reports, by node.
create table progress (
    pool_id text collate "C" not null,
    fence   bigint not null,
    node_id text collate "C" not null,
    ppm     integer not null,
    at      bigint not null,
    constraint progress_pkey primary key (pool_id, fence, node_id),
    constraint progress_is_a_part check (ppm between 0 and 1000000)
);

-- The output of processes, in the parts in which their nodes sent it. Positions are bytes.
create table logs (
    pool_id text collate "C" not null,
    fence   bigint not null,
    node_id text collate "C" not null,
    start   bigint not null,
    size    integer not null,
    at      bigint not null,
    body    text not null,
    constraint logs_pkey primary key (pool_id, fence, node_id, start),
    constraint logs_go_on check (start >= 0 and size >= 0)
);
