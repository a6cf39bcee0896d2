-- The journal of an org: its events, the amounts that they moved, and the requests that caused them.
-- The service inserts these rows and never changes them. All other tables of an org's ledger can be
-- rebuilt from the events.

create table events (
    org_id text collate "C" not null,
    number bigint not null,           -- from 1, without gaps
    at     bigint not null,
    kind   text not null,
    body   json not null,
    actor  text not null,             -- the API key that caused the event; empty: Bursar itself
    constraint events_pkey primary key (org_id, number),
    constraint events_number_counts check (number >= 1)
);

-- The amounts that an event moved between compartments of grants, for statements and past balances.
create table postings (
    org_id       text collate "C" not null,
    number       bigint not null,     -- of the event
    place        integer not null,    -- within the event
    grant_id     text collate "C" not null,
    source       text,                -- the compartment; null: the credits are new
    target       text not null,
    amount       bigint not null,
    effective_at bigint not null,
    freed        bigint not null,     -- by how much the usable credits of the grant changed
    constraint postings_pkey primary key (org_id, number, place),
    constraint postings_move_something check (amount > 0 and source is distinct from target)
);
create index postings_history on postings (org_id, grant_id, effective_at, number, place)
    where freed <> 0;

-- The commands that callers sent under an idempotency key, and the first answer to each (L7).
create table requests (
    org_id  text collate "C" not null,
    key     text collate "C" not null,
    at      bigint not null,
    command json not null,
    refusal json,                     -- null: the command was accepted
    first   bigint not null,          -- of the events that it caused
    number  bigint not null,          -- and the last of them; first - 1 if there are none
    actor   text not null,
    constraint requests_pkey primary key (org_id, key),
    constraint requests_events_in_order check (first between 1 and number + 1)
);
