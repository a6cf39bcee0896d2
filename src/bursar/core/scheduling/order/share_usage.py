"""What the groups of the share tree have used: past usage, decayed, and what runs now.

A group's usage is that of its ended jobs plus that of its running ones. To order groups, running
jobs count as if they had run `PoolPolicy.ahead` longer, so a group that starts many jobs at once
falls behind at once. Usage is grown instead of decayed (`model.usage`); it changes with the clock
only at ticks, or when a job starts or ends.
"""

from collections.abc import Iterator
from typing import Final

from bursar.core.ids import JobId
from bursar.core.instant import HOUR, Instant
from bursar.core.money import Micros
from bursar.core.scheduling.model.jobs import Job, Path
from bursar.core.scheduling.model.policy import PoolPolicy
from bursar.core.scheduling.model.usage import TICK, UsageDecay, tick_of
from bursar.core.scheduling.order.share_group import ShareGroup
from bursar.core.scheduling.order.share_groups import ShareGroups

KEY_SCALE: Final = 1 << 20  # keys are usage divided by weight, in so many parts of a unit


class ShareUsage:
    """The usage of all groups, and the keys that order groups by it."""

    def __init__(self, policy: PoolPolicy, groups: ShareGroups, at: Instant) -> None:
        self._groups = groups
        self._policy = policy
        self.decay = UsageDecay(policy.half_life, at)
        self.tick = tick_of(at)
        self._ahead = self.decay.growth(self.tick + policy.ahead)
        self._running: dict[JobId, tuple[Job, str, Instant]] = {}  # GPU type, and since when

    def count_running(self, job: Job, gpu_type: str, since: Instant, sign: int) -> None:
        """Remember a job that runs since an instant; with `sign=-1`, forget it.

        The caller adds its rate, and `grown_start` of it, to the job's groups.
        """
        if sign > 0:
            self._running[job.id] = job, gpu_type, since
        else:
            del self._running[job.id]

    def grown_start(self, job: Job, gpu_type: str, since: Instant) -> int:
        """The rate of a job times the growth at its start: see `ShareGroup.started_growth`."""
        return job.rate(gpu_type) * self.decay.growth(since)

    def count_ended(
        self, job: Job, gpu_type: str, since: Instant, until: Instant, sign: int
    ) -> None:
        """Add what a job used from one instant to another to past usage; `sign=-1` undoes it."""
        growth = self.decay.growth
        used = job.rate(gpu_type) * (growth(max(until, since)) - growth(since))
        for group in self._groups.user_group(job.path).lineage():
            group.past_usage += sign * used

    def past_usage_by_user(self) -> Iterator[tuple[Path, Micros]]:
        """What each user has used with ended jobs, grown."""
        for path in sorted(self._groups.users):
            if past := self._groups.users[path].past_usage:
                yield path, past

    def usage_key(self, group: ShareGroup) -> int:
        """The usage of a group for its weight. The smaller, the sooner is its turn."""
        return self.projected_usage(group) * KEY_SCALE // group.weight

    def projected_usage(self, group: ShareGroup) -> int:
        """The usage of a group, grown, with its running jobs counted ahead."""
        return group.past_usage + group.rate * self._ahead - group.started_growth

    def projection_weight(self, now: Instant) -> int:
        """What a unit of rate that starts now adds to projected usage; at least 1."""
        return max(self._ahead - self.decay.growth(now), 1)

    def decayed_usage(self, group: ShareGroup, now: Instant) -> Micros:
        """The usage of a group, decayed to now, in micro-credits."""
        growth = self.decay.growth
        hour = growth(now) - growth(now - HOUR)
        return (group.past_usage + group.rate * growth(now) - group.started_growth) // hour

    def advance_to(self, now: Instant) -> bool:
        """Move the clock. True if a tick has passed, so that all keys have changed."""
        tick = tick_of(now)
        if tick == self.tick:
            return False
        self.tick = tick
        epoch = self.decay.epoch_of(now)
        if epoch != self.decay.epoch:
            self._begin_epoch(epoch)
        self._ahead = self.decay.growth(tick + self._policy.ahead)
        return True

    def _begin_epoch(self, epoch: Instant) -> None:
        """Rescale all usage to a new epoch. Running jobs count from their start."""
        halvings = (epoch - self.decay.epoch) // TICK >> self.decay.half_life_log2
        self.decay.epoch = epoch
        for group in self._groups.all_groups():
            group.past_usage = 0 if group.children else group.past_usage >> halvings
            group.started_growth = 0
        for user in self._groups.users.values():
            for group in list(user.lineage())[1:]:
                group.past_usage += user.past_usage
        for job, gpu_type, since in self._running.values():
            grown = self.grown_start(job, gpu_type, since)
            for group in self._groups.user_group(job.path).lineage():
                group.started_growth += grown
