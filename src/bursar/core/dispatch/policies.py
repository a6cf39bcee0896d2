"""Which policies a pool accepts: a simulation can use some that a service cannot."""

from typing import Final

from bursar.core.dispatch.attempt_end import STOP_GRACE
from bursar.core.scheduling.model.policy import WHOLE_PPM, PoolPolicy
from bursar.core.scheduling.model.policy_file import format_span
from bursar.core.tiers import DEFAULT_TIER

DEFAULT_POLICY: Final = PoolPolicy()


def find_objection(policy: PoolPolicy) -> str | None:
    """Why a policy cannot be used in a service; None if it can."""
    if policy.preemption_grace != DEFAULT_POLICY.preemption_grace:
        return (
            "policy.preemption_grace: a service plans with"
            f" {format_span(DEFAULT_POLICY.preemption_grace)} and gives jobs"
            f" {format_span(STOP_GRACE)} to stop; only a simulation can try another value"
        )
    floors = sum(tier.floor_ppm for tier in policy.tiers)
    if floors > WHOLE_PPM:
        return f"tiers: floors add up to {floors} ppm; the maximum is {WHOLE_PPM}"
    if any(tier.name == DEFAULT_TIER for tier in policy.tiers[:-1]):
        return f"tiers: {DEFAULT_TIER} is the tier of orgs that have none, so it comes last"
    tiers = {tier.name for tier in policy.tiers}
    for path, _ in policy.shares:
        if path[0] not in tiers:
            tier_names = ", ".join(sorted(tiers))
            return f"shares.{'/'.join(path)}: there is no tier {path[0]}; there are {tier_names}"
    return None
