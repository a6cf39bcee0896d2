-- What processes have printed, in the parts in which their nodes have sent it. Positions are bytes.
create table logs (
    pool_id      text collate "C" not null,
    fence        bigint not null,
    node_id      text collate "C" not null,
    start        bigint not null,
    size         integer not null,
    at           bigint not null,
    body         text not null,
    constraint logs_pkey primary key (pool_id, fence, node_id, start),
    constraint logs_go_on check (start >= 0 and size >= 0)
);

grant select, insert, delete on logs to bursar_service;

alter table logs enable row level security;
create policy pool on logs to bursar_service
    using ((pool_id || '') = any ((select nullif(current_setting('bursar.pools', true), '')::text[])::text[]));
