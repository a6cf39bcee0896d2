"""Nodes, what is free on them, and what a task takes (S1)."""

from typing import Any

import pytest

from bursar.core.ids import JobId, NodeId
from bursar.core.scheduling.model.nodes import (
    GPUS_MAX,
    Level,
    Node,
    NodeKind,
    NodeRoom,
    NodeState,
    NodeUsage,
    Piece,
    TaskNeed,
)
from bursar.core.value import replace

NODE = Node(
    id=NodeId("n1"), gpu_type="H100", gpus=4, slots=4, memory_gib=80, cpu_milli=8_000, ram_mib=64,
    labels=("ib", "nvme"),
)  # fmt: skip
JOB, OTHER = JobId("a"), JobId("b")


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"id": NodeId("")}, "node is 1 to 255 bytes"),
        ({"gpu_type": ""}, "gpu_type is 1 to 255 bytes"),
        ({"gpus": -1}, "gpus is 0 to 1000"),
        ({"gpus": GPUS_MAX + 1}, "gpus is 0 to 1000"),
        ({"slots": 0}, "slots is 1 to 1000"),
        ({"memory_gib": -1}, "memory_gib is 0"),
        ({"cpu_milli": -1}, "cpu_milli is 0"),
        ({"ram_mib": -1}, "ram_mib is 0"),
        ({"ready_at": -1}, "ready_at is 0"),
        ({"labels": ("nvme", "ib")}, "labels are sorted, each once"),
        ({"labels": ("ib", "ib")}, "labels are sorted, each once"),
        ({"labels": ("",)}, "labels is 1 to 255 bytes"),
    ],
)
def test_a_node_that_makes_no_sense_is_refused(wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        replace(NODE, **wrong)


def test_a_kind_is_all_that_nodes_have_in_common() -> None:
    """Name, place and state are no part of it."""
    moved = replace(NODE, id=NodeId("n2"), island="i", rack="r", state=NodeState.DEAD, ready_at=9)

    assert NodeKind("H100", 4, 4, 80, 8_000, 64, ("ib", "nvme"), "") == NODE.kind == moved.kind
    assert NODE.kind != replace(NODE, memory_gib=40).kind
    assert NODE.kind != replace(NODE, region="eu-1").kind


@pytest.mark.parametrize(
    ("state", "ready_at", "usable"),
    [
        (NodeState.READY, 0, True),
        (NodeState.DRAINING, 0, False),
        (NodeState.DEAD, 0, False),
        (NodeState.QUARANTINED, 0, False),
        (NodeState.ON_ORDER, 10, True),
        (NodeState.ON_ORDER, 11, False),
    ],
)
def test_when_a_node_is_usable(state: NodeState, ready_at: int, usable: bool) -> None:
    assert usable == replace(NODE, state=state, ready_at=ready_at).is_usable_at(10)


def test_domains_of_a_node() -> None:
    """An island belongs to its rack; a node without one is an island of its own."""
    placed = replace(NODE, rack="r1", island="i1")

    assert ["n1", "r1/i1", "r1", ""] == [placed.domain(level) for level in Level]
    assert ["n1", "//n1", "", ""] == [NODE.domain(level) for level in Level]


def test_taking_and_giving_back_are_each_others_inverse() -> None:
    machine = NodeUsage(NODE)
    empty = machine.room
    machine.take(JOB, Piece(NODE.id, (0,), 1, 2_000, 16), 10)
    machine.take(OTHER, Piece(NODE.id, (2, 3), 4), 20)

    assert NodeRoom(1, (3,), 6_000, 48) == machine.room
    assert (Piece(NODE.id, (2, 3), 4), 20) == machine.release(OTHER)
    assert (Piece(NODE.id, (0,), 1, 2_000, 16), 10) == machine.release(JOB)
    assert empty == machine.room == NodeRoom(4, (), 8_000, 64)


def test_what_will_be_free() -> None:
    """Once those have ended who end by then, or without some who may leave."""
    machine = NodeUsage(NODE)
    machine.take(JOB, Piece(NODE.id, (0,), 1, 2_000, 16), 10)
    machine.take(OTHER, Piece(NODE.id, (2, 3), 4), 20)

    assert NodeRoom(1, (3,), 6_000, 48) == machine.room_at(9)
    assert NodeRoom(2, (), 8_000, 64) == machine.room_at(10)
    assert NodeRoom(4, (), 8_000, 64) == machine.room_at(20)
    assert NodeRoom(3, (3,), 6_000, 48) == machine.room_at(9, frozenset({OTHER}))
    machine.set_end(OTHER, 5)
    assert NodeRoom(3, (3,), 6_000, 48) == machine.room_at(9)
    assert [10, 0, 5, 5] == machine.gpus_free_at()


def test_gpus_that_are_earmarked_while_victims_still_run() -> None:
    """They are below nothing until their victim is gone; others on the node do not matter."""
    machine = NodeUsage(NODE)
    kept = Piece(NODE.id, (0, 1), 4, 5_000)
    machine.take(JOB, Piece(NODE.id, (0,), 4, 5_000), 10)
    machine.take(JobId("kept"), kept, 90)

    assert NodeRoom(2, (), -2_000, 64) == machine.room
    assert not machine.is_free_for(kept)
    machine.release(JOB)
    assert machine.is_free_for(kept)
    machine.take(OTHER, Piece(NODE.id, (3,), 4), 10)
    machine.take(JobId("later"), Piece(NODE.id, (3,), 4), 90)
    assert machine.is_free_for(kept)
    assert not machine.is_free_for(Piece(NODE.id, (3,), 4))


@pytest.mark.parametrize(
    ("task", "tasks", "want"),
    [
        (TaskNeed(1, 0, 0, 0), 2, Piece(NODE.id, (1, 2), 4)),  # whole ones by number
        (TaskNeed(2, 0, 1_000, 8), 1, Piece(NODE.id, (1, 2), 4, 1_000, 8)),
        (TaskNeed(0, 1, 0, 0), 1, Piece(NODE.id, (3,), 1)),  # a part where it is tightest
        (TaskNeed(0, 2, 0, 0), 1, Piece(NODE.id, (0,), 2)),
        (TaskNeed(0, 3, 0, 0), 1, Piece(NODE.id, (0,), 3)),
        (TaskNeed(0, 1, 0, 0), 3, Piece(NODE.id, (0, 1, 3), 1)),
        (TaskNeed(0, 0, 500, 4), 3, Piece(NODE.id, (), 0, 1_500, 12)),  # no GPU at all
    ],
)
def test_the_piece_for_tasks(task: TaskNeed, tasks: int, want: Piece) -> None:
    """Of a node whose first GPU has a slot taken and whose last one has three."""
    machine = NodeUsage(NODE)
    machine.take(JOB, Piece(NODE.id, (0,), 1), 10)
    machine.take(OTHER, Piece(NODE.id, (3,), 3), 10)

    assert want == machine.choose_piece(task, tasks, 0)


@pytest.mark.parametrize(
    ("task", "room", "fits"),
    [
        (TaskNeed(2, 0, 0, 0), NodeRoom(5, (), 0, 0), 2),
        (TaskNeed(1, 0, 0, 0), NodeRoom(-1, (), 0, 0), 0),
        (TaskNeed(0, 2, 0, 0), NodeRoom(1, (1, 2, 3), 0, 0), 3),  # one part of each GPU
        (TaskNeed(0, 2, 0, 0), NodeRoom(-1, (2,), 0, 0), 1),
        (TaskNeed(1, 0, 3_000, 0), NodeRoom(5, (), 8_000, 0), 2),
        (TaskNeed(1, 0, 0, 30), NodeRoom(5, (), 0, 64), 2),
        (TaskNeed(0, 0, 0, 0), NodeRoom(0, (), 0, 0), GPUS_MAX),
        (TaskNeed(0, 0, 1_000, 0), NodeRoom(0, (), 4_000, 0), 4),
        (TaskNeed(0, 0, 1_000, 0), NodeRoom(0, (), -4_000, 0), 0),
    ],
)
def test_how_many_tasks_fit(task: TaskNeed, room: NodeRoom, fits: int) -> None:
    assert fits == task.count_in(room)


@pytest.mark.parametrize(
    ("task", "want"),
    [
        (TaskNeed(1, 0, 1_000, 4), NodeRoom(1, (2, 3), 3_000, 12)),
        (TaskNeed(0, 3, 0, 0), NodeRoom(2, (2,), 4_000, 16)),  # the part is used up
        (TaskNeed(0, 1, 0, 0), NodeRoom(2, (1, 3), 4_000, 16)),  # the smallest part that is enough
        (TaskNeed(0, 4, 0, 0), NodeRoom(1, (2, 3), 4_000, 16)),  # no part is enough
    ],
)
def test_what_is_free_after_a_task(task: TaskNeed, want: NodeRoom) -> None:
    assert want == task.room_after(NodeRoom(2, (2, 3), 4_000, 16), NODE.kind)


def test_a_part_that_breaks_a_gpu_leaves_the_rest() -> None:
    assert NodeRoom(1, (1, 2), 0, 0) == TaskNeed(0, 3, 0, 0).room_after(
        NodeRoom(2, (2,), 0, 0), NODE.kind
    )


def test_what_is_left_beside_a_claim() -> None:
    """A part of a GPU claims all that is free on one, the tightest first: which part it will be
    nobody knows yet."""
    room = NodeRoom(4, (2,), 8_000, 64)

    assert NodeRoom(0, (2,), 6_000, 56) == TaskNeed(2, 0, 1_000, 4).room_after_claims(room, 2)
    assert NodeRoom(3, (), 8_000, 64) == TaskNeed(0, 1, 0, 0).room_after_claims(room, 2)
    assert NodeRoom(2, (2,), 8_000, 64) == TaskNeed(0, 3, 0, 0).room_after_claims(room, 2)
