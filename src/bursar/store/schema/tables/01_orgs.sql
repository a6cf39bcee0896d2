-- Orgs: one row per tenant.
--
-- Conventions of every table of an org:
--   amounts are micro-credits, instants are microseconds since 1970 UTC;
--   ids are text and compared byte by byte (collate "C");
--   org_id comes first in every key: it is the tenant, the shard key and the consistency boundary
--   (DESIGN D4), so one org's rows never depend on another's;
--   rules live in bursar.core. A constraint only catches a bug in them (D9), so each one has a name.

-- The row that every batch of an org locks first, with the values of which an org has exactly one.
create table orgs (
    org_id text collate "C" not null,
    number bigint not null,     -- of the org's last event
    now    bigint not null,     -- up to when due events are written
    clock  bigint not null,     -- the latest time of day that a batch has seen
    issued bigint not null,     -- all credits ever issued
    root   text collate "C",    -- the top account; null until there is one
    tier   text,
    policy json not null,
    prices json not null,       -- the org's own price book; empty: the deployment's applies
    frozen text,                -- why the org accepts no commands; null: it does
    constraint orgs_pkey primary key (org_id),
    constraint orgs_number_counts check (number >= 0),
    constraint orgs_time_moves_on check (now >= 0 and clock >= 0),
    constraint orgs_issued_is_an_amount check (issued between 0 and 9007199254740991)
) with (fillfactor = 50);

-- An id that is made for an org ends with the last characters of the org's own id. An operator who
-- works for all orgs finds the org of an id by them.
create index orgs_ending on orgs (right(org_id, 8));
