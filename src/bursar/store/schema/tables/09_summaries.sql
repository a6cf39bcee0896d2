-- What the sweeper derives from an org's events, outside of the batches: how far it has come, the top
-- lists (L15) and snapshots for past balances (L12). All of it can be made again.

-- How far an org is swept, and when to sweep it again.
create table sweeps (
    org_id text collate "C" not null,
    number bigint not null,           -- of the last event that is summed up
    at     bigint not null,
    due_at bigint not null,
    constraint sweeps_pkey primary key (org_id),
    constraint sweeps_number_counts check (number >= 0)
);

-- What a user has spent in a slot of six hours, as `burn` has it for accounts.
create table user_burn (
    org_id  text collate "C" not null,
    user_id text collate "C" not null,
    slot    bigint not null,
    amount  bigint not null,
    constraint user_burn_pkey primary key (org_id, user_id, slot)
);

-- The figures of the top lists, as of the org's last sweep: one narrow row per figure, so that a sweep
-- writes only what has changed.
create table top_list_entries (
    org_id     text collate "C" not null,
    subject    text collate "C" not null,  -- 'account', 'user' …
    measure    text collate "C" not null,  -- 'available', 'used', 'day', 'week', 'slots'
    subject_id text collate "C" not null,
    value      bigint not null,
    constraint top_list_entries_pkey primary key (org_id, subject, measure, subject_id),
    constraint top_list_entries_not_negative check (value >= 0)
);
create index top_list_entries_of_org on top_list_entries (org_id, subject, measure, value desc, subject_id)
    where value > 0;
-- The operator's top lists go over all orgs. With several servers each answers for its own orgs and
-- the answers are merged, so this index may begin with another column than org_id. It is over
-- expressions that only the operator's statement uses: otherwise a planner without statistics could
-- choose it for one org, and read all of them.
create index top_list_entries_of_all on top_list_entries
    ((subject || '/' || measure), (-value), org_id, subject_id)
    where value > 0;

-- All grants of an org as the events up to a number left them. The checksum covers the whole row.
create table snapshots (
    org_id   text collate "C" not null,
    number   bigint not null,
    at       bigint not null,
    grants   bigint not null,              -- how many the body contains
    checksum text not null,
    body     bytea not null,
    constraint snapshots_pkey primary key (org_id, number),
    constraint snapshots_number_counts check (number >= 1)
);
