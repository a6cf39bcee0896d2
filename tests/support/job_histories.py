"""Random lives of an org's jobs, and the same commands again in batches.

    history = random_history(Random(7))
    assert run_in_batches(history, {3, 8}) == run_in_batches(history, set())

A history is made one command at a time, each in its own transaction. `run_in_batches` runs the same
commands with several of them in one transaction. As in the service, a transaction reads rows and
holds as they were stored before it, and what it has changed itself.
"""

import dataclasses
from collections.abc import Sequence
from random import Random
from typing import Any, Final, NamedTuple

from bursar.core.dispatch.job_lifecycle import JobState
from bursar.core.ids import HoldId
from bursar.core.instant import HOUR, MINUTE, SECOND, Instant
from bursar.core.jobs.arrays import advance, is_due
from bursar.core.jobs.cancellation import CancelJob, cancel_command
from bursar.core.jobs.corrections import CorrectAttemptEnd
from bursar.core.jobs.effects import JobEffect, Outcome
from bursar.core.jobs.pool_messages import PoolMessage, commands_of
from bursar.core.jobs.result_cache import DueFollower, RepairGroup, Sharing, end_follower
from bursar.core.jobs.rows import OrgJob
from bursar.core.jobs.submission import ExtendJob, SubmitJob, reserve_for_job
from bursar.core.jobs.transaction import JobTransaction
from bursar.core.ledger.books import Books, require
from bursar.core.ledger.commands import Command, CorrectEnd, ExtendHold, Lapse
from bursar.core.messages import Cause, Corrected, Dropped, EndClass, RanSoFar, ToOrg
from bursar.core.value import replace
from bursar.sim.faults import org as rules
from bursar.sim.faults.job_upkeep import find_due
from bursar.sim.faults.org import SimulatedOrg
from tests.support.jobs import PRICES, STARTED, JobTrial, ended, stored_org

LENGTH: Final = 40  # commands of a history, after those that set up the org
PAUSES: Final = (0, 0, 0, 1, SECOND, SECOND, MINUTE, 4 * MINUTE)  # before a command
SELDOM: Final = (0, 0, 0, 0, 0, 0, SECOND, 3 * MINUTE)
GROUPS: Final = ("x", "y")


class AskedCommand(NamedTuple):
    """A command as it was asked, with its effect on jobs."""

    key: str
    command: Command
    effect: JobEffect | None
    now: Instant


class JobHistory(NamedTuple):
    """Commands of one org, in order."""

    asked: tuple[AskedCommand, ...]
    start: int  # the first that is not needed to set up the org


class _RecordingTrial(JobTrial):
    """An org that records what it is asked."""

    def __init__(self) -> None:
        self.asked: list[AskedCommand] = []
        super().__init__(credits=10_000_000)

    def asks(
        self, command: Command, effect: JobEffect | None = None, key: str | None = None
    ) -> Outcome:
        key = key or f"own {len(self.asked)}"
        self.asked.append(AskedCommand(key, command, copied(effect), self.now))
        return super().asks(command, effect, key)


def copied(effect: Any) -> Any:
    """The effect anew: some of them count what they have done."""
    return None if effect is None else dataclasses.replace(effect)


