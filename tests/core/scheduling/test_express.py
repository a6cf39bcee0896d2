"""Brief jobs that can still start in time: before longer ones, and with the right to press (S4)."""

import pytest

from bursar.core.ids import JobId
from bursar.core.instant import HOUR, MINUTE, SECOND
from bursar.core.scheduling.explain.explanation import explain
from bursar.core.scheduling.explain.queue_position import QueueGroup, list_positions
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.policy import PoolPolicy, Share, Tier
from bursar.core.scheduling.plan import make_plan, next_planning_time
from bursar.core.value import replace
from tests.support.scheduling_cases import T0, Case
from tests.support.scheduling_checks import check
from tests.support.scheduling_rounds import Rounds

TARGETS = PoolPolicy(
    tiers=(
        Tier(name="enterprise", start_target=30 * SECOND, preempts=("paid", "free")),
        Tier(name="paid", start_target=2 * MINUTE),
        Tier(name="free", start_target=30 * MINUTE),
    )
)
"""The shipped start targets; equal tiers without floors."""

LONG = "long:4/est=9h/who=paid.beta.x.bob"
PRESSED = "low@n1:4/ran=10m/ckpt=10m,5s"
SOON = "low@n1:4/ran=1m"
PRESSING = "e:4/est=1m/who=enterprise.big.x.u"

