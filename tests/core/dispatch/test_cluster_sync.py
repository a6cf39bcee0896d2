"""A scheduler's cluster follows the pool, whichever process has changed it (S11)."""

from bursar.core.dispatch import pool as rules
from bursar.core.dispatch.cluster_sync import ClusterMirror, describe_job
from bursar.core.dispatch.job_lifecycle import JobState
from bursar.core.dispatch.state import Exit, Lease, cluster_name
from bursar.core.ids import JobId
from bursar.core.instant import MINUTE, SECOND
from bursar.core.leases import LEASE_TTL
from bursar.core.messages import HoldGrew, Withdraw
from bursar.core.scheduling.decisions import EarmarkGpus, Preempt, Start
from bursar.core.scheduling.model.jobs import Shape
from bursar.core.scheduling.model.nodes import NodeState, Piece
from bursar.core.scheduling.model.policy import PAID, PoolPolicy
from bursar.core.scheduling.plan import carry_out
from bursar.core.value import replace
from tests.support.builders import PER_MS
from tests.support.dispatch_pool import (
    GANG_SPEC,
    JOB,
    N1,
    N2,
    SPEC,
    Trial,
    asking,
    ran,
    running,
    waiting,
)

NAME = cluster_name(JOB)


def follower(trial: Trial) -> ClusterMirror:
    found = ClusterMirror(PoolPolicy(tiers=(PAID,)), trial.now)
    found.follow(trial.pool, trial.pool.changed_jobs, trial.now)
    return found


def test_a_new_leader_finds_waiting_and_running_jobs() -> None:
    trial = running()
    trial.post(asking(), 1, ("acme", JobId("other")))
    cluster = follower(trial).cluster

    assert ([NAME], [cluster_name(("acme", JobId("other")))]) == (
        list(cluster.running),
        list(cluster.waiting),
    )
    assert 60 * SECOND == cluster.running[NAME].job.run_max


BIG = "acme", JobId("big")  # needs both GPUs of a node
SECOND_JOB = "acme", JobId("second")


def making_room() -> Trial:
    """Two jobs on the first node were asked to stop for a third."""
    trial = running()
    trial.post(asking(), 1, SECOND_JOB)
    trial.place((Piece(N1, (1,), 1),), key=SECOND_JOB)
    shape = replace(SPEC.shape, gpus=2)
    trial.post(asking(spec=replace(SPEC, shape=shape)), 1, BIG)
    work = trial.work()
    asks = [
        Preempt(job=victim, wanted_by=cluster_name(BIG), right="class", lost=0, stops_at=trial.now)
        for victim in VICTIMS
    ]
    written = rules.carry_out(work, trial.epoch, [*asks, KEPT])
    work.commit()
    assert () == written.denied
    return trial


VICTIMS = (NAME, cluster_name(SECOND_JOB))
KEPT = EarmarkGpus(
    job=cluster_name(BIG), gpu_type="H100", pieces=(Piece(N1, (0, 1), 1),), victims=VICTIMS
)  # fmt: skip


def test_earmarked_gpus_go_to_their_job_under_a_new_leader() -> None:
    """Also if a job with a better turn has arrived and one of two victims has left (S5, S11)."""
    trial = making_room()
    stands_by = follower(trial)
    trial.post(asking(spec=replace(SPEC, priority_class=10)), 1, ("acme", JobId("small")))
    for gpu in (0, 1):  # nothing else is free
        other = "acme", JobId(f"other-{gpu}")
        trial.post(asking(), 1, other)
        trial.place((Piece(N2, (gpu,), 1),), key=other)
    trial.report(ran(0, 1, exit=Exit.STOPPED))
    for found in (follower(trial), stands_by):
        found.follow(trial.pool, trial.pool.changed_jobs, trial.now)
        assert [cluster_name(BIG)] == list(found.cluster.earmarks)
        assert () == carry_out(found.cluster, trial.now).decisions
    trial.report(ran(0, 2, exit=Exit.STOPPED))
    for found in (follower(trial), stands_by):
        found.follow(trial.pool, trial.pool.changed_jobs, trial.now)
        [start] = carry_out(found.cluster, trial.now).decisions
        assert isinstance(start, Start)
        assert (KEPT.job, KEPT.pieces) == (start.job, start.pieces)


