"""A node on which attempts keep failing gets no new jobs for a while (S10)."""

import pytest

from bursar.core.dispatch import pool as rules
from bursar.core.dispatch.cluster_sync import ClusterMirror
from bursar.core.dispatch.quarantine import (
    FIRST_QUARANTINE,
    JOBS_MIN,
    MIN_RUN_MS,
    MISHAP_WINDOW,
    QUARANTINE_MAX,
    RESET_AFTER,
    is_quarantined,
    state_of,
)
from bursar.core.dispatch.reports import Reading
from bursar.core.dispatch.state import NO_TROUBLE, Exit, JobKey, Lease, Trouble
from bursar.core.ids import JobId, NodeId
from bursar.core.instant import MINUTE
from bursar.core.leases import Denied
from bursar.core.scheduling.model.nodes import Node, NodeState, Piece
from bursar.core.scheduling.model.policy import PAID, PoolPolicy
from bursar.core.value import replace
from tests.support.builders import T0
from tests.support.dispatch_pool import GANG, GANG_SPEC, N1, N2, ON_N1, Trial, asking, ran

N3 = NodeId("n3")
ON_N2 = (Piece(N2, (0,), 1),)


class Troubled(Trial):
    """A pool in which attempts fail."""

    def __init__(self) -> None:
        super().__init__()
        self._jobs = 0
        self.hear()

    def hear(self) -> None:
        for node in list(self.pool.machines):
            self.report(node=node)

    def attempt(
        self,
        exit: Exit,
        run_ms: int = 0,
        *,
        org: str = "acme",
        job: str | None = None,
        on: tuple[Piece, ...] = ON_N1,
    ) -> Lease | Denied:
        """Place a job on a node, and end its attempt."""
        self.hear()
        self._jobs += 1
        key: JobKey = org, JobId(job or f"job-{self._jobs}")
        if key not in self.pool.jobs:
            self.post(asking(hold_until=self.now + 10 * MINUTE), 1, key)
        lease = self.place(on, key=key)
        if isinstance(lease, Lease):
            self.pass_by(run_ms * 1_000 + 1_000)
            for piece in on:
                self.report(ran(run_ms, lease.fence, exit=exit), node=piece.node)
        return lease

    def trouble(self, node: NodeId = N1) -> Trouble:
        return self.pool.machines[node].trouble

    def stands(self, node: NodeId = N1) -> NodeState:
        self.hear()
        return state_of(self.pool.machines[node], self.now)

    def add(self, *nodes: NodeId, gpu_type: str = "H100") -> None:
        work = self.work()
        for node in nodes:
            rules.register_node(work, Node(id=node, gpu_type=gpu_type, gpus=2))
        work.commit()
        self.hear()


def test_several_jobs_that_cannot_start_put_a_node_into_quarantine() -> None:
    """Even if they are of one org: the agent could not start them."""
    trial = Troubled()
    for _ in range(JOBS_MIN - 1):
        trial.attempt(Exit.GONE)
        assert NodeState.READY is trial.stands()
    trial.attempt(Exit.GONE)
    assert NodeState.QUARANTINED is trial.stands()
    assert (NodeState.READY, 1) == (trial.stands(N2), trial.trouble().quarantines)
    assert Denied.NODE_NOT_READY is trial.attempt(Exit.GONE)
    trial.pass_by(trial.trouble().until - trial.now - 1)
    assert NodeState.QUARANTINED is trial.stands()
    trial.pass_by(1)

    assert NodeState.READY is trial.stands()
    assert isinstance(trial.attempt(Exit.DONE), Lease)


def test_one_job_that_is_lost_repeatedly_does_not_put_its_node_into_quarantine() -> None:
    trial = Troubled()
    for _ in range(2):
        trial.attempt(Exit.GONE, job="the same")

    assert 1 == len(trial.trouble().mishaps)
    trial.attempt(Exit.GONE)
    assert NodeState.READY is trial.stands()


def test_failing_programs_of_one_org_do_not_put_a_node_into_quarantine() -> None:
    """However many; programs of several orgs do."""
    trial = Troubled()
    for _ in range(2 * JOBS_MIN):
        trial.attempt(Exit.FAILED)
        assert NodeState.READY is trial.stands()
    trial.attempt(Exit.FAILED, org="other")

    assert NodeState.QUARANTINED is trial.stands()


def test_attempts_of_one_org_that_are_lost_after_their_start_prove_nothing() -> None:
    """A program that runs can end its attempt on purpose; it must not empty a pool for others."""
    trial = Troubled()
    for _ in range(3 * JOBS_MIN):
        trial.attempt(Exit.GONE, 1)
        assert NodeState.READY is trial.stands()
    trial.attempt(Exit.GONE)
    trial.attempt(Exit.FAILED, 1)
    assert NodeState.READY is trial.stands(), "beside another kind as well"
    trial.attempt(Exit.GONE, 1, org="other")

    assert NodeState.QUARANTINED is trial.stands(), "if others lose theirs, it is the node's"


def test_a_success_clears_failed_attempts_but_not_lost_ones() -> None:
    trial = Troubled()
    trial.attempt(Exit.FAILED, org="other")
    trial.attempt(Exit.GONE)
    trial.attempt(Exit.DONE)
    assert [True] == [one.lost for one in trial.trouble().mishaps]
    trial.attempt(Exit.FAILED, MIN_RUN_MS)
    trial.attempt(Exit.FAILED)
    assert NodeState.READY is trial.stands()
    trial.attempt(Exit.FAILED, org="other")

    assert NodeState.QUARANTINED is trial.stands()


