"""What goes on at the nodes: agents report and act, guards watch, processes run and end."""

from typing import TYPE_CHECKING, Any

from bursar.core.dispatch import agent as node_side
from bursar.core.dispatch.agent import Action, Forget, Kill, Prolong, Remember, Run, Stop
from bursar.core.dispatch.attempt_end import GRACE
from bursar.core.dispatch.reports import LeaseOrders
from bursar.core.dispatch.state import Exit
from bursar.core.instant import MILLISECOND, SECOND, Instant
from bursar.sim.faults.node_host import Host, Task

if TYPE_CHECKING:
    from bursar.sim.faults.world import Handler, World


class Nodes:
    """All nodes of a world."""

    def __init__(self, world: "World") -> None:
        self._world = world

    def start_agent(self, host: Host) -> None:
        """Start a node's agent; it looks after whatever it finds."""
        host.start_agent()
        span = self._world.random.randrange(node_side.REPORT_EVERY)
        self._world.after(span, self.beat, host, host.boot)

    def beat(self, host: Host, boot: int) -> None:
        """An agent reports."""
        if host.agent is None or host.agent.boot != boot:
            return
        until = max(host.paused_until, host.frozen_until)
        if until > self._world.at:
            self._world.after(until - self._world.at, self.beat, host, boot)
            return
        now = host.clock.now(self._world.at)
        told = node_side.report(host.agent, host.table(self._world.at), now)
        self._world.send(host.id, self._world.random.choice(("p1", "p2")), "report", told)
        self._world.after(
            host.clock.when(now + node_side.REPORT_EVERY) - self._world.at, self.beat, host, boot
        )

    def hear(self, host: Host, orders: LeaseOrders) -> None:
        """An agent is answered, and acts."""
        assert host.agent is not None
        now = host.clock.now(self._world.at)
        for action in node_side.hear(host.agent, orders, host.table(self._world.at), now):
            self._act(host, action)
            self._world.may_crash(host.id)

    def _act(self, host: Host, action: Action) -> None:
        """Do what an agent wants done."""
        match action:
            case Remember():
                host.fence = action.fence
            case Run():
                self._run(host, action)
            case Prolong():
                host.tasks[action.fence].until = action.until  # its guard looks when it wakes
            case Stop():
                self._stop(host, host.tasks[action.fence], action.until)
            case Kill():
                self._die_soon(host, host.tasks[action.fence])
            case Forget():
                del host.tasks[action.fence]

    def _run(self, host: Host, run: Run) -> None:
        task = Task(run, host.clock.now(self._world.at), self._world.at)
        self._world.callers.fate(task)
        self._world.watch.started(host, task)
        host.tasks[task.fence] = task
        self._world.tasks.append(task)
        self._world.counts["processes"] += 1
        self._set_guard(host, task)
        at = host.clock.when(task.started_at + task.ends_ms * MILLISECOND)
        self._world.after(at - self._world.at, self.end, host, task, task.ends_as)

    def _set_guard(self, host: Host, task: Task) -> None:
        self._world.after(
            max(host.clock.when(task.until) - self._world.at, 0), self.guard, host, task
        )

    def guard(self, host: Host, task: Task) -> None:
        """A guard looks whether its process's time is over."""
        if not task.alive or self._is_frozen(host, self.guard, host, task):
            return
        if host.clock.now(self._world.at) < task.until:
            self._set_guard(host, task)
        else:
            self._world.counts["processes ended by their guards"] += 1
            self._die_soon(host, task)

    def _die_soon(self, host: Host, task: Task) -> None:
        span = self._world.random.randrange(node_side.KILL * 9 // 10)
        self._world.after(span, self.end, host, task, Exit.KILLED)

    def _stop(self, host: Host, task: Task, until: Instant) -> None:
        """A process makes a checkpoint and ends, unless it is too slow for its guard."""
        takes = self._world.random.randrange(GRACE * 6 // 5)
        task.asked_ms = task.ran_ms(host.clock.now(self._world.at))
        task.stops_ms = task.asked_ms + takes // MILLISECOND
        task.until = until
        self._set_guard(host, task)
        at = host.clock.when(task.started_at + task.stops_ms * MILLISECOND)
        self._world.after(at - self._world.at, self.end, host, task, Exit.STOPPED)

    def end(self, host: Host, task: Task, exit: Exit) -> None:
        """A process ends."""
        if task.alive and not self._is_frozen(host, self.end, host, task, exit):
            self._end(host, task, exit)

    def _end(self, host: Host, task: Task, exit: Exit) -> None:
        task.end(exit, host.clock.now(self._world.at), self._world.at)
        self._world.watch.moved = True
        if exit is Exit.GONE or (exit is Exit.KILLED and task.asked_ms is None):
            self._miss(task)

    def _miss(self, gone: Task) -> None:
        """The others of a gang notice that one is gone: some fail for it, the rest wait."""
        for host in self._world.hosts.values():
            task = host.tasks.get(gone.fence)
            if task is not None and task is not gone and self._world.random.random() < 0.5:
                span = self._world.random.randrange(3 * SECOND)
                self._world.after(span, self.fail, host, task)

    def fail(self, host: Host, task: Task) -> None:
        """A process fails because another of its gang is gone."""
        if task.alive and not self._is_frozen(host, self.fail, host, task):
            task.misses = True
            self._world.counts["processes that missed another"] += 1
            self._end(host, task, Exit.FAILED)

    def _is_frozen(self, host: Host, handler: "Handler", *args: Any) -> bool:
        if host.frozen_until <= self._world.at:
            return False
        self._world.after(host.frozen_until - self._world.at, handler, *args)
        return True

    def thaw(self, host: Host) -> None:
        """A node that was frozen goes on; some of its guards should have acted long ago."""
        if host.frozen_until == self._world.at:
            for task in host.tasks.values():
                if task.alive and host.clock.now(self._world.at) >= task.until:
                    task.outlived_at = self._world.at
            self._world.watch.moved = True

    def lose(self, host: Host, task: Task) -> None:
        """A process is gone with its node; its entry in the table as well."""
        self._end(host, task, Exit.GONE)
