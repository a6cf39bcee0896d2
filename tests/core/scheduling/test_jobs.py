"""Jobs and shapes: what cannot be, what a task needs, what it costs (S1, S3, S5)."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar.core.ids import JobId, NodeId
from bursar.core.instant import HOUR, MINUTE, NEVER, SECOND
from bursar.core.scheduling.model.jobs import (
    CLASS_MAX,
    TASKS_MAX,
    Job,
    RunningJob,
    Shape,
    nearest_parts,
    slots_for,
    task_need,
)
from bursar.core.scheduling.model.nodes import GPUS_MAX, MILLI, SLOTS_MAX, Node, TaskNeed
from bursar.core.value import replace
from tests.support.scheduling_cases import CREDIT, T0

SHAPE = Shape(types=("H100", "A100"), tasks=2, gpus=4)
JOB = Job(
    id=JobId("a"), shape=SHAPE, path=("paid", "acme", "ann"), run_max=HOUR, queued_at=T0,
    prices=(("H100", 3 * CREDIT), ("A100", CREDIT)),
)  # fmt: skip


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"types": ()}, "types are one or more, each once"),
        ({"types": ("H100", "H100")}, "types are one or more, each once"),
        ({"types": ("",)}, "types is 1 to 255 bytes"),
        ({"tasks": 0}, "tasks is 1 to 100000"),
        ({"tasks": TASKS_MAX + 1}, "tasks is 1 to 100000"),
        ({"gpus": GPUS_MAX + 1}, "gpus is 0 to 1000"),
        ({"milli": 1_001, "gpus": 0}, "milli is 0 to 1000"),
        ({"milli": 500}, "whole GPUs or a part of one, not both"),
        ({"labels": ("b", "a")}, "labels are sorted, each once"),
        ({"regions": ("us-1", "eu-1")}, "regions are sorted, each once"),
        ({"regions": ("eu-1", "eu-1")}, "regions are sorted, each once"),
        ({"regions": ("",)}, "regions is 1 to 255 bytes"),
        ({"memory_gib": -1}, "memory_gib is 0"),
        ({"cpu_milli": -1}, "cpu_milli is 0"),
        ({"ram_mib": -1}, "ram_mib is 0"),
    ],
)
def test_a_shape_that_makes_no_sense_is_refused(wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        replace(SHAPE, **wrong)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"id": JobId("")}, "job is 1 to 255 bytes"),
        ({"path": ()}, "a path names at least one share"),
        ({"path": ("paid", "")}, "path is 1 to 255 bytes"),
        ({"prices": (("", 1),)}, "gpu_type is 1 to 255 bytes"),
        ({"prices": (("H100", -1),)}, "price is 0"),
        ({"prices": (("H100", 1), ("L40", 1))}, "there is no price for A100"),
        ({"run_max": 0}, "run_max is 1"),
        ({"queued_at": -1}, "queued_at is 0"),
        ({"not_before": -1}, "not_before is 0"),
        ({"priority_class": -1}, "priority_class is 0"),
        ({"priority_class": CLASS_MAX + 1}, "priority_class is 0"),
        ({"preemptions": -1}, "preemptions is 0"),
    ],
)
def test_a_job_that_makes_no_sense_is_refused(wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        replace(JOB, **wrong)


def test_equal_shapes_have_equal_hashes() -> None:
    """Whatever placement looks at makes them differ."""
    assert SHAPE == replace(SHAPE)
    assert hash(SHAPE) == hash(replace(SHAPE))
    changed = ({"types": ("A100", "H100")}, {"tasks": 3}, {"gpus": 2}, {"memory_gib": 1},
               {"labels": ("ib",)}, {"regions": ("eu-1",)}, {"cpu_milli": 1},
               {"ram_mib": 1})  # fmt: skip
    assert all(replace(SHAPE, **change) != SHAPE for change in changed)
    assert len({hash(replace(SHAPE, **change)) for change in ({}, *changed)}) == len(changed) + 1


def test_what_a_shape_takes_in_all() -> None:
    assert 8_000 == SHAPE.milli_gpus
    assert 600 == Shape(types=("H100",), tasks=2, gpus=0, milli=300).milli_gpus
    assert 0 == Shape(types=("cpu",), gpus=0, cpu_milli=1_000).milli_gpus


@pytest.mark.parametrize(
    ("shape", "node", "want"),
    [
        ({}, {}, TaskNeed(4, 0, 0, 0)),
        ({"cpu_milli": 1_000, "ram_mib": 2}, {}, TaskNeed(4, 0, 1_000, 2)),
        ({}, {"gpu_type": "L40"}, None),
        ({"memory_gib": 81}, {}, None),
        ({"memory_gib": 80}, {}, TaskNeed(4, 0, 0, 0)),
        ({"labels": ("ib", "nvme")}, {"labels": ("ib",)}, None),
        ({"labels": ("ib",)}, {"labels": ("ib", "nvme")}, TaskNeed(4, 0, 0, 0)),
        ({}, {"region": "eu-1"}, TaskNeed(4, 0, 0, 0)),
        ({"regions": ("eu-1", "us-1")}, {"region": "us-1"}, TaskNeed(4, 0, 0, 0)),
        ({"regions": ("eu-1", "us-1")}, {"region": "eu-2"}, None),
        ({"regions": ("eu-1",)}, {}, None),
        ({"gpus": 0, "milli": 500}, {"slots": 2}, TaskNeed(0, 1, 0, 0)),
        ({"gpus": 0, "milli": 500}, {"slots": 4}, TaskNeed(0, 2, 0, 0)),
        ({"gpus": 0, "milli": 500}, {"slots": 7}, None),
        ({"gpus": 0, "milli": 571}, {"slots": 7}, TaskNeed(0, 4, 0, 0)),
        ({"gpus": 0, "milli": 572}, {"slots": 7}, None),
        ({"gpus": 0, "milli": 333}, {"slots": 3}, TaskNeed(0, 1, 0, 0)),
        ({"gpus": 0, "milli": 300}, {"slots": 4}, None),
        ({"gpus": 0, "milli": 1}, {"slots": 7}, None),
        ({"gpus": 0, "milli": 1}, {"slots": 1_000}, TaskNeed(0, 1, 0, 0)),
        ({"gpus": 0, "milli": 1}, {"slots": 1}, None),
        ({"gpus": 0, "milli": 999}, {"slots": 1}, None),
        ({"gpus": 0, "milli": 1_000}, {"slots": 1}, TaskNeed(0, 1, 0, 0)),
    ],
)
def test_what_a_task_needs(
    shape: dict[str, Any], node: dict[str, Any], want: TaskNeed | None
) -> None:
    """A part is a whole number of slots, to the thousandth; None if it cannot lie there."""
    kind = replace(Node(id=NodeId("n"), gpu_type="H100", gpus=8, memory_gib=80), **node).kind

    assert want == task_need(replace(SHAPE, **shape), kind)


@pytest.mark.property
@given(st.integers(1, MILLI), st.integers(1, SLOTS_MAX))
def test_no_part_of_a_gpu_is_more_than_was_paid_for(milli: int, slots: int) -> None:
    """Nor less, to the thousandth; and whatever slots are can be asked for (S1)."""
    taken = slots_for(Shape(types=("H100",), gpus=0, milli=milli), slots)
    sizes = {size * MILLI // slots for size in range(1, slots + 1)}

    assert (taken is not None) == (milli in sizes)
    assert taken is None or milli * slots <= taken * MILLI < (milli + 1) * slots


@pytest.mark.parametrize(
    ("milli", "slots", "want"),
    [(1, (1,), (1_000,)), (300, (4,), (250, 500)), (300, (1, 4, 7), (285, 428)),
     (900, (4,), (750, 1_000)), (100, (1, 4), (250,))],
)  # fmt: skip
def test_which_parts_are_near(milli: int, slots: tuple[int, ...], want: tuple[int, ...]) -> None:
    """What one can ask for instead; none smaller if there is none."""
    assert want == nearest_parts(Shape(types=("H100",), gpus=0, milli=milli), slots)


def test_what_a_job_costs() -> None:
    """At list price, by type; without prices a credit an hour for each GPU."""
    assert [24 * CREDIT, 8 * CREDIT] == [JOB.rate(t) for t in ("H100", "A100")]
    assert 12 * CREDIT == JOB.price_of("H100", 30 * MINUTE)
    unpriced = replace(JOB, prices=())
    assert [8 * CREDIT, 8 * CREDIT] == [unpriced.rate(t) for t in ("H100", "A100")]
    assert 4 * CREDIT == unpriced.price_of("A100", 30 * MINUTE)
    free = replace(JOB, prices=(("A100", 0), ("H100", 0)))
    assert (0, 0) == (free.rate("H100"), free.price_of("A100", HOUR)), "what is free is free"


def running(**changes: Any) -> RunningJob:
    """The job, running since T0 on H100."""
    one = RunningJob(job=JOB, gpu_type="H100", pieces=(), started_at=T0, saved_at=T0)
    return replace(one, **changes)


def test_when_a_job_has_left_at_the_latest() -> None:
    assert T0 + HOUR == running().ends_by
    assert T0 + 5 * SECOND == running(stops_at=T0 + 5 * SECOND).ends_by
    assert NEVER == running(job=replace(JOB, run_max=NEVER)).ends_by


def test_what_stopping_a_job_loses() -> None:
    """What came after its last checkpoint; the making of one, if it can make one in time (S5)."""
    half = T0 + 30 * MINUTE
    able = replace(JOB, checkpoint_every=10 * MINUTE, checkpoint_cost=MINUTE)

    assert 12 * CREDIT == running().work_lost(half)
    assert 2 * CREDIT == running(saved_at=half - 5 * MINUTE).work_lost(half)
    assert 0 == running(saved_at=half + 1).work_lost(half)
    assert 24 * CREDIT // 60 == running(job=able).work_lost(half)
    assert 24 * CREDIT // 120 == running(job=able, saved_at=half - 30 * SECOND).work_lost(half)
