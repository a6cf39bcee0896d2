"""Why a job waits, case by case: every blocker, who is in the way, what would help, when (S14)."""

import dataclasses
import re
from dataclasses import dataclass
from functools import partial
from textwrap import dedent

import pytest

from bursar.core.ids import JobId
from bursar.core.instant import HOUR, MINUTE, SECOND
from bursar.core.refusal import InvariantBroken
from bursar.core.scheduling.advice.pool_load import UNKNOWN_WAIT
from bursar.core.scheduling.explain.explanation import (
    Explanation,
    Prediction,
    StartBasis,
    explain,
    explain_new_job,
    likely_end,
)
from bursar.core.scheduling.explain.phrases import render_decimal, render_span
from bursar.core.scheduling.explain.reasons import START_REASONS, find_reasons
from bursar.core.scheduling.explain.what_if import WhatIfChange
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.jobs import StartReason
from bursar.core.scheduling.model.policy import Tier
from bursar.core.scheduling.placement.fragmentation import COST_MAX
from bursar.core.scheduling.plan import make_plan
from bursar.core.value import replace
from tests.support.random_clusters import indexes
from tests.support.scheduling_cases import CREDIT, PLAIN, T0, Case, after

NO_RIGHTS = """\
- Cannot preempt to reach a floor: neither its tier, org, account nor user has one.
- Cannot preempt in its own org: its class is 0, the lowest class of running preemptible jobs is 0.
- Cannot preempt other orgs: no other org of its tier is running jobs.
"""


@dataclass(frozen=True)
class Asked:
    """A pool, and what is told about one of its jobs."""

    case: Case
    job: str
    told: str


def asked(job: str, told: str, **pool: str) -> Asked:
    """What is told about a job of a pool; a line that is indented by four goes on."""
    text = re.sub("\n {4,}", " ", dedent(told)).replace("NO_RIGHTS\n", NO_RIGHTS)
    return Asked(Case(want="", **pool), job, text)  # type: ignore[arg-type]


