"""The pool's rules: messages, leases, reports, ends (D4, M2-M5, S10, S11)."""

import pytest

from bursar.core.dispatch import pool as rules
from bursar.core.dispatch.job_lifecycle import JobState
from bursar.core.dispatch.pool import Placement
from bursar.core.dispatch.quarantine import is_usable
from bursar.core.dispatch.reports import (
    BOOT_STEP_MAX,
    START_TIMEOUT,
    NodeReport,
    Reading,
    clocks_differ,
    receive_report,
)
from bursar.core.dispatch.state import (
    LEADER_TERM,
    ClockSample,
    Exit,
    JobKey,
    JobMessage,
    Lease,
    PoolNode,
    PoolTransaction,
    cluster_name,
)
from bursar.core.ids import JobId, NodeId
from bursar.core.instant import HOUR, MINUTE, SECOND
from bursar.core.leases import LEASE_MARGIN, LEASE_TTL, Denied
from bursar.core.messages import (
    Cause,
    Correct,
    Corrected,
    Dropped,
    EndClass,
    Ended,
    HoldGrew,
    RanSoFar,
    Started,
    Withdraw,
)
from bursar.core.refusal import InvariantBroken
from bursar.core.scheduling.decisions import EarmarkGpus, Preempt, Promise, Start
from bursar.core.scheduling.model.jobs import StartReason as Turn
from bursar.core.scheduling.model.nodes import NodeState, Piece
from bursar.core.value import replace
from tests.support.builders import PER_MS, T0
from tests.support.dispatch_pool import (
    GANG,
    GANG_SPEC,
    HALF,
    JOB,
    N1,
    N2,
    ON_N1,
    OTHER,
    SPEC,
    Trial,
    asking,
    ran,
    running,
    waiting,
)

GROWN = HoldGrew(added=30_000, until=0)


# Messages of orgs


def test_a_job_waits_with_the_terms_of_its_org() -> None:
    trial = waiting()
    job = trial.job()

    assert (JobState.QUEUED, 60_000, T0 + 10 * MINUTE, 2) == (
        job.state, job.hold_micros, job.hold_until, job.requeues_left,
    )  # fmt: skip


def test_messages_are_handled_once_and_in_order() -> None:
    """A repeat is acknowledged again; a message that arrives early is left alone (D4)."""
    trial = Trial()

    assert not trial.post(GROWN, 2)
    assert trial.post(asking(), 1)
    assert trial.post(asking(), 1)
    assert not trial.post(Withdraw(), 3)
    assert trial.post(GROWN, 2)
    assert trial.post(GROWN, 2)
    assert (90_000, 2) == (trial.job().hold_micros, trial.job().received)


def test_a_cancelled_job_leaves_the_queue() -> None:
    trial = waiting()
    trial.post(Withdraw(), 2)

    assert JobState.CANCELLED is trial.job().state
    assert [Dropped(end_class=EndClass.USER, why=Cause.CANCELLED)] == trial.told()


def test_a_finished_job_ignores_messages() -> None:
    """Messages that cross its end change nothing."""
    trial = waiting()
    assert all([trial.post(Withdraw(), 2), trial.post(Withdraw(), 3), trial.post(GROWN, 4)])

    assert JobState.CANCELLED is trial.job().state
    assert 1 == len(trial.told())


@pytest.mark.parametrize(
    ("message", "n"), [(Withdraw(), 1), (Dropped(end_class=EndClass.USER, why=Cause.CANCELLED), 2)]
)
def test_an_impossible_message_is_a_bug(message: object, n: int) -> None:
    trial = waiting()
    envelope = JobMessage("acme", JobId("other" if n == 1 else "job"), n, message)  # type: ignore[arg-type]

    with pytest.raises(InvariantBroken):
        rules.receive(trial.work(), envelope)


# Leases


def test_a_lease_has_a_fence_and_lasts_twenty_seconds() -> None:
    trial = waiting()
    lease = trial.place()

    assert isinstance(lease, Lease)
    assert (1, 1, T0 + LEASE_TTL, 60_000) == (
        lease.fence, lease.attempt, lease.parts[0].until, lease.run_ms_max,
    )  # fmt: skip
    assert (JobState.STARTING, 1) == (trial.job().state, trial.job().fence)


def _gpu(*gpus: int, node: NodeId = N1) -> tuple[Piece, ...]:
    return (Piece(node, gpus, 1),)


@pytest.mark.parametrize(
    ("why", "pieces", "settings"),
    [
        (Denied.EPOCH_STALE, ON_N1, {"epoch": 0}),
        (Denied.EPOCH_STALE, ON_N1, {"epoch": 2}),
        (Denied.JOB_UNKNOWN, ON_N1, {"key": ("acme", "another")}),
        (Denied.TYPE_NOT_PRICED, ON_N1, {"gpu_type": "A100"}),
        (Denied.NODE_UNKNOWN, _gpu(0, node=NodeId("n9")), {}),
        (Denied.SLOT_UNKNOWN, _gpu(2), {}),
        (Denied.WRONG_SIZE, _gpu(0, 1), {}),
    ],
)
def test_reasons_to_deny_a_placement(
    why: Denied, pieces: tuple[Piece, ...], settings: dict[str, object]
) -> None:
    assert why is waiting().place(pieces, **settings)  # type: ignore[arg-type]


def test_a_job_is_leased_once() -> None:
    trial = waiting()
    trial.place()

    assert Denied.NOT_QUEUED is trial.place(_gpu(1))


def test_a_gpu_is_leased_once() -> None:
    """Another GPU of the node is free (IS1)."""
    trial = waiting()
    other = ("acme", JobId("other"))
    trial.post(asking(), 1, other)
    trial.place()

    assert Denied.SLOT_TAKEN is trial.place(key=other)
    assert isinstance(trial.place(_gpu(1), key=other), Lease)


def test_equal_gpu_numbers_on_two_nodes_do_not_conflict() -> None:
    trial = waiting()
    other = ("acme", JobId("other"))
    trial.post(asking(), 1, other)
    trial.place()

    assert isinstance(trial.place(_gpu(0, node=N2), key=other), Lease)


