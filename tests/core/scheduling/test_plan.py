"""Plans, case by case: the specification of scheduling by example.

A first look; each topic has a table of its own beside this one.
"""

import doctest

import pytest

import bursar.core.scheduling
from tests.support.scheduling_cases import Case
from tests.support.scheduling_checks import check

CASES = {
    "a gang waits whole while a short job runs in the hole": Case(
        nodes="n1=8xH100 n2=8xH100",
        running="long@n1:8/ends=60m",
        queued="gang:16 short:4/limit=30m/waited=1m/used=1",
        want="short -> n2:4 backfill; gang waits needs=16 free=4 start=1h",
    ),
    "a job that would end too late stays out of the gang's way": Case(
        nodes="n1=8xH100 n2=8xH100",
        running="long@n1:8/ends=60m",
        queued="gang:16 late:4/limit=61m/used=1",
        want="gang waits needs=16 free=8 start=1h; late waits needs=4 free=8",
    ),
    "victims are the fewest that make room, least lost work first": Case(
        nodes="n1=8xH100",
        running="old@n1:4/batch/ran=50m new@n1:4@4/batch/ran=5m",
        queued="urgent:4/prod",
        want="new preempted for=urgent by=class; urgent waits on=n1:4",
    ),
    "the user who used less comes first": Case(
        nodes="n1=8xH100",
        queued="a:8/who=paid.acme.ml.ann b:8/who=paid.acme.ml.bob",
        usage="paid.acme.ml.ann=10",
        want="b -> n1:8; a waits needs=8 free=0 start=24h",
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_plan(case: Case) -> None:
    """What is decided, that deciding changed nothing, and that a second look decides no more."""
    check(case)


def test_example_of_the_package_runs() -> None:
    """The example in the docstring of `core.scheduling` does what it shows."""
    failed, attempted = doctest.testmod(bursar.core.scheduling)

    assert attempted
    assert not failed
