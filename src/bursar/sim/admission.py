"""Who is let into a made-up world: the rules of admission, asked as the service asks them."""

from bursar.core.instant import MINUTE, NEVER, Instant
from bursar.core.scheduling.advice.admission import Admitted, Bucket, Rejected, admit, full_bucket
from bursar.core.scheduling.advice.pool_load import PoolLoad, measure_load
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.jobs import Job
from bursar.core.scheduling.model.policy import PoolPolicy
from bursar.core.validation import check_int
from bursar.core.value import value


@value
class Admission:
    """How jobs are let in."""

    every: int = MINUTE  # microseconds after which the load that is known is looked at again
    retries: int = 0  # how often a job comes again when it is told to come later

    def __post_init__(self) -> None:
        check_int("every", self.every, 0, NEVER)
        check_int("retries", self.retries, 0, 1_000)


class Door:
    """What is asked of a submission before it may wait."""

    def __init__(self, admission: Admission, policy: PoolPolicy) -> None:
        self.turned: dict[tuple[str, str], int] = {}  # submissions by tier and code
        self._admission = admission
        self._policy = policy
        self._tiers = {tier.name: tier for tier in policy.tiers}
        self._buckets: dict[str, Bucket] = {}
        self._load: PoolLoad | None = None

    def ask(self, job: Job, cluster: Cluster, now: Instant) -> Admitted | Rejected:
        """Let a job in, or say why not and when to come again."""
        if self._load is None or now >= self._load.at + self._admission.every:
            self._load = measure_load(cluster, now)
        tier, org = job.path[:2]
        bucket = self._buckets.get(org) or full_bucket(self._tiers[tier], now)
        answer = admit(job, self._policy, (self._load,), bucket, now)
        self._buckets[org] = answer.bucket
        if isinstance(answer, Rejected):
            key = tier, answer.code.value
            self.turned[key] = self.turned.get(key, 0) + 1
        return answer

    def again(self, answer: Rejected, tries: int) -> int | None:
        """After how many microseconds a job comes again that was turned away; None if never."""
        return answer.retry_after if tries <= self._admission.retries else None
