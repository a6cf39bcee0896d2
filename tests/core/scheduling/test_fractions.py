"""Parts of a GPU: a GPU is a set of slots, and parts are packed (S1, S6)."""

import pytest

from tests.support.scheduling_cases import Case
from tests.support.scheduling_checks import check

CASES = {
    "two halves share a GPU and leave the other whole": Case(
        nodes="n1=2xH100/slots=2",
        queued="a:0.5/waited=2m b:0.5/waited=1m whole:1",
        want="a -> n1:1; b -> n1:1; whole -> n1:1",
    ),
    "a quarter goes where it fits best, and the half stays free for a half": Case(
        nodes="n1=2xH100/slots=4",
        running="x@n1:2of4@0 y@n1:3of4@1",
        queued="a:0.25/waited=1m b:0.5",
        want="a -> n1:1; b -> n1:1",
    ),
    "a part goes where it is whole slots, though more is free elsewhere": Case(
        nodes="n1=8xH100/slots=2 n2=8xH100 n3=1xH100/slots=10",
        running="x@n3:5of10",
        queued="a:0.3 b:0.3/limit=1h",
        want="a -> n3:1; b waits needs=0.3 free=0 start=1430m",
    ),
    "four and three sevenths share a GPU": Case(
        nodes="n1=1xH100/slots=7",
        queued="a:0.571 b:0.428 c:0.142",
        want="a -> n1:1; b -> n1:1; c waits needs=0.142 free=0 start=24h",
    ),
    "a GPU that is not divided has no parts": Case(
        nodes="n1=1xH100",
        queued="a:0.5 b:0.001/waited=1m",
        want="b waits never_fits needs=0.001 free=0; a waits never_fits needs=0.5 free=0",
    ),
    "a GPU taken in part is not a whole one": Case(
        nodes="n1=1xH100/slots=2",
        running="x@n1:1of2",
        queued="whole:1",
        want="whole waits needs=1 free=0 start=1430m",
    ),
    "two free halves are not a whole GPU": Case(
        nodes="n1=2xH100/slots=2",
        running="x@n1:1of2@0/ends=60m y@n1:1of2@1/ends=30m",
        queued="whole:1",
        want="whole waits needs=1 free=0 start=30m",
    ),
    "parts stay off empty nodes": Case(
        nodes="n1=8xH100/slots=4 n2=8xH100/slots=4",
        running="x@n2:1of4",
        queued="a:0.25 b:0.5 gang:8",
        want="a -> n2:1; b -> n2:1; gang -> n1:8",
    ),
    "each part of a gang has a GPU of its own": Case(
        nodes="n1=2xH100/slots=2 n2=2xH100/slots=2",
        queued="gang:3x0.5",
        want="gang -> n1:2+n2:1",
    ),
    "a half goes to a half, though another node is fuller": Case(
        nodes="n1=2xH100/slots=2 n2=2xH100/slots=2",
        running="x@n1:1 y@n2:1of2",
        queued="a:0.5",
        want="a -> n2:1",
    ),
    "a part goes where it leaves least of a GPU": Case(
        nodes="n1=2xH100/slots=8 n2=2xH100/slots=8",
        running="x@n1:2of8 y@n2:5of8",
        queued="a:0.25",
        want="a -> n2:1",
    ),
    "of GPUs that would be left with as much, on the fullest node": Case(
        nodes="n1=4xH100/slots=2 n2=4xH100/slots=2",
        running="x@n1:1of2 y@n2:2 z@n2:1of2@2",
        queued="a:0.5",
        want="a -> n2:1",
    ),
    "where whole GPUs are typical, a half goes to a half": Case(
        nodes="n1=2xH100/slots=2 n2=2xH100/slots=2",
        running="x@n1:1 y@n2:1of2",
        queued="a:0.5",
        typical="1",
        want="a -> n2:1",
    ),
    "a part is preempted as a whole is": Case(
        nodes="n1=1xH100/slots=2",
        running="x@n1:1of2/batch/ran=9m y@n1:1of2/batch/ran=5m",
        queued="a:0.5/prod",
        want="y preempted for=a by=class; a waits on=n1:1",
    ),
    "two parts make room for a whole": Case(
        nodes="n1=1xH100/slots=2",
        running="x@n1:1of2/batch y@n1:1of2/batch",
        queued="a:1/prod",
        want="x preempted for=a by=class; y preempted for=a by=class; a waits on=n1:1",
    ),
    "parts count as parts against a ceiling": Case(
        nodes="n1=8xH100/slots=2",
        queued="a:0.5 b:0.5 c:0.5",
        shares="paid.acme=ceil1",
        want="a -> n1:1; b -> n1:1; c waits ceiling at=paid/acme of=* used=1 most=1",
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_fractions(case: Case) -> None:
    """Slots, what is a part and what is none, packing."""
    check(case)
