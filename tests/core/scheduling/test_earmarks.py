"""GPUs that were freed for a job are its own, and a start that failed is not tried at once (S5)."""

import pytest

from tests.support.scheduling_cases import Case
from tests.support.scheduling_checks import check

CASES = {
    "it starts when all have left": Case(
        nodes="n1=4xH100",
        queued="u:4",
        kept="u@n1:4/from=low",
        want="u -> n1:4 freed",
    ),
    "it waits while somebody is there": Case(
        nodes="n1=4xH100",
        running="low@n1:4/stops=20s",
        queued="u:4",
        kept="u@n1:4/from=low",
        want="",
    ),
    "it waits for the last of several": Case(
        nodes="n1=4xH100 n2=4xH100",
        running="low@n2:4/stops=20s",
        queued="u:8",
        kept="u@n1:4+n2:4/from=gone,low",
        want="",
    ),
    "it waits for who leaves other GPUs: below its ceiling there is no room yet": Case(
        nodes="n1=4xH100 n2=4xH100",
        running="low@n1:4/stops=20s",
        queued="u:4",
        shares="paid.acme=ceil4",
        kept="u@n2:4/from=low",
        want="",
    ),
    "somebody with a better turn does not get them": Case(
        nodes="n1=4xH100",
        running="low@n1:4/stops=20s",
        queued="u:4 other:4/who=paid.beta.x.bob",
        usage="paid.acme.ml.ann=100",
        kept="u@n1:4/since=10s/from=low",
        want="other waits needs=4 free=0 start=86420s",
    ),
    "nor when they are free": Case(
        nodes="n1=4xH100",
        queued="u:4 other:4/who=paid.beta.x.bob",
        usage="paid.acme.ml.ann=100",
        kept="u@n1:4/from=low",
        want="u -> n1:4 freed; other waits needs=4 free=0 start=24h",
    ),
    "nor one that has waited too long": Case(
        nodes="n1=4xH100",
        queued="u:4 old:4/waited=25h/who=paid.beta.x.bob",
        kept="u@n1:4/from=low",
        want="u -> n1:4 freed; old promised start=24h; old waits needs=4 free=0 start=24h",
    ),
    "nor one that would be short": Case(
        nodes="n1=4xH100 n2=4xH100",
        running="low@n2:4/stops=20s",
        queued="u:8 short:1/limit=1s/who=paid.beta.x.bob",
        kept="u@n1:4+n2:4/since=10s/from=low",
        want="short waits needs=1 free=0 start=86420s",
    ),
    "they count as use of its owner": Case(
        nodes="n1=4xH100 n2=1xH100",
        running="low@n1:4/stops=20s/who=paid.zeta.x.zoe",
        queued="u:4 a:1 b:1/who=paid.beta.x.bob",
        kept="u@n1:4/from=low",
        usage="paid.beta.x.bob=3",
        want="b -> n2:1; a waits needs=1 free=0 start=24h",
    ),
    "what is left of the node is for others": Case(
        nodes="n1=8xH100",
        running="low@n1:4/stops=20s",
        queued="u:4 other:4/who=paid.beta.x.bob",
        kept="u@n1:4/from=low",
        want="other -> n1:4",
    ),
    "who makes room is not asked for more": Case(
        nodes="n1=8xH100",
        running="low@n1:8/batch/stops=20s",
        queued="u:4/prod v:4/prod",
        kept="u@n1:4/since=10s/from=low",
        want="v waits needs=4 free=0 start=20s",
    ),
    "whose GPUs are kept makes no room": Case(
        nodes="n1=4xH100",
        running="low@n1:4/batch/stops=20s",
        queued="u:4/class=50 v:4/prod",
        kept="u@n1:4/since=10s/from=low",
        want="v waits needs=4 free=0 start=86420s",
    ),
    # ------------------------------------------------------------------ starts that failed
    "a job whose start failed is not tried before its time": Case(
        nodes="n1=4xH100",
        queued="broken:4/waited=9m/again=30s good:4",
        want="good -> n1:4",
    ),
    "and nobody is preempted for it": Case(
        nodes="n1=4xH100",
        running="low@n1:4/batch",
        queued="broken:4/prod/again=30s",
        want="",
    ),
    "when its time has come it is tried again": Case(
        nodes="n1=4xH100",
        queued="broken:4/waited=9m/again=0s good:4",
        want="broken -> n1:4; good waits needs=4 free=0 start=24h",
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_earmarks(case: Case) -> None:
    """Freed GPUs go to the job they were freed for."""
    check(case)
