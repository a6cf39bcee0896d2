-- How far alerts and webhooks have come. None of this follows from the events, so nothing here is made
-- again by a rebuild: it says what was looked at, tried and answered, not what is true of an org. What
-- is true (rules, alerts, webhooks) are settings of the org. Were it lost, alerts that were raised would
-- not be raised again (their ids are the same), and webhooks would be told of what happens from then on.

-- Up to which event, and as of when, an org was looked at for alerts; and when to look again.
create table looks (
    org_id     text collate "C" not null,
    number     bigint not null,
    at         bigint not null,
    due_at     bigint not null,
    constraint looks_pkey primary key (org_id),
    constraint looks_number_counts check (number >= 0)
);
-- What happened before there were alerts is not told any more.
insert into looks (org_id, number, at, due_at) select org_id, number, 0, 0 from orgs;

-- Which event let a rule be ready to tell again. It could be found from the first one on, step by step.
create table episodes (
    org_id     text collate "C" not null,
    rule_id    text collate "C" not null,
    number     bigint not null,
    constraint episodes_pkey primary key (org_id, rule_id)
);

-- The last event that a webhook is done with; how often the next one was tried, since when nothing has
-- arrived, and when to try again. A webhook that is no more has no such instant: it is never.
create table cursors (
    org_id     text collate "C" not null,
    webhook_id text collate "C" not null,
    number     bigint not null,
    tries      integer not null,
    failing_at bigint,
    due_at     bigint not null,
    constraint cursors_pkey primary key (org_id, webhook_id),
    constraint cursors_tries_count check (tries >= 0)
);

-- What became of an event that was told to a webhook.
create table deliveries (
    org_id     text collate "C" not null,
    webhook_id text collate "C" not null,
    number     bigint not null,
    status     text not null,
    attempts   integer not null,
    last_at    bigint,
    code       integer,
    why        text,
    next_at    bigint,
    asked      boolean not null,
    asked_at   bigint,
    tries      integer not null,
    constraint deliveries_pkey primary key (org_id, webhook_id, number),
    constraint deliveries_status_known check (status in ('pending', 'delivered', 'given_up'))
);
-- Those that somebody has asked for again: few, and found without looking at the others.
create index deliveries_asked on deliveries (org_id, webhook_id, number) where asked;

-- An org's alerts in the order in which they were raised, or were over.
create index settings_alerts on settings (org_id, number) where kind = 'alert';

insert into duties (duty, holder, until, done_at)
values ('alerts', '', 0, 0), ('webhooks', '', 0, 0);

grant select, insert, update on looks, episodes, cursors, deliveries to bursar_service;

alter table looks enable row level security;
create policy tenant on looks to bursar_service
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

alter table episodes enable row level security;
create policy tenant on episodes to bursar_service
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

alter table cursors enable row level security;
create policy tenant on cursors to bursar_service
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));

alter table deliveries enable row level security;
create policy tenant on deliveries to bursar_service
    using ((org_id || '') = any ((select nullif(current_setting('bursar.orgs', true), '')::text[])::text[]));
