"""Arrays of jobs on a real database: one hold, a lot for each element, each element a job (M1)."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import pytest

from bursar.core.dispatch.state import Lease
from bursar.core.ids import AccountId, HoldId, JobId, NodeId, UserId
from bursar.core.instant import DAY, SECOND
from bursar.core.jobs.arrays import COUNT, INDEX
from bursar.core.ledger.commands import Reserve
from bursar.core.ledger.values import Context
from bursar.core.messages import Cause, Dropped, EndClass, Enqueue, JobSpec, Withdraw
from bursar.core.refusal import Code, Refusal
from bursar.core.scheduling.model.jobs import Shape
from bursar.core.scheduling.model.nodes import Node
from bursar.core.value import replace
from bursar.service.jobs import Submission
from bursar.service.jobs.queries import JobQueries, JobView
from bursar.service.jobs.quotas import Quota
from bursar.service.jobs.submission import submission_request
from bursar.service.ledger.audit import Contradiction, verify
from bursar.service.ledger.batch import Answer, CommandRequest
from bursar.store.jobs.arrays import ArrayStates
from bursar.store.jobs.outbox import Envelope, from_orgs
from bursar.store.sql.connection import Connection
from bursar.store.verify.arrays import ARRAY_CHECKS
from bursar.store.verify.ledger import CHECKS, problems
from tests.service.test_jobs import RUN_MS, Stage, ended
from tests.support.databases import connected, migrated, new_org
from tests.support.pool_driver import Clock, Driver, Killed, Mortal, Plan, Try, World

LOT = 3 * RUN_MS  # what an element may cost at most: the dearest of its types
HAS = 10**9
DEATHS = 8  # places to die that are tried, spread over all
_NUMBERS = count(1)


class Field(Stage):
    """An org that submits arrays."""

    def array(self, job: str = "a", elements: int = 5, at_once: int = 2, **more: Any) -> Answer:
        """Submit an array."""
        [answer] = self.ask([self.asked_array(job, elements, at_once, **more)])
        assert isinstance(answer, Answer)
        return answer

    def asked_array(self, job: str, elements: int, at_once: int, **more: Any) -> CommandRequest:
        reserve = Reserve(
            hold=HoldId(job),
            account=AccountId("org"),
            user=UserId("ann"),
            run_ms=RUN_MS,
            context=Context(gpu_types=("h100", "a100"), milli_gpus=1_000, job=JobId(job)),
            for_job=True,
            element_count=elements,
            at_once=at_once,
        )
        spec = JobSpec(shape=Shape(types=("h100", "a100")))
        submission = Submission("pool", reserve, spec, request='{"command":["x"]}', **more)
        return submission_request(self.org, f"submit {job}", submission)

    def envelopes(self) -> list[Envelope]:
        """What pools are to be told."""
        return from_orgs(self.connection, None, 100, self.org)

    def elements(self, job: str = "a") -> list[JobView]:
        """The elements that have begun."""
        found = JobQueries(self.connection).elements(self.org, job, None, -1, 100)
        return list(found.value.items)

    def standing(self, job: str = "a") -> ArrayStates:
        """How many of the elements are in which state."""
        return JobQueries(self.connection).array_states(self.org, [JobId(job)]).value[JobId(job)]

    def live(self, job: str = "a") -> list[str]:
        """The elements that are in the pool."""
        return [one.job for one in self.elements(job) if one.ended_at is None]

    def end(self, job: str, why: Cause = Cause.FINISHED, run_ms: int = 1_000) -> None:
        """Let an element start and end."""
        self.started(job=job)
        self.hear(ended(why, run_ms), job)

    def credits(self) -> tuple[int, int, int]:
        """What of the only grant is available, held, spent."""
        sql = "select available, held, spent from grants where org_id = %s"
        [(available, held, spent)] = self.connection.execute(sql, [self.org]).fetchall()
        return available, held, spent

    def wrong(self) -> list[str]:
        """What `verify` says of arrays, of what their holds have, and of histories."""
        [told] = [one for one in CHECKS if one.name.startswith("a hold has the figures")]
        checks = (*ARRAY_CHECKS, told)
        found = [one for check in checks for one in problems(self.connection, check)]
        return [str(one) for one in found if one.org == self.org] + self.contradictions()


@pytest.fixture(scope="module")
def url(database_url: str) -> Iterator[str]:
    """A database of this file's own: whoever delivers envelopes goes on with all arrays."""
    with migrated(database_url) as address:
        yield address


