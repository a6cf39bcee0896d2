"""Rows of node orders, and of the operators' autoscaling settings (S12).

The leader writes orders in transactions of the pool, together with their nodes. Only operators
write the settings.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, Self

from bursar.core.dispatch.node_orders import NodeOrder, OrderState, RemovalReason, Scale
from bursar.core.ids import PoolId
from bursar.core.instant import Instant
from bursar.core.scheduling.model.nodes import Node
from bursar.store.pools.loader import enter_pool
from bursar.store.sql.arrays import Values, column_arrays
from bursar.store.sql.codec import text_of, value_of
from bursar.store.sql.connection import Connection
from bursar.store.sql.fragments import lookup

ORDERS_MAX: Final = 1_000  # of those that are over, the latest that are told

_COLUMNS: Final = (
    "t.order_id, t.offer, t.body::text, t.price_micros, t.ordered_at, t.ready_by, t.give_up_at, "
    "t.state, t.removal_reason, t.arrived_at, t.gone_at, t.last_error"
)
LIVE_ORDERS: Final = f"""
    select {_COLUMNS}
      from pool_orders t
     where t.pool_id = %s and t.gone_at is null
     order by t.ordered_at, t.order_id
"""
_FOREVER: Final = 2**63 - 1  # later than any order is returned or placed
LATEST_ORDERS: Final = f"""
    select {_COLUMNS}
      from pool_orders t
     where t.pool_id = %s and t.ordered_at >= 0
       and (coalesce(t.gone_at, {_FOREVER}), t.ordered_at, t.order_id) < (%s, %s, %s)
     order by coalesce(t.gone_at, {_FOREVER}) desc, t.ordered_at desc, t.order_id desc
     limit %s
"""
ORDER_OF_NODE: Final = f"""
    select {_COLUMNS}
      from pool_orders t
     where t.pool_id = %s and t.node_id = %s and t.price_micros >= 0
"""
ORDERS_BY_ID: Final = f"""
    select {_COLUMNS}
      from {lookup({"pool_id": "text", "order_id": "text"}, "pool_orders")}
"""
WRITE_ORDERS: Final = """
    -- Of what was written before only how far it is changes.
    insert into pool_orders (pool_id, order_id, offer, node_id, body, price_micros, ordered_at,
                             ready_by, give_up_at, state, removal_reason, arrived_at,
                             gone_at, last_error)
    select u.pool_id, u.order_id, u.offer, u.node_id, u.body::json, u.price_micros, u.ordered_at,
           u.ready_by, u.give_up_at, u.state, u.removal_reason, u.arrived_at, u.gone_at,
           u.last_error
      from unnest(%s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::bigint[],
                  %s::bigint[], %s::bigint[], %s::bigint[], %s::text[], %s::text[], %s::bigint[],
                  %s::bigint[], %s::text[])
           as u(pool_id, order_id, offer, node_id, body, price_micros, ordered_at, ready_by,
                give_up_at, state, removal_reason, arrived_at, gone_at, last_error)
        on conflict (pool_id, order_id) do update
       set state = excluded.state, removal_reason = excluded.removal_reason,
           arrived_at = excluded.arrived_at, gone_at = excluded.gone_at,
           last_error = excluded.last_error
"""
SCALE_OF: Final = "select body::text from pool_scaling where pool_id = %s"
SET_SCALE: Final = """
    insert into pool_scaling (pool_id, body, changed_at) values (%s, %s::json, %s)
        on conflict (pool_id) do update
       set body = excluded.body, changed_at = excluded.changed_at
