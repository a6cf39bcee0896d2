-- Grants of credits, the order in which they are spent, and what creates them again.
--
-- An index whose last column is the row's own id looks as good as the primary key to a planner
-- without statistics, but reads the whole org. The indexes below therefore carry a condition, some
-- of which always hold (issued_at >= 0): only a statement that repeats the condition can use them.

create table grants (
    org_id       text collate "C" not null,
    grant_id     text collate "C" not null,
    account_id   text collate "C" not null,
    kind         text not null,
    kind_rank    smallint not null,   -- of the kind in the spending order
    source       text not null,
    priority     bigint not null,
    issued_at    bigint not null,
    starts_at    bigint not null,
    expires_at   bigint not null,
    amount       bigint not null,
    policy       json not null,
    lane_id      text collate "C" not null,
    external_ref text collate "C",    -- of the payment; an org uses each one once
    parent       text collate "C",    -- the grant that this one was moved out of
    recurrence   text collate "C",    -- the recurrence that issued it
    available    bigint not null,     -- the compartments: together they are the amount
    held         bigint not null,
    spent        bigint not null,
    lapsed       bigint not null,
    revoked      bigint not null,
    moved        bigint not null,
    withdrawn    boolean not null,
    forfeited    bigint not null,     -- part of lapsed: it can never be used again
    has_free     boolean not null,    -- available or usable lapsed credits; for an index without amounts
    place        text not null,       -- in which of the indexes below the grant stands
    constraint grants_pkey primary key (org_id, grant_id),
    constraint grants_add_up check (amount = available + held + spent + lapsed + revoked + moved),
    constraint grants_no_compartment_negative
        check (least(available, held, spent, lapsed, revoked, moved) >= 0),
    constraint grants_forfeit_what_lapsed check (forfeited between 0 and lapsed),
    constraint grants_amount_is_an_amount check (amount between 1 and 9007199254740991),
    constraint grants_has_free_matches check (has_free = (available + lapsed > forfeited)),
    constraint grants_place_known check (place in ('nowhere', 'waiting', 'listed', 'expired')),
    constraint grants_stand_where_something_is check ((place = 'nowhere') = (available = 0)),
    constraint grants_end_after_they_start check (expires_at > greatest(starts_at, issued_at))
) with (fillfactor = 70);
create unique index grants_external_ref_once on grants (org_id, external_ref)
    where external_ref is not null;
-- The order in which the grants of a lane are spent.
create index grants_listed on grants
    (org_id, account_id, lane_id, expires_at, kind_rank, issued_at, grant_id)
    where place = 'listed';
-- The next grant of the org that expires, and the next that starts.
create index grants_ending on grants (org_id, expires_at, grant_id)
    where place = 'listed';
create index grants_waiting on grants (org_id, greatest(starts_at, issued_at), grant_id)
    where place = 'waiting';
create index grants_expired on grants (org_id, expires_at, grant_id)
    where place = 'expired';
create index grants_issued on grants (org_id, account_id, issued_at, grant_id)
    where issued_at >= 0;
create index grants_free on grants (org_id, account_id, expires_at, grant_id)
    where has_free;

-- Grants of one account with equal priority and policy, and what they have available together.
create table lanes (
    org_id     text collate "C" not null,
    account_id text collate "C" not null,
    lane_id    text collate "C" not null,
    priority   bigint not null,
    policy     json not null,
    total      bigint not null,
    constraint lanes_pkey primary key (org_id, account_id, lane_id),
    constraint lanes_have_no_less_than_nothing check (total >= 0)
) with (fillfactor = 70);

-- Lapsed credits that can never be used again, from an instant on.
create table forfeits (
    org_id   text collate "C" not null,
    grant_id text collate "C" not null,
    at       bigint not null,
    number   bigint not null,         -- of the event
    amount   bigint not null,
    constraint forfeits_pkey primary key (org_id, grant_id, at, number)
);

-- Grants that are issued again and again.
create table recurrences (
    org_id        text collate "C" not null,
    recurrence_id text collate "C" not null,
    next_at       bigint not null,
    body          json not null,
    constraint recurrences_pkey primary key (org_id, recurrence_id)
);
create index recurrences_next on recurrences (org_id, next_at, recurrence_id)
    where next_at >= 0;