@pytest.fixture
def own(url: str) -> Iterator[Connection]:
    """A connection to it."""
    with connected(url) as found:
        yield found


@pytest.fixture
def field(own: Connection) -> Field:
    return Field(own, new_org(own))


def test_an_array_is_one_hold_and_submits_as_many_elements_as_its_limit(field: Field) -> None:
    """All that it may cost is set aside in one step; its pool hears of two of five (M1)."""
    field.array()
    assert (HAS - 5 * LOT, 5 * LOT, 0) == field.credits()
    assert [] == field.envelopes(), "nothing has begun"

    field.jobs.advance_arrays(field.org)
    field.jobs.advance_arrays(field.org)

    told = field.envelopes()
    assert 2 == len(told)
    messages = [one.message for one in told]
    assert all(isinstance(one, Enqueue) and one.hold_micros == LOT for one in messages)
    numbers = {dict(one.spec.program.env)[INDEX] for one in messages if isinstance(one, Enqueue)}
    counts = {dict(one.spec.program.env)[COUNT] for one in messages if isinstance(one, Enqueue)}
    assert ({"0", "1"}, {"5"}) == (numbers, counts)
    assert [(0, LOT), (1, LOT)] == [(one.place, one.held) for one in field.elements()]
    assert (HAS - 5 * LOT, 5 * LOT, 0) == field.credits(), "lots are taken out of what is held"
    whole = field.shown("a")
    assert ("queued", 5 * LOT, 0) == (whole.state, whole.held, whole.spent)
    assert [] == field.wrong()


def test_each_finished_element_starts_the_next_until_all_are_finished(field: Field) -> None:
    """Each is charged for what it ran; what its lot has left goes back; then the array is over."""
    field.array()
    field.jobs.advance_arrays(field.org)
    seen = set(field.live())
    for n in range(5):
        field.end(field.live()[0])
        assert 0 == n or "running" == field.shown("a").state
        field.jobs.advance_arrays(field.org)
        assert len(field.live()) == min(2, 4 - n)
        seen |= set(field.live())
        assert [] == field.wrong()

    whole = field.shown("a")
    assert 5 == len(seen)
    assert ("succeeded", "finished", "user") == (whole.state, whole.why, whole.end_class)
    assert (5 * 1_000, 0) == (whole.spent, whole.held)
    assert (HAS - 5 * 1_000, 0, 5 * 1_000) == field.credits()
    steps = [(one.state, one.why, one.spent) for one in field.steps("a")]
    assert [
        ("queued", "submitted", 0),
        ("running", "started", 0),
        ("succeeded", "finished", 5_000),
    ] == steps
    assert ArrayStates(JobId("a"), 5, 2, 5, 5, 0, 0, 0, 0, 0, 0, 0) == field.standing()
    field.jobs.advance_arrays(field.org)
    assert 3 == len(field.steps("a")), "it is over once"


def test_concurrent_processes_submit_an_element_once(field: Field) -> None:
    """What was taken out is known by the hold: an old look changes nothing."""
    field.array()
    asked: list[CommandRequest] = []

    def remembering(asks: Any) -> Any:
        asked.extend(asks)
        return field.ask(asks)

    field.jobs._arrays._ledger = remembering
    field.jobs.advance_arrays(field.org)
    [again] = asked
    moved = again._replace(key="another process asks")
    [answer] = field.ask([moved])

    assert isinstance(answer, Answer)
    assert isinstance(answer.outcome, Refusal)
    assert Code.ALREADY_EXISTS is answer.outcome.code
    assert 2 == len(field.elements())
    assert [] == field.wrong()


