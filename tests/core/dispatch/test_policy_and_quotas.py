"""A scheduler's cluster under the policy and the quota slices of its pool (B4, S3)."""

from bursar.core.dispatch.cluster_sync import ClusterMirror, convert_usage
from bursar.core.dispatch.state import Exit, Lease, PolicyInForce, cluster_name
from bursar.core.ids import JobId
from bursar.core.instant import DAY, HOUR, MINUTE
from bursar.core.quota_slices import GPUS, NOTHING, Slice
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.policy import PAID, PoolPolicy, Share
from bursar.core.scheduling.model.recording import replay_step
from bursar.core.scheduling.plan import carry_out
from bursar.core.value import replace
from tests.support.dispatch_pool import JOB, Trial, asking, ran, running, waiting

NAME = cluster_name(JOB)
SECOND_JOB = "acme", JobId("second")
QUOTA = "quota acme/q"
SHIPPED = PoolPolicy(tiers=(PAID,))
ONE = Slice(org="acme", quota="q", n=1, granted=((GPUS, 1),), limits=((GPUS, 8),))
HEAVY = PolicyInForce(n=7, policy=PoolPolicy(tiers=(replace(PAID, weight=9),)))


def follower(trial: Trial) -> ClusterMirror:
    found = ClusterMirror(SHIPPED, trial.now)
    found.follow(trial.pool, trial.pool.jobs, trial.now)
    trial.pool.forget_finished()
    return found


def followed(found: ClusterMirror, trial: Trial) -> bool:
    news = found.follow(trial.pool, trial.pool.changed_jobs, trial.now)
    trial.pool.forget_finished()
    return news


def told(trial: Trial, *slices: Slice, policy: PolicyInForce | None = None) -> None:
    work = trial.work()
    for one in slices:
        work.quotas.put_slice(one)
    if policy is not None:
        work.adopt(policy)
    work.commit()


def limits(cluster: Cluster) -> dict[str, Share]:
    return dict(cluster.policy.limits)


def test_a_new_follower_has_the_policy_and_all_slices() -> None:
    trial = running()
    told(trial, ONE, policy=HEAVY)
    cluster = follower(trial).cluster

    assert 9 == cluster.policy.tiers[0].weight
    assert {QUOTA: Share(ceiling=(("*", 1),))} == limits(cluster)
    assert (QUOTA,) == cluster.running[NAME].job.limit_names
    assert 1_000 == cluster.tree.groups.limits[QUOTA].used["*"]


def test_a_new_policy_applies_at_once_and_keeps_the_cluster() -> None:
    """Past usage, running and waiting jobs, and dates stay (S3)."""
    trial = running()
    found = follower(trial)
    trial.pass_by(MINUTE)
    trial.report(ran(6_000, exit=Exit.DONE))
    trial.post(asking(), 1, SECOND_JOB)
    followed(found, trial)
    before = found.cluster.snapshot()
    assert before.usage
    told(trial, policy=HEAVY)

    assert followed(found, trial)

    assert replace(before, policy=HEAVY.policy) == found.cluster.snapshot()
    assert not followed(found, trial)


def test_a_new_half_life_keeps_the_current_usage() -> None:
    """It fades at the new rate from now on (S3)."""
    trial = running()
    found = follower(trial)
    trial.pass_by(HOUR)
    trial.report(ran(6_000, exit=Exit.DONE))
    followed(found, trial)
    tree = found.cluster.tree
    before = tree.usage.decayed_usage(tree.groups.root, trial.now)
    told(trial, policy=PolicyInForce(n=1, policy=replace(SHIPPED, half_life=5)))
    followed(found, trial)

    tree = found.cluster.tree
    after = tree.usage.decayed_usage(tree.groups.root, trial.now)
    assert before > 0
    assert abs(before - after) <= 1
    snapshot = found.cluster.snapshot()
    assert snapshot.usage == convert_usage(snapshot, 5)


