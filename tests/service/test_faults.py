"""PostgreSQL killed under load, or unable to do the one thing that is left to do (F9).

What was answered is there, nothing is there twice, and nobody waits for ever.
"""

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from bursar.core.ids import AccountId, ChargeId, GrantId, HoldId, UserId
from bursar.core.instant import NEVER
from bursar.core.ledger.commands import (
    AddAccount,
    AddUser,
    Charge,
    Command,
    Issue,
    Reserve,
    SetPolicy,
    Settle,
)
from bursar.core.ledger.values import CreditKind, OrgPolicy
from bursar.core.refusal import InvariantBroken, Refusal
from bursar.core.value import replace
from bursar.service.ledger.audit import orgs_of, rebuild, verify
from bursar.service.ledger.batch import OrgFrozen
from bursar.service.ledger.batcher import Limits
from bursar.service.ledger.ledger import Ledger
from bursar.store.database import URL_VARIABLE, Database, open_database
from bursar.store.ledger.writer import create_org
from tests.support import databases

ORG, ANN = AccountId("org"), UserId("ann")
CALLERS, TURNS = 8, 12  # each caller's holds, each with three commands


@contextmanager
def embedded(monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    """An embedded database of the test's own, whatever else there is."""
    monkeypatch.delenv(URL_VARIABLE, raising=False)
    with databases.new_state() as state, open_database(state) as database:
        yield database


def begin(ledger: Ledger, org: str) -> None:
    """Credits for everybody, and holds that last."""
    commands: list[Command] = [
        AddAccount(account=ORG, parent=None, name="o"),
        AddUser(user=ANN),
        SetPolicy(policy=OrgPolicy(raw_hold_max=NEVER)),
        Issue(grant=GrantId("g"), account=ORG, amount=10**9, kind=CreditKind.PAID),
    ]
    for place, command in enumerate(commands):
        assert isinstance(ledger.ask(org, f"begin-{place}", command).outcome, tuple)


def life(ledger: Ledger, org: str, name: str) -> int:
    """One hold from its opening to its end; what it was charged."""
    hold = HoldId(name)
    commands: list[Command] = [
        Reserve(hold=hold, account=ORG, user=ANN, amount=100, expires_at=NEVER - 1),
        Charge(charge=ChargeId(f"{name}-c"), hold=hold, amount=30),
        Settle(charge=ChargeId(f"{name}-s"), hold=hold, total=70),
    ]
    for place, command in enumerate(commands):
        answer = ledger.ask(org, f"{name}-{place}", command)
        assert not isinstance(answer.outcome, Refusal), answer
    return 70


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["postgres_pid", "supervisor_pid"])
def test_a_killed_database_costs_no_answer_and_no_credit(
    monkeypatch: pytest.MonkeyPatch, victim: str
) -> None:
    """Killed with -9 twice while eight callers work; then all sums are exact (L5, L7, D3)."""
    with (
        embedded(monkeypatch) as database,
        Ledger(database.connect, limits=Limits(lanes=2, unreachable_s=120)) as ledger,
        ThreadPoolExecutor(CALLERS) as callers,
    ):
        orgs = ["org-1", "org-2"]
        with database.connect() as connection:
            for org in orgs:
                create_org(connection, org)
        for org in orgs:
            begin(ledger, org)
        halfway = threading.Semaphore(0)

        def work(caller: int) -> int:
            spent = 0
            for turn in range(TURNS):
                spent += life(ledger, orgs[caller % 2], f"h-{caller}-{turn}")
                halfway.release()
            return spent

        working = [callers.submit(work, caller) for caller in range(CALLERS)]
        for _ in range(2):
            for _ in range(CALLERS * TURNS // 4):
                assert halfway.acquire(timeout=120)
            running = database.embedded.ensure() if database.embedded else None
            os.kill(getattr(running, victim), signal.SIGKILL)
        spent = sum(one.result(240) for one in working)

        assert CALLERS * TURNS * 70 == spent
        with database.connect() as connection:
            assert () == verify(connection)
            sql = "select sum(spent)::bigint, sum(held)::bigint from grants"
            assert (spent, 0) == connection.execute(sql).fetchone()
            found = orgs_of(connection)
        assert all(one.differences == () for one in rebuild(database.url, found, 1))


def test_an_org_that_cannot_be_frozen_stops_no_other(database_url: str) -> None:
    """Its caller hears what is wrong, neighbours are served, and it is frozen later (D3, D9)."""
    with (
        databases.migrated(database_url) as url,
        databases.connected(url) as connection,
        Ledger(lambda: databases.connected(url), limits=Limits(lanes=1)) as ledger,
    ):
        for org in ("broken", "sound"):
            create_org(connection, org)
            begin(ledger, org)
        held = Reserve(hold=HoldId("h"), account=ORG, user=ANN, amount=9, expires_at=NEVER - 1)
        assert isinstance(ledger.ask("broken", "h", held).outcome, tuple)
        connection.execute("update holds set open = open - 1")
        connection.execute("update orgs set clock = clock + 1")  # what is in memory is out of date
        charge = Charge(charge=ChargeId("c"), hold=HoldId("h"), amount=1)
        connection.execute(
            "alter table orgs add constraint orgs_none_is_frozen check (frozen is null)"
        )

        for turn in range(2):
            with pytest.raises(InvariantBroken, match="not the sum of its draws"):
                ledger.submit("broken", f"c-{turn}", charge).result(60)
            beside = replace(held, hold=HoldId(f"h-{turn}"))
            assert isinstance(ledger.submit("sound", f"h-{turn}", beside).result(60).outcome, tuple)
        connection.execute("alter table orgs drop constraint orgs_none_is_frozen")
        with pytest.raises(InvariantBroken):
            ledger.submit("broken", "c", charge).result(60)
        with pytest.raises(OrgFrozen, match="not the sum of its draws"):
            ledger.submit("broken", "c", charge).result(60)
