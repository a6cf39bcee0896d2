"""Jobs in their orgs' books, on a real database: what is written together, and in which order."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from bursar.core.dispatch.job_lifecycle import JobState
from bursar.core.ids import AccountId, GrantId, HoldId, JobId, UserId
from bursar.core.instant import MINUTE, SECOND, Instant
from bursar.core.jobs.pool_messages import commands_of
from bursar.core.ledger.books import Books
from bursar.core.ledger.commands import (
    AddAccount,
    AddUser,
    Command,
    Issue,
    Reserve,
    RevokeGrant,
)
from bursar.core.ledger.values import Context, CreditKind, GrantPolicy
from bursar.core.messages import Cause, EndClass, Ended, JobSpec, Started, ToOrg
from bursar.core.pricing import PriceBook
from bursar.core.refusal import Code, Refusal
from bursar.core.scheduling.model.jobs import Shape
from bursar.service.jobs import Answers, Jobs, Submission
from bursar.service.jobs.cancellation import cancellation_request
from bursar.service.jobs.pool_messages import MessageHandler, message_of
from bursar.service.jobs.queries import JobQueries, JobView, Step
from bursar.service.jobs.quotas import Quota, quotas_of
from bursar.service.jobs.submission import Option, extension_request, submission_request
from bursar.service.ledger.batch import Answer, Batch, CommandRequest
from bursar.store.jobs.outbox import Envelope, from_orgs
from bursar.store.sql.connection import Connection
from bursar.store.verify.ledger import problems
from bursar.store.verify.messages import MESSAGE_CHECKS
from tests.support.builders import PER_MS, T0, prices
from tests.support.databases import new_org

PRICES = PriceBook().with_version(prices(h100=3 * PER_MS, a100=PER_MS))
RUN_MS = 100_000


@dataclass
class Stage:
    """An org with credits, and its jobs; nobody carries messages but the test."""

    connection: Connection
    org: str
    now: Instant = T0
    cache: dict[str, Books] = field(default_factory=dict)
    told: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.jobs = Jobs(self.connection, self.ask, self.clock)
        first: list[Command] = [
            AddAccount(account=AccountId("org"), parent=None, name="o"),
            AddUser(user=UserId("ann")),
            Issue(grant=GrantId("g"), account=AccountId("org"), amount=10**9, kind=CreditKind.PAID),
        ]
        self.ask(
            [CommandRequest(self.org, f"first-{n}", command) for n, command in enumerate(first)]
        )

    def clock(self, _: Connection) -> Instant:
        return self.now

    def ask(self, asks: Sequence[CommandRequest]) -> Answers:
        self.now += SECOND
        return Batch(self.connection, PRICES, self.cache, self.clock).run(asks)

    def submit(self, job: str = "job", held_ms: int = RUN_MS, **more: Any) -> None:
        [answer] = self.ask([self.asked(job, held_ms, **more)])
        assert isinstance(answer, Answer)
        assert isinstance(answer.outcome, tuple), answer

    def asked(self, job: str, held_ms: int = RUN_MS, **more: Any) -> CommandRequest:
        """The command that submits a job."""
        reserve = Reserve(
            hold=HoldId(job),
            account=AccountId("org"),
            user=UserId("ann"),
            run_ms=held_ms,
            context=Context(gpu_types=("h100", "a100"), milli_gpus=1_000, job=JobId(job)),
        )
        spec = JobSpec(shape=Shape(types=("h100", "a100")))
        submission = Submission("pool", reserve, spec, request="{}", **more)
        return submission_request(self.org, f"submit {job}", submission)

    def envelope(self, message: ToOrg, job: str = "job") -> Envelope:
        self.told[job] = self.told.get(job, 0) + 1
        return Envelope(self.org, "pool", JobId(job), self.told[job], message, self.now)

    def hear(self, message: ToOrg, job: str = "job") -> None:
        envelope = self.envelope(message, job)
        assert [envelope] == self.jobs.receive([envelope])

    def started(self, attempt: int = 1, job: str = "job") -> None:
        run_ms = RUN_MS
        self.hear(
            Started(attempt=attempt, gpu_type="a100", started_at=self.now, run_ms=run_ms), job
        )

    def shown(self, job: str = "job") -> JobView:
        found = JobQueries(self.connection).job(self.org, job).value
        assert found is not None
        return found

    def steps(self, job: str = "job") -> list[Step]:
        return list(JobQueries(self.connection).steps(self.org, job, 0, 100).value.items)

    def contradictions(self) -> list[str]:
        """What `verify` says of the org's jobs' histories; others' tests use the database too."""
        names = "the steps of a job", "each step of a job"
        checks = [one for one in MESSAGE_CHECKS if one.name.startswith(names)]
        found = [one for check in checks for one in problems(self.connection, check)]
        return [str(one) for one in found if one.org == self.org]

    def told_steps(self) -> list[tuple[str, str, str | None]]:
        """The steps of jobs that the org's stream tells of."""
        sql = """
            select body ->> 'job', body ->> 'why', body ->> 'state' from events
             where org_id = %s and kind = 'JobStepped' order by number
        """
        return self.connection.execute(sql, [self.org]).fetchall()


