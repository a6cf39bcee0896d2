-- How far the alerts and webhooks of an org have come. A rebuild does not restore this: it records
-- what was checked, tried and answered. The alert rules, alerts and webhooks themselves are settings.
-- If these rows were lost, no alert would be raised twice (its id would be the same), and webhooks
-- would deliver the events from then on.

-- Up to which event, and as of when, an org was checked for alerts; and when to check it again.
create table alert_checks (
    org_id text collate "C" not null,
    number bigint not null,
    at     bigint not null,
    due_at bigint not null,
    constraint alert_checks_pkey primary key (org_id),
    constraint alert_checks_number_counts check (number >= 0)
);

-- The event that re-armed an alert rule after its last alert. It could be found again by going through
-- all events.
create table alert_rearms (
    org_id  text collate "C" not null,
    rule_id text collate "C" not null,
    number  bigint not null,
    constraint alert_rearms_pkey primary key (org_id, rule_id)
);

-- How far a webhook has come.
create table webhook_cursors (
    org_id     text collate "C" not null,
    webhook_id text collate "C" not null,
    number     bigint not null,       -- of the last event that it is done with
    tries      integer not null,      -- to deliver the next event
    failing_at bigint,                -- since when every delivery has failed
    due_at     bigint not null,       -- when to try again; a deleted webhook is never due
    constraint webhook_cursors_pkey primary key (org_id, webhook_id),
    constraint webhook_cursors_tries_count check (tries >= 0)
);

-- The deliveries of events to webhooks, and their outcome.
create table deliveries (
    org_id     text collate "C" not null,
    webhook_id text collate "C" not null,
    number     bigint not null,       -- of the event
    status     text not null,
    attempts   integer not null,
    last_at    bigint,
    code       integer,               -- the HTTP status of the last attempt
    why        text,
    next_at    bigint,
    redelivery boolean not null,      -- a user has requested another delivery, which is not finished
    redelivery_requested_at bigint,
    tries      integer not null,      -- of the redelivery
    constraint deliveries_pkey primary key (org_id, webhook_id, number),
    constraint deliveries_status_known check (status in ('pending', 'delivered', 'given_up'))
);
-- The few deliveries for which a user has requested a redelivery.
create index deliveries_requested on deliveries (org_id, webhook_id, number)
    where redelivery;
