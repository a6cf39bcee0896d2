"""Nodes that are ready, draining, dead, quarantined or on order (S12)."""

import pytest

from tests.support.scheduling_cases import Case
from tests.support.scheduling_checks import check

CASES = {
    "nothing starts on a draining node": Case(
        nodes="n1=8xH100/state=draining n2=8xH100",
        running="x@n1:4",
        queued="a:4",
        want="a -> n2:4",
    ),
    "nothing starts on a dead node": Case(
        nodes="n1=8xH100/state=dead n2=8xH100",
        queued="a:4",
        want="a -> n2:4",
    ),
    "nothing starts on a node in quarantine": Case(
        nodes="n1=8xH100/state=quarantined n2=8xH100",
        queued="a:4",
        want="a -> n2:4",
    ),
    "nothing starts on a node on order": Case(
        nodes="n1=8xH100/ready=1s n2=8xH100",
        queued="a:4",
        want="a -> n2:4",
    ),
    "what a draining node frees is nobody's": Case(
        nodes="n1=8xH100/state=draining",
        running="x@n1:8/ends=10m",
        queued="a:8",
        want="a waits never_fits needs=8 free=0",
    ),
    "free GPUs of a draining node are not counted": Case(
        nodes="n1=8xH100/state=draining n2=8xH100",
        running="x@n2:8/ends=10m/fixed",
        queued="a:8",
        want="a waits needs=8 free=0 start=10m",
    ),
    "a place on a node on order": Case(
        nodes="n1=8xH100/ready=30m",
        queued="a:8",
        want="a waits needs=8 free=0 start=30m",
    ),
    "the first of two nodes on order": Case(
        nodes="n1=8xH100/ready=30m n2=8xH100/ready=20m",
        queued="a:8",
        want="a waits needs=8 free=0 start=20m",
    ),
    "a node on order or one that is free before": Case(
        nodes="n1=8xH100/ready=30m n2=8xH100",
        running="x@n2:8/ends=20m/fixed",
        queued="a:8",
        want="a waits needs=8 free=0 start=20m",
    ),
    "a gang over a node that is free and one on order": Case(
        nodes="n1=8xH100/ready=30m n2=8xH100",
        queued="gang:16 late:8/who=paid.beta.x.bob short:8/limit=30m/who=paid.cora.x.cat",
        want="short -> n2:8 backfill; gang waits needs=16 free=0 start=30m;"
        " late waits needs=8 free=0 start=1470m",
    ),
    "a node on order of another type is of no use": Case(
        nodes="n1=8xA100/ready=30m n2=8xH100",
        running="x@n2:8/ends=60m/fixed",
        queued="a:8",
        want="a waits needs=8 free=0 start=1h",
    ),
    "a node on order with too little memory is of no use": Case(
        nodes="n1=8xH100/mem=40/ready=30m n2=8xH100",
        running="x@n2:8/ends=60m/fixed",
        queued="a:8/mem=80",
        want="a waits needs=8 free=0 start=1h",
    ),
    "a node on order that is late is not counted on": Case(
        nodes="n1=4xH100 n2=4xH100/ready=0s",
        running="low@n1:4/batch",
        queued="u:4/prod",
        want="low preempted for=u by=class; u waits on=n1:4",
    ),
    "a ceiling does not change with the nodes": Case(
        nodes="n1=8xH100 n2=8xH100/state=dead",
        running="x@n1:4",
        queued="a:1",
        shares="paid=ceil4",
        want="a waits ceiling at=paid of=* used=4 most=4",
    ),
    "no node at all": Case(
        nodes="",
        queued="a:1",
        want="a waits never_fits needs=1 free=0",
    ),
    "no job at all": Case(
        nodes="n1=8xH100",
        want="",
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_node_states(case: Case) -> None:
    """Where jobs start, and what is counted on."""
    check(case)
