"""Room by moving: whoever can go on elsewhere at once leaves its place (S5, S6)."""

import pytest

from bursar.core.scheduling.decisions import Start
from bursar.core.scheduling.plan import carry_out
from bursar.core.value import replace
from tests.support.scheduling_cases import PLAIN, T0, Case
from tests.support.scheduling_checks import check

OTHERS = "y@n2:2/fixed"  # whoever cannot be moved, beside two free GPUs

CASES = {
    "a job that fits elsewhere leaves its place to one that fits nowhere": Case(
        nodes="n1=4xH100 n2=4xH100",
        running=f"x@n1:1/ran=2h/ckpt=10m,30s/who=paid.beta.x.bob {OTHERS}",
        queued="big:1x4",
        want="x preempted for=big by=move; big waits on=n1:4",
    ),
    "however often it made room before": Case(
        nodes="n1=4xH100 n2=4xH100",
        running=f"x@n1:1/ran=2h/ckpt=10m,30s/who=paid.beta.x.bob/preempted=9 {OTHERS}",
        queued="big:1x4",
        want="x preempted for=big by=move; big waits on=n1:4",
    ),
    "not if it has no place elsewhere": Case(
        nodes="n1=4xH100/labels=ib n2=4xH100",
        running=f"x@n1:1/ran=2h/ckpt=10m,30s/label=ib/who=paid.beta.x.bob {OTHERS}",
        queued="big:1x4",
        want="big waits needs=4 free=5 start=22h",
    ),
    "not if another that moves as well needs the same gap": Case(
        nodes="n1=4xH100/labels=ib n2=4xH100/labels=ib n3=4xH100",
        running="v@n1:1/ran=2h/ckpt=10m,30s/label=ib/who=paid.beta.x.bob y@n2:3/fixed z@n3:3/fixed"
        " w@n1:1@1/ran=2h/ckpt=10m,30s/label=ib/who=paid.beta.x.bob",
        queued="big:1x4",
        want="big waits needs=4 free=4 start=22h",
    ),
    "not before stopping costs little beside what it ran": Case(
        nodes="n1=4xH100 n2=4xH100",
        running=f"x@n1:1/ran=24m/ckpt=10m,30s/who=paid.beta.x.bob {OTHERS}",
        queued="big:1x4/est=9h",
        want="big waits needs=4 free=5 start=1416m",
    ),
    "not if it makes no checkpoints": Case(
        nodes="n1=4xH100 n2=4xH100",
        running=f"x@n1:1/ran=2h/who=paid.beta.x.bob {OTHERS}",
        queued="big:1x4/est=9h",
        want="big waits needs=4 free=5 start=22h",
    ),
    "not if it must not be asked": Case(
        nodes="n1=4xH100 n2=4xH100",
        running=f"x@n1:1/ran=2h/ckpt=10m,30s/who=paid.beta.x.bob/fixed {OTHERS}",
        queued="big:1x4",
        want="big waits needs=4 free=5 start=22h",
    ),
    "not if it is of another tier": Case(
        nodes="n1=4xH100 n2=4xH100",
        running=f"x@n1:1/ran=2h/ckpt=10m,30s/who=free.beta.x.bob {OTHERS}",
        queued="big:1x4",
        want="big waits needs=4 free=5 start=22h",
    ),
    "not if it is of a higher class": Case(
        nodes="n1=4xH100 n2=4xH100",
        running=f"x@n1:1/ran=2h/ckpt=10m,30s/who=paid.beta.x.bob/prod {OTHERS}",
        queued="big:1x4",
        want="big waits needs=4 free=5 start=22h",
    ),
    "not if it says that it ends soon": Case(
        nodes="n1=4xH100 n2=4xH100",
        running=f"x@n1:1/ran=2h/est=124m/ckpt=10m,30s/who=paid.beta.x.bob {OTHERS}",
        queued="big:1x4",
        want="big waits needs=4 free=5 start=22h",
    ),
    "not if it was asked to stop already": Case(
        nodes="n1=4xH100 n2=4xH100",
        running=f"x@n1:1/ran=2h/ckpt=10m,30s/who=paid.beta.x.bob/stops=60s {OTHERS}",
        queued="big:1x4",
        want="big waits needs=4 free=5 start=1m",
    ),
    "not if nobody gives up turns": Case(
        nodes="n1=4xH100 n2=4xH100",
        running=f"x@n1:1/ran=2h/ckpt=10m,30s/who=paid.beta.x.bob {OTHERS}",
        queued="big:1x4",
        policy=replace(PLAIN, turn_after=0),
        want="big waits needs=4 free=5 start=22h",
    ),
    "nor if the policy is another": Case(
        nodes="n1=4xH100 n2=4xH100",
        running=f"x@n1:1/ran=2h/ckpt=10m,30s/who=paid.beta.x.bob {OTHERS}",
        queued="big:1x4",
        policy=replace(PLAIN, inside_a_user="oldest"),
        want="big waits needs=4 free=5 start=22h",
    ),
    "the fewest GPUs move that make room": Case(
        nodes="n1=8xH100 n2=4xH100",
        running="s@n1:1/ran=2h/ckpt=10m,30s/who=paid.beta.x.bob"
        " l@n1:2@1/ran=2h/ckpt=10m,30s/who=paid.beta.x.bob y@n2:1/fixed",
        queued="big:1x6",
        want="s preempted for=big by=move; big waits on=n1:6",
    ),
    "a gang on several nodes gets them one by one": Case(
        nodes="n1=4xH100 n2=4xH100 n3=4xH100",
        running="x@n1:1/ran=2h/ckpt=10m,30s/who=paid.beta.x.bob z@n3:2/fixed"
        " v@n2:1/ran=2h/ckpt=10m,30s/who=paid.beta.x.bob",
        queued="gang:2x4",
        want="v preempted for=gang by=move; x preempted for=gang by=move; gang waits on=n1:4+n2:4",
    ),
    "one that must lie close together does not": Case(
        nodes="n1=4xH100/rack=r n2=4xH100/rack=r n3=4xH100/rack=r",
        running="x@n1:1/ran=2h/ckpt=10m,30s/who=paid.beta.x.bob z@n3:2/fixed"
        " v@n2:1/ran=2h/ckpt=10m,30s/who=paid.beta.x.bob",
        queued="gang:2x4/within=rack/est=9h",
        want="gang waits needs=8 free=8 start=22h",
    ),
    "somebody moves rather than makes room and waits": Case(
        nodes="n1=4xH100 n2=4xH100 n3=4xH100",
        running=f"x@n1:1/ran=2h/ckpt=10m,30s {OTHERS} low@n3:4/batch",
        queued="big:1x4/prod",
        want="x preempted for=big by=move; big waits on=n1:4",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_migration(case: Case) -> None:
    """Who moves for whom."""
    check(case)


def test_a_moved_job_starts_elsewhere_at_once() -> None:
    """When it has stopped, the one for which it left starts, and it starts where the gap is."""
    case = CASES["a job that fits elsewhere leaves its place to one that fits nowhere"]
    cluster = case.cluster()
    carry_out(cluster, T0)
    stopped = cluster.remove_running(next(job for job in cluster.running if job == "x"))
    cluster.enqueue(replace(stopped.job, preemptions=1, stopped_at=T0))
    starts = [one for one in carry_out(cluster, T0).decisions if isinstance(one, Start)]

    assert {"big": "n1", "x": "n2"} == {one.job: one.pieces[0].node for one in starts}
