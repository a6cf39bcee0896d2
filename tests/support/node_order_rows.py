"""An order of a node, what was decided about ordering, and a word on progress, as rows."""

from bursar.core.dispatch.node_orders import NodeOrder, Scale
from bursar.core.ids import NodeId
from bursar.core.instant import MINUTE
from bursar.core.money import CREDIT
from bursar.core.scheduling.advice.autoscale import Scaling
from bursar.core.scheduling.model.nodes import Node
from bursar.store.pools.loader import enter_pool
from bursar.store.pools.node_cleanup import keep_progress
from bursar.store.pools.node_orders import set_scale, write_orders
from bursar.store.sql.connection import Connection
from tests.support.builders import T0

ORDER = NodeOrder(
    id="order-1",
    offer="h100",
    node=Node(id=NodeId("h100-1"), gpu_type="H100", gpus=8),
    price=CREDIT,
    ordered_at=T0,
    ready_by=T0 + MINUTE,
    give_up_at=T0 + 2 * MINUTE,
)


def ordering(connection: Connection, pool: str) -> None:
    """Have a row in each of the tables; the pool has a lease 1 on a node n1."""
    set_scale(connection, pool, Scale(offers=(), scaling=Scaling()), T0)
    keep_progress(connection, pool, "n1", 1, 500_000, T0)
    with connection.transaction():
        enter_pool(connection, pool)
        write_orders(connection, pool, [ORDER])