def test_a_slice_that_grows_lets_the_next_job_start() -> None:
    trial = running()
    trial.post(asking(), 1, SECOND_JOB)
    told(trial, ONE)
    found = follower(trial)
    told_before = found.recorder
    assert () == carry_out(found.cluster, trial.now).decisions

    told(trial, replace(ONE, n=2, granted=((GPUS, 2),)))
    assert followed(found, trial)

    assert told_before is found.recorder, "a ceiling changes in place"
    assert 1 == len(carry_out(found.cluster, trial.now).decisions)


def test_a_new_slice_counts_existing_jobs() -> None:
    trial = running()
    trial.post(asking(), 1, SECOND_JOB)
    found = follower(trial)
    told(trial, ONE)
    assert followed(found, trial)

    assert () == carry_out(found.cluster, trial.now).decisions
    trial.report(ran(6_000, exit=Exit.DONE))
    assert followed(found, trial)
    assert 1 == len(carry_out(found.cluster, trial.now).decisions)


def test_a_job_under_an_unknown_quota_waits_for_its_slice() -> None:
    trial = waiting(quotas=("q",))
    found = follower(trial)
    assert {QUOTA: NOTHING} == limits(found.cluster)
    assert () == carry_out(found.cluster, trial.now).decisions
    told(trial, ONE)
    followed(found, trial)

    assert {QUOTA: Share(ceiling=(("*", 1),))} == limits(found.cluster)
    assert 1 == len(carry_out(found.cluster, trial.now).decisions)


def test_a_quota_of_several_jobs_is_added_to_the_cluster_once() -> None:
    trial = waiting(quotas=("q",))
    trial.post(asking(quotas=("q",)), 1, SECOND_JOB)

    assert {QUOTA: NOTHING} == limits(follower(trial).cluster)


def test_ceilings_that_change_are_replayed() -> None:
    """Like all inputs of a cluster (S14)."""
    trial = running()
    trial.post(asking(), 1, SECOND_JOB)
    told(trial, ONE)
    found = follower(trial)
    found.recorder.begin_window()
    told(trial, replace(ONE, n=2, granted=((GPUS, 2),)))
    followed(found, trial)
    found.recorder.record_decisions(carry_out(found.cluster, trial.now).decisions)
    recorded = found.recorder.take()
    assert recorded.snapshot is not None
    again = Cluster.from_snapshot(recorded.snapshot)

    [step] = recorded.steps
    assert step.decisions
    assert step.decisions == replay_step(again, step)
    assert found.cluster.snapshot() == again.snapshot()


def test_a_finished_job_leaves_the_cluster_before_the_policy_changes() -> None:
    """A job that the pool has dropped and the cluster has not stays unchanged."""
    trial = running()
    found = follower(trial)
    trial.report(ran(6_000, exit=Exit.DONE))
    told(trial, policy=HEAVY)
    del trial.pool.jobs[JOB]
    trial.pool.changed_jobs.clear()

    assert found.follow(trial.pool, (), trial.now)
    assert () == found.cluster.running[NAME].job.limit_names


def faded(found: ClusterMirror, trial: Trial) -> int:
    tree = found.cluster.tree
    return tree.usage.decayed_usage(tree.groups.root, trial.now)


def test_a_new_leader_knows_the_past_usage_of_users() -> None:
    """As well as the one before it, whatever has ended and faded meanwhile (S3)."""
    trial = running()
    found = follower(trial)
    trial.pass_by(HOUR)
    trial.report(ran(6_000, exit=Exit.DONE))
    followed(found, trial)
    trial.pass_by(DAY)
    for number in range(2):  # in one transaction after the other
        key = "acme", JobId(f"later {number}")
        trial.report()
        trial.post(asking(hold_until=trial.now + HOUR), 1, key)
        lease = trial.place(key=key)
        assert isinstance(lease, Lease)
        followed(found, trial)
        trial.pass_by(MINUTE)
        trial.report(ran(5_000, fence=lease.fence, exit=Exit.DONE))
        followed(found, trial)

    new = follower(trial)

    known = faded(found, trial)
    assert known > 0
    assert abs(known - faded(new, trial)) <= 3
    assert [path for path, _ in found.cluster.snapshot().usage] == [
        path for path, _ in new.cluster.snapshot().usage
    ]
