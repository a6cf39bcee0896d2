"""The tier of a job: its org's, or a lower one that the job asks for (S4).

A tier decides a job's part of a pool and which jobs it may preempt, so a tenant never chooses more
than its org has. Policies of pools list tiers, the highest first.
"""

from collections.abc import Sequence
from typing import Final

DEFAULT_TIER: Final = "free"  # of orgs without a tier; no policy lists a tier below it


def tier_of_org(tier: str | None) -> str:
    """The tier of an org, from the tier that it was given, if any."""
    return DEFAULT_TIER if tier is None else tier


def list_allowed_tiers(org_tier: str | None, orders: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """The tiers that jobs of an org may ask for: its own, then those below it in every order.

    `orders` has the tiers of each pool, the highest first. A tier that an order does not list is
    below all of its tiers. Jobs cannot ask for such a tier: each would be a new group with a share
    of its own.
    """
    own = tier_of_org(org_tier)
    below = [order[order.index(own) + 1 :] if own in order else () for order in orders]
    first = below[0] if below else ()
    return own, *(tier for tier in first if all(tier in tiers for tiers in below))


def tier_of_job(org_tier: str | None, asked_tier: str | None) -> str:
    """The tier that a job runs in; what it asks for is one of the allowed tiers."""
    return tier_of_org(org_tier) if asked_tier is None else asked_tier
