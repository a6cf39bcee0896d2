-- Pools of nodes. pool_id comes first in every key of a pool's tables, as org_id does in an org's: a
-- pool and an org may be on different servers.

-- The row that every transaction of a pool locks first.
create table pools (
    pool_id       text collate "C" not null,
    now           bigint not null,
    fence         bigint not null,            -- the last one given to a lease
    version       bigint not null,            -- transactions that have changed the pool's rows
    epoch         bigint not null,            -- leaders so far; rejects what a former leader writes
    leader        text not null,
    leads_until   bigint not null,
    leader_due_at bigint not null default 0,  -- from when on the pool needs a leader
    audit_events  bigint not null default 0,  -- the last event of the pool's event stream
    digest        text not null default '',   -- of that event
    trimmed       bigint not null default 0,  -- events that were removed from the stream's beginning
    constraint pools_pkey primary key (pool_id),
    constraint pools_count check (least(now, fence, version, epoch, leads_until) >= 0),
    constraint pools_stream check (leader_due_at >= 0 and trimmed between 0 and audit_events)
) with (fillfactor = 50);

-- The rows that each transaction of a pool has written. A process with the pool in memory catches up
-- by these. Old rows are deleted; a process that is further behind reads the whole pool.
create table pool_changes (
    pool_id text collate "C" not null,
    version bigint not null,
    body    json not null,
    constraint pool_changes_pkey primary key (pool_id, version)
);

-- The scheduling policy that operators have set.
create table pool_policies (
    pool_id text collate "C" not null,
    n       bigint not null,  -- of the event that set it; a pool ignores an older one
    body    json not null,
    constraint pool_policies_pkey primary key (pool_id),
    constraint pool_policies_count check (n >= 1)
);

-- The parts of the orgs' quotas that the pool may use (see quota_slices).
create table pool_slices (
    pool_id  text collate "C" not null,
    org_id   text collate "C" not null,
    quota_id text collate "C" not null,
    n        bigint not null,
    body     json not null,
    constraint pool_slices_pkey primary key (pool_id, org_id, quota_id),
    constraint pool_slices_count check (n >= 1)
);

-- The decayed usage of leases that have ended, for fair shares. The key is a digest of the share's
-- path, which may be too long for an index.
create table pool_usage (
    pool_id text collate "C" not null,
    digest  text collate "C" not null,
    path    json not null,
    micros  bigint not null,
    at      bigint not null,  -- the instant to which it has decayed
    constraint pool_usage_pkey primary key (pool_id, digest),
    constraint pool_usage_counts check (micros >= 0)
);

-- Messages to orgs (see org_outbox).
create table pool_outbox (
    pool_id    text collate "C" not null,
    org_id     text collate "C" not null,
    job_id     text collate "C" not null,
    n          bigint not null,
    body       json not null,
    written_at bigint not null,
    acked_at   bigint,
    constraint pool_outbox_pkey primary key (pool_id, org_id, job_id, n),
    constraint pool_outbox_numbers_count check (n >= 1),
    constraint pool_outbox_acked_after_written check (acked_at >= written_at)
);
create index pool_outbox_unacked on pool_outbox (pool_id, org_id, job_id, n)
    where acked_at is null;

-- The decisions of a pool's leaders and what they were based on: one stream per pool, numbered without
-- gaps, each event with a digest of itself and its predecessor. From a snapshot on, the rules can
-- repeat every decision (S14). Only the owner of the tables can delete events.
create table pool_events (
    pool_id    text collate "C" not null,
    n          bigint not null,
    at         bigint not null,  -- when it was decided
    written_at bigint not null,
    epoch      bigint not null,  -- of the leader
    kind       text not null,
    body       json not null,
    digest     text not null,
    constraint pool_events_pkey primary key (pool_id, n),
    constraint pool_events_count check (n >= 1 and epoch >= 0),
    constraint pool_events_kind_known check (kind in ('snapshot', 'part', 'round')),
    constraint pool_events_written_after check (written_at >= at)
);
-- Where a replay can begin.
create index pool_events_windows on pool_events (pool_id, n)
    where kind = 'snapshot';
