"""Future places from the bounds of what runs, and who may slip in before (S7)."""

import pytest

from bursar.core.scheduling.model.policy import PoolPolicy
from bursar.core.value import replace
from tests.support.scheduling_cases import PLAIN, Case
from tests.support.scheduling_checks import check

CASES = {
    # ------------------------------------------------------------------ who may slip in
    "a job that ends just in time": Case(
        nodes="n1=8xH100 n2=8xH100",
        running="long@n1:8/ends=60m",
        queued="gang:16/waited=1m short:4/limit=60m",
        want="short -> n2:4 backfill; gang waits needs=16 free=4 start=1h",
    ),
    "a job that ends a second too late": Case(
        nodes="n1=8xH100 n2=8xH100",
        running="long@n1:8/ends=60m",
        queued="gang:16/waited=1m late:4/limit=3601s",
        want="gang waits needs=16 free=8 start=1h; late waits needs=4 free=8",
    ),
    "an estimate is no bound": Case(
        nodes="n1=8xH100 n2=8xH100",
        running="long@n1:8/ends=60m",
        queued="gang:16/waited=1m late:4/est=10m/who=paid.acme.ml.bob",
        usage="paid.acme.ml.bob=10",
        want="gang waits needs=16 free=8 start=1h; late waits needs=4 free=8 start=25h",
    ),
    "a long job beside the reserved nodes": Case(
        nodes="n1=8xH100 n2=8xH100 n3=4xH100",
        running="long@n1:8/ends=60m",
        queued="gang:2x8/waited=1m other:1x4",
        want="other -> n3:4 backfill; gang waits needs=16 free=8 start=1h",
    ),
    "the ceiling that a job with a place will need is kept for it": Case(
        nodes="n1=8xH100 n2=4xH100",
        running="long@n1:8/ends=60m/fixed/who=paid.beta.x.bob",
        queued="gang:1x8/waited=1m other:1x4",
        shares="paid.acme=ceil8",
        want="gang waits needs=8 free=4 start=1h; other waits crowded needs=4 free=4",
    ),
    "even from a short job, with which it would lose its place": Case(
        nodes="n1=8xH100 n2=4xH100",
        running="long@n1:8/ends=60m/fixed/who=paid.beta.x.bob",
        queued="gang:1x8/waited=1m short:1x4/limit=1h",
        shares="paid.acme=ceil8",
        want="gang waits needs=8 free=4 start=1h; short waits crowded needs=4 free=4",
    ),
    "the same for a ceiling of jobs": Case(
        nodes="n1=8xH100 n2=4xH100",
        running="long@n1:8/ends=60m/fixed/who=paid.beta.x.bob",
        queued="gang:1x8/waited=1m other:1x4",
        shares="paid.acme.ml=jobs1",
        want="gang waits needs=8 free=4 start=1h; other waits crowded needs=4 free=4",
    ),
    "a place lies on what becomes free rather than on what is free now": Case(
        nodes="n1=8xH100 n2=8xH100",
        running="long@n1:8/ends=60m",
        queued="gang:12/waited=1m other:4",
        want="other -> n2:4 backfill; gang waits needs=12 free=4 start=1h",
    ),
    "a long job on what a reserved node has to spare": Case(
        nodes="n1=4xH100 n2=8xH100",
        running="long@n1:4/ends=60m x@n2:1",
        queued="gang:2x4/waited=1m other:1x3",
        want="other -> n2:3 backfill; gang waits needs=8 free=4 start=1h",
    ),
    "but no more than it has to spare": Case(
        nodes="n1=4xH100 n2=8xH100",
        running="long@n1:4/ends=60m x@n2:1",
        queued="gang:2x4/waited=1m other:1x4/within=rack",
        want="gang waits needs=8 free=7 start=1h; other waits needs=4 free=7",
    ),
    "several short ones, as long as there is room": Case(
        nodes="n1=8xH100 n2=8xH100",
        running="long@n1:8/ends=60m",
        queued="gang:16/waited=9m a:4/limit=30m/waited=2m b:4/limit=20m/waited=1m c:4/limit=10m",
        want="a -> n2:4 backfill; b -> n2:4 backfill; gang waits needs=16 free=0 start=1h;"
        " c waits needs=4 free=0",
    ),
    "of jobs alike one that is over in time, though another goes before it": Case(
        nodes="n1=8xH100 n2=8xH100",
        running="long@n1:8/ends=60m",
        queued="gang:16/waited=5m slow:4/waited=2m short:4/limit=30m",
        want="short -> n2:4 backfill; gang waits needs=16 free=4 start=1h;"
        " slow waits needs=4 free=4",
    ),
    "another customer slips in by the same rule": Case(
        nodes="n1=8xH100 n2=8xH100",
        running="long@n1:8/ends=60m/who=paid.zeta.x.zoe",
        queued="gang:16 short:4/limit=30m/who=paid.beta.x.bob late:4/who=paid.cora.x.cat",
        want="short -> n2:4 backfill; gang waits needs=16 free=4 start=1h;"
        " late waits needs=4 free=4 start=25h",
    ),
    "GPUs of another type are in nobody's way": Case(
        nodes="n1=8xH100 n2=8xA100",
        running="long@n1:8/ends=60m",
        queued="gang:8/waited=1m other:8/on=A100",
        want="other -> n2:8 backfill; gang waits needs=8 free=0 start=1h",
    ),
    # ------------------------------------------------------------------ when and where
    "the earliest end that leaves enough": Case(
        nodes="n1=8xH100 n2=8xH100",
        running="a@n1:8/ends=60m b@n2:4/ends=30m c@n2:4@4/ends=90m",
        queued="j:1x8",
        want="j waits needs=8 free=0 start=1h",
    ),
    "several ends together": Case(
        nodes="n1=8xH100 n2=8xH100",
        running="a@n1:8/ends=60m b@n2:4/ends=30m c@n2:4@4/ends=90m",
        queued="gang:16",
        want="gang waits needs=16 free=0 start=90m",
    ),
    "a node on order counts for a job with needs of its own": Case(
        nodes="n1=1xH100/slots=2/cpu=8 n2=1xH100/cpu=8/ready=2h",
        running="a@n1:1of2/ends=30m/cpu=1 b@n1:1of2/ends=60m/cpu=1",
        queued="whole:1/cpu=1 part:0.5/on=A100",
        want="part waits never_fits needs=0.5 free=0; whole waits needs=1 free=0 start=1h",
    ),
    "the type that is free first, whichever is more welcome": Case(
        nodes="n1=8xH100 n2=8xA100",
        running="a@n1:8/ends=60m b@n2:8/ends=30m",
        queued="j:8/on=H100,A100",
        want="j waits needs=8 free=0 start=30m",
    ),
    "who was asked to stop is gone in time": Case(
        nodes="n1=8xH100",
        running="a@n1:8/ends=60m/stops=20s",
        queued="j:8",
        want="j waits needs=8 free=0 start=20s",
    ),
    "a job behind one with a place comes after it": Case(
        nodes="n1=8xH100",
        running="a@n1:8/ends=60m/who=paid.zeta.x.zoe",
        queued="j:8/limit=2h k:8/who=paid.beta.x.bob",
        want="j waits needs=8 free=0 start=1h; k waits needs=8 free=0 start=3h",
    ),
    "a place that would run into another's comes after it": Case(
        nodes="n1=8xH100/labels=a,b n2=8xH100/labels=b n3=8xH100/labels=a",
        running="x@n2:8/ends=90m/fixed y@n3:8/ends=2h/fixed",
        queued="g:2x8/label=a/limit=3h/who=paid.b.x.bob h:2x8/label=b/limit=1h/who=paid.c.x.cat",
        want="g waits needs=16 free=8 start=2h; h waits needs=16 free=8 start=5h",
    ),
    "a place that is over in time comes before it": Case(
        nodes="n1=8xH100/labels=a,b n2=8xH100/labels=b n3=8xH100/labels=a",
        running="x@n2:8/ends=90m/fixed y@n3:8/ends=2h/fixed",
        queued="g:2x8/label=a/limit=3h/who=paid.b.x.bob h:2x8/label=b/limit=30m/who=paid.c.x.cat",
        want="g waits needs=16 free=8 start=2h; h waits needs=16 free=8 start=90m",
    ),
    "one future place for each user": Case(
        nodes="n1=8xH100 n2=8xH100",
        running="a@n1:8/ends=60m/fixed b@n2:8/ends=2h/fixed",
        queued="g1:8 g2:7 h:8/who=paid.beta.x.bob",
        want="h waits needs=8 free=0 start=1h; g1 waits needs=8 free=0 start=2h;"
        " g2 waits needs=7 free=0",
    ),
    "no more future places than the policy gives": Case(
        nodes="n1=8xH100 n2=8xH100",
        running="a@n1:8/ends=60m/fixed b@n2:8/ends=2h/fixed",
        queued="g:8 h:8/who=paid.beta.x.bob",
        policy=replace(PLAIN, reservations=1),
        want="h waits needs=8 free=0 start=1h; g waits needs=8 free=0",
    ),
    "without future places nobody is in the way": Case(
        nodes="n1=8xH100 n2=8xH100",
        running="long@n1:8/ends=60m",
        queued="gang:16/waited=1m late:4",
        policy=replace(PLAIN, reservations=0),
        want="late -> n2:4 backfill; gang waits needs=16 free=4",
    ),
    "a job that never fits keeps nothing from others": Case(
        nodes="n1=8xH100",
        queued="gang:16/waited=1m late:8",
        want="late -> n1:8 backfill; gang waits never_fits needs=16 free=0",
    ),
    "a place within one island, although others are free before": Case(
        nodes="n1=4xH100/island=i1 n2=4xH100/island=i1 n3=4xH100/island=i2",
        running="x@n1:4/ends=2h y@n2:4/ends=60m",
        queued="gang:8/within=island",
        want="gang waits needs=8 free=4 start=2h",
    ),
    "a part of a GPU is not taken from one that has a place there": Case(
        nodes="n1=1xH100/slots=7",
        running="a@n1:3of7/fixed/who=paid.beta.x.b b@n1:2of7/ends=60m/fixed/who=paid.beta.x.b",
        queued="r:0.571/waited=1m s:0.285/who=paid.carl.ml.cat",
        usage="paid.carl.ml.cat=5",
        want="r waits needs=0.571 free=0 start=1h; s waits needs=0.285 free=0 start=25h",
    ),
    "strangers of a tier may use its ceiling until somebody needs it": Case(
        nodes="n1=8xH100 n2=7xH100 n3=4xH100",
        running="r@n1:8/ends=1200m/fixed/who=paid.beta.x.b",
        queued="gang:1x8/who=free.a.m.u one:2/limit=1m/who=free.b.m.u",
        usage="free.b.m.u=1",
        policy=PoolPolicy(),
        want="one -> n3:2 backfill; gang waits ceiling at=free of=* used=2 most=9",
    ),
    "one that would crowd another keeps nobody else away": Case(
        nodes="n1=4xH100 n2=1xH100",
        running="r@n1:4/ends=60m/fixed/who=paid.beta.x.b",
        shares="paid.acme=ceil4",
        queued="gang:1x4 small:1/who=paid.acme.ml.bob other:1/who=paid.carl.m.c",
        usage="paid.acme.ml.bob=1 paid.carl.m.c=5",
        want="other -> n2:1 backfill; gang waits needs=4 free=0 start=1h;"
        " small waits crowded needs=1 free=0",
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_backfill(case: Case) -> None:
    """Nobody who slips in delays one that has a place."""
    check(case)
