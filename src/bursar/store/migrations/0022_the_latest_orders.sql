-- The orders of a pool as people look at them, however many there were. The conditions of the indexes hold for
-- all: they keep them from being taken where another is meant.
alter table pool_orders
    drop constraint pool_orders_one_node,
    add constraint pool_orders_have_a_time check (ordered_at >= 0);
create unique index pool_orders_one_node on pool_orders (pool_id, node_id) where price_micros >= 0;
create index pool_orders_latest on pool_orders (pool_id, gone_at desc nulls first, ordered_at desc, order_id)
    where ordered_at >= 0;
