"""Advice to move running jobs: room for gangs and whole nodes, everybody placed again (S6)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar.core.ids import JobId
from bursar.core.instant import DAY, HOUR, MINUTE
from bursar.core.scheduling.advice.defragment import (
    MovePlan,
    advise_cleared_nodes,
    advise_defragmentation,
    advise_moves,
)
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.jobs import RunningJob
from bursar.core.scheduling.plan import make_plan
from bursar.core.value import replace
from tests.support.scheduling_cases import CREDIT, PLAIN, T0, Case, after


def advice(case: Case, **bounds: int) -> tuple[MovePlan, ...]:
    """What is advised once the plan was carried out; and nothing has changed."""
    before = case.snapshot()
    cluster = Cluster.from_snapshot(after(before, make_plan(Cluster.from_snapshot(before), T0)))
    then = cluster.snapshot()
    found = advise_moves(cluster, T0, **bounds)
    assert then == cluster.snapshot(), "advice changed the cluster"
    return found


def told(found: tuple[MovePlan, ...]) -> list[str]:
    """Moves as one writes them."""
    return [
        f"{one.job or 'empty'} on {'+'.join(one.nodes)}: "
        + ", ".join(
            f"{move.job} {'+'.join(move.from_nodes)}>{'+'.join(move.to_nodes)}"
            for move in one.moves
        )
        for one in found
    ]


SCATTERED = Case(
    want="",
    nodes="n1=8xH100 n2=8xH100",
    running="a@n1:4/ckpt=10m,30s b@n2:4/ckpt=10m,30s",
    queued="gang:1x8",
)


def test_a_job_moves_so_that_a_gang_fits() -> None:
    """Two halves become a whole node; what it costs and gains is told (S6)."""
    (found,) = advice(SCATTERED)

    assert ["gang on n1: a n1>n2"] == told((found,))
    assert found.lost == 4 * CREDIT * 30 // 3_600 + 1, "the making of a checkpoint"
    assert 23 * HOUR + 50 * MINUTE == found.sooner
    assert found.gain == 8 * CREDIT * (24 * 60 - 10) // 60 + 1
    assert found.moves[0].lost == found.lost


def test_who_loses_least_moves() -> None:
    """The cheapest place is cleared, and only those leave who must."""
    case = Case(
        want="",
        nodes="n1=8xH100 n2=8xH100 n3=8xH100",
        running="a@n1:2/ran=9h b@n2:2/ran=1m c@n2:1@2/ran=1m d@n3:5",
        queued="gang:1x6/fixed x:1x6/used=1",
    )
    (found,) = advice(case)

    assert "x" == found.job
    assert ["c"] == [move.job for move in found.moves]
    assert ("n2",) == found.nodes


def test_nobody_is_stopped_to_wait() -> None:
    """If one of those who would leave has no other place, nothing is advised."""
    case = Case(
        want="",
        nodes="n1=8xH100 n2=8xH100",
        running="a@n1:5 b@n2:4",
        queued="gang:1x8",
    )
    assert () == advice(case)


def test_the_next_place_is_tried_if_one_cannot_be_cleared() -> None:
    """The cheapest one to clear needs a label that no other node has."""
    case = Case(
        want="",
        nodes="n1=8xH100/labels=x n2=8xH100 n3=8xH100",
        running="a@n1:4/label=x/ran=1m b@n2:4/ran=9m c@n3:4/ran=9h",
        queued="gang:1x8",
    )
    assert ["gang on n2: b n2>n1"] == told(advice(case))


def test_gangs_are_cleared_for_as_wholes() -> None:
    """A gang of two nodes inside one rack; jobs go outside."""
    case = Case(
        want="",
        nodes="n1=8xH100/rack=r n2=8xH100/rack=r n3=8xH100/rack=q n4=8xH100/rack=p",
        running="a@n1:3 b@n2:2/fixed c@n3:5/fixed d@n4:3/fixed",
        queued="gang:2x6/within=rack",
    )
    assert ["gang on n2+n1: a n1>n3"] == told(advice(case))


def test_no_more_nodes_are_cleared_than_a_gang_needs() -> None:
    """Two of four nodes; those who leave find room on the others."""
    case = Case(
        want="",
        nodes="n1=8xH100 n2=8xH100 n3=8xH100 n4=8xH100",
        running="a@n1:4 b@n2:4 c@n3:4/ran=1h d@n4:4/ran=1h",
        queued="gang:2x8",
    )
    assert ["gang on n1+n2: a n1>n3, b n2>n4"] == told(advice(case))


def test_fixed_and_tired_jobs_stay() -> None:
    """Not preemptible, moved too often, just started, or asked to stop already."""
    for option in ("fixed", "preempted=3", "ran=0s", "stops=20s"):
        case = Case(
            want="",
            nodes="n1=8xH100 n2=8xH100",
            running=f"a@n1:4/{option} b@n2:4/{option}",
            queued="gang:1x8",
        )
        assert () == advice(case), option


def test_what_does_not_pay_is_not_advised() -> None:
    """The work lost is worth more than the time until there is room anyway."""
    case = Case(
        want="",
        nodes="n1=8xH100 n2=8xH100",
        running="a@n1:4/ran=20h/ends=5m b@n2:4/ran=20h/ends=5m",
        queued="gang:1x8",
    )
    assert () == advice(case)


def test_only_those_that_want_room_are_helped() -> None:
    """Not one at a ceiling, nor one that waits for others' claims, nor one that backs off."""
    ceiling = altered_shares(SCATTERED, "paid.acme=ceil9")
    claimed = Case(
        want="",
        nodes="n1=8xH100 n2=8xH100",
        running="long@n1:8/ends=60m/fixed",
        queued="gang:16 u:1x4/used=1",
    )
    later = Case(
        want="", nodes=SCATTERED.nodes, running=SCATTERED.running, queued="gang:1x8/again=1m"
    )
    assert () == advice(ceiling) == advice(claimed) == advice(later)


