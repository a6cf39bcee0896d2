"""The share tree: whose turn it is.

Each group (tier, org, account, user) adds up what runs below it, what it has used and what waits.
At every group the children that have jobs waiting are in order: those below their floor (before
all, those that a waiting job leaves within it), then those with a group below its floor beneath
them, then by usage for each unit of weight; equal ones by name. Going down from the root by the
first child leads to the user whose turn it is. The order inside a user is the policy's.

    groups      all groups by path                     (`share_groups`)
    queues      the jobs inside each user              (`user_queues`)
    usage       what groups have used                  (`share_usage`)
    org_rates   the orgs of a tier by what they run    (`org_rates`)

A group's entry in its parent's order is updated when something below it changes, and those of all
groups at each tick.
"""

from bursar.core.instant import NEVER, Instant
from bursar.core.money import Micros
from bursar.core.scheduling.model.jobs import Job, Path
from bursar.core.scheduling.model.policy import ANY_TYPE, PoolPolicy, Share
from bursar.core.scheduling.order.org_rates import OrgRates
from bursar.core.scheduling.order.share_group import JOBS, ShareGroup
from bursar.core.scheduling.order.share_groups import ShareGroups
from bursar.core.scheduling.order.share_usage import ShareUsage
from bursar.core.scheduling.order.user_queues import UserQueues
from bursar.core.sorted_set import SortedSet


class ShareTree:
    """The groups of a pool with what runs and waits in them, and the order among them."""

    def __init__(self, policy: PoolPolicy, at: Instant) -> None:
        self._policy = policy
        self.now = at
        self.groups = ShareGroups(policy)
        self.queues = UserQueues(policy)
        self.usage = ShareUsage(policy, self.groups, at)
        self.org_rates = OrgRates(self.groups)

    def advance_to(self, now: Instant) -> None:
        """Move the clock. At a tick all keys are computed anew."""
        self.now = now
        if self.usage.advance_to(now):
            self._refresh(self.groups.root)

    def set_shares(self, shares: dict[Path, Share]) -> None:
        """Set the shares of groups, present or future."""
        self.groups.set_shares(shares)
        self._refresh(self.groups.root)

    # ----------------------------------------------------------------------- waiting jobs

    def enqueue(self, job: Job) -> None:
        """Put a job into its user's queue."""
        user = self.groups.user_group(job.path)
        self.queues.add(user, job, self.now)
        is_express, is_late = self._timeliness(job)
        for group in user.lineage():
            group.waiting_shapes[job.shape] = group.waiting_shapes.get(job.shape, 0) + 1
            group.express_jobs += is_express
            group.late_jobs += is_late
        self._reorder(user)

    def dequeue(self, job: Job, *, starts: bool = False) -> None:
        """Take a job out of its user's queue; `starts` if it is counted as running next."""
        user = self.groups.users[job.path]
        self.queues.remove(user, job, self.now)
        is_express, is_late = self._timeliness(job)
        for group in user.lineage():
            group.express_jobs -= is_express
            group.late_jobs -= is_late
            count = group.waiting_shapes[job.shape] - 1
            if count:
                group.waiting_shapes[job.shape] = count
            else:
                del group.waiting_shapes[job.shape]
        if not starts:
            self._reorder(user)

    def _timeliness(self, job: Job) -> tuple[bool, bool]:
        """Whether a job is express, and whether it was and is late now."""
        until = self._policy.express_until(job)
        return self.now < until < NEVER, until <= self.now

    # ----------------------------------------------------------------------- running jobs

    def count_running(self, job: Job, gpu_type: str, since: Instant, sign: int = 1) -> None:
        """Count a job as running since an instant; with `sign=-1`, as never started."""
        rate, milli = job.rate(gpu_type), job.shape.milli_gpus
        self.usage.count_running(job, gpu_type, since, sign)
        grown = self.usage.grown_start(job, gpu_type, since)
        user = self.groups.user_group(job.path)
        for group in user.lineage():
            _count_used(group, gpu_type, milli, sign)
            if len(group.path) == 2:
                self.org_rates.adjust(group, sign * rate)
            group.rate += sign * rate
            group.started_growth += sign * grown
        for limit in self.groups.limits_of(job):
            _count_used(limit, gpu_type, milli, sign)
        self._reorder(user)

    def count_stopped(
        self, job: Job, gpu_type: str, since: Instant, until: Instant, sign: int = 1
    ) -> None:
        """Count a job that ran since an instant as stopped; with `sign=-1`, as running again."""
        self.usage.count_ended(job, gpu_type, since, until, sign)
        self.count_running(job, gpu_type, since, -sign)

    def count_leaving(self, job: Job, gpu_type: str, sign: int = 1) -> None:
        """Count a stopping job, which counts for ceilings only; with `sign=-1`, as gone."""
        milli = sign * job.shape.milli_gpus
        groups = self.groups
        for group in (*groups.user_group(job.path).lineage(), *groups.limits_of(job)):
            leaving = group.leaving
            for of, change in ((ANY_TYPE, milli), (gpu_type, milli), (JOBS, sign)):
                leaving[of] = leaving.get(of, 0) + change

    def add_past_usage(self, path: Path, used: Micros) -> None:
        """Add what a user has used with jobs that have ended."""
        user = self.groups.user_group(path)
        for group in user.lineage():
            group.past_usage += used
        self._reorder(user)

    def first_exceeded(
        self, job: Job, gpu_type: str
    ) -> tuple[ShareGroup, tuple[str, int, int]] | None:
        """The first ceiling that a job would pass on GPUs of this type, from the user up."""
        milli, groups = job.shape.milli_gpus, self.groups
        for group in (*groups.user_group(job.path).lineage(), *groups.limits_of(job)):
            if figures := group.exceeded_ceiling(milli, gpu_type):
                return group, figures
        return None

    # ----------------------------------------------------------------------- order

    def _reorder(self, user: ShareGroup) -> None:
        """Put a user and all groups above it where they belong among their siblings."""
        group, parent = user, user.parent
        while parent is not None:
            if (is_busy := bool(group.waiting_shapes or group.running_jobs)) != group.is_busy:
                group.is_busy = is_busy
                parent.busy_weight += group.weight if is_busy else -group.weight
            entry = (
                (group.rank(), self.usage.usage_key(group), group.name)
                if group.waiting_shapes
                else None
            )
            if entry != group.order_entry:
                if group.order_entry is not None:
                    parent.order.discard(group.order_entry)
                if entry is not None:
                    parent.order.add(entry)
                group.order_entry = entry
            group, parent = parent, parent.parent

    def _refresh(self, group: ShareGroup) -> None:
        """Compute anew all entries below a group."""
        entries = []
        for _, _, name in group.order:
            child = group.children[name]
            self._refresh(child)
            child.order_entry = (child.rank(), self.usage.usage_key(child), name)
            entries.append(child.order_entry)
        group.order = SortedSet()
        for entry in sorted(entries):
            group.order.add(entry)


def _count_used(group: ShareGroup, gpu_type: str, milli: int, sign: int) -> None:
    group.used[ANY_TYPE] += sign * milli
    group.used[gpu_type] = group.used.get(gpu_type, 0) + sign * milli
    group.running_jobs += sign