CASES = {
    "too little is free": asked(
        "b",
        """\
        Position 1. Estimated start: in 30 min to 1 h.
        - Needs 4 GPUs of H100. Free: 0 GPUs, usable by this job: 0 GPUs.
        NO_RIGHTS
        Jobs on GPUs that it could use:
          a (paid.acme.ml.ann): 8 GPUs on n1, ends within 1 h
        To start it now: free 4 GPUs on 1 node of H100.
        """,
        nodes="n1=8xH100",
        running="a@n1:8/ends=1h",
        queued="b:4",
    ),
    "enough is free, but not together": asked(
        "b",
        """\
        Position 1. Estimated start: in 30 min to 1 h.
        - Needs 4 GPUs of H100. Free: 5 GPUs, of which in pieces too small or too far apart: 5 GPUs.
        - Cannot preempt to reach a floor: neither its tier, org, account nor user has one.
        - Cannot preempt in its own org: its class is 0, the lowest class of running preemptible
            jobs is none.
        - Cannot preempt other orgs: no other org of its tier is running jobs.
        Jobs on GPUs that it could use:
          a (paid.acme.ml.ann): 6 GPUs on n1, ends within 1 h
          c (paid.acme.ml.ann): 5 GPUs on n2, ends within 2 h
        To start it now: free 1 GPU on 1 node of H100.
        """,
        nodes="n1=8xH100 n2=8xH100",
        running="a@n1:6/ends=1h/fixed c@n2:5/ends=2h/fixed",
        queued="b:1x4",
    ),
    "others before it have a claim on what is free": asked(
        "late",
        """\
        Position 2, behind up to 384 GPU-hours of work. Estimated start: in 30 min at the
            earliest. The latest is unknown: jobs ahead of it have no planned start yet.
        - Needs 4 GPUs of H100. Free: 8 GPUs, not claimed by planned starts: 0 GPUs. First
            planned start: in 1 h (gang).
        NO_RIGHTS
        Jobs on GPUs that it could use:
          long (paid.acme.ml.ann): 8 GPUs on n1, ends within 1 h
        To start it now: run at most 1 h instead of 1 h 1 min.
        """,
        nodes="n1=8xH100 n2=8xH100",
        running="long@n1:8/ends=60m",
        queued="gang:16 late:4/limit=61m/used=1",
    ),
    "all ceilings and quotas are told, from the user up": asked(
        "b",
        """\
        Position 1. Estimated start: unknown, because a ceiling must be raised, or a job below
            it must end.
        - On H100, paid.acme.ml may use at most 5 GPUs of H100 (in use: 2 GPUs, needed: 4 GPUs).
        - On H100, paid.acme may use at most 5 GPUs of any type (in use: 2 GPUs, needed: 4 GPUs).
        - On H100, paid.acme may run at most 1 job at a time (running: 1).
        - On H100, ann may use at most 3 GPUs of any type (in use: 2 GPUs, needed: 4 GPUs).
        Jobs on GPUs that it could use:
          a (paid.acme.ml.ann): 2 GPUs on n1, ends within 1 h
        To start it now: raise the ceiling of paid.acme.ml by 1 GPU and raise the ceiling of
            paid.acme by 1 GPU and raise the job limit of paid.acme by 1 and raise the ceiling
            of ann by 3 GPUs.
        """,
        nodes="n1=8xH100",
        running="a@n1:2/ends=1h/counted=ann",
        queued="b:4/counted=ann",
        shares="paid.acme=ceil5,jobs1 paid.acme.ml=ceil5H100 @ann=ceil3",
    ),
    "a ceiling, and no room either": asked(
        "b",
        """\
        Position 1. Estimated start: unknown, because a ceiling must be raised, or a job below
            it must end.
        - On H100, paid.acme may use at most 4 GPUs of any type (in use: 2 GPUs, needed: 4 GPUs).
        - Needs 4 GPUs of H100. Free: 0 GPUs, usable by this job: 0 GPUs.
        Jobs on GPUs that it could use:
          a (paid.acme.ml.ann): 2 GPUs on n1, ends within 1 h
          c (free.x.y.z): 6 GPUs on n1, ends within 2 h
        To start it now: raise the ceiling of paid.acme by 2 GPUs and free 4 GPUs on 1 node of H100.
        """,
        nodes="n1=8xH100",
        running="a@n1:2/ends=1h c@n1:6@2/who=free.x.y.z/ends=2h",
        queued="b:4",
        shares="paid.acme=ceil4",
    ),
    "another type would do": asked(
        "b",
        """\
        Position 1. Estimated start: in 30 min to 1 h.
        - Needs 4 GPUs of H100. Free: 0 GPUs, usable by this job: 0 GPUs.
        NO_RIGHTS
        Jobs on GPUs that it could use:
          a (paid.acme.ml.ann): 8 GPUs on n1, ends within 1 h
        To start it now: accept A100 as well.
        """,
        nodes="n1=8xH100 n2=8xA100",
        running="a@n1:8/ends=1h",
        queued="b:4",
    ),
    "one type is at its ceiling, the other is full": asked(
        "b",
        """\
        Position 1. Estimated start: in 15 min to 30 min.
        - H100 is not allowed now: paid.acme may use at most 4 GPUs of H100 (in use: 4 GPUs,
            needed: 4 GPUs).
        - Needs 4 GPUs of A100. Free: 0 GPUs, usable by this job: 0 GPUs.
        NO_RIGHTS
        Jobs on GPUs that it could use:
          c (paid.acme.ml.ann): 8 GPUs on n2, ends within 30 min
          a (paid.acme.ml.ann): 4 GPUs on n1, ends within 1 h
        To start it now: raise the ceiling of paid.acme by 4 GPUs.
        """,
        nodes="n1=8xH100 n2=8xA100",
        running="a@n1:4/ends=1h c@n2:8/ends=30m",
        queued="b:4/on=H100,A100",
        shares="paid.acme=ceil4H100",
    ),
    "no node is as it asks": asked(
        "b",
        """\
        Position 1. Estimated start: unknown, because no running job and no node on order makes
            room for it.
        - No H100 node has the label nvme.
        - A100 has at most 40 GiB of GPU memory; this job needs 80 GiB.
        - No A100 node has the label nvme.
        - No B200 node has the label nvme.
        - No node has L40.
        To start it now: do not require the label nvme.
        """,
        nodes="n1=8xH100/labels=ib n2=8xA100/mem=40 n3=8xB200/state=dead",
        queued="b:4/on=H100,A100,B200,L40/mem=80/label=nvme",
    ),
    "each label is there, but no node has both": asked(
        "b",
        """\
        Position 1. Estimated start: unknown, because no running job and no node on order makes
            room for it.
        - No H100 node has all of: ib and nvme.
        To start it now: do not require the label ib.
        """,
        nodes="n1=8xH100/labels=ib n2=8xH100/labels=nvme",
        queued="b:1/label=ib,nvme",
    ),
    "no GPU is divided so that its part would be whole slots": asked(
        "b",
        """\
        Position 1. Estimated start: unknown, because no running job and no node on order makes
            room for it.
        - 0.3 GPUs of H100 is not a whole number of slots (slots per GPU: 1 or 4). Possible
            instead: 0.25 GPUs or 0.5 GPUs.
        - 0.3 GPUs of A100 is not a whole number of slots (slots per GPU: 1). Possible instead:
            1 GPU.
        To start it now: request 0.25 GPUs instead of 0.3 GPUs.
        """,
        nodes="n1=8xH100 n2=8xH100/slots=4 n3=8xA100",
        queued="b:0.3/on=H100,A100",
    ),
    "the label is here, the slots are there": asked(
        "b",
        """\
        Position 1. Estimated start: unknown, because no running job and no node on order makes
            room for it.
        - No H100 node has all of: ib and slots of 0.5 GPU.
        To start it now: request 1 GPU instead of 0.5 GPUs.
        """,
        nodes="n1=8xH100/labels=ib n2=8xH100/slots=4",
        queued="b:0.5/label=ib",
    ),
    "no node stands where it may run": asked(
        "b",
        """\
        Position 1. Estimated start: unknown, because no running job and no node on order makes
            room for it.
        - No H100 node is in region ap-1 or eu-1.
        - No A100 node has all of: ib and region ap-1 or eu-1.
        To start it now: do not require the label ib.
        """,
        nodes="n1=8xH100/labels=ib/region=us-1 n2=8xA100/region=eu-1 n3=8xA100/labels=ib",
        queued="b:4/on=H100,A100/label=ib/region=ap-1,eu-1",
    ),
    "whoever may run in one region is not in the way in another": asked(
        "b",
        """\
        Position 1. Estimated start: in 30 min to 1 h.
        - Needs 8 GPUs of H100. Free: 0 GPUs, usable by this job: 0 GPUs.
        NO_RIGHTS
        Jobs on GPUs that it could use:
          a (paid.acme.ml.ann): 8 GPUs on n1, ends within 1 h
        To start it now: allow region us-2 as well.
        """,
        nodes="n1=8xH100/region=eu-1 n2=8xH100/region=us-1 n3=8xH100/region=us-2",
        running="a@n1:8/ends=1h c@n2:8/ends=10m",
        queued="b:8/region=eu-1",
    ),
    "all nodes that would do are away": asked(
        "b",
        """\
        Position 1. Estimated start: unknown, because no running job and no node on order makes
            room for it.
        - Even without other jobs, only 0 of 4 tasks would fit on H100 within one pool; 24 would
            fit if 3 nodes were ready (2 draining, 1 dead).
        """,
        nodes="n1=8xH100/state=draining n2=8xH100/state=draining n3=8xH100/state=dead",
        queued="b:4",
    ),
    "one that is away is not missed": asked(
        "b",
        """\
        Position 1. Estimated start: in 30 min to 1 h.
        - Needs 4 GPUs of H100. Free: 0 GPUs, usable by this job: 0 GPUs.
        NO_RIGHTS
        Jobs on GPUs that it could use:
          a (paid.acme.ml.ann): 8 GPUs on n1, ends within 1 h
        To start it now: free 4 GPUs on 1 node of H100.
        """,
        nodes="n1=8xH100 n2=8xH100/state=dead",
        running="a@n1:8/ends=1h",
        queued="b:4",
    ),
    "a gang may lie in both regions": asked(
        "b",
        """\
        Position 1. Estimated start: unknown, because no running job and no node on order makes
            room for it.
        - Even without other jobs, only 1 of 2 tasks would fit on H100 within one pool.
        To start it now: allow region us-1 as well.
        """,
        nodes="n1=8xH100/region=eu-1 n2=8xH100/region=us-1",
        queued="b:2x8/region=eu-1",
    ),
    "others with a date have a claim on what is free": asked(
        "first",
        """\
        Position 1. Estimated start: in 30 min to 2 h, as promised.
        - Needs 8 GPUs of H100. Free: 8 GPUs, not claimed by planned starts: 0 GPUs. First
            planned start: in 1 h (second).
        NO_RIGHTS
        Jobs on GPUs that it could use:
          a (paid.acme.ml.ann): 8 GPUs on n2, ends within 1 h
        To start it now: run at most 1 h instead of 24 h.
        """,
        nodes="n1=8xH100 n2=8xH100",
        running="a@n2:8/ends=1h",
        queued="first:1x8/promised=2h,3h,n2:1"
        " second:2x8/limit=1h/who=paid.b.b.b/promised=1h,2h,n1:1+n2:1",
    ),
    "what is left below a ceiling was promised": asked(
        "u",
        """\
        Position 2, behind up to 192 GPU-hours of work. Estimated start: in 30 min at the
            earliest. The latest is unknown: jobs ahead of it have no planned start yet.
        - Needs 1 GPU of H100. Free: 0 GPUs, usable by this job: 0 GPUs.
        - Cannot preempt on H100: what the ceiling of paid.acme still allows is promised to first.
        Jobs on GPUs that it could use:
          v (paid.vic.ml.bob): 8 GPUs on n1, ends within 1 h
        """,
        nodes="n1=8xH100",
        running="v@n1:8/who=paid.vic.ml.bob/ends=1h",
        queued="first:1x8/promised=1h,1h,n1:1 u:1/used=1",
        shares="paid.acme=ceil8",
    ),
    "one that would do is away": asked(
        "b",
        """\
        Position 1. Estimated start: unknown, because no running job and no node on order makes
            room for it.
        - Even without other jobs, only 1 of 2 tasks would fit on H100 within one rack; 2 would
            fit if 1 node were ready (1 quarantined).
        """,
        nodes="n1=8xH100 n2=8xH100/state=quarantined n3=4xH100/state=dead"
        " n4=8xH100/mem=40/state=dead",
        queued="b:2x8/mem=80/within=rack",
    ),
    "less memory would do": asked(
        "b",
        """\
        Position 1. Estimated start: unknown, because no running job and no node on order makes
            room for it.
        - H100 has at most 80 GiB of GPU memory; this job needs 141 GiB.
        To start it now: accept 80 GiB of GPU memory instead of 141 GiB.
        """,
        nodes="n1=8xH100 n2=8xH100/mem=40",
        queued="b:1/mem=141",
    ),
    "no node is large enough": asked(
        "b",
        """\
        Position 1. Estimated start: unknown, because no running job and no node on order makes
            room for it.
        - No H100 node can run a task, even when empty. A task needs 16 GPUs, 0 CPUs and 0 MiB
            of memory; the largest node has 8 GPUs.
        """,
        nodes="n1=8xH100 n2=8xH100",
        queued="b:1x16",
    ),
    "no rack is large enough": asked(
        "b",
        """\
        Position 1. Estimated start: unknown, because no running job and no node on order makes
            room for it.
        - Even without other jobs, only 8 of 16 tasks would fit on H100 within one rack.
        To start it now: let it spread over one pool instead of one rack.
        """,
        nodes="n1=8xH100/rack=r1 n2=8xH100/rack=r2",
        queued="b:16/within=rack",
    ),
    "a start failed": asked(
        "b",
        """\
        Position 1. Estimated start: in 30 s at the earliest. The latest is unknown: after a
            failed start it may no longer be first in the queue.
        - The last start failed. The next attempt is in 30 s.
        """,
        nodes="n1=8xH100",
        queued="b:1/again=30s",
    ),
    "GPUs are freed for it": asked(
        "u",
        """\
        Position 1. Estimated start: within 30 s, on GPUs that are earmarked for it.
        Preempts new (paid.acme.ml.ann) by class: class 0, 4 GPUs, 0.333 credits of lost work.
        Preempts 1 job in total: highest class 0, 0.333 credits of lost work, 4 GPUs freed, 4
            GPUs earmarked for this job.
        - Earmarked for this job: 4 GPUs of H100 on n1. Waiting for 1 job to stop there (new):
            at most 30 s.
        Jobs on GPUs that it could use:
          new (paid.acme.ml.ann): 4 GPUs on n1, ends within 30 s
          old (paid.acme.ml.ann): 4 GPUs on n1, ends within 23 h 10 min
        """,
        nodes="n1=8xH100",
        running="old@n1:4/batch/ran=50m new@n1:4@4/batch/ran=5m",
        queued="u:4/prod",
    ),
    "waiting costs less than what others would lose": asked(
        "u",
        """\
        Position 1. Estimated start: in 2 min 30 s to 5 min.
        - Needs 4 GPUs of H100. Free: 0 GPUs, usable by this job: 0 GPUs.
        - Waiting is cheaper: preempting 1 job would lose 700 credits of work, waiting 5 min
            costs 0.333 credits.
        Jobs on GPUs that it could use:
          old (paid.acme.ml.ann): 8 GPUs on n1, ends within 5 min
        To start it now: free 4 GPUs on 1 node of H100.
        """,
        nodes="n1=8xH100",
        running="old@n1:8/batch/ran=50m/ends=5m/price=100",
        queued="u:4/prod",
    ),
    "GPUs are free in a moment": asked(
        "u",
        """\
        Position 1. Estimated start: in 10 s to 20 s.
        - Needs 8 GPUs of H100. Free: 4 GPUs, usable by this job: 4 GPUs.
        - Preempts no jobs, because GPUs are free in 20 s anyway.
        Jobs on GPUs that it could use:
          old (paid.acme.ml.ann): 4 GPUs on n2, ends within 20 s
          low (paid.acme.ml.ann): 8 GPUs on n1, ends within 23 h 50 min
        To start it now: free 4 GPUs on 1 node of H100.
        """,
        nodes="n1=8xH100 n2=8xH100",
        running="old@n2:4/fixed/ends=20s low@n1:8",
        queued="u:8/prod",
    ),
    "too few may be asked": asked(
        "u",
        """\
        Position 1. Estimated start: in 11 h 55 min to 23 h 50 min.
        - Needs 4 GPUs of H100. Free: 0 GPUs, usable by this job: 0 GPUs.
        - Preemption cannot free enough H100. Missing: 1 GPU. Free: 0 GPUs. In jobs it may
            preempt: 3 GPUs, in other jobs: 5 GPUs.
        Jobs on GPUs that it could use:
          b (paid.acme.ml.ann): 3 GPUs on n1, ends within 23 h 50 min
          old (paid.acme.ml.ann): 5 GPUs on n1, ends within 23 h 50 min
        To start it now: free 4 GPUs on 1 node of H100.
        """,
        nodes="n1=8xH100",
        running="old@n1:5/fixed b@n1:3@5/batch",
        queued="u:1x4/prod",
    ),
    "a floor is reached with it": asked(
        "u",
        """\
        Position 1. Estimated start: in 11 h 55 min to 23 h 50 min.
        - Needs 4 GPUs of H100. Free: 0 GPUs, usable by this job: 0 GPUs.
        - Cannot preempt to reach a floor: paid.acme uses 4 GPUs and would use 4 GPUs more; its
            floor is 6 GPUs of any type.
        - Cannot preempt in its own org: its class is 0, the lowest class of running preemptible
            jobs is 0.
        - Cannot preempt other orgs: the largest, paid.b, uses 4 credits per hour and unit of
            weight; its own org would use 8 credits.
        Jobs on GPUs that it could use:
          a (paid.b.c.d): 4 GPUs on n1, ends within 23 h 50 min
          x (paid.acme.ml.bob): 4 GPUs on n1, ends within 23 h 50 min
        To start it now: free 4 GPUs on 1 node of H100.
        """,
        nodes="n1=8xH100",
        running="a@n1:4/who=paid.b.c.d x@n1:4@4/who=paid.acme.ml.bob",
        queued="u:4",
        shares="paid.acme=floor6,floor9A100",
    ),
    "a date was promised": asked(
        "old",
        """\
        Position 1. Estimated start: in 30 min to 1 h, as promised.
        It has waited so long that it is promised a start: in 1 h.
        - Needs 8 GPUs of H100. Free: 0 GPUs, usable by this job: 0 GPUs.
        NO_RIGHTS
        Jobs on GPUs that it could use:
          a (paid.acme.ml.bob): 8 GPUs on n1, ends within 1 h
        To start it now: free 8 GPUs on 1 node of H100.
        """,
        nodes="n1=8xH100",
        running="a@n1:8/ends=60m/who=paid.acme.ml.bob",
        queued="old:8/waited=48h young:1/who=paid.z.z.z/waited=1m",
    ),
    "it starts, on its second choice": asked(
        "u",
        """\
        Position 1. Starts now.
        Starts on n2 (A100, choice 2 of 2): it is next in the queue.
        Not on H100: no free GPUs fit.
        Its 4 tasks run on 1 node within one node.
        """,
        nodes="n1=8xH100 n2=8xA100",
        running="old@n1:8",
        queued="u:4/on=H100,A100/who=free.a.b.c",
    ),
    "half a GPU starts where it fits best": asked(
        "u",
        """\
        Position 1. Starts now.
        Starts on n1 (H100, choice 1 of 1): it is next in the queue.
        2 nodes had room. Fragmentation cost of the chosen node: 0 of WORST; free there afterwards:
            1 GPU.
        """.replace("WORST", str(COST_MAX)),
        nodes="n1=2xH100/slots=2 n2=2xH100/slots=2 n3=2xA100/slots=2 n4=2xH100/slots=2/mem=40",
        running="a@n1:1of2@0",
        queued="u:0.5/mem=80",
    ),
    "many are in the way": asked(
        "u",
        """\
        Position 1. Estimated start: in 11 h 55 min to 23 h 50 min.
        - Needs 12 GPUs of H100. Free: 0 GPUs, usable by this job: 0 GPUs.
        NO_RIGHTS
        Jobs on GPUs that it could use:
        HOLDERS
          and 2 more
        To start it now: free 12 GPUs on 1 node of H100.
        """.replace(
            "HOLDERS",
            "\n        ".join(
                f"  j{at:02} (paid.acme.ml.ann): 1 GPU on n1, ends within 23 h 50 min"
                for at in range(10)
            ),
        ),
        nodes="n1=12xH100",
        running=" ".join(f"j{at:02}@n1:1@{at}" for at in range(12)),
        queued="u:12",
    ),
}


