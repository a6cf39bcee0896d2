"""What every case is checked for."""

from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.plan import make_plan
from tests.support.plan_text import render_plan
from tests.support.scheduling_cases import T0, Case


def check(case: Case) -> None:
    """The plan says what the case wants, and planning keeps its promises.

    It changes nothing, leaves no trace in what is indexed, decides the same from a snapshot, and
    decides nothing more once its decisions have been carried out.
    """
    before = case.snapshot()
    cluster = Cluster.from_snapshot(before)
    plan = make_plan(cluster, T0)

    assert case.want == render_plan(plan)
    assert before == cluster.snapshot(), "planning changed its input"
    assert plan == make_plan(cluster, T0), "planning left a trace"
    assert plan == make_plan(Cluster.from_snapshot(cluster.snapshot()), T0), "a snapshot tells less"

    for decision in plan.decisions:
        cluster.apply(decision)
    again = make_plan(cluster, T0)

    assert () == again.decisions, "a second look changed its mind"
    assert again == make_plan(Cluster.from_snapshot(cluster.snapshot()), T0), (
        "a snapshot tells less"
    )
