"""The world of a seed: orgs, pools, nodes, clients and faults, one event after the other.

An event is an instant of true time, a number that makes the order total, and a handler. A process
that is paused or frozen handles its events when it resumes; a process that is down loses them.
"""

from collections import Counter, deque
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any, Final

from bursar.core.dispatch import pool as pool_side
from bursar.core.dispatch import reports
from bursar.core.dispatch.attempt_end import STOP_GRACE
from bursar.core.dispatch.cluster_sync import ClusterMirror
from bursar.core.dispatch.reports import NodeReport
from bursar.core.dispatch.state import JobKey, JobMessage, Pool, PoolNode, PoolTransaction
from bursar.core.ids import NodeId
from bursar.core.instant import MILLISECOND, SECOND, Instant
from bursar.core.leases import Denied
from bursar.core.messages import Left
from bursar.core.scheduling.decisions import Decision
from bursar.core.scheduling.model.nodes import Node
from bursar.core.scheduling.model.policy import PAID, PoolPolicy
from bursar.core.scheduling.plan import carry_out
from bursar.sim.faults import org as org_side
from bursar.sim.faults.checker import InvariantChecker
from bursar.sim.faults.clients import ClientCall, Clients
from bursar.sim.faults.clocks import SimulatedClock
from bursar.sim.faults.injection import FaultInjector
from bursar.sim.faults.job_upkeep import run_upkeep
from bursar.sim.faults.node_host import NodeHost
from bursar.sim.faults.nodes import NodeActivity
from bursar.sim.faults.org import POOL, SimulatedOrg
from bursar.sim.faults.profile import START, FaultProfile, draw_profile
from bursar.sim.faults.simulated_pool import PoolProcess, SimulatedPool

TICK: Final = 2 * SECOND  # between two rounds of a pool's process, and of an org's relay
RESEND_AFTER: Final = 3 * SECOND  # an unacknowledged message is sent again
SETTLING_TIME: Final = 15 * SECOND  # after the last fault: then clients cancel what lacks credits
SETTLED_WITHIN: Final = 600 * SECOND  # after the last fault
TRACE_STEPS: Final = 30  # the last steps, shown when an invariant is broken
MOVE_PART: Final = 0.3  # of the waiting jobs: a move is requested in a round of the relay

POOLS: Final = {POOL: ("p1", "p2"), "pool2": ("q1", "q2")}  # names, and those of their processes

Handler = Callable[..., None]
TimedEvent = tuple[Instant, int, Handler, tuple[Any, ...]]


class Crashed(Exception):
    """A process has died between two writes."""


