"""What users have had, as whoever leads next counts it (S3)."""

from bursar.core.dispatch.share_usage import usage_bases
from bursar.core.dispatch.state import UserUsage
from bursar.core.instant import MINUTE
from bursar.core.scheduling.model.usage import EPOCH_HALF_LIVES
from tests.support.builders import T0

ANN, BEN = ("paid", "acme", "root", "user ann"), ("paid", "acme", "root", "user ben")


def test_what_has_faded_away_is_not_counted() -> None:
    """Else a leader would know everybody who ever ran something, and note it in each snapshot."""
    long_ago = T0 - 3 * EPOCH_HALF_LIVES * MINUTE  # a half-life is a minute here
    usage = [UserUsage(path=BEN, micros=10**9, at=long_ago), UserUsage(path=ANN, micros=1, at=T0)]

    assert [ANN] == [path for path, _ in usage_bases(usage, 0, T0)]