def test_parts_of_a_gpu_are_leased_until_it_is_full() -> None:
    """A GPU is a set of slots (S1, IS1)."""
    trial = waiting(spec=HALF)
    machine = trial.pool.machines[N1]
    trial.pool.machines[N1] = replace(machine, node=replace(machine.node, slots=4))
    keys = [("acme", JobId(f"part{number}")) for number in range(3)]
    for key in keys:
        trial.post(asking(spec=HALF), 1, key)
    half = (Piece(N1, (0,), 2),)

    assert Denied.WRONG_SIZE is trial.place((Piece(N1, (0,), 1),), key=keys[0])
    assert isinstance(trial.place(half, key=keys[0]), Lease)
    assert isinstance(trial.place(half, key=keys[1]), Lease)
    assert Denied.SLOT_TAKEN is trial.place(half, key=keys[2])


def test_a_job_gets_no_more_of_a_gpu_than_it_pays_for() -> None:
    """Half of three slots is no whole number, and a GPU with one slot cannot be divided (S1)."""
    trial = waiting(spec=HALF)
    machine = trial.pool.machines[N1]
    trial.pool.machines[N1] = replace(machine, node=replace(machine.node, slots=3))

    for slots in (1, 2, 3):
        assert Denied.WRONG_SIZE is trial.place((Piece(N1, (0,), slots),))
    assert Denied.WRONG_SIZE is trial.place((Piece(N2, (0,), 1),))
    third = replace(HALF, shape=replace(HALF.shape, milli=333))
    other = ("acme", JobId("other"))
    trial.post(asking(spec=third), 1, other)
    assert Denied.WRONG_SIZE is trial.place((Piece(N1, (0,), 2),), key=other)
    assert Denied.WRONG_SIZE is trial.place((Piece(N1, (0, 1), 1),), key=other)
    assert isinstance(trial.place((Piece(N1, (0,), 1),), key=other), Lease)


def test_nothing_is_leased_on_a_node_of_another_type() -> None:
    trial = waiting(rates=(("A100", PER_MS), ("H100", PER_MS)))

    assert Denied.TYPE_NOT_PRICED is trial.place(gpu_type="A100")


def test_nothing_is_leased_on_a_silent_node() -> None:
    """Nor on one that has never reported (IS15)."""
    trial = waiting()
    trial.pass_by(LEASE_TTL - 1)
    assert is_usable(trial.pool.machines[N1], trial.now)
    trial.pass_by(1)

    assert Denied.NODE_SILENT is trial.place()
    assert not is_usable(Trial().pool.machines[N1], T0)


@pytest.mark.parametrize(
    "changes", [{"hold_until": T0}, {"run_ms": 10_000}, {"hold_until": T0, "rates": (("H100", 0),)}]
)
def test_nothing_is_leased_without_credits_or_time(changes: dict[str, object]) -> None:
    trial = waiting(**changes)

    assert trial.place() in (Denied.HOLD_ENDED, Denied.NOT_QUEUED)


def test_a_free_job_is_limited_by_its_run_time_only() -> None:
    trial = waiting(rates=(("H100", 0),), hold_micros=0)
    lease = trial.place()

    assert isinstance(lease, Lease)
    assert 60_000 == lease.run_ms_max


# Leading


def test_one_process_leads_at_a_time() -> None:
    """Another one may lead after the term; its epoch is larger (S11, IS4)."""
    trial = Trial()
    work = trial.pass_by(LEADER_TERM - 1).work()
    assert rules.lead(work, "two") is None
    assert 1 == rules.lead(work, "one")
    work.commit()
    assert rules.lead(trial.pass_by(LEADER_TERM - 1).work(), "two") is None
    work = trial.pass_by(1).work()
    assert 2 == rules.lead(work, "two")
    work.commit()

    assert Denied.EPOCH_STALE is trial.place()
    assert Denied.EPOCH_STALE is trial.preempt()


def test_a_pool_gets_a_leader_although_its_clock_was_ahead() -> None:
    """The pool's time stands still until the clock has caught up; terms follow the clock (N2)."""
    trial = Trial()
    work = trial.pass_by(HOUR).work()
    assert 1 == rules.lead(work, "one")
    work.commit()
    work = trial.pass_by(-HOUR).work()
    assert 2 == rules.lead(work, "two"), "nobody leads for longer than a term without a word"
    work.commit()
    assert (trial.now + HOUR, trial.now + LEADER_TERM) == (trial.pool.now, trial.pool.leads_until)
    assert rules.lead(trial.pass_by(LEADER_TERM - 1).work(), "three") is None
    assert 3 == rules.lead(trial.pass_by(1).work(), "three")


def test_a_dropped_transaction_changes_nothing() -> None:
    """S11."""
    trial = waiting()
    before = trial.job()
    rules.place(trial.work(), trial.epoch, Placement(JOB, "H100", ON_N1))

    assert (before, 0, {}) == (trial.job(), trial.pool.fence, trial.pool.leases)
    assert trial.now == PoolTransaction(trial.pool, 0).now, "a pool's time never goes back"


# Reports


def test_a_report_renews_all_leases_and_its_answer_lists_them() -> None:
    trial = waiting()
    trial.place()
    trial.pass_by(5 * SECOND)
    [order] = trial.orders()

    assert (1, LEASE_TTL, 60_000, False) == (
        order.fence,
        order.ttl_us,
        order.run_ms_max,
        order.stop,
    )
    assert trial.now + LEASE_TTL == trial.lease().parts[0].until
    assert () == trial.orders(node=N2)


def test_the_first_reading_is_the_start() -> None:
    trial = running()

    assert JobState.RUNNING is trial.job().state
    assert Started(attempt=1, gpu_type="H100", started_at=T0, run_ms=60_000) == trial.told()[0]


def test_a_report_that_is_not_newer_is_ignored() -> None:
    """By the number of the agent's start first, then of the report."""
    trial = waiting()

    assert trial.report(boot=2, n=1) is not None
    assert trial.report(boot=2, n=1) is None
    assert trial.report(boot=1, n=99) is None
    assert trial.report(node=NodeId("n9")) is None


def test_a_start_number_that_is_far_ahead_is_ignored() -> None:
    """A misused key could silence its node with it: later reports of the agent look old (N4)."""
    trial = waiting()

    trial.report(boot=1)

    assert trial.report(boot=BOOT_STEP_MAX + 2, n=1) is None
    assert trial.report(boot=BOOT_STEP_MAX + 1, n=1) is not None
    assert trial.report(boot=2**53 - 1, n=1) is None
    assert BOOT_STEP_MAX + 1 == trial.pool.machines[N1].boot


