"""Scaling advice is carried out: no order is forgotten, and none is carried out twice (S12)."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from bursar import failpoints
from bursar.core.dispatch.node_orders import NodeOrder, OrderState, RemovalReason, Scale
from bursar.core.dispatch.pool import set_node_state
from bursar.core.dispatch.state import (
    LEADER_TERM,
    NO_TROUBLE,
    Exit,
    Mishap,
    PoolNode,
    PoolTransaction,
    Trouble,
)
from bursar.core.ids import JobId, NodeId
from bursar.core.instant import HOUR, MINUTE, SECOND
from bursar.core.money import CREDIT
from bursar.core.scheduling.advice.autoscale import CapacityOffer, Scaling
from bursar.core.scheduling.model.nodes import Node, NodeState
from bursar.core.value import replace
from bursar.service.pools import scaling
from bursar.service.pools.leader import PoolLeader
from bursar.service.pools.pool import PoolHandle, PoolReplica, open_pool, pool_on_connection
from bursar.service.pools.provisioning import ANSWER_MAX, CommandHook, NotDone
from bursar.service.pools.scaling import REMOVAL_TIME, Scaler
from bursar.store.pools import node_orders as store
from bursar.store.pools.loader import create_pool
from bursar.store.sql.connection import Connection, money_time
from tests.service.test_pools import POLICY, Clock, Ears, Node1, begin, envelope, kept_at
from tests.support.builders import T0
from tests.support.databases import connected
from tests.support.dispatch_pool import asking, ran
from tests.support.patience import eventually

DELAY = 5 * MINUTE
OFFER = CapacityOffer(
    node=Node(id=NodeId("h100"), gpu_type="H100", gpus=2, labels=("spot",)),
    price=CREDIT,
    delay=DELAY,
    most=1,
)
SCALE = Scale(
    offers=(OFFER,), scaling=Scaling(keep=MINUTE, quiet=MINUTE), every=10 * SECOND, patience=DELAY
)
NUMBERS = count(1)
PROVIDER = Path(__file__).parents[1] / "support" / "node_provider.py"
SCALER = "tests.support.scaler_process"


@dataclass
class Pools:
    """The one pool that a process serves."""

    handle: PoolHandle
    leading: PoolLeader

    @property
    def handles(self) -> dict[str, PoolHandle]:
        return {self.handle.id: self.handle}

    def leader_of(self, pool: str) -> PoolLeader:
        return self.leading


class Process:
    """A process that leads a pool and carries out advice; it polls when the test calls it."""

    def __init__(self, connection: Connection, pools: Pools, hook: CommandHook) -> None:
        self.connection = connection
        self.handle = pools.handle
        self.pools = pools
        self.scaler = Scaler(pools, lambda: connection, hook)

    def leads(self) -> "Process":
        eventually(lambda: self.pools.leading.epoch is not None, "it leads")
        return self

    def look(self) -> list[NodeOrder]:
        """Poll all orders; return their states."""
        self.scaler.poll(self.connection)
        return self.orders()

    def orders(self) -> list[NodeOrder]:
        return store.latest_orders(self.connection, self.handle.id)

    def comes_to(self, *states: OrderState) -> list[NodeOrder]:
        """Poll until orders have reached these states."""

        def are() -> bool:
            return sorted(states) == sorted(one.state for one in self.look())

        eventually(are, f"orders are {states}")
        return self.orders()

    def queue(self, job: str, **given: Any) -> None:
        until = {"hold_until": T0 + 10 * HOUR}
        self.handle.receive([envelope(self.handle, job, asking(**{**until, **given}))])

    def node(self, name: str) -> NodeState | None:
        machine = self.handle.look(lambda pool: pool.machines.get(NodeId(name)))
        return None if machine is None else machine.node.state


class World:
    """A pool, its clock, and the provider of nodes."""

    def __init__(self, url: str, connection: Connection, folder: Path) -> None:
        self.pool = f"scaled-{next(NUMBERS)}"
        self.clock = Clock()
        self.folder = folder
        self.url = url
        self._connection = connection
        create_pool(connection, self.pool)
        store.set_scale(connection, self.pool, SCALE, T0)
        (folder / "nodes").mkdir()

    @contextmanager
    def process(self, who: str = "one", limit_s: float = 60.0) -> Iterator[Process]:
        ears = Ears()
        hook = CommandHook((sys.executable, "-I", "-S", str(PROVIDER), str(self.folder)), limit_s)
        with (
            open_pool(
                lambda: connected(self.url), PoolReplica(self.pool, ears, self.clock)
            ) as handle,
            PoolLeader(handle, POLICY, who) as leading,
        ):
            ears.leading = leading
            process = Process(self._connection, Pools(handle, leading), hook)
            try:
                yield process.leads()
            finally:
                process.scaler.stop()

    def asked(self, action: str) -> list[dict[str, Any]]:
        """The calls that the provider got."""
        file = self.folder / "asked"
        lines = file.read_text().splitlines() if file.exists() else []
        return [one for one in map(json.loads, lines) if one["action"] == action]

    @property
    def provided(self) -> list[str]:
        """The orders whose nodes exist."""
        return sorted(one.name for one in (self.folder / "nodes").iterdir())

    @contextmanager
    def doing(self, wrong: str) -> Iterator[None]:
        """Let the provider do something wrong."""
        (self.folder / wrong).touch()
        yield
        (self.folder / wrong).unlink()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls are repeated as soon as possible."""
    monkeypatch.setattr(scaling, "RETRY_FIRST_S", 0.01)


