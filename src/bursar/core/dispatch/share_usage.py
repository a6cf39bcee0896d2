"""Stores the past usage of each user of a pool, for fair share under the next leader (S3).

A scheduler holds usage in memory, in a form that grows instead of fading
(`core.scheduling.model.usage`). A pool stores one amount per user instead, faded to the end of the
user's last lease. Live leases count from their own rows.
"""

from collections.abc import Iterable
from typing import Final

from bursar.core.dispatch.state import Lease, PoolJob, PoolTransaction, UserUsage
from bursar.core.instant import HOUR, Instant
from bursar.core.money import AMOUNT_MAX, Micros
from bursar.core.scheduling.model.jobs import Path
from bursar.core.scheduling.model.nodes import MILLI
from bursar.core.scheduling.model.policy import PoolPolicy
from bursar.core.scheduling.model.usage import UsageDecay

DEFAULT_POLICY: Final = PoolPolicy()


def share_path(queued: PoolJob) -> Path:
    """The job's path in the share tree: tier, org, accounts from the root on, user.

    The user has a prefix, because an account may have the same name.
    """
    ask = queued.request
    return ask.tier, queued.org, *reversed(ask.shares), f"user {ask.user}"


def record_usage(work: PoolTransaction, job: PoolJob, lease: Lease) -> None:
    """Add the usage of a lease that ends now to its user."""
    in_force = DEFAULT_POLICY if work.pool.policy is None else work.pool.policy.policy
    decay, path = UsageDecay(in_force.half_life, work.now), share_path(job)
    rate = dict(job.request.rates)[lease.gpu_type] * job.request.milli_gpus // MILLI
    used = rate * (decay.growth(work.now) - decay.growth(lease.leased_at))
    before = work.usage(path)
    if before is not None:
        used += before.micros * _growth_in_hour(decay, before.at)
    micros = min(used // _growth_in_hour(decay, work.now), AMOUNT_MAX)
    work.usage_new[path] = UserUsage(path=path, micros=micros, at=work.now)


def usage_bases(
    usage: Iterable[UserUsage], half_life: int, now: Instant
) -> tuple[tuple[Path, Micros], ...]:
    """Stored usage in the form that a new scheduler uses; fully faded usage is left out."""
    decay = UsageDecay(half_life, now)
    bases = (
        (user_usage.path, user_usage.micros * _growth_in_hour(decay, user_usage.at))
        for user_usage in usage
    )
    return tuple(sorted((path, base) for path, base in bases if base))


def _growth_in_hour(decay: UsageDecay, at: Instant) -> int:
    """The weight of a micro-credit that was used in the hour before an instant."""
    return decay.growth(at) - decay.growth(at - HOUR)
