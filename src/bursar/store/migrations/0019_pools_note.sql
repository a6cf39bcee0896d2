-- What leaders of pools were told and what they decided, as a stream for each pool: numbered without
-- gaps, each event with a digest of itself and the one before. A snapshot begins a window: from there
-- on the rules can decide everything again (S14). Only the owner of the tables can take events away.
create table pool_events (
    pool_id      text collate "C" not null,
    n            bigint not null,
    at           bigint not null,             -- when it was so
    written_at   bigint not null,
    epoch        bigint not null,             -- whose it is
    kind         text not null,
    body         json not null,
    digest       text not null,
    constraint pool_events_pkey primary key (pool_id, n),
    constraint pool_events_count check (n >= 1 and epoch >= 0),
    constraint pool_events_kind_known check (kind in ('snapshot', 'part', 'round')),
    constraint pool_events_written_after check (written_at >= at)
);
-- Where a replay can begin.
create index pool_events_windows on pool_events (pool_id, n) where kind = 'snapshot';

-- The end of its stream; from when on somebody has to lead it. All are led once, to see.
alter table pools
    add column noted   bigint not null default 0,
    add column digest  text not null default '',
    add column trimmed bigint not null default 0,  -- events that were taken away
    add column due_at  bigint not null default 0,
    add constraint pools_note check (due_at >= 0 and trimmed between 0 and noted);

grant select, insert on pool_events to bursar_service;

alter table pool_events enable row level security;
create policy pool on pool_events to bursar_service
    using ((pool_id || '') = any ((select nullif(current_setting('bursar.pools', true), '')::text[])::text[]));