def test_an_attempt_that_is_lost_later_or_stopped_is_no_mishap() -> None:
    trial = Troubled()
    for _ in range(JOBS_MIN):
        trial.attempt(Exit.GONE, MIN_RUN_MS)
        trial.attempt(Exit.STOPPED)
        trial.attempt(Exit.KILLED)

    assert NO_TROUBLE == trial.trouble()


def test_mishaps_are_forgotten() -> None:
    trial = Troubled()
    trial.attempt(Exit.GONE)
    trial.attempt(Exit.GONE)
    trial.pass_by(MISHAP_WINDOW)
    trial.attempt(Exit.GONE)

    assert NodeState.READY is trial.stands()
    assert 1 == len(trial.trouble().mishaps)


def test_only_the_node_on_which_it_happened_is_blamed() -> None:
    """A gang has lost one process: the other node is not responsible."""
    trial = Troubled()
    trial.post(asking(spec=GANG_SPEC, hold_micros=120_000), 1, ("acme", JobId("gang")))
    lease = trial.place(GANG, key=("acme", JobId("gang")))
    assert isinstance(lease, Lease)
    trial.report(Reading(fence=lease.fence, run_ms=0, exit=Exit.GONE), node=N1)
    trial.report(Reading(fence=lease.fence, run_ms=0, exit=Exit.FAILED), node=N2)

    assert (1, 0) == (len(trial.trouble(N1).mishaps), len(trial.trouble(N2).mishaps))


def test_each_quarantine_in_a_row_is_twice_as_long() -> None:
    trial = Troubled()
    spans = []
    for _ in range(11):
        for _ in range(JOBS_MIN):
            trial.attempt(Exit.GONE)
        spans.append(trial.trouble().until - trial.now)
        trial.now = trial.trouble().until
    assert [FIRST_QUARANTINE << times for times in range(9)] + [
        QUARANTINE_MAX,
        QUARANTINE_MAX,
    ] == spans
    trial.pass_by(RESET_AFTER)
    for _ in range(JOBS_MIN):
        trial.attempt(Exit.GONE)

    assert FIRST_QUARANTINE == trial.trouble().until - trial.now


def test_the_last_node_of_a_type_stays() -> None:
    """Nodes of other types do not help. Its mishaps are cleared."""
    trial = Troubled()
    trial.add(N3, gpu_type="A100")
    for node in (N1, N2):
        for _ in range(JOBS_MIN):
            trial.attempt(Exit.GONE, on=(Piece(node, (0,), 1),))

    assert (NodeState.QUARANTINED, NodeState.READY) == (trial.stands(N1), trial.stands(N2))
    assert NO_TROUBLE == trial.trouble(N2)


def test_the_only_ready_node_stays() -> None:
    """Drained nodes do not help either."""
    trial = Troubled()
    work = trial.work()
    rules.set_node_state(work, N2, NodeState.DRAINING)
    work.commit()
    for _ in range(JOBS_MIN):
        trial.attempt(Exit.GONE)

    assert NodeState.READY is trial.stands()


@pytest.mark.parametrize(("more", "most"), [(0, 1), (5, 1), (6, 2), (10, 3)])
def test_at_most_a_quarter_is_in_quarantine_at_a_time(more: int, most: int) -> None:
    """Broken jobs on all nodes cannot empty a pool."""
    trial = Troubled()
    trial.add(*(NodeId(f"more-{number}") for number in range(more)))
    for node in sorted(trial.pool.machines):
        for _ in range(JOBS_MIN):
            trial.attempt(Exit.GONE, on=(Piece(node, (0,), 1),))
    away = [one for one in trial.pool.machines.values() if is_quarantined(one, trial.now)]

    assert most == len(away)


def test_an_operator_can_end_a_quarantine() -> None:
    trial = Troubled()
    for _ in range(JOBS_MIN):
        trial.attempt(Exit.GONE)
    work = trial.work()
    assert rules.set_node_state(work, N1, NodeState.DRAINING)
    assert rules.set_node_state(work, N2, NodeState.READY)
    assert not rules.set_node_state(work, NodeId("nobody"), NodeState.READY)
    work.commit()
    assert NodeState.QUARANTINED is trial.stands(), "drained or not"
    work = trial.work()
    assert rules.set_node_state(work, N1, NodeState.READY)
    work.commit()

    assert (NodeState.READY, NO_TROUBLE) == (trial.stands(), trial.trouble())


def test_the_scheduler_places_no_job_on_a_node_until_its_quarantine_ends() -> None:
    trial = Troubled()
    follower = ClusterMirror(PoolPolicy(tiers=(PAID,)), trial.now)
    for _ in range(JOBS_MIN):
        trial.attempt(Exit.GONE)
    trial.hear()
    follower.follow(trial.pool, (), trial.now)
    assert NodeState.QUARANTINED is follower.cluster.nodes.by_id[N1].node.state
    trial.now = trial.trouble().until
    trial.hear()
    assert follower.follow(trial.pool, (), trial.now)

    assert NodeState.READY is follower.cluster.nodes.by_id[N1].node.state


def test_the_effective_state_of_a_node() -> None:
    """A silent node is dead, and an ordered one is not ready, whatever state was set."""
    trial = Troubled()
    machine = trial.pool.machines[N1]
    away = replace(machine, trouble=Trouble(until=T0 + MINUTE))
    ordered = replace(machine, node=replace(machine.node, state=NodeState.ON_ORDER, ready_at=1))
    draining = replace(away, node=replace(machine.node, state=NodeState.DRAINING))

    assert NodeState.QUARANTINED is state_of(away, T0)
    assert NodeState.ON_ORDER is state_of(replace(ordered, reported_at=None), T0)
    assert NodeState.DEAD is state_of(replace(draining, reported_at=None), T0)
    assert NodeState.DRAINING is state_of(replace(draining, trouble=NO_TROUBLE), T0)