def told(case: Case, job: str) -> Explanation:
    """What is told about a job; and the cluster is as before."""
    before = case.snapshot()
    cluster = Cluster.from_snapshot(before)
    plan = make_plan(cluster, T0)
    then = indexes(cluster)
    explanation = explain(cluster, JobId(job), T0)
    assert before == cluster.snapshot(), "explaining changed its input"
    assert then == indexes(cluster), "explaining changed ceilings, floors or orders"
    assert explanation == explain(cluster, JobId(job), T0, plan)
    return explanation


@pytest.mark.parametrize("one", CASES.values(), ids=CASES)
def test_explanations(one: Asked) -> None:
    """Every blocker in order, with figures; who holds what; the smallest change; when (S14)."""
    assert one.told.splitlines() == list(told(one.case, one.job).render())


# --------------------------------------------------------------------------- whom it may ask


def blockers(case: Case, job: str) -> dict[str, dict[str, int | str]]:
    """The figures of each blocker of a job, by its word."""
    return {one.code: dict(one.figures) for one in told(case, job).blockers}


def negative(nodes: int, tasks: int, floor_less: int = 1) -> Case:
    """A pool full of small jobs of an org whose floor leaves one GPU too little for a gang."""
    gpus = range(8)
    return Case(
        want="",
        nodes=" ".join(f"n{at}=8xH100" for at in range(nodes)),
        running=" ".join(
            f"r{at}-{gpu}@n{at}:1@{gpu}/who=paid.vic.ml.bob" for at in range(nodes) for gpu in gpus
        ),
        queued=f"gang:{tasks}x8",
        shares=f"paid.vic=floor{nodes * 8 - tasks * 8 + floor_less} paid.acme=floor{tasks * 8}",
    )


