"""Everything together, one event after the other, on one true time.

An event is an instant, a number that makes the order total, and what to do then. Whoever is stopped
or frozen does later what was due meanwhile; whoever is down never does.
"""

from collections import Counter, deque
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any, Final

from bursar.core.dispatch import pool as pool_side
from bursar.core.dispatch import reports
from bursar.core.dispatch.attempt_end import GRACE
from bursar.core.dispatch.cluster_sync import ClusterMirror
from bursar.core.dispatch.reports import NodeReport
from bursar.core.dispatch.state import JobKey, JobMessage, Pool, PoolNode, PoolTransaction
from bursar.core.ids import NodeId
from bursar.core.instant import MILLISECOND, SECOND, Instant
from bursar.core.leases import Denied
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
from bursar.sim.faults.node_host import HostedProcess, NodeHost
from bursar.sim.faults.nodes import NodeActivity
from bursar.sim.faults.org import SimulatedOrg
from bursar.sim.faults.profile import START, FaultProfile, draw_profile

TICK: Final = 2 * SECOND  # how often a process of the pool looks around
RESEND_AFTER: Final = 3 * SECOND  # after which an unacknowledged message is sent again
SETTLING_TIME: Final = (
    15 * SECOND
)  # after things have failed: then users give up what waits for credits
SETTLED_WITHIN: Final = 600 * SECOND  # by then everything must have settled
TRACE_STEPS: Final = 30  # steps that are told when something goes wrong

Handler = Callable[..., None]
Event = tuple[Instant, int, Handler, tuple[Any, ...]]


class Crashed(Exception):
    """A process has died in the middle of what it was doing."""


