"""The share tree: whose turn it is.

Each place (tier, org, account, user) adds up what runs below it, what it used and what waits. At
every place the children that have something waiting lie in order: those below their floor, then
those with somebody below a floor beneath them, then by faded usage for each unit of weight, what
runs now counted ahead; equal ones by name. Going down from the root by the first child leads to the
user whose turn it is; the order inside a user is the policy's.

Keys are worked out anew when something below a place changes, and everywhere at each tick: between
two ticks usage grows with the clock for those alone who start or end something.
"""

from collections.abc import Iterator
from typing import Any, Final

from bursar.core.ids import JobId
from bursar.core.instant import DAY, HOUR, NEVER, Instant
from bursar.core.money import Micros
from bursar.core.refusal import invariant
from bursar.core.scheduling.model.jobs import Job, Path, QueueKey, Shape
from bursar.core.scheduling.model.policy import (
    ANY_TYPE,
    BRIEF_AGING,
    PoolPolicy,
    Share,
    to_milli_gpus,
)
from bursar.core.scheduling.model.usage import TICK, UsageDecay, tick_of
from bursar.core.sorted_set import SortedSet

KEY_SCALE: Final = 1 << 20  # keys are usage by weight; this much finer than whole units

JOBS: Final = "jobs"  # a ceiling of jobs, not of GPUs

BELOW_FLOOR, CHILD_BELOW_FLOOR, FAIR_SHARE = range(3)  # how urgent a place's claim is: `Place.rank`