def test_the_exact_no() -> None:
    """A gang that lacks exactly one legal victim is told so: how many, and whose floor (S14)."""
    found = told(negative(6, 3), "gang")
    figures = {one.code: dict(one.figures) for one in found.blockers}["protected"]

    assert figures["missing_milli_gpus"] == 1_000
    assert (48_000, 23_000) == (figures["preemptible_milli_gpus"], figures["available_milli_gpus"])
    assert ("floor", "paid.vic", 25_000) == (
        figures["protection"],
        figures["path"],
        figures["protected_milli_gpus"],
    )
    floor = WhatIfChange(
        kind="floor", amount=1_000, figures=(("path", "paid.vic"), ("less_milli_gpus", 1_000))
    )
    assert (floor,) == found.smallest_change
    assert "To start it now: lower the floor of paid.vic by 1 GPU." in found.render()


def test_the_no_is_exact() -> None:
    """With one GPU less of floor the very same gang gets its victims."""
    plan = make_plan(negative(6, 3, floor_less=0).cluster(), T0)

    assert 24 + 1 == len(plan.decisions)


def test_floors_of_several_places_protect() -> None:
    """Floors add up from the users to the org; the one that keeps most is told first."""
    case = Case(
        want="",
        nodes="n1=8xH100",
        running=" ".join(
            f"{who}{at}@n1:1@{at + start}/who=paid.vic.ml.{who}"
            for who, start in (("ann", 0), ("bob", 4))
            for at in range(4)
        ),
        queued="u:1x8",
        shares="paid.acme=floor8 paid.vic=floor0 paid.vic.ml=floor6"
        " paid.vic.ml.ann=floor1 paid.vic.ml.bob=floor3H100",
    )
    figures = blockers(case, "u")["protected"]

    assert 8_000 - 2_000 == figures["missing_milli_gpus"]
    assert ("paid.vic.ml", 2) == (figures["path"], figures["more_groups"])
    assert told(case, "u").smallest_change[0].kind == "gpus", "no single floor is in the way"


def test_a_floor_is_lowered_as_far_as_whole_jobs_need() -> None:
    """By class, a job of four leaves a group of eight if the group's floor is four."""
    case = Case(
        want="",
        nodes="n1=8xH100",
        running="a@n1:4/batch/who=paid.acme.vic.ann b@n1:4@4/batch/who=paid.acme.vic.ann",
        queued="u:1x4/prod",
        shares="paid.acme.vic=floor6,floor5H100",
    )
    assert [("floor", 2_000)] == change(case, "u")


def test_a_floor_is_lowered_until_one_job_straddles_it() -> None:
    """To restore a floor, a job of four leaves a group of eight whose floor is seven."""
    case = Case(
        want="",
        nodes="n1=8xH100",
        running="a@n1:4/who=paid.vic.ml.ann b@n1:4@4/who=paid.vic.ml.ann",
        queued="u:1x4",
        shares="paid.acme=floor4 paid.vic=floor8",
    )
    assert [("floor", 1_000)] == change(case, "u")


def test_a_lower_floor_alone_may_not_help() -> None:
    """The floor is the first in the way, but the larger share would be gone as well."""
    case = Case(
        want="",
        nodes="n1=8xH100",
        running=" ".join(f"a{at}@n1:1@{at}/who=paid.vic.ml.bob" for at in range(8)),
        queued="u:1x5",
        shares="paid.vic=floor6",
    )
    assert "floor" == blockers(case, "u")["protected"]["protection"]
    assert [("gpus", 5_000)] == change(case, "u")


def test_a_share_that_stays_larger_is_no_bound() -> None:
    """One who could be asked by share is not held back; here waiting costs less."""
    case = Case(
        want="",
        nodes="n1=8xH100",
        running="a@n1:7/fixed/who=paid.vic.ml.bob"
        " b@n1:1@7/who=paid.vic.ml.bob/price=9/ran=5h/ends=1m",
        queued="u:1x1",
    )
    assert 1 == blockers(case, "u")["cheaper_to_wait"]["victims"]


