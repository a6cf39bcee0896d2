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
from bursar.sim.faults.checker import Watch
from bursar.sim.faults.clients import Call, Callers
from bursar.sim.faults.clocks import Clock
from bursar.sim.faults.injection import Nemesis
from bursar.sim.faults.job_upkeep import upkeep
from bursar.sim.faults.node_host import Host, Task
from bursar.sim.faults.nodes import Nodes
from bursar.sim.faults.org import Org
from bursar.sim.faults.profile import BEGINS, Profile, drawn

TICK: Final = 2 * SECOND  # how often a process of the pool looks around
SEND_AGAIN: Final = 3 * SECOND  # after which an unacknowledged message is sent again
SETTLES: Final = 15 * SECOND  # after things have failed: then users give up what waits for credits
PATIENCE: Final = 600 * SECOND  # by then everything must have settled
KEPT: Final = 30  # steps that are told when something goes wrong

Handler = Callable[..., None]
Event = tuple[Instant, int, Handler, tuple[Any, ...]]


class Crashed(Exception):
    """A process has died in the middle of what it was doing."""


class Desk:
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


class World:
    """One seed's world."""

    def __init__(self, seed: int, profile: Profile | None = None, *, keep: int = KEPT) -> None:
        self.seed = seed
        self.profile = profile = profile or drawn(seed)
        self.random = Random(f"world/{seed}")
        self.at = BEGINS
        self.counts: Counter[str] = Counter()  # what has happened, faults and others
        self.told: deque[tuple[Instant, str, tuple[Any, ...]]] = deque(maxlen=keep)
        self.steps = 0
        self.failing = True
        self._heap: list[Event] = []
        self._number = 0
        self.policy = PoolPolicy(tiers=(PAID,), grace=GRACE)
        self.pool = Pool()
        self.pool_clock = Clock(BEGINS, BEGINS, self.random.randint(-500, 500))
        self.desks = {name: Desk(name) for name in ("p1", "p2")}
        self.orgs: dict[str, Org] = {}
        self.down: set[str] = set()  # orgs whose process is not there
        self.org_clocks: dict[str, Clock] = {}
        self.hosts: dict[NodeId, Host] = {}
        self.blocked: set[tuple[str, str]] = set()  # from whom to whom nothing comes
        self.tasks: list[Task] = []  # all that ever ran
        self._sent_at: dict[Any, Instant] = {}  # when a message last went out
        self.watch = Watch(self)
        self.nodes = Nodes(self)
        self.callers = Callers(self)
        self.nemesis = Nemesis(self)
        self._set_up(profile)

    def _set_up(self, profile: Profile) -> None:
        for number in range(profile.nodes):
            name = NodeId(f"n{number + 1}")
            ppm = self.random.randint(-profile.node_ppm, profile.node_ppm)
            shows = self.random.randrange(10**9)
            self.hosts[name] = Host(name, profile.slots, Clock(BEGINS, shows, ppm))
            self.pool.machines[name] = PoolNode(
                node=Node(id=name, gpu_type="H100", gpus=profile.gpus, slots=profile.slots)
            )
            self.nodes.start_agent(self.hosts[name])
        for desk in self.desks.values():
            self.start_desk(desk)
        self.callers.found(profile.orgs)
        self.nemesis.begin()
        self.after(profile.lasts, self.calm_down)

    # ----------------------------------------------------------------------- time

    def after(self, span: int, handler: Handler, *args: Any) -> None:
        """Let something happen later."""
        self._number += 1
        heappush(self._heap, (self.at + span, self._number, handler, args))

    def run(self) -> None:
        """Live until everything has settled; `InvariantBroken` if a promise is."""
        while not (self.steps % 8 == 0 and self.settled):
            self.step()
        self.watch.at_the_end()

    def step(self) -> None:
        """Let the next event happen, and check every promise that it may have touched."""
        self.at, _, handler, args = heappop(self._heap)
        self.steps += 1
        self.told.append((self.at, handler.__name__, args))
        try:
            handler(*args)
        except Crashed:
            self.counts["crash between two writes"] += 1
        self.watch.look()

    def calm_down(self) -> None:
        """Nothing fails any more; everything has to settle."""
        self.failing = False
        self.nemesis.heal_everything()
        self.after(SETTLES, self.callers_give_up)
        self.after(PATIENCE, self.watch.not_settled)

    @property
    def settled(self) -> bool:
        """Whether nothing is left to do."""
        return (
            not self.failing
            and self.callers.answered
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
            if desk.up and not self._stopped(desk.paused_until, source, target, kind, body):
                self._at_desk(desk, source, kind, body)
        elif target in self.orgs:
            if target not in self.down:
                self._at_org(self.orgs[target], source, kind, body)
        elif target in self.hosts:
            host = self.hosts[NodeId(target)]
            until = max(host.paused_until, host.frozen_until)
            if host.agent and not self._stopped(until, source, target, kind, body):
                self.nodes.hear(host, body)
        else:
            self.callers.hear(kind, body)

    def _stopped(self, until: Instant, *message: Any) -> bool:
        """Whether somebody is stopped, and will find the message later."""
        if until <= self.at:
            return False
        self.after(until - self.at, self.deliver, *message)
        return True

    def _at_desk(self, desk: Desk, source: str, kind: str, body: Any) -> None:
        if kind == "report":
            self._report(desk, body)
        elif kind == "letter":
            work = self._work()
            if work is not None and pool_side.receive(work, body):
                self._keep(desk, work)
                self.send(desk.name, body.org, "ack", (body.job, body.n))
        else:  # an acknowledgement
            work = self._work()
            if work is not None:
                work.acknowledge(*body)
                self._keep(desk, work)

    def _at_org(self, org: Org, source: str, kind: str, body: Any) -> None:
        now = self.org_clocks[org.id].believed(self.at)
        if now is None:
            self.counts["clock not believed"] += 1
            return
        self.watch.touched(org)
        if kind == "call":
            answer = self.callers.do(org, body, now)
            self.may_crash(org.id)
            self.post_of_org(org)
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
            self.nemesis.crash(name)
            raise Crashed

    # ----------------------------------------------------------------------- the pool

    def start_desk(self, desk: Desk) -> None:
        """Start a process of the pool, with nothing in its memory."""
        desk.boot += 1
        desk.up = True
        desk.forget()
        self.after(self.random.randrange(TICK), self.tick, desk, desk.boot)

    def _work(self) -> PoolTransaction | None:
        """A transaction of the pool; none while its clock cannot be believed (D5)."""
        now = self.pool_clock.believed(self.at)
        if now is None:
            self.counts["clock not believed"] += 1
            return None
        return PoolTransaction(self.pool, now)

    def _keep(self, desk: Desk, work: PoolTransaction) -> None:
        """Write, and send what was written for orgs; a process may die before each."""
        self.may_crash(desk.name)
        self.watch.writing(work)
        work.keep()
        self.may_crash(desk.name)
        for (key, n), message in work.letters_new.items():
            self._post(desk, key, n, message)

    def _post(self, desk: Desk, key: JobKey, n: int, message: Any) -> None:
        self._sent_at[desk.name, key, n] = self.at
        self.send(desk.name, key[0], "letter", JobMessage(*key, n, message))

    def tick(self, desk: Desk, boot: int) -> None:
        """A process of the pool looks around: who leads, what has run out, what is to be sent."""
        if not desk.up or desk.boot != boot:
            return
        if desk.paused_until > self.at:
            self.after(desk.paused_until - self.at, self.tick, desk, boot)
            return
        self.after(TICK, self.tick, desk, boot)
        work = self._work()
        if work is None:
            return
        epoch = pool_side.lead(work, repr(desk))
        if pool_side.expire(work):
            self.counts["leases or waits that ran out"] += 1
        self._keep(desk, work)
        if epoch != desk.epoch:
            self.counts["changes of leader"] += epoch is not None
            desk.epoch, desk.follower = epoch, None
        if epoch is not None and not desk.deciding:
            self._decide(desk)
        for (key, n), message in self.pool.outbox.items():
            if self._sent_at.get((desk.name, key, n), 0) + SEND_AGAIN <= self.at:
                self._post(desk, key, n, message)

    def _decide(self, desk: Desk) -> None:
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

    def write(self, desk: Desk, boot: int, epoch: int, decisions: tuple[Decision, ...]) -> None:
        """The leader writes what it has decided, if nothing stands against it by now."""
        if not desk.up or desk.boot != boot:
            return
        if desk.paused_until > self.at:
            self.after(desk.paused_until - self.at, self.write, desk, boot, epoch, decisions)
            return
        desk.deciding = False
        work = self._work()
        denied = [Denied.NODE_SILENT] if work is None else self._write(desk, work, epoch, decisions)
        if denied:
            self.counts.update(f"denied: {why}" for why in denied)
            desk.follower = None  # it has carried out what did not happen

    def _write(
        self, desk: Desk, work: PoolTransaction, epoch: int, decisions: tuple[Decision, ...]
    ) -> list[Denied]:
        written = pool_side.write(work, epoch, decisions)
        if written.placed or written.asked:
            self.watch.deciding(epoch)
        self._keep(desk, work)
        self.counts["attempts placed"] += len(written.placed)
        self.counts["preemptions"] += len(written.asked)
        if desk.follower is not None:
            desk.follower.placed(written.placed)
        return list(written.denied)

    def _report(self, desk: Desk, told: NodeReport) -> None:
        work = self._work()
        if work is None:
            return
        orders = reports.report(work, told)
        if orders is None:
            self.counts["report no newer than the last"] += 1
            return
        self._keep(desk, work)
        self.send(desk.name, told.node, "orders", orders)

    # ----------------------------------------------------------------------- orgs

    def post_of_org(self, org: Org) -> None:
        """Send what an org has for the pool and has not sent a moment ago."""
        for (job, n), message in org.outbox.items():
            if self._sent_at.get((org.id, job, n), 0) + SEND_AGAIN <= self.at:
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
            self.watch.touched(org)
            for what in upkeep(org, now):
                self.counts[what] += 1
                self.may_crash(name)
        self.post_of_org(org)

    # ----------------------------------------------------------------------- what is planned

    def callers_ask(self, call: Call) -> None:
        """A user asks."""
        self.callers.ask(call)

    def callers_give_up(self) -> None:
        """Users withdraw what nobody has credits for; operators look at how attempts have ended."""
        self.callers.give_up()
        self.callers.correct_ends()

    def fault(self) -> None:
        """Something fails."""
        self.nemesis.strike()

    def back(self, name: str) -> None:
        """What was down is started again."""
        self.nemesis.back(name)

    def heal(self, links: list[tuple[str, str]]) -> None:
        """Links work again."""
        self.blocked.difference_update(links)

    def put_right(self, clock: Clock) -> None:
        """A clock is put right again."""
        clock.put(0)
