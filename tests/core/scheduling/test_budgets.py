"""Budgets count steps, and a plan says when one ended before all was looked at (S14)."""

import pytest

from bursar.core.scheduling.passes.attempt import LOOKS_PER_USER_DIVISOR
from bursar.core.scheduling.plan import make_plan
from bursar.core.value import replace
from tests.support.plan_text import render_plan
from tests.support.scheduling_cases import PLAIN, T0, Case
from tests.support.scheduling_checks import check


def complete(case: Case) -> bool:
    """Whether the plan of a case looked at all it wanted to."""
    check(case)
    return make_plan(case.cluster(), T0).complete


def test_a_plan_that_checked_all_jobs_is_complete() -> None:
    case = Case(
        nodes="n1=4xH100", running="x@n1:4/batch", queued="u:4/prod",
        want="x preempted for=u by=class; u waits on=n1:4",
    )  # fmt: skip

    assert complete(case)


def test_a_plan_is_incomplete_if_steps_end_before_victims_are_found() -> None:
    """Two would have to leave; only one set is looked at."""
    case = Case(
        nodes="n1=8xH100",
        running="a@n1:2/batch b@n1:2@2/batch c@n1:4@4/fixed",
        queued="u:1x4/prod",
        policy=replace(PLAIN, victim_steps=1),
        want="u waits needs=4 free=0 start=1430m",
    )

    assert not complete(case)


@pytest.mark.parametrize(("steps", "is_complete"), [(2, False), (3, False), (4, True)])
def test_checks_whether_all_victims_are_needed_take_steps(steps: int, is_complete: bool) -> None:
    """Two steps find the set, two more show that both jobs must leave. Without those, the search
    is repeated among sets that are legal whatever leaves the own org."""
    case = Case(
        nodes="n1=8xH100",
        running="low@n1:1/batch b1@n1:1@1/who=paid.beta.x.bob b2@n1:6@2/who=paid.beta.x.bob/fixed",
        queued="urgent:1x2/prod",
        policy=replace(PLAIN, victim_steps=steps),
        want="b1 preempted for=urgent by=share; low preempted for=urgent by=class;"
        " urgent waits on=n1:2",
    )

    assert is_complete == complete(case)


def test_a_gang_has_good_victims_though_they_are_not_proven_the_best() -> None:
    case = Case(
        nodes="n1=4xH100 n2=4xH100",
        running="a@n1:4/batch b@n2:4/batch",
        queued="u:2x4/prod",
        policy=replace(PLAIN, victim_steps=0),
        want="a preempted for=u by=class; b preempted for=u by=class; u waits on=n1:4+n2:4",
    )

    assert not complete(case)


def test_once_all_looks_are_used_only_shapes_that_may_fit_are_checked() -> None:
    """Whoever has to wait waits unseen; whoever can start starts."""
    blocked = " ".join(f"b{n}:{n + 3}/who=paid.b{n}.x.u" for n in range(4))
    small = " ".join(f"s{n}:1x1/who=paid.s{n}.x.u" for n in range(3))
    case = Case(
        nodes="n1=8xH100",
        running="x@n1:6/fixed",
        queued=f"{blocked} {small}",
        policy=replace(PLAIN, looks=2, reservations=1),
        want="s0 -> n1:1 backfill; s1 -> n1:1 backfill;"
        " b0 waits needs=3 free=0 start=1430m; b1 waits needs=4 free=0",
    )

    assert not complete(case)


def test_the_most_urgent_job_of_an_org_is_checked_however_many_wait() -> None:
    """It may be able to help itself (S5)."""
    case = Case(
        nodes="n1=8xH100",
        running="x@n1:6/fixed/who=paid.b0.x.u low@n1:2@6/batch",
        queued="b:3/who=paid.beta.x.u c:4/who=paid.cora.x.u urgent:2/prod",
        usage="paid.acme.ml.ann=100",
        policy=replace(PLAIN, looks=1, reservations=0),
        want="low preempted for=urgent by=class; urgent waits on=n1:2; b waits needs=3 free=0",
    )

    assert not complete(case)


def test_few_jobs_of_one_user_are_checked_once_their_shape_did_not_fit() -> None:
    """Of the sizes that did not fit for one user, another user has the first few looked at."""
    seen = PLAIN.looks // LOOKS_PER_USER_DIVISOR
    sizes = range(1, seen + 3)
    told_of = [*(f"a{n}" for n in sizes), *(f"b{n}" for n in sizes[:seen])]
    case = Case(
        nodes="n1=8xH100",
        running="x@n1:8/fixed/who=paid.zeta.x.zoe",
        queued=" ".join(f"a{n}:{n} b{n}:{n}/who=paid.acme.ml.bob" for n in sizes),
        want="; ".join(
            f"{name} waits needs={name[1]} free=0{' start=1430m' if name[1] == '1' else ''}"
            for name in told_of
        ),
    )

    assert not complete(case)


def test_the_same_plan_costs_the_same_steps() -> None:
    """So that a decision can be replayed from what was known."""
    case = Case(
        nodes="n1=8xH100",
        running=" ".join(f"v{n}@n1:1@{n}/batch/ran={n + 1}m" for n in range(8)),
        queued="u:1x4/prod",
        want="",
    )
    one, other = (make_plan(case.cluster(), T0) for _ in range(2))

    assert 0 < one.steps == other.steps
    assert render_plan(one).startswith("v0 preempted for=u by=class; v1 preempted")