@pytest.fixture
def lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """The provider's list is compared at every poll."""
    monkeypatch.setattr(scaling, "LIST_INTERVAL_S", 0.0)


@pytest.fixture
def world(database_url: str, connection: Connection, tmp_path: Path) -> World:
    return World(database_url, connection, tmp_path)


def test_a_node_is_ordered_used_drained_and_returned(world: World) -> None:
    """Only ordered nodes are returned; queue, order, lease and node settle."""
    own = Node1(NodeId("own"))
    with world.process() as process:
        begin(process.handle, own)
        process.queue("gang", spec=replace(asking().spec, shape=_gang(2)), hold_micros=240_000)
        [order] = process.comes_to(OrderState.CONFIRMED)
        assert NodeState.ON_ORDER is process.node(order.node.id)
        [asked] = world.asked("order")
        assert (world.pool, order.id, order.node.id) == (
            *(asked["pool"], asked["order"], asked["node"]),
        )  # fmt: skip
        assert ("h100", "H100", 2, ["spot"]) == (
            *(asked["offer"], asked["gpu_type"], asked["gpus"], asked["labels"]),
        )  # fmt: skip
        world.clock.now += MINUTE
        assert [order.id] == [one.id for one in process.look()], "what is on order is counted on"

        agent = Node1(order.node.id)
        begin(process.handle, agent)
        process.comes_to(OrderState.READY)
        process.handle.report(own.told()).result()
        lease = _lease(process)
        world.clock.now += 10 * SECOND
        for node in (own, agent):
            process.handle.report(node.told(ran(9_000, lease, exit=Exit.DONE))).result()

        _pass(world, process, own, agent)
        [order] = process.comes_to(OrderState.GONE)
        assert RemovalReason.DRAINED is order.removal_reason
        assert order.cost(0) > 0
        assert (None, NodeState.READY) == (process.node(order.node.id), process.node("own"))
        assert [] == process.handle.look(lambda pool: list(pool.live))

    assert [] == world.provided
    assert 1 == len(world.asked("order"))


def _pass(world: World, process: Process, *nodes: Node1) -> None:
    """Let two minutes pass, in which nodes report and the process polls."""
    for _ in range(12):
        world.clock.now += 10 * SECOND
        for node in nodes:
            process.handle.report(node.told()).result()
        process.look()


def _gang(tasks: int) -> Any:
    return replace(asking().spec.shape, gpus=2, tasks=tasks)


def _lease(process: Process) -> int:
    eventually(lambda: bool(process.handle.look(lambda pool: list(pool.live))), "it has a lease")
    [fence] = process.handle.look(lambda pool: list(pool.live))
    return fence


def test_an_order_is_written_before_the_provider_is_called(world: World) -> None:
    """After a crash in between, the next process calls for the same order, and for no other."""
    with world.process() as process:
        process.queue("job")
        process.scaler._provisioner.close()  # dead from here on, as far as others can tell
        [order] = process.look()
        assert (OrderState.REQUESTED, []) == (order.state, world.asked("order"))
    world.clock.now += LEADER_TERM
    with world.process("two") as process:
        [again] = process.comes_to(OrderState.CONFIRMED)

    assert order.id == again.id
    assert [order.id] == [one["order"] for one in world.asked("order")] == world.provided


def test_a_call_that_was_cut_off_is_repeated_by_the_next_process(world: World) -> None:
    """The provider may have received it or not: one order is one node."""
    with world.process() as process, world.doing("hang"):
        process.queue("job")
        process.look()
        eventually((world.folder / "hangs").exists, "it was asked")
        process.scaler.stop()
        [order] = process.orders()
        assert OrderState.REQUESTED is order.state
    world.clock.now += LEADER_TERM
    with world.process("two") as process:
        process.comes_to(OrderState.CONFIRMED)

    assert {order.id} == {one["order"] for one in world.asked("order")}
    assert [order.id] == world.provided


