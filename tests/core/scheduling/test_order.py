"""Whose turn it is: floors, then fair share down the tree, then the order inside a user (S3)."""

import pytest

from bursar.core.value import replace
from tests.support.scheduling_cases import PLAIN, Case
from tests.support.scheduling_checks import check

CASES = {
    # ------------------------------------------------------------------ without prices
    "without prices it is GPU-hours that count": Case(
        nodes="n1=3xH100",
        running="x@n1:2/ran=5h/who=paid.a.a.a/unpriced",
        queued="p:1/who=paid.a.a.a/unpriced q:1/who=paid.b.b.b/unpriced",
        want="q -> n1:1; p waits needs=1 free=0 start=19h",
    ),
    "without prices work is lost all the same": Case(
        nodes="n1=2xH100",
        running="a@n1:1/batch/ran=5h/unpriced b@n1:1@1/batch/ran=4h/unpriced",
        queued="u:1/prod/unpriced",
        want="b preempted for=u by=class; u waits on=n1:1",
    ),
    # ------------------------------------------------------------------ inside a user
    "the oldest job of a user goes first": Case(
        nodes="n1=2xH100",
        queued="b:1/waited=2m a:1/waited=1m c:1/waited=3m",
        want="c -> n1:1; b -> n1:1; a waits needs=1 free=0 start=24h",
    ),
    "jobs that are alike in all go by id": Case(
        nodes="n1=1xH100",
        queued="b:1 a:1",
        want="a -> n1:1; b waits needs=1 free=0 start=24h",
    ),
    "class goes before age": Case(
        nodes="n1=1xH100",
        queued="old:1/waited=5m urgent:1/prod",
        want="urgent -> n1:1; old waits needs=1 free=0 start=24h",
    ),
    "what earlier attempts were charged goes before age": Case(
        nodes="n1=1xH100",
        queued="had-much:1/used=9/waited=9m had-little:1/used=1",
        want="had-little -> n1:1; had-much waits needs=1 free=0 start=24h",
    ),
    "class goes before what was charged": Case(
        nodes="n1=1xH100",
        queued="cheap:1 urgent:1/used=9/class=1",
        want="urgent -> n1:1; cheap waits needs=1 free=0 start=24h",
    ),
    "by the policy of age, what was charged does not matter": Case(
        nodes="n1=1xH100",
        queued="had-much:1/used=9/waited=9m had-little:1/used=1",
        policy=replace(PLAIN, inside_a_user="oldest"),
        want="had-much -> n1:1; had-little waits needs=1 free=0 start=24h",
    ),
    "by the policy of age, class still goes first": Case(
        nodes="n1=1xH100",
        queued="old:1/waited=9m urgent:1/prod",
        policy=replace(PLAIN, inside_a_user="oldest"),
        want="urgent -> n1:1; old waits needs=1 free=0 start=24h",
    ),
    "by the policy of the smallest, the shortest estimate goes first": Case(
        nodes="n1=1xH100",
        queued="a:1/est=2h/waited=9m b:1/est=1h",
        policy=replace(PLAIN, inside_a_user="smallest-remaining"),
        want="b -> n1:1; a waits needs=1 free=0 start=24h",
    ),
    "the smallest is measured in GPU-hours": Case(
        nodes="n1=2xH100",
        queued="a:2/est=1h b:1/est=90m",
        policy=replace(PLAIN, inside_a_user="smallest-remaining"),
        want="b -> n1:1; a waits needs=2 free=1 start=24h",
    ),
    "an estimate beyond the limit counts as the limit": Case(
        nodes="n1=1xH100",
        queued="a:1/est=2h/limit=2h b:1/est=5h/limit=1h",
        policy=replace(PLAIN, inside_a_user="smallest-remaining"),
        want="b -> n1:1; a waits needs=1 free=0 start=1h",
    ),
    "without an estimate the limit counts": Case(
        nodes="n1=1xH100",
        queued="a:1/limit=3h b:1/est=2h",
        policy=replace(PLAIN, inside_a_user="smallest-remaining"),
        want="b -> n1:1; a waits needs=1 free=0 start=24h",
    ),
    "by the policy of balance, the account that can spend most goes first": Case(
        nodes="n1=1xH100",
        queued="poor:1/balance=1/waited=9m rich:1/balance=5",
        policy=replace(PLAIN, inside_a_user="balance"),
        want="rich -> n1:1; poor waits needs=1 free=0 start=24h",
    ),
    # ------------------------------------------------------------------ down the tree
    "users of an account take turns": Case(
        nodes="n1=4xH100",
        queued="a1:1 a2:1 a3:1 b1:1/who=paid.acme.ml.bob b2:1/who=paid.acme.ml.bob",
        want="a1 -> n1:1; b1 -> n1:1; a2 -> n1:1; b2 -> n1:1; a3 waits needs=1 free=0 start=24h",
    ),
    "accounts take turns, however many users they have": Case(
        nodes="n1=4xH100",
        queued="a1:1 a2:1 b1:1/who=paid.acme.ml.bob b2:1/who=paid.acme.ml.bob"
        " c1:1/who=paid.acme.web.cat c2:1/who=paid.acme.web.cat",
        want="a1 -> n1:1; c1 -> n1:1; b1 -> n1:1; c2 -> n1:1;"
        " a2 waits needs=1 free=0 start=24h; b2 waits needs=1 free=0 start=24h",
    ),
    "orgs take turns, however many accounts they have": Case(
        nodes="n1=4xH100",
        queued="a1:1 a2:1 b1:1/who=paid.acme.web.bob c1:1/who=paid.beta.x.cat"
        " c2:1/who=paid.beta.x.cat",
        want="a1 -> n1:1; c1 -> n1:1; b1 -> n1:1; c2 -> n1:1; a2 waits needs=1 free=0 start=24h",
    ),
    "tiers take turns, however many orgs they have": Case(
        nodes="n1=4xH100",
        queued="a1:1 a2:1 b1:1/who=paid.beta.x.bob c1:1/who=free.solo.x.cat"
        " c2:1/who=free.solo.x.cat",
        want="c1 -> n1:1; a1 -> n1:1; c2 -> n1:1; b1 -> n1:1; a2 waits needs=1 free=0 start=24h",
    ),
    "an account inside an account is one of its children": Case(
        nodes="n1=3xH100",
        queued="a1:1/who=paid.acme.ml.vision.ann a2:1/who=paid.acme.ml.vision.ann"
        " b1:1/who=paid.acme.ml.bob b2:1/who=paid.acme.ml.bob",
        want="b1 -> n1:1; a1 -> n1:1; b2 -> n1:1; a2 waits needs=1 free=0 start=24h",
    ),
    "an org without accounts has users of its own": Case(
        nodes="n1=2xH100",
        queued="a1:1/who=paid.acme.ann a2:1/who=paid.acme.ann b1:1/who=paid.acme.bob",
        want="a1 -> n1:1; b1 -> n1:1; a2 waits needs=1 free=0 start=24h",
    ),
    # ------------------------------------------------------------------ weights
    "an org of weight two gets twice as much": Case(
        nodes="n1=6xH100",
        queued="a1:1 a2:1 a3:1 b1:1/who=paid.beta.x.bob b2:1/who=paid.beta.x.bob"
        " b3:1/who=paid.beta.x.bob b4:1/who=paid.beta.x.bob b5:1/who=paid.beta.x.bob",
        shares="paid.beta=w2",
        want="a1 -> n1:1; b1 -> n1:1; b2 -> n1:1; a2 -> n1:1; b3 -> n1:1; b4 -> n1:1;"
        " a3 waits needs=1 free=0 start=24h; b5 waits needs=1 free=0 start=24h",
    ),
    "a tier of weight three gets three times as much": Case(
        nodes="n1=4xH100",
        queued="a1:1 a2:1 a3:1 a4:1 f1:1/who=free.solo.x.fay f2:1/who=free.solo.x.fay",
        shares="paid=w3",
        want="f1 -> n1:1; a1 -> n1:1; a2 -> n1:1; a3 -> n1:1;"
        " f2 waits needs=1 free=0 start=24h; a4 waits needs=1 free=0 start=24h",
    ),
    "an account of weight two gets twice as much": Case(
        nodes="n1=3xH100",
        queued="a1:1 a2:1 w1:1/who=paid.acme.web.bob w2:1/who=paid.acme.web.bob"
        " w3:1/who=paid.acme.web.bob",
        shares="paid.acme.web=w2",
        want="a1 -> n1:1; w1 -> n1:1; w2 -> n1:1;"
        " a2 waits needs=1 free=0 start=24h; w3 waits needs=1 free=0 start=24h",
    ),
    "a user of weight two gets twice as much": Case(
        nodes="n1=3xH100",
        queued="a1:1 a2:1 b1:1/who=paid.acme.ml.bob b2:1/who=paid.acme.ml.bob"
        " b3:1/who=paid.acme.ml.bob",
        shares="paid.acme.ml.bob=w2",
        want="a1 -> n1:1; b1 -> n1:1; b2 -> n1:1;"
        " a2 waits needs=1 free=0 start=24h; b3 waits needs=1 free=0 start=24h",
    ),
    "a heavy org that used twice as much is even": Case(
        nodes="n1=1xH100",
        queued="a:1 b:1/who=paid.beta.x.bob",
        usage="paid.acme.ml.ann=50 paid.beta.x.bob=99",
        shares="paid.beta=w2",
        want="b -> n1:1; a waits needs=1 free=0 start=24h",
    ),
    # ------------------------------------------------------------------ usage
    "who used less before goes first": Case(
        nodes="n1=1xH100",
        queued="a:1 b:1/who=paid.beta.x.bob",
        usage="paid.acme.ml.ann=11 paid.beta.x.bob=10",
        want="b -> n1:1; a waits needs=1 free=0 start=24h",
    ),
    "what runs now counts as used": Case(
        nodes="n1=5xH100",
        running="x@n1:4/ran=1m",
        queued="a:1 b:1/who=paid.beta.x.bob",
        want="b -> n1:1; a waits needs=1 free=0 start=1439m",
    ),
    "what runs counts an hour ahead: a large start weighs more than small use before": Case(
        nodes="n1=9xH100",
        running="x@n1:8/who=paid.acme.ml.ann/ran=0s",
        queued="a:1 b:1/who=paid.beta.x.bob",
        usage="paid.beta.x.bob=7",
        want="b -> n1:1; a waits needs=1 free=0 start=24h",
    ),
    "but large use before weighs more than a start": Case(
        nodes="n1=9xH100",
        running="x@n1:8/who=paid.acme.ml.ann/ran=0s",
        queued="a:1 b:1/who=paid.beta.x.bob",
        usage="paid.beta.x.bob=9",
        want="a -> n1:1; b waits needs=1 free=0 start=24h",
    ),
    "use is measured in credits, not in GPUs": Case(
        nodes="n1=1xH100 n2=2xA100 n3=1xH100",
        running="x@n1:1/price=4 y@n2:2/who=paid.beta.x.bob",
        queued="a:1 b:1/who=paid.beta.x.bob",
        want="b -> n3:1; a waits needs=1 free=0 start=1430m",
    ),
    "use of one user counts for its account and its org": Case(
        nodes="n1=1xH100",
        queued="a:1/who=paid.acme.web.cat b:1/who=paid.beta.x.bob",
        usage="paid.acme.ml.ann=11 paid.beta.x.bob=10",
        want="b -> n1:1; a waits needs=1 free=0 start=24h",
    ),
    "who was asked to stop counts no more": Case(
        nodes="n1=4xH100 n2=1xH100",
        running="x@n1:4/stops=20s",
        queued="a:1 b:1/who=paid.beta.x.bob",
        usage="paid.beta.x.bob=1",
        want="a -> n2:1; b waits needs=1 free=0 start=20s",
    ),
    # ------------------------------------------------------------------ class in an org
    "whoever would ask for the GPUs the next moment goes first": Case(
        nodes="n1=8xH100",
        queued="a:8/batch b:8/prod/who=paid.acme.ml.bob",
        usage="paid.acme.ml.bob=10",
        want="b -> n1:8; a waits needs=8 free=0 start=24h",
    ),
    "unless it cannot use them": Case(
        nodes="n1=8xH100",
        queued="a:8/batch b:9/prod/who=paid.acme.ml.bob",
        usage="paid.acme.ml.bob=10",
        want="a -> n1:8 backfill; b waits never_fits needs=9 free=0",
    ),
    "even if many cannot": Case(
        nodes="n1=8xH100",
        queued="z:8/batch/who=paid.acme.ml.zoe "
        + " ".join(f"b{n:02}:9/prod/who=paid.acme.ml.b{n:02}" for n in range(17)),
        want="z -> n1:8 backfill; "
        + "; ".join(f"b{n:02} waits never_fits needs=9 free=0" for n in range(17)),
    ),
    # ------------------------------------------------------------------ what does not count
    "class does not push past another customer": Case(
        nodes="n1=1xH100",
        queued="a:1/prod b:1/who=paid.beta.x.bob",
        usage="paid.acme.ml.ann=10",
        want="b -> n1:1; a waits needs=1 free=0 start=24h",
    ),
    "waiting long does not push past another customer before it is too long": Case(
        nodes="n1=1xH100",
        queued="a:1/waited=23h b:1/who=paid.beta.x.bob",
        usage="paid.acme.ml.ann=10",
        want="b -> n1:1; a waits needs=1 free=0 start=24h",
    ),
    "many jobs do not push past another customer": Case(
        nodes="n1=2xH100",
        queued="a1:1/waited=9m a2:1/waited=9m a3:1/waited=9m b:1/who=paid.beta.x.bob",
        want="a1 -> n1:1; b -> n1:1; a2 waits needs=1 free=0 start=24h",
    ),
    "whoever cannot start lets the next in turn pass": Case(
        nodes="n1=2xH100",
        queued="a:1/on=A100 b:1/who=paid.beta.x.bob",
        want="b -> n1:1 backfill; a waits never_fits needs=1 free=0",
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_order(case: Case) -> None:
    """Floors, fair share, the policy inside a user: a total order."""
    check(case)