class ShareGroup:
    """A place in the tree: what runs and waits below it."""

    __slots__ = (
        "busy_weight",
        "ceiling",
        "children",
        "express_jobs",
        "floor",
        "is_busy",
        "is_limit",
        "jobs_max",
        "late_jobs",
        "leaving",
        "longest",
        "name",
        "oldest",
        "order",
        "order_entry",
        "parent",
        "past_usage",
        "path",
        "queue_heads",
        "queues",
        "rate",
        "running_jobs",
        "started_growth",
        "used",
        "waiting_shapes",
        "weight",
    )  # fmt: skip

    def __init__(self, path: Path, name: str, parent: "ShareGroup | None", share: Share) -> None:
        self.path = path
        self.name = name  # among its siblings; places that have children end in "/"
        self.parent = parent
        self.children: dict[str, ShareGroup] = {}
        self.order: SortedSet[tuple[int, int, str]] = (
            SortedSet()
        )  # of children with something waiting
        self.order_entry: tuple[int, int, str] | None = None  # its own entry in its parent's
        self.waiting_shapes: dict[Shape, int] = {}  # how many jobs of each wait below
        self.queues: dict[QueueKey, SortedSet[Any]] = {}  # of a user: its jobs, by the policy's key
        self.queue_heads: SortedSet[Any] = SortedSet()  # of a user: the first key of each queue
        self.oldest: SortedSet[tuple[Instant, JobId]] = (
            SortedSet()
        )  # of a user: when its jobs are aged
        # Of a user: its jobs that say how long they run, by class, the longest first.
        self.longest: SortedSet[tuple[int, int, JobId]] = SortedSet()
        self.used: dict[str, int] = {ANY_TYPE: 0}  # milli-GPUs that run, by type
        self.running_jobs = 0  # that run
        self.express_jobs = 0  # jobs that wait and come before longer ones: `Policy.express`
        self.late_jobs = 0  # jobs that wait and would have come before longer ones, but missed that
        self.is_busy = False  # whether something runs or waits
        self.busy_weight = 0  # the weight of all children that are busy
        self.is_limit = False  # whether it is a limit outside the tree
        self.leaving: dict[str, int] = {}  # what is still there of those who were asked to stop
        self.past_usage: Micros = 0  # what ended jobs used, grown
        self.rate: Micros = 0  # what runs now costs in an hour
        self.started_growth = 0  # the sum of rate times growth at its start
        self.set_share(share)

    def set_share(self, share: Share) -> None:
        """Give the place what it is entitled to."""
        self.weight = share.weight
        self.floor = to_milli_gpus(share.floor)
        self.ceiling = to_milli_gpus(share.ceiling)
        self.jobs_max = share.jobs_max

    def is_below_floor(self) -> bool:
        """Whether it has less than its floor of something that its waiting jobs accept."""
        for gpu_type, floor in self.floor.items():
            wanted = gpu_type == ANY_TYPE or any(
                gpu_type in shape.types for shape in self.waiting_shapes
            )
            if wanted and self.used.get(gpu_type, 0) < floor:
                return True
        return False

    def is_within_share(self) -> bool:
        """Whether it runs no more by weight than its busy siblings do on the average."""
        parent = self.parent
        assert parent is not None
        return self.used[ANY_TYPE] * parent.busy_weight <= parent.used[ANY_TYPE] * self.weight

    def has_only_late_jobs(self) -> bool:
        """Whether nothing waits there but brief jobs that have missed their start target."""
        return self.late_jobs == sum(self.waiting_shapes.values())

    def above_floor(self) -> int:
        """How many milli-GPUs it has beyond its floor."""
        return self.used[ANY_TYPE] - self.floor.get(ANY_TYPE, 0)

    def rank(self) -> int:
        """How urgent its claim is."""
        if self.floor and self.is_below_floor():
            return BELOW_FLOOR
        first = self.order.first()
        return CHILD_BELOW_FLOOR if first is not None and first[0] < FAIR_SHARE else FAIR_SHARE

    def exceeded_ceiling(self, milli: int, gpu_type: str) -> tuple[str, int, int] | None:
        """Which ceiling so much more would pass: its type, what is used, what is allowed."""
        for of in (ANY_TYPE, gpu_type):
            most = self.ceiling.get(of)
            if most is not None and (there := self.in_use(of)) + milli > most:
                return of, there, most
        jobs = self.running_jobs + self.leaving.get(JOBS, 0)
        if self.jobs_max is not None and jobs >= self.jobs_max:
            return JOBS, jobs, self.jobs_max
        return None

    def exceeded_ceilings(self, milli: int, gpu_type: str) -> list[tuple[str, int]]:
        """All ceilings that so much more, of one more job, would pass, and by how much."""
        over = []
        for of in (ANY_TYPE, gpu_type):
            most = self.ceiling.get(of)
            if most is not None and (there := self.in_use(of)) + milli > most:
                over.append((of, there + milli - most))
        jobs = self.running_jobs + self.leaving.get(JOBS, 0)
        if self.jobs_max is not None and jobs >= self.jobs_max:
            over.append((JOBS, jobs + 1 - self.jobs_max))
        return over

    def exceeds_with(self, job: Job, gpu_type: str, more: int, same: int, jobs: int) -> bool:
        """Whether a job would pass a ceiling once others have started: so much more in all, so much
        of its type, so many jobs."""
        milli = job.shape.milli_gpus
        for of, added in ((ANY_TYPE, more), (gpu_type, same)):
            most = self.ceiling.get(of)
            if most is not None and self.in_use(of) + milli + added > most:
                return True
        running = self.running_jobs + self.leaving.get(JOBS, 0)
        return self.jobs_max is not None and running + 1 + jobs > self.jobs_max

    def in_use(self, of: str) -> int:
        """Milli-GPUs that are taken: what runs, and what was asked to stop but has not yet."""
        return self.used.get(of, 0) + self.leaving.get(of, 0)

    def lineage(self) -> "Iterator[ShareGroup]":
        """The place and all above it, the root last."""
        place: ShareGroup | None = self
        while place is not None:
            yield place
            place = place.parent


