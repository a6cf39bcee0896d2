-- What pools are told besides their jobs: the policy that operators have set, and slices of the orgs' quotas.
-- Both are numbered by whoever writes them, and a pool takes what is newer than what it knows.

-- The orgs' side: what each pool was given of a quota, and the most that it can have (B4).
create table quota_slices (
    org_id       text collate "C" not null,
    quota_id     text collate "C" not null,
    pool_id      text collate "C" not null,
    n            bigint not null,             -- of what was written for this pool
    known        bigint not null,             -- the last of these that the pool has said it knows
    number       bigint not null,             -- of the event that has set the quota
    body         json not null,               -- the slice
    bounds       json not null,
    constraint quota_slices_pkey primary key (org_id, quota_id, pool_id),
    constraint quota_slices_count check (n >= 1 and number >= 1 and known between 0 and n)
);
-- Which are not known to their pools yet; which quotas there are.
create index quota_slices_untold on quota_slices (org_id, quota_id, pool_id) where known < n;
create index settings_quotas on settings (org_id, setting_id) where kind = 'quota';

-- The pools' side.
create table pool_slices (
    pool_id      text collate "C" not null,
    org_id       text collate "C" not null,
    quota_id     text collate "C" not null,
    n            bigint not null,
    body         json not null,
    constraint pool_slices_pkey primary key (pool_id, org_id, quota_id),
    constraint pool_slices_count check (n >= 1)
);

create table pool_policies (
    pool_id      text collate "C" not null,
    n            bigint not null,             -- of the event that has set it
    body         json not null,
    constraint pool_policies_pkey primary key (pool_id),
    constraint pool_policies_count check (n >= 1)
);

-- What users have had with leases that have ended, faded to an instant; by a digest of whose it is: that may be
-- too long for an index.
create table pool_usage (
    pool_id      text collate "C" not null,
    digest       text collate "C" not null,
    path         json not null,
    micros       bigint not null,
    at           bigint not null,
    constraint pool_usage_pkey primary key (pool_id, digest),
    constraint pool_usage_counts check (micros >= 0)
);

grant select, insert, update on quota_slices, pool_slices, pool_policies, pool_usage
    to bursar_service;

alter table pool_usage enable row level security;
create policy pool on pool_usage to bursar_service
    using ((pool_id || '') = any ((select nullif(current_setting('bursar.pools', true), '')::text[])::text[]));

alter table quota_slices enable row level security;
create policy tenant on quota_slices to bursar_service
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

alter table pool_slices enable row level security;
create policy pool on pool_slices to bursar_service
    using ((pool_id || '') = any ((select nullif(current_setting('bursar.pools', true), '')::text[])::text[]));

alter table pool_policies enable row level security;
create policy pool on pool_policies to bursar_service
    using ((pool_id || '') = any ((select nullif(current_setting('bursar.pools', true), '')::text[])::text[]));
