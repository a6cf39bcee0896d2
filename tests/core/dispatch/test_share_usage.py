"""Past usage of users, for the next leader (S3)."""

from bursar.core.dispatch.share_usage import usage_bases
from bursar.core.dispatch.state import UserUsage
from bursar.core.instant import MINUTE
from bursar.core.scheduling.model.usage import EPOCH_HALF_LIVES
from tests.support.builders import T0

ANN, BEN = ("paid", "acme", "root", "user ann"), ("paid", "acme", "root", "user ben")


def test_fully_faded_usage_is_left_out() -> None:
    """Otherwise a leader would store every user that ever ran a job in each snapshot."""
    long_ago = T0 - 3 * EPOCH_HALF_LIVES * MINUTE  # a half-life is a minute here
    usage = [UserUsage(path=BEN, micros=10**9, at=long_ago), UserUsage(path=ANN, micros=1, at=T0)]

    assert [ANN] == [path for path, _ in usage_bases(usage, 0, T0)]
