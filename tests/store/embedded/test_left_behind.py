"""What earlier lives left in the folder: pids of others, halves, servers of unknown origin."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from bursar.store.embedded import DatabaseDown, EmbeddedDatabase
from bursar.store.embedded.os_user import database_user
from bursar.store.embedded.programs import UNFINISHED_PREFIX, find_programs, make_reachable
from bursar.store.embedded.server_info import read_info
from tests.support.embedded_guests import LINGER_S, World, execute
from tests.support.patience import eventually


def written_as_user(path: Path, text: str) -> None:
    """A file as PostgreSQL itself would have left it."""
    path.write_text(text)
    path.chmod(0o600)
    database_user().take(path)


@pytest.mark.slow
def test_reused_pids_are_ignored(world: World) -> None:
    """Every file that names a pid names a live process, of the very user PostgreSQL runs as."""
    state = world.used_state()
    other = world.started(["sleep", "600"], **database_user().spawn_options()).pid
    lines = [other, state.data, 1, 5432, state.run, "", "  1  2", "ready"]
    text = "".join(f"{line}\n" for line in lines)
    written_as_user(state.data / "postmaster.pid", text)
    written_as_user(state.run / ".s.PGSQL.5432.lock", text)
    written_as_user(state.run / ".s.PGSQL.5432", "not a socket")
    told = {"host": str(state.run), "port": 5432, "version": "18.4"}
    state.server_info.write_text(
        json.dumps(told | {"postgres_pid": other, "supervisor_pid": other})
    )

    with EmbeddedDatabase(state.path, linger_s=LINGER_S) as database:
        assert other != database.info.postgres_pid
        assert [(7,)] == execute(database.url, "select figure from kept")
    assert os.stat(f"/proc/{other}"), "the other process was left alone"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"host": "x"}', "null", "\xff"])
def test_an_invalid_server_file_is_ignored(world: World, text: str) -> None:
    state = world.state()
    state.path.mkdir()
    state.password.write_text("secret")
    state.server_info.write_text(text, encoding="latin-1")

    assert None is read_info(state)


@pytest.mark.slow
def test_partial_data_is_ignored_and_removed(world: World) -> None:
    """A data folder is there whole or not at all; so are copies of programs."""
    state = world.state()
    half = state.path / f"{UNFINISHED_PREFIX}abc" / "data"
    half.mkdir(parents=True)
    (half / "PG_VERSION").write_text("18\n")
    state.data.mkdir()  # empty, which is as good as none

    with EmbeddedDatabase(state.path, linger_s=LINGER_S) as database:
        assert [(1,)] == execute(database.url, "select 1")
        assert [] == list(state.path.glob(f"{UNFINISHED_PREFIX}*"))


@pytest.mark.slow
def test_a_server_that_was_started_by_hand_is_left_running(world: World) -> None:
    """It has not our lock, but PostgreSQL's own; two servers on one folder would ruin it."""
    state = world.used_state()
    programs = make_reachable(find_programs(), state.path, database_user())
    command = [programs.path("postgres"), "-D", str(state.data), "-p", "5431"]
    command += ["-c", "listen_addresses=", "-k", str(state.data)]
    quiet = subprocess.DEVNULL
    hand = world.started(
        command, cwd="/", stdout=quiet, stderr=quiet, **database_user().spawn_options()
    )
    eventually((state.data / ".s.PGSQL.5431").exists, "the other server runs")

    with (
        pytest.raises(DatabaseDown, match=f"Is another postmaster .PID {hand.pid}. running"),
        EmbeddedDatabase(state.path, linger_s=LINGER_S, timeout_s=3),
    ):
        pass

    assert None is hand.poll()
    hand.send_signal(signal.SIGINT)
    assert 0 == hand.wait(timeout=120)
