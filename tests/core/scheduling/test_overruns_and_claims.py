"""Ends that did not come, and GPUs that are free but somebody else's."""

import pytest

from tests.support.scheduling_cases import Case
from tests.support.scheduling_checks import check

CASES = {
    "what should have ended is expected within the grace": Case(
        nodes="n1=8xH100",
        running="late@n1:8/ends=0s/fixed",
        queued="next:8",
        want="next waits needs=8 free=0 start=30s",
    ),
    "what should have ended long ago is not counted on any more": Case(
        nodes="n1=8xH100 n2=8xH100",
        running="late@n1:8/ran=2h/limit=1h/fixed other@n2:8/ends=10m/fixed",
        queued="next:8",
        want="next waits needs=8 free=0 start=10m",
    ),
    "and nobody is asked who is ending anyway": Case(
        nodes="n1=8xH100",
        running="late@n1:8/ends=0s/batch",
        queued="urgent:8/prod",
        want="urgent waits needs=8 free=0 start=30s",
    ),
    "a node that comes sooner than that is taken": Case(
        nodes="n1=2xH100 n2=2xH100/ready=1s n3=2xH100",
        running="late@n1:2/ends=0s/fixed other@n3:2/ends=10m/fixed",
        queued="next:1x2",
        want="next waits needs=2 free=0 start=1s",
    ),
    "one that comes later is not": Case(
        nodes="n1=2xH100 n2=2xH100/ready=40s",
        running="late@n1:2/ends=0s/fixed",
        queued="next:1x2",
        want="next waits needs=2 free=0 start=30s",
    ),
    "GPUs of a job past its end are not given away": Case(
        nodes="n1=8xH100",
        running="late@n1:4/ends=0s/fixed",
        queued="next:1x4",
        want="next -> n1:4",
    ),
    "a part of a GPU waits for the last that is in its way": Case(
        nodes="n1=1xH100/slots=2",
        running="a@n1:1of2@0/ends=10m/fixed b@n1:1of2@0/ends=20m/fixed",
        queued="whole:1",
        want="whole waits needs=1 free=0 start=20m",
    ),
    "a large part waits for two small ones": Case(
        nodes="n1=1xH100/slots=4",
        running="a@n1:1of4@0/ends=10m/fixed b@n1:3of4@0/ends=20m/fixed",
        queued="part:0.75",
        want="part waits needs=0.75 free=0 start=20m",
    ),
    "GPUs are free, but the memory only later": Case(
        nodes="n1=2xH100/ram=8",
        running="a@n1:1/ram=4/ends=10m/fixed b@n1:1@1/ram=4/ends=20m/fixed",
        queued="big:1x1/ram=6",
        want="big waits needs=1 free=0 start=20m",
    ),
    "a limit outside the tree stops those alone that it counts": Case(
        nodes="n1=8xH100",
        running="x@n1:2/counted=p",
        queued="a:2/counted=p b:2/used=1",
        shares="@p=ceil2",
        want="b -> n1:2; a waits ceiling at=p of=* used=2 most=2",
    ),
    "whoever may ask does so, though one with a future place needs the ceiling too": Case(
        nodes="n1=8xH100",
        running=" ".join(f"v{at}@n1:1@{at}/who=paid.vic.ml.bob/ends=60m" for at in range(8)),
        queued="first:1x8 u:1/used=1",
        shares="paid.acme=ceil8",
        want="v0 preempted for=u by=share; u waits on=n1:1;"
        " first waits ceiling at=paid/acme of=* used=1 most=8",
    ),
    "but not if it was promised": Case(
        nodes="n1=8xH100",
        running=" ".join(f"v{at}@n1:1@{at}/who=paid.vic.ml.bob/ends=60m" for at in range(8)),
        queued="first:1x8/promised=1h,1h,n1:1 u:1/used=1",
        shares="paid.acme=ceil8",
        want="first waits needs=8 free=0 start=1h; u waits crowded needs=1 free=0",
    ),
    "nobody is asked where it is free, and somebody else's": Case(
        nodes="n1=8xH100",
        running="low@n1:4/batch/ends=60m",
        queued="all:1x8/who=paid.beta.x.bob urgent:1x4/prod",
        usage="paid.acme.ml.ann=10",
        want="all waits needs=8 free=4 start=1h; urgent waits needs=4 free=4 start=25h",
    ),
    "nor for a gang": Case(
        nodes="n1=8xH100",
        running="low@n1:4/batch/ends=60m",
        queued="all:1x8/who=paid.beta.x.bob urgent:2x2/prod",
        usage="paid.acme.ml.ann=10",
        want="all waits needs=8 free=4 start=1h; urgent waits needs=4 free=4 start=25h",
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_overruns_and_claims(case: Case) -> None:
    """S7: bounds are bounds, whether or not they were kept."""
    check(case)