"""
SCALES: Final = "select pool_id, body::text from pool_scaling order by pool_id"


def _values(pool: PoolId, order: NodeOrder) -> Values:
    return (
        *(
            pool,
            order.id,
            order.offer,
            order.node.id,
            text_of(order.node),
            order.price,
            order.ordered_at,
        ),
        *(order.ready_by, order.give_up_at, order.state.value),
        *(
            None if order.removal_reason is None else order.removal_reason.value,
            order.arrived_at,
            order.gone_at,
            order.last_error,
        ),
    )


def _order_of(row: tuple[Any, ...]) -> NodeOrder:
    id, offer, body, price, ordered_at, ready_by, give_up_at, state, removal_reason, *rest = row
    arrived_at, gone_at, last_error = rest
    return NodeOrder(
        id=id,
        offer=offer,
        node=value_of(Node, body),
        price=price,
        ordered_at=ordered_at,
        ready_by=ready_by,
        give_up_at=give_up_at,
        state=OrderState(state),
        removal_reason=None if removal_reason is None else RemovalReason(removal_reason),
        arrived_at=arrived_at,
        gone_at=gone_at,
        last_error=last_error,
    )


def write_orders(connection: Connection, pool: PoolId, orders: Iterable[NodeOrder]) -> None:
    """Write orders, in a transaction of their pool."""
    rows = [_values(pool, order) for order in orders]
    if rows:
        connection.execute(WRITE_ORDERS, column_arrays(rows, 0))


def live_orders(connection: Connection, pool: PoolId) -> list[NodeOrder]:
    """The unfinished orders of a pool, oldest first."""
    return _select_orders(connection, pool, LIVE_ORDERS, [pool])


class OrderPosition(NamedTuple):
    """A place in the list of a pool's orders; the default is its beginning."""

    gone_at: Instant = _FOREVER  # of an order that is not over, too
    ordered_at: Instant = _FOREVER
    order: str = ""

    @classmethod
    def behind(cls, order: NodeOrder) -> Self:
        """The position after an order."""
        gone_at = _FOREVER if order.gone_at is None else order.gone_at
        return cls(gone_at, order.ordered_at, order.id)


def latest_orders(
    connection: Connection,
    pool: PoolId,
    most: int = ORDERS_MAX,
    after: OrderPosition = OrderPosition(),  # noqa: B008  # immutable
) -> list[NodeOrder]:
    """The orders of a pool: unfinished ones first, then those that finished last."""
    return _select_orders(connection, pool, LATEST_ORDERS, [pool, *after, most])


def order_of_node(connection: Connection, pool: PoolId, node: str) -> NodeOrder | None:
    """The order of a node; None if it was not ordered."""
    return next(iter(_select_orders(connection, pool, ORDER_OF_NODE, [pool, node])), None)


def orders_by_id(connection: Connection, pool: PoolId, ids: Iterable[str]) -> list[NodeOrder]:
    """Orders of a pool by id, finished or not."""
    return _select_orders(
        connection, pool, ORDERS_BY_ID, column_arrays([(pool, id) for id in ids], 2)
    )


def _select_orders(
    connection: Connection, pool: PoolId, sql: str, parameters: list[Any]
) -> list[NodeOrder]:
    with connection.transaction():
        enter_pool(connection, pool)
        return [_order_of(row) for row in connection.execute(sql, parameters).fetchall()]


# What operators have decided


def scale_of(connection: Connection, pool: PoolId) -> Scale | None:
    """The autoscaling settings of a pool; None if there are none."""
    with connection.transaction():
        enter_pool(connection, pool)
        row = connection.execute(SCALE_OF, [pool]).fetchone()
    return None if row is None else value_of(Scale, row[0])


def set_scale(connection: Connection, pool: PoolId, scale: Scale, at: Instant) -> None:
    """Store the autoscaling settings of a pool."""
    with connection.transaction():
        enter_pool(connection, pool)
        connection.execute(SET_SCALE, [pool, text_of(scale), at])


def scales(connection: Connection) -> Mapping[PoolId, Scale]:
    """The autoscaling settings of all pools."""
    rows = connection.execute(SCALES).fetchall()
    return {pool: value_of(Scale, body) for pool, body in rows}
