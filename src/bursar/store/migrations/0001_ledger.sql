-- The ledger of every org. Amounts are micro-credits, instants are microseconds since 1970 UTC, ids
-- are text compared byte by byte. org_id comes first in every key: it is the shard key, the
-- consistency boundary and the tenant (DESIGN D4). Rules live in bursar.core; what stands here as a
-- constraint only makes sure of them (D9).

-- One row for each org: the lock every batch takes first, and what there is one of.
create table orgs (
    org_id     text collate "C" not null,
    number     bigint not null,
    now        bigint not null,
    clock      bigint not null,
    issued     bigint not null,
    root       text collate "C",
    tier       text,
    policy     json not null,
    prices     json not null,
    frozen     text,
    constraint orgs_pkey primary key (org_id),
    constraint orgs_number_counts check (number >= 0),
    constraint orgs_time_moves_on check (now >= 0 and clock >= 0),
    constraint orgs_issued_is_an_amount check (issued between 0 and 9007199254740991)
);

-- What happened, for ever. Nothing here is ever changed; all other tables follow from it.
create table events (
    org_id     text collate "C" not null,
    number     bigint not null,
    at         bigint not null,
    kind       text not null,
    body       json not null,
    constraint events_pkey primary key (org_id, number),
    constraint events_number_counts check (number >= 1)
);

-- The amounts that events moved, one row each, for statements and for looking back.
create table postings (
    org_id       text collate "C" not null,
    number       bigint not null,
    place        integer not null,
    grant_id     text collate "C" not null,
    source       text,
    target       text not null,
    amount       bigint not null,
    effective_at bigint not null,
    freed        bigint not null,
    constraint postings_pkey primary key (org_id, number, place),
    constraint postings_move_something check (amount > 0 and source is distinct from target)
);
create index postings_history on postings (org_id, grant_id, effective_at, number, place)
    where freed <> 0;

-- What was asked under a caller's key, and the first answer to it (L7).
create table requests (
    org_id     text collate "C" not null,
    key        text collate "C" not null,
    at         bigint not null,
    command    json not null,
    refusal    json,
    first      bigint not null,
    number     bigint not null,
    constraint requests_pkey primary key (org_id, key),
    constraint requests_events_in_order check (first between 1 and number + 1)
);

create table accounts (
    org_id     text collate "C" not null,
    account_id text collate "C" not null,
    parent     text collate "C",
    name       text not null,
    time_zone  text not null,
    used       bigint not null,
    owed       bigint not null,
    constraint accounts_pkey primary key (org_id, account_id),
    constraint accounts_owe_an_amount check (owed between 0 and 9007199254740991),
    constraint accounts_use_no_less_than_nothing check (used >= 0)
);

create table users (
    org_id     text collate "C" not null,
    user_id    text collate "C" not null,
    constraint users_pkey primary key (org_id, user_id)
);

create table grants (
    org_id       text collate "C" not null,
    grant_id     text collate "C" not null,
    account_id   text collate "C" not null,
    kind         text not null,
    kind_rank    smallint not null,
    source       text not null,
    priority     bigint not null,
    issued_at    bigint not null,
    starts_at    bigint not null,
    expires_at   bigint not null,
    amount       bigint not null,
    policy       json not null,
    lane_id      text collate "C" not null,
    external_ref text collate "C",
    parent       text collate "C",
    recurrence   text collate "C",
    available    bigint not null,
    held         bigint not null,
    spent        bigint not null,
    lapsed       bigint not null,
    revoked      bigint not null,
    moved        bigint not null,
    withdrawn    boolean not null,
    forfeited    bigint not null,
    place        text not null,
    constraint grants_pkey primary key (org_id, grant_id),
    constraint grants_external_ref_once unique (org_id, external_ref),
    constraint grants_add_up check (amount = available + held + spent + lapsed + revoked + moved),
    constraint grants_no_compartment_negative
        check (least(available, held, spent, lapsed, revoked, moved) >= 0),
    constraint grants_forfeit_what_lapsed check (forfeited between 0 and lapsed),
    constraint grants_amount_is_an_amount check (amount between 1 and 9007199254740991),
    constraint grants_place_known check (place in ('nowhere', 'waiting', 'listed', 'expired')),
    constraint grants_stand_where_something_is check ((place = 'nowhere') = (available = 0)),
    constraint grants_end_after_they_start check (expires_at > greatest(starts_at, issued_at))
);
create index grants_listed on grants
    (org_id, account_id, lane_id, expires_at, kind_rank, issued_at, grant_id) where place = 'listed';
create index grants_ending on grants (org_id, expires_at, grant_id) where place = 'listed';
create index grants_waiting on grants (org_id, greatest(starts_at, issued_at), grant_id)
    where place = 'waiting';
create index grants_expired on grants (org_id, expires_at, grant_id) where place = 'expired';
create index grants_issued on grants (org_id, account_id, issued_at, grant_id);
create index grants_free on grants (org_id, account_id, expires_at, grant_id)
    where available + lapsed > forfeited;