def test_an_operator_can_reset_the_reports_of_a_node_without_leases() -> None:
    """As after its disk was replaced; with a lease, its agent could start an attempt twice."""
    trial = waiting()
    trial.report(boot=7, n=5)
    lease = trial.place()
    assert isinstance(lease, Lease)
    work = trial.work()
    assert Denied.NODE_UNKNOWN is rules.reset_reports(work, NodeId("n9"))
    assert Denied.NODE_BUSY is rules.reset_reports(work, N1)
    trial.report(Reading(fence=lease.fence, run_ms=0, exit=Exit.GONE), node=N1, boot=7, n=6)
    assert trial.report(boot=1, n=1) is None
    work = trial.work()
    assert rules.reset_reports(work, N1) is None
    work.commit()

    assert trial.report(boot=1, n=1) is not None


def test_a_reading_without_a_lease_changes_nothing() -> None:
    trial = running()
    before = trial.lease()
    trial.report(ran(7_000, fence=9), node=N1)
    trial.report(ran(7_000), node=N2)  # the lease is another node's

    assert before.run_ms == trial.lease().run_ms


def test_readings_never_go_back_and_prove_no_more_than_the_lease() -> None:
    """Longer readings are clamped, and that is recorded (M2, IM1)."""
    trial = running()
    trial.report(ran(3_000))
    assert (5_000, False) == (trial.lease().run_ms, trial.lease().clamped)
    trial.report(ran(9_000))

    assert (5_000, True) == (trial.lease().run_ms, trial.lease().clamped)


def test_an_expired_lease_is_not_renewed() -> None:
    """The run time it reports counts up to its end; its process counts as gone (M4)."""
    trial = running()
    until = trial.lease().parts[0].until
    trial.pass_by(LEASE_TTL)

    assert () == trial.orders(ran(24_000))
    assert (until, 24_000) == (trial.lease().parts[0].until, trial.lease().run_ms)
    assert () == trial.orders(ran(26_000, exit=Exit.DONE))
    assert (Cause.LOST, JobState.QUEUED) == (trial.lease().why, trial.job().state)
    assert (25_000, True) == (trial.lease().run_ms, trial.lease().clamped)


def test_the_org_gets_readings_at_intervals() -> None:
    """Each hundredth of the hold: 600 ms here (D4)."""
    trial = running()
    trial.pass_by(599_000)
    trial.report(ran(5_599))
    trial.pass_by(1_000)
    trial.report(ran(5_600))

    assert [5_000, 5_600] == [one.run_ms for one in trial.told() if isinstance(one, RanSoFar)]


def test_a_lease_does_not_outlive_its_hold() -> None:
    trial = running(hold_until=T0 + 12 * SECOND)
    [order] = trial.orders()

    assert 7 * SECOND == order.ttl_us


def test_an_attempt_that_does_not_start_in_time_is_lost() -> None:
    """Its node may send without receiving: reports alone do not keep a lease (S10)."""
    trial = waiting()
    trial.place()
    while trial.now < T0 + START_TIMEOUT:
        trial.pass_by(5 * SECOND).report()
    trial.pass_by(LEASE_MARGIN)

    assert 1 == trial.expire()
    assert (Cause.LOST, JobState.QUEUED) == (trial.lease().why, trial.job().state)
    assert [
        Started(attempt=1, gpu_type="H100", started_at=T0, run_ms=60_000),
        Ended(
            attempt=1,
            end_class=EndClass.PLATFORM,
            run_ms=0,
            kept_ms=None,
            job_finished=False,
            why=Cause.LOST,
            exit_code=None,
        ),
    ] == trial.told()


# Ends


@pytest.mark.parametrize(
    ("exit", "why", "state"),
    [
        (Exit.DONE, Cause.FINISHED, JobState.SUCCEEDED),
        (Exit.FAILED, Cause.FAILED, JobState.FAILED),
        (Exit.GONE, Cause.LOST, JobState.QUEUED),
        (Exit.KILLED, Cause.LOST, JobState.QUEUED),
    ],
)
def test_the_exit_of_a_process_decides_the_next_state_of_its_job(
    exit: Exit, why: Cause, state: JobState
) -> None:
    trial = running()
    trial.pass_by(SECOND)

    assert () == trial.orders(ran(6_000, saved_ms=2_000, exit=exit))
    assert (why, state, None) == (trial.lease().why, trial.job().state, trial.job().fence)


def test_work_lost_by_the_platform_is_refunded_and_by_the_job_is_not() -> None:
    """Back to the last checkpoint (M3)."""
    lost, own = running(), running()
    lost.report(ran(5_000, saved_ms=2_000, exit=Exit.GONE))
    own.report(ran(5_000, saved_ms=2_000, exit=Exit.FAILED))

    assert Ended(
        attempt=1, end_class=EndClass.PLATFORM, run_ms=5_000, kept_ms=2_000, job_finished=False,
        why=Cause.LOST,
    ) == lost.told()[-1]  # fmt: skip
    assert (2_000, 2_000, 1) == (lost.job().ran_ms, lost.job().used, lost.job().requeues_left)
    assert Ended(
        attempt=1, end_class=EndClass.USER, run_ms=5_000, kept_ms=None, job_finished=True,
        why=Cause.FAILED,
    ) == own.told()[-1]  # fmt: skip


def test_a_dead_node_s_job_waits_again_after_a_margin() -> None:
    """Its GPUs are not leased again before (M4, S10)."""
    trial = running()
    trial.pass_by(LEASE_TTL + LEASE_MARGIN - 1)
    assert 0 == trial.expire()
    trial.pass_by(1)

    assert 1 == trial.expire()
    assert (JobState.QUEUED, None) == (trial.job().state, trial.job().fence)
    assert Denied.NODE_SILENT is trial.place()


def test_run_time_that_is_reported_after_the_end_is_charged() -> None:
    """If the job is responsible, up to the end of the lease; otherwise none of it (M4, IM5)."""
    lost, own = running(), running(run_ms=15_000)
    for trial in (lost, own):
        trial.pass_by(LEASE_TTL + LEASE_MARGIN)
        trial.expire()
        trial.report(ran(14_000, exit=Exit.KILLED))
        trial.report(ran(14_000, exit=Exit.KILLED))

    assert (Cause.TIME_UP, 14_000, 14_000) == (own.lease().why, own.job().ran_ms, own.job().used)
    assert [RanSoFar(attempt=1, run_ms=14_000)] == own.told()[3:]
    assert (Cause.LOST, 0, 0) == (lost.lease().why, lost.job().ran_ms, lost.job().used)
    assert not lost.lease().clamped


