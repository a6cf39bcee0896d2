"""Jobs on an org's side: with their holds, and what a pool's messages come to (M1, M3, M4, L7)."""

import pytest

from bursar.core.dispatch.job_lifecycle import JobState
from bursar.core.dispatch.state import JobMessage
from bursar.core.ids import AccountId, ChargeId, GrantId, HoldId, JobId, PriceVersionId, UserId
from bursar.core.instant import MINUTE, Instant
from bursar.core.jobs.message_commands import steps
from bursar.core.jobs.submission import Submission
from bursar.core.ledger.books import Books
from bursar.core.ledger.commands import (
    AddAccount,
    AddUser,
    CorrectEnd,
    ExtendHold,
    Issue,
    Reserve,
)
from bursar.core.ledger.values import Context, CreditKind, Hold
from bursar.core.messages import (
    Cause,
    Correct,
    Corrected,
    Dropped,
    EndClass,
    Ended,
    Enqueue,
    HoldGrew,
    Message,
    RanSoFar,
    Started,
    ToOrg,
    Withdraw,
)
from bursar.core.pricing import PriceBook, PriceVersion, Rate
from bursar.core.refusal import Code, InvariantBroken, Refusal
from bursar.sim.faults import org as rules
from bursar.sim.faults.org import POOL, SimulatedOrg
from tests.support.builders import PER_MS, T0
from tests.support.dispatch_pool import SPEC

JOB = JobId("job")
ROOT, ANN = AccountId("root"), UserId("ann")
PRICES = PriceBook(
    versions=(
        PriceVersion(
            id=PriceVersionId("list"),
            effective_at=0,
            rates=(Rate(gpu_type="H100", micros_per_gpu_hour=PER_MS),),
        ),
    )
)
RESERVE = Reserve(
    hold=HoldId(JOB),
    account=ROOT,
    user=ANN,
    run_ms=60_000,
    ttl=10 * MINUTE,
    context=Context(gpu_types=("H100",), milli_gpus=1_000, job=JOB),
    for_job=True,
)
SUBMISSION = Submission(POOL, RESERVE, SPEC, 60_000)
STARTED = Started(attempt=1, gpu_type="H100", started_at=T0, run_ms=60_000)


def founded(credits: int = 100_000) -> SimulatedOrg:
    org = SimulatedOrg(id="acme", books=Books(PRICES))
    issue = Issue(grant=GrantId("grant"), account=ROOT, amount=credits, kind=CreditKind.PAID)
    for command in (AddAccount(account=ROOT, parent=None, name="root"), AddUser(user=ANN), issue):
        rules.ask(org, type(command).__name__, command, T0)
    return org


def submitted() -> SimulatedOrg:
    org = founded()
    rules.submit(org, "submit", SUBMISSION, T0)
    return org


def tell(org: SimulatedOrg, *messages: ToOrg, at: Instant = T0 + MINUTE, since: int = 1) -> None:
    """The pool's messages arrive, one after the other."""
    for n, message in enumerate(messages, since):
        envelope = JobMessage(org.id, JOB, n, message)
        for _ in rules.handle(org, POOL, envelope, at):
            pass
        assert rules.is_handled(org, POOL, envelope)


def hold(org: SimulatedOrg) -> Hold:
    found = org.books.holds.get(HoldId(JOB))
    assert found is not None
    return found


def parts(org: SimulatedOrg) -> tuple[int, int, int]:
    """Of its only grant: what is available, held, spent."""
    grant = org.books.grants.get(GrantId("grant"))
    assert grant is not None
    return grant.available, grant.held, grant.spent


def ended(run_ms: int, *, over: bool = True, kept_ms: int | None = None) -> Ended:
    own = EndClass.USER if kept_ms is None else EndClass.PLATFORM
    return Ended(
        attempt=1, end_class=own, run_ms=run_ms, kept_ms=kept_ms, job_finished=over, why=Cause.LOST
    )


def test_job_hold_and_message_come_together() -> None:
    org = submitted()

    assert (40_000, 60_000, 0) == parts(org)
    assert {JOB} == org.jobs.keys()
    assert {
        (JOB, 1): Enqueue(
            account=ROOT, user=ANN, shares=(ROOT,), tier="free", rates=(("H100", PER_MS),),
            run_ms=60_000, hold_micros=60_000, spec=SPEC,
            hold_until=T0 + 10 * MINUTE,
        )
    } == org.outbox  # fmt: skip


def test_a_job_without_credits_is_not_there_at_all() -> None:
    org = founded(credits=59_999)
    outcome = rules.submit(org, "submit", SUBMISSION, T0)

    assert isinstance(outcome, Refusal)
    assert ({}, {}) == (org.jobs, org.outbox)