def test_an_earmark_on_gpus_that_other_jobs_have_is_dropped() -> None:
    """As on a node that was silent for a while, or cannot be used."""
    trial = making_room()
    trial.report(ran(0, 1, exit=Exit.STOPPED))
    other = "acme", JobId("other")
    trial.post(asking(), 1, other)
    trial.place(key=other)
    assert {} == follower(trial).cluster.earmarks
    for wrong in (
        {"state": NodeState.DRAINING},
        {"gpus": 1},
    ):
        trial = making_room()
        for fence in (1, 2):
            trial.report(ran(0, fence, exit=Exit.STOPPED))
        machine = trial.pool.machines[N1]
        trial.pool.machines[N1] = replace(machine, node=replace(machine.node, **wrong))
        assert {} == follower(trial).cluster.earmarks
    del trial.pool.machines[N1]
    assert {} == follower(trial).cluster.earmarks


def test_an_earmark_stays_when_the_hold_grows() -> None:
    """The job is described again, and waits for the same GPUs."""
    trial = making_room()
    found = follower(trial)
    trial.post(HoldGrew(added=1_000_000, until=trial.now + 20 * MINUTE), 2, BIG)

    found.follow(trial.pool, trial.pool.changed_jobs, trial.now)

    assert [cluster_name(BIG)] == list(found.cluster.earmarks)


def test_following_without_changes_reports_none() -> None:
    trial = running()
    found = follower(trial)

    assert not found.follow(trial.pool, trial.pool.changed_jobs, trial.now)
    trial.report(ran(5_000))
    assert not found.follow(trial.pool, trial.pool.changed_jobs, trial.now)


def test_the_leaders_own_decisions_are_no_changes() -> None:
    trial = waiting()
    found = follower(trial)
    [start] = carry_out(found.cluster, trial.now).decisions
    assert isinstance(start, Start)
    lease = trial.place(start.pieces)
    assert isinstance(lease, Lease)
    found.add_leases([lease])

    assert not found.follow(trial.pool, trial.pool.changed_jobs, trial.now)


def test_ends_and_cancellations_are_followed() -> None:
    trial = running()
    found = follower(trial)
    trial.report(ran(5_000, exit=Exit.GONE))
    assert found.follow(trial.pool, trial.pool.changed_jobs, trial.now)
    assert ({}, [NAME]) == (found.cluster.running, list(found.cluster.waiting))
    trial.post(Withdraw(), 2)

    assert found.follow(trial.pool, trial.pool.changed_jobs, trial.now)
    assert ({}, {}) == (found.cluster.running, found.cluster.waiting)


def test_a_new_attempt_of_a_job_replaces_the_old_one() -> None:
    """Even if both its end and its start were missed: it may be on other nodes."""
    trial = running()
    found = follower(trial)
    trial.report(ran(5_000, exit=Exit.GONE))
    trial.report(node=N2)
    piece = Piece(N2, (1,), 1)
    trial.place((piece,))

    assert found.follow(trial.pool, trial.pool.changed_jobs, trial.now)
    assert (piece,) == found.cluster.running[NAME].pieces


def test_a_job_with_a_stop_request_is_stopping_in_the_cluster() -> None:
    trial = running()
    found = follower(trial)
    trial.post(Withdraw(), 2)

    assert found.follow(trial.pool, trial.pool.changed_jobs, trial.now)
    assert found.cluster.running[NAME].stops_at is not None
    trial.report(ran(5_000))
    assert not found.follow(trial.pool, trial.pool.changed_jobs, trial.now)
    assert follower(trial).cluster.running[NAME].stops_at is not None


def test_a_silent_node_is_dead_until_it_reports() -> None:
    """IS15."""
    trial = waiting()
    found = follower(trial)
    trial.pass_by(LEASE_TTL)
    trial.report(node=N2)
    assert found.follow(trial.pool, trial.pool.changed_jobs, trial.now)
    states = {node: one.node.state for node, one in found.cluster.nodes.by_id.items()}
    assert {N1: NodeState.DEAD, N2: NodeState.READY} == states
    trial.report(node=N1)

    assert found.follow(trial.pool, trial.pool.changed_jobs, trial.now)
    assert NodeState.READY is found.cluster.nodes.by_id[N1].node.state


def test_a_job_out_of_credits_does_not_wait_in_the_cluster() -> None:
    trial = waiting(hold_micros=10_000)
    found = follower(trial)
    assert {} == found.cluster.waiting
    trial.post(HoldGrew(added=50_000, until=0), 2)

    assert found.follow(trial.pool, trial.pool.changed_jobs, trial.now)
    assert [NAME] == list(found.cluster.waiting)


