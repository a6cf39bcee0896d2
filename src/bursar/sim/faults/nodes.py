"""The activity of nodes: agents report and act, guards watch, processes run and end."""

from typing import TYPE_CHECKING, Any

from bursar.core.dispatch import agent as node_side
from bursar.core.dispatch.agent import Action, Forget, Kill, Prolong, Remember, Run, Stop
from bursar.core.dispatch.attempt_end import STOP_GRACE
from bursar.core.dispatch.reports import LeaseOrders
from bursar.core.dispatch.state import Exit
from bursar.core.instant import MILLISECOND, SECOND, Instant
from bursar.sim.faults.node_host import HostedProcess, NodeHost

if TYPE_CHECKING:
    from bursar.sim.faults.world import FaultWorld, Handler


class NodeActivity:
    """The activity of all nodes of a world."""

    def __init__(self, world: "FaultWorld") -> None:
        self._world = world

    def start_agent(self, host: NodeHost) -> None:
        """Start a node's agent; it takes over the processes it finds."""
        host.start_agent()
        span = self._world.random.randrange(node_side.REPORT_INTERVAL)
        self._world.after(span, self.report, host, host.boot)

    def report(self, host: NodeHost, boot: int) -> None:
        """An agent sends a report."""
        if host.agent is None or host.agent.boot != boot:
            return
        until = max(host.paused_until, host.frozen_until)
        if until > self._world.at:
            self._world.after(until - self._world.at, self.report, host, boot)
            return
        now = host.clock.now(self._world.at)
        report = node_side.make_report(host.agent, host.table(self._world.at), now)
        self._world.send(
            host.id, self._world.random.choice(self._processes_of(host)), "report", report
        )
        self._world.after(
            host.clock.when(now + node_side.REPORT_INTERVAL) - self._world.at,
            self.report,
            host,
            boot,
        )

    def _processes_of(self, host: NodeHost) -> tuple[str, ...]:
        return tuple(self._world.pools[host.pool].processes)

    def follow_orders(self, host: NodeHost, orders: LeaseOrders) -> None:
        """An agent receives an answer, and acts."""
        assert host.agent is not None
        now = host.clock.now(self._world.at)
        for action in node_side.follow_orders(host.agent, orders, host.table(self._world.at), now):
            self._act(host, action)
            self._world.may_crash(host.id)

    def _act(self, host: NodeHost, action: Action) -> None:
        """Carry out an action of an agent."""
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
                self._kill(host, host.tasks[action.fence])
            case Forget():
                del host.tasks[action.fence]

    def _run(self, host: NodeHost, run: Run) -> None:
        task = HostedProcess(run, host.clock.now(self._world.at), self._world.at)
        pool = self._world.pools[host.pool]
        self._world.clients.set_fate(pool, task)
        self._world.checker.note_start(host, task)
        host.tasks[task.fence] = task
        pool.tasks.append(task)
        self._world.counts["processes"] += 1
        self._set_guard(host, task)
        at = host.clock.when(task.started_at + task.ends_ms * MILLISECOND)
        self._world.after(at - self._world.at, self.end_process, host, task, task.ends_as)

    def _set_guard(self, host: NodeHost, task: HostedProcess) -> None:
        self._world.after(
            max(host.clock.when(task.until) - self._world.at, 0), self.check_guard, host, task
        )

    def check_guard(self, host: NodeHost, task: HostedProcess) -> None:
        """A guard checks whether the time of its process is over."""
        if not task.is_alive or self._is_frozen(host, self.check_guard, host, task):
            return
        if host.clock.now(self._world.at) < task.until:
            self._set_guard(host, task)
        else:
            self._world.counts["processes ended by their guards"] += 1
            self._kill(host, task)

    def _kill(self, host: NodeHost, task: HostedProcess) -> None:
        span = self._world.random.randrange(node_side.KILL_SPAN * 9 // 10)
        self._world.after(span, self.end_process, host, task, Exit.KILLED)

    def _stop(self, host: NodeHost, task: HostedProcess, until: Instant) -> None:
        """A process makes a checkpoint and exits, unless its guard kills it first."""
        takes = self._world.random.randrange(STOP_GRACE * 6 // 5)
        task.asked_ms = task.ran_ms(host.clock.now(self._world.at))
        task.stops_ms = task.asked_ms + takes // MILLISECOND
        task.until = until
        self._set_guard(host, task)
        at = host.clock.when(task.started_at + task.stops_ms * MILLISECOND)
        self._world.after(at - self._world.at, self.end_process, host, task, Exit.STOPPED)

    def end_process(self, host: NodeHost, task: HostedProcess, exit: Exit) -> None:
        """A process ends."""
        if task.is_alive and not self._is_frozen(host, self.end_process, host, task, exit):
            self._end(host, task, exit)

    def _end(self, host: NodeHost, task: HostedProcess, exit: Exit) -> None:
        task.end(exit, host.clock.now(self._world.at), self._world.at)
        self._world.checker.is_process_changed = True
        if exit is Exit.GONE or (exit is Exit.KILLED and task.asked_ms is None):
            self._disturb_gang(host, task)

    def _disturb_gang(self, origin: NodeHost, gone: HostedProcess) -> None:
        """The other processes of a gang notice that one is gone: some fail, the rest wait."""
        for host in self._world.pools[origin.pool].hosts.values():
            task = host.tasks.get(gone.fence)
            if task is not None and task is not gone and self._world.random.random() < 0.5:
                span = self._world.random.randrange(3 * SECOND)
                self._world.after(span, self.fail_process, host, task)

    def fail_process(self, host: NodeHost, task: HostedProcess) -> None:
        """A process fails because another one of its gang is gone."""
        if task.is_alive and not self._is_frozen(host, self.fail_process, host, task):
            task.misses_gang = True
            self._world.counts["processes that missed another"] += 1
            self._end(host, task, Exit.FAILED)

    def _is_frozen(self, host: NodeHost, handler: "Handler", *args: Any) -> bool:
        if host.frozen_until <= self._world.at:
            return False
        self._world.after(host.frozen_until - self._world.at, handler, *args)
        return True

    def thaw_node(self, host: NodeHost) -> None:
        """A frozen node resumes; the time of some guards may have passed long ago."""
        if host.frozen_until == self._world.at:
            for task in host.tasks.values():
                if task.is_alive and host.clock.now(self._world.at) >= task.until:
                    task.outlived_at = self._world.at
            self._world.checker.is_process_changed = True

    def lose_process(self, host: NodeHost, task: HostedProcess) -> None:
        """A process is lost with its node, and so is its entry in the table."""
        self._end(host, task, Exit.GONE)