class PoolProcess:
    """A process that works for the pool: it leads, or stands by."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.boot = 0
        self.up = False
        self.paused_until = 0
        self.forget()

    def forget(self) -> None:
        """All that is in its memory is gone."""
        self.epoch: int | None = None  # as far as it knows
        self.follower: ClusterMirror | None = None
        self.deciding = False  # decided, and not written yet
        self.seen = 0  # changes of the pool

    def __repr__(self) -> str:
        return f"{self.name}#{self.boot}"


class FaultWorld:
    """One seed's world."""

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
        self._heap: list[Event] = []
        self._number = 0
        self.policy = PoolPolicy(tiers=(PAID,), grace=GRACE)
        self.pool = Pool()
        self.pool_clock = SimulatedClock(START, START, self.random.randint(-500, 500))
        self.desks = {name: PoolProcess(name) for name in ("p1", "p2")}
        self.orgs: dict[str, SimulatedOrg] = {}
        self.down: set[str] = set()  # orgs whose process is not there
        self.org_clocks: dict[str, SimulatedClock] = {}
        self.hosts: dict[NodeId, NodeHost] = {}
        self.blocked: set[tuple[str, str]] = set()  # from whom to whom nothing comes
        self.tasks: list[HostedProcess] = []  # all that ever ran
        self._sent_at: dict[Any, Instant] = {}  # when a message last went out
        self.checker = InvariantChecker(self)
        self.node_activity = NodeActivity(self)
        self.clients = Clients(self)
        self.injector = FaultInjector(self)
        self._set_up(profile)

    def _set_up(self, profile: FaultProfile) -> None:
        for number in range(profile.nodes):
            name = NodeId(f"n{number + 1}")
            ppm = self.random.randint(-profile.node_ppm, profile.node_ppm)
            shows = self.random.randrange(10**9)
            self.hosts[name] = NodeHost(name, profile.slots, SimulatedClock(START, shows, ppm))
            self.pool.machines[name] = PoolNode(
                node=Node(id=name, gpu_type="H100", gpus=profile.gpus, slots=profile.slots)
            )
            self.node_activity.start_agent(self.hosts[name])
        for desk in self.desks.values():
            self.start_process(desk)
        self.clients.create_orgs(profile.orgs)
        self.injector.begin()
        self.after(profile.faults_last, self.calm_down)

    # ----------------------------------------------------------------------- time

    def after(self, span: int, handler: Handler, *args: Any) -> None:
        """Let something happen later."""
        self._number += 1
        heappush(self._heap, (self.at + span, self._number, handler, args))

    def run(self) -> None:
        """Live until everything has settled; `InvariantBroken` if a promise is."""
        while not (self.steps % 8 == 0 and self.is_settled):
            self.step()
        self.checker.check_end()

    def step(self) -> None:
        """Let the next event happen, and check every promise that it may have touched."""
        self.at, _, handler, args = heappop(self._heap)
        self.steps += 1
        self.trace.append((self.at, handler.__name__, args))
        try:
            handler(*args)
        except Crashed:
            self.counts["crash between two writes"] += 1
        self.checker.check_step()

    def calm_down(self) -> None:
        """Nothing fails any more; everything has to settle."""
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
            and not self.pool.outbox
            and all(not org.outbox for org in self.orgs.values())
            and all(job.over for job in self.pool.jobs.values())
            and all(job.is_finished for org in self.orgs.values() for job in org.jobs.values())
            and not any(host.tasks for host in self.hosts.values())
        )

    # ----------------------------------------------------------------------- messages

    def send(self, source: str, target: str, kind: str, body: Any) -> None:
        """Send a message: it may get lost, come twice, late, or after one that was sent later."""
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
        """A message arrives, if somebody is there."""
        if target in self.desks:
            desk = self.desks[target]
            if desk.up and not self._is_stopped(desk.paused_until, source, target, kind, body):
                self._handle_at_pool(desk, source, kind, body)
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
        """Whether somebody is stopped, and will find the message later."""
        if until <= self.at:
            return False
        self.after(until - self.at, self.deliver, *message)
        return True

    def _handle_at_pool(self, desk: PoolProcess, source: str, kind: str, body: Any) -> None:
        if kind == "report":
            self._report(desk, body)
        elif kind == "letter":
            work = self._begin_transaction()
            if work is not None and pool_side.receive(work, body):
                self._commit(desk, work)
                self.send(desk.name, body.org, "ack", (body.job, body.n))
        else:  # an acknowledgement
            work = self._begin_transaction()
            if work is not None:
                work.acknowledge(*body)
                self._commit(desk, work)

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
        elif kind == "letter":
            for _ in org_side.handle(org, body, now):
                self.may_crash(org.id)
            if org_side.is_handled(org, body):
                self.send(org.id, source, "ack", ((body.org, body.job), body.n))
        else:
            org_side.acknowledge(org, *body)

    def may_crash(self, name: str) -> None:
        """Between two transactions, or two actions of an agent, a process may die."""
        if self.failing and self.random.random() < self.profile.crash:
            self.injector.crash(name)
            raise Crashed

    # ----------------------------------------------------------------------- the pool

    def start_process(self, desk: PoolProcess) -> None:
        """Start a process of the pool, with nothing in its memory."""
        desk.boot += 1
        desk.up = True
        desk.forget()
        self.after(self.random.randrange(TICK), self.tick, desk, desk.boot)

    def _begin_transaction(self) -> PoolTransaction | None:
        """A transaction of the pool; none while its clock cannot be believed (D5)."""
        now = self.pool_clock.believed(self.at)
        if now is None:
            self.counts["clock not believed"] += 1
            return None
        return PoolTransaction(self.pool, now)

    def _commit(self, desk: PoolProcess, work: PoolTransaction) -> None:
        """Write, and send what was written for orgs; a process may die before each."""
        self.may_crash(desk.name)
        self.checker.note_transaction(work)
        work.keep()
        self.may_crash(desk.name)
        for (key, n), message in work.letters_new.items():
            self._post(desk, key, n, message)

    def _post(self, desk: PoolProcess, key: JobKey, n: int, message: Any) -> None:
        self._sent_at[desk.name, key, n] = self.at
        self.send(desk.name, key[0], "letter", JobMessage(*key, n, message))

    def tick(self, desk: PoolProcess, boot: int) -> None:
        """A process of the pool looks around: who leads, what has run out, what is to be sent."""
        if not desk.up or desk.boot != boot:
            return
        if desk.paused_until > self.at:
            self.after(desk.paused_until - self.at, self.tick, desk, boot)
            return
        self.after(TICK, self.tick, desk, boot)
        work = self._begin_transaction()
        if work is None:
            return
        epoch = pool_side.lead(work, repr(desk))
        if pool_side.expire(work):
            self.counts["leases or waits that ran out"] += 1
        self._commit(desk, work)
        if epoch != desk.epoch:
            self.counts["changes of leader"] += epoch is not None
            desk.epoch, desk.follower = epoch, None
        if epoch is not None and not desk.deciding:
            self._decide(desk)
        for (key, n), message in self.pool.outbox.items():
            if self._sent_at.get((desk.name, key, n), 0) + RESEND_AFTER <= self.at:
                self._post(desk, key, n, message)

    def _decide(self, desk: PoolProcess) -> None:
        """The leader catches up with what has happened and plans; it writes a moment later."""
        fresh = desk.follower is None
        follower = desk.follower = desk.follower or ClusterMirror(self.policy, self.pool.now)
        desk.seen = 0 if fresh else desk.seen
        news, desk.seen = self.pool.changes[desk.seen :], len(self.pool.changes)
        if not follower.follow(self.pool, news, self.pool.now) and not fresh:
            return
        decisions = carry_out(follower.cluster, self.pool.now).decisions
        if decisions:
            desk.deciding = True
            span = self.random.randrange(20 * MILLISECOND)
            if self.failing and self.random.random() < self.profile.stall:
                self.counts["leader stopped before it writes"] += 1
                desk.paused_until = self.at + self.random.randrange(15 * SECOND)
            self.after(span, self.write, desk, desk.boot, desk.epoch, decisions)

    def write(
        self, desk: PoolProcess, boot: int, epoch: int, decisions: tuple[Decision, ...]
    ) -> None:
        """The leader writes what it has decided, if nothing stands against it by now."""
        if not desk.up or desk.boot != boot:
            return
        if desk.paused_until > self.at:
            self.after(desk.paused_until - self.at, self.write, desk, boot, epoch, decisions)
            return
        desk.deciding = False
        work = self._begin_transaction()
        denied = [Denied.NODE_SILENT] if work is None else self._write(desk, work, epoch, decisions)
        if denied:
            self.counts.update(f"denied: {why}" for why in denied)
            desk.follower = None  # it has carried out what did not happen

    def _write(
        self, desk: PoolProcess, work: PoolTransaction, epoch: int, decisions: tuple[Decision, ...]
    ) -> list[Denied]:
        written = pool_side.write(work, epoch, decisions)
        if written.placed or written.asked:
            self.checker.note_decision(epoch)
        self._commit(desk, work)
        self.counts["attempts placed"] += len(written.placed)
        self.counts["preemptions"] += len(written.asked)
        if desk.follower is not None:
            desk.follower.placed(written.placed)
        return list(written.denied)

    def _report(self, desk: PoolProcess, told: NodeReport) -> None:
        work = self._begin_transaction()
        if work is None:
            return
        orders = reports.report(work, told)
        if orders is None:
            self.counts["report no newer than the last"] += 1
            return
        self._commit(desk, work)
        self.send(desk.name, told.node, "orders", orders)

    # ----------------------------------------------------------------------- orgs

    def post_to_pools(self, org: SimulatedOrg) -> None:
        """Send what an org has for the pool and has not sent a moment ago."""
        for (job, n), message in org.outbox.items():
            if self._sent_at.get((org.id, job, n), 0) + RESEND_AFTER <= self.at:
                self._sent_at[org.id, job, n] = self.at
                target = self.random.choice(("p1", "p2"))
                self.send(org.id, target, "letter", JobMessage(org.id, job, n, message))

    def relay(self, name: str) -> None:
        """An org looks now and then for messages that nobody has acknowledged."""
        self.after(TICK, self.relay, name)
        if name in self.down:
            return
        org, now = self.orgs[name], self.org_clocks[name].believed(self.at)
        if self.profile.mixed and now is not None:
            self.checker.note_org(org)
            for what in run_upkeep(org, now):
                self.counts[what] += 1
                self.may_crash(name)
        self.post_to_pools(org)

    # ----------------------------------------------------------------------- what is planned

    def client_asks(self, call: ClientCall) -> None:
        """A user asks."""
        self.clients.send_call(call)

    def clients_give_up(self) -> None:
        """Users withdraw what nobody has credits for; operators look at how attempts have ended."""
        self.clients.give_up()
        self.clients.correct_ends()

    def inject_fault(self) -> None:
        """Something fails."""
        self.injector.inject()

    def restart(self, name: str) -> None:
        """What was down is started again."""
        self.injector.restart(name)

    def heal(self, links: list[tuple[str, str]]) -> None:
        """Links work again."""
        self.blocked.difference_update(links)

    def set_clock_right(self, clock: SimulatedClock) -> None:
        """A clock is put right again."""
        clock.set_offset(0)