def test_typical_shapes_are_those_of_recent_submissions() -> None:
    """A leader counts all jobs it finds; a job that waits again does not count twice (S6)."""
    trial = running()
    found = follower(trial)
    trial.post(asking(spec=GANG_SPEC), 1, ("acme", JobId("gang")))
    found.follow(trial.pool, trial.pool.changed_jobs, trial.now)
    assert ((SPEC.shape, 2),) == found.cluster.fragments.typical, "one of each: tasks are alike"
    trial.report(ran(5_000, exit=Exit.GONE))
    found.follow(trial.pool, trial.pool.changed_jobs, trial.now)

    assert ((SPEC.shape, 2),) == found.cluster.snapshot().typical
    assert ((SPEC.shape, 1),) == follower(running()).cluster.fragments.typical


def test_a_job_that_exceeds_its_estimate_has_none() -> None:
    trial = running(spec=replace(SPEC, estimate_ms=20_000))
    trial.report(ran(5_000, saved_ms=5_000, exit=Exit.GONE))
    left = follower(trial).cluster.waiting[NAME].estimate
    late = running(spec=replace(SPEC, estimate_ms=5_000))
    late.report(ran(5_000, saved_ms=5_000, exit=Exit.GONE))

    assert (15 * SECOND, None) == (left, follower(late).cluster.waiting[NAME].estimate)


def test_a_job_starts_again_where_its_credits_last() -> None:
    """Its hold was reduced for the type it first ran on; a larger hold allows the others again."""
    types = ("A100", "H100")
    spec = replace(SPEC, shape=Shape(types=types))
    rates = (("A100", PER_MS), ("H100", 2 * PER_MS))
    trial = waiting(spec=spec, rates=rates, hold_micros=60_000)
    found = follower(trial)
    assert ("A100",) == found.cluster.waiting[NAME].shape.types
    promised = replace(found.cluster.waiting[NAME], promised_at=trial.now + SECOND)
    found.cluster.withdraw(NAME)
    found.cluster.enqueue(promised)
    trial.post(HoldGrew(added=60_000, until=0), 2)

    assert found.follow(trial.pool, trial.pool.changed_jobs, trial.now)
    again = found.cluster.waiting[NAME]
    assert (types, promised.promised_at) == (again.shape.types, again.promised_at)
    assert not found.follow(trial.pool, trial.pool.changed_jobs, trial.now)


def test_a_rolling_job_runs_on_every_type_that_its_credits_pay_for_a_while() -> None:
    rates = (("A100", PER_MS), ("H100", 10 * PER_MS))
    spec = replace(SPEC, shape=Shape(types=("A100", "H100")))

    assert ("A100",) == describe_job(
        waiting(spec=spec, rates=rates, hold_micros=30_000).job()
    ).shape.types


def test_late_usage_may_take_a_queued_job_out_of_the_cluster() -> None:
    """Then it waits for credits, and the leader plans without it."""
    trial = waiting(hold_micros=13_000)
    trial.place()
    trial.pass_by(5 * SECOND).report(ran(2_000))
    trial.preempt(wanted_by=("acme", JobId("another")))
    trial.report(ran(2_000, exit=Exit.KILLED))
    found = follower(trial)
    assert [NAME] == list(found.cluster.waiting)
    trial.report(ran(5_000, exit=Exit.KILLED))

    assert JobState.OUT_OF_CREDITS is trial.job().state
    assert found.follow(trial.pool, trial.pool.changed_jobs, trial.now)
    assert {} == found.cluster.waiting
    trial.post(HoldGrew(added=10_000, until=0), 2)
    assert JobState.QUEUED is trial.job().state


def test_a_job_that_is_lost_at_its_start_backs_off_longer_each_time() -> None:
    """A node that cannot start anything must not use up a job's attempts at once."""
    trial = waiting(spec=replace(SPEC, requeues=20))
    pauses = []
    for number in range(1, 13):
        trial.report()
        trial.place()
        trial.report(ran(0, number, exit=Exit.GONE))
        pauses.append(describe_job(trial.job()).not_before - trial.now)

    assert [2 * SECOND, 4 * SECOND, 8 * SECOND] == pauses[:3]
    assert [5 * MINUTE] * 4 == pauses[-4:]
    trial.report()
    trial.place()
    trial.pass_by(11 * SECOND)
    trial.report(ran(10_000, 13, exit=Exit.GONE))
    assert 0 == describe_job(trial.job()).not_before
