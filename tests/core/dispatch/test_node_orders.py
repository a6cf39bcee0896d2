"""Orders of nodes: from the request to the return of the node (S12)."""

import pytest

from bursar.core.dispatch import node_orders as rules
from bursar.core.dispatch.cluster_sync import NODE_SCAN_INTERVAL, ClusterMirror
from bursar.core.dispatch.node_orders import (
    REPLY_WAIT,
    SILENCE_MAX,
    NodeOrder,
    OrderState,
    ProviderReply,
    RemovalReason,
    Scale,
    is_vanished,
)
from bursar.core.dispatch.pool import register_node, set_node_state
from bursar.core.dispatch.state import Exit, PoolNode
from bursar.core.ids import NodeId
from bursar.core.instant import HOUR, MINUTE, SECOND
from bursar.core.leases import LEASE_TTL, Denied
from bursar.core.money import CREDIT
from bursar.core.scheduling.advice.autoscale import CapacityOffer, Scaling
from bursar.core.scheduling.model.nodes import Node, NodeState, Piece
from bursar.core.scheduling.model.policy import PAID, PoolPolicy
from bursar.core.value import replace
from tests.support.builders import T0
from tests.support.dispatch_pool import Trial, ran, waiting

NEW = NodeId("h100-1")
DELAY = 5 * MINUTE
ORDER = NodeOrder(
    id="order-1",
    offer="h100",
    node=Node(id=NEW, gpu_type="H100", gpus=2),
    price=16 * CREDIT,
    ordered_at=T0,
    ready_by=T0 + DELAY,
    give_up_at=T0 + 2 * DELAY,
)