class ShareTree:
    """All places of a pool, and the order among them."""

    def __init__(self, policy: PoolPolicy, at: Instant) -> None:
        self.policy = policy
        self.decay = UsageDecay(policy.half_life, at)
        self.now = at
        self.tick = tick_of(at)
        self._ahead = self.decay.growth(self.tick + policy.ahead)
        self._shares = dict(policy.shares)
        self._limits = dict(policy.limits)
        self.root = ShareGroup((), "", None, Share())
        self.limit_groups: dict[str, ShareGroup] = {}  # ceilings outside the tree
        self._users: dict[Path, ShareGroup] = {}
        self.aged_users: SortedSet[tuple[Instant, Path]] = (
            SortedSet()
        )  # when each user's oldest job is aged
        self._ages = {tier.name: tier.ages_after for tier in policy.tiers}
        self.waiting_classes: dict[Path, SortedSet[tuple[int, JobId]]] = {}  # of what waits, by org
        self._by_rate: dict[
            Path, SortedSet[tuple[int, str]]
        ] = {}  # a tier's orgs, the largest first
        self._ran: dict[JobId, tuple[Job, str, Instant]] = {}  # what runs, and since when

    # ----------------------------------------------------------------------- what waits

    def enqueue(self, job: Job) -> None:
        """Let a job wait in its user's queue."""
        user = self.user_group(job.path)
        queue = user.queues.get(job.queue_key)
        if queue is None:
            queue = user.queues[job.queue_key] = SortedSet()
        self._head(user, queue, self.policy.order_key(job, self.now), add=True)
        classes = self.waiting_classes.setdefault(job.path[:2], SortedSet())
        classes.add((-job.priority_class, job.id))
        self._age(user, job, add=True)
        express, late = self._in_time(job)
        for place in user.lineage():
            place.waiting_shapes[job.shape] = place.waiting_shapes.get(job.shape, 0) + 1
            place.express_jobs += express
            place.late_jobs += late
        self._reorder(user)

    def dequeue(self, job: Job, *, starts: bool = False) -> None:
        """Take a job out of its user's queue; `starts` if it is counted as running next."""
        user = self._users[job.path]
        queue = user.queues[job.queue_key]
        self._head(user, queue, self.policy.order_key(job, self.now), add=False)
        if not queue:
            del user.queues[job.queue_key]
        classes = self.waiting_classes[job.path[:2]]
        classes.discard((-job.priority_class, job.id))
        if not classes:
            del self.waiting_classes[job.path[:2]]
        self._age(user, job, add=False)
        express, late = self._in_time(job)
        for place in user.lineage():
            place.express_jobs -= express
            place.late_jobs -= late
            left = place.waiting_shapes[job.shape] - 1
            if left:
                place.waiting_shapes[job.shape] = left
            else:
                del place.waiting_shapes[job.shape]
        if not starts:
            self._reorder(user)

    def _in_time(self, job: Job) -> tuple[bool, bool]:
        """Whether a job comes before longer ones, and whether it is too late for that."""
        until = self.policy.express_until(job)
        return self.now < until < NEVER, until <= self.now

    def _head(self, user: ShareGroup, queue: SortedSet[Any], key: Any, *, add: bool) -> None:
        """Put a key in a queue or take it out, and keep up which comes first there."""
        before = queue.first()
        if add:
            queue.add(key)
        else:
            queue.discard(key)
        after = queue.first()
        if before != after:
            if before is not None:
                user.queue_heads.discard(before)
            if after is not None:
                user.queue_heads.add(after)

    def _age(self, user: ShareGroup, job: Job, *, add: bool) -> None:
        before = user.oldest.first()
        entry, length = (
            (self._aged_at(job), job.id),
            (-job.priority_class, -job.expected_run, job.id),
        )
        if add:
            user.oldest.add(entry)
            if job.estimate is not None:
                user.longest.add(length)
        else:
            user.oldest.discard(entry)
            user.longest.discard(length)
        after = user.oldest.first()
        if before != after:
            if before is not None:
                self.aged_users.discard((before[0], user.path))
            if after is not None:
                self.aged_users.add((after[0], user.path))

    def _aged_at(self, job: Job) -> Instant:
        """When a job has waited too long, if it waits until then.

        One that is over within minutes ages soon: when it is late no future place is kept for it.
        """
        patience = self._ages.get(job.path[0], DAY)
        if self.policy.express_until(job) < NEVER:
            patience = min(patience, BRIEF_AGING)
        return job.waits_since + patience

    # ----------------------------------------------------------------------- what runs

    def count_running(self, job: Job, gpu_type: str, since: Instant, sign: int = 1) -> None:
        """Count a job as running since an instant; with `way=-1`, as never begun."""
        rate, milli = job.rate(gpu_type), job.shape.milli_gpus
        if sign > 0:
            self._ran[job.id] = job, gpu_type, since
        else:
            del self._ran[job.id]
        grown = rate * self.decay.growth(since)
        user = self.user_group(job.path)
        for place in user.lineage():
            place.used[ANY_TYPE] += sign * milli
            place.used[gpu_type] = place.used.get(gpu_type, 0) + sign * milli
            place.running_jobs += sign
            if len(place.path) == 2:
                self._rerate(place, sign * rate)
            place.rate += sign * rate
            place.started_growth += sign * grown
        for outside in self.limits_of(job):
            outside.used[ANY_TYPE] += sign * milli
            outside.used[gpu_type] = outside.used.get(gpu_type, 0) + sign * milli
            outside.running_jobs += sign
        self._reorder(user)

    def count_stopped(
        self, job: Job, gpu_type: str, since: Instant, until: Instant, sign: int = 1
    ) -> None:
        """A job that ran since an instant has stopped; with `way=-1`, it has not after all."""
        growth = self.decay.growth
        used = job.rate(gpu_type) * (growth(max(until, since)) - growth(since))
        for place in self.user_group(job.path).lineage():
            place.past_usage += sign * used
        self.count_running(job, gpu_type, since, -sign)

    def highest_waiting_class(self, org: Path) -> int | None:
        """The highest class of an org's waiting jobs."""
        classes = self.waiting_classes.get(org)
        first = classes.first() if classes is not None else None
        return None if first is None else -first[0]

    def most_urgent_job(self, org: Path) -> JobId:
        """The waiting job of the highest class of an org that has one."""
        return next(iter(self.waiting_classes[org]))[1]

    def orgs_by_rate(self, tier: ShareGroup) -> Iterator[ShareGroup]:
        """The orgs of a tier in which something runs, the one with the largest part first."""
        for _, name in self._by_rate.get(tier.path, ()):
            yield tier.children[name]

    def is_uneven(self, user: ShareGroup) -> bool:
        """Whether some org of a user's tier has a larger part than the user's, by weight."""
        org = self.find_group(user.path[:2]) or user
        first = self._by_rate.get(user.path[:1], SortedSet()).first()
        return first is not None and -first[0] > org.rate * KEY_SCALE // org.weight

    def _rerate(self, org: ShareGroup, more: Micros) -> None:
        """Put an org where it belongs among its tier's once its rate has grown."""
        orgs = self._by_rate.setdefault(org.path[:1], SortedSet())
        orgs.discard((-org.rate * KEY_SCALE // org.weight, org.name))
        if rate := org.rate + more:
            orgs.add((-rate * KEY_SCALE // org.weight, org.name))

    def add_past_usage(self, path: Path, base: Micros) -> None:
        """Count what a user used with jobs that have ended."""
        user = self.user_group(path)
        for place in user.lineage():
            place.past_usage += base
        self._reorder(user)

    def past_usage_by_user(self) -> Iterator[tuple[Path, Micros]]:
        """What each user used with jobs that have ended, grown."""
        for path in sorted(self._users):
            if base := self._users[path].past_usage:
                yield path, base

    def count_leaving(self, job: Job, gpu_type: str, sign: int = 1) -> None:
        """A job was asked to stop and counts for ceilings alone; with `way=-1`, it is gone."""
        for place in (*self.user_group(job.path).lineage(), *self.limits_of(job)):
            leaving, milli = place.leaving, sign * job.shape.milli_gpus
            for of, more in ((ANY_TYPE, milli), (gpu_type, milli), (JOBS, sign)):
                leaving[of] = leaving.get(of, 0) + more

    def limits_of(self, job: Job) -> list[ShareGroup]:
        """The ceilings outside the tree that count a job."""
        return [self._outside(name) for name in job.limit_names]

    def first_exceeded(
        self, job: Job, gpu_type: str
    ) -> "tuple[ShareGroup, tuple[str, int, int]] | None":
        """The first ceiling that the job would pass on GPUs of this type, from the user up."""
        milli = job.shape.milli_gpus
        for place in (*self.user_group(job.path).lineage(), *self.limits_of(job)):
            if figures := place.exceeded_ceiling(milli, gpu_type):
                return place, figures
        return None

    # ----------------------------------------------------------------------- order

    def advance_to(self, now: Instant) -> None:
        """Let time pass: at a tick all keys are worked out anew."""
        self.now = now
        tick = tick_of(now)
        if tick == self.tick:
            return
        self.tick = tick
        epoch = self.decay.epoch_of(now)
        if epoch != self.decay.epoch:
            self._new_epoch(epoch)
        self._ahead = self.decay.growth(tick + self.policy.ahead)
        self._refresh(self.root)

    def user_group(self, path: Path) -> ShareGroup:
        """The place of a user, made if it is new."""
        found = self._users.get(path)
        if found is None:
            found = self._users[path] = self._made(path)
        return found

    def find_group(self, path: Path) -> ShareGroup | None:
        """A place by its path, a user's or any above; None if nothing is known of it."""
        if path in self._users:
            return self._users[path]
        place: ShareGroup | None = self.root
        for name in path:
            place = place and place.children.get(name + "/")
        return place

    def usage_key(self, place: ShareGroup) -> int:
        """What a place used for each unit of weight, grown: the smaller, the sooner its turn."""
        return self.projected_usage(place) * KEY_SCALE // place.weight

    def projected_usage(self, place: ShareGroup) -> int:
        """What a place used, grown, and what runs there now counted ahead."""
        return place.past_usage + place.rate * self._ahead - place.started_growth

    def projection_weight(self, now: Instant) -> int:
        """What a unit of rate that starts now counts ahead; one at least."""
        return max(self._ahead - self.decay.growth(now), 1)

    def decayed_usage(self, place: ShareGroup, now: Instant) -> Micros:
        """What a place used, faded to now, in micro-credits."""
        growth = self.decay.growth
        hour = growth(now) - growth(now - HOUR)
        return (place.past_usage + place.rate * growth(now) - place.started_growth) // hour

    def set_shares(self, shares: dict[Path, Share]) -> None:
        """Give places what they are entitled to, from now on."""
        self._shares.update(shares)
        for path, share in shares.items():
            if place := self.find_group(path):
                if place.is_busy and place.parent is not None:
                    place.parent.busy_weight += share.weight - place.weight
                place.set_share(share)
        self._refresh(self.root)

    def set_limit(self, name: str, share: Share) -> None:
        """Let a ceiling outside the tree be another, from now on."""
        self._limits[name] = share
        if name in self.limit_groups:
            self.limit_groups[name].set_share(share)

    def _made(self, path: Path) -> ShareGroup:
        place = self.root
        for depth in range(1, len(path) + 1):
            ends = ("", "/") if depth == len(path) else ("/", "")
            name, other = (path[depth - 1] + end for end in ends)
            # As both it would have its floor and its ceiling twice.
            invariant(other not in place.children, "a user has others below it", path=path)
            child = place.children.get(name)
            if child is None:
                share = self._shares.get(path[:depth], Share())
                child = place.children[name] = ShareGroup(path[:depth], name, place, share)
            place = child
        return place

    def _outside(self, name: str) -> ShareGroup:
        found = self.limit_groups.get(name)
        if found is None:
            share = self._limits.get(name, Share())
            found = self.limit_groups[name] = ShareGroup((name,), name, None, share)
            found.is_limit = True
        return found

    def _reorder(self, user: ShareGroup) -> None:
        """Put a user and all above it where they belong among their siblings."""
        place, parent = user, user.parent
        while parent is not None:
            if (busy := bool(place.waiting_shapes or place.running_jobs)) != place.is_busy:
                place.is_busy = busy
                parent.busy_weight += place.weight if busy else -place.weight
            entry = (
                (place.rank(), self.usage_key(place), place.name) if place.waiting_shapes else None
            )
            if entry != place.order_entry:
                if place.order_entry is not None:
                    parent.order.discard(place.order_entry)
                if entry is not None:
                    parent.order.add(entry)
                place.order_entry = entry
            place, parent = parent, parent.parent

    def _refresh(self, place: ShareGroup) -> None:
        """Work out all keys below a place that has something waiting."""
        entries = []
        for _, _, name in place.order:
            child = place.children[name]
            self._refresh(child)
            child.order_entry = (child.rank(), self.usage_key(child), name)
            entries.append(child.order_entry)
        place.order = SortedSet()
        for entry in sorted(entries):
            place.order.add(entry)

    def _new_epoch(self, epoch: Instant) -> None:
        """Halve all usage as often as the epochs gone by do; what runs counts from its start."""
        halvings = (epoch - self.decay.epoch) // TICK >> self.decay.half_life_log2
        self.decay.epoch = epoch
        for place in self._all(self.root):
            place.past_usage = 0 if place.children else place.past_usage >> halvings
            place.started_growth = 0
        for user in self._users.values():
            for place in list(user.lineage())[1:]:
                place.past_usage += user.past_usage
        for job, gpu_type, since in self._ran.values():
            grown = job.rate(gpu_type) * self.decay.growth(since)
            for place in self.user_group(job.path).lineage():
                place.started_growth += grown

    def _all(self, place: ShareGroup) -> Iterator[ShareGroup]:
        yield place
        for child in place.children.values():
            yield from self._all(child)