def test_a_cancelled_array_submits_no_more_and_cancels_unfinished_elements(field: Field) -> None:
    """What has not begun goes back at once; what runs is asked to stop, and ends the array."""
    field.array()
    field.jobs.advance_arrays(field.org)
    runs, waits = field.live()
    field.started(job=runs)
    field.jobs.cancel(field.org, JobId("a"))
    field.jobs.cancel(field.org, JobId("a"))

    # One runs on its trimmed lot (the cheaper type), one waits with all of its own.
    assert LOT + RUN_MS == field.credits()[1]
    told = [(one.job, type(one.message)) for one in field.envelopes() if one.n == 2]
    assert {(runs, Withdraw), (waits, Withdraw)} == set(told)
    assert {"stopping", "queued"} == {one.state for one in field.elements()}
    assert ("stopping", True) == (field.shown("a").state, field.shown("a").withdrawn)
    field.jobs.advance_arrays(field.org)
    assert 2 == len(field.elements()), "nothing more begins"
    assert [] == field.wrong()

    field.hear(ended(Cause.CANCELLED, 2_000), runs)
    field.hear(Dropped(end_class=EndClass.USER, why=Cause.CANCELLED), waits)
    field.jobs.advance_arrays(field.org)
    whole = field.shown("a")
    assert ("cancelled", "cancelled", "user") == (whole.state, whole.why, whole.end_class)
    assert (HAS - 2_000, 0, 2_000) == field.credits()
    assert [] == field.wrong()


def test_an_array_cancelled_before_it_begins_is_finished(field: Field) -> None:
    """There is nobody to wait for."""
    field.array()
    field.jobs.cancel(field.org, JobId("a"))
    assert (HAS, 0, 0) == field.credits()
    field.jobs.advance_arrays(field.org)

    assert ("cancelled", 0) == (field.shown("a").state, len(field.elements()))
    assert [] == field.wrong()


def test_one_element_can_be_cancelled_alone(field: Field) -> None:
    """It is a job like any other; the array continues, and ends as partly cancelled."""
    field.array(elements=2, at_once=1)
    field.jobs.advance_arrays(field.org)
    [first] = field.live()
    field.jobs.cancel(field.org, JobId(first))
    field.hear(Dropped(end_class=EndClass.USER, why=Cause.CANCELLED), first)
    field.jobs.advance_arrays(field.org)
    [second] = field.live()
    field.end(second)
    field.jobs.advance_arrays(field.org)

    whole = field.shown("a")
    assert ("cancelled", False) == (whole.state, whole.withdrawn)
    assert [] == field.wrong()


@pytest.mark.parametrize(
    ("ends", "state"),
    [
        ((Cause.FINISHED, Cause.FAILED, Cause.TIME_UP), "failed"),
        ((Cause.FINISHED, Cause.TIME_UP), "expired"),
        ((Cause.FINISHED, Cause.FINISHED), "succeeded"),
    ],
)
def test_an_array_ends_as_the_worst_of_its_elements(
    field: Field, ends: tuple[Cause, ...], state: str
) -> None:
    """One that has failed lets the whole have failed."""
    field.array(elements=len(ends), at_once=len(ends))
    field.jobs.advance_arrays(field.org)
    for job, why in zip(field.live(), ends, strict=True):
        field.end(job, why)
    field.jobs.advance_arrays(field.org)

    assert state == field.shown("a").state
    assert [] == field.wrong()


def test_an_array_whose_hold_has_ended_submits_no_more_elements(field: Field) -> None:
    """The hold of an array expires as well (L10): elements that were not added are never added."""
    field.array(elements=3, at_once=1)
    field.jobs.advance_arrays(field.org)
    [first] = field.live()
    field.now += 61 * DAY
    field.hear(Dropped(end_class=EndClass.LIMIT, why=Cause.HOLD_ENDED), first)
    field.jobs.advance_arrays(field.org)

    whole = field.shown("a")
    assert ("expired", 1) == (whole.state, len(field.elements()))
    assert (HAS, 0, 0) == field.credits()
    assert [] == field.wrong()


