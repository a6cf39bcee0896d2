-- What is kept beside the ledger, off the hot path, by the sweeper: how far it has come with each
-- org, who stands where in the top lists (L15), and snapshots that shorten the way to the past (L12).
-- All of it follows from the events and could be made again.

-- One row for each org that was swept: what is summed up, as of when, and when to look again.
create table sweeps (
    org_id     text collate "C" not null,
    number     bigint not null,
    at         bigint not null,
    due_at     bigint not null,
    constraint sweeps_pkey primary key (org_id),
    constraint sweeps_number_counts check (number >= 0)
);

-- What users spent in slots of six hours, as `burn` has it for accounts.
create table spending (
    org_id     text collate "C" not null,
    user_id    text collate "C" not null,
    slot       bigint not null,
    amount     bigint not null,
    constraint spending_pkey primary key (org_id, user_id, slot)
);

-- Who has how much of what, as of the org's last sweep. One narrow row for each measure: a sweep
-- writes the figures that changed and no others.
create table standings (
    org_id     text collate "C" not null,
    subject    text collate "C" not null,
    measure    text collate "C" not null,
    subject_id text collate "C" not null,
    value      bigint not null,
    constraint standings_pkey primary key (org_id, subject, measure, subject_id),
    constraint standings_not_negative check (value >= 0)
);
create index standings_of_org on standings (org_id, subject, measure, value desc, subject_id)
    where value > 0;
-- The operator's question goes over all orgs. On many servers each answers for its own, and the
-- answers are merged: the one index whose first column is not the org. It is over expressions that
-- no other statement has: without statistics one about an org might be led through all orgs.
create index standings_of_all on standings
    ((subject || '/' || measure), (-value), org_id, subject_id) where value > 0;

-- Every grant as the events up to a number left it.
create table snapshots (
    org_id     text collate "C" not null,
    number     bigint not null,
    at         bigint not null,
    grants     bigint not null,
    checksum   text not null,
    body       bytea not null,
    constraint snapshots_pkey primary key (org_id, number),
    constraint snapshots_number_counts check (number >= 1)
);

-- Who does what only one process needs to do, until when, and when it was last done to its end.
create table duties (
    duty       text collate "C" not null,
    holder     text not null,
    until      bigint not null,
    done_at    bigint not null,
    constraint duties_pkey primary key (duty)
);
insert into duties (duty, holder, until, done_at) values ('sweep', '', 0, 0);

grant select, insert, update on sweeps, spending, standings to bursar_service;
-- A snapshot says what was: it is never changed.
grant select, insert on snapshots to bursar_service;

alter table sweeps enable row level security;
create policy tenant on sweeps to bursar_service
    using (org_id = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

alter table spending enable row level security;
create policy tenant on spending to bursar_service
    using (org_id = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

alter table standings enable row level security;
create policy tenant on standings to bursar_service
    using (org_id = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

alter table snapshots enable row level security;
create policy tenant on snapshots to bursar_service
    using (org_id = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));
