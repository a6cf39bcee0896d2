-- What has gone wrong on a node lately, and until when it is kept from new jobs (core.dispatch.quarantine).
alter table nodes add column trouble json;

-- Nodes that were given back are gone.
grant delete on nodes to bursar_service;

-- What operators have decided about ordering nodes and letting them go. A pool without a row neither
-- orders nor drains.
create table pool_scaling (
    pool_id      text collate "C" not null,
    body         json not null,
    changed_at   bigint not null,
    constraint pool_scaling_pkey primary key (pool_id)
);

-- Nodes that were ordered. A row is written before anybody is asked for the node, and stays.
create table pool_orders (
    pool_id      text collate "C" not null,
    order_id     text collate "C" not null,
    offer        text not null,
    node_id      text collate "C" not null,
    body         json not null,
    price_micros bigint not null,
    ordered_at   bigint not null,
    ready_by     bigint not null,
    give_up_at   bigint not null,
    state        text not null,
    leaves       text,
    there_at     bigint,
    gone_at      bigint,
    trouble      text not null,
    constraint pool_orders_pkey primary key (pool_id, order_id),
    constraint pool_orders_one_node unique (pool_id, node_id),
    constraint pool_orders_state_known
        check (state in ('asked', 'coming', 'there', 'draining', 'removing', 'gone')),
    constraint pool_orders_leave_for_a_reason
        check ((leaves is not null) = (state in ('removing', 'gone'))
               and leaves in ('drained', 'late', 'refused', 'silent')),
    constraint pool_orders_go_once check ((gone_at is not null) = (state = 'gone')),
    constraint pool_orders_cost_something check (price_micros >= 0),
    constraint pool_orders_in_time check (ordered_at <= ready_by and ready_by <= give_up_at)
);
create index pool_orders_not_gone on pool_orders (pool_id, ordered_at, order_id) where gone_at is null;

-- How far attempts say that they are, by the node that says so.
create table progress (
    pool_id      text collate "C" not null,
    fence        bigint not null,
    node_id      text collate "C" not null,
    ppm          integer not null,
    at           bigint not null,
    constraint progress_pkey primary key (pool_id, fence, node_id),
    constraint progress_is_a_part check (ppm between 0 and 1000000)
);

grant select, insert, update on pool_scaling, pool_orders, progress to bursar_service;

alter table pool_scaling enable row level security;
create policy pool on pool_scaling to bursar_service
    using ((pool_id || '') = any ((select nullif(current_setting('bursar.pools', true), '')::text[])::text[]));

alter table pool_orders enable row level security;
create policy pool on pool_orders to bursar_service
    using ((pool_id || '') = any ((select nullif(current_setting('bursar.pools', true), '')::text[])::text[]));

alter table progress enable row level security;
create policy pool on progress to bursar_service
    using ((pool_id || '') = any ((select nullif(current_setting('bursar.pools', true), '')::text[])::text[]));
