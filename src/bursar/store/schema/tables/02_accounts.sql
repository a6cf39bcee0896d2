-- Accounts, their users and their running totals.
--
-- Rows that change often are updated in place, without touching an index, if no indexed column
-- changes and their page has room (a HOT update). So no index contains an amount, and the pages of
-- these tables are not filled completely (fillfactor).

create table accounts (
    org_id     text collate "C" not null,
    account_id text collate "C" not null,
    parent     text collate "C",      -- null: the org's top account
    name       text not null,
    time_zone  text not null,
    used       bigint not null,
    owed       bigint not null,
    constraint accounts_pkey primary key (org_id, account_id),
    constraint accounts_owe_an_amount check (owed between 0 and 9007199254740991),
    constraint accounts_use_no_less_than_nothing check (used >= 0)
) with (fillfactor = 70);
-- Walks down from an account to all accounts below it, one level at a time.
create index accounts_below on accounts (org_id, parent)
    where parent is not null;

create table users (
    org_id  text collate "C" not null,
    user_id text collate "C" not null,
    constraint users_pkey primary key (org_id, user_id)
);

-- The credits of an account by their kind.
create table totals (
    org_id     text collate "C" not null,
    account_id text collate "C" not null,
    kind       text not null,
    available  bigint not null,
    held       bigint not null,
    spent      bigint not null,
    lapsed     bigint not null,
    revoked    bigint not null,
    moved      bigint not null,
    overdue    bigint not null,       -- part of available: expired, but the lapse is not written yet
    constraint totals_pkey primary key (org_id, account_id, kind),
    constraint totals_none_negative
        check (least(available, held, spent, lapsed, revoked, moved, overdue) >= 0),
    constraint totals_overdue_is_available check (overdue <= available)
) with (fillfactor = 70);

-- What an account has spent in a slot of six hours.
create table burn (
    org_id     text collate "C" not null,
    account_id text collate "C" not null,
    slot       bigint not null,
    amount     bigint not null,
    constraint burn_pkey primary key (org_id, account_id, slot)
) with (fillfactor = 70);
