"""What clients saw, replayed in the server's own order on a second ledger, must be what it says.

Processes call, are killed with -9 at random and start again; connections are cut. Each answer names
the event it was decided at. Sorted by that, all requests are put to the naive model of
`tests/model.py`: each answer and each balance must be the model's (L5, L7, IL16, IL17, IL18).
"""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bursar.core.ids import AccountId, GrantId, UserId
from bursar.core.instant import NEVER
from bursar.core.ledger.commands import AddAccount, AddUser, Command, Issue, SetPolicy
from bursar.core.ledger.values import Kind, OrgPolicy
from bursar.core.pricing import PriceBook
from bursar.service.audit import rebuild_one, verify
from bursar.service.batch import Ask, Batch
from bursar.store.codec import command_of, refusal_of
from bursar.store.reading import Connection
from tests.databases import new_org
from tests.model import Model
from tests.service.caller import lines

CALLERS, OPERATIONS, KILLS, SEED = 4, 60, 10, 20_261_115
HERE = Path(__file__).parent


def begin(connection: Connection, org: str) -> None:
    """Too few credits for all, and debts allowed."""
    commands: list[Command] = [
        AddAccount(account=AccountId("org"), parent=None, name="o"),
        AddUser(user=UserId("ann")),
        SetPolicy(policy=OrgPolicy(raw_hold_max=NEVER, debt_max=50)),
        *(
            Issue(grant=GrantId(f"g{one}"), account=AccountId("org"), amount=700, kind=kind)
            for one, kind in enumerate((Kind.PROMO, Kind.GRANT, Kind.PAID))
        ),
    ]
    asks = [Ask(org, f"begin-{place}", command) for place, command in enumerate(commands)]
    Batch(connection, PriceBook(), {}).run(asks)


class Callers:
    """Processes that call, and are started again when they have been killed."""

    def __init__(self, url: str, org: str, folder: Path) -> None:
        self.url, self.org, self.folder = url, org, folder
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        """Start a caller, anew or again."""
        arguments = [self.url, self.org, name, str(SEED), str(OPERATIONS), str(self.log(name))]
        command = [sys.executable, "-m", "tests.service.caller", *arguments]
        self.running[name] = subprocess.Popen(command, cwd=HERE.parent.parent)

    def log(self, name: str) -> Path:
        """Where a caller writes down what it saw."""
        return self.folder / f"{name}.jsonl"

    def kill(self, name: str) -> None:
        """Kill a caller, wherever it is, and start it again."""
        self.running[name].send_signal(signal.SIGKILL)
        self.running[name].wait()
        self.start(name)

    def end(self) -> None:
        """Wait for all of them; kill those that are left if one has failed."""
        try:
            for name, process in self.running.items():
                assert 0 == process.wait(240), name
        finally:
            for process in self.running.values():
                process.kill()
                process.wait()


def requests(connection: Connection, org: str) -> list[tuple[Any, ...]]:
    """All requests of an org in the order in which they were decided."""
    sql = """
        select key, at, command::text, refusal::text, first, number from requests
         where org_id = %s order by number, (refusal is not null), at, key
    """
    return connection.execute(sql, [org]).fetchall()


@pytest.mark.slow
def test_what_killed_callers_saw_is_what_a_second_ledger_says(
    database_url: str, connection: Connection, tmp_path: Path
) -> None:
    """Ten kills among four callers, five cuts of all connections; fixed choices (reliability)."""
    org = new_org(connection)
    begin(connection, org)
    callers = Callers(database_url, org, tmp_path)
    names = [f"caller{index}" for index in range(CALLERS)]
    chance = random.Random(SEED)
    try:
        for name in names:
            callers.start(name)
        for kill in range(KILLS):
            time.sleep(chance.uniform(0.3, 0.9))
            callers.kill(chance.choice(names))
            if kill % 2:
                cut_all(connection)
    finally:
        callers.end()

    seen = check_answers(connection, org, [callers.log(name) for name in names])
    assert CALLERS * OPERATIONS == seen
    check_against_model(connection, org)
    assert [] == [problem for problem in verify(connection) if problem.org == org]
    assert () == rebuild_one(database_url, org).differences


def cut_all(connection: Connection) -> None:
    """Break every other connection to this database."""
    connection.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where datname = current_database() and pid <> pg_backend_pid()"
    )


def check_answers(connection: Connection, org: str, logs: list[Path]) -> int:
    """Every answer that a client saw is the one that is stored; how many there were."""
    stored = {key: (number, refusal) for key, _, _, refusal, _, number in requests(connection, org)}
    answers = [line for log in logs for line in lines(log) if "answer" in line]
    for line in answers:
        number, refusal = stored[str(line["key"])]
        assert (number, refusal) == (line["answer"], line["refusal"]), line
    assert len(answers) == len({line["key"] for line in answers}), "answered once each"
    return len(answers)


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