def test_a_job_fails_after_its_last_requeue() -> None:
    trial = running(spec=replace(SPEC, requeues=0))
    trial.report(ran(5_000, exit=Exit.GONE))

    assert (JobState.FAILED, Cause.GIVEN_UP) == (trial.job().state, trial.job().why)
    assert trial.told()[-1] == Ended(
        attempt=1,
        end_class=EndClass.PLATFORM,
        run_ms=5_000,
        kept_ms=0,
        job_finished=True,
        why=Cause.LOST,
    )


def test_a_lost_job_that_was_cancelled_is_cancelled() -> None:
    trial = running()
    trial.post(Withdraw(), 2)
    trial.report(ran(5_000, exit=Exit.GONE))
    gang = running(GANG, spec=GANG_SPEC, hold_micros=120_000)
    gang.report(ran(5_000, exit=Exit.GONE))  # it is being stopped because of that
    gang.post(Withdraw(), 2)
    gang.report(ran(5_000, exit=Exit.STOPPED), node=N2)

    assert JobState.CANCELLED is trial.job().state
    assert JobState.CANCELLED is gang.job().state


def test_a_preempted_job_stops_and_waits_again() -> None:
    """A second request changes nothing; a job that does not run cannot be preempted (S5)."""
    trial = running()
    assert trial.preempt() is None
    assert trial.preempt() is None
    [order] = trial.orders(ran(5_000))
    assert (order.stop, JobState.STOPPING) == (True, trial.job().state)
    trial.report(ran(5_000, saved_ms=5_000, exit=Exit.STOPPED))

    assert (JobState.QUEUED, Cause.PREEMPTED) == (trial.job().state, trial.job().why)
    assert Denied.FENCE_STALE is trial.preempt()
    assert Denied.FENCE_STALE is trial.preempt(("acme", JobId("another")))


OWN = "acme", JobId("another")


@pytest.mark.parametrize(
    ("wanted_by", "saved_ms", "asked_ms", "why", "kept_ms"),
    [
        (OTHER, 2_000, None, Cause.PREEMPTED, 2_000),
        (OTHER, 2_000, 4_000, Cause.PREEMPTED, 2_000),
        (OTHER, 4_900, 4_000, Cause.PREEMPTED, 4_000),
        (OWN, 2_000, None, Cause.MADE_ROOM, None),
        (OWN, 2_000, 4_000, Cause.MADE_ROOM, 4_000),
        (OWN, 4_900, 4_000, Cause.MADE_ROOM, 4_000),
        (OWN, 2_000, 5_000, Cause.MADE_ROOM, None),
    ],
)
def test_a_job_preempted_for_its_own_org_pays_for_lost_work(
    wanted_by: JobKey, saved_ms: int, asked_ms: int | None, why: Cause, kept_ms: int | None
) -> None:
    """But run time after the stop request is not paid (M2, M3)."""
    trial = running()
    trial.preempt(wanted_by=wanted_by)
    trial.report(ran(5_000, saved_ms=saved_ms, asked_ms=asked_ms))
    trial.report(ran(5_000, saved_ms=saved_ms, exit=Exit.STOPPED))

    assert (why, kept_ms, EndClass.PREEMPTION) == (
        trial.job().why, _ended(trial).kept_ms, _ended(trial).end_class,
    )  # fmt: skip
    assert (5_000 if kept_ms is None else kept_ms) == trial.job().ran_ms
    assert (JobState.QUEUED, 1) == (trial.job().state, trial.job().preemptions)


def failed(saved_ms: int = 2_000) -> Trial:
    """A pool whose only job has failed after five seconds."""
    trial = running()
    trial.report(ran(5_000, saved_ms=saved_ms, exit=Exit.FAILED))
    return trial


def corrected(end_class: EndClass, kept_ms: int | None, *, over: bool = True) -> Corrected:
    return Corrected(
        attempt=1, end_class=end_class, run_ms=5_000, kept_ms=kept_ms, job_finished=over
    )


def test_a_corrected_end_is_reported_with_what_is_paid() -> None:
    """Lost work is refunded, and charged again if that was wrong (M3)."""
    trial = failed()
    trial.post(Correct(attempt=1, end_class=EndClass.PLATFORM), 2)

    assert corrected(EndClass.PLATFORM, 2_000) == trial.told()[-1]
    assert (2_000, 2_000, JobState.FAILED) == (
        trial.job().ran_ms, trial.job().used, trial.job().state,
    )  # fmt: skip
    assert (EndClass.PLATFORM, Cause.FAILED) == (trial.lease().corrected, trial.lease().why)

    trial.post(Correct(attempt=1, end_class=EndClass.LIMIT), 3)
    trial.post(Correct(attempt=1, end_class=EndClass.LIMIT), 4)

    assert [corrected(EndClass.LIMIT, None)] * 2 == trial.told()[-2:]
    assert (5_000, 5_000) == (trial.job().ran_ms, trial.job().used)


def test_a_late_reading_does_not_undo_a_correction() -> None:
    """No more run time of a corrected attempt is reported."""
    trial = running(run_ms=15_000)
    trial.pass_by(LEASE_TTL + LEASE_MARGIN)
    trial.expire()
    assert Cause.TIME_UP is trial.lease().why
    trial.post(Correct(attempt=1, end_class=EndClass.PLATFORM), 2)
    sent = trial.job().sent
    trial.report(ran(9_000))
    assert (5_000, sent) == (trial.lease().run_ms, trial.job().sent)

    trial.post(Correct(attempt=1, end_class=EndClass.LIMIT), 3)
    trial.report(ran(9_000))

    assert corrected(EndClass.LIMIT, None) == trial.told()[-1]
    assert (5_000, 5_000) == (trial.job().ran_ms, trial.job().used)