def test_a_key_has_one_effect_and_one_answer() -> None:
    """Also if something else is asked under it (L7)."""
    org = submitted()
    rules.acknowledge(org, JOB, 1)
    rules.acknowledge(org, JOB, 1)
    before = len(org.events)

    assert org.replies["submit"].outcome == rules.submit(org, "submit", SUBMISSION, T0 + 9)
    other = rules.extend(org, "submit", ExtendHold(hold=HoldId(JOB), amount=1), T0)
    assert isinstance(other, Refusal)
    assert Code.KEY_REUSED is other.code
    assert (before, {}) == (len(org.events), org.outbox)


def test_time_never_goes_back() -> None:
    org = founded()
    rules.submit(org, "submit", SUBMISSION, T0 - 9)

    assert T0 == hold(org).terms.opened_at


def test_an_extended_hold_is_reported_to_the_pool() -> None:
    org = submitted()
    for key, amount in (("a", 1_000), ("a", 1_000), ("b", 10**9)):
        rules.extend(org, key, ExtendHold(hold=HoldId(JOB), amount=amount), T0)

    assert HoldGrew(added=1_000, until=0) == org.outbox[JOB, 2]
    assert (2, 61_000) == (len(org.outbox), hold(org).open)


def test_a_cancellation_is_sent_to_the_pool_once() -> None:
    """The hold stays open until the pool reports the end."""
    org = submitted()
    rules.cancel(org, JOB, T0)
    rules.cancel(org, JOB, T0)
    assert ([Withdraw()], 60_000) == (list(org.outbox.values())[1:], hold(org).open)
    tell(org, Dropped(end_class=EndClass.USER, why=Cause.CANCELLED))
    rules.cancel(org, JOB, T0)

    assert (2, (100_000, 0, 0)) == (len(org.outbox), parts(org))


@pytest.mark.parametrize(
    ("messages", "want", "state"),
    [
        ((STARTED,), (40_000, 60_000, 0), (True, None, 1)),
        ((STARTED, RanSoFar(attempt=1, run_ms=7)), (40_000, 59_993, 7), (True, None, 1)),
        ((STARTED, ended(9)), (99_991, 0, 9), (False, EndClass.USER, 1)),
        ((STARTED, ended(9, over=False)), (40_000, 59_991, 9), (False, None, 1)),
        ((STARTED, ended(9, over=False, kept_ms=4)), (40_000, 59_996, 4), (False, None, 1)),
        ((STARTED, ended(9, kept_ms=4)), (99_996, 0, 4), (False, EndClass.PLATFORM, 1)),
        (
            (Dropped(end_class=EndClass.LIMIT, why=Cause.HOLD_ENDED),),
            (100_000, 0, 0),
            (False, EndClass.LIMIT, 0),
        ),
    ],
)
def test_commands_that_follow_from_messages(
    messages: tuple[ToOrg, ...],
    want: tuple[int, int, int],
    state: tuple[bool, EndClass | None, int],
) -> None:
    org = submitted()
    tell(org, *messages)
    job = org.jobs[JOB]

    assert want == parts(org)
    assert state == (job.state is JobState.RUNNING, job.end_class, job.attempt)
    assert [] == org.objections


def test_a_message_is_handled_once_and_in_order() -> None:
    org = submitted()
    tell(org, STARTED, RanSoFar(attempt=1, run_ms=7))
    before = len(org.events)
    early = JobMessage(org.id, JOB, 4, ended(9))

    assert [] == list(rules.handle(org, POOL, early, T0 + MINUTE))
    assert not rules.is_handled(org, POOL, early)
    assert [] == list(rules.handle(org, POOL, JobMessage(org.id, JOB, 1, STARTED), T0 + MINUTE))
    assert before == len(org.events)


@pytest.mark.parametrize("done", [1, 2])
def test_handling_that_was_cut_short_is_taken_up_again(done: int) -> None:
    """After any of its commands, with the same effect (L7)."""
    org = submitted()
    tell(org, STARTED)
    envelope = JobMessage(org.id, JOB, 2, ended(9, kept_ms=4))
    handling = rules.handle(org, POOL, envelope, T0 + MINUTE)
    for _ in range(done):
        next(handling)
    handling.close()  # type: ignore[attr-defined]
    assert not rules.is_handled(org, POOL, envelope)
    tell(org, envelope.message, since=2)  # type: ignore[arg-type]

    assert (99_996, 0, 4) == parts(org)


