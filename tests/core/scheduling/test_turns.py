"""Who comes first inside a user, and who gives up its turn: the least work, in bounded stops."""

import pytest

from bursar.core.ids import JobId
from bursar.core.instant import HOUR, MINUTE, SECOND
from bursar.core.scheduling.decisions import Preempt
from bursar.core.scheduling.explain.explanation import explain
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.policy import PoolPolicy
from bursar.core.scheduling.order.aging import overdue_jobs
from bursar.core.scheduling.plan import make_plan, next_planning_time
from bursar.core.value import replace
from tests.support.scheduling_cases import PLAIN, T0, Case
from tests.support.scheduling_checks import check

SHIPPED = PoolPolicy()

CASES = {
    # ------------------------------------------------------------------ the least work first
    "whoever says that it ends sooner comes first": Case(
        nodes="n1=4xH100",
        queued="long:4/est=5h short:4/est=1h",
        want="short -> n1:4; long waits needs=4 free=0 start=24h",
    ),
    "of jobs that do not say, whoever has had less": Case(
        nodes="n1=4xH100",
        queued="much:4/used=9 little:4/used=1",
        want="little -> n1:4; much waits needs=4 free=0 start=24h",
    ),
    "an estimate beyond the bound is worth the bound": Case(
        nodes="n1=4xH100",
        queued="liar:4/est=90h/limit=1h honest:4/est=2h",
        want="liar -> n1:4; honest waits needs=4 free=0 start=1h",
    ),
    "four GPUs for an hour come after one GPU for an hour": Case(
        nodes="n1=4xH100",
        running="x@n1:3/ends=10m",
        queued="four:4/est=1h one:1/est=1h y:4/est=9h",
        want="one -> n1:1; four waits needs=4 free=0 start=24h",
    ),
    "and before one GPU for three hours, though they cost more": Case(
        nodes="n1=4xH100",
        queued="one:1/est=3h four:4/est=1h y:4/est=9h",
        want="four -> n1:4; one waits needs=1 free=0 start=24h; y waits needs=4 free=0",
    ),
    # ------------------------------------------------------------------ whoever outlasts all
    "a job that lasts longer than all GPUs have work comes first": Case(
        nodes="n1=8xH100",
        queued="short:4/est=1h next:4/est=2h pole:1/est=9h also:4/est=2h",
        want="pole -> n1:1; short -> n1:4; also waits needs=4 free=3 start=24h",
    ),
    "one that has no place now does not hide the next such job": Case(
        nodes="n1=16xH100",
        running="x@n1:15/ends=1h",
        queued="p:1/est=90h/limit=99h/label=ib q:1/est=80h/limit=99h s:1/est=1h",
        want="q -> n1:1 backfill; p waits never_fits needs=1 free=0;"
        " s waits needs=1 free=0 start=1h",
    ),
    "not if it takes more than an eighth of them": Case(
        nodes="n1=8xH100",
        queued="short:4/est=1h next:4/est=2h pole:2/est=9h also:4/est=2h",
        want="short -> n1:4; also -> n1:4;"
        " next waits needs=4 free=0 start=24h; pole waits needs=2 free=0",
    ),
    "not if the policy is another": Case(
        nodes="n1=8xH100",
        queued="short:4/est=1h/waited=1m next:4/est=2h/waited=1m pole:1/est=9h",
        policy=replace(PLAIN, inside_a_user="oldest"),
        want="next -> n1:4; short -> n1:4; pole waits needs=1 free=0 start=24h",
    ),
    "what should have ended counts no more, and not the other way either": Case(
        nodes="n1=8xH100",
        running="over@n1:4/ran=9h/est=1h",
        queued="short:4/est=1h pole:1/est=9h more:8/est=20h",
        want="short -> n1:4; pole waits needs=1 free=0 start=15h; more waits needs=8 free=0",
    ),
    "not in a pool that has work for longer": Case(
        nodes="n1=4xH100",
        running="x@n1:3/ends=20h/est=20h",
        queued="short:1/est=1h long:1/est=9h more:4/est=9h",
        want="short -> n1:1; long waits needs=1 free=0 start=20h; more waits needs=4 free=0",
    ),
    "not before a higher class": Case(
        nodes="n1=4xH100",
        queued="short:4/est=1h/prod pole:1/est=9h",
        want="short -> n1:4; pole waits needs=1 free=0 start=24h",
    ),
    # ------------------------------------------------------------------ turns
    "one that had its turn makes room for one with little to do": Case(
        nodes="n1=4xH100",
        running="big@n1:4/ran=2h/ckpt=10m,30s",
        queued="small:4",
        want="big preempted for=small by=turn; small waits on=n1:4",
    ),
    "also for another user of its org": Case(
        nodes="n1=4xH100",
        running="big@n1:4/ran=2h/ckpt=10m,30s/who=paid.acme.web.bob",
        queued="small:4",
        want="big preempted for=small by=turn; small waits on=n1:4",
    ),
    "not for another org, whose right is its share": Case(
        nodes="n1=4xH100",
        running="big@n1:4/ran=2h/ckpt=10m,30s/who=paid.beta.x.bob",
        queued="small:4",
        want="small waits needs=4 free=0 start=22h",
    ),
    "not for one of a lower class": Case(
        nodes="n1=4xH100",
        running="big@n1:4/ran=2h/ckpt=10m,30s/prod",
        queued="small:4",
        want="small waits needs=4 free=0 start=22h",
    ),
    "not before stopping costs at most a fiftieth of what it ran": Case(
        nodes="n1=4xH100",
        running="big@n1:4/ran=24m/ckpt=10m,30s",
        queued="small:4",
        want="small waits needs=4 free=0 start=1416m",
    ),
    "a minute later it does": Case(
        nodes="n1=4xH100",
        running="big@n1:4/ran=25m/ckpt=10m,30s",
        queued="small:4",
        want="big preempted for=small by=turn; small waits on=n1:4",
    ),
    "not if it makes no checkpoints: all it did would be lost": Case(
        nodes="n1=4xH100",
        running="big@n1:4/ran=2h",
        queued="small:4",
        want="small waits needs=4 free=0 start=22h",
    ),
    "not if it must not be asked": Case(
        nodes="n1=4xH100",
        running="big@n1:4/ran=2h/ckpt=10m,30s/fixed",
        queued="small:4",
        want="small waits needs=4 free=0 start=22h",
    ),
    "also if it made room three times: a turn costs little, however often": Case(
        nodes="n1=4xH100",
        running="big@n1:4/ran=2h/ckpt=10m,30s/preempted=3",
        queued="small:4",
        want="big preempted for=small by=turn; small waits on=n1:4",
    ),
    "not for one that has nearly as much to do": Case(
        nodes="n1=4xH100",
        running="big@n1:4/ran=2h/ckpt=10m,30s/est=5h",
        queued="small:4/est=2h more:4/est=9h",
        want="small waits needs=4 free=0 start=22h",
    ),
    "of jobs that say how long they run, the rest counts": Case(
        nodes="n1=4xH100",
        running="big@n1:4/ran=2h/ckpt=10m,30s/est=5h",
        queued="small:4/est=1h more:4/est=9h",
        want="big preempted for=small by=turn; small waits on=n1:4;"
        " more waits needs=4 free=0 start=86430s",
    ),
    "one that runs longer than it said counts as one that said nothing": Case(
        nodes="n1=4xH100",
        running="big@n1:4/ran=6h/ckpt=10m,30s/est=5h",
        queued="small:4/est=1h",
        want="big preempted for=small by=turn; small waits on=n1:4",
    ),
    "not if it would be the last to end anyhow": Case(
        nodes="n1=8xH100",
        running="pole@n1:1/ran=2h/ckpt=10m,30s/est=9h x@n1:7@1/ran=2h/ends=22h/est=4h",
        queued="small:1/est=1h",
        want="small waits needs=1 free=0 start=22h",
    ),
    "for one that would be the last to end, whatever it has to do": Case(
        nodes="n1=8xH100",
        running="x@n1:1/ran=2h/ckpt=10m,30s/est=3h y@n1:7@1/ran=2h/ends=22h/est=4h",
        queued="pole:1/est=9h",
        want="x preempted for=pole by=turn; pole waits on=n1:1",
    ),
    "not if it says that it ends soon": Case(
        nodes="n1=4xH100",
        running="big@n1:4/ran=2h/ckpt=10m,30s/est=125m",
        queued="small:4",
        want="small waits needs=4 free=0 start=22h",
    ),
    "not if a checkpoint takes longer than the grace": Case(
        nodes="n1=4xH100",
        running="big@n1:4/ran=2h/ckpt=10m,31s",
        queued="small:4",
        want="small waits needs=4 free=0 start=22h",
    ),
    "nor if the policy is another": Case(
        nodes="n1=4xH100",
        running="big@n1:4/ran=2h/ckpt=10m,30s",
        queued="small:4",
        policy=replace(PLAIN, inside_a_user="oldest"),
        want="small waits needs=4 free=0 start=22h",
    ),
    "not if nobody gives up turns": Case(
        nodes="n1=4xH100",
        running="big@n1:4/ran=2h/ckpt=10m,30s",
        queued="small:4",
        policy=replace(PLAIN, turn_after=0),
        want="small waits needs=4 free=0 start=22h",
    ),
    "not if GPUs would stay idle at a greater cost than its wait": Case(
        nodes="n1=8xH100",
        running="big@n1:8/ran=1h/ends=9h/ckpt=10m,30s",
        queued="one:1/limit=12h",
        policy=SHIPPED,
        want="one waits needs=1 free=0 start=9h",
    ),
    "a job of one GPU does not stop one of a hundred": Case(
        nodes="n1=100xH100",
        running="big@n1:100/ran=1h/ends=9h/ckpt=10m,30s",
        queued="one:1/est=2h",
        policy=SHIPPED,
        want="one waits needs=1 free=0 start=9h",
    ),
    "it does if other jobs use the rest": Case(
        nodes="n1=8xH100",
        running="big@n1:8/ran=1h/ends=9h/ckpt=10m,30s",
        queued="one:1/limit=12h two:7/limit=12h",
        policy=SHIPPED,
        want="big preempted for=one by=turn; one waits on=n1:1;"
        " two waits needs=7 free=0 start=30s",
    ),
    "not if the jobs that wait are too large for the rest": Case(
        nodes="n1=8xH100",
        running="big@n1:8/ran=1h/ends=9h/ckpt=10m,30s",
        queued="one:1/limit=12h two:1x8/limit=12h/used=90",
        policy=SHIPPED,
        want="one waits needs=1 free=0 start=9h; two waits needs=8 free=0",
    ),
    "a short one does: the GPUs stay idle for less than it would wait": Case(
        nodes="n1=8xH100",
        running="big@n1:8/ran=1h/ends=9h/ckpt=10m,30s",
        queued="one:1/est=1h/limit=2h",
        policy=SHIPPED,
        want="big preempted for=one by=turn; one waits on=n1:1",
    ),
    "nobody's floor is cut into": Case(
        nodes="n1=4xH100",
        running="big@n1:4/ran=2h/ckpt=10m,30s/who=paid.acme.web.bob",
        queued="small:4",
        shares="paid.acme.web=floor2",
        want="small waits needs=4 free=0 start=22h",
    ),
    # ------------------------------------------------------------------ in time and too late
    "a brief job that is too late comes after those that are in time": Case(
        nodes="n1=4xH100",
        queued="late:4/est=1m/waited=3m in-time:4/est=2m/waited=1m",
        policy=SHIPPED,
        want="in-time -> n1:4; late waits needs=4 free=0",
    ),
    "until then the shorter one comes first": Case(
        nodes="n1=4xH100",
        queued="late:4/est=1m/waited=1m in-time:4/est=2m/waited=1m",
        policy=SHIPPED,
        want="late -> n1:4; in-time waits needs=4 free=0",
    ),
    "one that lasts long is never too late": Case(
        nodes="n1=4xH100",
        queued="late:4/est=21m/waited=3m in-time:4/est=22m/waited=1m",
        policy=SHIPPED,
        want="late -> n1:4; in-time waits needs=4 free=0 start=24h",
    ),
    "one that made room is in time if it is by when it was stopped": Case(
        nodes="n1=4xH100",
        queued="again:4/est=2m/waited=9m/preempted=1/used=1/stopped=1m late:4/est=1m/waited=3m",
        policy=SHIPPED,
        want="again -> n1:4; late waits needs=4 free=0",
    ),
    "and late as others are by that": Case(
        nodes="n1=4xH100",
        queued="again:4/est=2m/waited=9m/preempted=1/used=1/stopped=2m late:4/est=1m/waited=3m",
        policy=SHIPPED,
        want="late -> n1:4; again waits needs=4 free=0",
    ),
    "one that ran and lost its node is not brief any more": Case(
        nodes="n1=4xH100",
        queued="again:4/est=1m/waited=3m/used=1 late:4/est=2m/waited=3m",
        policy=SHIPPED,
        want="late -> n1:4; again waits needs=4 free=0 start=24h",
    ),
    "whoever does not say comes after brief ones": Case(
        nodes="n1=4xH100",
        queued="blind:4 late:4/est=2m/waited=3m",
        policy=SHIPPED,
        want="late -> n1:4; blind waits needs=4 free=0 start=24h",
    ),
    "a job waits in time if that costs less than what would be lost": Case(
        nodes="n1=4xH100",
        running="low@n1:4/batch/ends=100s/ran=10m",
        queued="urgent:4/prod/waited=10s",
        policy=SHIPPED,
        want="urgent waits needs=4 free=0 start=100s",
    ),
    "idle GPUs count as lost work, by any right": Case(
        nodes="n1=8xH100",
        running="low@n1:8/batch/ends=100s/ckpt=10m,1s",
        queued="urgent:1/prod/waited=10s",
        policy=SHIPPED,
        want="urgent waits needs=1 free=0 start=100s",
    ),
    "it asks if waiting would be too late": Case(
        nodes="n1=4xH100",
        running="low@n1:4/batch/ends=100s/ran=10m",
        queued="urgent:4/prod/waited=30s",
        policy=SHIPPED,
        want="low preempted for=urgent by=class; urgent waits on=n1:4",
    ),
    "once it is too late, it waits again": Case(
        nodes="n1=4xH100",
        running="low@n1:4/batch/ends=100s/ran=10m",
        queued="urgent:4/prod/waited=3m",
        policy=SHIPPED,
        want="urgent waits needs=4 free=0 start=100s",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_turns(case: Case) -> None:
    """The order inside a user, and the bounded stops that follow it."""
    check(case)


@pytest.mark.parametrize(
    ("running", "queued", "want"),
    [
        ("x@n1:4/ran=2h/ckpt=10m,30s", "a:4/est=9h", 5 * MINUTE),
        ("x@n1:4/ran=10m/ckpt=10m,30s", "a:4", 15 * MINUTE),
        ("x@n1:4/ran=2h", "a:4/waited=1h", 23 * HOUR),
        ("x@n1:4/ran=2h/ckpt=10m,30s/preempted=3", "a:4", 5 * MINUTE),
        ("x@n1:4/ran=2h/ckpt=10m,30s/who=paid.beta.x.bob", "a:4", 24 * HOUR),
        ("x@n1:4/ran=2h/ckpt=10m,30s", "", None),
        ("x@n1:4/ran=2h", "a:4/again=30s", 30 * SECOND),
    ],
)
def test_when_to_look_again(running: str, queued: str, want: int | None) -> None:
    """When a turn ends, in minutes if one has, or when somebody has waited too long; or never."""
    cluster = Case(nodes="n1=4xH100", running=running, queued=queued, want="").cluster()
    found = next_planning_time(cluster)

    assert want == (None if found is None else found - T0)


def test_why_a_job_cannot_take_the_turn_of_another() -> None:
    """Who of its org ran long enough, what is left to do there, and of the job itself (S14)."""
    running = "big@n1:4/ran=2h/ckpt=10m,30s/est=5h high@n1:4@4/ran=2h/ckpt=10m,30s/prod"
    case = Case(nodes="n1=8xH100", running=running, queued="u:4/est=2h more:8/est=9h", want="")
    found = explain(case.cluster(), JobId("u"), T0)

    assert (
        "- Cannot take the turn of a job of its own org and class: 1 job ran long enough, with at"
        " most 6 credits of work left, which is less than twice the 4 credits of this job."
        in (" ".join(found.render()))
    )


def test_a_stop_does_not_extend_a_job() -> None:
    """A victim stops by its own bound, if that is sooner than the grace is over."""
    case = Case(
        nodes="n1=16xH100",
        running="soon@n1:4/batch/ends=10s low@n1:4@4/batch",
        queued="urgent:8/prod",
        shares="paid.acme=ceil8",
        want="",
    )
    decisions = make_plan(case.cluster(), T0).decisions
    stops = {one.job: one.stops_at - T0 for one in decisions if isinstance(one, Preempt)}

    assert {"low": 30 * SECOND, "soon": 10 * SECOND} == stops


def test_the_wait_of_a_stopped_job_counts_from_its_stop() -> None:
    """A job that ran for days has not waited for days when it makes room (S4)."""
    case = Case(nodes="n1=1xH100", running="x@n1:1", queued="old:1/waited=30h", want="")
    before = case.snapshot()
    stopped = replace(before.waiting[0], stopped_at=T0 - HOUR)

    assert [] == overdue_jobs(Cluster.from_snapshot(replace(before, waiting=(stopped,))))
    assert 1 == len(overdue_jobs(Cluster.from_snapshot(before)))