def test_a_failed_call_is_shown_and_repeated(world: World) -> None:
    with world.process() as process:
        process.queue("job")
        with world.doing("fail"):
            eventually(lambda: process.look()[0].last_error != "", "somebody is told")
            assert "it exited with 1: there is no cloud today" == process.orders()[0].last_error
        with world.doing("babble"):
            eventually(lambda: "not JSON" in process.look()[0].last_error, "it is told anew")
        [order] = process.comes_to(OrderState.CONFIRMED)

    assert ("", {order.id}) == (order.last_error, {one["order"] for one in world.asked("order")})


def test_a_refused_order_is_removed_and_gone(world: World) -> None:
    """The provider may have a node although it refused, so it is asked to remove it."""
    with world.process() as process, world.doing("refuse"):
        process.queue("job")
        [order] = process.comes_to(OrderState.GONE)

    assert (RemovalReason.REFUSED, 0) == (order.removal_reason, order.cost(0))
    assert [order.id] == [one["order"] for one in world.asked("remove")]
    assert process.node(order.node.id) is None


def test_a_refused_offer_is_ordered_again_after_growing_pauses(world: World) -> None:
    """A node that never arrives must not count as capacity forever (S12)."""
    with world.process() as process, world.doing("refuse"):
        process.queue("job")
        process.comes_to(OrderState.GONE)
        for times in (1, 2, 3):
            world.clock.now += (SCALE.every << times) - SECOND
            process.handle.expire()
            assert times == len(process.look()), "not yet"
            world.clock.now += SCALE.every
            process.handle.expire()
            process.comes_to(*[OrderState.GONE] * (times + 1))


def test_a_ready_node_ends_the_pause_of_its_offer(world: World) -> None:
    """It was sold out only for a while."""
    with world.process() as process:
        process.queue("job")
        with world.doing("refuse"):
            process.comes_to(OrderState.GONE)
        world.clock.now += SCALE.every << 1
        process.handle.expire()
        orders = process.comes_to(OrderState.GONE, OrderState.CONFIRMED)
        assert process.scaler._memories[world.pool].pauses
        [coming] = [one for one in orders if one.state is OrderState.CONFIRMED]
        process.handle.report(Node1(coming.node.id).told()).result()
        process.comes_to(OrderState.GONE, OrderState.READY)
        assert {} == process.scaler._memories[world.pool].pauses


def test_a_node_that_does_not_arrive_is_given_up_and_returned(world: World) -> None:
    with world.process() as process:
        process.queue("job")
        [order] = process.comes_to(OrderState.CONFIRMED)
        world.clock.now += 2 * DELAY - SECOND
        assert [OrderState.CONFIRMED] == [one.state for one in process.look()]
        store.set_scale(process.connection, world.pool, replace(SCALE, offers=()), T0)
        world.clock.now += SECOND
        [order] = process.comes_to(OrderState.GONE)

    assert (RemovalReason.LATE, []) == (order.removal_reason, world.provided)


def test_a_former_leader_orders_nothing(world: World) -> None:
    """Its transaction is refused, and the provider is not called (S11)."""
    with world.process() as process:
        process.pools.leading.leave()
        process.queue("job")
        stale = process.pools.leading._epoch
        world.clock.now += LEADER_TERM
        with world.process("two") as other:
            process.pools.leading = other.pools.leading
            assert stale is not None
            process.scaler._memories[world.pool] = scaling._LeaderMemory(stale, since=T0)
            with pytest.raises(scaling._LedByAnother):
                process.scaler._order(
                    process.handle, process.scaler._memories[world.pool], [], [ORDER]
                )

    assert ([], []) == (process.orders(), world.asked("order"))


def test_a_reply_to_a_former_leader_is_ignored(world: World) -> None:
    """Another process may have got a newer reply: an existing node is not returned (S11)."""
    with world.process() as process:
        (world.folder / "late").touch()
        process.queue("job")
        process.look()
        eventually((world.folder / "waits").exists, "it was asked")
        process.pools.leading.leave()
        world.clock.now += LEADER_TERM
        with world.process("two") as other:
            [order] = other.comes_to(OrderState.CONFIRMED)
        (world.folder / "refuse").touch()
        (world.folder / "waits").unlink()
        eventually(lambda: not process.scaler._pending, "it was told that there is none")
        (world.folder / "refuse").unlink()
        world.clock.now += LEADER_TERM
        with PoolLeader(process.handle, POLICY, "one") as again:
            process.pools.leading = again
            again.wake()
            process.leads()
            assert [order] == process.look()
            assert [order] == process.look()

    assert [order.id] == world.provided