def test_a_correction_charges_no_more_than_the_hold_has() -> None:
    """Other attempts may have used it since: a job never costs more than its hold (IS9)."""
    trial = running(hold_micros=17_000)
    trial.report(ran(5_000, saved_ms=1_000, exit=Exit.GONE))
    trial.pass_by(MINUTE)
    trial.report()
    trial.place()
    trial.pass_by(14 * SECOND)
    trial.report(ran(14_000, fence=2, exit=Exit.FAILED))
    assert 15_000 == trial.job().used
    trial.post(Correct(attempt=1, end_class=EndClass.USER), 2)

    assert corrected(EndClass.USER, 3_000, over=False) == trial.told()[-1]
    assert (17_000, 17_000) == (trial.job().ran_ms, trial.job().used)


def test_a_correction_of_a_free_job_pays_all_run_time() -> None:
    trial = running(rates=(("H100", 0),), hold_micros=0)
    trial.report(ran(5_000, saved_ms=1_000, exit=Exit.FAILED))
    trial.post(Correct(attempt=1, end_class=EndClass.LIMIT), 2)

    assert corrected(EndClass.LIMIT, None) == trial.told()[-1]


@pytest.mark.parametrize(
    ("wanted_by", "end_class", "kept_ms"),
    [
        (OTHER, EndClass.PREEMPTION, 1_000),
        (OTHER, EndClass.PLATFORM, 1_000),
        (OTHER, EndClass.USER, 4_000),  # run time after the request is free
        (("acme", JobId("x")), EndClass.PREEMPTION, 4_000),  # preempted for its own org
        (("acme", JobId("x")), EndClass.PLATFORM, 1_000),
        (("acme", JobId("x")), EndClass.LIMIT, 4_000),
    ],
)
def test_run_time_after_a_preemption_request_is_free_under_every_end_class(
    wanted_by: JobKey, end_class: EndClass, kept_ms: int
) -> None:
    """The request is a fact (M2)."""
    trial = running(spec=replace(SPEC, requeues=0))
    trial.preempt(wanted_by=wanted_by)
    trial.report(ran(5_000, saved_ms=1_000, asked_ms=4_000))
    trial.report(ran(5_000, saved_ms=1_000, exit=Exit.STOPPED))
    assert (JobState.FAILED, Cause.GIVEN_UP) == (trial.job().state, trial.job().why)
    trial.post(Correct(attempt=1, end_class=end_class), 2)

    assert corrected(end_class, kept_ms) == trial.told()[-1]
    assert kept_ms == trial.job().ran_ms


@pytest.mark.parametrize("wanted_by", [OTHER, OWN])
def test_run_time_after_a_preemption_request_is_free_if_the_node_is_lost(wanted_by: JobKey) -> None:
    """The request came first, although the end had another cause (M2)."""
    trial = running(spec=replace(SPEC, requeues=0))
    trial.preempt(wanted_by=wanted_by)
    trial.report(ran(5_000, saved_ms=4_500, asked_ms=4_000))
    trial.pass_by(LEASE_TTL + LEASE_MARGIN).expire()
    assert (Cause.LOST, 4_000) == (trial.lease().why, _ended(trial).kept_ms)
    trial.post(Correct(attempt=1, end_class=EndClass.USER), 2)

    assert corrected(EndClass.USER, 4_000) == trial.told()[-1]


@pytest.mark.parametrize("end_class", [EndClass.PLATFORM, EndClass.PREEMPTION])
def test_only_a_correction_to_the_jobs_own_class_charges(end_class: EndClass) -> None:
    """For other corrections the org does not check whether the credits can be charged."""
    trial = running(spec=replace(SPEC, requeues=0))
    trial.preempt(wanted_by=OWN)
    trial.report(ran(5_000, saved_ms=1_000, exit=Exit.STOPPED))
    assert 5_000 == trial.job().used
    trial.post(Correct(attempt=1, end_class=EndClass.PLATFORM), 2)
    trial.post(Correct(attempt=1, end_class=end_class), 3)

    assert corrected(end_class, 1_000) == trial.told()[-1]
    assert (1_000, 1_000) == (trial.job().ran_ms, trial.job().used)

    trial.post(Correct(attempt=1, end_class=EndClass.USER), 4)

    assert corrected(EndClass.USER, None) == trial.told()[-1]


def test_a_correction_keeps_charges_beyond_the_hold() -> None:
    """A correction loses no usage that has happened (L13)."""
    trial = running(hold_micros=17_000)
    trial.pass_by(8 * SECOND).report(ran(8_000))
    trial.pass_by(LEASE_TTL + LEASE_MARGIN).expire()
    assert (Cause.OUT_OF_CREDITS, 8_000) == (trial.lease().why, trial.job().used)
    trial.post(HoldGrew(added=10_000, until=trial.job().hold_until), 2)
    trial.report()
    trial.place()
    trial.pass_by(18 * SECOND).report(ran(18_000, fence=2), ran(12_000))
    trial.report(ran(18_000, fence=2, exit=Exit.FAILED))
    assert 30_000 == trial.job().used
    trial.post(Correct(attempt=2, end_class=EndClass.LIMIT), 3)

    assert (None, 30_000) == (trial.lease(2).kept_ms, trial.job().used)


def test_a_successful_attempt_has_no_lost_work() -> None:
    trial = running()
    trial.report(ran(5_000, saved_ms=1_000, exit=Exit.DONE))
    trial.post(Correct(attempt=1, end_class=EndClass.PLATFORM), 2)

    assert corrected(EndClass.PLATFORM, None) == trial.told()[-1]


def test_correcting_an_earlier_attempt_does_not_change_the_end_of_the_job() -> None:
    """Nor does correcting an attempt after which the job was cancelled while it waited."""
    trial = running()
    trial.report(ran(5_000, saved_ms=1_000, exit=Exit.GONE))
    trial.post(Withdraw(), 2)
    trial.post(Correct(attempt=1, end_class=EndClass.USER), 3)

    assert corrected(EndClass.USER, None, over=False) == trial.told()[-1]


@pytest.mark.parametrize("attempt", [1, 2])
def test_only_finished_jobs_can_be_corrected(attempt: int) -> None:
    """Orgs send no other corrections."""
    trial = running() if attempt == 1 else failed()
    with pytest.raises(InvariantBroken, match="cannot be corrected"):
        trial.post(Correct(attempt=attempt, end_class=EndClass.USER), 2)


