"""An org whose jobs are rows in memory, changed by the rules of `core.jobs` alone.

    trial = JobTrial()
    trial.submit("job")
    trial.tell("job", STARTED)
    trial.cancel("job")
    assert [State.STOPPING] == [trial.job("job").state]

One GPU of type H100 costs a micro-credit a millisecond, one of type A100 half of that. Every call
is a transaction; time goes on only when a test says so.
"""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from bursar.core.ids import AccountId, GrantId, HoldId, JobId, PriceVersionId, UserId
from bursar.core.instant import MINUTE, Instant
from bursar.core.jobs.arrays import advance
from bursar.core.jobs.cancellation import CancelJob, cancel_command, cancel_key
from bursar.core.jobs.effects import FollowUp, JobEffect, Outcome
from bursar.core.jobs.pool_messages import PoolMessage, commands_of
from bursar.core.jobs.relocation import request_move
from bursar.core.jobs.rows import ArrayProgress, OrgJob
from bursar.core.jobs.submission import Submission, SubmitJob, reserve_for_job
from bursar.core.jobs.transaction import JobTransaction
from bursar.core.ledger.books import Books, require
from bursar.core.ledger.commands import AddAccount, AddUser, Command, Issue, Reserve
from bursar.core.ledger.events import Event, JobStepped
from bursar.core.ledger.journal import rebuild
from bursar.core.ledger.values import NO_POLICY, Context, CreditKind, GrantPolicy, Hold
from bursar.core.messages import Cause, EndClass, Ended, JobSpec, Started, ToOrg, ToPool
from bursar.core.pricing import PriceBook, PriceVersion, Rate
from bursar.core.refusal import Refusal
from bursar.core.scheduling.model.jobs import Shape
from bursar.sim.faults import org as rules
from bursar.sim.faults.org import POOL, SimulatedOrg
from tests.support.builders import PER_MS, T0