@pytest.fixture
def stage(connection: Connection) -> Stage:
    return Stage(connection, new_org(connection))


def ended(why: Cause, run_ms: int, *, over: bool = True, attempt: int = 1) -> Ended:
    return Ended(
        attempt=attempt,
        end_class=EndClass.LIMIT if why is Cause.OUT_OF_CREDITS else EndClass.USER,
        run_ms=run_ms,
        kept_ms=None,
        job_finished=over,
        why=why,
        exit_code=7,
    )


def test_each_step_is_stored_with_the_spent_and_held_credits(stage: Stage) -> None:
    stage.submit()
    stage.started()
    stage.hear(ended(Cause.FAILED, 40_000))

    assert [
        (1, "queued", "submitted", 0, None, 0, 3 * RUN_MS),
        (2, "running", "started", 1, None, 0, RUN_MS),
        (3, "failed", "failed", 1, 7, 40_000, 0),
    ] == [
        (one.n, one.state, one.why, one.attempt, one.exit_code, one.spent, one.held)
        for one in stage.steps()
    ]
    assert sorted(one.at for one in stage.steps()) == [one.at for one in stage.steps()]


def test_each_step_is_an_event_of_its_org(stage: Stage) -> None:
    """That somebody wants it to stop, too: whoever watches the stream misses nothing (O1)."""
    stage.submit()
    stage.started()
    stage.jobs.cancel(stage.org, JobId("job"), "mine", "a key")
    stage.hear(ended(Cause.CANCELLED, 40_000))

    assert [
        ("job", "submitted", "queued"),
        ("job", "started", "running"),
        ("job", "stop_requested", "stopping"),
        ("job", "cancelled", "cancelled"),
    ] == stage.told_steps()
    assert [one.why for one in stage.steps()] == [why for _, why, _ in stage.told_steps()]
    assert [] == stage.contradictions()
    sql = "select actor from events where org_id = %s and body ->> 'why' = 'stop_requested'"
    assert [("a key",)] == stage.connection.execute(sql, [stage.org]).fetchall()


def test_a_cancellation_and_an_end_in_one_batch_leave_one_of_them(stage: Stage) -> None:
    """Whichever comes first: who is over is not asked to stop any more."""
    for first in ("end", "cancel"):
        job = f"job-{first}"
        stage.submit(job)
        stage.started(job=job)
        handling = MessageHandler([stage.envelope(ended(Cause.FINISHED, 1_000), job)], [])
        assert handling.ask is not None
        asks = [
            handling.ask,
            cancellation_request(stage.org, JobId(job)),
            cancellation_request(stage.org, JobId(job), "k"),
        ]
        stage.ask(asks if first == "end" else [*asks[1:], asks[0]])

        assert "succeeded" == stage.shown(job).state
        asked = [
            why for told, why, _ in stage.told_steps() if told == job and why == "stop_requested"
        ]
        assert (first == "cancel") == bool(asked) == stage.shown(job).withdrawn
        assert len(asked) <= 1
    assert [] == stage.contradictions()