def test_a_success_that_crosses_a_stop_request_counts() -> None:
    trial = running()
    trial.preempt()
    trial.report(ran(5_000, exit=Exit.DONE))

    assert JobState.SUCCEEDED is trial.job().state


def test_a_cancelled_job_that_starts_is_stopped() -> None:
    """Even before its node has reported it; the reason stays the cancellation."""
    trial = waiting()
    trial.place()
    trial.preempt()
    trial.post(Withdraw(), 2)
    [order] = trial.orders()
    assert order.stop
    trial.report(ran(0, exit=Exit.STOPPED))

    assert JobState.CANCELLED is trial.job().state
    assert EndClass.USER is _ended(trial).end_class


def _ended(trial: Trial) -> Ended:
    last = trial.told()[-1]
    assert isinstance(last, Ended)
    return last


# Gangs


def test_a_gang_ends_when_its_last_process_has() -> None:
    """Its reading is the largest of its nodes' (M2)."""
    trial = running(GANG, spec=GANG_SPEC, hold_micros=120_000)
    trial.pass_by(SECOND)
    trial.report(ran(6_000, exit=Exit.DONE))
    assert JobState.RUNNING is trial.job().state
    trial.report(ran(5_500, exit=Exit.DONE), node=N2)

    assert (JobState.SUCCEEDED, 6_000, 12_000) == (
        trial.job().state, trial.lease().run_ms, trial.job().used,
    )  # fmt: skip


def test_a_gang_that_has_lost_a_node_is_stopped() -> None:
    """Its GPUs on other nodes stay leased until their processes have ended (IS8)."""
    trial = running(GANG, spec=GANG_SPEC, hold_micros=120_000)
    while trial.now < T0 + LEASE_TTL + LEASE_MARGIN + 5 * SECOND:
        trial.pass_by(5 * SECOND).report(ran(5_000), node=N2)
    assert 1 == trial.expire()
    assert (JobState.STOPPING, True) == (trial.job().state, trial.lease().is_live)
    [order] = trial.orders(ran(5_000), node=N2)
    assert order.stop
    trial.report(ran(5_000), node=N1)  # too late: it counts as gone
    trial.report(ran(5_000, exit=Exit.STOPPED), node=N2)

    assert (JobState.QUEUED, Cause.LOST) == (trial.job().state, trial.job().why)


@pytest.mark.parametrize("failed_first", [True, False])
def test_a_gang_that_fails_because_it_has_lost_a_node_is_lost(failed_first: bool) -> None:
    """The other processes fail without the lost one: that is not the user's failure (M3)."""
    trial = running(GANG, spec=GANG_SPEC, hold_micros=120_000)
    if failed_first:
        trial.report(ran(5_000, exit=Exit.FAILED), node=N2)
        assert Cause.FAILED is trial.lease().stop_reason
    while trial.now < T0 + LEASE_TTL + LEASE_MARGIN + 5 * SECOND:
        reading = () if failed_first else (ran(5_000),)
        trial.pass_by(5 * SECOND).report(*reading, node=N2)
    trial.expire()
    if not failed_first:
        trial.report(ran(5_000, exit=Exit.FAILED), node=N2)

    assert (Cause.LOST, JobState.QUEUED) == (trial.lease().why, trial.job().state)
    assert (EndClass.PLATFORM, 0) == (_ended(trial).end_class, _ended(trial).kept_ms)


def test_a_gang_that_loses_a_node_as_its_hold_ends_has_not_failed() -> None:
    trial = running(GANG, spec=GANG_SPEC, hold_micros=120_000, hold_until=T0 + 24 * SECOND)
    trial.report(ran(5_000, exit=Exit.FAILED), node=N2)
    trial.report(ran(5_000), node=N1)
    trial.pass_by(20 * SECOND + LEASE_MARGIN).expire()

    assert (Cause.TIME_UP, JobState.EXPIRED) == (trial.lease().why, trial.job().state)


@pytest.mark.parametrize(
    ("codes", "told"), [((0, 0), 0), ((0, 3), 3), ((None, 3), 3), ((0, None), None)]
)
def test_the_exit_code_is_that_of_the_first_failed_process(
    codes: tuple[int | None, ...], told: int | None
) -> None:
    trial = running(GANG, spec=GANG_SPEC, hold_micros=120_000)
    for node, code in zip((N1, N2), codes, strict=True):
        trial.report(replace(ran(5_000, exit=Exit.DONE), exit_code=code), node=node)

    assert told == _ended(trial).exit_code


# Time and credits


def test_a_job_is_asked_to_stop_in_time() -> None:
    """One grace period before its maximum run time (M1)."""
    trial = running(run_ms=16_000)
    trial.pass_by(SECOND)
    [order] = trial.orders(ran(6_000))
    assert order.stop
    trial.report(ran(6_000, exit=Exit.KILLED))

    assert (JobState.EXPIRED, EndClass.LIMIT) == (trial.job().state, _ended(trial).end_class)


def test_a_job_is_asked_to_stop_before_its_hold_ends() -> None:
    """This is the job's own limit: nothing is refunded, and it does not wait again (M3)."""
    trial = running(hold_until=T0 + 20 * SECOND)
    [order] = trial.orders(ran(5_000))
    assert not order.stop
    trial.pass_by(5 * SECOND)
    [order] = trial.orders(ran(10_000))
    assert order.stop
    trial.pass_by(9 * SECOND)
    trial.report(ran(19_000, saved_ms=10_000, exit=Exit.STOPPED))

    assert (JobState.EXPIRED, Cause.TIME_UP) == (trial.job().state, trial.job().why)
    assert (EndClass.LIMIT, None, True) == (
        _ended(trial).end_class, _ended(trial).kept_ms, _ended(trial).job_finished,
    )  # fmt: skip


@pytest.mark.parametrize("exit", [Exit.KILLED, None])
def test_an_attempt_that_ends_with_its_hold_is_not_lost(exit: Exit | None) -> None:
    """Its lease could not be renewed, whatever its node reports."""
    trial = running(hold_until=T0 + 16 * SECOND)
    trial.pass_by(10 * SECOND)
    if exit is not None:
        trial.report(ran(15_000, exit=exit))
    trial.pass_by(SECOND + LEASE_MARGIN)
    trial.expire()

    assert (JobState.EXPIRED, Cause.TIME_UP) == (trial.job().state, trial.job().why)


