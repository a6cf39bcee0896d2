"""A round of chaos: callers at work, faults from a seed, and what must be true afterwards.

Processes call through a proxy (`tests.support.database_proxy`) that is cut, dies for a while and
loses the answers of commits; they are killed with -9 and stopped, and so is PostgreSQL. Each answer
names the event it was decided at. Sorted by that, all requests are put to the naive model: each
answer and each balance must be the model's (L5, L7, IL16, IL17, IL18). And the order must be one
that the callers can believe: who asked after another was answered comes after it.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import psycopg

from bursar.core.ids import AccountId, GrantId, UserId
from bursar.core.instant import NEVER
from bursar.core.ledger.commands import AddAccount, AddUser, Command, Issue, SetPolicy
from bursar.core.ledger.values import CreditKind, OrgPolicy
from bursar.core.pricing import PriceBook
from bursar.service.ledger.audit import rebuild_org, verify
from bursar.service.ledger.batch import Batch, CommandRequest
from bursar.store.database import Database
from bursar.store.sql.codec import command_of, refusal_of
from bursar.store.sql.connection import Connection
from tests.support.database_proxy import Line, Proxy, proxy
from tests.support.databases import new_org
from tests.support.ledger_caller import lines
from tests.support.model.ledger import Model

ROOT: Final = Path(__file__).parents[2]
CALLERS: Final = 4
ENDING_S: Final = 120.0  # how long callers may take to finish once all faults are over
LOST: Final = 4  # answers of commits in one fault
ANSWERS: Final = 120  # in a round, at least


def begin(connection: Connection, org: str) -> None:
    """Too few credits for all, and debts allowed."""
    commands: list[Command] = [
        AddAccount(account=AccountId("org"), parent=None, name="o"),
        AddUser(user=UserId("ann")),
        SetPolicy(policy=OrgPolicy(raw_hold_max=NEVER, debt_max=50)),
        *(
            Issue(grant=GrantId(f"g{one}"), account=AccountId("org"), amount=2_000, kind=kind)
            for one, kind in enumerate((CreditKind.PROMO, CreditKind.GRANT, CreditKind.PAID))
        ),
    ]
    asks = [
        CommandRequest(org, f"begin-{place}", command) for place, command in enumerate(commands)
    ]
    Batch(connection, PriceBook(), {}).run(asks)


class Callers:
    """Processes that call, and are started again when they have been killed."""

    def __init__(self, url: str, org: str, seed: int, folder: Path) -> None:
        self.url, self.org, self.seed, self.folder = url, org, seed, folder
        self.stop = folder / "stop"
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.names = [f"caller{index}" for index in range(CALLERS)]

    def start(self, name: str) -> None:
        """Start a caller, anew or again."""
        given = (self.url, self.org, name, self.seed, self.log(name), self.stop)
        command = [sys.executable, "-m", "tests.support.ledger_caller", *map(str, given)]
        with (self.folder / f"{name}.err").open("ab") as errors:
            self.running[name] = subprocess.Popen(command, cwd=ROOT, stderr=errors)

    def log(self, name: str) -> Path:
        """Where a caller writes down what it saw."""
        return self.folder / f"{name}.jsonl"

    def kill(self, name: str) -> None:
        """Kill a caller, wherever it is, and start it again."""
        self.running[name].kill()
        self.running[name].wait(timeout=120)
        self.start(name)

    def last_words(self, name: str) -> str:
        """The end of what a caller complained about."""
        return (self.folder / f"{name}.err").read_text()[-2_000:]

    def answers(self) -> int:
        """How many answers were seen so far."""
        logs = [self.log(name) for name in self.names]
        return sum(log.read_bytes().count(b'"answer"') for log in logs if log.exists())

    def end(self) -> None:
        """Let all of them finish what they are at; kill those that are left if one has failed."""
        self.stop.touch()
        try:
            for name, process in self.running.items():
                assert 0 == process.wait(ENDING_S), f"{name} has failed: {self.last_words(name)}"
        finally:
            for process in self.running.values():
                process.kill()
                process.wait(timeout=120)


@dataclass(kw_only=True)
class World:
    """All that can be harmed, and the chance that decides how."""

    database: Database
    line: Proxy
    callers: Callers
    chance: random.Random

    def kill_caller(self) -> None:
        """Kill a caller."""
        self.callers.kill(self.chance.choice(self.callers.names))

    def stop_caller(self) -> None:
        """Stop a caller for longer than others wait for its locks, or for less; let it go on."""
        process = self.callers.running[self.chance.choice(self.callers.names)]
        with stopped(process.pid):
            time.sleep(self.chance.choice((0.2, 2.5)))

    def kill_server(self) -> None:
        """Kill PostgreSQL's first process; the supervisor starts another."""
        assert self.database.embedded is not None
        running = self.database.embedded.ensure()
        os.kill(running.postgres_pid, signal.SIGKILL)
        self.database.embedded.ensure()

    def kill_backend(self) -> None:
        """Kill the process behind one connection: PostgreSQL begins all of them anew."""
        signal_to(self._backend(), signal.SIGKILL)

    def end_backend(self) -> None:
        """Ask a process behind one connection to end."""
        signal_to(self._backend(), signal.SIGTERM)

    def stop_backend(self) -> None:
        """Stop the process behind one connection, perhaps with a lock, and let it go on."""
        with stopped(self._backend()):
            time.sleep(self.chance.choice((0.2, 3.0)))

    def cut(self) -> None:
        """Cut all connections."""
        self.line.cut()

    def break_messages(self) -> None:
        """Break the line in the middle of batches, now and then, for a while."""
        with self._failing("breaks", 0.02):
            time.sleep(0.5)

    def lose_commits(self) -> None:
        """Lose the answers of commits, every second one, until some are lost."""
        wanted = self.line.lost_commits + LOST
        deadline = time.monotonic() + ENDING_S
        with self._failing("loses", 0.5):
            while self.line.lost_commits < wanted:
                assert time.monotonic() < deadline, "nobody commits"
                time.sleep(0.02)

    def kill_line(self) -> None:
        """Let nothing through, for longer than callers wait for an answer, or for less."""
        self.line.die()
        time.sleep(self.chance.choice((0.3, 3.0)))
        self.line.live()

    def refuse(self) -> None:
        """Let nobody in for a moment."""
        self.line.line = Line.REFUSED
        self.line.cut()
        time.sleep(0.3)
        self.line.line = Line.OPEN

    def _backend(self) -> int:
        """The process behind one of the callers' connections."""
        sql = """
            select pid from pg_stat_activity
             where datname = current_database() and pid <> pg_backend_pid() order by pid
        """
        deadline = time.monotonic() + ENDING_S
        while time.monotonic() < deadline:
            with suppress(psycopg.OperationalError), self.database.connect() as connection:
                if found := [int(pid) for (pid,) in connection.execute(sql)]:
                    return self.chance.choice(found)
        raise AssertionError("nobody is connected")

    @contextmanager
    def _failing(self, what: str, share: float) -> Iterator[None]:
        """A line that fails at a share of what passes."""
        chance = random.Random(self.chance.random())
        setattr(self.line, what, lambda _: chance.random() < share)
        try:
            yield
        finally:
            setattr(self.line, what, lambda _: False)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process that does nothing."""
    signal_to(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        signal_to(pid, signal.SIGCONT)


def signal_to(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that was there a moment ago."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


Fault = Callable[[World], None]
FAULTS: Final[Mapping[str, Fault]] = {
    fault.__name__: fault
    for fault in (
        World.kill_caller,
        World.stop_caller,
        World.kill_server,
        World.kill_backend,
        World.end_backend,
        World.stop_backend,
        World.cut,
        World.break_messages,
        World.lose_commits,
        World.kill_line,
        World.refuse,
    )
}


class Seen(NamedTuple):
    """What a round came to."""

    answers: int
    refusals: int
    replays: int  # answers that were an earlier one again: it had happened unseen
    lost_commits: int
    faults: Counter[str]


def round_of_chaos(database: Database, folder: Path, seed: int, faults: list[str]) -> Seen:
    """Let callers work while one fault follows the other, then check all that they saw."""
    with database.connect() as connection:
        org = new_org(connection)
        begin(connection, org)
    with proxy(database.url) as line:
        callers = Callers(line.url, org, seed, folder)
        chance = random.Random(seed)
        world = World(database=database, line=line, callers=callers, chance=chance)
        try:
            for name in callers.names:
                callers.start(name)
            for fault in faults:
                _await_answers(callers, chance.randint(3, 20))
                FAULTS[fault](world)
            _await_answers(callers, max(ANSWERS - callers.answers(), 20))
        finally:
            callers.end()
        lost = line.lost_commits
    with database.connect() as connection:
        seen = check(connection, database.url, callers)
    return seen._replace(lost_commits=lost, faults=Counter(faults))


def _await_answers(callers: Callers, more: int) -> None:
    """Wait until callers have got some more answers: a fault that hits nobody shows nothing."""
    wanted = callers.answers() + more
    deadline = time.monotonic() + ENDING_S
    while callers.answers() < wanted:
        assert time.monotonic() < deadline, "callers do not get on"
        for name, process in callers.running.items():
            assert process.poll() is None, f"{name} has failed: {callers.last_words(name)}"
        time.sleep(0.02)


# What must be true afterwards


def check(connection: Connection, url: str, callers: Callers) -> Seen:
    """All that was seen and all that is stored, held against each other and against the model."""
    org = callers.org
    told = [line for name in callers.names for line in lines(callers.log(name))]
    answers = [line for line in told if "answer" in line]
    check_answers(connection, org, answers)
    check_order(connection, org, told)
    check_against_model(connection, org)
    problems = [problem for problem in verify(connection) if problem.org == org]
    assert [] == problems, problems
    assert () == rebuild_org(url, org).differences
    return Seen(
        answers=len(answers),
        refusals=sum(line["refusal"] is not None for line in answers),
        replays=sum(bool(line["replayed"]) for line in answers),
        lost_commits=0,
        faults=Counter(),
    )


def requests(connection: Connection, org: str) -> list[tuple[Any, ...]]:
    """All requests of an org in the order in which they were decided."""
    sql = """
        select key, at, command::text, refusal::text, first, number from requests
         where org_id = %s order by number, (refusal is not null), at, key
    """
    return connection.execute(sql, [org]).fetchall()


def check_answers(connection: Connection, org: str, answers: list[dict[str, Any]]) -> None:
    """Every answer that a client saw is the one that is stored, and nothing else is stored."""
    stored = {key: (number, refusal) for key, _, _, refusal, _, number in requests(connection, org)}
    for line in answers:
        number, refusal = stored.pop(line["key"], (None, None))
        assert (number, refusal) == (line["answer"], line["refusal"]), line
    unseen = [key for key in stored if not key.startswith("begin-")]
    assert [] == unseen, "all callers have finished"


def check_order(connection: Connection, org: str, told: list[dict[str, Any]]) -> None:
    """Whoever asked after another was answered comes after it (one pass, in order of time)."""
    decided = {key: (first, number) for key, _, _, _, first, number in requests(connection, org)}
    asked: dict[str, int] = {}
    moments: list[tuple[int, bool, str]] = []
    for line in told:
        if "asked_ns" in line and line["key"] not in asked:
            asked[line["key"]] = line["asked_ns"]
            moments.append((line["asked_ns"], False, line["key"]))
        elif "answered_ns" in line:
            moments.append((line["answered_ns"], True, line["key"]))
    latest = 0  # event that somebody was told of
    for _, is_answer, key in sorted(moments):
        first, number = decided[key]
        if is_answer:
            latest = max(latest, number)
        else:
            assert first > latest, f"{key} was asked after event {latest} was told"


def check_against_model(connection: Connection, org: str) -> None:
    """The model, asked the same in the same order, says the same, and has the same credits."""
    model = Model(PriceBook())
    last = 0
    for key, at, command, refusal, first, number in requests(connection, org):
        expected = model.answer(command_of(command), at)
        assert expected == (None if refusal is None else refusal_of(refusal).code), key
        assert first == (last + 1 if refusal is None else number + 1), key
        last = number
    sql = """
        select grant_id, available, held, spent, lapsed, revoked, moved
          from grants where org_id = %s
    """
    names = ("available", "held", "spent", "lapsed", "revoked", "moved")
    found = {
        grant: dict(zip(names, parts, strict=True))
        for grant, *parts in connection.execute(sql, [org])
    }
    assert model.shown(model.now) == found
