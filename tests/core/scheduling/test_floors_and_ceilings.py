"""Floors that are lent and taken back, ceilings that nobody passes (S3, S5, B4)."""

import pytest

from bursar.core.scheduling.model.policy import PoolPolicy
from tests.support.scheduling_cases import PLAIN, RECLAIMING, Case
from tests.support.scheduling_checks import check

FLOORS = {
    "a job within its org's floor comes before one that would pass its own": Case(
        nodes="n1=8xH100",
        running="a1@n1:2/ran=5h b1@n1:3@2/who=paid.beta.x.bob/ran=2h",
        queued="a2:2 b2:3/who=paid.beta.x.bob",
        shares="paid.acme=floor5 paid.beta=floor5",
        want="a2 -> n1:2; b2 waits needs=3 free=1 start=19h",
    ),
    # ------------------------------------------------------------------ order
    "an account below its floor goes first, whatever it used": Case(
        nodes="n1=4xH100",
        queued="m:4 w:4/who=paid.acme.web.bob",
        usage="paid.acme.ml.ann=100",
        shares="paid.acme.ml=floor4",
        want="m -> n1:4; w waits needs=4 free=0 start=24h",
    ),
    "an org with an account below its floor goes before others": Case(
        nodes="n1=4xH100",
        queued="m:4 b:4/who=paid.beta.x.bob",
        usage="paid.acme.ml.ann=100",
        shares="paid.acme.ml=floor4",
        want="m -> n1:4; b waits needs=4 free=0 start=24h",
    ),
    "a tier below its floor goes before an account below its own": Case(
        nodes="n1=4xH100",
        queued="m:4 f:4/who=free.solo.x.fay",
        usage="free.solo.x.fay=100",
        shares="paid.acme.ml=floor4 free=floor4",
        want="f -> n1:4; m waits needs=4 free=0 start=24h",
    ),
    "an account that has its floor goes by its share": Case(
        nodes="n1=8xH100",
        running="x@n1:4",
        queued="m:4 w:4/who=paid.acme.web.bob",
        shares="paid.acme.ml=floor4",
        want="w -> n1:4; m waits needs=4 free=0 start=1430m",
    ),
    "a floor of a type that is not asked for does not count": Case(
        nodes="n1=4xH100",
        queued="m:4 w:4/who=paid.acme.web.bob",
        usage="paid.acme.ml.ann=100",
        shares="paid.acme.ml=floor4A100",
        want="w -> n1:4; m waits needs=4 free=0 start=24h",
    ),
    "a user can have a floor": Case(
        nodes="n1=4xH100",
        queued="a:4 b:4/who=paid.acme.ml.bob",
        usage="paid.acme.ml.bob=100",
        shares="paid.acme.ml.bob=floor4",
        want="b -> n1:4; a waits needs=4 free=0 start=24h",
    ),
    # ------------------------------------------------------------------ lent and taken back
    "a floor is lent while nobody wants it": Case(
        nodes="n1=8xH100",
        queued="w:8/who=paid.acme.web.bob",
        shares="paid.acme.ml=floor8",
        want="w -> n1:8",
    ),
    "and taken back when somebody does": Case(
        nodes="n1=8xH100",
        running="w@n1:8/who=paid.acme.web.bob",
        queued="m:4",
        shares="paid.acme.ml=floor4",
        want="w preempted for=m by=floor; m waits on=n1:4",
    ),
    "from another org as well": Case(
        nodes="n1=8xH100",
        running="b@n1:8/who=paid.beta.x.bob",
        queued="m:8",
        shares="paid.acme=floor8",
        want="b preempted for=m by=floor; m waits on=n1:8",
    ),
    "also from a higher class": Case(
        nodes="n1=8xH100",
        running="w@n1:8/prod/who=paid.acme.web.bob",
        queued="m:4/batch",
        shares="paid.acme.ml=floor4",
        want="w preempted for=m by=floor; m waits on=n1:4",
    ),
    "not for more than the floor": Case(
        nodes="n1=8xH100",
        running="x@n1:2 w@n1:6@2/who=paid.acme.web.bob",
        queued="m:3",
        shares="paid.acme.ml=floor4",
        want="m waits needs=3 free=0 start=1430m",
    ),
    "not from one's own account": Case(
        nodes="n1=8xH100",
        running="x@n1:4/who=paid.acme.ml.bob w@n1:4@4/fixed/who=paid.acme.web.cat",
        queued="m:4",
        shares="paid.acme.ml=floor8",
        want="m waits needs=4 free=0 start=1430m",
    ),
    "not from a job that must not be preempted": Case(
        nodes="n1=8xH100",
        running="w@n1:8/fixed/who=paid.acme.web.bob",
        queued="m:4",
        shares="paid.acme.ml=floor4",
        want="m waits needs=4 free=0 start=1430m",
    ),
    "nobody is above the floor: nobody is preempted": Case(
        nodes="n1=6xH100",
        running="x@n1:2 w@n1:4@2/who=paid.acme.web.bob",
        queued="m:2",
        shares="paid.acme.ml=floor4 paid.acme.web=floor4",
        want="m waits needs=2 free=0 start=1430m",
    ),
    "floors that exceed the pool: nobody is preempted": Case(
        nodes="n1=8xH100",
        running="w@n1:8/who=paid.acme.web.bob",
        queued="m:8",
        shares="paid.acme.ml=floor8 paid.acme.web=floor8",
        want="m waits needs=8 free=0 start=1430m",
    ),
    "down to the other's floor and no further": Case(
        nodes="n1=4xH100",
        running="w1@n1:2/who=paid.acme.web.bob w2@n1:2@2/who=paid.acme.web.bob",
        queued="m:2",
        shares="paid.acme.ml=floor4 paid.acme.web=floor2",
        want="w1 preempted for=m by=floor; m waits on=n1:2",
    ),
    "one that would need to go further asks nobody": Case(
        nodes="n1=4xH100",
        running="w1@n1:2/who=paid.acme.web.bob w2@n1:2@2/who=paid.acme.web.bob",
        queued="m:4",
        shares="paid.acme.ml=floor4 paid.acme.web=floor2",
        want="m waits needs=4 free=0 start=1430m",
    ),
    "from the account that borrows most, though others would lose less": Case(
        nodes="n1=8xH100",
        running="w@n1:3/who=paid.acme.web.bob/ran=1m o@n1:5@3/who=paid.acme.ops.cat",
        queued="m:1",
        shares="paid.acme.ml=floor4",
        want="o preempted for=m by=floor; m waits on=n1:1",
    ),
    "who borrows most is measured above the own floor": Case(
        nodes="n1=8xH100",
        running="w@n1:3/who=paid.acme.web.bob o1@n1:2@3/who=paid.acme.ops.cat/ran=1m"
        " o2@n1:3@5/who=paid.acme.ops.cat",
        queued="m:1",
        shares="paid.acme.ml=floor4 paid.acme.ops=floor3",
        want="w preempted for=m by=floor; m waits on=n1:1",
    ),
    "if the largest borrower cannot make room, the next does": Case(
        nodes="n1=8xH100",
        running="w@n1:3/who=paid.acme.web.bob o@n1:5@3/who=paid.acme.ops.cat/fixed",
        queued="m:1",
        shares="paid.acme.ml=floor4",
        want="w preempted for=m by=floor; m waits on=n1:1",
    ),
    "several borrowers together if one is not enough": Case(
        nodes="n1=8xH100",
        running="w@n1:3/who=paid.acme.web.bob o@n1:5@3/who=paid.acme.ops.cat",
        queued="m:8",
        shares="paid.acme.ml=floor8",
        want="o preempted for=m by=floor; w preempted for=m by=floor; m waits on=n1:8",
    ),
    "a floor of one type is taken back on that type": Case(
        nodes="n1=4xH100 n2=4xA100",
        running="h@n1:4/who=paid.acme.web.bob a@n2:4/who=paid.acme.web.bob/ran=1m",
        queued="m:4/on=A100,H100",
        shares="paid.acme.ml=floor4H100",
        want="h preempted for=m by=floor; m waits on=n1:4",
    ),
    "a floor of one type protects on that type": Case(
        nodes="n1=4xH100 n2=4xA100",
        running="h@n1:4/who=paid.acme.web.bob a@n2:4/who=paid.acme.web.bob",
        queued="m:4/on=H100,A100",
        shares="paid.acme.ml=floor4 paid.acme.web=floor4H100",
        want="a preempted for=m by=floor; m waits on=n2:4",
    ),
    # ------------------------------------------------------------------ jobs that straddle a floor
    "a floor protects GPUs up to the floor, not the job that straddles it": Case(
        nodes="n1=8xH100",
        running="big@n1:4/who=paid.q1.x.ann has@n1:1@4/who=paid.q2.x.bob"
        " other@n1:3@5/fixed/who=paid.q3.x.cat",
        queued="m:4/who=paid.q2.x.bob",
        shares="paid.q1=floor3 paid.q2=floor5",
        want="big preempted for=m by=floor; m waits on=n1:4",
    ),
    "a floor of one GPU does not protect a hundred": Case(
        nodes="p=100xH100",
        running="big@p:100/who=paid.x.m.u",
        queued="y:1x10/who=paid.y.m.u",
        shares="paid.x=floor1 paid.y=floor50",
        want="big preempted for=y by=floor; y waits on=p:10",
    ),
    "of a free gang above its floor, as of five free jobs": Case(
        nodes=" ".join(f"n{n}=10xH100" for n in range(10)),
        running=" ".join(f"e{n}@n{n}:10/who=enterprise.e.x.eve" for n in range(5))
        + " gang@n5:10+n6:10+n7:10+n8:10+n9:10/who=free.f.x.fay",
        queued="e:1x10/who=enterprise.e.x.eve",
        policy=PoolPolicy(),
        want="gang preempted for=e by=floor; e waits on=n5:10",
    ),
    "five free jobs: one of them makes room": Case(
        nodes=" ".join(f"n{n}=10xH100" for n in range(10)),
        running=" ".join(f"e{n}@n{n}:10/who=enterprise.e.x.eve" for n in range(5))
        + " "
        + " ".join(f"f{n}@n{n}:10/who=free.f.x.fay" for n in range(5, 10)),
        queued="e:1x10/who=enterprise.e.x.eve",
        policy=PoolPolicy(),
        want="f5 preempted for=e by=floor; e waits on=n5:10",
    ),
    "the last one of several may straddle the floor": Case(
        nodes="n1=8xH100",
        running="w1@n1:2/who=paid.acme.web.bob w2@n1:2@2/who=paid.acme.web.bob"
        " w3@n1:4@4/who=paid.acme.web.bob",
        queued="m:8",
        shares="paid.acme.ml=floor8 paid.acme.web=floor3",
        want="w1 preempted for=m by=floor; w2 preempted for=m by=floor;"
        " w3 preempted for=m by=floor; m waits on=n1:8",
    ),
    "and no further one": Case(
        nodes="n1=8xH100",
        running="w1@n1:2/who=paid.acme.web.bob w2@n1:2@2/who=paid.acme.web.bob"
        " w3@n1:4@4/who=paid.acme.web.bob",
        queued="m:8",
        shares="paid.acme.ml=floor8 paid.acme.web=floor4",
        want="m waits needs=8 free=0 start=1430m",
    ),
    "and no further one for a job on one node either": Case(
        nodes="n1=8xH100",
        running="w1@n1:2/who=paid.acme.web.bob w2@n1:2@2/who=paid.acme.web.bob"
        " w3@n1:4@4/who=paid.acme.web.bob",
        queued="m:1x8",
        shares="paid.acme.ml=floor8 paid.acme.web=floor4",
        want="m waits needs=8 free=0 start=1430m",
    ),
    "a job of an org that has exactly its floor straddles nothing": Case(
        nodes="n1=8xH100",
        running="big@n1:4/who=paid.q1.x.ann other@n1:4@4/fixed/who=paid.q3.x.cat",
        queued="m:4/who=paid.q2.x.bob",
        shares="paid.q1=floor4 paid.q2=floor5",
        want="m waits needs=4 free=0 start=1430m",
    ),
    "a floor of a type protects GPUs of it up to the floor": Case(
        nodes="n1=4xH100 n2=4xA100",
        running="h@n1:4/who=paid.acme.web.bob a@n2:4/fixed/who=paid.acme.web.bob",
        queued="m:4",
        shares="paid.acme.ml=floor4 paid.acme.web=floor3H100",
        want="h preempted for=m by=floor; m waits on=n1:4",
    ),
    "a tier above its floor does not open an org that has only its own": Case(
        nodes="n1=8xH100",
        running="f@n1:4/who=free.solo.x.fay g@n1:4@4/fixed/who=free.tiny.x.gus",
        queued="p:4",
        shares="paid=floor4 free=floor3 free.solo=floor4",
        policy=RECLAIMING,
        want="p waits needs=4 free=0 start=1430m",
    ),
    "a floor and a class together are not enough if another group has only its floor": Case(
        nodes="n1=4xH100",
        running="low@n1:2/batch w@n1:2@2/who=paid.acme.web.bob",
        queued="u:1x4/prod",
        shares="paid.acme.ml=floor6 paid.acme.web=floor2",
        want="u waits needs=4 free=0 start=1430m",
    ),
    "a class cuts into no floor, not even of a job that straddles it": Case(
        nodes="n1=4xH100",
        running="low@n1:4/batch/who=paid.acme.web.bob",
        queued="urgent:4/prod",
        shares="paid.acme.web=floor1",
        want="urgent waits needs=4 free=0 start=1430m",
    ),
    # ------------------------------------------------------------------ tiers
    "a tier below its floor takes back from another": Case(
        nodes="n1=8xH100",
        running="f@n1:8/who=free.solo.x.fay",
        queued="p:4",
        shares="paid=floor4",
        policy=RECLAIMING,
        want="f preempted for=p by=floor; p waits on=n1:4",
    ),
    "from the tier that borrows most": Case(
        nodes="n1=8xH100",
        running="f@n1:3/who=free.solo.x.fay/ran=1m e@n1:5@3/who=enterprise.big.x.eve",
        queued="p:2",
        shares="paid=floor4",
        policy=RECLAIMING,
        want="e preempted for=p by=floor; p waits on=n1:2",
    ),
    "a tier at its floor takes nothing back": Case(
        nodes="n1=8xH100",
        running="x@n1:4 f@n1:4@4/who=free.solo.x.fay",
        queued="p:2",
        shares="paid=floor4",
        policy=RECLAIMING,
        want="p waits needs=2 free=0 start=1430m",
    ),
    "a tier that is not above its floor gives nothing": Case(
        nodes="n1=8xH100",
        running="f@n1:8/who=free.solo.x.fay",
        queued="p:4",
        shares="paid=floor4 free=floor8",
        policy=RECLAIMING,
        want="p waits needs=4 free=0 start=1430m",
    ),
    "a tier that may not ask others does not": Case(
        nodes="n1=8xH100",
        running="f@n1:8/who=free.solo.x.fay",
        queued="p:4",
        shares="paid=floor4",
        policy=PLAIN,
        want="p waits needs=4 free=0 start=1430m",
    ),
    "an account inside a tier's floor is protected too": Case(
        nodes="n1=8xH100",
        running="f@n1:4/who=free.solo.x.fay g@n1:4@4/who=free.tiny.x.gus",
        queued="p:4",
        shares="paid=floor4 free.solo=floor4",
        policy=RECLAIMING,
        want="g preempted for=p by=floor; p waits on=n1:4",
    ),
}

