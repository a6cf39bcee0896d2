"""A round of chaos: a world at work, faults from a seed, and what must be true when it is quiet."""

import signal
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from tests.chaos.checks import audited, books_of, runs_in, wrong
from tests.chaos.faults import FAULTS
from tests.chaos.programs import Program
from tests.chaos.tenants import POOL
from tests.chaos.world import World, deployed
from tests.support.databases import connected
from tests.support.patience import Stuck, eventually

PROGRESS_S: Final = 1.5  # that a fault waits for somebody to be at work
ARMED_S: Final = 4.0  # that a process has to come to the points it is armed with
POINTS_S: Final = 240.0  # that is gone on for until every failpoint has struck
REST_S: Final = 240.0  # in which everything comes to an end once nothing fails any more
ENDING_S: Final = 60.0  # in which everybody stops that is asked to
SLOWEST: Final = "slowest takeover, ms"


class Wrong(AssertionError):
    """A promise was broken."""


class Invalid(AssertionError):
    """So little has happened that nothing is shown."""


class Seen(NamedTuple):
    """What a round came to."""

    counts: Counter[str]
    faults: Counter[str]
    missed: tuple[str, ...]  # failpoints that have not struck


# The least that a round needs to show anything.
NEEDED: Final[Mapping[str, int]] = MappingProxyType(
    {
        "jobs": 30,
        "starts": 30,
        "succeeded": 10,
        "preempted": 1,
        "lost": 2,
        "cancelled": 2,
        "submitted twice": 5,
        "arrays": 1,
        "results shared": 1,
        "killed": 20,
        "unheard": 10,
        "connections broken": 10,
        "two leaders": 1,
    }
)


def a_round(folder: Path, seed: int, faults: Sequence[str], *, armed: bool = False) -> Seen:
    """Let everybody work while one fault follows the other; then check all of it.

    Failpoints of services are armed from the beginning, or when the faults are over. Raises
    `Wrong`, `Stuck` if something does not come to its end, and `Invalid`.
    """
    with deployed(folder, seed) as world:
        tenants = [threading.Thread(target=one.run, daemon=True) for one in world.tenants]
        for one in tenants:
            one.start()
        try:
            _harm(world, faults, armed=armed)
            struck = _heal(world, tenants)
            _come_to_rest(world)
            _end(world)
            seen = _seen(world, struck)
            _check(world)
            _is_enough(seen)
        except AssertionError:
            world.keep_tables()
            raise
    return seen


def _harm(world: World, faults: Sequence[str], *, armed: bool) -> None:
    """Let one fault follow the other, and each failpoint strike: those of nodes at the same time,
    so that there is something to run, those of services too, or then.
    """
    agents = list(world.agents.values())
    _arm(world, world.programs if armed else agents)
    for name in faults:
        _await_work(world)
        world.say(name)
        FAULTS[name](world)
        world.faults[name] += 1
    if not armed:
        _arm(world, world.programs)
    give_up_at = time.monotonic() + POINTS_S
    while (left := world.points.all - world.points.struck) and time.monotonic() < give_up_at:
        time.sleep(ARMED_S)
        _arm_anew(world, left)
    with suppress(Stuck):  # whoever stands still goes on when it has done its harm
        eventually(lambda: not any(one.still_s for one in world.programs), "all are at work")


def _arm(world: World, programs: Sequence[Program]) -> None:
    """Kill programs all at once, and arm them from then on."""
    _await_work(world)
    world.say(f"{len(programs)} are killed at once, and armed when they are back")
    for one in programs:
        one.arms = True
        one.kill()


def _arm_anew(world: World, left: frozenset[str]) -> None:
    """Kill somebody who may come to a point that has not struck, so that it is armed with it."""
    agents = list(world.agents.values()) if not all(_is_service(one) for one in left) else []
    services = world.services if any(map(_is_service, left - world.points.seldom)) else []
    for some in (agents, services):
        if moving := [one for one in some if not one.still_s]:
            world.chance.choice(moving).kill()


def _is_service(what: str) -> bool:
    return not what.startswith(("agent.", "guard."))


def _await_work(world: World) -> None:
    """Wait until something has started since: a fault that hits nobody shows nothing."""
    wanted, give_up_at = world.starts() + world.chance.randint(1, 3), time.monotonic() + PROGRESS_S
    while world.starts() < wanted and time.monotonic() < give_up_at:
        time.sleep(0.05)


