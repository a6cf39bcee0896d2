"""How much of its org's quotas a pool's jobs use, through transactions (B4)."""

from bursar.core.dispatch import pool as rules
from bursar.core.dispatch.policies import DEFAULT_POLICY, find_objection
from bursar.core.dispatch.state import Exit, Lease, PolicyInForce, Pool, PoolTransaction
from bursar.core.ids import AccountId, JobId
from bursar.core.leases import Denied
from bursar.core.messages import Withdraw
from bursar.core.quota_slices import GPUS, JOBS, Slice, SliceReport, type_key
from bursar.core.scheduling.model.nodes import Piece
from bursar.core.scheduling.model.policy import FREE, PAID, PoolPolicy, Share
from bursar.core.value import replace
from tests.support.dispatch_pool import JOB, N1, N2, Trial, asking, ran, running, waiting

SECOND_JOB = "acme", JobId("second")
ON_N2 = (Piece(N2, (0,), 1),)
ONE = Slice(
    org="acme", quota="q", n=1, account="root", granted=((GPUS, 1),), limits=((GPUS, 1),)
)  # fmt: skip
HAS_ONE = ((GPUS, 1), (type_key("H100"), 1), (JOBS, 1))


def told(pool: Trial, *slices: Slice) -> None:
    """Give slices to the pool, in one transaction."""
    work = pool.work()
    for one in slices:
        work.quotas.put_slice(one)
    work.commit()


def seen(trial: Trial, quota: str = "q") -> SliceReport:
    return trial.pool.quota_usage.report_of("acme")[quota]


def test_waiting_and_running_jobs_count_once_the_pool_has_a_slice() -> None:
    trial = running()
    trial.post(asking(), 1, SECOND_JOB)
    told(trial, ONE)

    two = ((GPUS, 2), (type_key("H100"), 2), (JOBS, 2))
    assert SliceReport(n=1, used=HAS_ONE, wanted=two) == seen(trial)


def test_a_job_beyond_its_slice_is_not_placed() -> None:
    trial = running()
    trial.post(asking(), 1, SECOND_JOB)
    told(trial, ONE)

    assert Denied.OVER_QUOTA is trial.place(ON_N2, key=SECOND_JOB)
    trial.report(ran(5_000, exit=Exit.DONE))
    assert isinstance(trial.place(ON_N2, key=SECOND_JOB), Lease)
    assert SliceReport(n=1, used=HAS_ONE, wanted=HAS_ONE) == seen(trial)


def test_placements_of_the_same_transaction_count() -> None:
    trial = waiting()
    trial.post(asking(), 1, SECOND_JOB)
    told(trial, ONE)
    work = trial.work()
    first = rules.place(work, trial.epoch, rules.Placement(JOB, "H100", (Piece(N1, (0,), 1),)))
    second = rules.place(work, trial.epoch, rules.Placement(SECOND_JOB, "H100", ON_N2))

    assert isinstance(first, Lease)
    assert Denied.OVER_QUOTA is second


def test_a_slice_applies_to_placements_of_the_same_transaction() -> None:
    trial = running()
    trial.post(asking(), 1, SECOND_JOB)
    work = trial.work()
    job = work.job(SECOND_JOB)
    assert job is not None
    assert not work.exceeds_quota(job, "H100")
    work.quotas.put_slice(ONE)

    assert work.exceeds_quota(job, "H100")


def test_a_job_under_a_quota_without_a_slice_cannot_start() -> None:
    trial = waiting(quotas=("q",))
    assert Denied.OVER_QUOTA is trial.place()
    assert ["acme"] == trial.pool.quota_usage.orgs_to_divide()

    told(trial, ONE)
    assert isinstance(trial.place(), Lease)


def test_a_job_that_no_longer_waits_wants_nothing() -> None:
    trial = waiting()
    told(trial, ONE)
    assert HAS_ONE == seen(trial).wanted
    trial.post(Withdraw(), 2)

    assert SliceReport(n=1) == seen(trial)


def test_a_quota_does_not_count_jobs_of_others() -> None:
    trial = running()
    told(trial, replace(ONE, account="elsewhere"), replace(ONE, quota="r", org="other"))

    assert SliceReport(n=1) == seen(trial)
    assert {} == trial.pool.quota_usage.report_of("nobody")


def test_a_slice_with_another_scope_is_counted_again() -> None:
    trial = running()
    trial.post(asking(), 1, SECOND_JOB)
    told(trial, ONE)
    told(trial, replace(ONE, n=2, account=None, user="bob"))
    assert SliceReport(n=2) == seen(trial)
    told(trial, replace(ONE, n=3, account=None, user="ann"))
    assert HAS_ONE == seen(trial).used
    told(trial, replace(ONE, n=4, account=None, user="ann", granted=((GPUS, 2),)))
    assert HAS_ONE == seen(trial).used


def test_a_newer_policy_replaces_an_older_one() -> None:
    pool = Pool()
    new, old = (
        PolicyInForce(n=2, policy=PoolPolicy(half_life=9)),
        PolicyInForce(n=1, policy=PoolPolicy()),
    )
    for given in (new, old):
        work = PoolTransaction(pool, 0)
        work.adopt(given)
        work.commit()

    assert new == pool.policy
    work = PoolTransaction(pool, 0)
    work.adopt(replace(new, n=4))
    work.adopt(replace(new, n=3))
    assert work.policy_new is not None
    assert 4 == work.policy_new.n


def test_a_service_refuses_policies_that_only_a_simulation_supports() -> None:
    assert find_objection(PoolPolicy()) is None
    assert "only a simulation" in str(find_objection(PoolPolicy(preemption_grace=1)))
    tiers = (replace(PAID, floor_ppm=600_000), replace(FREE, floor_ppm=500_000))
    reversed_tiers = DEFAULT_POLICY.tiers[::-1]
    assert "free is the tier of orgs that have none" in str(
        find_objection(PoolPolicy(tiers=reversed_tiers))
    )
    assert "1100000 ppm" in str(find_objection(PoolPolicy(tiers=tiers)))
    shares = ((("paid", "acme"), Share(weight=2)), (("gold", "acme"), Share()))
    assert "no tier gold" in str(find_objection(PoolPolicy(shares=shares)))
    assert find_objection(replace(DEFAULT_POLICY, shares=shares[:1])) is None


def test_quotas_of_parent_accounts_count_a_job() -> None:
    trial = waiting(shares=(AccountId("team"), AccountId("root")))
    told(trial, ONE, replace(ONE, quota="t", account="team"))

    assert HAS_ONE == seen(trial).wanted == seen(trial, "t").wanted
