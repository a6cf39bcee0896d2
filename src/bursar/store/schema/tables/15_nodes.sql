-- Nodes of a pool, and the orders by which they come and go.

create table nodes (
    pool_id      text collate "C" not null,
    node_id      text collate "C" not null,
    body         json not null,    -- as the node was registered
    boot         bigint not null,  -- the last start of its agent
    n            bigint not null,  -- the last heartbeat since that start
    reported_at  bigint,
    clock_sample bigint[],         -- one instant on three clocks: the node's two and the pool's
    wrong_clock  boolean not null,
    trouble      json,             -- recent failures, and until when it gets no new jobs
    constraint nodes_pkey primary key (pool_id, node_id),
    constraint nodes_count check (least(boot, n) >= 0),
    constraint nodes_compare_three_clocks check (cardinality(clock_sample) = 3)
) with (fillfactor = 50);

-- The autoscaling settings of operators. A pool without a row neither orders nor drains nodes.
create table pool_scaling (
    pool_id    text collate "C" not null,
    body       json not null,
    changed_at bigint not null,
    constraint pool_scaling_pkey primary key (pool_id)
);

-- Nodes that autoscaling has ordered. A row is written before the provider is called, and is kept.
create table pool_orders (
    pool_id        text collate "C" not null,
    order_id       text collate "C" not null,
    offer          text not null,
    node_id        text collate "C" not null,
    body           json not null,
    price_micros   bigint not null,
    ordered_at     bigint not null,
    ready_by       bigint not null,
    give_up_at     bigint not null,
    state          text not null,
    removal_reason text,           -- why the node goes
    arrived_at     bigint,
    gone_at        bigint,
    last_error     text not null,  -- the provider's last error; empty: none
    constraint pool_orders_pkey primary key (pool_id, order_id),
    constraint pool_orders_state_known
        check (state in ('requested', 'confirmed', 'ready', 'draining', 'removing', 'gone')),
    constraint pool_orders_leave_for_a_reason
        check ((removal_reason is not null) = (state in ('removing', 'gone'))
               and removal_reason in ('drained', 'late', 'refused', 'silent')),
    constraint pool_orders_go_once check ((gone_at is not null) = (state = 'gone')),
    constraint pool_orders_cost_something check (price_micros >= 0),
    constraint pool_orders_have_a_time check (ordered_at >= 0),
    constraint pool_orders_in_time check (ordered_at <= ready_by and ready_by <= give_up_at)
);
-- The first and the last condition always hold (see grants).
create unique index pool_orders_one_node on pool_orders (pool_id, node_id)
    where price_micros >= 0;
create index pool_orders_not_gone on pool_orders (pool_id, ordered_at, order_id)
    where gone_at is null;
create index pool_orders_latest on pool_orders
    (pool_id, coalesce(gone_at, 9223372036854775807) desc, ordered_at desc, order_id desc)
    where ordered_at >= 0;
