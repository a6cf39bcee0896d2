"""Autoscaling settings and node orders of a pool, for the API."""

from bursar.core.dispatch.node_orders import NodeOrder, OrderState, Scale
from bursar.core.ids import PoolId
from bursar.core.instant import Instant
from bursar.core.scheduling.advice.autoscale import Scaling
from bursar.store.pools import node_orders as store
from bursar.store.pools.node_orders import OrderPosition
from bursar.store.sql.connection import Connection, money_time

__all__ = ["OrderPosition", "decide_scale", "is_given_back", "orders_of", "scale_of"]

NOTHING = Scale(offers=(), scaling=Scaling())


def scale_of(connection: Connection, pool: PoolId) -> Scale:
    """The settings of a pool; without settings, no nodes are ordered."""
    return store.scale_of(connection, pool) or NOTHING


def decide_scale(connection: Connection, pool: PoolId, scale: Scale) -> None:
    """Set the settings of a pool."""
    store.set_scale(connection, pool, scale, money_time(connection))


def orders_of(
    connection: Connection, pool: PoolId, after: OrderPosition, most: int
) -> tuple[list[NodeOrder], OrderPosition | None, Instant]:
    """A page of the orders of a pool, where the next page begins, and the time."""
    orders = store.latest_orders(connection, pool, most + 1, after)
    following = OrderPosition.behind(orders[most - 1]) if len(orders) > most else None
    return orders[:most], following, money_time(connection)


def is_given_back(connection: Connection, pool: PoolId, node: str) -> bool:
    """Whether a node was ordered and is being removed, or was."""
    order = store.order_of_node(connection, pool, node)
    return order is not None and order.state in (OrderState.REMOVING, OrderState.GONE)
