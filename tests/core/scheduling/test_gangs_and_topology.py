"""Gangs: all or nothing, tasks whole, as close together as can be (S1, S2)."""

import pytest

from tests.support.scheduling_cases import Case
from tests.support.scheduling_checks import check

CASES = {
    # ------------------------------------------------------------------ all or nothing
    "a gang takes nothing until it can take all": Case(
        nodes="n1=8xH100 n2=8xH100",
        running="x@n1:4",
        queued="gang:16",
        want="gang waits needs=16 free=12 start=1430m",
    ),
    "two gangs do not hold what the other waits for": Case(
        nodes="n1=8xH100 n2=8xH100",
        queued="g1:12 g2:12",
        want="g1 -> n1:8+n2:4; g2 waits needs=12 free=4 start=24h",
    ),
    "a gang over two whole nodes": Case(
        nodes="n1=8xH100 n2=8xH100",
        queued="gang:2x8",
        want="gang -> n1:8+n2:8",
    ),
    "a task is not divided between nodes": Case(
        nodes="n1=8xH100 n2=8xH100 n3=8xH100",
        running="x@n1:4 y@n2:4",
        queued="gang:2x8",
        want="gang waits needs=16 free=16 start=1430m",
    ),
    "tasks of one GPU may lie anywhere": Case(
        nodes="n1=8xH100 n2=8xH100",
        running="x@n1:4 y@n2:4",
        queued="gang:8",
        want="gang -> n1:4+n2:4",
    ),
    "several tasks lie on one node": Case(
        nodes="n1=8xH100 n2=8xH100",
        queued="gang:3x4",
        want="gang -> n1:8+n2:4",
    ),
    "processors of every task count": Case(
        nodes="n1=8xH100/cpu=8 n2=8xH100/cpu=8",
        queued="gang:4/cpu=4",
        want="gang -> n1:2+n2:2",
    ),
    "a gang lies on GPUs of one type": Case(
        nodes="n1=4xH100 n2=4xA100",
        queued="gang:8/on=H100,A100",
        want="gang waits never_fits needs=8 free=8",
    ),
    "a gang goes to the next type as a whole": Case(
        nodes="n1=8xH100 n2=8xA100",
        running="x@n1:1",
        queued="gang:8/on=H100,A100",
        want="gang -> n2:8",
    ),
    "every node of a gang has memory and labels": Case(
        nodes="n1=4xH100/mem=40/labels=ib n2=4xH100/labels=ib n3=4xH100 n4=4xH100/labels=ib",
        queued="gang:8/mem=80/label=ib",
        want="gang -> n2:4+n4:4",
    ),
    # ------------------------------------------------------------------ close together
    "one node is closer than two": Case(
        nodes="n1=8xH100 n2=8xH100 n3=8xH100",
        running="x@n1:4 y@n2:4",
        queued="gang:8",
        want="gang -> n3:8",
    ),
    "few nodes, the last one as tight as can be": Case(
        nodes="n1=8xH100 n2=8xH100 n3=8xH100",
        running="x@n1:4",
        queued="gang:12",
        want="gang -> n1:4+n2:8",
    ),
    "nodes of one island are closer than others": Case(
        nodes="n1=4xH100/island=i1 n2=4xH100/island=i2 n3=4xH100/island=i2",
        queued="gang:8",
        want="gang -> n2:4+n3:4",
    ),
    "nodes of one rack are closer than others": Case(
        nodes="n1=4xH100/rack=r1 n2=4xH100/rack=r2 n3=4xH100/rack=r2",
        queued="gang:8",
        want="gang -> n2:4+n3:4",
    ),
    "an island is closer than a rack": Case(
        nodes="n1=4xH100/rack=r1 n2=4xH100/rack=r1"
        " n3=4xH100/rack=r2/island=i1 n4=4xH100/rack=r2/island=i1",
        queued="gang:8",
        want="gang -> n3:4+n4:4",
    ),
    "of two islands the tighter one": Case(
        nodes="n1=4xH100/island=i1 n2=4xH100/island=i1 n3=4xH100/island=i1"
        " n4=4xH100/island=i2 n5=4xH100/island=i2",
        queued="gang:8",
        want="gang -> n4:4+n5:4",
    ),
    "of equal islands the first by name": Case(
        nodes="n1=4xH100/island=i2 n2=4xH100/island=i2 n3=4xH100/island=i1 n4=4xH100/island=i1",
        queued="gang:8",
        want="gang -> n3:4+n4:4",
    ),
    "what is preferred is not required: racks are crossed if need be": Case(
        nodes="n1=4xH100/rack=r1 n2=4xH100/rack=r2",
        queued="gang:8",
        want="gang -> n1:4+n2:4",
    ),
    # ------------------------------------------------------------------ required
    "within a node: two halves will not do": Case(
        nodes="n1=4xH100 n2=4xH100",
        queued="gang:8/within=node",
        want="gang waits never_fits needs=8 free=8",
    ),
    "within a node: it waits for the node": Case(
        nodes="n1=8xH100 n2=8xH100",
        running="x@n1:4/ends=60m y@n2:4/ends=30m",
        queued="gang:8/within=node",
        want="gang waits needs=8 free=8 start=30m",
    ),
    "within an island: enough elsewhere is not enough": Case(
        nodes="n1=4xH100/island=i1 n2=4xH100/island=i1 n3=4xH100/island=i2",
        running="x@n2:4/ends=60m",
        queued="gang:8/within=island",
        want="gang waits needs=8 free=8 start=1h",
    ),
    "within an island: it fits": Case(
        nodes="n1=4xH100/island=i1 n2=4xH100/island=i2 n3=4xH100/island=i2",
        queued="gang:8/within=island",
        want="gang -> n2:4+n3:4",
    ),
    "a node without an island is one of its own": Case(
        nodes="n1=4xH100 n2=4xH100",
        queued="gang:8/within=island",
        want="gang waits never_fits needs=8 free=8",
    ),
    "islands of one name in two racks are two": Case(
        nodes="n1=4xH100/rack=r1/island=i1 n2=4xH100/rack=r2/island=i1",
        queued="gang:8/within=island",
        want="gang waits never_fits needs=8 free=8",
    ),
    "within a rack: it fits over islands": Case(
        nodes="n1=4xH100/rack=r1 n2=4xH100/rack=r2/island=i1 n3=4xH100/rack=r2/island=i2",
        queued="gang:8/within=rack",
        want="gang -> n2:4+n3:4",
    ),
    "within a rack: enough elsewhere is not enough": Case(
        nodes="n1=4xH100/rack=r1 n2=4xH100/rack=r2",
        queued="gang:8/within=rack",
        want="gang waits never_fits needs=8 free=8",
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_gangs(case: Case) -> None:
    """All at once or none; the closest place; what is required."""
    check(case)
