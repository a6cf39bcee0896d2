"""Jobs that have waited too long: a date, and at most a fifth of the GPUs (S4)."""

import pytest

from bursar.core.value import replace
from tests.support.scheduling_cases import PLAIN, Case
from tests.support.scheduling_checks import check

CASES = {
    # ------------------------------------------------------------------ starting
    "a job that waited too long goes first, whatever its user used": Case(
        nodes="n1=8xH100",
        queued="old:8/waited=24h new:8/who=paid.beta.x.bob",
        usage="paid.acme.ml.ann=100",
        want="old -> n1:8 age; new waits needs=8 free=0 start=24h",
    ),
    "a second before that it does not": Case(
        nodes="n1=8xH100",
        queued="old:8/waited=86399s new:8/who=paid.beta.x.bob",
        usage="paid.acme.ml.ann=100",
        want="new -> n1:8; old waits needs=8 free=0 start=24h",
    ),
    "those who waited longer go first": Case(
        nodes="n1=10xH100",
        queued="a:2/waited=25h b:2/waited=26h/who=paid.beta.x.bob c:8/who=paid.cora.x.cat",
        usage="paid.acme.ml.ann=100",
        want="b -> n1:2 age; c -> n1:8; a waits needs=2 free=0 start=24h",
    ),
    "one job of each user": Case(
        nodes="n1=10xH100",
        running="x@n1:10/ends=60m/fixed",
        queued="a1:1/waited=26h a2:1/waited=25h b:1/waited=25h/who=paid.acme.ml.bob",
        want="a1 promised start=1h; b promised start=1h;"
        " a1 waits needs=1 free=0 start=1h; b waits needs=1 free=0 start=1h",
    ),
    "a job that says it is over within ten graces has waited too long after three hours": Case(
        nodes="n1=8xH100",
        queued="brief:8/est=5m/waited=3h new:8/who=paid.beta.x.bob",
        usage="paid.acme.ml.ann=100",
        want="brief -> n1:8 age; new waits needs=8 free=0 start=24h",
    ),
    "not a second before": Case(
        nodes="n1=8xH100",
        queued="brief:8/est=5m/waited=10799s new:8/who=paid.beta.x.bob",
        usage="paid.acme.ml.ann=100",
        want="new -> n1:8; brief waits needs=8 free=0",
    ),
    "nor does one that takes longer": Case(
        nodes="n1=8xH100",
        queued="long:8/est=301s/waited=3h new:8/who=paid.beta.x.bob",
        usage="paid.acme.ml.ann=100",
        want="new -> n1:8; long waits needs=8 free=0 start=24h",
    ),
    # ------------------------------------------------------------------ at most a fifth
    "jobs started for their age have at most a fifth of the GPUs": Case(
        nodes="n1=10xH100",
        running="x@n1:2/aged",
        queued="old:1/waited=25h new:8/who=paid.beta.x.bob",
        usage="paid.acme.ml.ann=100",
        want="new -> n1:8; old waits needs=1 free=0 start=1430m",
    ),
    "up to a fifth": Case(
        nodes="n1=10xH100",
        running="x@n1:1/aged/who=paid.zeta.x.zoe",
        queued="old:1/waited=25h new:8/who=paid.beta.x.bob",
        usage="paid.acme.ml.ann=100",
        want="old -> n1:1 age; new -> n1:8",
    ),
    "several at once share the fifth": Case(
        nodes="n1=10xH100",
        queued="a:2/waited=26h b:2/waited=25h/who=paid.beta.x.bob c:8/who=paid.cora.x.cat",
        usage="paid.acme.ml.ann=100 paid.beta.x.bob=100",
        want="a -> n1:2 age; c -> n1:8; b waits needs=2 free=0 start=24h",
    ),
    "a gang larger than a fifth is helped when nobody else is": Case(
        nodes="n1=8xH100",
        running="x@n1:8/ends=60m/fixed",
        queued="gang:8/waited=25h",
        want="gang promised start=1h; gang waits needs=8 free=0 start=1h",
    ),
    "another part by the policy": Case(
        nodes="n1=10xH100",
        running="x@n1:2/aged",
        queued="old:1/waited=25h new:8/who=paid.beta.x.bob",
        usage="paid.acme.ml.ann=100",
        policy=replace(PLAIN, aged_part=2),
        want="old -> n1:1 age; new waits needs=8 free=7 start=1430m",
    ),
    # ------------------------------------------------------------------ dates
    "who cannot start gets a date": Case(
        nodes="n1=8xH100",
        running="x@n1:8/ends=60m/who=paid.beta.x.bob",
        queued="old:1/waited=25h",
        usage="paid.acme.ml.ann=100",
        policy=replace(PLAIN, preemptions_max=0),
        want="old promised start=1h; old waits needs=1 free=0 start=1h",
    ),
    "a date is not given twice": Case(
        nodes="n1=8xH100",
        running="x@n1:8/ends=60m/fixed",
        queued="old:1/waited=25h/promised=60m,5m",
        want="old waits needs=1 free=0 start=1h",
    ),
    "an earlier date is told": Case(
        nodes="n1=8xH100",
        running="x@n1:8/ends=60m/fixed",
        queued="old:1/waited=25h/promised=2h,5m",
        want="old promised start=1h; old waits needs=1 free=0 start=1h",
    ),
    "a date is not moved back, though capacity was lost": Case(
        nodes="n1=8xH100",
        running="x@n1:8/ends=60m/fixed",
        queued="old:1/waited=25h/promised=30m,5m",
        want="old waits needs=1 free=0 start=1h",
    ),
    "nobody slips in who would delay a date": Case(
        nodes="n1=8xH100 n2=8xH100",
        running="x@n1:8/ends=60m/fixed",
        queued="old:16/waited=25h late:8/who=paid.beta.x.bob short:4/limit=1h/who=paid.beta.x.bob",
        want="old promised start=1h; short -> n2:4 backfill; old waits needs=16 free=4 start=1h;"
        " late waits needs=8 free=4 start=25h",
    ),
    "who has a date goes before those who get one": Case(
        nodes="n1=10xH100",
        running="x@n1:1/ends=60m/fixed y@n1:9@1/ends=2h/fixed",
        queued="first:1/waited=25h/promised=2h,5m second:1/waited=30h/who=paid.beta.x.bob",
        want="first promised start=1h; second promised start=2h;"
        " first waits needs=1 free=0 start=1h; second waits needs=1 free=0 start=2h",
    ),
    "an aged job keeps its right to ask": Case(
        nodes="n1=4xH100",
        running="low@n1:4/batch",
        queued="urgent:4/prod/waited=25h",
        want="low preempted for=urgent by=class; urgent waits on=n1:4",
    ),
    "one that never fits does not hide the next of its user": Case(
        nodes="n1=8xH100",
        running="x@n1:8/ends=60m/fixed",
        queued="huge:100/waited=30h old:1/waited=25h",
        want="old promised start=1h; old waits needs=1 free=0 start=1h;"
        " huge waits needs=100 free=0",
    ),
    "a date holds though an older job of the same user comes back": Case(
        nodes="n1=10xH100",
        running="x@n1:10/ends=60m/fixed",
        queued="back:1x4/waited=30h dated:1x8/waited=25h/promised=60m,10m",
        want="dated waits needs=8 free=0 start=1h; back waits needs=4 free=0",
    ),
    "an aged job at a ceiling waits": Case(
        nodes="n1=8xH100",
        running="x@n1:4",
        queued="old:1/waited=25h",
        shares="paid.acme=ceil4",
        want="old waits ceiling at=paid/acme of=* used=4 most=4",
    ),
    "an aged job that never fits keeps nothing from others": Case(
        nodes="n1=8xH100",
        queued="old:16/waited=25h new:8/who=paid.beta.x.bob",
        want="new -> n1:8 backfill; old waits never_fits needs=16 free=0",
    ),
    "a job that failed to start is not helped before its time": Case(
        nodes="n1=8xH100",
        queued="old:8/waited=25h/again=30s new:8/who=paid.beta.x.bob",
        usage="paid.beta.x.bob=100",
        want="new -> n1:8",
    ),
    "a place that was promised is kept, though others are free as soon": Case(
        nodes="n1=4xH100 n2=4xH100",
        running="a@n1:4/ends=60m/fixed b@n2:4/ends=60m/fixed",
        queued="old:1x4/waited=25h/promised=60m,5m,n2:1 next:1x4/who=paid.beta.x.bob",
        want="old waits needs=4 free=0 start=1h; next waits needs=4 free=0 start=1h",
    ),
    "one that was lost is looked for anew": Case(
        nodes="n1=4xH100 n2=4xH100/state=draining",
        running="a@n1:4/ends=2h/fixed",
        queued="old:1x4/waited=25h/promised=60m,5m,n2:1",
        want="old waits needs=4 free=0 start=2h",
    ),
    "so is one on a node that is gone": Case(
        nodes="n1=4xH100",
        running="a@n1:4/ends=2h/fixed",
        queued="old:1x4/waited=25h/promised=60m,5m,n9:1",
        want="old waits needs=4 free=0 start=2h",
    ),
    "or on which somebody stays longer than was thought": Case(
        nodes="n1=4xH100 n2=4xH100",
        running="a@n1:4/ends=2h/fixed b@n2:4/ends=3h/fixed",
        queued="old:1x4/waited=25h/promised=60m,5m,n2:1",
        want="old waits needs=4 free=0 start=2h",
    ),
    "two with a date do not take each other's place": Case(
        nodes="n1=4xH100 n2=4xH100",
        running="a@n1:4/ends=60m/fixed b@n2:4/ends=2h/fixed",
        queued="one:1x4/waited=25h/promised=2h,9m,n2:1 two:1x4/waited=30h/promised=60m,5m,n1:1"
        "/who=paid.beta.x.bob",
        policy=replace(PLAIN, aged_part=1),
        want="one waits needs=4 free=0 start=2h; two waits needs=4 free=0 start=1h",
    ),
    "those who wait at a ceiling hide nobody": Case(
        nodes="n1=8xH100",
        running="x@n1:8/ends=60m/fixed",
        queued="old:1x8/waited=25h "
        + " ".join(f"z{n}:1/waited=30h/who=paid.zed.m.u{n}" for n in range(10)),
        shares="paid.zed=jobs0",
        policy=replace(PLAIN, looks=4),
        want="old promised start=1h; old waits needs=8 free=0 start=1h; "
        + "; ".join(f"z{n} waits ceiling at=paid/zed of=jobs used=0 most=0" for n in range(10)),
    ),
    "a smaller one that is younger does not go past for ever": Case(
        nodes="n1=10xH100",
        running="a@n1:1/aged/fixed b@n1:9@1/ends=60m/fixed",
        queued="old:1x2/waited=30h small:1/waited=25h/who=paid.beta.x.bob",
        want="small waits needs=1 free=0 start=1h; old waits needs=2 free=0 start=1h",
    ),
    "a date does not lift a ceiling": Case(
        nodes="n1=4xH100",
        queued="old:1/waited=25h/promised=60m,5m,n1:1",
        shares="paid.acme=ceil0",
        want="old waits ceiling at=paid/acme of=* used=0 most=0",
    ),
    "a date stays while a ceiling is in its way": Case(
        nodes="n1=4xH100 n2=4xH100",
        running="s@n2:1/ends=10m/who=paid.beta.b.b y@n2:3@1/ends=23h/who=enterprise.e.e.e",
        queued="d:4/promised=30m,1h,n1:4/waited=26h/limit=10h l:4/limit=24h/who=enterprise.f.f.f",
        shares="paid=ceil4",
        want="d waits ceiling at=paid of=* used=1 most=4; l waits needs=4 free=4 start=630m",
    ),
    "nobody is promised what a ceiling does not allow beside another's date": Case(
        nodes="n1=8xH100",
        running="x@n1:6/ran=1h/ends=30m/who=enterprise.e.e.e",
        queued="d1:4/promised=30m,1h,n1:4/waited=26h d2:1/waited=25h/who=paid.acme.ml.bob",
        shares="paid.acme=ceil4",
        policy=replace(PLAIN, aged_part=1),
        want="d1 waits needs=4 free=2 start=30m; d2 waits crowded needs=1 free=2",
    ),
    "nor is its own place in the way of one that may start before": Case(
        nodes="n1=4xH100",
        queued="a:2/waited=30h/promised=1h,9m,n1:2 b:2/waited=30h/promised=26h,5m,n1:2"
        "/who=paid.b.x.bob/limit=10m",
        policy=replace(PLAIN, looks=1, aged_part=1),
        shares="paid.b=ceil2",
        want="a -> n1:2 age; b -> n1:2 backfill",
    ),
    "of many with a date the first few may get a better one, the others keep theirs": Case(
        nodes="n1=2xH100",
        running="x@n1:1/ends=10m/fixed y@n1:1@1/ends=20m/fixed",
        queued="a:1/waited=30h/promised=1h,9m,n1:1"
        " b:1/waited=30h/promised=2h,5m,n1:1/who=paid.b.x.bob",
        policy=replace(PLAIN, looks=1, aged_part=1),
        want="a promised start=10m; a waits needs=1 free=0 start=10m;"
        " b waits needs=1 free=0 start=2h",
    ),
    "and start before it if they fit in turn": Case(
        nodes="n1=2xH100",
        running="y@n1:1/ends=20m/fixed",
        queued="a:2/waited=30h/promised=1h,9m,n1:1 b:1/waited=30h/promised=26h,5m,n1:1/limit=10m"
        "/who=paid.b.x.bob",
        policy=replace(PLAIN, looks=1, aged_part=1),
        want="a promised start=20m; b -> n1:1 backfill; a waits needs=2 free=0 start=20m",
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_aging(case: Case) -> None:
    """The oldest job of each user starts, or has a date that only comes nearer."""
    check(case)
