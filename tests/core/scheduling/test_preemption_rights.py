"""Who may ask whom to make room: class in an org, share between orgs (S5)."""

from collections import Counter

import pytest

from bursar.core.scheduling.decisions import Preempt
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.plan import make_plan
from bursar.core.scheduling.preemption.rights import Right
from tests.support.scheduling_cases import T0, Case
from tests.support.scheduling_checks import check

CASES = {
    # ------------------------------------------------------------------ class
    "a higher class asks a lower one of the same user": Case(
        nodes="n1=4xH100",
        running="low@n1:4/batch",
        queued="urgent:4/prod",
        want="low preempted for=urgent by=class; urgent waits on=n1:4",
    ),
    "and of another account of the same org": Case(
        nodes="n1=4xH100",
        running="low@n1:4/class=49/who=paid.acme.web.bob",
        queued="urgent:4/class=50",
        want="low preempted for=urgent by=class; urgent waits on=n1:4",
    ),
    "an equal class does not": Case(
        nodes="n1=4xH100",
        running="same@n1:4/prod",
        queued="urgent:4/prod",
        want="urgent waits needs=4 free=0 start=1430m",
    ),
    "a lower class does not": Case(
        nodes="n1=4xH100",
        running="high@n1:4/prod",
        queued="low:4/class=50",
        want="low waits needs=4 free=0 start=1430m",
    ),
    "class counts in one's own org only": Case(
        nodes="n1=4xH100",
        running="low@n1:4/batch/who=paid.beta.x.bob",
        queued="urgent:4/prod",
        want="urgent waits needs=4 free=0 start=1430m",
    ),
    "a lower class that waits with a future place is not in the way": Case(
        nodes="n1=4xH100",
        running="low@n1:4/batch/who=paid.acme.web.cat",
        queued="first:4 urgent:4/prod/who=paid.acme.ml.bob",
        usage="paid.acme.ml.bob=10",
        want="low preempted for=urgent by=class; urgent waits on=n1:4;"
        " first waits needs=4 free=0 start=86430s",
    ),
    "the most urgent job of an org asks, though others of it come first in turn": Case(
        nodes="n1=4xH100",
        running="low@n1:4/batch/who=paid.acme.web.cat",
        queued="first:4 urgent:4/prod/limit=12h/who=paid.acme.ml.bob",
        usage="paid.acme.ml.bob=10",
        want="low preempted for=urgent by=class; urgent waits on=n1:4;"
        " first waits needs=4 free=0 start=43230s",
    ),
    # ------------------------------------------------------------------ share
    "an org with a smaller part asks one with a larger": Case(
        nodes="n1=8xH100",
        running="b1@n1:4/who=paid.beta.x.bob b2@n1:4@4/who=paid.beta.x.bob",
        queued="a:2",
        want="b1 preempted for=a by=share; a waits on=n1:2",
    ),
    "also if both would have as much afterwards: equal parts are fair": Case(
        nodes="n1=8xH100",
        running="b1@n1:4/who=paid.beta.x.bob b2@n1:4@4/who=paid.beta.x.bob",
        queued="a:4",
        want="b1 preempted for=a by=share; a waits on=n1:4",
    ),
    "half of a large pool": Case(
        nodes=" ".join(f"n{n}=8xH100" for n in range(8)),
        running=" ".join(f"b{n}@n{n}:8/who=paid.beta.x.bob" for n in range(8)),
        queued="a:4x8",
        want="b0 preempted for=a by=share; b1 preempted for=a by=share; b2 preempted for=a"
        " by=share; b3 preempted for=a by=share; a waits on=n0:8+n1:8+n2:8+n3:8",
    ),
    "not if it would have more": Case(
        nodes="n1=8xH100",
        running="b1@n1:4/who=paid.beta.x.bob b2@n1:4@4/who=paid.beta.x.bob",
        queued="a:5",
        want="a waits needs=5 free=0 start=1430m",
    ),
    "not for a job without a price, if both have as much": Case(
        nodes="n1=8xH100",
        running="b1@n1:4/who=paid.beta.x.bob/price=0 b2@n1:4@4/who=paid.beta.x.bob/price=0",
        queued="a:4/price=0",
        want="a waits needs=4 free=0 start=1430m",
    ),
    "one that runs more, but used little, hides nobody who may be asked": Case(
        nodes="n1=8xH100",
        running="x@n1:5/who=paid.big.a.a/ran=1m/ends=20h y1@n1:1@5/who=paid.mid.a.a/ends=20h"
        " y2@n1:1@6/who=paid.mid.a.a/ends=20h y3@n1:1@7/who=paid.mid.a.a/ends=20h",
        queued="u:1",
        usage="paid.acme.ml.ann=50 paid.mid.a.a=500",
        want="y1 preempted for=u by=share; u waits on=n1:1",
    ),
    "what it has already counts": Case(
        nodes="n1=8xH100",
        running="x@n1:3 b1@n1:2@3/who=paid.beta.x.bob b2@n1:3@5/who=paid.beta.x.bob/ran=5m",
        queued="a:1x2",
        want="a waits needs=2 free=0 start=1430m",
    ),
    "parts are measured by weight: a light org asks a heavy one less": Case(
        nodes="n1=8xH100",
        running="b1@n1:4/who=paid.beta.x.bob b2@n1:4@4/who=paid.beta.x.bob",
        queued="a:3",
        shares="paid.beta=w2",
        want="a waits needs=3 free=0 start=1430m",
    ),
    "parts are measured by weight: a heavy org asks a light one more": Case(
        nodes="n1=8xH100",
        running="b1@n1:4/who=paid.beta.x.bob b2@n1:4@4/who=paid.beta.x.bob",
        queued="a:4",
        shares="paid.acme=w2",
        want="b1 preempted for=a by=share; a waits on=n1:4",
    ),
    "parts are measured in credits": Case(
        nodes="n1=8xH100",
        running="b1@n1:4/who=paid.beta.x.bob b2@n1:4@4/who=paid.beta.x.bob",
        queued="a:3/price=2",
        want="a waits needs=3 free=0 start=1430m",
    ),
    "orgs of another tier are not asked for a share": Case(
        nodes="n1=8xH100",
        running="b1@n1:4/who=free.beta.x.bob b2@n1:4@4/who=free.beta.x.bob",
        queued="a:1",
        want="a waits needs=1 free=0 start=1430m",
    ),
    "a higher class of another org can be asked: class counts in one's own org": Case(
        nodes="n1=8xH100",
        running="b1@n1:4/who=paid.beta.x.bob/prod b2@n1:4@4/who=paid.beta.x.bob/prod",
        queued="a:2/batch",
        want="b1 preempted for=a by=share; a waits on=n1:2",
    ),
    "one's own org is asked before others": Case(
        nodes="n1=8xH100",
        running="low@n1:2/batch b@n1:6@2/who=paid.beta.x.bob/ran=1m",
        queued="urgent:2/prod",
        want="low preempted for=urgent by=class; urgent waits on=n1:2",
    ),
    "who has the right by class and by share asks both together if need be": Case(
        nodes="n1=8xH100",
        running="low@n1:1/batch b1@n1:1@1/who=paid.beta.x.bob b2@n1:6@2/who=paid.beta.x.bob/fixed",
        queued="urgent:1x2/prod",
        want="b1 preempted for=urgent by=share; low preempted for=urgent by=class;"
        " urgent waits on=n1:2",
    ),
    "what leaves one's own org counts: by class and by share together": Case(
        nodes="n1=9xH100",
        running="alow@n1:1/batch a1@n1:1@1/prod a2@n1:1@2/prod"
        + "".join(f" b{n}@n1:1@{n + 3}/who=paid.b.x.bob" for n in range(6)),
        queued="ain:1x2/prod",
        shares="paid.acme=floor3 paid.b=floor3",
        want="alow preempted for=ain by=class; b0 preempted for=ain by=share; ain waits on=n1:2",
    ),
    "also where the org would have the larger part otherwise": Case(
        nodes="n1=8xH100",
        running="alow@n1:1/batch a1@n1:1@1/prod a2@n1:1@2/prod"
        + "".join(f" b{n}@n1:1@{n + 3}/who=paid.b.x.bob/ran=5m" for n in range(5)),
        queued="ain:1x2/prod",
        usage="paid.b.x.bob=9",
        want="alow preempted for=ain by=class; b0 preempted for=ain by=share; ain waits on=n1:2",
    ),
    "but nobody leaves only so that others may": Case(
        nodes="n1=9xH100",
        running="alow@n1:1/batch/ran=1m a2@n1:2@1/prod b1@n1:2@3/who=paid.b.x.bob"
        " b2@n1:4@5/fixed/who=paid.b.x.bob",
        queued="ain:1x2/prod",
        usage="paid.b.x.bob=9",
        want="ain waits needs=2 free=0 start=1430m",
    ),
    "nor for a gang": Case(
        nodes="n1=9xH100",
        running="alow@n1:1/batch/ran=1m a2@n1:2@1/prod b1@n1:2@3/who=paid.b.x.bob"
        " b2@n1:4@5/fixed/who=paid.b.x.bob",
        queued="ain:2/prod",
        usage="paid.b.x.bob=9",
        want="ain waits needs=2 free=0 start=1430m",
    ),
    "in a gang as well": Case(
        nodes="n1=8xH100",
        running="alow@n1:1/batch a1@n1:1@1/prod a2@n1:1@2/prod"
        + "".join(f" b{n}@n1:1@{n + 3}/who=paid.b.x.bob/ran=5m" for n in range(5)),
        queued="ain:2/prod",
        usage="paid.b.x.bob=9",
        want="alow preempted for=ain by=class; b0 preempted for=ain by=share; ain waits on=n1:2",
    ),
    # ------------------------------------------------------------------ who is never asked
    "a job that must not be preempted is not": Case(
        nodes="n1=4xH100",
        running="low@n1:4/batch/fixed",
        queued="urgent:4/prod",
        want="urgent waits needs=4 free=0 start=1430m",
    ),
    "a job that made room three times need not again": Case(
        nodes="n1=4xH100",
        running="low@n1:4/batch/preempted=3",
        queued="urgent:4/prod",
        want="urgent waits needs=4 free=0 start=1430m",
    ),
    "a job that made room twice may have to": Case(
        nodes="n1=4xH100",
        running="low@n1:4/batch/preempted=2",
        queued="urgent:4/prod",
        want="low preempted for=urgent by=class; urgent waits on=n1:4",
    ),
    "a job that just started is not asked": Case(
        nodes="n1=4xH100",
        running="low@n1:4/batch/ran=0s",
        queued="urgent:4/prod",
        want="urgent waits needs=4 free=0 start=24h",
    ),
    "a job that was asked to stop is not asked again": Case(
        nodes="n1=8xH100",
        running="low@n1:4/batch/ran=10s/stops=2m other@n1:4@4/batch/ran=1m",
        queued="urgent:4/prod",
        want="other preempted for=urgent by=class; urgent waits on=n1:4",
    ),
    "whoever stops in time is waited for": Case(
        nodes="n1=8xH100",
        running="low@n1:4/batch/stops=20s other@n1:4@4/batch",
        queued="urgent:4/prod",
        want="urgent waits needs=4 free=0 start=20s",
    ),
    "nobody is preempted for nothing": Case(
        nodes="n1=8xH100",
        running="low@n1:4/batch fixed@n1:4@4/batch/fixed",
        queued="urgent:8/prod",
        want="urgent waits needs=8 free=0 start=1430m",
    ),
    "nobody on GPUs that the job does not accept is preempted": Case(
        nodes="n1=8xA100 n2=8xH100/mem=40 n3=8xH100/labels=ib",
        running="x@n1:8/batch y@n2:8/batch z@n3:8/batch",
        queued="urgent:1x8/prod/mem=80/label=nvme",
        want="urgent waits never_fits needs=8 free=0",
    ),
    "free GPUs of the next type are taken before anybody is asked": Case(
        nodes="n1=8xH100 n2=8xA100",
        running="low@n1:8/batch",
        queued="urgent:8/prod/on=H100,A100",
        want="urgent -> n2:8",
    ),
    "if both are taken, room is made on the most welcome type": Case(
        nodes="n1=8xH100 n2=8xA100",
        running="low@n1:8/batch cheap@n2:8/batch/ran=1m",
        queued="urgent:8/prod/on=H100,A100",
        want="low preempted for=urgent by=class; urgent waits on=n1:8",
    ),
    "a job above its ceiling asks nobody outside": Case(
        nodes="n1=8xH100",
        running="x@n1:4 b1@n1:4@4/who=paid.beta.x.bob",
        queued="a:1",
        shares="paid.acme=ceil4",
        want="a waits ceiling at=paid/acme of=* used=4 most=4",
    ),
    "an urgent job takes the place of its org's own at a ceiling": Case(
        nodes="n1=8xH100",
        running="low@n1:4/batch b@n1:4@4/fixed/who=paid.beta.x.bob",
        queued="urgent:4/prod",
        shares="paid.acme=ceil4",
        want="low preempted for=urgent by=class; urgent waits on=n1:4",
    ),
    "also at a ceiling of jobs": Case(
        nodes="n1=8xH100",
        running="low@n1:4/batch b@n1:4@4/fixed/who=paid.beta.x.bob",
        queued="urgent:4/prod",
        shares="paid.acme=jobs1",
        want="low preempted for=urgent by=class; urgent waits on=n1:4",
    ),
    "also at a ceiling outside the tree": Case(
        nodes="n1=8xH100",
        running="low@n1:4/batch/counted=lab b@n1:4@4/fixed/who=paid.beta.x.bob",
        queued="urgent:1x4/prod/counted=lab",
        shares="@lab=ceil4H100",
        want="low preempted for=urgent by=class; urgent waits on=n1:4",
    ),
    "not if enough ends in time anyway": Case(
        nodes="n1=8xH100",
        running="old@n1:2/batch/ends=20s low@n1:2@2/batch",
        queued="urgent:2/prod",
        shares="paid.acme=ceil4",
        want="urgent waits ceiling at=paid/acme of=* used=4 most=4",
    ),
    "not if all ends in time anyway": Case(
        nodes="n1=8xH100",
        running="low@n1:4/batch/ends=20s",
        queued="urgent:4/prod k:1/limit=1s/who=paid.beta.x.bob",
        kept="k@n1:1@4/since=30s",
        shares="paid.acme=ceil4",
        want="k -> n1:1 freed; urgent waits ceiling at=paid/acme of=* used=4 most=4",
    ),
    "not of somebody who does not count there": Case(
        nodes="n1=8xH100",
        running="low@n1:4/batch/who=paid.acme.web.bob x@n1:4@4/prod",
        queued="urgent:4/prod",
        shares="paid.acme.ml=ceil4",
        want="urgent waits ceiling at=paid/acme/ml of=* used=4 most=4",
    ),
    "an equal class at a ceiling waits": Case(
        nodes="n1=8xH100",
        running="same@n1:4/prod",
        queued="urgent:4/prod",
        shares="paid.acme=ceil4",
        want="urgent waits ceiling at=paid/acme of=* used=4 most=4",
    ),
    "whoever belongs to no tier and no org has no right": Case(
        nodes="n1=4xH100",
        running="x@n1:4/batch/who=paid.acme.ml.ann",
        queued="solo:4/prod/who=solo",
        want="solo waits needs=4 free=0 start=1430m",
    ),
    "nor a share to ask for beyond its floor": Case(
        nodes="n1=4xH100",
        running="x@n1:4/batch/who=paid.acme.ml.ann",
        queued="solo:4/prod/who=solo",
        shares="solo=floor1",
        want="solo waits needs=4 free=0 start=1430m",
    ),
    "a victim of another org that has a floor keeps it": Case(
        nodes="n1=8xH100",
        running="b1@n1:4/who=paid.beta.x.bob b2@n1:4@4/who=paid.beta.x.bob",
        queued="a:2",
        shares="paid.beta=floor5",
        want="a waits needs=2 free=0 start=1430m",
    ),
    "a victim of one's own org whose account has a floor keeps it": Case(
        nodes="n1=4xH100",
        running="low@n1:4/batch/who=paid.acme.web.bob",
        queued="urgent:4/prod",
        shares="paid.acme.web=floor2",
        want="urgent waits needs=4 free=0 start=1430m",
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_preemption_rights(case: Case) -> None:
    """Class inside an org, share inside a tier, and those who are never asked."""
    check(case)


@pytest.mark.parametrize(
    ("nodes", "shape", "own", "others"),
    [(5, "11x1", 2, 9), (5, "14x1", 8, 6), (5, "18x1", 10, 8), (1, "1x11", 2, 9)],
)
def test_own_jobs_leave_too_where_the_other_org_gives_too_little(
    nodes: int, shape: str, own: int, others: int
) -> None:
    """The other org's jobs are cheaper, but it may not give them all: its share would be the
    smaller one. Jobs of the own org leave as well, among far more sets than can be checked."""
    size = 40 // nodes
    places = [f"n{gpu // size}:1@{gpu % size}" for gpu in range(40)]
    running = [f"own{n}@{place}/class=40" for n, place in enumerate(places[:10])]
    running += [f"b{n}@{place}/batch/who=paid.beta.x.bob" for n, place in enumerate(places[10:])]
    case = Case(
        nodes=" ".join(f"n{node}={size}xH100" for node in range(nodes)),
        running=" ".join(running),
        queued=f"urgent:{shape}/prod",
        usage="paid.beta.x.bob=900",
        want="",
    )

    plan = make_plan(Cluster.from_snapshot(case.snapshot()), T0)

    rights = Counter(one.right for one in plan.decisions if isinstance(one, Preempt))
    assert {Right.CLASS: own, Right.SHARE: others} == rights