ORDER = NodeOrder(
    id="made-up",
    offer="h100",
    node=replace(OFFER.node, id=NodeId("h100-made-up")),
    price=CREDIT,
    ordered_at=T0,
    ready_by=T0 + DELAY,
    give_up_at=T0 + 2 * DELAY,
)


@pytest.mark.usefixtures("lists")
def test_a_returned_node_that_still_exists_is_removed_again(world: World) -> None:
    """A process that was suspended may have ordered it again."""
    with world.process() as process, world.doing("refuse"):
        process.queue("job")
        [order] = process.comes_to(OrderState.GONE)
        store.set_scale(process.connection, world.pool, replace(SCALE, offers=()), T0)
        (world.folder / "nodes" / order.id).touch()
        (world.folder / "nodes" / "a stranger's").touch()
        world.clock.now += REMOVAL_TIME + SECOND
        process.queue("another")

        def given_back() -> bool:
            process.look()
            return order.id not in world.provided

        eventually(given_back, "it is given back")
    assert ["a stranger's"] == world.provided, "what was never ordered is not ours to remove"


@pytest.mark.usefixtures("lists")
def test_a_node_that_has_vanished_is_ordered_again(world: World) -> None:
    """As after a restart of the provider; while the node reports, the provider is not called."""
    with world.process() as process:
        process.queue("job")
        [order] = process.comes_to(OrderState.CONFIRMED)
        agent = Node1(order.node.id)
        begin(process.handle, agent)
        process.comes_to(OrderState.READY)
        (world.folder / "nodes" / order.id).unlink()
        process.look()
        process.look()
        assert 1 == len(world.asked("order"))
        world.clock.now += MINUTE

        def ordered_again() -> bool:
            process.look()
            return [order.id] == world.provided

        eventually(ordered_again, "it is ordered again")
    assert [OrderState.READY] == [one.state for one in process.orders()]


def test_a_call_to_the_provider_has_a_time_limit(world: World) -> None:
    with world.process(limit_s=0.3) as process, world.doing("hang"):
        hook = process.scaler._provisioner
        with pytest.raises(NotDone, match=r"more than 0\.3 seconds"):
            hook.listed(world.pool)


STARTS_ANOTHER = """
import os, signal, sys, time
if os.fork() == 0:
    os.setsid()  # in no group that could be ended, with the program's own outputs
    with open(sys.argv[1], "w") as file:
        file.write(str(os.getpid()))
    time.sleep(600)
while not os.path.exists(sys.argv[1]) or not os.path.getsize(sys.argv[1]):
    time.sleep(0.01)
print('{"orders": ["left behind"]}', flush=True)
if sys.argv[2] == "hangs":
    signal.pause()
"""


@pytest.mark.parametrize("how", ["ends", "hangs"])
def test_processes_that_a_provider_leaves_running_are_not_waited_for(
    tmp_path: Path, how: str
) -> None:
    """Such as a node that has its output open: the provider's own exit ends the call (S12)."""
    left, limit_s = tmp_path / "left", 600.0 if how == "ends" else 1.0
    hook = CommandHook((sys.executable, "-ISc", STARTS_ANOTHER, str(left), how), limit_s)
    try:
        with ThreadPoolExecutor(1) as beside:
            answer = beside.submit(hook.listed, "main")
            try:
                eventually(answer.done, "it is answered, or has taken too long")
            finally:
                os.kill(int(left.read_text()), signal.SIGKILL)
        if how == "ends":
            assert {"left behind"} == answer.result()
        else:
            with pytest.raises(NotDone, match="more than 1 seconds"):
                answer.result()
    finally:
        hook.close()


def test_long_answers_and_errors_of_a_provider_are_cut_off() -> None:
    """An answer that is too long is invalid; of an error the end is shown."""
    with pytest.raises(NotDone, match="not JSON"):
        CommandHook(("head", "-c", str(2 * ANSWER_MAX), "/dev/zero")).listed("main")
    talks = "import sys; sys.exit('x' * 100_000 + ' it was the cloud')"
    with pytest.raises(NotDone, match=r"exited with 1: .*x it was the cloud$"):
        CommandHook((sys.executable, "-ISc", talks)).listed("main")


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ('{"orders": [1]}', 'no list of texts named "orders"'),
        ("{}", 'no list of texts named "orders"'),
        ("[]", "not a JSON object"),
        ("", "not JSON"),
    ],
)
def test_an_invalid_answer_counts_as_none(said: str, why: str) -> None:
    with pytest.raises(NotDone, match=why):
        CommandHook(("echo", said)).listed("main")