class _Life:
    """Makes up what happens to the jobs of an org."""

    def __init__(self, random: Random, pauses: Sequence[int]) -> None:
        self.random = random
        self.pauses = pauses
        self.trial = _RecordingTrial()
        self.start = len(self.trial.asked)
        self._names = 0

    def go_on(self) -> None:
        """One more thing happens."""
        trial, random = self.trial, self.random
        trial.now += random.choice(self.pauses)
        jobs = list(trial.org.jobs.values())
        things = [self._submit, self._submit, self._repair, self._lapse]
        if jobs:
            things += [self._hear, self._hear, self._hear, self._hear, self._hear, self._hear]
            things += [self._cancel, self._extend, self._correct, self._advance, self._advance]
            things += [self._end_followers, self._end_followers]
        random.choice(things)()

    def _submit(self) -> None:
        random, trial = self.random, self.trial
        self._names += 1
        name = f"job-{self._names}"
        hold: dict[str, Any] = {"ttl": random.choice((2, 5, 30)) * MINUTE}
        if random.random() < 0.25:
            hold |= {"element_count": random.choice((2, 3)), "at_once": random.choice((1, 2))}
            trial.submit(name, hold=hold)
            return
        sharing = Sharing(random.choice(GROUPS), random.choice((0, MINUTE, HOUR)))
        submission = trial.submission(name, hold=hold, sharing=sharing)
        trial.asks(reserve_for_job(submission), SubmitJob(submission))

    def _one(self, rows: Sequence[OrgJob]) -> OrgJob | None:
        return self.random.choice(rows) if rows else None

    def _hear(self) -> None:
        """A pool reports about a job that it has."""
        rows = [
            row
            for row in self.trial.org.jobs.values()
            if row.elements is None and row.sent and not row.is_finished
        ]
        rows += [row for row in self.trial.org.jobs.values() if row.correcting]
        row = self._one(rows)
        if row is not None:
            self._tell(row, self._message(row))

    def _message(self, row: OrgJob) -> ToOrg:
        random = self.random
        if row.correcting:
            return Corrected(
                attempt=row.attempt,
                end_class=random.choice((EndClass.PLATFORM, EndClass.USER)),
                run_ms=1_000,
                kept_ms=random.choice((None, 0, 500)),
                job_finished=True,
            )
        if row.state in (JobState.RUNNING, JobState.STOPPING):
            run_ms = random.choice((500, 2_000, 10_000))
            if random.random() < 0.25:
                return RanSoFar(attempt=row.attempt, run_ms=run_ms)
            why = random.choice((Cause.FINISHED, Cause.FINISHED, Cause.FAILED, Cause.PREEMPTED))
            if why is Cause.PREEMPTED:
                kept_ms, over = random.choice((None, 0, 500)), random.random() < 0.2
                why = random.choice((Cause.PREEMPTED, Cause.OUT_OF_CREDITS))
                return ended(why, run_ms, over=over, kept_ms=kept_ms, attempt=row.attempt)
            exit_code = int(why is Cause.FAILED)
            return ended(why, run_ms, exit_code=exit_code, attempt=row.attempt)
        if row.withdrawn or random.random() < 0.15:
            return Dropped(end_class=EndClass.USER, why=Cause.CANCELLED)
        return replace(STARTED, attempt=row.attempt + 1, started_at=self.trial.now)

    def _tell(self, row: OrgJob, message: ToOrg) -> None:
        envelope = PoolMessage(row.pool, row.id, row.received + 1, message)
        commands = commands_of(envelope, row.array)
        asked = next(commands)
        while True:
            outcome = self.trial.asks(asked.command, asked.effect, asked.key)
            try:
                asked = commands.send(outcome)
            except StopIteration:
                return

    def _cancel(self) -> None:
        row = self._one(list(self.trial.org.jobs.values()))
        if row is not None and self.random.random() < 0.5:
            self.trial.asks(cancel_command(row.id), CancelJob(row.id))

    def _extend(self) -> None:
        row = self._one(list(self.trial.org.jobs.values()))
        if row is not None:
            until = require(self.trial.org.books.holds, HoldId(row.id)).expires_at + MINUTE
            command = ExtendHold(hold=HoldId(row.id), amount=1_000, expires_at=until)
            self.trial.asks(command, ExtendJob(row.id, 1_000, until))

    def _correct(self) -> None:
        rows = self.trial.org.jobs.values()
        row = self._one([row for row in rows if row.is_finished and row.attempt])
        if row is not None:
            end_class = self.random.choice((EndClass.PLATFORM, EndClass.USER))
            command = CorrectEnd(hold=HoldId(row.id), attempt=row.attempt, end_class=end_class)
            self.trial.asks(command, CorrectAttemptEnd(command))

    def _advance(self) -> None:
        due = [array for array in self.trial.org.arrays.values() if is_due(array)]
        if due:
            self.trial.follows(advance(self.random.choice(due)))

    def _repair(self) -> None:
        group = RepairGroup(self.random.choice(GROUPS), self.random.random() < 0.7)
        self.trial.asks(Lapse(most=1), group)

    def _lapse(self) -> None:
        self.trial.asks(Lapse(most=1))

    def _end_followers(self) -> None:
        for row in list(self.trial.org.jobs.values()):
            due: DueFollower | None = find_due(self.trial.org, row.id) if row.follows else None
            if due is not None:
                self.trial.follows(end_follower(due, str(self.trial.now)))


def random_history(random: Random, pauses: Sequence[int] = PAUSES) -> JobHistory:
    """What happens to the jobs of an org."""
    life = _Life(random, pauses)
    while len(life.trial.asked) < life.start + LENGTH:
        life.go_on()
    return JobHistory(tuple(life.trial.asked), life.start)


class RunOrg(NamedTuple):
    """What became of an org."""

    events: Any
    jobs: Any
    arrays: Any
    outbox: Any
    outcomes: Any


def run_in_batches(history: JobHistory, cuts: set[int]) -> RunOrg:
    """Run all commands. A batch ends before each place in `cuts`; no cuts: each is a batch."""
    org = SimulatedOrg(id="acme", books=Books(PRICES))
    jobs = JobTransaction(stored_org(org))
    for place, asked in enumerate(history.asked):
        if not cuts or place <= history.start or place - history.start in cuts:
            rules.commit_jobs(org, jobs)
            jobs = JobTransaction(stored_org(org))
        if asked.key not in org.replies:
            effect = copied(asked.effect)
            rules.perform_command(org, asked.key, asked.command, effect, jobs, asked.now)
    rules.commit_jobs(org, jobs)
    outcomes = {key: reply.outcome for key, reply in org.replies.items()}
    return RunOrg(org.events, org.jobs, org.arrays, org.outbox, outcomes)