def test_a_larger_share_is_given_only_until_it_is_the_smaller_one() -> None:
    """By share an org gives what leaves it no smaller part, and no more."""
    case = Case(
        want="",
        nodes="n1=8xH100",
        running=" ".join(f"a{at}@n1:1@{at}/who=paid.vic.ml.bob" for at in range(8)),
        queued="u:1x5",
    )
    figures = blockers(case, "u")["protected"]

    assert ("share", "paid.vic") == (figures["protection"], figures["path"])
    assert (2_000, 3_000) == (figures["missing_milli_gpus"], figures["available_milli_gpus"])
    assert told(case, "u").smallest_change[0].kind == "gpus"


def test_jobs_without_a_price_have_no_larger_share() -> None:
    """What costs nothing is no part of anything: it is not held back by share."""
    case = Case(
        want="",
        nodes="n1=8xH100",
        running="a@n1:6/who=paid.vic.ml.bob b@n1:2@6/who=paid.vic.ml.bob/price=0",
        queued="u:1x2",
    )
    assert 1 == len(
        [one for one in make_plan(case.cluster(), T0).decisions if hasattr(one, "lost")]
    )
    figures = blockers(altered_queue(case, "u:1x8"), "u")

    assert "no_larger_share" in figures


def altered_queue(case: Case, queued: str, shares: str | None = None) -> Case:
    """The same pool with other jobs waiting, and perhaps other shares."""
    return dataclasses.replace(
        case, queued=queued, shares=case.shares if shares is None else shares
    )


def test_enough_could_leave_but_not_together() -> None:
    """Whole jobs leave: no legal set of them makes room, though the sums would do."""
    case = Case(
        want="",
        nodes="n1=8xH100",
        running="a@n1:3/batch/who=paid.acme.vic.bob b@n1:5@3/batch/who=paid.acme.vic.bob",
        queued="u:1x4/prod",
        shares="paid.acme.vic=floor4",
    )
    assert {"types": "H100"} == blockers(case, "u")["no_victim_set"]


def test_whom_it_could_ask_is_told_if_the_plan_did_not_come_to_it() -> None:
    """Waiting would cost more: that it costs less is not told."""
    case = Case(
        want="",
        nodes="n1=8xH100",
        running=" ".join(f"v{at}@n1:1@{at}/who=paid.vic.ml.bob/price=9" for at in range(8)),
        queued="a:8/who=paid.a.a.a b:1/who=paid.b.b.b",
        usage="paid.b.b.b=1",
        policy=replace(PLAIN, looks=1),
    )
    found = told(case, "b")

    assert {"victims": 1, "lost_micros": 1_500_000} == blockers(case, "b")["preemption_deferred"]
    assert ["capacity", "preemption_deferred", "round_limit"] == [
        one.code for one in found.blockers
    ]
    assert (
        "- Could preempt 1 job (1.5 credits of lost work), but other jobs came first in this round."
        in found.render()
    )


def test_what_was_promised_is_not_made_room_on() -> None:
    """Others could leave, but not for as long as it runs; shorter it would get their GPUs."""
    case = Case(
        want="",
        nodes="n1=8xH100",
        running="low@n1:8/batch/ends=90m",
        queued="old:8/who=paid.z.z.z/waited=2h/promised=90m,1h,n1:8 u:8/prod/limit=2h",
    )
    short = altered_queue(case, case.queued.replace("limit=2h", "limit=1h"))

    assert {"types": "H100", "jobs": "old"} == blockers(case, "u")["victims_promised"]
    assert "earmarked" in blockers(short, "u")


def test_a_search_that_ended_found_nobody() -> None:
    """It is not told that nobody would do: that is not known."""
    case = Case(
        want="",
        nodes="n1=8xH100",
        running="a@n1:4/batch b@n1:4@4/batch",
        queued="u:1x8/prod",
        policy=replace(PLAIN, victim_steps=1),
    )
    found = blockers(case, "u")

    assert {"types": "H100", "steps": 1} == found["victim_search_limit"]
    assert not found.keys() & {"no_victim_set", "cheaper_to_wait"}


def test_a_place_on_another_type_counts_when_waiting_is_judged() -> None:
    """On A100 it could ask, but waiting for H100, where it could not, costs less."""
    case = Case(
        want="",
        nodes="n1=8xH100 n2=8xA100",
        running="a@n1:8/ends=10m/fixed b@n2:8/batch/ran=20h/ends=20h",
        queued="u:8/prod/on=H100,A100",
    )
    found = blockers(case, "u")

    assert "H100" == found["too_few_preemptible"]["gpu_type"]
    assert {"victims": 1, "start_us": 10 * MINUTE}.items() <= found["cheaper_to_wait"].items()


def test_whoever_ran_more_but_used_less_is_not_asked() -> None:
    """What decided is told: what was used, not what runs (S5, S14)."""
    case = Case(
        want="",
        nodes="n1=8xH100",
        running="a@n1:8/who=paid.vic.ml.bob",
        queued="u:1",
        usage="paid.acme.ml.ann=100 paid.vic.ml.bob=10",
        shares="paid.acme=w2",
    )
    found = blockers(case, "u")["no_larger_usage"]

    assert "paid.vic" == found["largest"]
    its, ours = found["largest_micros_by_weight"], found["own_micros_by_weight"]
    assert 17 <= int(its) // CREDIT <= 19, "ten, eight ahead, and ten minutes of eight; ten faded"
    assert 47 <= int(ours) // CREDIT <= 50, "a hundred and one ahead, by its weight of two"
    even = altered_queue(case, "u:8", shares="")
    assert "no_larger_share" in blockers(even, "u"), "as much as what runs: that alone would do"


def test_a_ceiling_of_strangers_is_free_again_if_it_ends_in_time() -> None:
    """What a tier has in common is theirs when they need it: a shorter limit would do."""
    case = Case(
        want="",
        nodes="n1=8xH100 n2=2xH100",
        running="a@n1:8/ends=1h/fixed",
        queued="first:1x8/who=free.a.b.c u:1x1/limit=2h/who=free.x.y.z",
        shares="free=ceil8",
    )
    assert {"gpu_type": "H100", "path": "free", "jobs": "first"} == blockers(case, "u")[
        "ceiling_claimed"
    ]
    assert [("limit", -HOUR)] == change(case, "u")
    short = altered_queue(case, "first:1x8/who=free.a.b.c u:1x1/limit=1h/who=free.x.y.z")
    assert told(short, "u").render()[0].endswith("Starts now.")


def test_two_types_are_told_apart() -> None:
    """On one type too few may be asked, on the other there might be some."""
    case = Case(
        want="",
        nodes="n1=8xH100 n2=8xA100",
        running="a@n1:8/fixed b@n2:8/price=1000/ran=5h/ends=1m",
        queued="u:1x4/on=H100,A100/prod",
    )
    found = blockers(case, "u")

    assert "H100" == found["too_few_preemptible"]["gpu_type"]
    assert 1 == found["cheaper_to_wait"]["victims"]


