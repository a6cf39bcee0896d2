-- Messages between orgs and pools, on the org's side. A transaction touches orgs or one pool, never
-- both (D4). A message to the other side is a row of the outbox, written in the transaction that it
-- reports, and delivered by the relay until the other side has acknowledged it. Messages are numbered
-- from 1 for each job and direction.

-- Messages to pools.
create table org_outbox (
    org_id     text collate "C" not null,
    job_id     text collate "C" not null,
    n          bigint not null,
    pool_id    text collate "C" not null,
    body       json not null,
    written_at bigint not null,
    acked_at   bigint,
    constraint org_outbox_pkey primary key (org_id, job_id, n),
    constraint org_outbox_numbers_count check (n >= 1),
    constraint org_outbox_acked_after_written check (acked_at >= written_at)
);
create index org_outbox_unacked on org_outbox (org_id, job_id, n)
    where acked_at is null;

-- Messages of pools that the org has handled, and the refusal where the rules rejected one.
create table org_inbox (
    org_id  text collate "C" not null,
    pool_id text collate "C" not null,
    job_id  text collate "C" not null,
    n       bigint not null,
    at      bigint not null,
    refusal text,
    constraint org_inbox_pkey primary key (org_id, pool_id, job_id, n),
    constraint org_inbox_numbers_count check (n >= 1)
);

-- The part of a quota that each pool may use (B4). Versions are numbered for each pool; the pool
-- acknowledges the version that it knows.
create table quota_slices (
    org_id   text collate "C" not null,
    quota_id text collate "C" not null,
    pool_id  text collate "C" not null,
    n        bigint not null,         -- the version that was written last
    known    bigint not null,         -- the version that the pool has acknowledged
    number   bigint not null,         -- of the event that set the quota
    body     json not null,           -- the slice
    bounds   json not null,           -- the most that the pool can use, until it knows the last version
    constraint quota_slices_pkey primary key (org_id, quota_id, pool_id),
    constraint quota_slices_count check (n >= 1 and number >= 1 and known between 0 and n)
);
create index quota_slices_unacknowledged on quota_slices (org_id, quota_id, pool_id)
    where known < n;