def altered_shares(case: Case, shares: str) -> Case:
    """The same pool with shares."""
    return Case(want="", nodes=case.nodes, running=case.running, queued=case.queued, shares=shares)


def test_one_after_another() -> None:
    """The second gang is looked at with the first one's moves made; so many at most."""
    case = Case(
        want="",
        nodes="n1=8xH100 n2=8xH100 n3=8xH100 n4=8xH100",
        running="a@n1:4/ran=1m b@n2:4/ran=2m c@n3:4/ran=3m d@n4:4/ran=4m",
        queued="g1:1x8 g2:1x8/used=1 g3:1x8/used=2",
    )
    found = advice(case)

    assert ["g1 on n1: a n1>n2", "g2 on n3: c n3>n4"] == told(found)
    assert 1 == len(advice(case, limit=1))


def test_no_more_than_a_day_is_gained() -> None:
    """What lies further ahead changes too often to be counted on."""
    case = Case(
        want="",
        nodes="n1=8xH100 n2=8xH100",
        running="a@n1:4/ends=48h b@n2:4/ends=48h",
        queued="gang:1x8",
    )
    (found,) = advice(case)

    assert DAY == found.sooner


def test_the_second_choice_is_cleared_if_the_first_cannot_be() -> None:
    """Types in the order of the job."""
    case = Case(
        want="",
        nodes="n1=8xA100 n2=8xA100 n3=8xH100 n4=8xH100/mem=40",
        running="a@n1:4 b@n2:4 c@n3:1/fixed d@n4:1",
        queued="gang:1x8/on=H100,A100/mem=80",
    )
    assert ["gang on n1: a n1>n2"] == told(advice(case))


# --------------------------------------------------------------------------- whole nodes


def tidied(case: Case, lost_max: int = 100 * CREDIT, **bounds: int) -> list[str]:
    """Nodes that become empty."""
    cluster = case.cluster()
    before = cluster.snapshot()
    found = advise_cleared_nodes(cluster, T0, lost_max, **bounds)
    assert before == cluster.snapshot(), "advice changed the cluster"
    return told(found)