def test_the_quotas_of_a_job_are_found_among_any_number(stage: Stage) -> None:
    """Those of its account, of one above it, of its user, of the pair: no others (B4)."""
    below = AddAccount(account=AccountId("team"), parent=AccountId("org"), name="t")
    stage.ask([CommandRequest(stage.org, "team", below)])
    whose: dict[str, dict[str, str]] = {
        **{f"{n:04}": {"account_id": "org", "user_id": f"u{n}"} for n in range(1_200)},
        "q-user": {"user_id": "ann"},
        "q-others": {"user_id": "bob"},
        "q-pair": {"account_id": "team", "user_id": "ann"},
        "q-root": {"account_id": "org"},
        "q-team": {"account_id": "team"},
    }
    rows = [(stage.org, id, json.dumps({**of, "gpus_max": 1})) for id, of in whose.items()]
    with stage.connection.cursor() as cursor:
        cursor.executemany("insert into settings values (%s, 'quota', %s, %s, 1, 0)", rows)
    stage.connection.execute(
        "insert into settings values (%s, 'quota', 'q-dropped', null, 1, 0)", [stage.org]
    )

    def found(account: str, user: str) -> list[str]:
        return [one.id for one in quotas_of(stage.connection, stage.org, account, user)]

    assert ["q-pair", "q-root", "q-team", "q-user"] == found("team", "ann")
    assert ["q-root", "q-user"] == found("org", "ann")
    assert ["q-others", "q-root", "q-team"] == found("team", "bob")
    assert ["1199", "q-root"] == found("org", "u1199")


@pytest.mark.parametrize(
    ("h100", "a100", "want"),
    [
        (3 * RUN_MS, 0, None),
        (0, RUN_MS, Code.INSUFFICIENT_CREDITS),
        (3 * RUN_MS, RUN_MS, Code.TYPE_NOT_HELD),  # for both together there are none
    ],
)
def test_a_job_is_accepted_for_a_type_that_a_pool_has(
    stage: Stage, h100: int, a100: int, want: Code | None
) -> None:
    """With credits only for one that none has it would wait for ever (M1)."""
    stage.ask([CommandRequest(stage.org, "none", RevokeGrant(grant=GrantId("g")))])
    for kind, amount in (("h100", h100), ("a100", a100)):
        policy = GrantPolicy(gpu_types=frozenset({kind}))
        grant = Issue(
            grant=GrantId(kind),
            account=AccountId("org"),
            amount=amount or 1,
            kind=CreditKind.PROMO,
            policy=policy,
        )
        stage.ask([CommandRequest(stage.org, f"issue {kind}", grant)])
    routes = (Option("pool", ("h100",), "h100 is free"),)
    [answer] = stage.ask([stage.asked("job", routes=routes)])

    assert isinstance(answer, Answer)
    outcome = answer.outcome
    assert want == (outcome.code if isinstance(outcome, Refusal) else None)


def test_a_job_is_extended_twice_in_one_batch(stage: Stage) -> None:
    """Whoever asks for it: each is told to the pool and kept, and both are one transaction (M5)."""
    stage.submit()
    asks = [extension_request(stage.org, key, JobId("job"), 5) for key in ("one", "another")]
    answers = stage.ask(asks)

    assert all(isinstance(one, Answer) and one.outcome for one in answers)
    assert 3 * RUN_MS + 10 == stage.shown().held
    assert ["submitted", "topped_up", "topped_up"] == [one.why for one in stage.steps()]


def test_a_job_cancelled_before_its_start_was_reported_is_stopping(stage: Stage) -> None:
    """Its pool could not know yet; a queued one stays queued until its pool has let it go."""
    stage.submit()
    stage.jobs.cancel(stage.org, JobId("job"))
    assert "queued" == stage.shown().state
    stage.started()

    assert (JobState.STOPPING, True) == (stage.shown().state, stage.shown().withdrawn)
    assert ["queued", "stopping"] == [one.state for one in stage.steps()]


def test_a_cancelled_running_job_is_stopping_once(stage: Stage) -> None:
    stage.submit()
    stage.started()
    stage.jobs.cancel(stage.org, JobId("job"))
    stage.jobs.cancel(stage.org, JobId("job"))

    assert ["submitted", "started", "stop_requested"] == [one.why for one in stage.steps()]
    assert (RUN_MS, "stopping") == (stage.steps()[-1].held, stage.steps()[-1].state)
    assert 2 == len(from_orgs(stage.connection, None, 10, stage.org))


def test_credits_that_come_let_a_job_wait_for_gpus_again(stage: Stage) -> None:
    """Out of credits it waits for them; a running one only holds more (M5)."""
    stage.submit()
    stage.started()
    stage.jobs.extend(stage.org, "more", JobId("job"), 500)
    assert ("running", RUN_MS + 500) == (stage.shown().state, stage.shown().held)
    stage.hear(ended(Cause.OUT_OF_CREDITS, RUN_MS, over=False))
    assert "out_of_credits" == stage.shown().state
    stage.jobs.extend(stage.org, "and more", JobId("job"), 500)

    assert ("queued", "topped_up", 1_000) == (
        *(stage.shown().state, stage.shown().why, stage.shown().held),
    )
    assert ["submitted", "started", "topped_up", "out_of_credits", "topped_up"] == [
        one.why for one in stage.steps()
    ]


