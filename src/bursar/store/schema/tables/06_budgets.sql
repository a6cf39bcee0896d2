-- Budgets: what accounts and users may spend in a period.

create table budgets (
    org_id         text collate "C" not null,
    budget_id      text collate "C" not null,
    target_account text collate "C" not null,
    target_user    text collate "C" not null,
    each_user      boolean not null,          -- each user of the target is counted separately
    body           json not null,
    dropped        boolean not null,
    constraint budgets_pkey primary key (org_id, budget_id)
);
create index budgets_target on budgets
    (org_id, target_account, target_user, each_user, budget_id)
    where not dropped;

-- What a budget has counted in a period or slot. user_id is empty unless each user is counted.
create table tallies (
    org_id    text collate "C" not null,
    budget_id text collate "C" not null,
    user_id   text collate "C" not null,
    start     bigint not null,
    charged   bigint not null,
    relief    bigint not null,
    crossed   integer not null,               -- alert thresholds that the tally has reached
    revision  bigint not null,
    constraint tallies_pkey primary key (org_id, budget_id, user_id, start),
    constraint tallies_charged_not_negative check (charged >= 0)
) with (fillfactor = 70);

-- What the open holds can still spend of a budget.
create table claims (
    org_id    text collate "C" not null,
    budget_id text collate "C" not null,
    user_id   text collate "C" not null,
    claimed   bigint not null,
    constraint claims_pkey primary key (org_id, budget_id, user_id),
    constraint claims_not_negative check (claimed >= 0)
) with (fillfactor = 70);
