"""Runs the invariants: notes what a step has touched, and checks what depends on it."""

from collections import Counter
from typing import TYPE_CHECKING

from bursar.core.dispatch.state import Lease, PoolJob, PoolTransaction
from bursar.core.ids import NodeId
from bursar.core.instant import Instant
from bursar.core.refusal import InvariantBroken
from bursar.sim.faults.invariants import (
    AT_THE_END,
    OF_JOBS,
    OF_LEASES,
    OF_ORGS,
    OF_PROCESSES,
    OF_THE_POOL,
    epochs_agree,
    started_in_order,
    started_once,
)
from bursar.sim.faults.node_host import HostedProcess, NodeHost
from bursar.sim.faults.org import SimulatedOrg
from bursar.sim.faults.simulated_pool import SimulatedPool

if TYPE_CHECKING:
    from bursar.sim.faults.world import FaultWorld


class InvariantChecker:
    """Records what a step touches, and checks it; raises `InvariantBroken`."""

    def __init__(self, world: "FaultWorld") -> None:
        self._world = world
        self.is_process_changed = False  # a process has started or ended
        self._orgs: dict[str, SimulatedOrg] = {}  # touched in this step
        self._pool: SimulatedPool | None = None  # written in this step
        self._jobs_written: list[tuple[PoolJob | None, PoolJob]] = []
        self._leases_written: list[tuple[Lease | None, Lease]] = []
        self._epoch_used: int | None = None
        self.epochs: Counter[str] = Counter()  # the largest of each pool
        self.fences: Counter[str] = Counter()  # the largest of each pool
        self.started_processes: set[tuple[NodeId, int]] = set()  # nodes and fences
        self.journal_marks: dict[str, tuple[int, Instant]] = {}  # of orgs: events, time

    # ----------------------------------------------------------------------- what a step touches

    def note_org(self, org: SimulatedOrg) -> None:
        """Record that an org may have changed."""
        self._orgs[org.id] = org

    def note_transaction(self, pool: SimulatedPool, work: PoolTransaction) -> None:
        """Record the rows of a transaction that is about to be written."""
        self._pool, rows = pool, pool.rows
        self._jobs_written += [(rows.jobs.get(key), new) for key, new in work.jobs_new.items()]
        self._leases_written += [
            (rows.leases.get(key), new) for key, new in work.leases_new.items()
        ]
        if self._epoch_used is not None:
            epochs_agree(self._epoch_used, rows.epoch)
            self._epoch_used = None

    def note_decision(self, epoch: int) -> None:
        """Record that the leader of this epoch decided what is written next."""
        self._epoch_used = epoch

    def note_start(self, host: NodeHost, task: HostedProcess) -> None:
        """Check and record a process that is about to start."""
        started_once(self, host, task)
        started_in_order(self, host, task)
        self.started_processes.add((host.id, task.fence))
        self.is_process_changed = True

    # ----------------------------------------------------------------------- checks

    def check_step(self) -> None:
        """Check everything that the last step may have touched."""
        self._epoch_used = None
        if not (
            self.is_process_changed or self._orgs or self._jobs_written or self._leases_written
        ):
            return
        world = self._world
        for org in self._orgs.values():
            for check in OF_ORGS.values():
                check(world, org)
        self._orgs.clear()
        pool = self._pool
        if pool is not None and (self._jobs_written or self._leases_written):
            for check_job in OF_JOBS.values():
                for before, job in self._jobs_written:
                    check_job(world, pool, before, job)
            for check_lease in OF_LEASES.values():
                for old, lease in self._leases_written:
                    check_lease(world, pool, old, lease)
            for check_pool in OF_THE_POOL.values():
                check_pool(world, pool)
            self._jobs_written.clear()
            self._leases_written.clear()
            self.is_process_changed = True
        if self.is_process_changed:
            self.is_process_changed = False
            for check_tasks in OF_PROCESSES.values():
                check_tasks(world)

    def check_settled(self) -> None:
        """Check that everything has settled, long after the last fault (IV3)."""
        world = self._world
        if world.is_settled:
            return
        pools = world.pools.values()
        jobs = [job for pool in pools for job in pool.rows.jobs.values() if not job.is_finished]
        states = {job.key: job.state.value for job in jobs}
        envelopes = [envelope for pool in pools for envelope in pool.rows.outbox]
        orgs = {org.id: list(org.outbox) for org in world.orgs.values() if org.outbox}
        tasks = {host.id: list(host.tasks) for host in world.hosts.values() if host.tasks}
        waiting = (states, envelopes, orgs, tasks, world.clients.are_answered)
        raise InvariantBroken(f"IV3: not everything has settled: {waiting}")

    def check_end(self) -> None:
        """Check what must be true after everything has settled."""
        for check in AT_THE_END.values():
            check(self._world)
