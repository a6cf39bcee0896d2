"""What the last jobs were like decides what a fragment is (S6)."""

import pytest

from bursar.core.instant import NEVER
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.job_mix import JOBS_REMEMBERED, SHAPES_MAX, JobMix
from bursar.core.scheduling.model.jobs import Shape
from bursar.core.scheduling.model.nodes import Level
from bursar.core.scheduling.placement.backfill import NodeClaims
from bursar.core.scheduling.placement.search import find_placement
from tests.support.scheduling_cases import Case

ONE, FOUR, EIGHT = (Shape(types=("H100",), gpus=gpus) for gpus in (1, 4, 8))


def seen(*shapes: Shape) -> JobMix:
    typical = JobMix()
    for shape in shapes:
        typical.add(shape)
    return typical


def test_at_first_nothing_is_typical() -> None:
    assert () == seen().fragments.typical


def test_jobs_count_once_by_what_a_task_needs() -> None:
    """A gang needs whole nodes as often as a job that needs one."""
    gang = Shape(types=("H100",), tasks=4, gpus=8, within=Level.RACK)

    assert {ONE: 2, EIGHT: 2} == dict(seen(ONE, gang, EIGHT, ONE).fragments.typical)


def test_only_the_last_jobs_count() -> None:
    typical = seen(*[EIGHT] * JOBS_REMEMBERED, *[ONE] * (JOBS_REMEMBERED - 1))
    assert {EIGHT, ONE} == dict(typical.fragments.typical).keys()
    for _ in range(JOBS_REMEMBERED // 10):
        typical.add(ONE)

    assert ((ONE, JOBS_REMEMBERED),) == typical.fragments.typical


def test_what_is_typical_changes_in_steps() -> None:
    """What is known of nodes is kept until a tenth more has come, or nothing has changed."""
    full = seen(*[ONE] * 2 * JOBS_REMEMBERED)
    before = full.fragments
    for _ in range(JOBS_REMEMBERED):
        full.add(ONE)
    assert before is full.fragments
    while before is full.fragments:
        full.add(EIGHT)

    before = full.fragments
    for _ in range(JOBS_REMEMBERED // 10 - 1):
        full.add(EIGHT)
    assert before is full.fragments
    full.add(EIGHT)
    assert before is not full.fragments


def test_rare_shapes_are_left_out() -> None:
    shapes = [Shape(types=("H100",), gpus=gpus + 1) for gpus in range(SHAPES_MAX + 1)]
    typical = seen(*shapes, *shapes[1:], *shapes[1:])

    assert SHAPES_MAX == len(typical.fragments.typical)
    assert shapes[0] not in dict(typical.fragments.typical)


@pytest.mark.parametrize(("typical", "node"), [((), "n1"), ((FOUR,), "n2")])
def test_a_small_job_leaves_room_for_typical_jobs(typical: tuple[Shape, ...], node: str) -> None:
    """Four GPUs are free on one node and five on the other: the fifth is of no use to them."""
    case = Case(nodes="n1=8xH100 n2=8xH100", running="a@n1:4 b@n2:3", queued="", want="")
    cluster = Cluster.from_snapshot(case.snapshot())
    cluster.fragments = seen(*typical).fragments

    spot = find_placement(cluster, NodeClaims(cluster), ONE, ONE.types, NEVER)

    assert spot is not None
    assert [(node, 1)] == list(spot.nodes)
