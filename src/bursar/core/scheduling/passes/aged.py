"""Step 2: jobs that have waited too long start, or get a date by which they start.

Jobs that have a date keep their order. The first few of them may get a better one, the others keep
theirs. Then overtaken jobs take the place of later jobs of their user. Then the oldest job of each
user that has no date is looked at. Aged jobs together get at most a part of the GPUs
(`PoolPolicy.aged_part`), so that aged jobs cannot take over the pool.
"""

from itertools import islice
from typing import Final

from bursar.core.ids import JobId
from bursar.core.scheduling.decisions import PlannedStart, Promise
from bursar.core.scheduling.model.jobs import Job, StartReason
from bursar.core.scheduling.model.nodes import MILLI
from bursar.core.scheduling.order.aging import jobs_with_date, overdue_jobs
from bursar.core.scheduling.passes.context import PassContext
from bursar.core.scheduling.passes.room import make_room_for, replace_own
from bursar.core.scheduling.placement.backfill import find_planned_start

OVERTAKEN_SIZES_MAX: Final = 256  # users, classes and sizes of which overtaken jobs are looked at


class AgedPass:
    """Starts aged jobs or gives them dates."""

    def __init__(self, context: PassContext) -> None:
        self._context = context
        self._cluster = context.cluster
        self._policy = context.policy
        # Milli-GPUs of jobs that run for their age or have a date.
        self._aged = self._cluster.running_index.aged_milli_gpus
        self._is_full = False  # whether an aged job waits for other aged jobs to end

    def run(self) -> None:
        """Look at all jobs with a date, then at the oldest jobs without one."""
        context = self._context
        with_date = jobs_with_date(self._cluster)
        dates: dict[JobId, PlannedStart] = {}
        for job in with_date:
            if (planned := self._promised_start(job)) is not None:
                dates[job.id] = planned
                context.hold_date(job, planned)
        for number, job in enumerate(with_date):
            types = self._cluster.open_types(job)
            if job.id in dates and not types:  # a ceiling blocks it for now; its date stays
                context.ceiling_claims.add(job, dates[job.id], dated=True)
            elif number >= self._policy.looks and job.id in dates:
                context.kept_dates[job.id] = dates[job.id]
                context.ceiling_claims.add(job, dates[job.id], dated=True)
                self._wait_for_date(job, types, dates[job.id])
                context.complete = False
            else:
                self._start_or_date(job)
        for jobs in islice(self._cluster.overtaken.overtaken(), OVERTAKEN_SIZES_MAX):
            any(self._take_over(job, dates.get(job.id)) for job in jobs)
        for jobs in overdue_jobs(self._cluster):
            if self._is_full:
                break
            any(self._start_or_date(job) for job in jobs)

    def _promised_start(self, job: Job) -> PlannedStart | None:
        """The start that a job was promised, unless its nodes are lost or its date has passed."""
        assert job.promised_at is not None
        if job.promised_at <= self._cluster.now or not job.promised_on:
            return None
        gpu_type = self._cluster.nodes.gpu_type_of(job.promised_on[0][0])
        planned = PlannedStart(job.promised_at, gpu_type, job.promised_on)
        return planned if self._context.claims.is_available(job, planned) else None

    def _start_or_date(self, job: Job) -> bool:
        """Start a job for its age or give it a date; False if it can do neither."""
        context = self._context
        context.release_date(job)
        types = self._cluster.open_types(job)
        if not types:
            return False
        milli, gpus = job.shape.milli_gpus, sum(self._cluster.nodes.gpus.values()) * MILLI
        too_much = self._aged and self._aged + milli > gpus // self._policy.aged_part
        if too_much and job.promised_at is None:
            self._is_full = True  # no younger aged job overtakes it, so that it fits in the end
            return True
        if context.start_if_fits(job, types, StartReason.AGE):
            self._aged += milli
        elif not make_room_for(context, job, types):
            open_types = tuple(t for t in types if not context.crowds(job, t))
            planned = self._no_later(
                job, find_planned_start(self._cluster, context.claims, job, open_types)
            )
            if planned is None:
                return False
            context.claim(job, planned, dated=True)
            context.promises.add(job, planned)
            self._promise(job, planned)
            self._wait_for_date(job, types, planned)
            context.close(job)
        return True

    def _take_over(self, job: Job, date: PlannedStart | None) -> bool:
        """Start an overtaken job in the place of later jobs of its user, which stop."""
        context = self._context
        context.release_date(job)
        types = self._cluster.open_types(job)
        if make_room_for(context, job, types) if types else replace_own(context, job):
            return True
        if date is not None:
            context.hold_date(job, date)
        return False

    def _wait_for_date(self, job: Job, types: tuple[str, ...], planned: PlannedStart) -> None:
        self._aged += job.shape.milli_gpus
        self._context.wait(job, types, "capacity", planned)
        self._context.planned_users.add(job.path)

    def _no_later(self, job: Job, planned: PlannedStart | None) -> PlannedStart | None:
        """The planned start, or the promised one if that is no later."""
        promised = self._promised_start(job) if job.promised_at is not None else None
        if promised is not None and (planned is None or promised.at <= planned.at):
            return promised
        return planned

    def _promise(self, job: Job, planned: PlannedStart) -> None:
        """Promise a date that is new, or sooner than the one before."""
        if job.promised_at is None or planned.at < job.promised_at:
            since = job.promised_since
            if since is None:  # later than all others, so that their order stays
                others = self._cluster.waiting_index.with_date
                since = max((self._cluster.now, *(first + 1 for first, _ in others)))
            self._context.decide(
                Promise(job=job.id, at=planned.at, since=since, nodes=planned.nodes)
            )
