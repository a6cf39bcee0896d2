"""A service whose database has a wrong clock, as real processes (D5, N2)."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from bursar.store.database import URL_VARIABLE
from tests.api.test_rates import until_turned_away
from tests.support.api_service import Caller, Process, Tenant, new_tenant, refused
from tests.support.databases import connected, new_state
from tests.support.faked_clock import FakedServer, faked_environment, faked_server
from tests.support.patience import eventually

EVENTS = "select count(*) from events where org_id = %s"


class Site:
    """A service that can be restarted, on a database whose clock can be put wrong."""

    def __init__(self, server: FakedServer, room: Path) -> None:
        self.server = server
        self._room = room
        self.process = self._start()

    def _start(self) -> Process:
        environment = {URL_VARIABLE: self.server.url}
        return Process("api", self._room, self._room, environment=environment)

    def restart(self) -> None:
        """End the process and start another."""
        self.process.stop()
        self.process = self._start()

    def rows(self, sql: str, *parameters: object) -> list[Any]:
        """What the database says."""
        with connected(self.server.url) as connection:
            return connection.execute(sql.encode(), parameters).fetchall()

    @contextmanager
    def tenant(self) -> Iterator[Tenant]:
        """An org with a grant of 100 that expires in an hour, and a hold of 30 on it."""
        with tenant_of(self.process) as tenant:
            tenant.grant(100, expires_at=in_minutes(60))
            tenant.hold(30, ttl_seconds=1_800)
            yield tenant

    def readiness(self) -> httpx2.Response:
        """Whether the process says that it is ready."""
        return httpx2.get(f"{self.process.url}/readyz")


def in_minutes(minutes: int) -> str:
    """An instant of the future, as the API writes it."""
    return (datetime.now(UTC) + timedelta(minutes=minutes)).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """Such a service, with one process."""
    with faked_server() as server:
        site = Site(server, tmp_path)
        try:
            yield site
        finally:
            site.process.stop()


def owned(caller: Caller, account: str) -> tuple[int, int, int]:
    """What an account has available, held and lapsed."""
    figures = caller.get(f"/accounts/{account}/balance").json()["owned"]
    return tuple(figures[f"{part}_micros"] for part in ("available", "held", "lapsed"))


@contextmanager
def two_processes(room: Path, offset: str) -> Iterator[tuple[Process, Process]]:
    """A sound process and one whose machine's time of day is off, on one database."""
    faked = faked_environment(offset)
    with new_state() as state:
        sound = Process("up", state, room)
        try:
            wrong = Process("api", state, room, environment=faked)
            try:
                yield sound, wrong
            finally:
                wrong.stop()
        finally:
            sound.stop()


@contextmanager
def tenant_of(process: Process) -> Iterator[Tenant]:
    """An org, at a process."""
    operator = Caller(process.url, process.admin_key)
    with new_tenant(operator) as tenant:
        yield tenant
    operator.close()


@pytest.mark.slow
def test_a_process_that_is_ahead_does_not_use_up_the_rate_at_others(tmp_path: Path) -> None:
    """Four seconds are tolerated; the rate refills by the database's time everywhere (N1)."""
    with two_processes(tmp_path, "+4") as (sound, ahead), tenant_of(sound) as tenant:
        caller = tenant.with_key(["read"], rate_per_second=5)
        there = caller.at(ahead)
        answers = [until_turned_away(partial(at.get, "/holds"))[-1] for at in (there, caller)]

        assert ["1", "1"] == [answer.headers["retry-after"] for answer in answers]
        there.close()


@pytest.mark.slow
def test_a_process_a_day_behind_rejects_expired_keys(tmp_path: Path) -> None:
    """It takes no writes, and its reads go by what its machine has recorded."""
    with two_processes(tmp_path, "-1d") as (sound, behind), tenant_of(sound) as tenant:
        lasting = tenant.caller.at(behind)
        soon = (datetime.now(UTC) + timedelta(seconds=3)).strftime("%Y-%m-%dT%H:%M:%SZ")
        caller = tenant.with_key(["read"], expires_at=soon)
        there = caller.at(behind)
        assert 200 == there.get("/holds").status_code
        eventually(lambda: caller.get("/holds").status_code == 401, "the key has expired")

        assert 401 == there.get("/holds").status_code
        assert 200 == lasting.get("/holds").status_code
        refused(lasting.post("/users", {}), 503, "clock_refused")
        there.close()
        lasting.close()


@pytest.mark.slow
def test_nothing_lapses_when_the_service_starts_on_a_database_a_day_ahead(site: Site) -> None:
    """A restart does not make the clock trusted: grants and holds are as they were, and balances
    are told by the last trusted reading; when the clock is right again, work goes on."""
    with site.tenant() as tenant:
        before = site.rows(EVENTS, tenant.id)
        site.server.put("+1d")
        site.restart()
        caller = tenant.caller.at(site.process)
        ask = {"account_id": tenant.account, "amount_micros": 10}

        refused(caller.post("/holds", ask, "first"), 503, "clock_refused")
        eventually(lambda: "sweeper failed" in site.process.errors, "a sweep was tried")
        assert before == site.rows(EVENTS, tenant.id)
        assert (70, 30, 0) == owned(caller, tenant.account)
        assert "failed" == refused(site.readiness(), 503, "not_ready")["checks"]["clock"]

        site.server.put("+0")
        eventually(lambda: caller.post("/holds", ask, "first").status_code == 201)
        assert (60, 40, 0) == owned(caller, tenant.account)
        assert 200 == site.readiness().status_code
        caller.close()