def _heal(world: World, tenants: Sequence[threading.Thread]) -> frozenset[str]:
    """Let nothing fail any more, and nobody ask for more."""
    struck = world.points.disarm()
    world.say("heals")
    world.stopped.set()
    for line in (world.database, world.api):
        line.heal()
    for one in world.programs:
        one.signal(signal.SIGCONT)
    for thread in tenants:
        thread.join(REST_S)
        if thread.is_alive():
            raise Stuck("a tenant is not answered although nothing fails any more")
    return struck


_NOT_OVER: Final = """
    select (select count(*) from jobs where ended_at is null)
         + (select count(*) from leases where ended_at is null)
         + (select count(*) from org_outbox where acked_at is null)
         + (select count(*) from pool_outbox where acked_at is null)
"""
_KEPT_AWAY: Final = "select node_id from nodes where (trouble ->> 'until')::bigint > 0"
_STARVED: Final = "select job_id from jobs where rolling and ended_at is null and not withdrawn"


def _come_to_rest(world: World) -> None:
    """Wait until everything is over; who has hardly any credits is withdrawn."""

    def over() -> bool:
        for (job,) in world.ask(_STARVED):
            world.operate(f"/v1/jobs/{job}/cancel", {})
        for (node,) in world.ask(_KEPT_AWAY):  # it was harmed too often
            world.operate(f"/v1/pools/{POOL}/nodes/{node}/state", {"state": "ready"})
        return world.ask(_NOT_OVER) == [(0,)]

    world.say("comes to rest")
    eventually(over, "everything is over", REST_S)


def _end(world: World) -> None:
    """Everybody stops when asked to."""
    world.say("ends")
    world.over.set()
    time.sleep(0.2)  # whoever looks after the programs has seen it
    for one in world.programs:
        one.signal(signal.SIGTERM)
    for one in world.programs:
        status = one.see_it_end(ENDING_S)
        if status != 0:
            raise Wrong(f"{one.name} has ended with {status} when it was asked to stop")


def _seen(world: World, struck: frozenset[str]) -> Seen:
    whys: Counter[str] = Counter(dict(world.ask("select why, count(*) from leases group by why")))
    [(arrays, shared)] = world.ask("select count(elements), count(cached_from) from jobs")
    score = world.score
    ends: Counter[str] = sum((one.ends for one in world.programs), Counter())
    counts = Counter(
        {
            "jobs": len(score.jobs),
            "starts": world.starts(),
            "succeeded": whys["finished"],
            "preempted": whys["preempted"] + whys["made_room"],
            "out of credits": whys["out_of_credits"],
            "lost": whys["lost"],
            "cancelled": len(score.cancelled),
            "extended": score.extended,
            "submitted twice": score.twice,
            "arrays": arrays,
            "results shared": shared,
            "refused": score.refused.total(),
            "unheard": score.unheard,
            "killed": ends["killed"],
            "connections broken": world.database.broken + world.api.broken,
            "lost commits": world.database.lost_commits,
            "two leaders": world.two_leaders,
            SLOWEST: int(max(world.takeovers_s, default=0) * 1_000),
            "epochs": world.epoch()[0],
            "failpoints": len(struck),
            "clocks off": world.clocks_off,
        }
    )
    return Seen(counts, world.faults, tuple(sorted(world.points.all - struck)))


def _check(world: World) -> None:
    world.say("is checked")
    with connected(world.url) as connection:
        books = books_of(connection)
    found = [*wrong(books, runs_in(world.folder / "jobs"), world.score), *audited(world.url)]
    if found:
        raise Wrong("\n".join(found[:20]))


def _is_enough(seen: Seen) -> None:
    """Raise `Invalid` if so little has happened that nothing is shown."""
    needed = {**NEEDED, **({"lost commits": 1} if seen.faults["lose_commits"] else {})}
    little = [
        f"{what}: {seen.counts[what]}, at least {least} are needed"
        for what, least in needed.items()
        if seen.counts[what] < least
    ]
    little += [f"{what} was never reached" for what in seen.missed]
    if little:
        raise Invalid("; ".join(little))
