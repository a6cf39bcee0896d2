"""Steps 3 to 5: which job is looked at next.

Express jobs come first (step 3), then all jobs in the order of the share tree (step 4), then the
most urgent job of each org that could preempt lower classes of that org (step 5).
"""

from itertools import islice
from typing import Final

from bursar.core.scheduling.model.jobs import Job
from bursar.core.scheduling.order.express import express_jobs
from bursar.core.scheduling.order.longest_jobs import outlasting_jobs
from bursar.core.scheduling.order.share_group import FAIR_SHARE, ShareGroup
from bursar.core.scheduling.passes.attempt import JobAttempt
from bursar.core.scheduling.passes.context import PassContext
from bursar.core.scheduling.passes.shape_filter import ShapeFilter

_START: Final = (-1, 0, "")  # before all children of a group
_END: Final = (FAIR_SHARE + 1, 0, "")  # behind all of them
URGENT_ORGS_MAX: Final = 256  # orgs of which the most urgent job is looked at
URGENT_CANDIDATES: Final = 16  # jobs of one org that are checked for a more urgent one
EARLIER_CANDIDATES: Final = 16  # jobs of one user that are checked for an earlier one


class TurnPass:
    """Looks at express jobs, then at all jobs in turn, then at urgent ones."""

    def __init__(self, context: PassContext, shapes: ShapeFilter) -> None:
        self._context = context
        self._cluster = context.cluster
        self._tree = context.cluster.tree
        self._shapes = shapes
        self._attempt = JobAttempt(context, shapes)
        self._resume_at: dict[int, tuple[int, int, str]] = {}  # by group: where to go on

    def run_express(self) -> None:
        """Look at the short jobs that can still start in time."""
        context = self._context
        while context.looks_left > 0:
            job = next(express_jobs(self._cluster, context.is_open), None)
            if job is None:
                return
            self._attempt.look_at(self._earlier(job))

    def run_turns(self) -> None:
        """Look at all jobs in the order of the share tree."""
        while (job := self._next_in_turn()) is not None:
            self._attempt.look_at(self._earlier(self._more_urgent(job)))

    def run_urgent(self) -> None:
        """Look at the most urgent job of each org that could preempt jobs of its own org."""
        for org in islice(sorted(self._cluster.classes.urgent), URGENT_ORGS_MAX):
            job = self._cluster.waiting[self._tree.queues.most_urgent_job(org)]
            if self._context.is_open(job):
                self._attempt.look_at(self._earlier(job))

    def _next_in_turn(self) -> Job | None:
        """The next job that was not looked at; only jobs that may fit once looks are used up."""
        if self._context.looks_left <= 0 and not self._shapes.is_restricted:
            self._shapes.restrict_to_fitting()
            self._context.complete = False
        return self._first_below(self._tree.groups.root)

    def _first_below(self, group: ShareGroup) -> Job | None:
        if group.queues:
            return self._first_of_user(group)
        # A child that starts a job moves back: nothing new comes before the last entry.
        start = self._resume_at.get(id(group), _START)
        for entry in group.order.since(start):
            child = group.children[entry[2]]
            if self._shapes.admits_any_of(child) and (
                (job := self._first_below(child)) is not None
            ):
                self._resume_at[id(group)] = entry
                return job
        self._resume_at[id(group)] = _END
        return None

    def _first_of_user(self, user: ShareGroup) -> Job | None:
        """The first open job of a user; one that would outlast all others comes before the rest."""
        for job in outlasting_jobs(self._cluster, user):
            if self._context.is_open(job) and self._attempt.is_worthwhile(job):
                return job
        for key in user.queue_heads:
            job = self._cluster.waiting[key[-1]]
            if self._context.is_open(job) and self._attempt.is_worthwhile(job):
                return job
        return None

    def _more_urgent(self, job: Job) -> Job:
        """A job of the same org and a higher class, or else the job itself.

        The other job could preempt this one the next moment, so it is looked at first.
        """
        for negative_class, job_id in islice(
            self._tree.queues.waiting_classes[job.path[:2]], URGENT_CANDIDATES
        ):
            if -negative_class <= job.priority_class:
                break
            other = self._cluster.waiting[job_id]
            if self._context.is_open(other):
                return other
        return job

    def _earlier(self, job: Job) -> Job:
        """An earlier job of the same user, class and size that has waited too long, or the job.

        The earlier job could preempt this one the next moment, so it is looked at first.
        """
        earlier = islice(self._cluster.overtaken.earlier_overdue(job), EARLIER_CANDIDATES)
        return next((other for other in earlier if self._context.is_open(other)), job)