def test_a_gang_larger_than_its_nodes_lacks_whole_tasks() -> None:
    """More tasks are missing than there are nodes: each counts whole."""
    case = Case(
        want="",
        nodes="n1=4xH100",
        running=["a@n1:4/fixed", "b@n2:1/batch"][0],
        queued="u:4x1/prod",
    )
    more = Case(
        want="",
        nodes="n1=4xH100 n2=1xA100",
        running="a@n1:3/fixed b@n1:1@3/batch c@n2:1/batch",
        queued="u:4x1/prod",
    )
    assert "no_lower_class" in blockers(case, "u")
    assert 3_000 == blockers(more, "u")["too_few_preemptible"]["missing_milli_gpus"]


# --------------------------------------------------------------------------- when


def start(case: Case, job: str) -> Prediction:
    """When a job is likely to start, from now."""
    found = told(case, job).start
    return replace(
        found,
        earliest=None if found.earliest is None else found.earliest - T0,
        latest=None if found.latest is None else found.latest - T0,
    )


def test_estimates_count_for_the_earliest_start() -> None:
    """Whoever gave an estimate ends by it; whoever has passed it, by half of what is left."""
    pool = "n1=8xH100"
    for running, minutes in (("est=20m", 10), ("est=5m", 30), ("est=3h", 30)):
        case = Case(want="", nodes=pool, running=f"a@n1:8/ran=10m/ends=1h/{running}", queued="b:8")
        expected = Prediction(earliest=minutes * MINUTE, latest=HOUR, basis=StartBasis.PLANNED)
        assert expected == start(case, "b"), running


def test_whoever_was_asked_to_stop_ends_by_then() -> None:
    """A stop is sure: no half of anything."""
    case = Case(want="", nodes="n1=8xH100", running="a@n1:8/ends=1h/stops=20s", queued="b:8")

    assert 20 * SECOND == likely_end(case.snapshot().running[0], T0) - T0
    assert 20 * SECOND == start(case, "b").earliest


def test_nodes_on_order_count() -> None:
    """A node on order is capacity with a date; a draining one is none."""
    case = Case(
        want="",
        nodes="n1=8xH100/state=draining n2=8xH100/ready=30m n3=8xA100/ready=10m",
        running="a@n1:8/ends=1m",
        queued="b:8",
    )
    expected = Prediction(earliest=30 * MINUTE, latest=30 * MINUTE, basis=StartBasis.PLANNED)
    assert expected == start(case, "b")


def test_a_promise_holds_as_long_as_there_is_a_place_by_then() -> None:
    """Also if the plan was not asked; what is likely may be sooner, never later."""
    case = Case(
        want="",
        nodes="n1=8xH100",
        running="a@n1:8/ends=1h/est=3h",
        queued="old:8/promised=2h,1h,n1:8 new:1",
    )
    expected = Prediction(earliest=30 * MINUTE, latest=HOUR, basis=StartBasis.PROMISED)
    assert expected == start(case, "old"), "a sooner place is promised at once"
    for promised, earliest in ((2 * HOUR, 30 * MINUTE), (20 * MINUTE, 20 * MINUTE)):
        cluster = case.cluster()
        old = replace(cluster.waiting[JobId("old")], promised_at=T0 + promised)
        cluster.withdraw(JobId("old"))
        cluster.enqueue(old)
        unseen = replace(make_plan(cluster, T0), decisions=(), waits=())
        kept = Prediction(earliest=T0 + earliest, latest=T0 + promised, basis=StartBasis.PROMISED)

        assert kept == explain(cluster, JobId("old"), T0, unseen).start


OVERDUE = {
    "a date that has passed, and the place that it has now": (
        Case(
            want="",
            nodes="n1=8xH100",
            running="a@n1:8/ends=1h/fixed",
            queued="old:8/promised=30m,1h,n1:8 new:1",
        ),
        40 * MINUTE,
        "Overdue by 10 min. Estimated start: in 10 min to 20 min.",
    ),
    "a date that has passed, and no place any more": (
        Case(want="", nodes="n1=8xH100/state=dead", queued="old:8/promised=0s,1h,n1:8"),
        0,
        "Overdue by 0 s. Estimated start: unknown, because no running job and no node on order"
        " makes room for it.",
    ),
    "a date to come whose node is lost": (
        Case(
            want="",
            nodes="n1=8xH100/state=dead n2=8xH100",
            running="a@n2:8/ends=1h/fixed",
            queued="old:8/promised=30m,1h,n1:8",
        ),
        0,
        "The start promised in 30 min may be missed. Estimated start: in 30 min to 1 h.",
    ),
    "a date to come, and a ceiling": (
        Case(
            want="",
            nodes="n1=8xH100 n2=8xH100",
            running="a@n1:8/ends=1h/fixed",
            queued="old:8/promised=30m,1h,n1:8",
            shares="paid.acme=ceil8",
        ),
        0,
        "The start promised in 30 min may be missed. Estimated start: unknown, because a ceiling"
        " must be raised, or a job below it must end.",
    ),
}


@pytest.mark.parametrize(("case", "after", "told"), OVERDUE.values(), ids=OVERDUE)
def test_a_promise_that_is_not_kept_is_told_as_missed(case: Case, after: int, told: str) -> None:
    """By how much, and the place that the job has instead, or why it has none (S4, S14)."""
    assert f"Position 1. {told}" == explain(case.cluster(), JobId("old"), T0 + after).render()[0]


def test_kept_gpus_whose_victims_have_left_start_now() -> None:
    """Once the last victim has gone the job starts, and is told why it lies there."""
    case = CASES["GPUs are freed for it"].case
    before = case.snapshot()
    cluster = Cluster.from_snapshot(after(before, make_plan(Cluster.from_snapshot(before), T0)))
    waits = explain(cluster, JobId("u"), T0)

    assert "earmarked" == waits.start.basis
    assert T0 + 30 * SECOND == waits.start.latest
    assert 1 == waits.position
    cluster.remove_running(JobId("new"))
    starts = explain(cluster, JobId("u"), T0 + SECOND)
    assert "now" == starts.start.basis
    assert "GPUs were freed for it" in starts.render()[1]
    quick = explain(
        cluster, JobId("u"), T0 + SECOND, replace(make_plan(cluster, T0 + SECOND), decisions=())
    )
    assert (
        Prediction(earliest=T0 + SECOND, latest=T0 + SECOND, basis=StartBasis.EARMARKED)
        == quick.start
    )


def test_one_task_that_others_made_room_for() -> None:
    """Where it lies was decided when the victims were."""
    case = altered_queue(CASES["GPUs are freed for it"].case, "u:1x4/prod")
    before = case.snapshot()
    cluster = Cluster.from_snapshot(after(before, make_plan(Cluster.from_snapshot(before), T0)))
    cluster.remove_running(JobId("new"))

    assert 2 == len(explain(cluster, JobId("u"), T0 + SECOND).render())


def test_position_counts_all_before_it_in_turn() -> None:
    """GPU-hours ahead are those of all before it, by their bounds."""
    case = Case(
        want="",
        nodes="n1=8xH100",
        running="x@n1:8",
        queued="a:2/limit=1h/waited=3m b:4/limit=30m/waited=2m c:1/waited=1m",
    )
    found = told(case, "c")

    assert (3, 4_000) == (found.position, found.ahead_milli_gpu_hours)
    assert found.render()[0].startswith("Position 3, behind up to 4 GPU-hours of work. Estimated")


