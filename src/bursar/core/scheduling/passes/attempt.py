"""Steps 3 to 5, for one job: start it, make room for it, or let it wait.

1. A job starts if it fits and delays no planned start; or else a shorter job of the same user
   and kind that does (backfill).
2. Else other jobs move or stop for it, if it has the right and waiting does not cost less.
3. Else it waits. The first blocked jobs, one of each user, get a planned start.
"""

from itertools import islice
from typing import Final

from bursar.core.scheduling.decisions import PlannedStart, Wait
from bursar.core.scheduling.model.jobs import Job, Path, StartReason
from bursar.core.scheduling.passes.context import PassContext, gpu_figure
from bursar.core.scheduling.passes.room import make_room_for, replace_own
from bursar.core.scheduling.passes.shape_filter import ShapeFilter
from bursar.core.scheduling.placement.backfill import find_planned_start

LOOKS_PER_USER_DIVISOR: Final = 16  # the part of all looks that one user's blocked jobs get
LOOKS_PER_USER_MIN: Final = 2
SHORTER_CANDIDATES: Final = 16  # jobs of one user and kind that are checked for a shorter one


class JobAttempt:
    """Looks at jobs one after another, and remembers what blocked the earlier ones."""

    def __init__(self, context: PassContext, shapes: ShapeFilter) -> None:
        self._context = context
        self._cluster = context.cluster
        self._policy = context.policy
        self._shapes = shapes
        self._is_any_blocked = False  # whether a job waits for room: all later starts are backfill
        self._planned_starts = 0
        self._blocked_by_user: dict[Path, int] = {}
        self._looks_per_user = max(self._policy.looks // LOOKS_PER_USER_DIVISOR, LOOKS_PER_USER_MIN)
        self._ceilings: set[int] = set()  # groups at whose ceiling a job waits

    def is_worthwhile(self, job: Job) -> bool:
        """Whether to look at a job: it may fit, or few of its user's jobs have been looked at."""
        if self._shapes.is_restricted:
            return self._shapes.admits(job.shape)
        if not self._shapes.is_full_for(job.shape):
            return True
        if self._blocked_by_user.get(job.path, 0) < self._looks_per_user:
            return True
        self._context.complete = False
        return False

    def look_at(self, job: Job) -> None:
        """Start a job, make room for it, or let it wait."""
        context = self._context
        if (planned := context.kept_dates.get(job.id)) is not None:
            self._start_before_date(job, planned)
            return
        types = self._cluster.open_types(job)
        if not types:
            if not replace_own(context, job):
                self._wait_at_ceiling(job)
        elif not (self._start_or_shorter(job, types) or make_room_for(context, job, types)):
            self._block(job, types)

    def _start_before_date(self, job: Job, planned: PlannedStart) -> None:
        """Start a job before its date, or let it keep that."""
        context = self._context
        context.looks_left -= 1
        context.close(job)
        context.release_date(job)
        if context.start_if_fits(job, self._cluster.open_types(job), StartReason.BACKFILL):
            del context.waits[job.id]
        else:
            context.hold_date(job, planned)

    def _start_or_shorter(self, job: Job, types: tuple[str, ...]) -> bool:
        """Start a job, or a shorter one of the same user and kind that delays no planned start."""
        context, shapes = self._context, self._shapes
        if shapes.is_full_for(job.shape):
            return False
        why = StartReason.BACKFILL if self._is_any_blocked else StartReason.TURN
        if context.start_if_fits(job, types, why):
            return True
        if not shapes.may_fit(job.shape):
            shapes.mark_full(job.shape)
            return False
        shorter = self._shorter_jobs(job)
        return any(context.start_if_fits(other, types, StartReason.BACKFILL) for other in shorter)

    def _shorter_jobs(self, job: Job) -> list[Job]:
        """The next jobs of the same user and kind, each shorter than all before it.

        None that an earlier job could preempt the next moment, because it has waited too long.
        """
        queue = self._cluster.tree.groups.user_group(job.path).queues[job.queue_key]
        shorter, least = [], job.run_max
        for key in islice(queue, SHORTER_CANDIDATES):
            other = self._cluster.waiting[key[-1]]
            earlier = self._cluster.overtaken.earlier_overdue(other)
            if other.run_max < least and not any(True for _ in earlier):
                shorter.append(other)
                least = other.run_max
        return shorter

    def _block(self, job: Job, types: tuple[str, ...]) -> None:
        """Let a job wait, with a planned start if there are any left.

        An express job whose planned start would be too late gets none: GPUs held free for it would
        gain nothing. It finds a gap, or gets a date for its age.
        """
        context, policy = self._context, self._policy
        context.looks_left -= 1
        context.close(job)
        self._blocked_by_user[job.path] = self._blocked_by_user.get(job.path, 0) + 1
        self._is_any_blocked = True
        if all(context.crowds(job, gpu_type) for gpu_type in types):
            context.wait(job, types, "crowded")
            return
        all_given = self._planned_starts == policy.reservations
        none_left = all_given or job.path in context.planned_users
        if none_left or policy.express_until(job) <= self._cluster.now:
            context.wait(job, types, "capacity")
            return
        planned = find_planned_start(self._cluster, context.claims, job, types)
        if planned is None:
            context.wait(job, types, "never_fits")
            return
        if policy.express_until(job) <= planned.at:
            context.wait(job, types, "capacity")
            return
        self._planned_starts += 1
        context.planned_users.add(job.path)
        context.claim(job, planned, dated=False)
        context.wait(job, types, "capacity", planned)

    def _wait_at_ceiling(self, job: Job) -> None:
        """Let a job wait that would pass a ceiling. All jobs at one ceiling cost one look."""
        context = self._context
        context.close(job)
        exceeded = self._cluster.tree.first_exceeded(job, job.shape.types[0])
        assert exceeded is not None
        group, (of, *amounts) = exceeded
        if id(group) not in self._ceilings:
            self._ceilings.add(id(group))
            context.looks_left -= 1
        used, most = amounts if of == "jobs" else map(gpu_figure, amounts)
        figures = ("at", "/".join(group.path)), ("of", of), ("used", used), ("most", most)
        context.waits[job.id] = Wait(job=job.id, reason="ceiling", figures=figures)
