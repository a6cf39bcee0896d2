-- Charges, and the debts that remain where a hold could not pay them.

create table charges (
    org_id    text collate "C" not null,
    charge_id text collate "C" not null,
    hold_id   text collate "C" not null,
    number    bigint not null,        -- of the event that charged
    usage     bigint not null,
    attempt   bigint,                 -- of the job, if the hold is a job's
    spent     json not null,          -- by grant
    owed      bigint not null,
    counted   json not null,          -- by which budgets, and in which periods
    constraint charges_pkey primary key (org_id, charge_id),
    constraint charges_none_negative check (least(usage, owed) >= 0)
);
-- The newest charges of a hold first. The condition always holds (see grants).
create index charges_hold on charges (org_id, hold_id, (-number), charge_id)
    where number >= 1;
create index charges_owing on charges (org_id, hold_id, number, charge_id)
    where owed > 0;

create table debts (
    org_id     text collate "C" not null,
    debt_id    text collate "C" not null,
    account_id text collate "C" not null,
    hold_id    text collate "C",
    owed       bigint not null,       -- of the total, not paid yet
    booked_at  bigint not null,
    total      bigint not null,
    draws      json not null,
    constraint debts_pkey primary key (org_id, debt_id),
    constraint debts_not_negative check (owed >= 0)
);
-- Debts are paid in the order in which they were booked.
create index debts_open on debts (org_id, booked_at, debt_id)
    where owed > 0;
