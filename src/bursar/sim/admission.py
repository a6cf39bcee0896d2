"""Admission control of a simulation: the rules of the core, called as the service calls them."""

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
    """Settings of admission control."""

    every: int = MINUTE  # microseconds between two measurements of the load
    retries: int = 0  # how often a rejected job retries

    def __post_init__(self) -> None:
        check_int("every", self.every, 0, NEVER)
        check_int("retries", self.retries, 0, 1_000)


class AdmissionGate:
    """Admission control: checks each submission before it may wait."""

    def __init__(self, admission: Admission, policy: PoolPolicy) -> None:
        self.rejected: dict[tuple[str, str], int] = {}  # submissions by tier and code
        self._admission = admission
        self._policy = policy
        self._tiers = {tier.name: tier for tier in policy.tiers}
        self._buckets: dict[str, Bucket] = {}
        self._load: PoolLoad | None = None

    def ask(self, job: Job, cluster: Cluster, now: Instant) -> Admitted | Rejected:
        """Admit a job, or return the reason for refusing it and when to retry."""
        if self._load is None or now >= self._load.at + self._admission.every:
            self._load = measure_load(cluster, now)
        tier, org = job.path[:2]
        bucket = self._buckets.get(org) or full_bucket(self._tiers[tier], now)
        answer = admit(job, self._policy, (self._load,), bucket, now)
        self._buckets[org] = answer.bucket
        if isinstance(answer, Rejected):
            key = tier, answer.code.value
            self.rejected[key] = self.rejected.get(key, 0) + 1
        return answer

    def again(self, answer: Rejected, tries: int) -> int | None:
        """Microseconds after which a rejected job retries; None if it does not."""
        return answer.retry_after if tries <= self._admission.retries else None
