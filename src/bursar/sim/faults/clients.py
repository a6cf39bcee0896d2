"""The clients of orgs: they submit and cancel jobs, add credits, and retry until answered."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from bursar.core.dispatch.attempt_end import STOP_GRACE
from bursar.core.dispatch.job_lifecycle import JobState
from bursar.core.dispatch.state import Exit, JobKey
from bursar.core.ids import AccountId, GrantId, HoldId, JobId, PriceVersionId, UserId
from bursar.core.instant import MILLISECOND, SECOND
from bursar.core.jobs.effects import Outcome
from bursar.core.jobs.result_cache import Sharing
from bursar.core.jobs.submission import Option, Submission
from bursar.core.ledger.books import Books
from bursar.core.ledger.commands import (
    AddAccount,
    AddUser,
    Command,
    CorrectEnd,
    ExtendHold,
    Issue,
    Reserve,
    SetTier,
)
from bursar.core.ledger.values import Context, CreditKind
from bursar.core.messages import EndClass, JobSpec, Program
from bursar.core.money import Micros
from bursar.core.pricing import PriceBook, PriceVersion, Rate
from bursar.core.refusal import Refusal, invariant
from bursar.core.scheduling.model.jobs import Shape
from bursar.core.scheduling.model.nodes import MILLI
from bursar.core.scheduling.model.policy import PAID
from bursar.core.value import replace
from bursar.sim.faults import org as org_side
from bursar.sim.faults.clocks import SimulatedClock
from bursar.sim.faults.node_host import HostedProcess
from bursar.sim.faults.org import POOL, SimulatedOrg
from bursar.sim.faults.simulated_pool import SimulatedPool

if TYPE_CHECKING:
    from bursar.sim.faults.world import FaultWorld

RATE: Final[Micros] = 3_600_000  # of a GPU-hour: a micro-credit is a GPU's millisecond
PRICES: Final = PriceBook(
    versions=(
        PriceVersion(
            id=PriceVersionId("list"),
            effective_at=0,
            rates=(Rate(gpu_type="H100", micros_per_gpu_hour=RATE),),
        ),
    )
)
ROOT: Final = AccountId("root")
USER: Final = UserId("user")
RETRY_AFTER: Final = 4 * SECOND


@dataclass(slots=True)
class JobPlan:
    """A job, and its true behaviour."""

    org: str
    job: JobId
    spec: JobSpec
    needs_ms: int  # of work in all
    fails: bool
    run_ms: int  # it may run so long
    hold_ms: int  # and has credits for so long
    ttl: int  # of its hold


@dataclass(slots=True, eq=False)
class ClientCall:
    """A request that a client wants to take effect once."""

    key: str
    org: str
    request: Command | JobId  # a command, or a job to withdraw
    plan: JobPlan | None = None
    answer: Any = None

    def __repr__(self) -> str:
        return self.key


class Clients:
    """All clients, and the true behaviour of their jobs."""

    def __init__(self, world: "FaultWorld") -> None:
        self._world = world
        self._random = world.random
        self._wants: dict[JobKey, JobPlan] = {}
        self._calls: list[ClientCall] = []
        self.accepted: set[JobKey] = set()  # jobs whose submission was confirmed

    # ----------------------------------------------------------------------- requests

    @property
    def are_answered(self) -> bool:
        """Whether every call has its answer."""
        return all(call.answer is not None for call in self._calls)

    def create_orgs(self, orgs: int) -> None:
        """Create the orgs, and plan the requests of their clients."""
        world, random = self._world, self._random
        for number in range(orgs):
            org = SimulatedOrg(id=f"o{number + 1}", books=Books(PRICES))
            world.orgs[org.id] = org
            world.org_clocks[org.id] = SimulatedClock(world.at, world.at, random.randint(-500, 500))
            amount = random.choice((10**9, 10**9, 200_000))
            issue = Issue(grant=GrantId("first"), account=ROOT, amount=amount, kind=CreditKind.PAID)
            gift = replace(
                _issue("gift", 50_000),
                kind=CreditKind.PROMO,
                expires_at=world.at + self._draw_moment(),
            )
            account = AddAccount(account=ROOT, parent=None, name="root")
            founding: list[Command] = [
                account,
                AddUser(user=USER),
                SetTier(tier=PAID.name),
                issue,
                gift,
            ]
            for place, command in enumerate(founding):
                org_side.ask(org, f"found/{place}", command, world.at)
            world.after(random.randrange(2 * SECOND), world.relay, org.id)
            self._plan_call("top up", org.id, _issue(f"top-up-{org.id}", 300_000), 0.9)
        for number in range(world.profile.jobs):
            self._plan_job(JobId(f"j{number + 1}"), random.choice(sorted(world.orgs)))

    def _draw_moment(self) -> int:
        """A span that ends while jobs run."""
        return self._random.randrange(5 * SECOND, self._world.profile.faults_last)

    def _plan_call(self, name: str, org: str, what: Command | JobId, part: float) -> None:
        """Plan a request after a part of the time in which faults occur."""
        call = ClientCall(f"{name}/{org}/{len(self._calls)}", org, what)
        self._calls.append(call)
        self._world.after(
            int(self._world.profile.faults_last * part), self._world.client_asks, call
        )

    def _plan_job(self, job: JobId, org: str) -> None:
        random, lasts = self._random, self._world.profile.faults_last
        tasks, gpus = random.choice(((1, 1), (1, 1), (1, 2), (2, 2), (3, 1)))
        shape = Shape(types=("H100",), tasks=tasks, gpus=gpus)
        if self._world.profile.slots > 1 and random.random() < 0.5:
            shape = Shape(types=("H100",), tasks=tasks, gpus=0, milli=MILLI // 2)
        needs_ms = random.randint(3_000, 60_000)
        run_ms = int(needs_ms * random.choice((0.6, 1.5, 2.0))) + STOP_GRACE // MILLISECOND
        hold_ms = run_ms if random.random() < 0.6 else max(run_ms // 2, 12_000)
        priority_class = random.choice((0, 0, 1))
        fails = random.random() < 0.1
        ttl = random.randint(40, 150) * SECOND
        requeues = random.randint(1, 4)
        program = Program(checkpoint_every_ms=random.choice((0, 2_000, 10_000)))
        want = JobPlan(
            org=org,
            job=job,
            spec=JobSpec(
                shape=shape, program=program, priority_class=priority_class, requeues=requeues
            ),
            needs_ms=needs_ms,
            fails=fails,
            run_ms=run_ms,
            hold_ms=min(hold_ms, run_ms),
            ttl=ttl,
        )
        self._wants[org, job] = want
        begins = random.random() * 0.6
        submit = ClientCall(f"submit/{job}", org, self._reserve(want), want)
        self._calls.append(submit)
        self._world.after(int(lasts * begins), self._world.client_asks, submit)
        if random.random() < 0.2:
            self._plan_call(f"withdraw/{job}", org, job, begins + random.random() * 0.4)
        for _ in range(random.choice((0, 0, 1, 2))):
            said = CorrectEnd(
                hold=HoldId(job),
                attempt=random.choice((1, 1, 2)),
                end_class=random.choice(list(EndClass)),
            )
            self._plan_call(f"correct/{job}", org, said, begins + 0.3 + random.random() * 0.6)
        for _ in range(random.choice((0, 1, 2)) if want.hold_ms < run_ms else 0):
            until = random.choice((None, self._world.at + random.randint(100, 200) * SECOND))
            amount = 15_000 * shape.milli_gpus // MILLI
            more = ExtendHold(hold=HoldId(job), amount=amount, expires_at=until)
            self._plan_call(f"extend/{job}", org, more, begins + random.random() * 0.4)

    def _reserve(self, want: JobPlan) -> Reserve:
        context = Context(
            gpu_types=want.spec.shape.types,
            milli_gpus=want.spec.shape.milli_gpus,
            job=want.job,
        )
        return Reserve(
            hold=HoldId(want.job),
            account=ROOT,
            user=USER,
            ttl=want.ttl,
            run_ms=want.hold_ms,
            context=context,
            for_job=True,
        )

    def give_up(self) -> None:
        """Cancel the jobs that are out of credits."""
        for pool in self._world.pools.values():
            for (org, job), row in sorted(pool.rows.jobs.items()):
                if row.state is JobState.OUT_OF_CREDITS:
                    call = ClientCall(f"give-up/{job}", org, job)
                    self._calls.append(call)
                    self.send_call(call)

    def correct_ends(self) -> None:
        """Correct the end classes of some attempts, each twice."""
        pools = self._world.pools.values()
        for lease in [lease for pool in pools for lease in pool.rows.leases.values()]:
            if not lease.is_live and self._random.random() < 0.4:
                for place, end_class in enumerate(self._random.choices(list(EndClass), k=2)):
                    said = CorrectEnd(
                        hold=HoldId(lease.job), attempt=lease.attempt, end_class=end_class
                    )
                    name = f"correct/{lease.job}/{lease.org}/{len(self._calls)}"
                    call = ClientCall(name, lease.org, said)
                    self._calls.append(call)
                    self._world.after(place * RETRY_AFTER, self._world.client_asks, call)

    def send_call(self, call: ClientCall) -> None:
        """Send a request; repeat it later unless it was answered."""
        if call.answer is None:
            self._world.after(RETRY_AFTER, self._world.client_asks, call)
            self._world.send("user", call.org, "call", call)

    # ----------------------------------------------------------------------- answers

    def perform(self, org: SimulatedOrg, call: ClientCall, now: int) -> Outcome | str:
        """Perform a request at its org."""
        what = call.request
        if call.plan is not None:
            want = call.plan
            assert isinstance(what, Reserve)
            submission = self._submission(want, what)
            return org_side.submit(org, call.key, submission, now)
        if isinstance(what, ExtendHold):
            row = org.jobs.get(JobId(what.hold))
            if row is None or row.elements is not None:  # only elements of an array are extended
                return "no job"
            return org_side.extend(org, call.key, what, now)
        if isinstance(what, CorrectEnd):
            job = org.jobs.get(JobId(what.hold))
            over = job is not None and job.is_finished and what.attempt <= job.attempt
            return self._correct(org, call.key, what, now) if over else "no job"
        if isinstance(what, str):
            if what in org.jobs:
                org_side.cancel(org, what, now)
            return "withdrawn"
        return org_side.ask(org, call.key, what, now)[0]

    def _submission(self, want: JobPlan, reserve: Reserve) -> Submission:
        """The submission of a job; mixed worlds have rolling holds, shared results and arrays.

        The job's number decides, so that other worlds draw the same random numbers.
        """
        submission = self._route(Submission(POOL, reserve, want.spec, want.run_ms))
        if not self._world.profile.mixed:
            return submission
        kind = int(want.job[1:]) % 4
        if kind == 1:
            return submission._replace(rolling=True)
        if kind == 2:
            return submission._replace(reserve=replace(reserve, element_count=3, at_once=2))
        return submission._replace(sharing=Sharing("digest", 60 * SECOND))

    def _route(self, submission: Submission) -> Submission:
        """Choose a pool by the job's number; one job in five names its pool and cannot move."""
        pools, number = list(self._world.pools), int(submission.job[1:])
        if len(pools) == 1:
            return submission
        pools = pools[number % 2 :] + pools[: number % 2]
        options = tuple(Option(pool, ("H100",), "it starts first") for pool in pools)
        return submission._replace(pool=pools[0], routes=() if number % 5 == 0 else options)

    def _correct(self, org: SimulatedOrg, key: str, said: CorrectEnd, now: int) -> Outcome:
        outcome = org_side.correct(org, key, said, now)
        self._world.counts["ends corrected"] += not isinstance(outcome, Refusal)
        return outcome

    def receive_reply(self, kind: str, body: tuple[ClientCall, Any]) -> None:
        """Receive an answer; a second answer must equal the first (IL16)."""
        call, answer = body
        if call.answer is None:
            call.answer = answer
            if call.plan is not None and not isinstance(answer, Refusal):
                self.accepted.add((call.org, call.plan.job))
        same = answer == call.answer or "no job" in (answer, call.answer)
        invariant(same, "IL16: a key was answered in two ways", key=call.key)

    # ----------------------------------------------------------------------- plans

    def _plan_of(self, key: JobKey) -> JobPlan:
        """The plan of a job; elements have that of their array."""
        array = self._world.orgs[key[0]].jobs[key[1]].array
        return self._wants[key[0], array or key[1]]

    def set_fate(self, pool: SimulatedPool, task: HostedProcess) -> None:
        """Set how long a process runs and how it ends, by the plan of its job."""
        want, done = self._plan_of(task.key), pool.rows.jobs[task.key].ran_ms
        task.ends_ms = max(want.needs_ms - done, 1)
        task.checkpoint_ms = want.spec.program.checkpoint_every_ms
        if want.fails and self._random.random() < 0.5:
            task.ends_ms = self._random.randint(1, task.ends_ms)
            task.ends_as = Exit.FAILED


def _issue(name: str, amount: Micros) -> Issue:
    return Issue(grant=GrantId(name), account=ROOT, amount=amount, kind=CreditKind.PAID)
