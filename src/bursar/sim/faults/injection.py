"""Injects faults, and ends them again."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from bursar.core.ids import NodeId
from bursar.core.instant import HOUR, SECOND

if TYPE_CHECKING:
    from bursar.sim.faults.world import FaultWorld


class FaultInjector:
    """Injects faults, one after another and several at once."""

    def __init__(self, world: "FaultWorld") -> None:
        self._world = world
        self._random = world.random

    def begin(self) -> None:
        """Plan the first fault."""
        self._plan_next()

    def _plan_next(self) -> None:
        every = self._world.profile.faults_every
        self._world.after(
            self._random.randrange(every // 2, every * 3 // 2), self._world.inject_fault
        )

    def inject(self) -> None:
        """Inject one fault, and plan the next."""
        world = self._world
        if not world.failing:
            return
        self._plan_next()
        kinds = world.profile.kinds or tuple(FAULTS)
        kind = self._random.choice(kinds)
        if kind != "freeze" or world.profile.freezes:
            world.counts[kind] += 1
            FAULTS[kind](self)

    def _span(self, least: int, most: int) -> int:
        return self._random.randint(least * SECOND, most * SECOND)

    # ----------------------------------------------------------------------- processes

    def crash(self, name: str) -> None:
        """Kill a process at any point; it is started again some time later."""
        world = self._world
        back = self._span(1, 15)
        if name in world.processes:
            world.processes[name].up = False
            world.after(back, world.restart, name)
        elif name in world.orgs:
            world.down.add(name)
            world.after(back, world.restart, name)
        elif world.hosts[NodeId(name)].agent is not None:
            world.hosts[NodeId(name)].agent = None
            world.after(self._span(1, 50), world.restart, name)

    def crash_any(self) -> None:
        """Kill a random process."""
        world = self._world
        self.crash(self._random.choice([*world.processes, *sorted(world.orgs), *world.hosts]))

    def pause_process(self) -> None:
        """Pause a process for a while; it does not notice when it resumes."""
        world = self._world
        name = self._random.choice([*world.processes, *world.processes, *world.hosts])
        if name in world.processes:
            world.processes[name].paused_until = world.at + self._span(1, 20)
        else:
            world.hosts[NodeId(name)].paused_until = world.at + self._span(1, 50)

    def freeze_node(self) -> None:
        """Pause a whole node, including its guards; they do not notice when they resume."""
        world = self._world
        host = world.hosts[self._random.choice(list(world.hosts))]
        if host.frozen_until <= world.at and host.has_power:
            host.frozen_until = world.at + self._span(2, 60)
            world.after(host.frozen_until - world.at, world.node_activity.thaw_node, host)

    def cut_power(self) -> None:
        """Cut the power of a node: its processes are lost, its disk is not."""
        world = self._world
        host = world.hosts[self._random.choice(list(world.hosts))]
        if host.has_power and host.frozen_until <= world.at:
            host.has_power, host.agent = False, None
            for task in host.tasks.values():
                if task.is_alive:
                    world.node_activity.lose_process(host, task)
            host.tasks.clear()
            world.after(self._span(5, 60), world.restart, host.id)

    def restart(self, name: str) -> None:
        """Start a process, an org or a node that is down."""
        world = self._world
        if name in world.processes:
            if not world.processes[name].up:
                world.start_process(world.processes[name])
        elif name in world.orgs:
            world.down.discard(name)
        else:
            host = world.hosts[NodeId(name)]
            host.has_power = True
            if host.agent is None:
                world.node_activity.start_agent(host)

    # ----------------------------------------------------------------------- links and clocks

    def cut_links(self) -> None:
        """Cut links between parts, in one direction or both."""
        world = self._world
        names = [*world.processes, *sorted(world.orgs), *world.hosts]
        cut = self._random.sample(names, self._random.randint(1, 2))
        rest = [name for name in names if name not in cut]
        links: list[tuple[str, str]] = []
        way = self._random.choice(("in", "out", "both"))
        for name in cut:
            for other in rest:
                if way != "out":
                    links.append((other, name))
                if way != "in":
                    links.append((name, other))
        world.blocked.update(links)
        world.after(self._span(2, 45), world.heal, links)

    def jump_clock(self) -> None:
        """Set a database's clock wrong: by a little, which is accepted, or by a lot."""
        world = self._world
        clock = self._random.choice(
            [*(pool.clock for pool in world.pools.values()), *world.org_clocks.values()]
        )
        if self._random.random() < 0.7:
            clock.set_offset(self._random.randint(-4_900_000, 4_900_000))
        else:
            clock.set_offset(self._random.choice((-HOUR, HOUR, 24 * HOUR)))
            world.counts["jump beyond belief"] += 1
            world.after(self._span(2, 20), world.set_clock_right, clock)

    def heal_everything(self) -> None:
        """End all faults."""
        world = self._world
        world.blocked.clear()
        for clock in (*(pool.clock for pool in world.pools.values()), *world.org_clocks.values()):
            clock.set_offset(0)
        for name in (*world.processes, *world.orgs, *world.hosts):
            self.restart(name)
        for process in world.processes.values():
            process.paused_until = min(process.paused_until, world.at)
        for host in world.hosts.values():
            host.paused_until = min(host.paused_until, world.at)


FAULTS: Final[dict[str, Callable[[FaultInjector], None]]] = {
    "crash": FaultInjector.crash_any,
    "pause": FaultInjector.pause_process,
    "freeze": FaultInjector.freeze_node,
    "power": FaultInjector.cut_power,
    "partition": FaultInjector.cut_links,
    "jump": FaultInjector.jump_clock,
}