def test_usage_that_comes_after_the_hold_is_booked_as_late() -> None:
    """A hold that has come to its limit has ended by itself (L12, L13)."""
    org = submitted()
    late = T0 + 11 * MINUTE
    tell(org, STARTED, RanSoFar(attempt=1, run_ms=7), at=late)
    assert (99_993, 0, 7) == parts(org)
    tell(org, ended(9), at=late, since=3)
    tell(org, RanSoFar(attempt=1, run_ms=12), at=late, since=4)

    assert (99_988, 0, 12) == parts(org)
    assert (EndClass.USER, []) == (org.jobs[JOB].end_class, org.objections)


def test_a_job_that_is_dropped_at_its_limit_has_ended() -> None:
    """Whether that was written before or not."""
    org = submitted()
    tell(org, Dropped(end_class=EndClass.LIMIT, why=Cause.HOLD_ENDED), at=T0 + 11 * MINUTE)

    assert ((100_000, 0, 0), []) == (parts(org), org.objections)
    again = submitted()
    rules.ask(again, "x", AddUser(user=UserId("bob")), T0 + 11 * MINUTE)
    tell(again, Dropped(end_class=EndClass.LIMIT, why=Cause.HOLD_ENDED), at=T0 + 12 * MINUTE)
    assert ((100_000, 0, 0), []) == (parts(again), again.objections)


def test_a_refusal_by_the_ledger_is_stored_with_the_message() -> None:
    """The message counts as handled: it would never be accepted."""
    org = submitted()
    tell(org, RanSoFar(attempt=3, run_ms=7))

    assert [Code.ATTEMPT_UNKNOWN] == [receipt.refusal for receipt in org.objections]
    assert 1 == org.jobs[JOB].received


def test_work_is_given_back_after_the_limit_too() -> None:
    """To the grants: the hold is closed and keeps nothing (M3)."""
    org = submitted()
    tell(org, STARTED, ended(9, over=False, kept_ms=4), at=T0 + 11 * MINUTE)

    assert [] == org.objections
    assert (99_996, 0, 4) == parts(org)


@pytest.mark.parametrize("end_class", EndClass)
def test_a_correction_is_sent_to_the_pool_and_its_answer_moves_credits(end_class: EndClass) -> None:
    """The pool gets one message, and its answer refunds or charges lost work (M3)."""
    org = submitted()
    tell(org, STARTED, ended(9))
    said = CorrectEnd(hold=HoldId(JOB), attempt=1, end_class=end_class)
    for _ in range(2):
        assert not isinstance(rules.correct(org, "first", said, T0 + MINUTE), Refusal)
    assert [Correct(attempt=1, end_class=end_class)] == list(org.outbox.values())[1:]
    assert (99_991, 0, 9) == parts(org)

    def corrected(end_class: EndClass, kept_ms: int | None) -> Corrected:
        return Corrected(
            attempt=1, end_class=end_class, run_ms=9, kept_ms=kept_ms, job_finished=True
        )

    tell(org, corrected(EndClass.PLATFORM, 4), corrected(EndClass.PLATFORM, 4), since=3)
    assert ((99_996, 0, 4), EndClass.PLATFORM) == (parts(org), org.jobs[JOB].end_class)
    tell(org, corrected(end_class, None), since=5)
    assert ((99_991, 0, 9), end_class) == (parts(org), org.jobs[JOB].end_class)
    assert [] == org.objections


def test_one_correction_at_a_time() -> None:
    """A refused key is refused again; after the pool's answer another correction is possible."""
    org = submitted()
    tell(org, STARTED, ended(9))
    said = CorrectEnd(hold=HoldId(JOB), attempt=1, end_class=EndClass.PLATFORM)
    other = CorrectEnd(hold=HoldId(JOB), attempt=1, end_class=EndClass.USER)
    assert not isinstance(rules.correct(org, "first", said, T0 + MINUTE), Refusal)

    pending = Refusal(Code.CORRECTION_PENDING, {"job": JOB})
    assert pending == rules.correct(org, "second", other, T0 + MINUTE)
    told = Corrected(
        attempt=1, end_class=EndClass.PLATFORM, run_ms=9, kept_ms=4, job_finished=False
    )
    tell(org, told, since=3)
    assert EndClass.USER is org.jobs[JOB].end_class
    assert pending == rules.correct(org, "second", other, T0 + MINUTE)
    assert not isinstance(rules.correct(org, "third", other, T0 + MINUTE), Refusal)


def test_a_refused_correction_is_not_sent_to_the_pool() -> None:
    org = submitted()
    said = CorrectEnd(hold=HoldId(JOB), attempt=1, end_class=EndClass.USER)

    assert isinstance(rules.correct(org, "first", said, T0 + MINUTE), Refusal)
    assert 1 == len(org.outbox)


def test_an_org_handles_no_messages_of_orgs() -> None:
    message: Message = Withdraw()
    with pytest.raises(InvariantBroken, match="cannot handle"):
        next(steps(HoldId(JOB), ChargeId("charge"), message))
