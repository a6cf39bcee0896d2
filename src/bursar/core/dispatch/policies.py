"""Which policies a pool can be run by: what a simulator may try is more than a service can do."""

from typing import Final

from bursar.core.dispatch.attempt_end import GRACE
from bursar.core.scheduling.model.policy import WHOLE_PPM, PoolPolicy
from bursar.core.scheduling.model.policy_file import format_span

SHIPPED: Final = PoolPolicy()


def objection(policy: PoolPolicy) -> str | None:
    """What stands against putting a policy in force, if something does."""
    if policy.grace != SHIPPED.grace:
        return (
            f"policy.grace: jobs are given {format_span(GRACE)} to stop, which their holds pay for,"
            f" and {format_span(SHIPPED.grace)} are planned with; only a simulation can try another"
        )
    floors = sum(tier.floor_ppm for tier in policy.tiers)
    if floors > WHOLE_PPM:
        return f"tiers: their floors are {floors} ppm together; there are {WHOLE_PPM} to be given"
    tiers = {tier.name for tier in policy.tiers}
    for path, _ in policy.shares:
        if path[0] not in tiers:
            told = ", ".join(sorted(tiers))
            return f"shares.{'/'.join(path)}: there is no tier {path[0]}; there are {told}"
    return None
