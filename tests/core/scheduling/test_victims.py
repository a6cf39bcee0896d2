"""Whom to ask: lowest class, least work lost in credits, fewest, ids; and when to wait (S5)."""

import pytest

from tests.support.scheduling_cases import Case
from tests.support.scheduling_checks import check

CASES = {
    # ------------------------------------------------------------------ the objective
    "the lowest class, though more work is lost": Case(
        nodes="n1=8xH100",
        running="batch@n1:4/batch/ran=5h mid@n1:4@4/class=50/ran=1m",
        queued="urgent:4/prod",
        want="batch preempted for=urgent by=class; urgent waits on=n1:4",
    ),
    "the least work in credits, not in hours": Case(
        nodes="n1=8xH100",
        running="cheap@n1:4/batch/ran=10m dear@n1:4@4/batch/ran=5m/price=4",
        queued="urgent:4/prod",
        want="cheap preempted for=urgent by=class; urgent waits on=n1:4",
    ),
    "work that a checkpoint keeps is not lost": Case(
        nodes="n1=8xH100",
        running="saved@n1:4/batch/ran=5h/saved=1m young@n1:4@4/batch/ran=10m",
        queued="urgent:4/prod",
        want="saved preempted for=urgent by=class; urgent waits on=n1:4",
    ),
    "a job that makes checkpoints loses the making of one": Case(
        nodes="n1=8xH100",
        running="able@n1:4/batch/ran=5h/saved=50m/ckpt=1h,30s young@n1:4@4/batch/ran=1m",
        queued="urgent:4/prod",
        want="able preempted for=urgent by=class; urgent waits on=n1:4",
    ),
    "less when it has just made one": Case(
        nodes="n1=8xH100",
        running="able@n1:4/batch/ran=5h/saved=10s/ckpt=1h,30s young@n1:4@4/batch/ran=20s",
        queued="urgent:4/prod",
        want="able preempted for=urgent by=class; urgent waits on=n1:4",
    ),
    "as little lost: the fewest": Case(
        nodes="n1=8xH100",
        running="a@n1:2/batch/ran=15m b@n1:2@2/batch/ran=15m z@n1:4@4/batch/ran=15m",
        queued="urgent:4/prod",
        want="z preempted for=urgent by=class; urgent waits on=n1:4",
    ),
    "less lost by more": Case(
        nodes="n1=8xH100",
        running="a@n1:2/batch/ran=4m b@n1:2@2/batch/ran=4m z@n1:4@4/batch/ran=10m",
        queued="urgent:4/prod",
        want="a preempted for=urgent by=class; b preempted for=urgent by=class;"
        " urgent waits on=n1:4",
    ),
    "equal ones by id": Case(
        nodes="n1=8xH100",
        running="b@n1:4/batch a@n1:4@4/batch",
        queued="urgent:4/prod",
        want="a preempted for=urgent by=class; urgent waits on=n1:4",
    ),
    "equal sets by ids": Case(
        nodes="n1=6xH100",
        running="c@n1:2/batch b@n1:2@2/batch a@n1:2@4/batch",
        queued="urgent:4/prod",
        want="a preempted for=urgent by=class; b preempted for=urgent by=class;"
        " urgent waits on=n1:4",
    ),
    "what is free already counts: one victim less": Case(
        nodes="n1=8xH100",
        running="a@n1:2/batch b@n1:2@2/batch c@n1:2@4/batch/fixed",
        queued="urgent:1x4/prod",
        want="a preempted for=urgent by=class; urgent waits on=n1:4",
    ),
    "a small one does not leave for nothing when a large one must": Case(
        nodes="n1=8xH100",
        running="small@n1:1/batch/ran=1m large@n1:4@1/batch fixed@n1:3@5/fixed",
        queued="urgent:1x4/prod",
        want="large preempted for=urgent by=class; urgent waits on=n1:4",
    ),
    "one node rather than two halves": Case(
        nodes="n1=8xH100 n2=8xH100",
        running="a@n1:4/batch/ran=1m b@n2:8/batch/ran=1m c@n1:4@4/batch/fixed",
        queued="urgent:1x8/prod",
        want="b preempted for=urgent by=class; urgent waits on=n2:8",
    ),
    # ------------------------------------------------------------------ gangs
    "a gang makes room as a whole": Case(
        nodes="n1=8xH100 n2=8xH100",
        running="g@n1:4+n2:4/batch s@n1:4@4/batch t@n2:4@4/batch",
        queued="urgent:1x8/prod",
        want="g preempted for=urgent by=class; s preempted for=urgent by=class;"
        " urgent waits on=n1:8",
    ),
    "one gang rather than a part of two": Case(
        nodes="n1=4xH100 n2=4xH100 n3=4xH100",
        running="g@n1:2+n2:2/batch h@n1:2@2+n2:2@2/batch i@n3:4/batch",
        queued="urgent:1x4/prod",
        want="i preempted for=urgent by=class; urgent waits on=n3:4",
    ),
    "all of a gang's loss counts": Case(
        nodes="n1=4xH100 n2=4xH100 n3=4xH100",
        running="g@n1:4+n2:4/batch/ran=6m i@n3:4/batch/ran=10m",
        queued="urgent:4/prod",
        want="i preempted for=urgent by=class; urgent waits on=n3:4",
    ),
    "a free node and a victim's node together": Case(
        nodes="n1=8xH100 n2=8xH100",
        running="low@n2:8/batch",
        queued="urgent:2x8/prod",
        want="low preempted for=urgent by=class; urgent waits on=n1:8+n2:8",
    ),
    "the cheapest nodes for a gang": Case(
        nodes="n1=8xH100 n2=8xH100 n3=8xH100",
        running="a@n1:8/batch/ran=9m b@n2:8/batch/ran=3m c@n3:8/batch/ran=5m",
        queued="urgent:2x8/prod",
        want="b preempted for=urgent by=class; c preempted for=urgent by=class;"
        " urgent waits on=n2:8+n3:8",
    ),
    "victims within one island": Case(
        nodes="n1=4xH100/island=i1 n2=4xH100/island=i2 n3=4xH100/island=i2",
        running="a@n1:4/batch/ran=1m b@n2:4/batch/ran=9m c@n3:4/batch/ran=9m",
        queued="urgent:8/prod/within=island",
        want="b preempted for=urgent by=class; c preempted for=urgent by=class;"
        " urgent waits on=n2:4+n3:4",
    ),
    "a gang asks as few GPUs as it needs": Case(
        nodes="n1=4xH100 n2=4xH100",
        running="a@n1:2/batch b@n1:2@2/batch c@n2:2/batch d@n2:2@2/batch/fixed",
        queued="urgent:2x2/prod",
        want="a preempted for=urgent by=class; b preempted for=urgent by=class;"
        " urgent waits on=n1:4",
    ),
    "a gang of which one victim is missing asks nobody": Case(
        nodes="n1=8xH100 n2=8xH100",
        running="a@n1:8/batch b@n2:7/batch c@n2:1@7/batch/fixed",
        queued="urgent:2x8/prod",
        want="urgent waits needs=16 free=0 start=1430m",
    ),
    "many small ones make room for a gang": Case(
        nodes="n1=8xH100 n2=8xH100",
        running=" ".join(
            f"v{node}{gpu}@n{node}:1@{gpu}/batch" for node in (1, 2) for gpu in range(8)
        ),
        queued="urgent:2x4/prod",
        want="; ".join(f"v1{gpu} preempted for=urgent by=class" for gpu in range(8))
        + "; urgent waits on=n1:8",
    ),
    "of two nodes the one where less is lost": Case(
        nodes="n1=4xH100 n2=4xH100",
        running="a@n1:4/batch/ran=9m b@n2:4/batch/ran=5m",
        queued="urgent:1x4/prod",
        want="b preempted for=urgent by=class; urgent waits on=n2:4",
    ),
    "nobody stays away whose gang has left already": Case(
        nodes="n1=4xH100 n2=4xH100 n3=4xH100",
        running="g@n1:4+n2:4/batch/ran=1m h@n3:4/batch/ran=9m",
        queued="urgent:3x4/prod",
        want="g preempted for=urgent by=class; h preempted for=urgent by=class;"
        " urgent waits on=n1:4+n2:4+n3:4",
    ),
    "a node that has become dear is looked at later": Case(
        nodes="n1=2xH100 n2=4xH100 n3=2xH100",
        running="g@n1:2+n2:2/batch/ran=1m x@n2:2@2/batch/ran=30m y@n3:2/batch/ran=10m",
        queued="urgent:4x2/prod",
        want="g preempted for=urgent by=class; x preempted for=urgent by=class;"
        " y preempted for=urgent by=class; urgent waits on=n1:2+n2:4+n3:2",
    ),
    "a small one does not leave for a gang when a large one must": Case(
        nodes="n1=8xH100 n2=4xH100",
        running="small@n1:1/batch/ran=1m large@n1:4@1/batch fixed@n1:3@5/fixed",
        queued="urgent:2x4/prod",
        want="large preempted for=urgent by=class; urgent waits on=n1:4+n2:4",
    ),
    "who was cheap may stay when a gang leaves enough": Case(
        nodes="n1=2xH100 n2=2xH100 n3=2xH100",
        running="a@n1:2/batch/ran=1m g@n2:2+n3:2/batch/ran=1m",
        queued="urgent:2x2/prod",
        want="g preempted for=urgent by=class; urgent waits on=n2:2+n3:2",
    ),
    # ------------------------------------------------------------------ where
    "two who ask on two nodes get different victims": Case(
        nodes="n1=4xH100 n2=4xH100",
        running="a@n1:4/batch b@n2:4/batch",
        queued="u1:1x4/prod u2:1x4/prod",
        want="a preempted for=u1 by=class; u1 waits on=n1:4;"
        " b preempted for=u2 by=class; u2 waits on=n2:4",
    ),
    "victims on a draining node are of no use": Case(
        nodes="n1=8xH100/state=draining n2=8xH100",
        running="a@n1:8/batch/ran=1m b@n2:8/batch",
        queued="urgent:8/prod",
        want="b preempted for=urgent by=class; urgent waits on=n2:8",
    ),
    "two who ask get different victims": Case(
        nodes="n1=8xH100",
        running="a@n1:4/batch b@n1:4@4/batch",
        queued="u1:4/prod u2:4/prod",
        want="a preempted for=u1 by=class; u1 waits on=n1:4;"
        " b preempted for=u2 by=class; u2 waits on=n1:4",
    ),
    # ------------------------------------------------------------------ waiting is cheaper
    "a job about to end is waited for": Case(
        nodes="n1=8xH100",
        running="old@n1:4/batch/ran=50m/ends=30s new@n1:4@4/batch/ran=1m",
        queued="urgent:4/prod",
        want="urgent waits needs=4 free=0 start=30s",
    ),
    "waiting costs less than the work that would be lost": Case(
        nodes="n1=4xH100",
        running="low@n1:4/batch/ran=20m/ends=19m",
        queued="urgent:4/prod",
        want="urgent waits needs=4 free=0 start=19m",
    ),
    "waiting costs more": Case(
        nodes="n1=4xH100",
        running="low@n1:4/batch/ran=20m/ends=21m",
        queued="urgent:4/prod",
        want="low preempted for=urgent by=class; urgent waits on=n1:4",
    ),
    "waiting costs more for one that is dear": Case(
        nodes="n1=4xH100",
        running="low@n1:4/batch/ran=20m/ends=19m",
        queued="urgent:4/prod/price=2",
        want="low preempted for=urgent by=class; urgent waits on=n1:4",
    ),
    "waiting costs less, and is over at the tier's start target": Case(
        nodes="n1=4xH100",
        running="low@n1:4/batch/ran=50m/ends=30m",
        queued="urgent:4/prod",
        want="urgent waits needs=4 free=0 start=30m",
    ),
    "waiting costs less, but goes on beyond the tier's start target": Case(
        nodes="n1=4xH100",
        running="low@n1:4/batch/ran=50m/ends=31m",
        queued="urgent:4/prod",
        want="low preempted for=urgent by=class; urgent waits on=n1:4",
    ),
    "nothing would be lost, but a node comes in no time": Case(
        nodes="n1=4xH100 n2=4xH100/ready=30s",
        running="low@n1:4/batch/saved=0s",
        queued="urgent:4/prod",
        want="urgent waits needs=4 free=0 start=30s",
    ),
    "a node on order is waited for while that costs less": Case(
        nodes="n1=4xH100 n2=4xH100/ready=5m",
        running="low@n1:4/batch/ran=10m",
        queued="urgent:4/prod",
        want="urgent waits needs=4 free=0 start=5m",
    ),
    "a node on order that comes late is not waited for": Case(
        nodes="n1=4xH100 n2=4xH100/ready=11m",
        running="low@n1:4/batch/ran=10m",
        queued="urgent:4/prod",
        want="low preempted for=urgent by=class; urgent waits on=n1:4",
    ),
    "the least loss of all, though somebody dear is on its node": Case(
        nodes="n1=8xH100 n2=8xH100",
        running="a@n1:4/batch/ran=50m b@n1:4@4/batch/ran=15m"
        " c@n2:4/batch/ran=45m d@n2:4@4/batch/ran=5m",
        queued="urgent:4/prod",
        want="d preempted for=urgent by=class; urgent waits on=n2:4",
    ),
    "of many who can be asked nobody leaves for nothing: one makes all the room": Case(
        nodes=" ".join(f"n{number:02}=4xH100" for number in range(1, 15)),
        running="x@n01:4/batch/ran=1m wide@n02:4+n03:4/batch/ran=5m "
        + " ".join(f"d{number}@n{number:02}:4/batch/ran=50m" for number in range(4, 15)),
        queued="gang:2x4/prod",
        want="wide preempted for=gang by=class; gang waits on=n02:4+n03:4",
    ),
    "a floor of another type protects nothing here, also of a gang": Case(
        nodes="n1=1xH100 n2=1xH100 n3=1xH100",
        running="gang@n1:1+n2:1/who=paid.acme.web.bob fixed@n3:1/fixed/who=paid.bell.ml.ann",
        queued="owed:1/who=paid.bell.ml.ann pair:2x1/who=paid.bell.ml.ann/waited=1m",
        shares="paid.acme.web.bob=floor0A100 paid.bell.ml=floor10",
        want="gang preempted for=pair by=floor; pair waits on=n1:1+n2:1;"
        " owed waits needs=1 free=0 start=1430m",
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_victims(case: Case) -> None:
    """The best set of victims, and none at all if waiting costs less."""
    check(case)
