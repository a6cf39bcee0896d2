-- What orgs keep besides money: keys, webhooks, quotas. The rules of money do not look at it, but it has
-- events and keys of requests like everything else. A setting that was dropped has no body.

create table settings (
    org_id     text collate "C" not null,
    kind       text collate "C" not null,
    setting_id text collate "C" not null,
    body       json,
    number     bigint not null,
    at         bigint not null,
    constraint settings_pkey primary key (org_id, kind, setting_id),
    constraint settings_number_counts check (number >= 1)
);
grant select, insert, update on settings to bursar_service;
alter table settings enable row level security;
create policy tenant on settings to bursar_service
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

-- Whose key asked; empty when Bursar itself did, and for what was asked before this was written down.
alter table requests add column actor text not null default '';
alter table requests alter column actor drop default;
alter table events add column actor text not null default '';
alter table events alter column actor drop default;

-- An id that is made for an org ends as the org's own id does: this is how an operator, who works for
-- all orgs, finds the one it belongs to.
create index orgs_ending on orgs (right(org_id, 8));

-- How far callers have used up their rates, for all processes together: the instant at which a caller
-- that waits will have its whole allowance again. Lost in a crash, and no loss: it is not logged.
create unlogged table rates (
    org_id     text collate "C" not null,
    subject    text collate "C" not null,
    full_at    bigint not null,
    constraint rates_pkey primary key (org_id, subject)
);
grant select, insert, update on rates to bursar_service;
alter table rates enable row level security;
create policy tenant on rates to bursar_service
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

-- A key with a cap of its own that asked for a hold: budgets of that principal count too.
alter table holds add column asked_by text collate "C";

-- What open holds claim of a budget is a sum of what each can spend: never less than nothing.
alter table claims add constraint claims_not_negative check (claimed >= 0);
