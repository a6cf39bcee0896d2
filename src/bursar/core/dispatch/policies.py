"""Which policies a pool can be run by: what a simulator may try is more than a service can do."""

from typing import Final

from bursar.core.dispatch.attempt_end import GRACE
from bursar.core.scheduling.model.policy import PARTS, Policy
from bursar.core.scheduling.model.policy_file import span_text

SHIPPED: Final = Policy()


def objection(policy: Policy) -> str | None:
    """What stands against putting a policy in force, if something does."""
    if policy.grace != SHIPPED.grace:
        return (
            f"policy.grace: jobs are given {span_text(GRACE)} to stop, which their holds pay for,"
            f" and {span_text(SHIPPED.grace)} are reckoned with; only a simulation can try another"
        )
    floors = sum(tier.floor_ppm for tier in policy.tiers)
    if floors > PARTS:
        return f"tiers: their floors are {floors} ppm together; there are {PARTS} to be given"
    tiers = {tier.name for tier in policy.tiers}
    for path, _ in policy.shares:
        if path[0] not in tiers:
            told = ", ".join(sorted(tiers))
            return f"shares.{'/'.join(path)}: there is no tier {path[0]}; there are {told}"
    return None
