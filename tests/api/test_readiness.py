"""`/readyz`: whether a process can do its work, as a load balancer asks (N6)."""

from collections.abc import Iterator

import httpx2
import psycopg
import pytest

from bursar.store.database import URL_VARIABLE
from tests.support.api_service import Caller, Process, new_tenant, refused
from tests.support.patience import eventually
from tests.support.postgres import Cluster, migrated_cluster

ALL_OK = dict.fromkeys(("database", "schema", "writable", "clock", "disk"), "ok")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, str, Process]]:
    """A server of these tests' own, the address of a database on it, and a process."""
    room = tmp_path_factory.mktemp("ready")
    with migrated_cluster() as (server, url):
        process = Process("api", room, room, environment={URL_VARIABLE: url})
        try:
            yield server, url, process
        finally:
            process.stop()


def ready(process: Process) -> bool:
    """Whether the process says that it is ready."""
    answer = httpx2.get(f"{process.url}/readyz")
    if answer.status_code == 200:
        assert {"status": "ready", "checks": ALL_OK} == answer.json()
    return answer.status_code == 200


def becomes_unready(process: Process, check: str, **others: str) -> None:
    """The process says within moments that it is not ready, and why."""
    eventually(lambda: not ready(process), "not ready")
    answer = httpx2.get(f"{process.url}/readyz")
    problem = refused(answer, 503, "not_ready")
    assert {**ALL_OK, check: "failed", **others} == problem["checks"]
    assert "1" == answer.headers["retry-after"]


def execute(url: str, sql: str) -> None:
    """Change something of the server."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(sql.encode())


def set_read_only(server: Cluster, value: str) -> None:
    """Let the server take no writes, or take them again, as an operator does."""
    execute(server.url, f"alter system set default_transaction_read_only = {value}")
    execute(server.url, "select pg_reload_conf()")


def test_a_process_on_a_server_that_takes_no_writes_is_not_ready(
    site: tuple[Cluster, str, Process],
) -> None:
    """Calls would only be refused; it is ready again when the server is."""
    server, _, process = site
    assert ready(process)
    set_read_only(server, "on")
    try:
        becomes_unready(process, "writable")
    finally:
        set_read_only(server, "off")

    eventually(lambda: ready(process), "ready again")


def test_calls_that_cannot_be_counted_are_refused_clearly(
    site: tuple[Cluster, str, Process],
) -> None:
    """A rate is a row: a server that takes no writes is a fault of the database, not of ours."""
    server, _, process = site
    operator = Caller(process.url, process.admin_key)
    with new_tenant(operator) as tenant:
        caller = tenant.with_key(["read"], rate_per_second=5)  # none of its calls is free
        set_read_only(server, "on")
        try:
            eventually(lambda: not ready(process), "not ready")
            refused(caller.get("/holds"), 503, "unreachable")
        finally:
            set_read_only(server, "off")
        eventually(lambda: ready(process), "ready again")
    operator.close()


def test_a_process_without_its_database_is_not_ready(site: tuple[Cluster, str, Process]) -> None:
    """What depends on the database's answer is unknown then."""
    server, _, process = site
    server.stop()
    try:
        becomes_unready(process, "database", schema="unknown", writable="unknown")
    finally:
        server.start()

    eventually(lambda: ready(process), "ready again")


def test_a_process_on_a_database_with_another_schema_is_not_ready(
    site: tuple[Cluster, str, Process],
) -> None:
    """A newer Bursar has upgraded it."""
    _, url, process = site
    execute(url, "insert into migrations (number, name, checksum) values (999, 'newer', '')")
    try:
        becomes_unready(process, "schema")
    finally:
        execute(url, "delete from migrations where number = 999")

    eventually(lambda: ready(process), "ready again")
