"""Who looks on: what was touched in a step, what has to be remembered, and when to check what."""

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
from bursar.sim.faults.node_host import Host, Task
from bursar.sim.faults.org import Org

if TYPE_CHECKING:
    from bursar.sim.faults.world import World


class Watch:
    """Looks on, remembers what it must, and says when a promise is broken."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.moved = False  # a process has started or ended
        self._orgs: dict[str, Org] = {}  # touched in this step
        self._written: list[tuple[PoolJob | None, PoolJob]] = []
        self._leases: list[tuple[Lease | None, Lease]] = []
        self._epoch_used: int | None = None
        self.epoch = 0  # the largest seen
        self.fence = 0
        self.began: set[tuple[NodeId, int]] = set()  # processes that were started, by node
        self.recorded: dict[str, tuple[int, Instant]] = {}  # of each org: events, and time

    # ----------------------------------------------------------------------- what it is told

    def touched(self, org: Org) -> None:
        """An org may have changed."""
        self._orgs[org.id] = org

    def writing(self, work: PoolTransaction) -> None:
        """A transaction of the pool is about to be kept."""
        pool = work.pool
        self._written += [(pool.jobs.get(key), new) for key, new in work.jobs_new.items()]
        self._leases += [(pool.leases.get(key), new) for key, new in work.leases_new.items()]
        if self._epoch_used is not None:
            epochs_agree(self._epoch_used, pool.epoch)
            self._epoch_used = None

    def deciding(self, epoch: int) -> None:
        """What is written next was decided by the leader of this epoch."""
        self._epoch_used = epoch

    def started(self, host: Host, task: Task) -> None:
        """A process is about to start."""
        started_once(self, host, task)
        started_in_order(self, host, task)
        self.began.add((host.id, task.fence))
        self.moved = True

    # ----------------------------------------------------------------------- what it checks

    def look(self) -> None:
        """Check all that the last step may have touched."""
        self._epoch_used = None
        if not (self.moved or self._orgs or self._written or self._leases):
            return
        world = self._world
        for org in self._orgs.values():
            for check in OF_ORGS.values():
                check(world, org)
        self._orgs.clear()
        if self._written or self._leases:
            for check_job in OF_JOBS.values():
                for before, job in self._written:
                    check_job(world, before, job)
            for check_lease in OF_LEASES.values():
                for old, lease in self._leases:
                    check_lease(world, old, lease)
            for check_pool in OF_THE_POOL.values():
                check_pool(world)
            self._written.clear()
            self._leases.clear()
            self.moved = True
        if self.moved:
            self.moved = False
            for check_tasks in OF_PROCESSES.values():
                check_tasks(world)

    def not_settled(self) -> None:
        """Long after everything was made good, something is still going on."""
        world = self._world
        if world.settled:
            return
        jobs = {key: job.state.value for key, job in world.pool.jobs.items() if not job.over}
        orgs = {org.id: list(org.outbox) for org in world.orgs.values() if org.outbox}
        tasks = {host.id: list(host.tasks) for host in world.hosts.values() if host.tasks}
        waiting = (jobs, list(world.pool.outbox), orgs, tasks, world.callers.answered)
        raise InvariantBroken(f"IV3: not everything has settled: {waiting}")

    def at_the_end(self) -> None:
        """Check what is true once everything has settled."""
        for check in AT_THE_END.values():
            check(self._world)