class FaultWorld:
    """The world of one seed."""

    def __init__(
        self, seed: int, profile: FaultProfile | None = None, *, keep: int = TRACE_STEPS
    ) -> None:
        self.seed = seed
        self.profile = profile = profile or draw_profile(seed)
        self.random = Random(f"world/{seed}")
        self.at = START
        self.counts: Counter[str] = Counter()  # what has happened, faults and others
        self.trace: deque[tuple[Instant, str, tuple[Any, ...]]] = deque(maxlen=keep)
        self.steps = 0
        self.failing = True
        self._heap: list[TimedEvent] = []
        self._number = 0
        self.policy = PoolPolicy(tiers=(PAID,), preemption_grace=STOP_GRACE)
        self.pools: dict[str, SimulatedPool] = {}
        self.processes: dict[str, PoolProcess] = {}  # of all pools
        self.hosts: dict[NodeId, NodeHost] = {}  # of all pools
        self.orgs: dict[str, SimulatedOrg] = {}
        self.down: set[str] = set()  # orgs whose process is down
        self.org_clocks: dict[str, SimulatedClock] = {}
        self.blocked: set[tuple[str, str]] = set()  # links that are cut: source, target
        self._sent_at: dict[Any, Instant] = {}  # when a message was last sent
        self.checker = InvariantChecker(self)
        self.node_activity = NodeActivity(self)
        self.clients = Clients(self)
        self.injector = FaultInjector(self)
        for name in list(POOLS)[: profile.pools]:
            self._add_pool(name)
        self.clients.create_orgs(profile.orgs)
        self.injector.begin()
        self.after(profile.faults_last, self.calm_down)

    def _add_pool(self, name: str) -> None:
        clock = SimulatedClock(START, START, self.random.randint(-500, 500))
        pool = self.pools[name] = SimulatedPool(name, POOLS[name], clock)
        for _ in range(self.profile.nodes):
            self._add_node(pool, NodeId(f"n{len(self.hosts) + 1}"))
        for process in pool.processes.values():
            self.processes[process.name] = process
            self.start_process(process)

    def _add_node(self, pool: SimulatedPool, name: NodeId) -> None:
        profile = self.profile
        ppm = self.random.randint(-profile.node_ppm, profile.node_ppm)
        shows = self.random.randrange(10**9)
        host = NodeHost(name, pool.name, profile.slots, SimulatedClock(START, shows, ppm))
        self.hosts[name] = pool.hosts[name] = host
        node = Node(id=name, gpu_type="H100", gpus=profile.gpus, slots=profile.slots)
        pool.rows.machines[name] = PoolNode(node=node)
        self.node_activity.start_agent(host)

    @property
    def pool(self) -> Pool:
        """The rows of the first pool; a world of one pool has no other."""
        return self.pools[POOL].rows

    # ----------------------------------------------------------------------- time

    def after(self, span: int, handler: Handler, *args: Any) -> None:
        """Schedule an event."""
        self._number += 1
        heappush(self._heap, (self.at + span, self._number, handler, args))

    def run(self) -> None:
        """Run until everything has settled; `InvariantBroken` if an invariant is violated."""
        while not (self.steps % 8 == 0 and self.is_settled):
            self.step()
        self.checker.check_end()

    def step(self) -> None:
        """Handle the next event, and check every invariant that it may have touched."""
        self.at, _, handler, args = heappop(self._heap)
        self.steps += 1
        self.trace.append((self.at, handler.__name__, args))
        try:
            handler(*args)
        except Crashed:
            self.counts["crash between two writes"] += 1
        self.checker.check_step()

    def calm_down(self) -> None:
        """End all faults; from now on everything has to settle."""
        self.failing = False
        self.injector.heal_everything()
        self.after(SETTLING_TIME, self.clients_give_up)
        self.after(SETTLED_WITHIN, self.checker.check_settled)

    @property
    def is_settled(self) -> bool:
        """Whether nothing is left to do."""
        return (
            not self.failing
            and self.clients.are_answered
            and not any(pool.rows.outbox for pool in self.pools.values())
            and all(not org.outbox for org in self.orgs.values())
            and all(
                job.is_finished for pool in self.pools.values() for job in pool.rows.jobs.values()
            )
            and all(job.is_finished for org in self.orgs.values() for job in org.jobs.values())
            and not any(host.tasks for host in self.hosts.values())
        )

    # ----------------------------------------------------------------------- messages

    def send(self, source: str, target: str, kind: str, body: Any) -> None:
        """Send a message: it may be lost, repeated, delayed, or overtaken by a later one."""
        copies = 1
        if self.failing:
            if (source, target) in self.blocked:
                self.counts["message cut off"] += 1
                return
            if self.random.random() < self.profile.loss:
                self.counts["message lost"] += 1
                return
            if self.random.random() < self.profile.repeat:
                self.counts["message repeated"] += 1
                copies = 2
        for _ in range(copies):
            self.after(self._delay(), self.deliver, source, target, kind, body)

    def _delay(self) -> int:
        if self.failing:
            if self.random.random() < self.profile.stale:
                self.counts["message very late"] += 1
                return self.random.randrange(60 * SECOND)
            if self.random.random() < self.profile.slow:
                self.counts["message late"] += 1
                return self.random.randrange(4 * SECOND)
        return self.random.randrange(MILLISECOND, 50 * MILLISECOND)

    def deliver(self, source: str, target: str, kind: str, body: Any) -> None:
        """Deliver a message; it is lost if the receiver is down."""
        if target in self.processes:
            process = self.processes[target]
            if process.up and not self._is_stopped(
                process.paused_until, source, target, kind, body
            ):
                self._handle_at_pool(process, kind, body)
        elif target in self.orgs:
            if target not in self.down:
                self._handle_at_org(self.orgs[target], source, kind, body)
        elif target in self.hosts:
            host = self.hosts[NodeId(target)]
            until = max(host.paused_until, host.frozen_until)
            if host.agent and not self._is_stopped(until, source, target, kind, body):
                self.node_activity.follow_orders(host, body)
        else:
            self.clients.receive_reply(kind, body)

    def _is_stopped(self, until: Instant, *message: Any) -> bool:
        """Whether the receiver is stopped; the message is delivered when it resumes."""
        if until <= self.at:
            return False
        self.after(until - self.at, self.deliver, *message)
        return True

    def _handle_at_pool(self, process: PoolProcess, kind: str, body: Any) -> None:
        if kind == "report":
            self._report(process, body)
        elif kind == "envelope":
            work = self._begin_transaction(process.pool)
            if work is not None and pool_side.receive(work, body):
                self._commit(process, work)
                self.send(process.name, body.org, "ack", (body.job, body.n))
        else:  # an acknowledgement
            work = self._begin_transaction(process.pool)
            if work is not None:
                work.acknowledge(*body)
                self._commit(process, work)

    def _handle_at_org(self, org: SimulatedOrg, source: str, kind: str, body: Any) -> None:
        now = self.org_clocks[org.id].believed(self.at)
        if now is None:
            self.counts["clock not believed"] += 1
            return
        self.checker.note_org(org)
        if kind == "call":
            answer = self.clients.perform(org, body, now)
            self.may_crash(org.id)
            self.post_to_pools(org)
            self.send(org.id, "user", "reply", (body, answer))
        elif kind == "envelope":
            self._receive_envelope(org, source, body, now)
        else:
            org_side.acknowledge(org, *body)

    def _receive_envelope(
        self, org: SimulatedOrg, source: str, envelope: JobMessage, now: Instant
    ) -> None:
        pool = self.processes[source].pool.name
        is_new = not org_side.is_handled(org, pool, envelope)
        for _ in org_side.handle(org, pool, envelope, now):
            self.may_crash(org.id)
        if not org_side.is_handled(org, pool, envelope):
            return
        self.send(org.id, source, "ack", ((envelope.org, envelope.job), envelope.n))
        if is_new and isinstance(envelope.message, Left):
            is_moved = org.jobs[envelope.job].pool != pool
            self.counts["jobs moved" if is_moved else "moves that met a cancel"] += 1

    def may_crash(self, name: str) -> None:
        """Let a process die between two transactions, or an agent between two actions."""
        if self.failing and self.random.random() < self.profile.crash:
            self.injector.crash(name)
            raise Crashed

    # ----------------------------------------------------------------------- pools

    def start_process(self, process: PoolProcess) -> None:
        """Start a process of a pool, with nothing in its memory."""
        process.boot += 1
        process.up = True
        process.forget()
        self.after(self.random.randrange(TICK), self.tick, process, process.boot)

    def _begin_transaction(self, pool: SimulatedPool) -> PoolTransaction | None:
        """A transaction of a pool; None while the pool's clock is not believed (D5)."""
        now = pool.clock.believed(self.at)
        if now is None:
            self.counts["clock not believed"] += 1
            return None
        return PoolTransaction(pool.rows, now)

    def _commit(self, process: PoolProcess, work: PoolTransaction) -> None:
        """Write a transaction and send its messages; the process may die before each."""
        self.may_crash(process.name)
        self.checker.note_transaction(process.pool, work)
        work.commit()
        self.may_crash(process.name)
        for (key, n), message in work.messages_new.items():
            self._post(process, key, n, message)

    def _post(self, process: PoolProcess, key: JobKey, n: int, message: Any) -> None:
        self._sent_at[process.name, key, n] = self.at
        self.send(process.name, key[0], "envelope", JobMessage(*key, n, message))

    def tick(self, process: PoolProcess, boot: int) -> None:
        """A round of a pool's process: lead, expire, decide, send what is not acknowledged."""
        if not process.up or process.boot != boot:
            return
        if process.paused_until > self.at:
            self.after(process.paused_until - self.at, self.tick, process, boot)
            return
        self.after(TICK, self.tick, process, boot)
        work = self._begin_transaction(process.pool)
        if work is None:
            return
        epoch = pool_side.lead(work, repr(process))
        if pool_side.expire(work):
            self.counts["leases or waits that ran out"] += 1
        self._commit(process, work)
        if epoch != process.epoch:
            self.counts["changes of leader"] += epoch is not None
            process.epoch, process.mirror = epoch, None
        if epoch is not None and not process.deciding:
            self._decide(process)
        for (key, n), message in process.pool.rows.outbox.items():
            if self._sent_at.get((process.name, key, n), 0) + RESEND_AFTER <= self.at:
                self._post(process, key, n, message)

    def _decide(self, process: PoolProcess) -> None:
        """The leader reads what has changed and plans; it writes the plan a moment later."""
        rows, is_fresh = process.pool.rows, process.mirror is None
        mirror = process.mirror = process.mirror or ClusterMirror(self.policy, rows.now)
        first = 0 if is_fresh else process.changes_read
        changes, process.changes_read = rows.changed_jobs[first:], len(rows.changed_jobs)
        if not mirror.follow(rows, changes, rows.now) and not is_fresh:
            return
        decisions = carry_out(mirror.cluster, rows.now).decisions
        if decisions:
            process.deciding = True
            span = self.random.randrange(20 * MILLISECOND)
            if self.failing and self.random.random() < self.profile.stall:
                self.counts["leader stopped before it writes"] += 1
                process.paused_until = self.at + self.random.randrange(15 * SECOND)
            self.after(span, self.write, process, process.boot, process.epoch, decisions)

    def write(
        self, process: PoolProcess, boot: int, epoch: int, decisions: tuple[Decision, ...]
    ) -> None:
        """The leader writes those of its decisions that are still possible."""
        if not process.up or process.boot != boot:
            return
        if process.paused_until > self.at:
            self.after(process.paused_until - self.at, self.write, process, boot, epoch, decisions)
            return
        process.deciding = False
        work = self._begin_transaction(process.pool)
        denied = [Denied.NODE_SILENT]
        if work is not None:
            denied = self._write(process, work, epoch, decisions)
        if denied:
            self.counts.update(f"denied: {why}" for why in denied)
            process.mirror = None  # it contains decisions that were not written

    def _write(
        self,
        process: PoolProcess,
        work: PoolTransaction,
        epoch: int,
        decisions: tuple[Decision, ...],
    ) -> list[Denied]:
        written = pool_side.carry_out(work, epoch, decisions)
        if written.placed or written.stopping:
            self.checker.note_decision(epoch)
        self._commit(process, work)
        self.counts["attempts placed"] += len(written.placed)
        self.counts["preemptions"] += len(written.stopping)
        if process.mirror is not None:
            process.mirror.add_leases(written.placed)
        return list(written.denied)

    def _report(self, process: PoolProcess, report: NodeReport) -> None:
        work = self._begin_transaction(process.pool)
        if work is None:
            return
        orders = reports.receive_report(work, report)
        if orders is None:
            self.counts["report no newer than the last"] += 1
            return
        self._commit(process, work)
        self.send(process.name, report.node, "orders", orders)

    # ----------------------------------------------------------------------- orgs

    def post_to_pools(self, org: SimulatedOrg) -> None:
        """Send an org's messages that are not acknowledged and were not sent a moment ago."""
        for (job, n), message in org.outbox.items():
            if self._sent_at.get((org.id, job, n), 0) + RESEND_AFTER <= self.at:
                self._sent_at[org.id, job, n] = self.at
                target = self.random.choice(POOLS[org.pool_of(job, n)])
                self.send(org.id, target, "envelope", JobMessage(org.id, job, n, message))

    def relay(self, name: str) -> None:
        """A round of an org's workers: upkeep of jobs, moves, and unacknowledged messages."""
        self.after(TICK, self.relay, name)
        if name in self.down:
            return
        org, now = self.orgs[name], self.org_clocks[name].believed(self.at)
        if self.profile.mixed and now is not None:
            self.checker.note_org(org)
            for what in run_upkeep(org, now):
                self.counts[what] += 1
                self.may_crash(name)
        if len(self.pools) > 1 and now is not None:
            self._request_moves(org, now)
        self.post_to_pools(org)

    def _request_moves(self, org: SimulatedOrg, now: Instant) -> None:
        """Request some waiting jobs back from their pools, for the other pool."""
        self.checker.note_org(org)
        for job in org.routed:
            if not org.jobs[job].is_finished and self.random.random() < MOVE_PART:
                source = org.jobs[job].pool
                target = next(pool for pool in self.pools if pool != source)
                if org_side.request_move(org, job, source, target, now):
                    self.counts["moves requested"] += 1
                    self.may_crash(org.id)

    # ----------------------------------------------------------------------- planned events

    def client_asks(self, call: ClientCall) -> None:
        """A client sends a call."""
        self.clients.send_call(call)

    def clients_give_up(self) -> None:
        """Clients cancel jobs without credits; operators correct the ends of some attempts."""
        self.clients.give_up()
        self.clients.correct_ends()

    def inject_fault(self) -> None:
        """Something fails."""
        self.injector.inject()

    def restart(self, name: str) -> None:
        """Start a process, an org or a node that is down."""
        self.injector.restart(name)

    def heal(self, links: list[tuple[str, str]]) -> None:
        """Restore links."""
        self.blocked.difference_update(links)

    def set_clock_right(self, clock: SimulatedClock) -> None:
        """Set a clock right again."""
        clock.set_offset(0)