CEILINGS = {
    "a user": Case(
        nodes="n1=8xH100",
        queued="a:4 b:4",
        shares="paid.acme.ml.ann=ceil4",
        want="a -> n1:4; b waits ceiling at=paid/acme/ml/ann of=* used=4 most=4",
    ),
    "an account": Case(
        nodes="n1=8xH100",
        running="x@n1:4/who=paid.acme.ml.bob",
        queued="a:1",
        shares="paid.acme.ml=ceil4",
        want="a waits ceiling at=paid/acme/ml of=* used=4 most=4",
    ),
    "an org": Case(
        nodes="n1=8xH100",
        running="x@n1:4/who=paid.acme.web.bob",
        queued="a:1",
        shares="paid.acme=ceil4",
        want="a waits ceiling at=paid/acme of=* used=4 most=4",
    ),
    "a tier": Case(
        nodes="n1=8xH100",
        running="x@n1:4/who=paid.beta.x.bob",
        queued="a:1",
        shares="paid=ceil4",
        want="a waits ceiling at=paid of=* used=4 most=4",
    ),
    "outside the tree: a user in all its accounts": Case(
        nodes="n1=8xH100",
        running="x@n1:4/who=paid.acme.web.ann/counted=ann",
        queued="a:1/counted=ann b:1/who=paid.acme.ml.bob/counted=bob",
        shares="@ann=ceil4",
        want="b -> n1:1; a waits ceiling at=ann of=* used=4 most=4",
    ),
    "by type: the other type is used": Case(
        nodes="n1=8xH100 n2=8xA100",
        running="x@n1:4",
        queued="a:4/on=H100,A100",
        shares="paid.acme=ceil4H100",
        want="a -> n2:4",
    ),
    "by type: no other type is accepted": Case(
        nodes="n1=8xH100 n2=8xA100",
        running="x@n1:4",
        queued="a:4",
        shares="paid.acme=ceil4H100,ceil16",
        want="a waits ceiling at=paid/acme of=H100 used=4 most=4",
    ),
    "by type: GPUs that are free but not allowed are not counted as free": Case(
        nodes="n1=8xH100 n2=8xA100",
        running="x@n1:4 y@n2:8/fixed",
        queued="a:4/on=H100,A100",
        shares="paid.acme=ceil4H100",
        want="a waits needs=4 free=0 start=1430m",
    ),
    "a total over types": Case(
        nodes="n1=8xH100 n2=8xA100",
        running="x@n1:3 y@n2:3",
        queued="a:2",
        shares="paid.acme=ceil7",
        want="a waits ceiling at=paid/acme of=* used=6 most=7",
    ),
    "up to the ceiling is allowed": Case(
        nodes="n1=8xH100",
        running="x@n1:4",
        queued="a:4",
        shares="paid.acme=ceil8",
        want="a -> n1:4",
    ),
    "jobs at once": Case(
        nodes="n1=8xH100",
        queued="a:1 b:1 c:1",
        shares="paid.acme=jobs2",
        want="a -> n1:1; b -> n1:1; c waits ceiling at=paid/acme of=jobs used=2 most=2",
    ),
    "jobs at once outside the tree": Case(
        nodes="n1=8xH100",
        queued="a:1/counted=ann,lab b:1/counted=ann,lab",
        shares="@lab=jobs1",
        want="a -> n1:1; b waits ceiling at=lab of=jobs used=1 most=1",
    ),
    "a job that alone is above it waits for ever": Case(
        nodes="n1=8xH100",
        queued="a:8",
        shares="paid.acme.ml=ceil4",
        want="a waits ceiling at=paid/acme/ml of=* used=0 most=4",
    ),
    "the lowest ceiling in the tree is told": Case(
        nodes="n1=8xH100",
        queued="a:8",
        shares="paid.acme.ml.ann=ceil4 paid.acme=ceil2",
        want="a waits ceiling at=paid/acme/ml/ann of=* used=0 most=4",
    ),
    "a smaller job of the same user goes on": Case(
        nodes="n1=8xH100",
        queued="a:6 b:4/waited=1m c:2",
        shares="paid.acme.ml.ann=ceil6",
        want="b -> n1:4; c -> n1:2; a waits ceiling at=paid/acme/ml/ann of=* used=6 most=6",
    ),
    "others pass one who is at a ceiling": Case(
        nodes="n1=8xH100",
        running="x@n1:4",
        queued="a:1 b:4/who=paid.beta.x.bob",
        shares="paid.acme=ceil4",
        want="b -> n1:4; a waits ceiling at=paid/acme of=* used=4 most=4",
    ),
    "one who is at a ceiling has no future place": Case(
        nodes="n1=8xH100 n2=8xH100",
        running="x@n1:8/ends=60m",
        queued="a:16 b:8/who=paid.beta.x.bob",
        shares="paid.acme=ceil16",
        want="b -> n2:8; a waits ceiling at=paid/acme of=* used=8 most=16",
    ),
    "GPUs that are kept count": Case(
        nodes="n1=8xH100",
        running="low@n1:4/stops=20s/who=paid.beta.x.bob",
        queued="u:4 a:1",
        kept="u@n1:4/from=low",
        shares="paid.acme=ceil4",
        want="a waits ceiling at=paid/acme of=* used=4 most=4",
    ),
    "who was asked to stop counts until it has left": Case(
        nodes="n1=8xH100",
        running="x@n1:4/stops=20s",
        queued="a:1",
        shares="paid.acme=ceil4",
        want="a waits ceiling at=paid/acme of=* used=4 most=4",
    ),
    "and so it does among jobs at once": Case(
        nodes="n1=8xH100",
        running="x@n1:4/stops=20s",
        queued="a:1",
        shares="paid.acme=jobs1",
        want="a waits ceiling at=paid/acme of=jobs used=1 most=1",
    ),
    "a floor does not lift a ceiling": Case(
        nodes="n1=8xH100",
        running="x@n1:4",
        queued="a:1",
        shares="paid.acme=floor8,ceil4",
        want="a waits ceiling at=paid/acme of=* used=4 most=4",
    ),
}


@pytest.mark.parametrize("case", FLOORS.values(), ids=FLOORS)
def test_floors(case: Case) -> None:
    """Own when wanted, lent while not, taken back from the largest borrower."""
    check(case)


@pytest.mark.parametrize("case", CEILINGS.values(), ids=CEILINGS)
def test_ceilings(case: Case) -> None:
    """At every level and outside the tree, by type, in total and in jobs."""
    check(case)


CASES = FLOORS | CEILINGS
