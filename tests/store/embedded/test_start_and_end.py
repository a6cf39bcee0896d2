"""Starting, sharing and ending: one server, whoever comes first and whoever leaves last."""

import os
import socket
import stat
import subprocess
import sys

import pytest

from bursar.store.embedded import EmbeddedDatabase
from bursar.store.embedded.folder import StateFolder
from bursar.store.embedded.initdb import free_port
from bursar.store.embedded.os_user import database_user
from bursar.store.embedded.supervisor import LOG_BYTES_MAX, rotate
from tests.support.embedded_guests import LINGER_S, World, execute, is_over
from tests.support.patience import eventually

PROMISED = {
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "data_checksums": "on",
    "server_encoding": "UTF8",
    "listen_addresses": "",
    "TimeZone": "UTC",
}


@pytest.mark.slow
def test_a_first_start_creates_a_durable_database(world: World) -> None:
    """What a ledger stands on is switched on, and nobody else can read or reach it."""
    state = world.state()

    with EmbeddedDatabase(state.path, linger_s=LINGER_S) as database:
        settings = dict(
            execute(database.url, "select name, current_setting(name) from pg_settings")
        )
        owner = os.stat(f"/proc/{database.info.postgres_pid}").st_uid

        assert PROMISED == {name: settings[name] for name in PROMISED}
        assert [("b", "C.UTF-8")] == execute(
            database.url,
            "select datlocprovider, datlocale from pg_database where datname = current_database()",
        )
        assert database_user().uid == owner
        assert database.info.password not in repr(database.info)
        assert 0o600 == stat.S_IMODE(state.password.stat().st_mode)
        for folder in (state.data, state.run):
            assert 0o700 == stat.S_IMODE(folder.stat().st_mode)
            assert owner == folder.stat().st_uid


@pytest.mark.slow
def test_a_second_start_reads_the_data_of_the_first(world: World) -> None:
    """The last guest leaves, all of it ends cleanly, and the next guest finds its rows."""
    state = world.state()
    with EmbeddedDatabase(state.path, linger_s=LINGER_S) as database:
        url = database.url
        execute(url, "create table kept as select 7 as figure")

    eventually(lambda: is_over(state), "the server ends after its last guest")
    assert "database system is shut down" in state.log.read_text()
    assert not state.server_info.exists()

    with EmbeddedDatabase(state.path, linger_s=LINGER_S) as database:
        assert url == database.url, "the way to a socket never changes"
        assert [(7,)] == execute(database.url, "select figure from kept")
        assert "not properly shut down" not in state.log.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("number", [2, 6])
def test_guests_that_race_to_start_share_one_server(world: World, number: int) -> None:
    guests = [world.guest() for _ in range(number)]
    told = [guest.told() for guest in guests]

    assert 1 == len({one["postgres_pid"] for one in told})
    assert 1 == world.state().log.read_text().count("PostgreSQL is process")
    for one in told:
        assert [(1,)] == execute(one["url"], "select 1")


@pytest.mark.slow
def test_a_server_stays_while_one_guest_does(world: World) -> None:
    world.used_state()
    first, second = world.guest(), world.guest()
    server = first.told()["postgres_pid"]
    second.told()
    first.leaves()
    world.guest().told()
    second.leaves()  # by now the supervisor has long noticed that the first one left

    third = world.guest()

    assert server == third.told()["postgres_pid"]


@pytest.mark.slow
def test_a_free_port_is_used_where_the_socket_path_is_too_long(world: World) -> None:
    """A port is chosen anew at each start; whoever has got the old one is not taken for us."""
    state = world.state("deep", *["x" * 40] * 3)
    with EmbeddedDatabase(state.path, linger_s=LINGER_S) as database:
        port = database.info.port
        assert "127.0.0.1" == database.info.host
        assert [("127.0.0.1", "")] == execute(
            database.url,
            "select current_setting('listen_addresses'),"
            " current_setting('unix_socket_directories')",
        )
    eventually(lambda: is_over(state), "the server ends after its last guest")
    told = f'{{"host": "127.0.0.1", "port": {port}, "version": "", '
    state.server_info.write_text(told + '"postgres_pid": 1, "supervisor_pid": 1}')

    with socket.create_server(("127.0.0.1", port)) as squatter:
        squatter.settimeout(0)
        with EmbeddedDatabase(state.path, linger_s=LINGER_S) as database:
            assert port != database.info.port
            assert [(1,)] == execute(database.url, "select 1")


@pytest.mark.slow
def test_another_port_is_used_if_the_first_is_taken_meanwhile(world: World) -> None:
    """Between choosing a port and listening on it, somebody else may have it."""
    state = world.state("deep", *["x" * 40] * 3)
    state.path.mkdir(parents=True)

    with socket.create_server(("127.0.0.1", 0)) as squatter:
        taken, free = squatter.getsockname()[1], free_port()
        ports = subprocess.run(
            [sys.executable, "-c", SERVE, state.path, str(taken), str(free)],
            stdout=subprocess.PIPE,
            check=True,
        ).stdout.split()

    assert [b"127.0.0.1", str(free).encode()] == ports


# What the supervisor does, with ports that are chosen for it.
SERVE = """
import sys, time
from pathlib import Path
from bursar.store.embedded.initdb import DatabaseCluster
from bursar.store.embedded.initdb import free_port
from bursar.store.embedded.folder import StateFolder
from bursar.store.embedded.os_user import database_user
from bursar.store.embedded.programs import find_programs, make_reachable
from bursar.store.embedded.server_info import read_info
from bursar.store.embedded.server import Server

state, ports, user = StateFolder(Path(sys.argv[1])), sys.argv[2:], database_user()
programs = make_reachable(find_programs(), state.path, user)
cluster = DatabaseCluster(state=state, programs=programs, user=user)
server = Server(cluster, lambda: int(ports.pop(0)))
while not server.is_serving:
    server.advance()
    time.sleep(0.05)
print(read_info(state).host, read_info(state).port)
server.stop()
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plus+ümlaut and space %20", 'a,b "quoted"'])
def test_any_folder_name_works(world: World, name: str) -> None:
    with EmbeddedDatabase(world.state(name).path, linger_s=LINGER_S) as database:
        assert [(1,)] == execute(database.url, "select 1")


def test_a_database_is_usable_only_inside_with(world: World) -> None:
    database = EmbeddedDatabase(world.state().path)

    with pytest.raises(RuntimeError, match="inside `with`"):
        _ = database.url
    with pytest.raises(RuntimeError, match="inside `with`"):
        database.ensure()
    assert not world.state().path.exists()


def test_a_long_log_is_rotated(world: World) -> None:
    """Whoever has it open to append goes on at its new beginning."""
    log = StateFolder(world.room).log
    with log.open("ab", buffering=0) as file:
        file.write(b"x" * LOG_BYTES_MAX)
        rotate(log)
        assert LOG_BYTES_MAX == log.stat().st_size, "long enough is not too long"
        file.write(b"y")
        rotate(log)
        file.write(b"z")

    assert b"z" == log.read_bytes()
    assert LOG_BYTES_MAX + 1 == log.with_name("database.log.1").stat().st_size