class Ordered:
    """A pool with one order."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.order = ORDER
        work = trial.work()
        assert rules.add_ordered_nodes(work, trial.epoch, [ORDER]) is None
        work.commit()

    def carry_on(self, said: ProviderReply | None = None, since: int = 0) -> OrderState:
        work = self.trial.work()
        found = rules.advance_orders(
            work, self.trial.epoch, since, [self.order], {ORDER.id: said} if said else {}
        )
        assert not isinstance(found, Denied)
        work.commit()
        if found:
            [self.order] = found
        return self.order.state

    def drain(self) -> OrderState:
        work = self.trial.work()
        found = rules.drain_nodes(work, self.trial.epoch, [self.order], [NEW])
        assert not isinstance(found, Denied)
        work.commit()
        if found:
            [self.order] = found
        return self.order.state

    def comes(self) -> "Ordered":
        """Its agent registers and reports."""
        work = self.trial.work()
        register_node(work, replace(ORDER.node, cpu_milli=8_000))
        work.commit()
        self.trial.report(node=NEW)
        return self

    @property
    def machine(self) -> PoolNode | None:
        return self.trial.pool.machines.get(NEW)

    def state(self) -> NodeState | None:
        return None if self.machine is None else self.machine.node.state


def ordered() -> Ordered:
    return Ordered(waiting())


def there() -> Ordered:
    found = ordered().comes()
    assert OrderState.READY is found.carry_on()
    return found


def test_an_order_passes_through_all_states() -> None:
    """Requested, confirmed, ready, draining when advised, removing when empty, gone."""
    found = ordered()
    assert NodeState.ON_ORDER is found.state()
    assert OrderState.CONFIRMED is found.carry_on(ProviderReply.YES)
    assert OrderState.CONFIRMED is found.carry_on(ProviderReply.YES)
    found.comes()
    assert OrderState.READY is found.carry_on()
    assert NodeState.READY is found.state()
    found.trial.place((Piece(NEW, (0,), 1),))
    assert OrderState.DRAINING is found.drain()
    assert OrderState.DRAINING is found.carry_on(), "something runs there"
    found.trial.report(ran(5_000, exit=Exit.DONE), node=NEW)
    assert OrderState.REMOVING is found.carry_on()
    assert OrderState.REMOVING is found.carry_on(ProviderReply.YES), (
        "nobody has said that it is gone"
    )
    assert NodeState.DRAINING is found.state()
    found.trial.pass_by(HOUR)
    assert OrderState.GONE is found.carry_on(ProviderReply.REMOVED)

    assert (None, RemovalReason.DRAINED) == (found.machine, found.order.removal_reason)
    assert OrderState.GONE is found.carry_on(ProviderReply.REMOVED)
    assert 16 * CREDIT == found.order.cost(found.trial.now + HOUR)


def test_a_process_that_does_not_lead_orders_nothing() -> None:
    trial = waiting()
    stale = trial.epoch - 1
    denied = [
        rules.add_ordered_nodes(trial.work(), stale, [ORDER]),
        rules.drain_nodes(trial.work(), stale, [ORDER], [NEW]),
        rules.advance_orders(trial.work(), stale, 0, [ORDER], {}),
    ]

    assert [Denied.EPOCH_STALE] * 3 == denied


def test_a_repeated_order_changes_nothing() -> None:
    """After a crash behind the order, it is read again."""
    found = there()
    work = found.trial.work()
    assert rules.add_ordered_nodes(work, found.trial.epoch, [found.order]) is None

    assert {} == work.machines_new


def test_an_ordered_node_is_capacity_with_a_date_that_moves_while_it_is_late() -> None:
    """It does not count as ready before it reports, however late it is."""
    found = ordered()
    trial = found.trial
    follower = ClusterMirror(PoolPolicy(tiers=(PAID,)), trial.now)
    dates = []
    for _ in range(12):
        follower.follow(trial.pool, trial.pool.changed_jobs, trial.now)
        assert [NEW] == [name for _, name in follower.cluster.nodes.on_order]
        node = follower.cluster.nodes.by_id[NEW].node
        assert NodeState.ON_ORDER is node.state
        assert node.ready_at > trial.now + NODE_SCAN_INTERVAL
        dates.append((node.ready_at - ORDER.ready_by) // MINUTE)
        trial.pass_by(MINUTE)
    assert [0, 0, 0, 0, 0, 1, 2, 4, 4, 8, 8, 8] == dates
    found.comes()
    follower.follow(trial.pool, trial.pool.changed_jobs, trial.now)

    assert NodeState.READY is follower.cluster.nodes.by_id[NEW].node.state
    assert 8_000 == follower.cluster.nodes.by_id[NEW].kind.cpu_milli, "described anew"


def test_a_registered_node_without_a_report_is_still_on_order() -> None:
    found = ordered()
    work = found.trial.work()
    register_node(work, ORDER.node)
    assert set_node_state(work, NEW, NodeState.READY)
    work.commit()

    assert found.machine is not None
    assert (NodeState.ON_ORDER, ORDER.ready_by) == (found.state(), found.machine.node.ready_at)
    assert Denied.NODE_SILENT is found.trial.place((Piece(NEW, (0,), 1),))


@pytest.mark.parametrize("said", [None, ProviderReply.YES])
def test_a_late_order_is_given_up_and_its_node_returned(said: ProviderReply | None) -> None:
    """A provider that did not answer may have a node: it must be returned."""
    found = ordered()
    assert not ORDER.is_late(ORDER.ready_by)
    assert ORDER.is_late(ORDER.ready_by + 1)
    found.trial.pass_by(2 * DELAY - 1)
    assert found.carry_on(said) in (OrderState.REQUESTED, OrderState.CONFIRMED)
    found.trial.pass_by(1)
    assert OrderState.REMOVING is found.carry_on(said)

    assert (None, RemovalReason.LATE) == (found.machine, found.order.removal_reason)
    assert OrderState.REMOVING is found.carry_on()
    assert OrderState.GONE is found.carry_on(ProviderReply.REMOVED)
    assert 0 == found.order.cost(found.trial.now)
    assert not found.order.is_late(found.trial.now)


def test_the_node_of_a_refused_order_is_returned() -> None:
    found = ordered()
    assert OrderState.REMOVING is found.carry_on(ProviderReply.NO)

    assert (None, RemovalReason.REFUSED) == (found.machine, found.order.removal_reason)
    assert found.order.is_cancelled


def test_a_node_that_its_provider_has_lost_is_returned() -> None:
    found = there()
    assert OrderState.REMOVING is found.carry_on(ProviderReply.NO)

    assert (NodeState.DRAINING, RemovalReason.REFUSED) == (
        found.state(),
        found.order.removal_reason,
    )
    assert not found.order.is_cancelled, "it had come"


def test_a_silent_node_is_ordered_again_and_then_returned() -> None:
    found = there()
    assert not is_vanished(found.order, found.machine, found.trial.now)
    found.trial.pass_by(LEASE_TTL)
    assert is_vanished(found.order, found.machine, found.trial.now)
    assert is_vanished(found.order, None, found.trial.now)
    assert not is_vanished(ORDER, None, found.trial.now)
    found.trial.pass_by(SILENCE_MAX - LEASE_TTL - 1)
    assert OrderState.READY is found.carry_on()
    found.trial.pass_by(1)
    assert OrderState.REMOVING is found.carry_on()

    assert RemovalReason.SILENT is found.order.removal_reason


def test_silence_before_the_leader_took_over_does_not_count() -> None:
    """After an hour without the service, its nodes need a moment to report."""
    found = ordered()
    since = found.trial.pass_by(HOUR).now
    found.trial.pass_by(REPLY_WAIT - 1)
    assert OrderState.REQUESTED is found.carry_on(since=since)
    other = there()
    since = other.trial.pass_by(HOUR).now
    other.trial.pass_by(SILENCE_MAX - 1)
    assert OrderState.READY is other.carry_on(since=since)
    other.trial.pass_by(1)

    assert OrderState.REMOVING is other.carry_on(since=since)


def test_an_ordered_node_without_a_row_in_the_pool_is_still_returned() -> None:
    found = there()
    work = found.trial.work()
    work.remove_node(NEW)
    work.commit()
    assert OrderState.READY is found.carry_on(since=found.trial.now)
    assert OrderState.READY is found.drain()
    found.trial.pass_by(SILENCE_MAX)

    assert OrderState.REMOVING is found.carry_on()


def test_only_ordered_and_ready_nodes_are_drained() -> None:
    found = there()
    trial = found.trial
    work = trial.work()
    assert () == rules.drain_nodes(work, trial.epoch, [found.order], [NodeId("n1")])
    assert () == rules.drain_nodes(work, trial.epoch, [ORDER], [NEW])
    assert {} == work.machines_new
    assert OrderState.DRAINING is found.drain()

    assert OrderState.DRAINING is found.drain()


def test_an_operator_can_end_the_draining_of_an_ordered_node() -> None:
    found = there()
    found.drain()
    operator_says_ready(found)

    assert OrderState.READY is found.carry_on()


def test_a_node_that_is_being_removed_cannot_be_made_ready() -> None:
    """Its provider may have ended it already."""
    found = there()
    found.drain()
    assert OrderState.REMOVING is found.carry_on()
    operator_says_ready(found)
    assert OrderState.REMOVING is found.carry_on()

    assert NodeState.DRAINING is found.state()
    assert Denied.NODE_NOT_READY is found.trial.place((Piece(NEW, (0,), 1),))


def test_a_node_is_not_gone_while_a_job_may_run_on_it() -> None:
    """The removal waits for a job that started in between, and is requested again."""
    found = there()
    found.drain()
    found.carry_on()
    operator_says_ready(found)
    found.trial.place((Piece(NEW, (0,), 1),))
    assert OrderState.REMOVING is found.carry_on(ProviderReply.REMOVED)
    found.trial.pass_by(5 * SECOND)
    found.trial.report(ran(1_000, exit=Exit.DONE), node=NEW)

    assert OrderState.GONE is found.carry_on(ProviderReply.REMOVED)


def operator_says_ready(found: Ordered) -> None:
    work = found.trial.work()
    assert set_node_state(work, NEW, NodeState.READY)
    work.commit()


def test_a_removed_node_leaves_the_cluster() -> None:
    found = there()
    trial = found.trial
    follower = ClusterMirror(PoolPolicy(tiers=(PAID,)), trial.now)
    follower.follow(trial.pool, trial.pool.jobs, trial.now)
    found.drain()
    found.carry_on()
    found.carry_on(ProviderReply.REMOVED)
    assert follower.follow(trial.pool, (), trial.now)
    assert NEW not in follower.cluster.nodes.by_id

    assert not follower.follow(trial.pool, (), trial.now)


def test_a_node_that_is_removed_and_added_again_exists() -> None:
    trial = waiting()
    work = trial.work()
    machine = PoolNode(node=ORDER.node)
    work.put(machine)
    work.remove_node(NEW)
    assert (None, {}) == (work.machine(NEW), work.machines_gone)
    work.put(machine)
    work.commit()
    work = trial.work()
    work.remove_node(NEW)
    assert work.machine(NEW) is None
    assert NEW not in [one.id for one in work.machines()]
    work.put(machine)
    work.commit()

    assert machine == trial.pool.machines[NEW]


def test_ordered_nodes_reduce_the_offer() -> None:
    """Until they are returned; an offer that was made smaller meanwhile is used up."""
    offer = CapacityOffer(node=replace(ORDER.node, id=NodeId("h100")), price=1, delay=DELAY, most=2)
    scale = Scale(offers=(offer, replace(offer, most=0)), scaling=Scaling())
    gone = replace(ORDER, state=OrderState.GONE)
    orders = [ORDER, replace(ORDER, state=OrderState.REMOVING), gone]

    assert [1, 0] == [one.most for one in scale.remaining_offers([ORDER, gone])]
    assert [0, 0] == [one.most for one in scale.remaining_offers(orders)]
    assert [2, 0] == [one.most for one in scale.remaining_offers([replace(ORDER, offer="a100")])]
