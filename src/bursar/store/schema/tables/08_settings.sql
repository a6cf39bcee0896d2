-- Settings of an org besides its credits: API keys, webhooks, quotas, alert rules and alerts. The rules of
-- the ledger do not read them, but each change is an event and has an idempotency key.

create table settings (
    org_id     text collate "C" not null,
    kind       text collate "C" not null,
    setting_id text collate "C" not null,
    body       json,                  -- null: deleted
    number     bigint not null,       -- of the event that changed it last
    at         bigint not null,
    -- The subject of a quota, as columns: row security keeps an index on an expression over json from
    -- being used. Other kinds of settings may contain text that PostgreSQL cannot store as text.
    account_id text collate "C"
        generated always as (case when kind = 'quota' then body ->> 'account_id' end) stored,
    user_id    text collate "C"
        generated always as (case when kind = 'quota' then body ->> 'user_id' end) stored,
    constraint settings_pkey primary key (org_id, kind, setting_id),
    constraint settings_number_counts check (number >= 1)
);
-- The alerts of an org in the order in which they were raised or resolved.
create index settings_alerts on settings (org_id, number)
    where kind = 'alert';
create index settings_quotas on settings (org_id, setting_id)
    where kind = 'quota';
-- The quotas that count a job, however many an org has.
create index settings_quotas_by_subject on settings (org_id, account_id, user_id)
    where kind = 'quota';

-- The request rates of callers, shared by all processes: when a caller that sends nothing has its
-- whole allowance again. Unlogged: losing it in a crash only forgives callers.
create unlogged table rates (
    org_id  text collate "C" not null,
    subject text collate "C" not null,
    full_at bigint not null,
    constraint rates_pkey primary key (org_id, subject)
);
