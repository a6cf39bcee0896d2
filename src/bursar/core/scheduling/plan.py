"""A round: whose turn it is, what fits, who gets a future place, who makes room.

    1. jobs for which GPUs were kept start when these are free;
    2. the oldest job of each user that has waited too long starts, or gets a date;
    3. brief jobs that can still start in time, then everybody in turn: a job starts if it fits and
       is in nobody's way; else room is made for it if it has the right; else it gets a future
       place, the first few of them;
    4. again from 1 until nothing more is decided, so that a second look would decide nothing.

All of it is tried on the cluster and taken back: what counts is the plan.
"""

from itertools import islice, takewhile
from typing import Final

from bursar.core.ids import JobId
from bursar.core.instant import MINUTE, NEVER, Instant
from bursar.core.scheduling.decisions import (
    Decision,
    Keep,
    Plan,
    PlannedStart,
    Preempt,
    Promise,
    Start,
    Wait,
)
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.jobs import Job, Path, QueueKey, Shape, StartReason
from bursar.core.scheduling.model.nodes import MILLI
from bursar.core.scheduling.order import aging
from bursar.core.scheduling.order.ceiling_claims import CeilingClaims
from bursar.core.scheduling.order.express import express_jobs
from bursar.core.scheduling.order.share import FAIR, ShareGroup
from bursar.core.scheduling.placement.backfill import NodeClaims, find_planned_start
from bursar.core.scheduling.placement.search import find_placement, pieces_for
from bursar.core.scheduling.preemption.migration import find_moves, movable_types
from bursar.core.scheduling.preemption.rights import PreemptionRights
from bursar.core.scheduling.preemption.victims import (
    PreemptionSearch,
    StepBudget,
    VictimSet,
    may_preempt_any,
)

_START: Final = (-1, 0, "")  # before all children of a place
_END: Final = (FAIR + 1, 0, "")  # behind all
LOOKS_PER_USER_DIVISOR: Final = (
    16  # part of all looks that are for blocked jobs of one user, two at least
)
URGENT_ORGS_MAX: Final = 256  # orgs whose most urgent job is looked at for itself
TURN_RETRY_INTERVAL: Final = 5 * MINUTE  # who gives up its turn is looked at again
SHORTER_CANDIDATES: Final = (
    16  # jobs of one user and shape that are looked at for one that ends soon enough
)


def make_plan(cluster: Cluster, now: Instant) -> Plan:
    """Decide what starts, stops and is promised now; the cluster stays as it is."""
    cluster.advance_to(now)
    with cluster.trial():
        return carry_out(cluster, now)


def carry_out(cluster: Cluster, now: Instant) -> Plan:
    """The same plan, carried out on the cluster as it is made."""
    cluster.advance_to(now)
    decisions: list[Decision] = []
    steps = StepBudget()
    complete = True
    while True:
        turn = _Turn(cluster, steps)
        turn.take()
        decisions += turn.decisions
        complete = complete and turn.complete
        if not turn.decisions:
            break
    return Plan(
        at=now, decisions=tuple(decisions), waits=tuple(turn.waits.values()),
        complete=complete and not steps.ended, steps=steps.taken,
    )  # fmt: skip


def next_planning_time(cluster: Cluster) -> Instant | None:
    """When a plan may decide more although nothing happens until then; None if never.

    Somebody has waited too long, or so long that it may press others; or may be tried again; or
    somebody has run so long that it gives up its turn. Those who have, and nobody took it, are
    looked at again every few minutes: they have more to do by then.
    """
    due = next((at for at, _ in cluster.tree.due.since((cluster.now + 1, ()))), NEVER)
    turn = cluster.next_turn()
    turn = turn if turn > cluster.now else turn + TURN_RETRY_INTERVAL
    again = min(due, cluster.next_try(), cluster.next_press(), turn)
    return again if again < NEVER else None


def is_free_soon(cluster: Cluster, job: Job, reserved: PlannedStart | None) -> bool:
    """Whether a place is free within the grace anyway, and not too late for a job in a hurry."""
    soon = min(cluster.now + cluster.policy.grace, cluster.policy.express_until(job))
    return reserved is not None and reserved.at <= max(soon, cluster.now)


def is_waiting_cheaper(
    cluster: Cluster, job: Job, reserved: PlannedStart | None, freed: VictimSet
) -> bool:
    """Whether a place is free soon, and that costs less than the work that would be lost.

    Not if it is still time to start in time, and waiting would be too late.
    """
    target = cluster.policy.start_target(job.path[0])
    if reserved is None or reserved.at > cluster.now + target:
        return False
    if cluster.now < job.waits_since + target < reserved.at:
        return False
    lost = sum(running.work_lost(cluster.now) for running, _ in freed.victims)
    return job.price_of(reserved.gpu_type, reserved.at - cluster.now) < lost