def test_a_node_that_is_lost_long_before_the_hold_ends_is_lost() -> None:
    trial = running(hold_until=T0 + 26 * SECOND)
    trial.pass_by(LEASE_TTL + LEASE_MARGIN).expire()

    assert (JobState.QUEUED, Cause.LOST) == (trial.job().state, trial.job().why)


def test_a_job_out_of_credits_stops_and_continues_after_a_top_up() -> None:
    """M5."""
    trial = running(hold_micros=15_000)
    assert JobState.STOPPING is trial.job().state
    trial.report(ran(5_000, exit=Exit.STOPPED))
    assert (JobState.OUT_OF_CREDITS, False) == (trial.job().state, _ended(trial).job_finished)
    assert Denied.NOT_QUEUED is trial.place()
    trial.post(HoldGrew(added=0, until=T0 + HOUR), 2)
    assert (JobState.OUT_OF_CREDITS, T0 + HOUR) == (trial.job().state, trial.job().hold_until)
    trial.post(GROWN, 3)

    assert (JobState.QUEUED, Cause.TOPPED_UP) == (trial.job().state, trial.job().why)
    lease = trial.place()
    assert isinstance(lease, Lease)
    assert 40_000 == lease.run_ms_max


def test_a_job_that_was_topped_up_while_it_stopped_waits_at_once() -> None:
    trial = running(hold_micros=15_000)
    trial.post(GROWN, 2)
    assert 45_000 == trial.lease().run_ms_max
    trial.report(ran(5_000, exit=Exit.STOPPED))

    assert (JobState.QUEUED, Cause.TOPPED_UP) == (trial.job().state, trial.job().why)


def test_run_time_of_earlier_attempts_counts_for_a_free_job() -> None:
    """The maximum run time covers all attempts (M1)."""
    trial = running(rates=(("H100", 0),))
    trial.preempt()
    trial.report(ran(5_000, saved_ms=4_000, exit=Exit.KILLED))
    again = trial.place()

    assert isinstance(again, Lease)
    assert 56_000 == again.run_ms_max


def test_a_preempted_job_without_credits_for_another_run_waits_for_them() -> None:
    """It would have to stop before it has started."""
    trial = running(hold_micros=16_000)
    trial.preempt()
    trial.pass_by(2 * SECOND)
    trial.report(ran(6_500, saved_ms=6_500, exit=Exit.STOPPED))
    poor = waiting(hold_micros=10_000)

    assert (Cause.PREEMPTED, JobState.OUT_OF_CREDITS) == (trial.lease().why, trial.job().state)
    assert (JobState.OUT_OF_CREDITS, Cause.OUT_OF_CREDITS) == (poor.job().state, poor.job().why)


def test_a_waiting_job_is_dropped_when_its_hold_ends() -> None:
    trial = waiting()
    trial.pass_by(10 * MINUTE - 1)
    assert 0 == trial.expire()
    trial.pass_by(1)
    assert 1 == trial.expire()
    assert 0 == trial.expire()

    assert JobState.EXPIRED is trial.job().state
    assert [Dropped(end_class=EndClass.LIMIT, why=Cause.HOLD_ENDED)] == trial.told()


def test_a_started_job_that_fits_no_node_any_more_ends_with_its_hold() -> None:
    """It cannot move to another pool, so only its hold ends it (M4, S10)."""
    trial = running()
    trial.pass_by(LEASE_TTL + LEASE_MARGIN)
    trial.expire()
    work = trial.work()
    work.remove_node(N1)
    work.remove_node(N2)
    work.commit()
    assert JobState.QUEUED is trial.job().state
    trial.pass_by(trial.job().hold_until - trial.now)
    trial.expire()

    assert JobState.EXPIRED is trial.job().state
    assert Dropped(end_class=EndClass.LIMIT, why=Cause.HOLD_ENDED) == trial.told()[-1]


def test_late_usage_leaves_less_for_the_running_attempt() -> None:
    """One hold pays for both (IS9)."""
    trial = running(hold_micros=30_000, run_ms=100_000, spec=replace(SPEC, requeues=9))
    trial.pass_by(16 * SECOND)
    trial.report(ran(21_000))
    assert JobState.STOPPING is trial.job().state
    trial.pass_by(LEASE_TTL + LEASE_MARGIN)
    trial.expire()
    assert (JobState.OUT_OF_CREDITS, 21_000) == (trial.job().state, trial.job().used)
    trial.report()
    trial.post(GROWN, 2)
    lease = trial.place()
    assert isinstance(lease, Lease)
    assert 39_000 == lease.run_ms_max
    trial.report(ran(29_000, exit=Exit.KILLED))

    assert (29_000, 31_000) == (trial.job().used, trial.lease(2).run_ms_max)


# Clocks


@pytest.mark.parametrize(
    ("rate", "span", "differ"),
    [
        (100, 10 * MINUTE, False),
        (99, 10 * MINUTE, False),
        (101, 10 * MINUTE, False),
        (90, 10 * MINUTE, True),
        (110, 10 * MINUTE, True),
        (50, 25 * SECOND, False),  # too short to tell
        (50, MINUTE, True),
    ],
)
def test_a_clock_at_the_wrong_rate_is_noticed(rate: int, span: int, differ: bool) -> None:
    """With any delay of messages: only a certain difference counts (IS7, N2)."""
    first = ClockSample(sent_at=0, answered_at=T0 - SECOND, received_at=T0 + SECOND)
    second = ClockSample(
        sent_at=span * rate // 100, answered_at=T0 + span - SECOND, received_at=T0 + span + SECOND
    )

    assert differ is clocks_differ(first, second)


def test_a_node_with_a_wrong_clock_gets_no_new_leases() -> None:
    trial = waiting()
    machine = _beats(trial, rate=50)

    assert machine.wrong_clock
    assert Denied.NODE_SILENT is trial.place()


def test_an_operator_can_accept_a_node_with_a_wrong_clock_again() -> None:
    """As when the pool's clock was corrected; the clocks are compared again (IS7)."""
    trial = waiting()
    assert _beats(trial, rate=50).wrong_clock
    work = trial.work()
    assert rules.set_node_state(work, N1, NodeState.READY)
    work.commit()
    assert (False, None) == (
        trial.pool.machines[N1].wrong_clock,
        trial.pool.machines[N1].clock_sample,
    )
    assert not _beats(trial, rate=100, boot=2).wrong_clock
    assert isinstance(trial.place(), Lease)
    assert _beats(trial, rate=50, boot=3).wrong_clock, "it still has to be right"