def test_a_round_that_ended_early_says_so() -> None:
    """Whoever was not looked at is told; nothing is made up."""
    policy = replace(PLAIN, looks=1, reservations=1)
    case = Case(
        want="",
        nodes="n1=8xH100",
        running="x@n1:8",
        queued="a:8/who=paid.a.a.a b:8/who=paid.b.b.b",
        policy=policy,
    )
    found = told(case, "b")

    assert not found.search_complete
    assert ("round_limit", (("blocked_jobs_max", 1),)) == (
        found.blockers[-1].code,
        found.blockers[-1].figures,
    )
    assert "The round ended before it had considered every job." == found.render()[-1]
    assert "unplanned" == found.start.basis


def test_one_may_stand_behind_others_like_it() -> None:
    """With room and without a blocker of its own: the plan says nothing of it, and it is told."""
    case = Case(want="", nodes="n1=8xH100", queued="a:1 b:1")
    cluster = case.cluster()
    unseen = replace(make_plan(cluster, T0), decisions=(), waits=())
    found = explain(cluster, JobId("b"), T0, unseen)

    assert "- Similar jobs of paid.acme.ml.ann are ahead of it and wait." in found.render()


def test_what_was_asked_to_stop_still_counts_for_ceilings() -> None:
    """Its GPUs and its place among the jobs are taken until it has gone."""
    case = Case(
        want="",
        nodes="n1=8xH100",
        running="a@n1:4/stops=20s",
        queued="b:4",
        shares="paid.acme=ceil4,jobs1",
    )
    found = [dict(one.figures) for one in told(case, "b").blockers]

    assert [4_000, 1] == [one.get("used_milli_gpus", one.get("running_jobs")) for one in found]


# --------------------------------------------------------------------------- changes


def change(case: Case, job: str) -> list[tuple[str, int]]:
    """The smallest change, as kinds and amounts."""
    return [(one.kind, one.amount) for one in told(case, job).smallest_change]


def test_more_gpus_are_freed_where_few_are_missing() -> None:
    """A gang's missing tasks are found where they cost the fewest GPUs."""
    case = Case(
        want="",
        nodes="n1=8xH100 n2=8xH100 n3=8xH100/mem=40",
        running="a@n1:5 b@n2:7 c@n3:8",
        queued="u:3x3/mem=80",
    )
    assert [("gpus", 2_000 + 3_000)] == change(case, "u")
    assert ("nodes", 2) in told(case, "u").smallest_change[0].figures


def test_one_change_is_smaller_than_two() -> None:
    """On one type a ceiling and GPUs, on the other GPUs alone, though more of them."""
    case = Case(
        want="",
        nodes="n1=8xH100 n2=8xA100",
        running="a@n1:5/fixed b@n2:8/fixed",
        queued="u:1x4/on=H100,A100",
        shares="paid.acme=ceil6H100",
    )
    found = told(case, "u").smallest_change

    assert [("gpus", 4_000)] == [(one.kind, one.amount) for one in found]
    assert ("gpu_type", "A100") in found[0].figures


def test_gpus_alone_do_not_help_where_processors_are_missing() -> None:
    """A change that would not start the job is not told."""
    case = Case(
        want="",
        nodes="n1=8xH100/cpu=16",
        running="a@n1:4/cpu=4",
        queued="u:1x4/cpu=4",
    )
    full = Case(want="", nodes="n1=8xH100/cpu=4", running="a@n1:4/cpu=4", queued="u:1x4/cpu=4")

    assert "u" == make_plan(case.cluster(), T0).decisions[0].job
    assert [] == change(full, "u")
    assert {"cpu_milli": 4_000, "ram_mib": 0, "free_milli_gpus": 4_000}.items() <= (
        blockers(full, "u")["cpu_or_memory"].items()
    )


def test_a_claimed_node_needs_more() -> None:
    """GPUs that others have a claim on are not counted as free."""
    case = Case(
        want="",
        nodes="n1=8xH100 n2=8xA100",
        running="a@n1:4/ends=1h",
        queued="first:1x6/limit=1h u:1x4/used=9",
    )
    assert [("limit", -HOUR)] == change(case, "u")
    kinds = {one.code for one in told(case, "u").blockers}
    assert "claimed" in kinds
    fixed = Case(
        want="",
        nodes="n1=8xH100",
        running="a@n1:4/ends=1h b@n1:2@4/ends=2h",
        queued="first:1x6/limit=1h u:1x2/limit=30h/used=9",
    )
    assert [("limit", -HOUR)] == change(fixed, "u")


def test_only_claims_in_the_way_are_named() -> None:
    """Not those on other types, nor those that begin when it is over."""
    case = Case(
        want="",
        nodes="n1=8xH100 n2=8xA100",
        running="a@n1:4/ends=1h/fixed b@n2:8/ends=30m/fixed",
        queued="first:1x8/who=paid.a.a.a other:1x8/on=A100/who=paid.b.b.b"
        " third:1x8/limit=1h/who=paid.c.c.c u:1x2/limit=2h/who=paid.d.d.d",
        usage="paid.b.b.b=1 paid.c.c.c=2 paid.d.d.d=3",
    )
    figures = blockers(case, "u")["claimed"]

    assert ("first", HOUR) == (figures["jobs"], figures["from_us"])


def test_a_ceiling_that_others_need_is_not_used_up() -> None:
    """However soon it ends: whoever came first would lose its place."""
    case = Case(
        want="",
        nodes="n1=8xH100 n2=2xH100 n3=8xA100",
        running="a@n1:8/ends=1h/fixed/who=free.x.y.z",
        queued="first:1x8 u:1x1/limit=1m/used=1 v:1x1/on=A100/limit=1m/used=2",
        shares="paid.acme=ceil8",
    )
    found = told(case, "u")

    assert {"gpu_type": "H100", "path": "paid.acme", "jobs": "first"} == blockers(case, "u")[
        "ceiling_claimed"
    ]
    assert () == found.smallest_change
    assert "ceiling_claimed" in blockers(case, "v"), "whatever the type"


@pytest.mark.parametrize(
    ("nodes", "job", "stranded"),
    [
        ("n1=8xA100", "u:1", True),
        ("n1=8xH100/state=dead n2=8xH100/state=draining", "u:1", True),
        ("n1=8xH100/state=dead n2=1xA100", "u:2/on=H100,A100", True),
        ("n1=8xH100/state=dead n2=2xA100", "u:2/on=H100,A100", False),
        ("n1=8xH100/ready=2h", "u:1", False),
        ("n1=8xH100", "u:1", False),
    ],
)
def test_a_job_is_stranded_where_no_node_could_ever_run_it(
    nodes: str, job: str, stranded: bool
) -> None:
    """Of none of its types; one that is on order could (S14)."""
    busy = "r@n2:2/fixed" if "2xA100" in nodes else ""
    assert stranded is told(Case(want="", nodes=nodes, running=busy, queued=job), "u").is_stranded


def test_a_floor_is_told_with_the_type_it_is_for() -> None:
    """GPUs of that type, or of any."""
    case = Case(
        want="",
        nodes="n1=4xH100",
        running="a@n1:4/who=paid.b.c.d",
        queued="u:4",
        shares="paid.acme=floor3,floor2H100",
    )
    floors = [line for line in told(case, "u").render() if "its floor is" in line]

    assert ["3 GPUs of any type.", "2 GPUs of H100."] == [line.split("is ")[-1] for line in floors]


