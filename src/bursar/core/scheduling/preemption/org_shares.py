"""The right `share`: which orgs of a job's tier have a larger part by weight than the job's org.

An org may lose jobs as long as the part of the job's org is not above its own afterwards: of what
runs now, and of past usage plus what runs, which decides whose turn it is. All that leaves either
org counts. Without the second bound, a job that starts in turn could be preempted at once by the
next in turn. Equal parts are fair and stable: with one job more, the other org would be the larger.
"""

from collections.abc import Iterator
from itertools import islice, takewhile
from typing import Final

from bursar.core.money import Micros
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.jobs import Job, Path
from bursar.core.scheduling.order.share_group import ShareGroup

LARGEST_ORGS: Final = 16  # orgs that are checked for a larger part


class OrgShares:
    """Compares the org of a waiting job with the other orgs of its tier, on one GPU type."""

    def __init__(self, cluster: Cluster, job: Job, gpu_type: str) -> None:
        self._cluster = cluster
        self._tree = cluster.tree
        self._has_org = len(job.path) > 1
        self._rate = job.rate(gpu_type)
        self._orgs: dict[Path, ShareGroup] = {}  # by user
        self._spare_rates: dict[Path, Micros] = {}
        self._org = self.org_of(job)
        self._tier = list(self._org.lineage())[-2]

    @property
    def weight(self) -> int:
        """The weight of the waiting job's org."""
        return self._org.weight

    def org_of(self, job: Job) -> ShareGroup:
        """The org of a job; its user, if the path has no org."""
        org = self._orgs.get(job.path)
        if org is None:
            lineage = list(self._tree.groups.user_group(job.path).lineage())
            org = self._orgs[job.path] = lineage[-3] if len(lineage) > 2 else lineage[0]
        return org

    def excess_rate(self, org: ShareGroup) -> Micros:
        """By how much, by weight, an org runs more than the job's org would with the job."""
        own = self._org
        return org.rate * own.weight - (own.rate + self._rate) * org.weight

    def spare_rate(self, org: ShareGroup) -> Micros:
        """How much of its rate, by weight, an org can lose before its part is the smaller one.

        Zero or less if it is not larger now. What leaves the job's org comes on top.
        """
        spare = self._spare_rates.get(org.path)
        if spare is None:
            spare = self._spare_rates[org.path] = self._find_spare_rate(org)
        return spare

    def can_lose(self, org: ShareGroup, rate: Micros, own_rate: Micros) -> bool:
        """Whether an org's part is not below that of the job's org once both lost so much.

        An org that has no larger part to begin with loses nothing, not even jobs without a price.
        """
        spare = self.spare_rate(org) + own_rate * org.weight
        return spare > 0 and rate * self._org.weight <= spare

    def larger_orgs(self, own_rate: Micros) -> Iterator[ShareGroup]:
        """The other orgs with a larger part, once the job's org has lost so much.

        Only orgs among those that run the most are checked.
        """

        def runs_more(org: ShareGroup) -> bool:
            return self.excess_rate(org) + own_rate * org.weight > 0

        larger = islice(takewhile(runs_more, self._other_orgs()), LARGEST_ORGS)
        return (org for org in larger if self.can_lose(org, 0, own_rate))

    def _find_spare_rate(self, org: ShareGroup) -> Micros:
        usage = self._tree.usage
        ahead = usage.projection_weight(self._cluster.now)
        difference = usage.projected_usage(org) * self._org.weight
        difference -= (usage.projected_usage(self._org) + self._rate * ahead) * org.weight
        return min(self.excess_rate(org), difference // ahead)

    def _other_orgs(self) -> Iterator[ShareGroup]:
        """The other orgs of the tier in which something runs, the largest part first."""
        if self._has_org:
            orgs = self._tree.org_rates.orgs_by_rate(self._tier)
            yield from (org for org in orgs if org is not self._org)