def test_clocks_are_compared_within_one_start_of_the_agent() -> None:
    """A node that was switched off starts its clock again."""
    trial = waiting()
    _beats(trial, rate=100)
    machine = _beats(trial, rate=100, boot=2)

    assert not machine.wrong_clock
    assert machine.clock_sample is not None
    assert 0 == machine.clock_sample.sent_at


def _beats(trial: Trial, rate: int, boot: int = 1) -> PoolNode:
    began = trial.now
    for n in range(100, 120):
        at = (trial.now - began) * rate // 100
        told = NodeReport(node=N1, boot=boot, number=n, at=at, answered_at=trial.now)
        work = trial.work()
        receive_report(work, told)
        work.commit()
        trial.pass_by(5 * SECOND)
    return trial.pool.machines[N1]


# What the leader writes


def test_possible_decisions_of_a_plan_are_written_and_others_denied() -> None:
    """A denial shows that the leader's memory is out of date (S11)."""
    trial = running()
    other, third = ("rival", JobId("job")), ("rival", JobId("third"))
    for one in (other, third):
        trial.post(asking(), 1, one)
    start = Start(job=cluster_name(third), gpu_type="H100", pieces=_gpu(1), why=Turn.TURN)
    ask = Preempt(
        job=cluster_name(JOB),
        wanted_by=cluster_name(other),
        right="share",
        lost=0,
        stops_at=trial.now,
    )
    keep = EarmarkGpus(
        job=cluster_name(other), gpu_type="H100", pieces=ON_N1, victims=(cluster_name(JOB),)
    )
    promise = Promise(job=cluster_name(other), at=trial.now + HOUR, since=trial.now, nodes=())
    work = trial.work()
    written = rules.carry_out(work, trial.epoch, [start, ask, keep, promise])
    work.commit()
    assert ([third], [JOB], ()) == (
        [lease.key for lease in written.placed], list(written.stopping), written.denied,
    )  # fmt: skip
    assert Cause.PREEMPTED is trial.lease().stop_reason
    mark = trial.job(other).earmark
    assert mark is not None
    assert (cluster_name(other), ON_N1, (cluster_name(JOB),)) == (
        mark.job,
        mark.pieces,
        mark.victims,
    )

    again = rules.carry_out(trial.work(), trial.epoch + 1, [start, ask, keep])
    assert ((), (), (Denied.EPOCH_STALE,) * 3, 0) == again


def test_no_job_is_preempted_for_a_cancelled_one() -> None:
    """It was cancelled while the plan was made (S5)."""
    trial = running()
    other = "rival", JobId("job")
    trial.post(asking(), 1, other)
    trial.post(Withdraw(), 2, other)
    ask = Preempt(
        job=cluster_name(JOB),
        wanted_by=cluster_name(other),
        right="share",
        lost=0,
        stops_at=trial.now,
    )
    keep = EarmarkGpus(
        job=cluster_name(other), gpu_type="H100", pieces=ON_N1, victims=(cluster_name(JOB),)
    )
    unknown = replace(keep, job=cluster_name(("rival", JobId("unknown"))))

    written = rules.carry_out(trial.work(), trial.epoch, [ask, keep, unknown])

    assert ((), (Denied.NOT_QUEUED,) * 3) == (written.stopping, written.denied)
    assert trial.lease().stop_reason is None


def test_an_earmark_stays_until_its_job_starts_or_cannot_start() -> None:
    """Otherwise it would be tried again and again (S5)."""
    for other_takes_it in (False, True):
        trial = waiting()
        mark = EarmarkGpus(job=cluster_name(JOB), gpu_type="H100", pieces=ON_N1, victims=())
        work = trial.work()
        rules.carry_out(work, trial.epoch, [mark])
        work.commit()
        if other_takes_it:
            trial.post(asking(), 1, OTHER)
            trial.place(key=OTHER)
        start = Start(job=cluster_name(JOB), gpu_type="H100", pieces=ON_N1, why=Turn.FREED)
        assert trial.job().earmark is not None
        assert (Denied.EPOCH_STALE,) == rules.carry_out(trial.work(), 0, [start]).denied
        work = trial.work()
        written = rules.carry_out(work, trial.epoch, [start])
        work.commit()
        assert other_takes_it == (written.denied == (Denied.SLOT_TAKEN,))
        assert trial.job().earmark is None


# Nodes


def test_a_node_can_be_updated_except_for_gpus_in_use() -> None:
    trial = running()
    node = trial.pool.machines[N1].node
    work = trial.work()

    assert rules.register_node(work, node) is None
    assert {} == work.machines_new
    assert Denied.NODE_BUSY is rules.register_node(work, replace(node, gpus=4))
    assert rules.register_node(work, replace(node, labels=("nvme",))) is None
    assert rules.register_node(work, replace(node, id=NodeId("n3"))) is None
    work.commit()
    assert (("nvme",), 2) == (trial.pool.machines[N1].node.labels, node.gpus)
    assert NodeId("n3") in trial.pool.machines


def test_an_attempt_that_its_node_never_started_has_no_run_time() -> None:
    """Its node has no process for it: start and end are reported, without run time."""
    trial = waiting()
    trial.place()
    trial.pass_by(SECOND).report(ran(0, exit=Exit.GONE))

    assert Started(attempt=1, gpu_type="H100", started_at=T0, run_ms=60_000) == trial.told()[0]
    assert 0 == _ended(trial).run_ms


def test_the_run_time_of_a_process_that_was_cut_off_counts() -> None:
    trial = waiting()
    trial.place()
    trial.pass_by(5 * SECOND).report(ran(3_000, exit=Exit.GONE))

    started = trial.told()[0]
    assert isinstance(started, Started)
    assert T0 + 2 * SECOND == started.started_at
    assert (3_000, 0) == (_ended(trial).run_ms, _ended(trial).kept_ms)


def test_a_hold_that_is_extended_at_its_end_has_not_ended() -> None:
    trial = waiting()
    trial.pass_by(10 * MINUTE)
    work = trial.work()
    rules.receive(work, JobMessage(*JOB, 2, HoldGrew(added=0, until=T0 + HOUR)))

    assert 0 == rules.expire(work)
