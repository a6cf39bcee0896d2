"""No later job of a user, class and size runs while an earlier one has waited too long (S4, S5)."""

import pytest

from bursar.core.ids import JobId
from bursar.core.instant import HOUR, MINUTE
from bursar.core.scheduling.explain.explanation import explain
from bursar.core.scheduling.model.overtaken_jobs import PENDING_CHECKED
from bursar.core.scheduling.model.policy import PoolPolicy
from bursar.core.scheduling.plan import next_planning_time
from bursar.core.value import replace
from tests.support.scheduling_cases import T0, Case
from tests.support.scheduling_checks import check

SHIPPED = PoolPolicy()  # a paid job has waited too long after 4 hours
ONE_AGED = replace(SHIPPED, aged_part=1)

CASES = {
    # ------------------------------------------------------------------ who stops for whom
    "a job that has waited too long takes the place of a later one": Case(
        nodes="n1=8xH100",
        running="later@n1:8/ran=2h/ckpt=10m,5s",
        queued="early:1x8/waited=4h/used=90",
        policy=SHIPPED,
        want="later preempted for=early by=age; early waits on=n1:8",
    ),
    "not a second before": Case(
        nodes="n1=8xH100",
        running="later@n1:8/ran=2h/ckpt=10m,5s",
        queued="early:1x8/waited=14399s/used=90",
        policy=SHIPPED,
        want="early waits needs=8 free=0 start=22h",
    ),
    "its wait counts from when it was stopped": Case(
        nodes="n1=8xH100",
        running="later@n1:8/ran=2h/ckpt=10m,5s",
        queued="early:1x8/waited=90h/stopped=239m/used=90",
        policy=SHIPPED,
        want="early waits needs=8 free=0 start=22h",
    ),
    "also if the later one cannot save its work": Case(
        nodes="n1=8xH100",
        running="later@n1:8/ran=2h",
        queued="early:1x8/waited=4h/used=90",
        policy=SHIPPED,
        want="later preempted for=early by=age; early waits on=n1:8",
    ),
    "also if the later one made room three times": Case(
        nodes="n1=8xH100",
        running="later@n1:8/ran=2h/preempted=3",
        queued="early:1x8/waited=4h/used=90",
        policy=SHIPPED,
        want="later preempted for=early by=age; early waits on=n1:8",
    ),
    "not if the later one is not preemptible": Case(
        nodes="n1=8xH100",
        running="later@n1:8/ran=2h/fixed",
        queued="early:1x8/waited=4h/used=90",
        policy=SHIPPED,
        want="early promised start=22h; early waits needs=8 free=0 start=22h",
    ),
    "not if the later one ends within minutes": Case(
        nodes="n1=8xH100",
        running="later@n1:8/ran=2h/est=125m",
        queued="early:1x8/waited=4h/used=90",
        policy=SHIPPED,
        want="early promised start=22h; early waits needs=8 free=0 start=22h",
    ),
    "an earlier job stays": Case(
        nodes="n1=8xH100",
        running="first@n1:8/ran=5h",
        queued="second:1x8/waited=4h",
        policy=SHIPPED,
        want="second promised start=19h; second waits needs=8 free=0 start=19h",
    ),
    "so does a job of another user": Case(
        nodes="n1=8xH100",
        running="later@n1:8/ran=2h/who=paid.acme.ml.bob",
        queued="early:1x8/waited=4h/used=90",
        policy=SHIPPED,
        want="early promised start=22h; early waits needs=8 free=0 start=22h",
    ),
    "so does a job of a higher class": Case(
        nodes="n1=8xH100",
        running="later@n1:8/ran=2h/prod",
        queued="early:1x8/waited=4h/used=90",
        policy=SHIPPED,
        want="early promised start=22h; early waits needs=8 free=0 start=22h",
    ),
    "so do smaller and larger jobs": Case(
        nodes="n1=8xH100 n2=8xH100",
        running="small@n1:4/ran=2h same@n1:4@4/ran=2h large@n2:8/ran=2h",
        queued="early:1x6/waited=4h/used=90",
        policy=SHIPPED,
        want="early promised start=22h; early waits needs=6 free=0 start=22h",
    ),
    "the earlier one stops the cheapest of several later ones": Case(
        nodes="n1=8xH100 n2=8xH100",
        running="costly@n1:8/ran=2h cheap@n2:8/ran=1h",
        queued="early:1x8/waited=4h/used=90",
        policy=SHIPPED,
        want="cheap preempted for=early by=age; early waits on=n2:8",
    ),
    "a gang stops a gang": Case(
        nodes="n1=8xH100 n2=8xH100",
        running="later@n1:8+n2:8/ran=2h/ckpt=10m,5s",
        queued="early:2x8/waited=4h/used=90",
        policy=SHIPPED,
        want="later preempted for=early by=age; early waits on=n1:8+n2:8",
    ),
    "a job that started for its own age keeps its first turn": Case(
        nodes="n1=8xH100",
        running="later@n1:8/ran=24m/aged",
        queued="early:1x8/waited=4h/used=90",
        policy=ONE_AGED,
        want="early waits needs=8 free=0 start=1416m",
    ),
    "then it stops as any other": Case(
        nodes="n1=8xH100",
        running="later@n1:8/ran=25m/aged",
        queued="early:1x8/waited=4h/used=90",
        policy=ONE_AGED,
        want="later preempted for=early by=age; early waits on=n1:8",
    ),
    "if GPUs would stay idle at a greater cost than its wait, it waits": Case(
        nodes="n1=3xH100 n2=3xH100 n3=3xH100",
        running=" ".join(
            f"{name}@n1:1@{gpu}+n2:1@{gpu}+n3:1@{gpu}/ran=2h/ends=1h"
            for gpu, name in enumerate("abc")
        ),
        queued="early:1x3/waited=4h/used=90",
        policy=SHIPPED,
        want="early promised start=1h; early waits needs=3 free=0 start=1h",
    ),
    # ------------------------------------------------------------------ whatever else is in the way
    "also at a ceiling that the later one uses up": Case(
        nodes="n1=8xH100 n2=8xH100",
        running="later@n1:8/ran=2h",
        queued="early:1x8/waited=4h/used=90",
        shares="paid.acme=ceil8",
        policy=SHIPPED,
        want="later preempted for=early by=age; early waits on=n1:8",
    ),
    "also if aged jobs have their part of the GPUs": Case(
        nodes="n1=10xH100",
        running="old@n1:2/aged/ran=1h/fixed/who=paid.acme.ml.bob later@n1:8@2/ran=2h",
        queued="early:1x8/waited=4h/used=90",
        policy=SHIPPED,
        want="later preempted for=early by=age; early waits on=n1:8",
    ),
    "also if another job of the user has a date": Case(
        nodes="n1=8xH100 n2=8xH100",
        running="later@n1:8/ran=2h x@n2:8/ran=2h/ends=1h/fixed/who=enterprise.e.e.e",
        queued="gang:2x8/waited=9h/promised=22h,1h,n1:1+n2:1/limit=1h"
        " early:1x8/waited=5h/used=90/limit=20h",
        policy=SHIPPED,
        want="later preempted for=early by=age; early waits on=n1:8;"
        " gang promised start=72030s; gang waits needs=16 free=0 start=72030s",
    ),
    "also if it has a date itself": Case(
        nodes="n1=8xH100 n2=8xH100",
        running="x@n2:8/ends=1h/fixed/who=paid.acme.ml.bob later@n1:8/ran=2h",
        queued="early:1x8/waited=9h/promised=1h,1h,n2:1/used=90",
        policy=SHIPPED,
        want="later preempted for=early by=age; early waits on=n1:8",
    ),
    "one that cannot use the place does not hide the next": Case(
        nodes="n1=8xH100",
        running="later@n1:8/ran=2h",
        queued="picky:1x8/waited=9h/label=ib early:1x8/waited=4h/used=90",
        policy=SHIPPED,
        want="later preempted for=early by=age; early waits on=n1:8;"
        " picky waits never_fits needs=8 free=0",
    ),
    "a date is kept if there is no place to take": Case(
        nodes="n1=8xH100 n2=8xH100/labels=ib",
        running="x@n2:8/ends=1h/fixed/who=paid.acme.ml.bob later@n1:8/ran=2h",
        queued="early:1x8/waited=9h/promised=1h,1h,n2:1/used=90/label=ib",
        policy=SHIPPED,
        want="early waits needs=8 free=0 start=1h",
    ),
    # ------------------------------------------------------------------ who starts first
    "of two that wait, the one that has waited too long starts": Case(
        nodes="n1=10xH100",
        running="old@n1:2/aged/ran=1h/fixed",
        queued="early:1x8/waited=4h/used=90 later:1x8/waited=1h",
        policy=SHIPPED,
        want="early -> n1:8; later waits needs=8 free=0 start=24h",
    ),
    "also if the later one is brief and can still start in time": Case(
        nodes="n1=10xH100",
        running="old@n1:2/aged/ran=1h/fixed",
        queued="early:1x8/waited=4h/used=90 later:1x8/est=2m",
        policy=SHIPPED,
        want="early -> n1:8; later waits needs=8 free=0",
    ),
    "also if the later one is shorter and would delay no planned start": Case(
        nodes="n1=8xH100 n2=8xH100",
        running="x@n2:8/ends=2h/fixed/who=enterprise.e.e.e old@n1:2/ends=1h/aged/fixed",
        queued="gang:2x8/who=enterprise.f.f.f early:1x4/waited=4h/used=90 later:1x4/limit=1h",
        policy=SHIPPED,
        want="gang waits needs=16 free=6 start=2h; early waits needs=4 free=6 start=26h",
    ),
    "a later one of another kind may start if the earlier one does not fit": Case(
        nodes="n1=4xH100 n2=4xH100",
        running="x@n1:2/fixed/who=enterprise.e.e.e y@n2:2/fixed/who=enterprise.e.e.e"
        " old@n1:1@2/aged/ran=1h/fixed",
        queued="early:1x3/waited=4h/used=90 later:3",
        policy=SHIPPED,
        want="later -> n1:1+n2:2 backfill; early waits needs=3 free=0 start=1430m",
    ),
    # ---------------------------------------------------------------- turns to give back
    "a later job takes the turn of an earlier one if it can save its work": Case(
        nodes="n1=8xH100",
        running="early@n1:8/ran=9h/ckpt=10m,5s",
        queued="later:1x8/ckpt=10m,5s",
        policy=SHIPPED,
        want="early preempted for=later by=turn; later waits on=n1:8",
    ),
    "or has ended before the earlier one has waited too long": Case(
        nodes="n1=8xH100",
        running="early@n1:8/ran=9h/ckpt=10m,5s",
        queued="later:1x8/limit=4h",
        policy=SHIPPED,
        want="early preempted for=later by=turn; later waits on=n1:8",
    ),
    "otherwise it would lose its work when the earlier one takes its turn back": Case(
        nodes="n1=8xH100",
        running="early@n1:8/ran=9h/ckpt=10m,5s",
        queued="later:1x8/limit=241m",
        policy=SHIPPED,
        want="later waits needs=8 free=0 start=15h",
    ),
    "an earlier job need not give back what it takes": Case(
        nodes="n1=8xH100",
        running="later@n1:8/ran=2h/ckpt=10m,5s",
        queued="early:1x8/waited=3h",
        policy=SHIPPED,
        want="later preempted for=early by=turn; early waits on=n1:8",
    ),
    "what is promised to another job stays promised": Case(
        nodes="n1=8xH100",
        running="later@n1:8/ran=2h/ends=4h",
        queued="early:1x8/waited=4h/used=90 dated:1x8/promised=4h,1h,n1:1/waited=9h"
        "/who=paid.acme.ml.bob",
        policy=SHIPPED,
        want="dated waits needs=8 free=0 start=4h; early waits needs=8 free=0 start=28h",
    ),
    "unless the early job would wait too long for it again": Case(
        nodes="n1=8xH100",
        running="later@n1:8/ran=2h/ends=241m",
        queued="early:1x8/waited=4h/used=90 dated:1x8/promised=241m,1h,n1:1/waited=9h"
        "/who=paid.acme.ml.bob",
        policy=SHIPPED,
        want="later preempted for=early by=age; early waits on=n1:8;"
        " dated waits needs=8 free=0 start=86430s",
    ),
    # ------------------------------------------------------------------ turns that are kept
    "a job that had waited too long keeps its turn for as long as it may have to wait": Case(
        nodes="n1=8xH100",
        running="long@n1:8/waited=4h/ran=239m/ckpt=10m,5s",
        queued="short:1x8/ckpt=10m,5s",
        policy=SHIPPED,
        want="short waits needs=8 free=0 start=1201m",
    ),
    "then it gives it up as any other": Case(
        nodes="n1=8xH100",
        running="long@n1:8/waited=4h/ran=240m/ckpt=10m,5s",
        queued="short:1x8/ckpt=10m,5s",
        policy=SHIPPED,
        want="long preempted for=short by=turn; short waits on=n1:8",
    ),
    "a job that had not waited so long gives it up sooner": Case(
        nodes="n1=8xH100",
        running="long@n1:8/waited=239m/ran=25m/ckpt=10m,5s",
        queued="short:1x8/ckpt=10m,5s",
        policy=SHIPPED,
        want="long preempted for=short by=turn; short waits on=n1:8",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_overtaken_jobs(case: Case) -> None:
    """An overdue job takes the place of a later one of its user, class and size."""
    check(case)


@pytest.mark.parametrize(
    ("running", "queued", "want"),
    [
        ("later@n1:8/ran=2h", "early:1x8/waited=3h", HOUR),  # then it has waited too long
        ("later@n1:8/ran=2h", "early:1x8/waited=9h/stopped=1h oldest:1/waited=9h", 3 * HOUR),
        ("later@n1:8/ran=2h", "early:1x8/waited=5h", 5 * MINUTE),  # it is overtaken
        ("first@n1:8/ran=10h", "second:1x8/waited=9h/stopped=1h oldest:1/waited=9h", None),
        ("later@n1:8/ran=2h", "early:1x8/waited=9h/stopped=1h oldest:1/waited=9h "
         + " ".join(f"x{n}:2/waited=9h/stopped=2h" for n in range(PENDING_CHECKED)), 2 * HOUR),
    ],
)  # fmt: skip
def test_when_to_plan_again(running: str, queued: str, want: int | None) -> None:
    """When a job is overtaken; in minutes while one is; or when one may be, of very many."""
    case = Case(nodes="n1=8xH100", running=running, queued=queued, policy=SHIPPED, want="")
    at = next_planning_time(case.cluster())

    assert want == (None if at is None else at - T0)


@pytest.mark.parametrize(
    ("running", "waited", "want"),
    [
        (
            "later@n1:8/ran=2h",
            "3h",
            "- Cannot preempt later jobs of its user with as many GPUs (later) before it has waited"
            " 4 h, in 1 h.",
        ),
        (
            "later@n1:4/ran=2h/fixed more@n1:4@4/ran=2h/est=125m",
            "5h",
            "- Later jobs of its user with as many GPUs run, but cannot be preempted or end within"
            " minutes: later, more.",
        ),
        (
            "later@n1:8/ran=2h/ends=4h",
            "5h/limit=9h bob:1x8/waited=9h/promised=4h,1h,n1:1/who=paid.acme.ml.bob",
            "- No set of jobs that it may preempt frees enough room on H100 without delaying starts"
            " that are promised to bob.",
        ),
        ("later@n1:8/ran=2h", "5h", "Preempts later (paid.acme.ml.ann) by age: class 0, 8 GPUs,"
         " 16 credits of lost work."),
    ],
)  # fmt: skip
def test_why_a_job_cannot_take_the_place_of_a_later_one(
    running: str, waited: str, want: str
) -> None:
    """From when on it can, or that the later jobs stay (S14)."""
    gpus = running.split("n1:")[1][0]
    queued = f"early:1x{gpus}/used=90/waited={waited}"
    case = Case(nodes="n1=8xH100", running=running, queued=queued, policy=SHIPPED, want="")

    assert want in explain(case.cluster(), JobId("early"), T0).render()


@pytest.mark.parametrize(
    ("running", "want"),
    [
        (
            "early@n1:8/ran=9h/ckpt=10m,5s",
            "- Cannot take the turn of early, an earlier job of its user: it would have to give it"
            " back after 4 h and lose its work. It could if it made checkpoints or ran at most 4"
            " h.",
        ),
        (
            "aged@n1:8/ran=1h/waited=5h/ckpt=10m,5s",
            "- Cannot take the turn of aged yet: it had waited too long and keeps its turn for"
            " another 3 h.",
        ),
    ],
)
def test_why_a_job_cannot_take_a_turn_that_is_kept(running: str, want: str) -> None:
    """Because it could not give it back, or because the other job waited too long for it (S14)."""
    case = Case(nodes="n1=8xH100", running=running, queued="later:1x8", policy=SHIPPED, want="")
    lines = explain(case.cluster(), JobId("later"), T0).render()

    assert want in lines
    assert not [line for line in lines if "work left" in line]