-- Grants of one owner with equal priority and policy, and what they have available together.
create table lanes (
    org_id     text collate "C" not null,
    account_id text collate "C" not null,
    lane_id    text collate "C" not null,
    priority   bigint not null,
    policy     json not null,
    total      bigint not null,
    constraint lanes_pkey primary key (org_id, account_id, lane_id),
    constraint lanes_have_no_less_than_nothing check (total >= 0)
);

-- Lapsed credits that can never be used again, from an instant on.
create table forfeits (
    org_id     text collate "C" not null,
    grant_id   text collate "C" not null,
    at         bigint not null,
    number     bigint not null,
    amount     bigint not null,
    constraint forfeits_pkey primary key (org_id, grant_id, at, number)
);

-- What accounts own, by kind of credit; `overdue` has expired and its lapse is not written yet.
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
    overdue    bigint not null,
    constraint totals_pkey primary key (org_id, account_id, kind),
    constraint totals_none_negative
        check (least(available, held, spent, lapsed, revoked, moved, overdue) >= 0),
    constraint totals_overdue_is_available check (overdue <= available)
);

create table holds (
    org_id         text collate "C" not null,
    hold_id        text collate "C" not null,
    account_id     text collate "C" not null,
    user_id        text collate "C" not null,
    context        json not null,
    rates          json not null,
    price_versions json not null,
    by_time        boolean not null,
    opened_at      bigint not null,
    expires_at     bigint not null,
    open           bigint not null,
    used           bigint not null,
    owed           bigint not null,
    absorbed       bigint not null,
    rate           bigint not null,
    meters         json not null,
    touched_at     bigint not null,
    closed_at      bigint,
    constraint holds_pkey primary key (org_id, hold_id),
    constraint holds_none_negative check (least(open, used, owed, absorbed, rate) >= 0),
    constraint holds_closed_keep_nothing check (closed_at is null or open = 0)
);
create index holds_limits on holds (org_id, expires_at, hold_id) where closed_at is null;

-- The part of a hold that came from one grant.
create table draws (
    org_id      text collate "C" not null,
    hold_id     text collate "C" not null,
    grant_id    text collate "C" not null,
    place       integer not null,
    drawn       bigint not null,
    charged     bigint not null,
    undone      bigint not null,
    returned    bigint not null,
    returned_at bigint not null,
    constraint draws_pkey primary key (org_id, hold_id, grant_id),
    constraint draws_none_negative
        check (least(drawn - charged - returned, charged - undone, undone, returned) >= 0)
);

create table charges (
    org_id     text collate "C" not null,
    charge_id  text collate "C" not null,
    hold_id    text collate "C" not null,
    number     bigint not null,
    usage      bigint not null,
    attempt    bigint,
    spent      json not null,
    owed       bigint not null,
    counted    json not null,
    constraint charges_pkey primary key (org_id, charge_id),
    constraint charges_none_negative check (least(usage, owed) >= 0)
);
create index charges_hold on charges (org_id, hold_id, (-number), charge_id);
create index charges_owing on charges (org_id, hold_id, number, charge_id) where owed > 0;

create table debts (
    org_id     text collate "C" not null,
    debt_id    text collate "C" not null,
    account_id text collate "C" not null,
    hold_id    text collate "C",
    owed       bigint not null,
    booked_at  bigint not null,
    total      bigint not null,
    draws      json not null,
    constraint debts_pkey primary key (org_id, debt_id),
    constraint debts_not_negative check (owed >= 0)
);
create index debts_open on debts (org_id, booked_at, debt_id) where owed > 0;

create table recurrences (
    org_id        text collate "C" not null,
    recurrence_id text collate "C" not null,
    next_at       bigint not null,
    body          json not null,
    constraint recurrences_pkey primary key (org_id, recurrence_id)
);
create index recurrences_next on recurrences (org_id, next_at, recurrence_id);

create table budgets (
    org_id         text collate "C" not null,
    budget_id      text collate "C" not null,
    target_account text collate "C" not null,
    target_user    text collate "C" not null,
    each_user      boolean not null,
    body           json not null,
    dropped        boolean not null,
    constraint budgets_pkey primary key (org_id, budget_id)
);
create index budgets_target on budgets
    (org_id, target_account, target_user, each_user, budget_id) where not dropped;

-- What budgets count in a period or slot; user_id is empty unless each user counts apart.
create table tallies (
    org_id     text collate "C" not null,
    budget_id  text collate "C" not null,
    user_id    text collate "C" not null,
    start      bigint not null,
    charged    bigint not null,
    relief     bigint not null,
    crossed    integer not null,
    revision   bigint not null,
    constraint tallies_pkey primary key (org_id, budget_id, user_id, start),
    constraint tallies_charged_not_negative check (charged >= 0)
);

-- What open holds can spend of budgets, in a longest period.
create table claims (
    org_id     text collate "C" not null,
    budget_id  text collate "C" not null,
    user_id    text collate "C" not null,
    claimed    bigint not null,
    constraint claims_pkey primary key (org_id, budget_id, user_id)
);

-- What accounts spent in slots of six hours.
create table burn (
    org_id     text collate "C" not null,
    account_id text collate "C" not null,
    slot       bigint not null,
    amount     bigint not null,
    constraint burn_pkey primary key (org_id, account_id, slot)
);