JOB, ARRAY = JobId("job"), JobId("array")
ROOT, TEAM = AccountId("root"), AccountId("team")
ANN, BOB = UserId("ann"), UserId("bob")
RUN_MS: Final = 60_000  # the longest run of every job, which one H100 has 60 000 micro-credits for
CREDITS: Final = 1_000_000
HIT_PPM: Final = 250_000  # a cached result costs a quarter of its run
PRICES: Final = PriceBook(
    versions=(
        PriceVersion(
            id=PriceVersionId("list"),
            effective_at=0,
            rates=(
                Rate(gpu_type="H100", micros_per_gpu_hour=PER_MS),
                Rate(gpu_type="A100", micros_per_gpu_hour=PER_MS // 2),
            ),
            cache_hit_ppm=HIT_PPM,
        ),
    )
)
STARTED: Final = Started(attempt=1, gpu_type="H100", started_at=T0, run_ms=RUN_MS)


def spec_for(*types: str, gpus: int = 1) -> JobSpec:
    """A job of so many GPUs, of any of these types."""
    return JobSpec(shape=Shape(types=types or ("H100",), gpus=gpus))


def reserve_for(
    job: str = JOB, *types: str, gpus: int = 1, account: str = TEAM, user: str = ANN, **more: Any
) -> Reserve:
    """The hold of a job that may run for a minute; it lasts ten."""
    context = Context(gpu_types=types or ("H100",), milli_gpus=gpus * 1_000, job=JobId(job))
    return Reserve(
        hold=HoldId(job),
        account=AccountId(account),
        user=UserId(user),
        run_ms=RUN_MS,
        context=context,
        for_job=True,
        **{"ttl": 10 * MINUTE, **more},
    )


def ended(
    why: Cause,
    run_ms: int = 1_000,
    *,
    over: bool = True,
    end_class: EndClass = EndClass.USER,
    **more: Any,
) -> Ended:
    """The end of the first attempt, of which nothing is given back."""
    given = {"attempt": 1, "kept_ms": None, **more}
    return Ended(end_class=end_class, run_ms=run_ms, job_finished=over, why=why, **given)


def a_job(job: str = JOB, **changes: Any) -> OrgJob:
    """The row of a job that was submitted at T0."""
    given = {"account": TEAM, "user": ANN, "pool": POOL, "submitted_at": T0, **changes}
    return OrgJob(id=JobId(job), **given)


@dataclass(slots=True)
class CountingOrg(SimulatedOrg):
    """An org that is told how many jobs it has, and notes what was counted."""

    waiting: int = 0
    latest: int = 0
    counted: list[tuple[str, object]] = field(default_factory=list)

    def count_waiting(self, account: str | None, user: str | None, most: int) -> int:
        """How many jobs wait."""
        self.counted.append(("waiting", (account, user, most)))
        return self.waiting

    def count_latest(self, account: str | None, user: str | None, since: Instant, most: int) -> int:
        """How many jobs came of late."""
        self.counted.append(("latest", (account, user, since, most)))
        return self.latest


def stored_org(org: SimulatedOrg) -> SimulatedOrg:
    """The org as a transaction finds it stored: changes of the transaction are not in it."""
    return dataclasses.replace(
        org,
        books=rebuild(org.events, org.books.deployment),
        jobs=dict(org.jobs),
        arrays=dict(org.arrays),
        routed={job: list(routes) for job, routes in org.routed.items()},
        enqueued=dict(org.enqueued),
    )


class JobTrial:
    """An org with a root account, a team, two users, and credits."""

    def __init__(self, credits: int = CREDITS, *, prices: PriceBook = PRICES) -> None:
        self.org = CountingOrg(id="acme", books=Books(prices))
        self.now: Instant = T0
        self._keys = 0
        self._transaction: JobTransaction | None = None  # that the next commands share
        self.does(AddAccount(account=ROOT, parent=None, name="root"))
        self.does(AddAccount(account=TEAM, parent=ROOT, name="team"))
        self.does(AddUser(user=ANN))
        self.does(AddUser(user=BOB))
        if credits:
            self.issue(credits)

    # Asking

    def asks(
        self, command: Command, effect: JobEffect | None = None, key: str | None = None
    ) -> Outcome:
        """Ask the ledger, with an effect on jobs; under a new key unless the key is named."""
        self._keys += 1
        key = key or f"key {self._keys}"
        if self._transaction is None:
            return rules.ask(self.org, key, command, self.now, effect)[0]
        return rules.perform_command(self.org, key, command, effect, self._transaction, self.now)

    @contextmanager
    def one_transaction(self) -> Iterator[None]:
        """Perform all commands in one transaction: the rows are stored at its end."""
        self._transaction = JobTransaction(stored_org(self.org))
        yield
        rules.commit_jobs(self.org, self._transaction)
        self._transaction = None

    def does(
        self, command: Command, effect: JobEffect | None = None, key: str | None = None
    ) -> tuple[Event, ...]:
        """Ask for something that must not be refused."""
        outcome = self.asks(command, effect, key)
        assert not isinstance(outcome, Refusal), outcome
        return outcome

    def refuses(
        self, command: Command, effect: JobEffect | None = None, key: str | None = None
    ) -> Refusal:
        """Ask for something that must be refused."""
        outcome = self.asks(command, effect, key)
        assert isinstance(outcome, Refusal), outcome
        return outcome

    def follows(self, command: FollowUp) -> Outcome:
        """Ask for a command that follows from another, under its own key."""
        return self.asks(command.command, command.effect, command.key)

    def issue(self, amount: int, grant: str = "grant", policy: GrantPolicy = NO_POLICY) -> None:
        """Issue credits to the root account."""
        self.does(
            Issue(
                grant=GrantId(grant),
                account=ROOT,
                amount=amount,
                kind=CreditKind.PAID,
                policy=policy,
            )
        )

    def submission(
        self,
        job: str = JOB,
        *types: str,
        gpus: int = 1,
        hold: dict[str, Any] | None = None,
        **more: Any,
    ) -> Submission:
        """A job to be submitted; `hold` changes its reservation."""
        reserve = reserve_for(job, *types, gpus=gpus, **(hold or {}))
        return Submission(POOL, reserve, spec_for(*types, gpus=gpus), **more)

    def submit(self, job: str = JOB, *types: str, **more: Any) -> Outcome:
        """Submit a job; the words are those of `submission`."""
        return self.submits(self.submission(job, *types, **more))

    def submits(self, submission: Submission) -> Outcome:
        """Submit a job."""
        return self.asks(reserve_for_job(submission), SubmitJob(submission))

    def submit_array(self, count: int = 3, at_once: int = 2, **more: Any) -> None:
        """Submit an array, of which no element has begun yet."""
        hold = {"element_count": count, "at_once": at_once}
        assert not isinstance(self.submit(ARRAY, hold=hold, **more), Refusal)

    def advance(self) -> Outcome:
        """Let elements of the array begin, or let the array end."""
        return self.follows(advance(self.array()))

    def cancel(self, job: str = JOB) -> Outcome:
        """Cancel a job, or the array."""
        id = JobId(job)
        return self.asks(cancel_command(id), CancelJob(id), cancel_key(id))

    def move(self, target: str, job: str = JOB, *, why: str = "it starts sooner") -> bool:
        """Ask a job's pool to give it back, for another pool; whether it was asked."""
        jobs = JobTransaction(self.org)
        source = self.job(job).pool
        if not request_move(jobs, JobId(job), source, target, why, self.now):
            assert ({}, [], []) == (jobs.jobs, jobs.messages, jobs.routes_added)
            return False
        self.org.jobs |= jobs.jobs
        for row in jobs.routes_added:
            self.org.routed[row.job].append(row.route)
        for sent in jobs.messages:
            self.org.outbox[sent.job, sent.n] = sent.message
        return True

    def tell(self, job: str, *messages: ToOrg) -> None:
        """The next messages of a job's pool arrive and are handled."""
        for message in messages:
            row = self.job(job)
            envelope = PoolMessage(row.pool, row.id, row.received + 1, message)
            commands = commands_of(envelope, row.array)
            asked = next(commands)
            while True:
                outcome = self.asks(asked.command, asked.effect, asked.key)
                try:
                    asked = commands.send(outcome)
                except StopIteration:
                    break

    # Reading

    def job(self, job: str = JOB) -> OrgJob:
        """The row of a job."""
        if self._transaction is not None:
            return self._transaction.job(JobId(job))
        return self.org.jobs[JobId(job)]

    def array(self) -> ArrayProgress:
        """How far the array has got."""
        if self._transaction is not None:
            return self._transaction.array(ARRAY)
        return self.org.arrays[ARRAY]

    def elements(self) -> list[OrgJob]:
        """The elements of the array that have begun, by number."""
        rows = [row for row in self.org.jobs.values() if row.array == ARRAY]
        return sorted(rows, key=lambda row: row.place or 0)

    def hold(self, job: str = JOB) -> Hold:
        """The hold of a job."""
        return require(self.org.books.holds, HoldId(job))

    def figures(self, job: str = JOB) -> tuple[int, int, bool]:
        """What a job has spent, what is set aside for it, and whether its hold is open."""
        hold = self.hold(job)
        return hold.used, hold.open, hold.closed_at is None

    def sent(self, job: str = JOB) -> list[ToPool]:
        """What the pools of a job were sent, in order."""
        rows = sorted((n, message) for (id, n), message in self.org.outbox.items() if id == job)
        return [message for _, message in rows]

    def steps(self, job: str = JOB) -> list[tuple[str, str | None, int, int]]:
        """The steps of a job's life: why, the state that is new, what is spent and held."""
        return [
            (event.why, event.state, event.spent, event.held)
            for event in self.org.events
            if isinstance(event, JobStepped) and event.job == job
        ]

    @property
    def available(self) -> int:
        """The credits that are not spent or held."""
        return sum(
            grant.available
            for name in ("grant", "first", "second")
            if (grant := self.org.books.grants.get(GrantId(name))) is not None
        )