def test_an_array_is_refused_as_one(field: Field) -> None:
    """There is no array of which a part can be paid, and none that a part of a quota admits."""
    answer = field.array(elements=HAS // RUN_MS + 1, at_once=1)
    assert isinstance(answer.outcome, Refusal)
    assert Code.INSUFFICIENT_CREDITS is answer.outcome.code

    few = Quota("q", None, None, {"jobs_queued_max": 6, "submissions_per_minute_max": 3})
    field.array("b", quotas=(few,))
    answer = field.array("c", elements=2, quotas=(few,))
    assert isinstance(answer.outcome, Refusal)
    assert {"limit_name": "jobs_queued_max", "found_count": 5} == {
        name: answer.outcome.figures[name] for name in ("limit_name", "found_count")
    }
    field.jobs.advance_arrays(field.org)
    field.end(field.live("b")[0])
    assert isinstance(field.array("d", elements=2, quotas=(few,)).outcome, tuple)
    assert isinstance(field.array("e", elements=1, at_once=1, quotas=(few,)).outcome, Refusal)


def test_two_arrays_of_one_batch_are_counted_with_all_their_elements(field: Field) -> None:
    """What the same transaction has submitted counts as well."""
    few = Quota("q", None, None, {"jobs_queued_max": 6})
    answers = field.ask([field.asked_array(job, 4, 1, quotas=(few,)) for job in ("a", "b")])

    assert [False, True] == [
        isinstance(one.outcome, Refusal) for one in answers if isinstance(one, Answer)
    ]


# The whole way, with death in between


TRIES = (
    (Try(5_000),),
    (Try(4_000, kept_ms=3_000, preempted=True), Try(5_000)),
    (Try(7_000),),
)
SPENT = 5_000 + 3_000 + 5_000 + 7_000


@dataclass
class ArrayWorld(World):
    """A world whose only job is an array of three, two at once; the second is preempted."""

    def submission(self, job: str) -> Submission:
        """The array."""
        found = super().submission(job)
        reserve = replace(found.reserve, for_job=True, element_count=len(TRIES), at_once=2)
        return found._replace(reserve=reserve)


class ArrayDriver(Driver):
    """Runs the elements of the array."""

    def _try(self, lease: Lease) -> Try:
        sql = "select place from jobs where org_id = %s and job_id = %s"
        [(place,)] = self._connection.execute(sql, [self.world.org, lease.job]).fetchall()
        return TRIES[place][lease.attempt - 1]

    def is_over(self) -> bool:
        """Whether the array is over, and everybody knows."""
        sql = """
            select (select count(*) from jobs where org_id = %s and ended_at is not null),
                   (select count(*) from org_outbox where org_id = %s and acked_at is null),
                   (select count(*) from pool_outbox where pool_id = %s and acked_at is null)
        """
        given = [self.world.org, self.world.org, self.world.pool]
        return bool(self._connection.execute(sql, given).fetchone() == (len(TRIES) + 1, 0, 0))


def array_world(connection: Connection, clock: Clock) -> ArrayWorld:
    number = next(_NUMBERS)
    nodes = (Node(id=NodeId("n1"), gpu_type="a100", gpus=2),)
    plans = {"a": Plan(run_ms=60_000, requeues=1)}
    new = ArrayWorld(f"array-{number}", f"pool-{number}", plans, nodes, clock=clock)
    new.found(connection)
    return new


def check_array(connection: Connection, org: str) -> None:
    """Every element has ended once, and paid for what it ran."""
    sql = "select available + spent, held, spent from grants where org_id = %s"
    [(all_of_it, held, spent)] = connection.execute(sql, [org]).fetchall()
    assert (10**12, 0, SPENT) == (all_of_it, held, spent)
    sql = "select state, count(*) from jobs where org_id = %s group by state"
    assert [("succeeded", 4)] == connection.execute(sql, [org]).fetchall()


def wrong_in(connection: Connection, *orgs: str) -> list[Contradiction]:
    """What `verify` finds in orgs; other tests of this file tell what no pool has heard."""
    connection.execute("analyze")
    return [one for one in verify(connection, clock=Clock()) if one.org in orgs]


def test_an_array_is_run_and_paid_exactly(own: Connection) -> None:
    """Preempted or not: each element pays what it ran, on its own lot; `verify` is silent."""
    clock = Clock()
    world = array_world(own, clock)
    ArrayDriver(world, own).play(clock)

    check_array(own, world.org)
    assert [] == wrong_in(own, world.org)


@pytest.mark.slow
def test_a_process_that_advances_arrays_may_die_anywhere(own: Connection, url: str) -> None:
    """Killed between any two statements about arrays: the next one goes on, and nothing is lost."""
    clock = Clock()
    counting = Mortal(own)
    ArrayDriver(array_world(own, clock), counting).play(clock)
    places = [
        place
        for place in counting.places_to_die()
        if any("array" in text for text in counting.places[place - 1])
    ]
    assert len(places) > 2 * DEATHS
    played: list[str] = []
    for dies_at in places[:: len(places) // DEATHS]:
        clock = Clock()
        world = array_world(own, clock)
        with connected(url) as real, pytest.raises(Killed):
            ArrayDriver(world, Mortal(real, dies_at)).play(clock)
        clock.now += SECOND
        ArrayDriver(world, own).play(clock)
        check_array(own, world.org)
        played.append(world.org)
    assert [] == wrong_in(own, *played)