CASES = {
    # ------------------------------------------------------------------ before longer ones
    "it comes before a longer job of an org that used less": Case(
        nodes="n1=4xH100",
        queued=f"brief:4/est=5m {LONG}",
        usage="paid.acme.ml.ann=9",
        want="brief -> n1:4; long waits needs=4 free=0 start=24h",
    ),
    "and of another tier": Case(
        nodes="n1=4xH100",
        queued="brief:4/est=5m/who=free.acme.x.u long:4/est=9h",
        usage="free.acme.x.u=9",
        want="brief -> n1:4; long waits needs=4 free=0 start=24h",
    ),
    "not if it lasts longer than ten graces": Case(
        nodes="n1=4xH100",
        queued=f"brief:4/est=301s {LONG}",
        usage="paid.acme.ml.ann=9",
        want="long -> n1:4; brief waits needs=4 free=0 start=24h",
    ),
    "nor once it is late": Case(
        nodes="n1=4xH100",
        queued=f"brief:4/est=5m/waited=30m {LONG}",
        usage="paid.acme.ml.ann=9",
        want="long -> n1:4; brief waits needs=4 free=0",
    ),
    "whoever was stopped has its target anew": Case(
        nodes="n1=4xH100",
        queued=f"brief:4/est=5m/preempted=1/used=1/waited=40m/stopped=29m {LONG}",
        usage="paid.acme.ml.ann=9",
        want="brief -> n1:4; long waits needs=4 free=0 start=24h",
    ),
    "until that has passed, too": Case(
        nodes="n1=4xH100",
        queued=f"brief:4/est=5m/preempted=1/used=1/waited=40m/stopped=30m {LONG}",
        usage="paid.acme.ml.ann=9",
        want="long -> n1:4; brief waits needs=4 free=0",
    ),
    "nor if its org runs more than its part": Case(
        nodes="n1=8xH100",
        running="x@n1:4",
        queued=f"brief:4/est=5m {LONG}",
        want="long -> n1:4; brief waits needs=4 free=0",
    ),
    "as much as its part, by weight, is not more": Case(
        nodes="n1=12xH100",
        running="x@n1:6 y@n1:2@6/who=paid.beta.x.bob",
        queued=f"brief:4/est=5m {LONG}",
        shares="paid.acme=w3",
        usage="paid.acme.ml.ann=900",
        want="brief -> n1:4; long waits needs=4 free=0 start=1430m",
    ),
    "nor if its user runs more than the part of a user of its org": Case(
        nodes="n1=8xH100",
        running="x@n1:4",
        queued="brief:4/est=5m long:4/est=9h/who=paid.acme.ml.bob",
        want="long -> n1:4; brief waits needs=4 free=0",
    ),
    "an org that neither runs nor waits has no part": Case(
        nodes="n1=8xH100",
        running="x@n1:4",
        queued="brief:4/est=5m long:4/est=9h/who=enterprise.big.x.u",
        usage="paid.acme.ml.ann=9 paid.beta.x.bob=9",
        want="brief -> n1:4; long waits needs=4 free=0 start=1430m",
    ),
    "floors go first": Case(
        nodes="n1=4xH100",
        queued="brief:4/est=5m/who=free.acme.x.u long:4/est=9h",
        shares="paid=floor4",
        want="long -> n1:4; brief waits needs=4 free=0",
    ),
    "those of a brief job that is late do not": Case(
        nodes="n1=4xH100",
        queued="brief:4/est=5m/who=free.acme.x.u late:4/est=5m/waited=30m",
        shares="paid=floor4",
        want="brief -> n1:4; late waits needs=4 free=0",
    ),
    "but those of a longer one beside it": Case(
        nodes="n1=4xH100",
        queued="brief:4/est=5m/who=free.acme.x.u late:4/est=5m/waited=30m"
        " long:4/est=9h/who=paid.beta.x.bob",
        shares="paid=floor4",
        want="late -> n1:4; brief waits needs=4 free=0; long waits needs=4 free=0 start=24h",
    ),
    "nobody rides along: a higher class of its org takes its turn": Case(
        nodes="n1=4xH100",
        queued=f"brief:2/est=5m high:4/est=8h/prod {LONG}",
        usage="paid.acme.ml.ann=9",
        want="long -> n1:4; high waits needs=4 free=0 start=24h; brief waits needs=2 free=0",
    ),
    "before one of its own user that is late": Case(
        nodes="n1=5xH100",
        queued="late:4/est=1m/waited=31m brief:4/est=5m",
        want="brief -> n1:4; late waits needs=4 free=1",
    ),
    "those that come first are in turn among themselves": Case(
        nodes="n1=4xH100",
        queued="a:4/est=1m b:4/est=5m/who=paid.beta.x.bob",
        usage="paid.acme.ml.ann=9",
        want="b -> n1:4; a waits needs=4 free=0",
    ),
    # ------------------------------------------------------------------ future places
    "a place that comes in time is kept for it": Case(
        nodes="n1=4xH100",
        running="x@n1:4/ends=20m/fixed",
        queued="brief:4/est=5m",
        want="brief waits needs=4 free=0 start=20m",
    ),
    "one that comes too late is not": Case(
        nodes="n1=4xH100",
        running="x@n1:3/ends=40m/fixed",
        queued="brief:4/est=5m small:1/est=9h",
        want="small -> n1:1 backfill; brief waits needs=4 free=0",
    ),
    # ------------------------------------------------------------------ pressing
    "when half its target has passed it asks a tier that has more time": Case(
        nodes="n1=4xH100",
        running=PRESSED,
        queued=f"{PRESSING}/waited=15s",
        policy=TARGETS,
        want="low preempted for=e by=target; e waits on=n1:4",
    ),
    "not before": Case(
        nodes="n1=4xH100",
        running=PRESSED,
        queued=f"{PRESSING}/waited=14s",
        policy=TARGETS,
        want="e waits needs=4 free=0",
    ),
    "nor when it is late": Case(
        nodes="n1=4xH100",
        running=PRESSED,
        queued=f"{PRESSING}/waited=30s",
        policy=TARGETS,
        want="e waits needs=4 free=0",
    ),
    "nor one that lasts long": Case(
        nodes="n1=4xH100",
        running=PRESSED,
        queued="e:4/est=301s/who=enterprise.big.x.u/waited=15s",
        policy=TARGETS,
        want="e waits needs=4 free=0 start=1430m",
    ),
    "nor a tier that has as little time": Case(
        nodes="n1=4xH100",
        running=f"{PRESSED}/who=enterprise.acme.x.u",
        queued=f"{PRESSING}/waited=15s",
        policy=TARGETS,
        shares="enterprise.acme=w9",
        want="e waits needs=4 free=0",
    ),
    "nor whoever would lose its work": Case(
        nodes="n1=4xH100",
        running="low@n1:4/ran=10m",
        queued=f"{PRESSING}/waited=15s",
        policy=TARGETS,
        want="e waits needs=4 free=0",
    ),
    "nor whoever needs longer than the grace to save it": Case(
        nodes="n1=4xH100",
        running="low@n1:4/ran=10m/ckpt=10m,31s",
        queued=f"{PRESSING}/waited=15s",
        policy=TARGETS,
        want="e waits needs=4 free=0",
    ),
    "nor whoever made room three times": Case(
        nodes="n1=4xH100",
        running=f"{PRESSED}/preempted=3",
        queued=f"{PRESSING}/waited=15s",
        policy=TARGETS,
        want="e waits needs=4 free=0",
    ),
    "nor is a floor cut into": Case(
        nodes="n1=4xH100",
        running=PRESSED,
        queued=f"{PRESSING}/waited=15s",
        policy=TARGETS,
        shares="paid=floor1",
        want="e waits needs=4 free=0",
    ),
    "whoever would be late does not wait for a place that is free within the grace": Case(
        nodes="n1=4xH100",
        running="soon@n1:4/ends=20s/ckpt=10m,5s",
        queued=f"{PRESSING}/waited=15s",
        policy=TARGETS,
        want="soon preempted for=e by=target; e waits on=n1:4",
    ),
    "it waits for one that is free in time": Case(
        nodes="n1=4xH100",
        running="soon@n1:4/ends=15s/ckpt=10m,5s",
        queued=f"{PRESSING}/waited=15s",
        policy=TARGETS,
        want="e waits needs=4 free=0",
    ),
    # ------------------------------------------------------------------ letting others end
    "for a floor one that is late asks nobody who says that it ends within ten graces": Case(
        nodes="n1=4xH100",
        running=f"{SOON}/est=6m",
        queued=f"{PRESSING}/waited=30s",
        policy=TARGETS,
        shares="enterprise=floor4",
        want="e waits needs=4 free=0",
    ),
    "but while it can start in time, at once": Case(
        nodes="n1=4xH100",
        running=f"{SOON}/est=6m",
        queued=PRESSING,
        policy=TARGETS,
        shares="enterprise=floor4",
        want="low preempted for=e by=floor; e waits on=n1:4",
    ),
    "but not one that had waited too long": Case(
        nodes="n1=4xH100",
        running=f"{SOON}/est=6m/aged",
        queued=PRESSING,
        policy=TARGETS,
        shares="enterprise=floor4",
        want="e waits needs=4 free=0",
    ),
    "unless that one takes longer": Case(
        nodes="n1=4xH100",
        running=f"{SOON}/est=361s/aged",
        queued=PRESSING,
        policy=TARGETS,
        shares="enterprise=floor4",
        want="low preempted for=e by=floor; e waits on=n1:4",
    ),
    "and late, too, whoever says that it takes longer": Case(
        nodes="n1=4xH100",
        running=f"{SOON}/est=361s",
        queued=f"{PRESSING}/waited=30s",
        policy=TARGETS,
        shares="enterprise=floor4",
        want="low preempted for=e by=floor; e waits on=n1:4",
    ),
    "or says nothing": Case(
        nodes="n1=4xH100",
        running=SOON,
        queued=f"{PRESSING}/waited=30s",
        policy=TARGETS,
        shares="enterprise=floor4",
        want="low preempted for=e by=floor; e waits on=n1:4",
    ),
    "or runs longer than it said": Case(
        nodes="n1=4xH100",
        running=f"{SOON}/est=1m",
        queued=f"{PRESSING}/waited=30s",
        policy=TARGETS,
        shares="enterprise=floor4",
        want="low preempted for=e by=floor; e waits on=n1:4",
    ),
    "a longer job asks for its floor whoever it is": Case(
        nodes="n1=4xH100",
        running=f"{SOON}/est=6m",
        queued="e:4/est=301s/who=enterprise.big.x.u/waited=30s",
        policy=TARGETS,
        shares="enterprise=floor4",
        want="low preempted for=e by=floor; e waits on=n1:4",
    ),
    "one that was stopped presses when half of its target has passed anew": Case(
        nodes="n1=4xH100",
        running=PRESSED,
        queued=f"{PRESSING}/waited=10m/stopped=15s",
        policy=TARGETS,
        want="low preempted for=e by=target; e waits on=n1:4",
    ),
    "by share a job of minutes asks nobody who says that it ends within ten graces": Case(
        nodes="n1=8xH100",
        running="b1@n1:4/ran=1m/est=6m/who=paid.beta.x.bob"
        " b2@n1:4@4/ran=1m/est=361s/who=paid.beta.x.bob",
        queued="a:2/est=5m",
        want="b2 preempted for=a by=share; a waits on=n1:2",
    ),
    "a longer job does": Case(
        nodes="n1=8xH100",
        running="b1@n1:4/ran=1m/est=6m/who=paid.beta.x.bob"
        " b2@n1:4@4/ran=1m/est=361s/who=paid.beta.x.bob",
        queued="a:2/est=301s",
        want="b1 preempted for=a by=share; a waits on=n1:2",
    ),
    "nor for others beside whom it asks, who only end soon": Case(
        nodes="n1=4xH100 n2=4xH100",
        running="soon@n1:3/ends=25s/fixed low@n1:1@3/ran=1m/ckpt=10m,5s"
        " big@n2:4/ran=10m/ckpt=10m,5s",
        queued=f"{PRESSING}/waited=15s",
        policy=TARGETS,
        want="big preempted for=e by=target; e waits on=n2:4",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_express(case: Case) -> None:
    """Who comes first for being brief, and whom it may press."""
    check(case)


def test_when_to_look_again() -> None:
    """Half its target after it was queued, though nothing happens until then."""
    case = Case(nodes="n1=4xH100", running=PRESSED, queued=PRESSING, policy=TARGETS, want="")
    cluster = case.cluster()

    assert T0 + 15 * SECOND == next_planning_time(cluster)
    cluster.withdraw(JobId("e"))
    assert next_planning_time(cluster) is None
    assert 0 == cluster.tree.groups.root.express_jobs
    cluster = case.cluster()
    cluster.advance_to(T0 + 15 * SECOND)
    assert T0 + 15 * SECOND < (next_planning_time(cluster) or 0)


def test_queue_order_lists_express_jobs() -> None:
    """Before all that take their turn, each user's first (S14)."""
    queued = f"brief:4/est=5m next:4/est=5m other:4/est=9h {LONG}"
    case = Case(nodes="n1=4xH100", queued=queued, usage="paid.acme.ml.ann=9", want="")
    found = [(one.group, one.job) for one in list_positions(case.cluster(), T0)]

    assert [(QueueGroup.EXPRESS, "brief"), (QueueGroup.FAIR_SHARE, "long")] == found[:2]
    assert ["brief", "long", "next", "other"] == sorted(job for _, job in found), "told twice"


def test_a_start_that_is_too_late_is_not_explained_as_free_soon() -> None:
    """What is told of waiting is what the plan goes by (S14)."""
    running = "soon@n1:4/ends=20s/ckpt=10m,5s"
    blockers = [
        [blocker.code for blocker in explain(case.cluster(), JobId("e"), T0).blockers]
        for case in (
            Case(nodes="n1=4xH100", running=running, queued=queued, policy=TARGETS, want="")
            for queued in (f"{PRESSING}/waited=8s", f"{PRESSING}/waited=30s")
        )
    ]

    assert "free_soon" not in blockers[0]
    assert "free_soon" not in blockers[1], "it has no right to ask anybody"


def test_parts_follow_weights_that_change() -> None:
    """What an operator gives an org counts at once, and only of those who run or wait."""
    case = Case(
        nodes="n1=8xH100", running="x@n1:4 y@n1:2@4/who=paid.beta.x.bob", want="",
    )  # fmt: skip
    cluster = case.cluster()
    acme, beta = (cluster.tree.groups.find_group(("paid", org)) for org in ("acme", "beta"))
    assert acme is not None
    assert beta is not None

    assert (False, True) == (acme.is_within_share(), beta.is_within_share())
    cluster.tree.set_shares({("paid", "acme"): Share(weight=2)})
    assert (True, True) == (acme.is_within_share(), beta.is_within_share())
    cluster.remove_running(JobId("y"))
    assert 2 == cluster.tree.groups.root.children["paid/"].busy_weight
    cluster.tree.set_shares({("paid", "beta"): Share(weight=5)})
    assert 2 == cluster.tree.groups.root.children["paid/"].busy_weight


def p95_of_others(flood: int, minutes: int) -> int:
    """Seconds that nearly all jobs of three customers wait while a fourth sends brief ones.

    So many a minute, always new ones: they could all still start in time.
    """
    rounds = Rounds.of(Case(nodes="n1=24xH100", want=""))
    for n in range(flood * 60):
        (job,) = Case(nodes="", queued=f"a{n:05}:1/est={minutes}m", want="").snapshot().waiting
        rounds.arrive(T0 + n * MINUTE // flood, job)
    arrived = {}
    for org in ("beta", "cora", "dino"):
        queued = " ".join(f"{org}{n:02}:1/est=20m/who=paid.{org}.x.u" for n in range(20))
        for n, job in enumerate(Case(nodes="", queued=queued, want="").snapshot().waiting):
            arrived[job.id] = T0 + n * 3 * MINUTE
            rounds.arrive(arrived[job.id], job)
    rounds.run_until(T0 + 3 * HOUR)
    waits = sorted((rounds.started[job][0] - at) // SECOND for job, at in arrived.items())
    return waits[len(waits) * 95 // 100]


@pytest.mark.slow
@pytest.mark.parametrize("minutes", [2, 5])
def test_a_flood_of_brief_jobs_delays_no_other_org(minutes: int) -> None:
    """Ten times as many as its part has room for, against just as many as keep it busy (S3)."""
    calm = p95_of_others(6 // minutes + 1, minutes)
    flooded = p95_of_others(60 // minutes, minutes)

    assert 0 < calm
    assert flooded * 10 < calm * 11, (calm, flooded)


def test_express_jobs_use_up_looks_too() -> None:
    """A round costs what it may, whoever waits."""
    case = Case(
        nodes="n1=4xH100",
        running="x@n1:4/ends=1h",
        queued=" ".join(f"brief{n}:{n}/est=5m/who=paid.o{n}.x.u" for n in range(1, 5)),
        want="",
        policy=replace(TARGETS, looks=1),
    )
    plan = make_plan(Cluster.from_snapshot(case.snapshot()), T0)

    assert not plan.complete
    assert 1 == len(plan.waits)
