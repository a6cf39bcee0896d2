"""Jobs to which several GPU types are as welcome: the best place of all decides."""

import pytest

from tests.support.scheduling_cases import Case
from tests.support.scheduling_checks import check

CASES = {
    "the fullest node, whatever its type": Case(
        nodes="n1=8xH100 n2=8xA100",
        running="x@n2:6/fixed",
        queued="job:1x2/any=H100,A100",
        want="job -> n2:2",
    ),
    "in order of preference it would be the first type": Case(
        nodes="n1=8xH100 n2=8xA100",
        running="x@n2:6/fixed",
        queued="job:1x2/on=H100,A100",
        want="job -> n1:2",
    ),
    "a gang goes where it lies closest": Case(
        nodes="n1=2xH100 n2=2xH100 n3=4xA100",
        queued="gang:2x2/any=H100,A100",
        want="gang -> n3:4",
    ),
    "of places as close, the tightest": Case(
        nodes="n1=8xA100 n2=4xH100",
        queued="gang:2x2/any=A100,H100",
        want="gang -> n2:4",
    ),
    "nowhere": Case(
        nodes="n1=2xH100 n2=2xA100",
        queued="gang:2x2/any=H100,A100",
        want="gang waits never_fits needs=4 free=4",
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_equal_types(case: Case) -> None:
    """S1: without a preference, packing chooses the type."""
    check(case)
