-- Holds: credits that are set aside for work, and the grants that they came from.

create table holds (
    org_id         text collate "C" not null,
    hold_id        text collate "C" not null,
    account_id     text collate "C" not null,
    user_id        text collate "C" not null,
    capped_key       text collate "C",               -- an API key with a spend cap: its budgets count too
    for_job        boolean not null default false, -- opened with a job, so it may last as long as jobs do
    context        json not null,
    rates          json not null,                  -- the prices at which its usage is charged
    price_versions json not null,
    by_time        boolean not null,
    opened_at      bigint not null,
    expires_at     bigint not null,
    open           bigint not null,                -- still set aside
    used           bigint not null,
    owed           bigint not null,
    absorbed       bigint not null,
    rate           bigint not null,
    meters         json not null,
    touched_at     bigint not null,
    closed_at      bigint,
    lots           json,                           -- an array's hold: how many shares it has, how many are taken
    lot_of         text collate "C",               -- an element's hold: the array's hold it was taken from
    constraint holds_pkey primary key (org_id, hold_id),
    constraint holds_none_negative check (least(open, used, owed, absorbed, rate) >= 0),
    constraint holds_closed_keep_nothing check (closed_at is null or open = 0)
) with (fillfactor = 70);
-- The next open hold of the org that expires.
create index holds_limits on holds (org_id, expires_at, hold_id)
    where closed_at is null;
create index holds_lots on holds (org_id, lot_of)
    where lot_of is not null;

-- The part of a hold that came from one grant.
create table draws (
    org_id      text collate "C" not null,
    hold_id     text collate "C" not null,
    grant_id    text collate "C" not null,
    place       integer not null,                  -- in the order in which the hold is spent
    drawn       bigint not null,
    charged     bigint not null,
    undone      bigint not null,
    returned    bigint not null,
    returned_at bigint not null,
    constraint draws_pkey primary key (org_id, hold_id, grant_id),
    constraint draws_none_negative
        check (least(drawn - charged - returned, charged - undone, undone, returned) >= 0)
) with (fillfactor = 70);