SPREAD = Case(
    want="",
    nodes="n1=8xH100 n2=8xH100 n3=8xH100 n4=8xH100",
    running="a@n1:1 b@n2:2 c@n3:6",
)


def test_nodes_become_empty() -> None:
    """What little runs somewhere goes into the gaps of others, never onto an empty node (S6)."""
    assert ["empty on n1: a n1>n3"] == tidied(SPREAD, limit=1)
    assert ["empty on n1: a n1>n3"] == tidied(SPREAD), "b has no gap left but on empty nodes"


def test_so_much_may_be_lost_for_a_node() -> None:
    """A bound in credits for each node."""
    assert [] == tidied(SPREAD, lost_max=CREDIT // 10)
    dear = Case(want="", nodes=SPREAD.nodes, running="a@n1:1/ran=9h b@n2:1 c@n3:6")
    assert ["empty on n2: b n2>n3"] == tidied(dear, lost_max=CREDIT)


def test_nodes_that_cannot_be_cleared_stay() -> None:
    """Somebody there may not be moved, or fits nowhere else, or nothing may start there."""
    fixed = Case(want="", nodes="n1=8xH100 n2=8xH100", running="a@n1:1/fixed b@n1:1@1 c@n2:6/fixed")
    alone = Case(want="", nodes="n1=8xH100 n2=8xA100", running="a@n1:1 b@n2:1")
    two = Case(want="", nodes="n1=8xH100 n2=8xH100", running="a@n1:4 b@n1:3@4 c@n2:4/fixed")
    draining = Case(
        want="", nodes="n1=8xH100/state=draining n2=8xH100", running="a@n1:1 b@n2:2/fixed"
    )
    assert [] == tidied(fixed) == tidied(alone) == tidied(two) == tidied(draining)


@pytest.mark.property
@given(st.lists(st.integers(0, 8), min_size=2, max_size=6), st.integers(1, 8))
def test_moves_can_be_made(taken: list[int], size: int) -> None:
    """Whatever is scattered: with the moves made every job has its GPUs, and so has the gang."""
    running = " ".join(
        f"r{at}-{gpu}@n{at}:1@{gpu}/ran={at + 1}m"
        for at, count in enumerate(taken)
        for gpu in range(count)
    )
    case = Case(
        want="",
        nodes=" ".join(f"n{at}=8xH100" for at in range(len(taken))),
        running=running,
        queued=f"g1:1x{size} g2:2x{size}/used=1",
        policy=replace(PLAIN, preemptions_max=1),
    )
    free = {f"n{at}": 8 - count for at, count in enumerate(taken)}
    for one in advise_cleared_nodes(case.cluster(), T0, 100 * CREDIT):
        for move in one.moves:
            free[move.from_nodes[0]] += 1
            free[move.to_nodes[0]] -= 1
        assert 8 == free[one.nodes[0]], "empty"
    assert min(free.values()) >= 0
    for found in advice(case):
        assert found.gain > found.lost == sum(move.lost for move in found.moves)


def test_running_is_what_it_was() -> None:
    """Advice is given on a copy."""
    cluster = SCATTERED.cluster()
    advise_moves(cluster, T0)

    running: RunningJob = cluster.running[JobId("a")]
    assert ("n1",) == tuple(piece.node for piece in running.pieces)


def test_both_kinds_of_advice_follow_the_next_plan() -> None:
    """A job that the plan starts needs no advice; the cluster stays as it was (S6)."""
    case = Case(
        want="",
        nodes="n1=8xH100 n2=8xH100 n3=8xH100",
        running="a@n1:4/ckpt=10m,30s b@n2:4",
        queued="first:1x8 gang:1x8/used=1",
    )
    cluster = case.cluster()
    before = cluster.snapshot()
    advice = advise_defragmentation(cluster, T0, lost_max=CREDIT)

    assert before == cluster.snapshot()
    assert ["gang on n1: a n1>n2"] == told(advice.for_jobs)
    assert ["empty on n1: a n1>n2"] == told(advice.for_nodes)
    [move] = advice.for_jobs[0].moves
    assert (True, 4_000, "H100") == (move.makes_checkpoint, move.milli_gpus, move.gpu_type)