def test_a_missing_provider_program_is_reported(tmp_path: Path) -> None:
    with pytest.raises(NotDone, match="cannot be started: No such file"):
        CommandHook((str(tmp_path / "nothing"),)).listed("main")
    with pytest.raises(NotDone, match='"state" is none of coming, refused'):
        CommandHook(("echo", '{"state": "perhaps"}')).order("main", ORDER)


def test_a_removal_in_progress_is_called_again() -> None:
    answer = CommandHook(("echo", '{"state": "removing", "reason": "it boots"}')).remove(
        "main", ORDER
    )
    assert (None, "it boots") == answer


@contextmanager
def scaler(world: World, who: str, armed: str = "") -> Iterator["subprocess.Popen[bytes]"]:
    """A process that orders nodes, and may be killed at a failpoint."""
    marks = {failpoints.VARIABLE: armed, failpoints.MARKS: str(world.folder)}
    process = subprocess.Popen(
        (
            sys.executable,
            "-m",
            "tests.support.scaler_process",
            world.url,
            world.pool,
            world.folder,
            who,
        ),
        env={**os.environ, **marks},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(timeout=120)


@pytest.mark.parametrize(
    ("point", "state"),
    [
        ("scaling.planned=kill@1", OrderState.CONFIRMED),
        ("scaling.order_written=kill@1", OrderState.CONFIRMED),
        ("scaling.provider_answered=kill@1", OrderState.CONFIRMED),
        ("scaling.provider_answered=kill@2", OrderState.GONE),
    ],
)
def test_a_killed_process_is_replaced_and_the_order_completes(
    connection: Connection, world: World, point: str, state: OrderState
) -> None:
    """Killed between advice and order, order and call, reply and update: one order, one node."""
    store.set_scale(connection, world.pool, replace(SCALE, every=SECOND), T0)
    handle = pool_on_connection(connection, PoolReplica(world.pool, Ears()))
    until = money_time(connection) + HOUR
    handle.receive([envelope(handle, "job", asking(hold_until=until))])
    if state is OrderState.GONE:  # and nothing is ordered in its place
        (world.folder / "refuse").touch()
    with scaler(world, "one", point) as first:
        assert -signal.SIGKILL == first.wait(60)
    written = store.latest_orders(connection, world.pool)
    assert len(written) == ("planned" not in point)
    if state is OrderState.GONE:
        store.set_scale(connection, world.pool, replace(SCALE, offers=()), T0)

    def orders() -> list[NodeOrder]:
        return store.latest_orders(connection, world.pool)

    with scaler(world, "two"):
        eventually(lambda: [state] == [one.state for one in orders()], f"it is {state}")
    [order] = orders()
    assert [order.id] == [one.id for one in written] or not written
    assert {order.id} == {one["order"] for one in world.asked("order")}
    assert ([] if state is OrderState.GONE else [order.id]) == world.provided


def test_other_processes_see_removed_nodes_and_mishaps(
    database_url: str, connection: Connection, world: World
) -> None:
    """Both a process with the pool in memory, and one that reads it again."""
    trouble = Trouble(
        mishaps=(Mishap(T0, "acme", JobId("job"), lost=True, began=False),), until=1, quarantines=2
    )
    node = Node(id=NodeId("goes"), gpu_type="H100", gpus=2)
    with (
        kept_at(database_url, world.pool, world.clock) as one,
        kept_at(database_url, world.pool, world.clock) as other,
    ):
        begin(one, Node1(NodeId("stays")))
        one.register(node)
        one.change(lambda work: work.put(replace(_machine(work, "stays"), trouble=trouble)))
        other.expire()
        assert {"goes", "stays"} == other.look(lambda pool: {*pool.machines})
        one.change(lambda work: work.remove_node(node.id))
        other.expire()
        with kept_at(database_url, world.pool, world.clock) as third:
            third.expire()
            for handle in (one, other, third):
                machines = handle.look(lambda pool: dict(pool.machines))
                assert {"stays": trouble} == {name: it.trouble for name, it in machines.items()}
        one.report(Node1(NodeId("stays")).told()).result()
        one.change(lambda work: set_node_state(work, NodeId("stays"), NodeState.READY))
        other.expire()

    assert [NO_TROUBLE] == [
        it.trouble for it in other.look(lambda pool: list(pool.machines.values()))
    ]


def _machine(work: PoolTransaction, name: str) -> PoolNode:
    machine = work.machine(NodeId(name))
    assert machine is not None
    return machine
