"""How much a task fragments a node, for the jobs typically seen (S6)."""

import pytest

from bursar.core.ids import NodeId
from bursar.core.scheduling.model.jobs import Shape
from bursar.core.scheduling.model.nodes import Node, NodeRoom, TaskNeed
from bursar.core.scheduling.placement import fragmentation
from bursar.core.scheduling.placement.fragmentation import COST_MAX, Fragmentation

KIND = Node(id=NodeId("n"), gpu_type="H100", gpus=8, slots=2).kind
ONE = TaskNeed(1, 0, 0, 0)
HALF = TaskNeed(0, 1, 0, 0)
MIDDLE = COST_MAX // 2  # what leaves fragments as they were


def of(*typical: Shape) -> Fragmentation:
    """What is typical, each seen once."""
    return Fragmentation(tuple((shape, 1) for shape in typical))


def room(whole: int, *parts: int) -> NodeRoom:
    """Free GPUs, and free slots of others."""
    return NodeRoom(whole, parts, 0, 0)


WHOLE = Shape(types=("H100",))
FOUR = Shape(types=("H100",), gpus=4)
PART = Shape(types=("H100",), gpus=0, milli=500)
OTHER = Shape(types=("A100",))
NONE = Shape(types=("H100",), gpus=0, cpu_milli=1)


def test_without_typical_jobs_all_places_are_equal() -> None:
    assert (
        0
        == Fragmentation(()).cost(KIND, room(4), ONE)
        == Fragmentation(()).cost(KIND, room(1), HALF)
    )


def test_a_task_that_wastes_nothing_is_in_the_middle() -> None:
    """As many fragments after as before."""
    assert MIDDLE == of(WHOLE).cost(KIND, room(2), ONE)


def test_breaking_a_hole_that_typical_jobs_use_costs() -> None:
    """The fewer are left for them, the more."""
    four = of(FOUR)

    assert (
        four.cost(KIND, room(3), ONE)
        < four.cost(KIND, room(5), ONE)
        < four.cost(KIND, room(4), ONE)
    )


def test_a_half_belongs_beside_a_half() -> None:
    """A whole GPU broken is a fragment to jobs of whole ones; a half used up was one before."""
    whole = of(WHOLE)

    assert whole.cost(KIND, room(1, 1), HALF) < MIDDLE < whole.cost(KIND, room(1), HALF)


def test_what_no_typical_job_can_use_is_free_to_take() -> None:
    """Of another type, or without a GPU: all of it is a fragment already."""
    assert of(OTHER).cost(KIND, room(2), ONE) == of(NONE).cost(KIND, room(2), ONE) < MIDDLE


def test_parts_too_small_for_a_typical_part_are_fragments() -> None:
    """Taking one up costs less than taking up a useful one."""
    kind = KIND._replace(slots=4)
    part = of(PART)  # two of four slots

    assert part.cost(kind, room(0, 1), HALF) < part.cost(kind, room(0, 2), HALF)


def test_fragments_count_by_what_a_task_takes() -> None:
    """Two fragments more are much for one GPU, and little for eight."""
    kind = KIND._replace(gpus=16)
    three = of(Shape(types=("H100",), gpus=3))
    one, eight = (three.cost(kind, room(gpus + 2), TaskNeed(gpus, 0, 0, 0)) for gpus in (1, 8))

    assert MIDDLE < eight < one


def test_shapes_count_as_often_as_they_were_seen() -> None:
    often = Fragmentation(((FOUR, 9), (WHOLE, 1)))
    seldom = Fragmentation(((FOUR, 1), (WHOLE, 9)))

    assert seldom.cost(KIND, room(4), ONE) < often.cost(KIND, room(4), ONE)


def test_caches_are_cleared_when_they_are_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes come and go with ever new rooms: what is remembered has a bound, and stays true."""
    monkeypatch.setattr(fragmentation, "CACHE_MAX", 5)
    many, each = (
        of(FOUR, PART),
        [NodeRoom(whole, (), ram, 0) for whole in (1, 4) for ram in range(9)],
    )
    costs = []
    for one in each:
        costs.append(many.cost(KIND, one, ONE))
        assert len(many._costs) <= 5
        assert len(many._fragments) <= 5

    assert [of(FOUR, PART).cost(KIND, one, ONE) for one in each] == costs


def test_a_cost_is_remembered() -> None:
    """The second answer is the first."""
    four = of(FOUR)

    assert four.cost(KIND, room(4), ONE) == four.cost(KIND, room(4), ONE)