def test_a_guess_is_moved_into_the_range_in_which_a_job_starts() -> None:
    """However long the queues are: who can be asked to leave makes the wait short (S14)."""
    full = partial(Case, want="", nodes="n1=8xH100")
    waits = told(full(running="a@n1:8/ends=60m/fixed", queued="u:8"), "u")
    asks = told(full(running="a@n1:8/ends=60m/batch", queued="u:8/prod"), "u")
    never = told(full(queued="u:16x1"), "u")
    behind = told(full(running="a@n1:8/ends=60m/fixed", queued="u:8/used=1 v:8"), "u")

    guesses = (0, 45 * MINUTE, 2 * HOUR, UNKNOWN_WAIT)
    assert [30 * MINUTE, 45 * MINUTE, HOUR, HOUR] == [waits.expected_wait(one) for one in guesses]
    assert [0, *[PLAIN.preemption_grace] * 3] == [asks.expected_wait(one) for one in guesses]
    assert [UNKNOWN_WAIT] * 4 == [never.expected_wait(one) for one in guesses]
    assert (None, 2 * HOUR, UNKNOWN_WAIT) == (
        *(behind.start.latest, behind.expected_wait(2 * HOUR), behind.expected_wait(UNKNOWN_WAIT)),
    )


def test_just_enough_but_not_together_is_fragmented() -> None:
    """Two and two free are four, and no place for a task of four."""
    case = Case(want="", nodes="n1=8xH100 n2=8xH100", running="a@n1:6 b@n2:6", queued="u:1x4")
    assert 4_000 == blockers(case, "u")["fragmented"]["fragmented_milli_gpus"]


def test_a_job_whose_labels_and_memory_are_apart() -> None:
    """One node has the label, another the memory."""
    case = Case(want="", nodes="n1=8xH100/labels=ib/mem=40 n2=8xH100", queued="u:1/label=ib/mem=80")
    found = blockers(case, "u")

    assert {"gpu_type": "H100", "requirements": "ib and 80 GiB"} == found["no_such_node"]


def test_what_is_freed_lasts_beside_the_claims() -> None:
    """With too long a claim in the way, more GPUs must be free than the job itself needs."""
    case = Case(
        want="",
        nodes="n1=9xH100",
        running="a@n1:4/ends=1h/fixed b@n1:3@4/fixed",
        queued="first:1x6/limit=1h u:1x3/limit=30h/used=9",
    )
    assert [("gpus", 3_000)] == change(case, "u"), "b's three; one would do without the claim"


# --------------------------------------------------------------------------- reasons


def reasons_of(case: Case, job: str) -> list[str]:
    """Why a plan decided what it did about a job."""
    cluster = case.cluster()
    before = cluster.snapshot()
    plan = make_plan(cluster, T0)
    found = [one.render() for one in find_reasons(cluster, JobId(job), plan)]
    assert before == cluster.snapshot()
    return found


def test_a_victim_is_told_for_whom_and_at_what_cost() -> None:
    """What is lost, by which right, and until when."""
    case = CASES["GPUs are freed for it"].case

    assert [
        "Preempted for u by class: 0.333 credits of lost work, stops within 30 s."
    ] == reasons_of(case, "new")
    assert [] == reasons_of(case, "old")


def test_a_more_welcome_type_was_passed_over_for_a_reason() -> None:
    """A ceiling, no room, or somebody's claim."""
    ceiling = Case(
        want="",
        nodes="n1=8xH100 n2=8xA100",
        queued="u:1x4/on=H100,A100",
        shares="paid.acme=ceil2H100",
    )
    claim = Case(
        want="",
        nodes="n1=8xH100 n2=8xH100 n3=8xA100",
        running="long@n1:8/ends=60m",
        queued="gang:16 u:1x4/on=H100,A100/used=1",
    )

    assert "Not on H100: paid.acme is at its ceiling." == reasons_of(ceiling, "u")[1]
    assert "Not on H100: planned starts need the free GPUs." == reasons_of(claim, "u")[1]
    assert "it delays no job ahead of it" in reasons_of(claim, "u")[0]


def test_a_gang_lies_in_the_smallest_place() -> None:
    """The level that all its nodes share is told."""
    case = Case(
        want="",
        nodes="n1=8xH100/rack=r1/island=i1 n2=8xH100/rack=r1/island=i1 n3=8xH100/rack=r2",
        queued="g:16",
    )
    assert "Its 16 tasks run on 2 nodes within one island." == reasons_of(case, "g")[1]


def test_one_that_waited_too_long_is_told_so() -> None:
    """Started for its age."""
    tiers = (Tier(name="paid", ages_after=HOUR),)
    case = Case(
        want="", nodes="n1=8xH100", queued="u:1/waited=2h", policy=replace(PLAIN, tiers=tiers)
    )
    assert "it waited the longest, and too long" in reasons_of(case, "u")[0]


def test_every_why_has_its_words() -> None:
    """A start is never without a reason."""
    assert set(StartReason) == set(START_REASONS)


# --------------------------------------------------------------------------- words


def test_amounts_and_spans_as_people_read_them() -> None:
    """As few digits as it takes."""
    assert ("8", "0.5", "12.345", "0") == tuple(
        render_decimal(amount, 1_000_000) for amount in (8_000_000, 500_000, 12_345_678, 999)
    )
    spans = (
        0,
        1,
        59 * SECOND,
        61 * SECOND,
        2 * MINUTE,
        HOUR,
        HOUR + 5 * MINUTE,
        -5,
        47 * HOUR,
        51 * HOUR,
    )
    assert [
        "0 s",
        "1 s",
        "59 s",
        "1 min 1 s",
        "2 min",
        "1 h",
        "1 h 5 min",
        "0 s",
        "47 h",
        "2 d 3 h",
    ] == [render_span(s) for s in spans]


def test_of_a_job_that_is_not_there_is_told_what_would_be() -> None:
    """And nothing is left of it, also if it cannot be said."""
    case = Case(want="", nodes="n1=8xH100", running="a@n1:8/ends=1h", queued="b:4")
    [job] = case.snapshot().waiting
    told = explain(Cluster.from_snapshot(case.snapshot()), job.id, T0)
    cluster = Cluster.from_snapshot(replace(case.snapshot(), waiting=()))
    cluster.advance_to(T0)
    before = cluster.snapshot(), indexes(cluster)

    assert told == explain_new_job(cluster, job, T0)
    with pytest.raises(InvariantBroken):
        explain_new_job(cluster, replace(job, id=JobId("a")), T0)
    assert before == (cluster.snapshot(), indexes(cluster))


@pytest.mark.parametrize(
    ("payable_types", "advised"),
    [(None, ["A100"]), (("H100",), []), (("H100", "A100"), ["A100"])],
)
def test_only_types_that_the_org_can_pay_for_are_advised(
    payable_types: tuple[str, ...] | None, advised: list[str]
) -> None:
    case = Case(want="", nodes="n1=8xH100 n2=8xA100", running="a@n1:8/ends=1h", queued="b:4")
    explanation = explain(case.cluster(), JobId("b"), T0, payable_types=payable_types)
    changes = [change for change in explanation.smallest_change if change.kind == "type"]
    assert advised == [dict(change.figures)["gpu_type"] for change in changes]
