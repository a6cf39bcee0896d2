"""The orgs of each tier, ordered by what they run for their weight."""

from collections.abc import Iterator

from bursar.core.money import Micros
from bursar.core.scheduling.model.jobs import Path
from bursar.core.scheduling.order.share_group import ShareGroup
from bursar.core.scheduling.order.share_groups import ShareGroups
from bursar.core.scheduling.order.share_usage import KEY_SCALE
from bursar.core.sorted_set import SortedSet


class OrgRates:
    """Which orgs of a tier have the largest part of what runs."""

    def __init__(self, groups: ShareGroups) -> None:
        self._groups = groups
        self._by_tier: dict[Path, SortedSet[tuple[int, str]]] = {}

    def adjust(self, org: ShareGroup, change: Micros) -> None:
        """Move an org to where it belongs; its rate is about to change by so much."""
        orgs = self._by_tier.setdefault(org.path[:1], SortedSet())
        orgs.discard((-org.rate * KEY_SCALE // org.weight, org.name))
        if rate := org.rate + change:
            orgs.add((-rate * KEY_SCALE // org.weight, org.name))

    def orgs_by_rate(self, tier: ShareGroup) -> Iterator[ShareGroup]:
        """The orgs of a tier in which jobs run, the one with the largest part first."""
        for _, name in self._by_tier.get(tier.path, ()):
            yield tier.children[name]

    def has_larger(self, user: ShareGroup) -> bool:
        """Whether an org of a user's tier has a larger part, by weight, than the user's org."""
        org = self._groups.find_group(user.path[:2]) or user
        first = self._by_tier.get(user.path[:1], SortedSet()).first()
        return first is not None and -first[0] > org.rate * KEY_SCALE // org.weight