def test_the_exit_code_is_that_of_the_last_attempt(stage: Stage) -> None:
    stage.submit()
    stage.started()
    stage.hear(ended(Cause.OUT_OF_CREDITS, 5, over=False))
    assert 7 == stage.shown().exit_code
    stage.started(2)

    assert (None, 2) == (stage.shown().exit_code, stage.shown().attempt)


def test_two_steps_of_a_job_in_one_batch_are_two_steps(stage: Stage) -> None:
    """An extension and a message may come to the ledger together."""
    stage.submit()
    envelope = stage.envelope(
        Started(attempt=1, gpu_type="a100", started_at=stage.now, run_ms=RUN_MS)
    )
    start = CommandRequest(stage.org, *next(commands_of(message_of(envelope))))
    stage.ask([start, extension_request(stage.org, "more", JobId("job"), 9)])

    assert [1, 2, 3] == [one.n for one in stage.steps()]
    assert ["submitted", "started", "topped_up"] == [one.why for one in stage.steps()]
    assert "running" == stage.shown().state


def quota(stage: Stage, **limits: Any) -> tuple[Quota, ...]:
    return (Quota("q", limits.pop("account", None), limits.pop("user", None), limits),)


def refused(stage: Stage, job: str, quotas: tuple[Quota, ...]) -> dict[str, Any]:
    """The figures with which a quota turns a job away; nothing of it is kept."""
    with pytest.raises(AssertionError):
        stage.submit(job, quotas=quotas)
    [answer] = stage.ask([stage.asked(job, quotas=quotas)])
    assert isinstance(answer, Answer)
    assert isinstance(answer.outcome, Refusal)
    assert Code.QUOTA_EXCEEDED is answer.outcome.code
    assert JobQueries(stage.connection).job(stage.org, job).value is None
    return {name: answer.outcome.figures[name] for name in ("limit_name", "found_count")}


def test_the_number_of_waiting_jobs_is_limited(stage: Stage) -> None:
    """Those that run are not counted; nor are those of others (B4)."""
    two = quota(stage, jobs_queued_max=2, account="org", user="ann")
    stage.submit("a", quotas=two)
    stage.submit("b", quotas=two)

    figures = {"limit_name": "jobs_queued_max", "found_count": 2}
    assert figures == refused(stage, "c", two)
    stage.started(job="a")
    stage.submit("d", quotas=two)
    stage.submit("e", quotas=quota(stage, jobs_queued_max=0, user="bob"))
    stage.submit("f", quotas=quota(stage, jobs_queued_max=0, account="elsewhere"))


def test_the_limit_counts_earlier_jobs_of_the_same_transaction(stage: Stage) -> None:
    """However many ask at once (B4)."""
    three = quota(stage, jobs_queued_max=3)
    stage.submit("a", quotas=three)
    answers = stage.ask([stage.asked(job, quotas=three) for job in ("b", "c", "d", "e")])

    refusals = [isinstance(one, Answer) and isinstance(one.outcome, Refusal) for one in answers]
    assert [False, False, True, True] == refusals


def test_the_number_of_submissions_per_minute_is_limited(stage: Stage) -> None:
    """Whatever has become of them (B4, S8)."""
    one = quota(stage, submissions_per_minute_max=1, account="org")
    stage.submit("a", quotas=one)
    stage.started(job="a")

    figures = {"limit_name": "submissions_per_minute_max", "found_count": 1}
    assert figures == refused(stage, "b", one)
    stage.now += MINUTE
    stage.submit("c", quotas=one)


def test_a_job_that_needs_more_gpus_than_its_quota_is_refused(stage: Stage) -> None:
    """It would wait for ever (B4)."""
    none = quota(stage, gpus_max=0)

    assert {"limit_name": "gpus_max", "found_count": 1} == refused(stage, "a", none)
    stage.submit("b", quotas=quota(stage, gpus_max=1))


def test_a_history_has_as_many_steps_as_the_job_counts(stage: Stage) -> None:
    """`verify` tells of a step that is gone, or that was never taken."""
    stage.submit()
    stage.started()
    assert [] == [one for one in stage.contradictions() if stage.org in one]
    stage.connection.execute(
        "update jobs set state = 'queued' where org_id = %s and job_id = 'job'", [stage.org]
    )

    assert 1 == len([one for one in stage.contradictions() if stage.org in one])