class _Turn:
    """One look at everybody in turn."""

    def __init__(self, cluster: Cluster, steps: StepBudget) -> None:
        self.decisions: list[Decision] = []
        self.waits: dict[JobId, Wait] = {}
        self.complete = True
        self.steps = steps
        self._cluster = cluster
        self._policy = cluster.policy
        self._tree = cluster.tree
        self._claims = NodeClaims(cluster)
        self._promises = NodeClaims(cluster)  # those of them that were promised
        self._asking = PreemptionSearch(cluster, self._promises, self.steps)
        self._free = cluster.free()
        self._free_for: dict[tuple[Shape, tuple[str, ...]], int] = {}  # since the last decision
        self._coming = CeilingClaims(cluster)  # who has a future place
        self._part_taken = False  # whether one that waited too long must wait for another such
        self._reserved = 0  # future places given
        self._aged = cluster.aged  # milli-GPUs that run for their age or have a date
        self._closed: set[tuple[Path, QueueKey]] = set()  # of which no further job is looked at
        self._from: dict[int, tuple[int, int, str]] = {}  # where to go on at each place
        self._full: set[Shape] = set()  # shapes for which nothing is free
        self._looks = self._policy.looks
        self._fitting: set[Shape] | None = None  # once looks have run out: shapes that may fit
        self._nothing = NodeClaims(cluster)  # as if nobody had a claim
        self._behind = False  # whether somebody in turn before waits for room
        self._seen_most = max(self._policy.looks // LOOKS_PER_USER_DIVISOR, 2)
        self._seen: dict[Path, int] = {}  # how many blocked jobs of a user were looked at
        self._ceilings: set[int] = set()  # places that somebody waits below
        self._placed: set[Path] = set()  # users with a future place
        self._keeping: dict[JobId, PlannedStart] = {}  # dates that stay as they are

    def take(self) -> None:
        """Look at everybody in turn."""
        self._start_kept()
        self._start_aged()
        while (job := self._next_express()) is not None:
            self._look(job)
        while (job := self._next()) is not None:
            self._look(self._more_urgent(job))
        self._ask_for_urgent()

    # ----------------------------------------------------------------------- kept and aged

    def _start_kept(self) -> None:
        """Start the jobs whose GPUs are free by now."""
        for job_id in sorted(self._cluster.earmarks):
            earmark = self._cluster.earmarks[job_id]
            if self._cluster.can_start(earmark):
                self._decide(
                    Start(
                        job=job_id,
                        gpu_type=earmark.gpu_type,
                        pieces=earmark.pieces,
                        why=StartReason.FREED,
                    )
                )

    def _start_aged(self) -> None:
        """Start the oldest job of each user that waited too long, or give it a date.

        Of those that have a date, the first few may get a better one; the others keep theirs, and
        start before if they fit when it is their turn.
        """
        with_date, due = aging.jobs_with_date(self._cluster), aging.overdue_jobs(self._cluster)
        kept: dict[JobId, PlannedStart] = {}
        for job in with_date:
            if (reserved := self._dated(job)) is not None:
                kept[job.id] = reserved
                self._claims.add(job, reserved)
                self._promises.add(job, reserved)
        for number, job in enumerate(with_date):
            types = self._types(job)
            if job.id in kept and not types:  # a ceiling is in its way for now, its date stays
                self._coming.add(job, kept[job.id], dated=True)
            elif number >= self._policy.looks and job.id in kept:
                self._keeping[job.id] = kept[job.id]
                self._coming.add(job, kept[job.id], dated=True)
                self._waits_for_date(job, types, kept[job.id])
                self.complete = False
            else:
                self._start_or_date(job)
        for jobs in due:
            if self._part_taken:
                break
            any(self._start_or_date(job) for job in jobs)

    def _dated(self, job: Job) -> PlannedStart | None:
        """The place that a job was promised, unless it is lost or was to be free by now."""
        assert job.promised_at is not None
        if job.promised_at <= self._cluster.now or not job.promised_on:
            return None
        gpu_type = self._cluster.type_of(job.promised_on[0][0])
        reserved = PlannedStart(job.promised_at, gpu_type, job.promised_on)
        return reserved if self._claims.is_available(job, reserved) else None

    def _start_or_date(self, job: Job) -> bool:
        """Start a job for its age or give it a date; False if it can never start as things are."""
        self._claims.release(job)
        self._promises.release(job)
        types = self._types(job)
        if not types:
            return False
        milli, gpus = job.shape.milli_gpus, sum(self._cluster.gpus.values()) * MILLI
        too_much = self._aged and self._aged + milli > gpus // self._policy.aged_part
        if too_much and job.promised_at is None:
            self._part_taken = True  # nobody younger goes past it: the part empties until it fits
            return True
        if self._start(job, types, StartReason.AGE):
            self._aged += milli
        elif not self._ask(job, types):
            able = tuple(t for t in types if not self._crowds(job, t))
            reserved = self._no_later(
                job, find_planned_start(self._cluster, self._claims, job, able)
            )
            if reserved is None:
                return False
            self._claim(job, reserved, dated=True)
            self._promises.add(job, reserved)
            self._promise(job, reserved)
            self._waits_for_date(job, types, reserved)
            self._closed.add((job.path, job.queue_key))
        return True

    def _waits_for_date(self, job: Job, types: tuple[str, ...], reserved: PlannedStart) -> None:
        self._aged += job.shape.milli_gpus
        self._wait(job, types, "capacity", reserved)
        self._placed.add(job.path)

    def _no_later(self, job: Job, found: PlannedStart | None) -> PlannedStart | None:
        """The place that was found for a job, or the one it was promised if that is as soon."""
        promised = self._dated(job) if job.promised_at is not None else None
        if promised is not None and (found is None or promised.at <= found.at):
            return promised
        return found

    def _promise(self, job: Job, reserved: PlannedStart) -> None:
        if job.promised_at is None or reserved.at < job.promised_at:
            since = job.promised_since
            if since is None:  # later than all that were given, so that their order is kept
                since = max((self._cluster.now, *(one + 1 for one, _ in self._cluster.promised)))
            self._decide(Promise(job=job.id, at=reserved.at, since=since, nodes=reserved.nodes))

    # ----------------------------------------------------------------------- in turn

    def _next(self) -> Job | None:
        """The next job in turn of those that were not looked at.

        After so many looks only those come that may fit: whoever has to wait waits unseen.
        """
        if self._looks <= 0 and self._fitting is None:
            self._fitting = {
                shape for shape in self._tree.root.waiting_shapes if self._may_fit(shape)
            }
            self.complete = False
        return self._first(self._tree.root)

    def _next_express(self) -> Job | None:
        """The next job that comes before longer ones, of those that were not looked at."""
        if self._looks <= 0:
            return None
        return next(express_jobs(self._cluster, self._unseen), None)

    def _unseen(self, job: Job) -> bool:
        return (job.path, job.queue_key) not in self._closed

    def _may_fit(self, shape: Shape) -> bool:
        """Whether there is room for a shape, if one does not look at claims and ceilings."""
        if shape in self._full or not self._enough_free(shape):
            return False
        return find_placement(self._cluster, self._nothing, shape, shape.types, NEVER) is not None

    def _enough_free(self, shape: Shape) -> bool:
        """Whether there is room by numbers alone; what was free when the look began is the most."""
        for gpu_type in shape.types:
            largest, total = self._free.get(gpu_type, (-1, 0))
            if largest >= shape.gpus and total >= shape.gpus * shape.tasks:
                return True
        return False

    def _first(self, place: ShareGroup) -> Job | None:
        if place.queues:
            return self._first_of(place)
        # Whoever starts something moves back, so nothing is left before where a job was found.
        start = self._from.get(id(place), _START)
        for entry in place.order.since(start):
            child = place.children[entry[2]]
            may_fit = self._fitting is None or not child.waiting_shapes.keys().isdisjoint(
                self._fitting
            )
            if may_fit and (job := self._first(child)) is not None:
                self._from[id(place)] = entry
                return job
        self._from[id(place)] = _END
        return None

    def _first_of(self, user: ShareGroup) -> Job | None:
        if (longest := self._longest_of(user)) is not None:
            return longest
        for key in user.queue_heads:
            job = self._cluster.waiting[key[-1]]
            if (user.path, job.queue_key) not in self._closed and self._worth(job):
                return job
        return None

    def _longest_of(self, user: ShareGroup) -> Job | None:
        """Of its highest class, a job that would outlast all that the pool has to do."""
        for job in self._cluster.outlasting(user):
            if (user.path, job.queue_key) not in self._closed and self._worth(job):
                return job
        return None

    def _more_urgent(self, job: Job) -> Job:
        """Of the same org, one that would ask this one for its GPUs the next moment; or itself."""
        for less_class, job_id in islice(
            self._tree.waiting_classes[job.path[:2]], SHORTER_CANDIDATES
        ):
            if -less_class <= job.priority_class:
                break
            other = self._cluster.waiting[job_id]
            if (other.path, other.queue_key) not in self._closed:
                return other
        return job

    def _worth(self, job: Job) -> bool:
        """Whether to look at a job: it may fit, or few of its user have been looked at."""
        if self._fitting is not None:
            return job.shape in self._fitting
        if job.shape not in self._full or self._seen.get(job.path, 0) < self._seen_most:
            return True
        self.complete = False
        return False

    def _look(self, job: Job) -> None:
        """Start a job, make room for it, or let it wait."""
        if (reserved := self._keeping.get(job.id)) is not None:
            self._look_before(job, reserved)
            return
        types = self._types(job)
        if not types:
            if not self._replace(job):
                self._over(job)
        elif not (self._start_or_shorter(job, types) or self._ask(job, types)):
            self._block(job, types)

    def _look_before(self, job: Job, reserved: PlannedStart) -> None:
        """Start a job before its date, or let it keep that."""
        self._looks -= 1
        self._closed.add((job.path, job.queue_key))
        self._claims.release(job)
        self._promises.release(job)
        if self._start(job, self._types(job), StartReason.BACKFILL):
            del self.waits[job.id]
        else:
            self._claims.add(job, reserved)
            self._promises.add(job, reserved)

    def _start_or_shorter(self, job: Job, types: tuple[str, ...]) -> bool:
        """Start a job, or one of the same user and shape that is over before it is in the way."""
        if job.shape in self._full:
            return False
        why = StartReason.BACKFILL if self._behind else StartReason.TURN
        if self._start(job, types, why):
            return True
        if not self._may_fit(job.shape):
            self._full.add(job.shape)
            if self._fitting is not None:
                self._fitting.discard(job.shape)
            return False
        return any(self._start(other, types, StartReason.BACKFILL) for other in self._shorter(job))

    def _shorter(self, job: Job) -> list[Job]:
        """The next few jobs of the same user and shape that end sooner than those before them."""
        queue = self._tree.user_group(job.path).queues[job.queue_key]
        found, least = [], job.run_max
        for key in islice(queue, SHORTER_CANDIDATES):
            other = self._cluster.waiting[key[-1]]
            if other.run_max < least:
                found.append(other)
                least = other.run_max
        return found

    def _replace(self, job: Job) -> bool:
        """Let a job that would pass a ceiling take the place of others of its org."""
        if job.path[:2] not in self._cluster.urgent or self._ends_soon(job):
            return False
        freed = self._asking.make_room(job, job.shape.types)
        if freed is None:
            return False
        self._make(job, freed, self._cluster.now + self._policy.grace)
        return True

    def _ends_soon(self, job: Job) -> bool:
        """Whether enough ends within the grace anyway for a job to pass no ceiling."""
        soon = self._cluster.now + self._policy.grace
        for gpu_type in job.shape.types:
            ends = takewhile(lambda end: end[0] <= soon, self._cluster.ends.get(gpu_type, ()))
            ending = [one for _, job_id in ends if (one := self._cluster.running.get(job_id))]
            if PreemptionRights(self._cluster, job, gpu_type).clears_ceilings(ending):
                return True
        return False

    def _ask(self, job: Job, types: tuple[str, ...]) -> bool:
        """Make room for a job that has the right, if waiting does not cost less."""
        types = tuple(one for one in types if not self._crowds(job, one, dated=True))
        movable = movable_types(self._cluster, job, types)
        asks = may_preempt_any(self._cluster, job, types)
        if not movable and not asks:
            return False
        reserved = find_planned_start(self._cluster, self._claims, job, types)
        if is_free_soon(self._cluster, job, reserved):
            return False
        freed = find_moves(self._cluster, self._promises, self._claims, job, movable)
        if freed is None and asks:
            freed = self._asking.make_room(job, types)
        if freed is None or is_waiting_cheaper(self._cluster, job, reserved, freed):
            return False
        self._make(job, freed, self._cluster.now + self._policy.grace)
        return True

    def _make(self, job: Job, freed: VictimSet, soon: Instant) -> None:
        self.complete = self.complete and freed.proven
        victims = sorted(freed.victims, key=lambda one: one[0].job.id)
        without = frozenset(running.job.id for running, _ in victims)
        kept = pieces_for(self._cluster, job.shape, freed.placement, freed.at, without)
        for running, right in victims:
            lost = running.work_lost(self._cluster.now)
            name, stops_at = running.job.id, min(soon, running.ends_by)
            self._decide(
                Preempt(job=name, wanted_by=job.id, right=right, lost=lost, stops_at=stops_at)
            )
        self._decide(
            Keep(
                job=job.id,
                gpu_type=freed.placement.gpu_type,
                pieces=kept,
                victims=tuple(running.job.id for running, _ in victims),
            )
        )

    def _block(self, job: Job, types: tuple[str, ...]) -> None:
        """Let a job wait, with a future place if there are any left.

        Not a brief one whose place would come too late: whoever keeps GPUs free for it gains
        nothing, and it finds a gap, or gets a date for its age.
        """
        self._looks -= 1
        self._closed.add((job.path, job.queue_key))
        self._seen[job.path] = self._seen.get(job.path, 0) + 1
        self._behind = True
        if all(self._crowds(job, gpu_type) for gpu_type in types):
            self._wait(job, types, "crowded")
            return
        none_left = self._reserved == self._policy.reservations or job.path in self._placed
        if none_left or self._policy.express_until(job) <= self._cluster.now:
            self._wait(job, types, "capacity")
            return
        reserved = find_planned_start(self._cluster, self._claims, job, types)
        if reserved is None:
            self._wait(job, types, "never_fits")
            return
        if self._policy.express_until(job) <= reserved.at:
            self._wait(job, types, "capacity")
            return
        self._reserved += 1
        self._placed.add(job.path)
        self._claim(job, reserved, dated=False)
        self._wait(job, types, "capacity", reserved)

    def _over(self, job: Job) -> None:
        """Let a job wait that would pass a ceiling; all who wait for one ceiling cost one look."""
        self._closed.add((job.path, job.queue_key))
        gpu_type = job.shape.types[0]
        over = self._tree.first_exceeded(job, gpu_type)
        assert over is not None
        if id(over[0]) not in self._ceilings:
            self._ceilings.add(id(over[0]))
            self._looks -= 1
        place, (of, *amounts) = over
        used, most = amounts if of == "jobs" else map(_gpus, amounts)
        figures = ("at", "/".join(place.path)), ("of", of), ("used", used), ("most", most)
        self.waits[job.id] = Wait(job=job.id, reason="ceiling", figures=figures)

    def _ask_for_urgent(self) -> None:
        """Look at the most urgent job of each org, if it could ask others of its own org."""
        for org in islice(sorted(self._cluster.urgent), URGENT_ORGS_MAX):
            job = self._cluster.waiting[self._tree.most_urgent_job(org)]
            if (job.path, job.queue_key) not in self._closed:
                self._look(job)

    # ----------------------------------------------------------------------- both

    def _types(self, job: Job) -> tuple[str, ...]:
        """The types on which the job passes no ceiling."""
        return self._cluster.open_types(job)

    def _start(self, job: Job, types: tuple[str, ...], why: StartReason) -> bool:
        """Start a job if it fits and is in nobody's way."""
        until = self._cluster.now + job.run_max
        types = tuple(t for t in types if not self._crowds(job, t))
        spot = find_placement(self._cluster, self._claims, job.shape, types, until)
        if spot is None:
            return False
        taken = pieces_for(self._cluster, job.shape, spot)
        self._decide(Start(job=job.id, gpu_type=spot.gpu_type, pieces=taken, why=why))
        return True

    def _claim(self, job: Job, reserved: PlannedStart, *, dated: bool) -> None:
        """Keep others out of the way of a future place, on its nodes and below its ceilings."""
        self._claims.add(job, reserved)
        self._coming.add(job, reserved, dated=dated)

    def _crowds(self, job: Job, gpu_type: str, *, dated: bool = False) -> bool:
        """Whether a job would use up a ceiling that somebody with a future place needs as well."""
        return self._coming.find_crowded(job, gpu_type, dated=dated) is not None

    def _wait(
        self, job: Job, types: tuple[str, ...], reason: str, reserved: PlannedStart | None = None
    ) -> None:
        free = self._free_for.get((job.shape, types))
        if free is None:
            free = self._free_for[job.shape, types] = self._cluster.free_for(job.shape, types)
        figures = ("needs", _gpus(job.shape.milli_gpus)), ("free", free)
        self.waits[job.id] = Wait(job=job.id, reason=reason, figures=figures, planned=reserved)

    def _decide(self, decision: Decision) -> None:
        self.decisions.append(decision)
        self._free_for.clear()
        self._cluster.apply(decision)


def _gpus(milli: int) -> int | str:
    """A number of GPUs, with a fraction if it has one."""
    whole, part = divmod(milli, MILLI)
    return f"{whole}.{part:03}".rstrip("0") if part else whole
