"""Faults, each a function of a world; what they do is over when they return."""

import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final

from tests.chaos.line import BOTH, Line, Way
from tests.chaos.programs import FAKETIME, Program, guards_in, signal_to
from tests.chaos.world import TAKEOVER_S, World
from tests.support.patience import Stuck, eventually

SOON_S: Final = 5.0
Fault = Callable[[World], None]


@contextmanager
def _stopped(one: Program) -> Iterator[None]:
    """A program that does nothing."""
    one.ours = True
    one.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        one.signal(signal.SIGCONT)
        one.ours = False


# Processes


def kill_service(world: World) -> None:
    """Kill a service, wherever it is."""
    world.chance.choice(world.services).kill()


def _leader(world: World) -> list[Program]:
    """The service that leads the pool; none if nobody does for a while."""

    def leads() -> list[Program]:
        _, pid = world.epoch()
        return [one for one in world.services if one.pid == pid and not one.still_s]

    with suppress(Stuck):
        return list(eventually(leads, "a service leads", TAKEOVER_S))
    return []


def kill_leader(world: World) -> None:
    """Kill the service that leads the pool."""
    for one in _leader(world):
        one.kill()


def stop_leader(world: World) -> None:
    """Let the leader stand still until another leads; then there are two who believe to."""
    for one in _leader(world):
        with _stopped(one), suppress(Stuck):
            _await_another(world, one.pid)


def _await_another(world: World, pid: int) -> None:
    began = time.monotonic()
    eventually(lambda: world.epoch()[1] != pid, "another leads", TAKEOVER_S)
    world.takeovers_s.append(time.monotonic() - began)
    world.two_leaders += 1


def stop_service(world: World) -> None:
    """Stop a service for less than a term, or for longer."""
    with _stopped(world.chance.choice(world.services)):
        time.sleep(world.chance.choice((0.3, 4.0)))


def kill_agent(world: World) -> None:
    """Kill an agent; what it has started goes on."""
    world.chance.choice(list(world.agents.values())).kill()


def stop_agent(world: World) -> None:
    """Stop an agent: its node says nothing."""
    with _stopped(world.chance.choice(list(world.agents.values()))):
        time.sleep(world.chance.choice((0.5, 3.0)))


def _guards(world: World) -> list[int]:
    """The guard of one of the processes that run; none if nothing does."""
    with suppress(Stuck):
        found = eventually(lambda: guards_in(world.folder), "something runs", SOON_S)
        return [world.chance.choice(sorted(found))]
    return []


def kill_guard(world: World) -> None:
    """Kill the guard of a process."""
    for pid in _guards(world):
        signal_to(pid, signal.SIGKILL)


def stop_guard(world: World) -> None:
    """Stop a guard, for less than the margin that its lease leaves."""
    for pid in _guards(world):
        signal_to(pid, signal.SIGSTOP)
        time.sleep(world.chance.choice((0.5, 2.0)))
        signal_to(pid, signal.SIGCONT)


# The database


def kill_database(world: World) -> None:
    """Kill PostgreSQL's first process, and start it again as soon as that can be done."""
    server = world.server
    assert server.process is not None
    server.process.kill()
    server.process.wait(timeout=120)

    def started() -> bool:
        with suppress(AssertionError):  # others of it are still there
            server.start()
            return True
        return False

    eventually(started, "PostgreSQL is back")


_BACKENDS: Final = """
    select pid from pg_stat_activity
     where backend_type = 'client backend' and pid <> pg_backend_pid() order by pid
"""


def kill_backend(world: World) -> None:
    """Kill the process behind one connection: PostgreSQL begins all of them anew."""
    signal_to(_backend(world), signal.SIGKILL)


def stop_backend(world: World) -> None:
    """Stop the process behind one connection, perhaps with a lock."""
    pid = _backend(world)
    signal_to(pid, signal.SIGSTOP)
    time.sleep(world.chance.choice((0.3, 2.0)))
    signal_to(pid, signal.SIGCONT)


def _backend(world: World) -> int:
    found = eventually(lambda: world.ask(_BACKENDS), "somebody is connected")
    return int(world.chance.choice(found)[0])


def jump_clock(world: World) -> None:
    """Put the database's clock wrong by minutes or a day; no process trusts it.

    Processes may start meanwhile: they compare it with what their machine has recorded.
    """
    if not FAKETIME:
        return
    offset = world.folder / "clock" / "offset"
    offset.write_text(world.chance.choice(("+7m", "-5m", "+1d")))
    try:
        time.sleep(1.5)
    finally:
        offset.write_text("+0")
        time.sleep(0.2)


# Lines


@contextmanager
def _failing(line: Line) -> Iterator[None]:
    try:
        yield
    finally:
        line.heal()


def _cut(line: Line, chance: random.Random) -> None:
    line.cut()


def _delay(line: Line, chance: random.Random) -> None:
    with _failing(line):
        line.delay_s = chance.choice((0.02, 0.2))
        time.sleep(1.5)


def _swallow(line: Line, chance: random.Random) -> None:
    with _failing(line):
        line.swallows = BOTH
        time.sleep(chance.choice((0.5, 2.5)))


def _lose_answers(line: Line, chance: random.Random) -> None:
    with _failing(line):
        line.swallows = frozenset({Way.BACK})
        time.sleep(chance.choice((0.5, 2.5)))


def _refuse(line: Line, chance: random.Random) -> None:
    with _failing(line):
        line.refuses = True
        line.cut()
        time.sleep(0.5)


def _of(name: str, fail: Callable[[Line, random.Random], None]) -> Fault:
    return lambda world: fail(getattr(world, name), world.chance)


def lose_commits(world: World) -> None:
    """Lose the answers to commits, every second one: nobody knows what has happened."""
    line, chance = world.database, random.Random(world.chance.random())
    with _failing(line):
        line.loses = lambda: chance.random() < 0.5
        time.sleep(1.0)


FAULTS: Final[Mapping[str, Fault]] = {
    **{
        fault.__name__: fault
        for fault in (
            kill_service, kill_leader, stop_leader, stop_service, kill_agent, stop_agent,
            kill_guard, stop_guard, kill_database, kill_backend, stop_backend, jump_clock,
            lose_commits,
        )
    },
    **{
        f"{fail.__name__[1:]}_{name}": _of(name, fail)
        for name in ("database", "api")
        for fail in (_cut, _delay, _swallow, _lose_answers, _refuse)
    },
}  # fmt: skip
