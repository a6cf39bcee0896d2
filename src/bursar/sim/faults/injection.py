"""What fails, when, and for how long; all of it is made good again."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from bursar.core.ids import NodeId
from bursar.core.instant import HOUR, SECOND

if TYPE_CHECKING:
    from bursar.sim.faults.world import World


class Nemesis:
    """Makes things fail, one after the other and several at once."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._random = world.random

    def begin(self) -> None:
        """Plan the first fault."""
        self._again()

    def _again(self) -> None:
        every = self._world.profile.faults_every
        self._world.after(self._random.randrange(every // 2, every * 3 // 2), self._world.fault)

    def strike(self) -> None:
        """Let one thing fail, and plan the next."""
        world = self._world
        if not world.failing:
            return
        self._again()
        kinds = world.profile.kinds or tuple(FAULTS)
        kind = self._random.choice(kinds)
        if kind != "freeze" or world.profile.freezes:
            world.counts[kind] += 1
            FAULTS[kind](self)

    def _span(self, least: int, most: int) -> int:
        return self._random.randint(least * SECOND, most * SECOND)

    # ----------------------------------------------------------------------- processes

    def crash(self, name: str) -> None:
        """A process dies, whatever it was doing, and is started again some time later."""
        world = self._world
        back = self._span(1, 15)
        if name in world.desks:
            world.desks[name].up = False
            world.after(back, world.back, name)
        elif name in world.orgs:
            world.down.add(name)
            world.after(back, world.back, name)
        elif world.hosts[NodeId(name)].agent is not None:
            world.hosts[NodeId(name)].agent = None
            world.after(self._span(1, 50), world.back, name)

    def crash_any(self) -> None:
        """Some process dies."""
        world = self._world
        self.crash(self._random.choice([*world.desks, *sorted(world.orgs), *world.hosts]))

    def pause(self) -> None:
        """A process is stopped for a while; it knows nothing of it when it goes on."""
        world = self._world
        name = self._random.choice([*world.desks, *world.desks, *world.hosts])
        if name in world.desks:
            world.desks[name].paused_until = world.at + self._span(1, 20)
        else:
            world.hosts[NodeId(name)].paused_until = world.at + self._span(1, 50)

    def freeze(self) -> None:
        """A whole node stands still, its guards included, and goes on as if nothing had been."""
        world = self._world
        host = world.hosts[self._random.choice(list(world.hosts))]
        if host.frozen_until <= world.at and host.on:
            host.frozen_until = world.at + self._span(2, 60)
            world.after(host.frozen_until - world.at, world.nodes.thaw, host)

    def power(self) -> None:
        """A node loses its power: whatever ran there is gone, its disk is not."""
        world = self._world
        host = world.hosts[self._random.choice(list(world.hosts))]
        if host.on and host.frozen_until <= world.at:
            host.on, host.agent = False, None
            for task in host.tasks.values():
                if task.alive:
                    world.nodes.lose(host, task)
            host.tasks.clear()
            world.after(self._span(5, 60), world.back, host.id)

    def back(self, name: str) -> None:
        """What was down is started again."""
        world = self._world
        if name in world.desks:
            if not world.desks[name].up:
                world.start_desk(world.desks[name])
        elif name in world.orgs:
            world.down.discard(name)
        else:
            host = world.hosts[NodeId(name)]
            host.on = True
            if host.agent is None:
                world.nodes.start_agent(host)

    # ----------------------------------------------------------------------- links and clocks

    def partition(self) -> None:
        """Some cannot be reached by others, or reach them, or both."""
        world = self._world
        names = [*world.desks, *sorted(world.orgs), *world.hosts]
        cut = self._random.sample(names, self._random.randint(1, 2))
        rest = [name for name in names if name not in cut]
        links: list[tuple[str, str]] = []
        way = self._random.choice(("in", "out", "both"))
        for one in cut:
            for other in rest:
                if way != "out":
                    links.append((other, one))
                if way != "in":
                    links.append((one, other))
        world.blocked.update(links)
        world.after(self._span(2, 45), world.heal, links)

    def jump(self) -> None:
        """A database's clock is put wrong: by a little, which is believed, or by a lot."""
        world = self._world
        clock = self._random.choice([world.pool_clock, *world.org_clocks.values()])
        if self._random.random() < 0.7:
            clock.put(self._random.randint(-4_900_000, 4_900_000))
        else:
            clock.put(self._random.choice((-HOUR, HOUR, 24 * HOUR)))
            world.counts["jump beyond belief"] += 1
            world.after(self._span(2, 20), world.put_right, clock)

    def heal_everything(self) -> None:
        """Nothing is wrong any more."""
        world = self._world
        world.blocked.clear()
        for clock in (world.pool_clock, *world.org_clocks.values()):
            clock.put(0)
        for name in (*world.desks, *world.orgs, *world.hosts):
            self.back(name)
        for desk in world.desks.values():
            desk.paused_until = min(desk.paused_until, world.at)
        for host in world.hosts.values():
            host.paused_until = min(host.paused_until, world.at)


FAULTS: Final[dict[str, Callable[[Nemesis], None]]] = {
    "crash": Nemesis.crash_any,
    "pause": Nemesis.pause,
    "freeze": Nemesis.freeze,
    "power": Nemesis.power,
    "partition": Nemesis.partition,
    "jump": Nemesis.jump,
}
